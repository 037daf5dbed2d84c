"""Errors over HTTP: RFC 9457 problem documents, whoever raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from ..envs.core import shown
from ..errors import InvalidRequest, PayloadTooLarge, TurngymError, Unauthorized
from ..records import scrub_tree

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


def install(app: FastAPI, counts: Counter[str]) -> None:
    """Let every error of ``app``, the framework's own included, be answered by a problem document.

    Args:
        app: the application.
        counts: error code -> requests that failed so; added to.
    """

    async def answer(request: Request, error: Exception) -> Response:
        problem, headers = _as_problem(request, error)
        counts[problem.code] += 1
        return problem_response(problem, headers)

    for kind in (TurngymError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer)


def _as_problem(request: Request, error: Exception) -> tuple[TurngymError, Mapping[str, str] | None]:
    if isinstance(error, TurngymError):
        return error, None
    if isinstance(error, HTTPException):
        return _as_routing_problem(request, error)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return InvalidRequest(f"{place}: {first['msg']}.", hint="GET /openapi.json has the schema."), None
    # The server logs the traceback: the framework raises the error again after this answer.
    return TurngymError(f"{type(error).__name__} in the server.", hint="See the server's log."), None


def _as_routing_problem(request: Request, error: HTTPException) -> tuple[TurngymError, Mapping[str, str] | None]:
    if error.status_code == 404:
        hint = "GET /openapi.json lists all routes, GET /v1/envs the environments."
        return RouteNotFound(f"Nothing is served under {shown(request.url.path, 200)!r}.", hint=hint), None
    if error.status_code == 405:
        # The framework names the methods of the first route with this path only.
        fitting = [
            r for r in request.app.routes if isinstance(r, Route) and r.matches(request.scope)[0] is Match.PARTIAL
        ]
        allowed = ", ".join(sorted({method for route in fitting for method in route.methods or ()}))
        return MethodNotAllowed(f"{request.method} is not allowed here.", hint=f"Use {allowed}."), {"Allow": allowed}
    return InvalidRequest(str(error.detail)), error.headers
