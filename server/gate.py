"""The outermost layer of the application: API keys, the body limit, and nothing on a socket's way afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse

from ..errors import PayloadTooLarge, TurngymError, Unauthorized
from .auth import OPEN_PATHS, Keyring
from .links import Receive, Scope, Send
from .problems import MEDIA_TYPE, encode_problem, problem_headers

ACCOUNT = "turngym.account"
"""Key in the scope under which the routes find who asks."""
MAX_DISCARD_S = 5.0


class Gate:
    """ASGI middleware: who may pass, and with how much.

    Args:
        app: the application behind the gate.
        keyring: the API keys.
        max_body_bytes: larger bodies are refused before they are read whole.
        counts: error code -> requests that failed so; added to.
        open_paths: further paths that need no key.
        sites: prefixes, with a slash at the end, of pages made by the server: there a ticket counts as a key, and
            a browser without one is sent to the page "login".
    """

    def __init__(
        self,
        app: Any,
        keyring: Keyring,
        max_body_bytes: int,
        counts: Counter[str],
        open_paths: Container[str] = (),
        sites: Sequence[str] = (),
    ) -> None:
        self.app = app
        self.keyring = keyring
        self.max_body_bytes = max_body_bytes
        self.counts = counts
        self.open_paths = open_paths
        self.sites = sites

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        site = next((prefix for prefix in self.sites if path.startswith(prefix)), "")
        try:
            if path not in OPEN_PATHS and path not in self.open_paths:
                scope[ACCOUNT] = self.keyring.account(scope["headers"], ticket=bool(site))
            if kind == "http":
                self._check_length(scope)
        except TurngymError as error:
            self.counts[error.code] += 1
            if site and isinstance(error, Unauthorized) and _wants_html(scope):
                to_login: Any = RedirectResponse(_login(scope, site), 303)
                await to_login(scope, receive, send)
            else:
                await refuse(scope, receive, send, error)
            return
        if kind == "websocket":
            await self.app(scope, receive, send)
        else:
            await self.app(scope, self._limited(receive), send)

    def _check_length(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > self.max_body_bytes:
                raise self._too_large()

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The body has more than {self.max_body_bytes} bytes.", hint="Send fewer items in one request."
        )

    def _limited(self, receive: Receive) -> Receive:
        total = 0

        async def limited() -> dict[str, Any]:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.max_body_bytes:
                await _discard(receive)
                raise self._too_large()
            return message

        return limited


def _wants_html(scope: Scope) -> bool:
    return scope["type"] == "http" and any(
        name == b"accept" and b"text/html" in value for name, value in scope["headers"]
    )


def _login(scope: Scope, site: str) -> str:
    """Return the relative address of a site's login page, which leads back to where the browser wanted to go."""
    rest = scope["path"][len(site) :]
    query = scope["query_string"].decode("latin-1")
    # What a form was to do is not done afterwards: its session's page is shown.
    then = rest + (f"?{query}" if query else "") if scope["method"] == "GET" else rest.partition("/")[0]
    return f"{'../' * rest.count('/')}login?next={quote(then, safe='')}"


async def refuse(scope: Scope, receive: Receive, send: Send, error: TurngymError) -> None:
    """Answer a request or a WebSocket handshake by a problem document."""
    body = encode_problem(error)
    fields = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), **problem_headers(error)}
    headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": error.detail[:120]})
            return
        await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
        return
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _discard(receive)
    await send({"type": "http.response.body", "body": b""})


async def _discard(receive: Receive) -> None:
    """Read what the peer still sends for a moment: closing at once would reset the connection under the answer."""
    deadline = time.monotonic() + MAX_DISCARD_S
    more = True
    while more and time.monotonic() < deadline:
        try:
            message = await asyncio.wait_for(receive(), deadline - time.monotonic())
        except TimeoutError:
            return
        more = message["type"] == "http.request" and message.get("more_body", False)
