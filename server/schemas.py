"""The OpenAPI document: routes of plain handlers, schemas of msgspec structs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from ..errors import PayloadTooLarge, TurngymError, Unauthorized
from .problems import MEDIA_TYPE

_REF = "#/components/schemas/{name}"
_PROBLEM = {
    "type": "object",
    "description": "An error as RFC 9457 has it, with a stable code for programs and a hint for people.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "code", "hint"],
}


class Parameter(NamedTuple):
    """A path, query or header parameter.

    Attributes:
        name: its name.
        place: "path", "query" or "header".
        schema: JSON schema.
        description: one line.
    """

    name: str
    place: str
    schema: Mapping[str, Any]
    description: str

    def described(self) -> dict[str, Any]:
        """Return its part of the document."""
        required = self.place == "path"
        place = {"name": self.name, "in": self.place, "required": required}
        return {**place, "schema": dict(self.schema), "description": self.description}


class Api:
    """Adds documented routes to an application.

    Args:
        app: the application; its OpenAPI document is made here.
        keys: an API key is asked for.
    """

    def __init__(self, app: FastAPI, keys: bool) -> None:
        self.app = app
        self._keys = keys
        self._types: list[Any] = []
        app.openapi = self.document  # type: ignore[method-assign]

    def add(
        self,
        method: str,
        path: str,
        endpoint: Callable[[Request], Any],
        summary: str,
        *,
        answer: Any = None,
        body: Any = None,
        optional: bool = False,
        parameters: Iterable[Parameter] = (),
        errors: Iterable[type[TurngymError]] = (),
        media: str = "application/json",
        tag: str = "native",
        locked: bool = True,
        also: Mapping[str, str] | None = None,
    ) -> None:
        """Add a route.

        Args:
            method: HTTP method.
            path: path template.
            endpoint: handler.
            summary: one line for the document.
            answer: type of the JSON answer, or a JSON schema; None where ``media`` says enough.
            body: type of the JSON body, None for none.
            optional: the body may be empty.
            parameters: path, query and header parameters.
            errors: what may go wrong, besides a missing key and a large body.
            media: media type of the answer.
            tag: group in the document.
            locked: the API key is asked for.
            also: further statuses of success with their descriptions.
        """
        content = {media: {"schema": {} if answer is None else self._schema(answer)}}
        failures = [*errors, *([PayloadTooLarge] if body is not None else []), *([Unauthorized] if locked else [])]
        extra: dict[str, Any] = {
            "responses": {
                "200": {"description": "Done", "content": content},
                **{status: {"description": text} for status, text in (also or {}).items()},
                **_failures(failures),
            },
            "parameters": [each.described() for each in parameters],
        }
        if body is not None:
            schema = self._schema(body)
            extra["requestBody"] = {"required": not optional, "content": {"application/json": {"schema": schema}}}
        if self._keys and not locked:
            extra["security"] = []
        name = f"{method.lower()}_{path.strip('/').replace(':env', '').replace('/', '_').translate(_BRACES)}"
        self.app.add_api_route(
            path,
            endpoint,
            methods=[method],
            summary=summary,
            description=summary,
            response_class=Response,
            openapi_extra=extra,
            operation_id=name,
            tags=[tag],
        )

    def _schema(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, dict):
            return kind
        self._types.append(kind)
        (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
        return schema

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document of the whole application."""
        app = self.app
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes, summary=app.summary)
            _, schemas = msgspec.json.schema_components(self._types, ref_template=_REF)
            components: dict[str, Any] = {"schemas": {name: _tidied(each) for name, each in schemas.items()}}
            components["schemas"]["Problem"] = _PROBLEM
            if self._keys:
                components["securitySchemes"] = {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                }
                document["security"] = [{"bearer": []}, {"header": []}]
            document["components"] = components
            app.openapi_schema = document
        return app.openapi_schema

    def document_under(self, prefix: str, parameter: str, title: str, version: str) -> dict[str, Any]:
        """Return the document of the routes under ``prefix``, as if they stood at the root.

        Args:
            prefix: path template, for example "/{env}".
            parameter: the path parameter of the prefix, left out.
            title: title of the document.
            version: version of the document.
        """
        whole = self.document()
        paths = {}
        for path, item in whole["paths"].items():
            if path.startswith(f"{prefix}/"):
                paths[path[len(prefix) :]] = {
                    method: {
                        **operation,
                        "parameters": [each for each in operation.get("parameters", []) if each["name"] != parameter],
                    }
                    for method, operation in item.items()
                }
        return {**whole, "info": {"title": title, "version": version}, "paths": paths}


_BRACES = str.maketrans({"{": "", "}": "", ".": "_", "-": "_"})


def _failures(errors: Iterable[type[TurngymError]]) -> dict[str, Any]:
    by_status: dict[str, list[type[TurngymError]]] = {}
    for error in dict.fromkeys(errors):
        by_status.setdefault(str(error.status), []).append(error)
    content = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}
    return {
        status: {"description": "; ".join(f"{each.code}: {each.title}" for each in group), "content": content}
        for status, group in sorted(by_status.items())
    }


def flat_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a struct with its properties at the top, not behind a reference."""
    _, found = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    return _tidied(found[kind.__name__])


def _tidied(schema: dict[str, Any]) -> dict[str, Any]:
    """Turn the "Attributes" part of a docstring into descriptions of the properties."""
    text = inspect.cleandoc(schema.get("description", ""))
    head, _, attributes = text.partition("\n\nAttributes:\n")
    told: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(attributes).split("\n"):
        if line[:1].strip():
            name, _, told[name] = line.partition(": ")
        elif name:
            told[name] += " " + line.strip()
    properties = {
        key: {**value, "description": told[key]} if key in told else value
        for key, value in schema.get("properties", {}).items()
    }
    return {**schema, "description": head} | ({"properties": properties} if properties else {})
