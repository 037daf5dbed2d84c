"""WebSocket connections of either protocol: messages in, answers out, nothing lost when the hub drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .websocket import EXTENSION, DirectWebSocket

if TYPE_CHECKING:
    from .hub import Hub

log = logging.getLogger(__name__)
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
MAX_UNDER_WAY = 256
"""Requests of one socket that may be under way; reading stops until one is answered."""


class Hangup(Exception):
    """Raised by a handler to close the socket, after ``payload`` was sent."""

    def __init__(self, payload: bytes | None = None, code: int = 1000, reason: str = "") -> None:
        super().__init__(reason)
        self.payload = payload
        self.code = code
        self.reason = reason


class SocketLink:
    """One accepted WebSocket.

    Args:
        hub: where it is listed while it is open.
        handle: makes the answer to a message: bytes at once, or something to await; None for no answer. May raise
            :class:`Hangup`.
        serial: a message is handled only when the one before is answered.
    """

    def __init__(
        self, hub: Hub, handle: Callable[[bytes | str], bytes | Awaitable[bytes | None] | None], *, serial: bool = False
    ) -> None:
        self.open = True
        self._hub = hub
        self._handle = handle
        self._serial = serial
        self._under_way: set[asyncio.Task[None]] = set()
        self._waiting: deque[bytes | str] = deque()
        self._direct: DirectWebSocket | None = None
        self._send: Send
        self._closing: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether every message was answered."""
        return not self._under_way

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, first: Awaitable[bytes | None] | None = None
    ) -> None:
        """Read and answer until the peer or the hub closes the (accepted) socket.

        Args:
            scope: of the connection.
            receive: of the connection.
            send: of the connection.
            first: awaited (and sent, if it gives bytes) before a serial socket's first message is handled.
        """
        self._send = send
        if first is not None:
            self._begin(first)
        direct = scope.get("extensions", {}).get(EXTENSION)
        if isinstance(direct, DirectWebSocket) and direct.hand_over(self.take):
            self._direct = direct
        self._hub.links.add(self)
        try:
            while True:
                message = await receive()
                if message["type"] != "websocket.receive":
                    break
                data = message.get("text")
                self.take(message["bytes"] if data is None else data)
                if self._direct is None and len(self._under_way) + len(self._waiting) >= MAX_UNDER_WAY:
                    await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.open = False
            self._hub.links.discard(self)

    def take(self, data: bytes | str) -> None:
        """Handle one message; what comes after the hub hung up is left unread."""
        if self._closing is not None:
            return
        if self._serial and self._under_way:
            self._waiting.append(data)
        else:
            self._answer(data)
        if self._direct is not None and len(self._under_way) + len(self._waiting) >= MAX_UNDER_WAY:
            self._direct.hold("busy")

    def _answer(self, data: bytes | str) -> None:
        try:
            answer = self._handle(data)
        except Hangup as hangup:
            self._hang_up(hangup)
            return
        except Exception as error:
            self._broke(error)
            return
        if answer is None:
            return
        if isinstance(answer, bytes) and self._direct is not None:
            self._direct.send_text(answer)
            return
        self._begin(answer)

    def _begin(self, answer: bytes | Awaitable[bytes | None] | None) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(answer))
        self._under_way.add(task)
        task.add_done_callback(self._finished)

    async def _finish(self, answer: bytes | Awaitable[bytes | None] | None) -> None:
        try:
            payload = answer if isinstance(answer, bytes) or answer is None else await answer
            if payload is not None:
                await self._say(payload)
        except Hangup as hangup:
            self._hang_up(hangup)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broke(error)
        if self._waiting and self._closing is None:
            self._answer(self._waiting.popleft())
        if self._direct is not None and len(self._under_way) + len(self._waiting) < MAX_UNDER_WAY:
            self._direct.release("busy")

    def _broke(self, error: BaseException) -> None:
        """Close after an error of the hub itself: what the request did is not known."""
        log.error("A WebSocket request failed", exc_info=error)
        self.close(1011, "The request failed; see the server's log.")

    async def _say(self, payload: bytes) -> None:
        if self._direct is not None:
            await self._direct.drained()
            self._direct.send_text(payload)
        elif self.open:
            with contextlib.suppress(OSError):  # the peer may leave at any time
                await self._send({"type": "websocket.send", "text": payload.decode()})

    def _hang_up(self, hangup: Hangup) -> None:
        self._waiting.clear()
        self.close(hangup.code, hangup.reason, hangup.payload)

    def close(self, code: int, reason: str, payload: bytes | None = None) -> None:
        """Close the socket, after ``payload`` if there is one."""
        if self._closing is None and self.open:
            self._closing = asyncio.get_running_loop().create_task(self._close(code, reason, payload))

    async def _close(self, code: int, reason: str, payload: bytes | None) -> None:
        if payload is not None:
            await self._say(payload)
        with contextlib.suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
