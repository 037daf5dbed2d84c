"""Errors over HTTP: RFC 9457 problem documents, whoever raised."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ..errors import InvalidRequest, PayloadTooLarge, TurngymError, Unauthorized
from ..records import scrub_tree

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


class RouteNotFound(TurngymError):
    """Nothing is served under this path."""

    code, status, title = "ROUTE_NOT_FOUND", 404, "No such route"


class MethodNotAllowed(TurngymError):
    """The path exists, but not for this method."""

    code, status, title = "METHOD_NOT_ALLOWED", 405, "Method not allowed"


def encode_problem(error: TurngymError) -> bytes:
    """Encode an error as a problem document; characters that UTF-8 cannot carry are replaced."""
    problem = error.to_problem()
    try:
        return msgspec.json.encode(problem)
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub_tree(problem))


def problem_headers(error: TurngymError) -> dict[str, str]:
    """Return the headers that belong to an error's status."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, PayloadTooLarge):
        return {"Connection": "close"}
    if error.status in (429, 503):
        return {"Retry-After": "1"}
    return {}


def problem_response(error: TurngymError, headers: Mapping[str, str] | None = None) -> Response:
    """Make the HTTP response of an error."""
    return Response(
        encode_problem(error), error.status, {**problem_headers(error), **(headers or {})}, media_type=MEDIA_TYPE
    )


def install(app: FastAPI) -> None:
    """Let every error of ``app``, the framework's own included, be answered by a problem document."""
    app.add_exception_handler(TurngymError, _on_turngym_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_failure)


async def _on_turngym_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TurngymError)
    return problem_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        hint = "GET /openapi.json lists all routes, GET /v1/envs the environments."
        return problem_response(RouteNotFound(f"Nothing is served under {path[:200]!r}.", hint=hint))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refused = MethodNotAllowed(f"{request.method} is not allowed here.", hint=f"Use {allowed}." if allowed else "")
        return problem_response(refused, error.headers)
    return problem_response(InvalidRequest(str(error.detail)), error.headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return problem_response(InvalidRequest(f"{place}: {first['msg']}.", hint="GET /openapi.json has the schema."))


async def _on_failure(request: Request, error: Exception) -> Response:
    # The server logs the traceback: the framework raises the error again after this answer.
    return problem_response(TurngymError(f"{type(error).__name__} in the server.", hint="See the server's log."))
