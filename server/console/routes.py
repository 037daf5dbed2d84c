"""Serves the console's files.

They hold no secret and need no API key: the page asks for the key and sends it with its requests to ``/v1``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from fastapi import FastAPI, Request, Response

from ...errors import InvalidRequest

if TYPE_CHECKING:
    from ..hub import Hub

PREFIX = "/console"
MEDIA_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript"}

# Environments and episode files bring text of unknown origin. The page inserts it as text nodes only; should it ever
# fail to, no inline script runs (script-src), no string becomes markup (Trusted Types), nothing leaves (connect-src).
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers keep the files, and ask whether they changed
}


class Page(NamedTuple):
    """One file as it is served.

    Attributes:
        body: its bytes.
        headers: all headers, the entity tag included.
    """

    body: bytes
    headers: dict[str, str]


def _read() -> Mapping[str, Page]:
    pages = {}
    for file in sorted(Path(__file__).parent.iterdir()):
        if file.suffix not in MEDIA_TYPES:
            continue
        body = file.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {**HEADERS, "Content-Type": f"{MEDIA_TYPES[file.suffix]}; charset=utf-8", "ETag": tag}
        pages["/" if file.name == "index.html" else f"{PREFIX}/{file.name}"] = Page(body, headers)
    return MappingProxyType(pages)


PAGES = _read()
"""Path -> file: "/" is the page, "/console/…" what it loads."""


def mount(app: FastAPI, hub: Hub) -> None:
    """Serve the console at "/"; the paths of ``PAGES`` must be open to requests without an API key.

    Raises:
        InvalidRequest: the hub serves an environment whose prefix the console's files need.
    """
    if PREFIX[1:] in hub.specs:
        raise InvalidRequest(
            f"An environment with the id {PREFIX[1:]!r} cannot be served: the console's files lie at {PREFIX}.",
            hint="Register it under another id.",
        )
    for path, page in PAGES.items():
        app.add_api_route(path, _endpoint(page), methods=["GET", "HEAD"], include_in_schema=False)


def _endpoint(page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == page.headers["ETag"]:
            return Response(status_code=304, headers=page.headers)
        return Response(page.body, headers=page.headers)

    return answer
