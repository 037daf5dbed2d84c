"""A WebSocket protocol for uvicorn that hands whole messages straight to a handler.

uvicorn's own protocol puts every message into a queue, wakes a task, and pauses and resumes the transport around
it. On a socket whose application asks for it (:meth:`DirectWebSocket.hand_over`), complete unfragmented messages are
unmasked and handled inside ``data_received`` instead, which takes a third of the CPU. Everything else (the handshake,
control frames, fragmented messages, violations of the protocol) still goes through uvicorn's parser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import apply_mask  # type: ignore[attr-defined]  # C where it was compiled, else Python

EXTENSION = "turngym.direct"
"""Key in ``scope["extensions"]`` under which an application finds the protocol of its socket."""
_MASKED = 0x80
_DATA_FRAMES = (0x81, 0x82)  # a whole text or binary message in one frame


class DirectWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol with a short way for whole messages."""

    _handler: Callable[[bytes], None] | None = None
    _early = False
    _fragmented = False
    _missing = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pending = bytearray()
        self._holds: set[str] = set()
        self._lost = False
        self._drained = asyncio.Event()
        self._drained.set()

    def hand_over(self, handler: Callable[[bytes], None]) -> bool:
        """Call ``handler`` with every whole message from now on; to be called right after the accept.

        Returns:
            False if the peer sent data before the handshake was over; then all messages come the usual way.
        """
        if self._early:
            return False
        self._handler = handler
        return True

    def send_text(self, payload: bytes) -> None:
        """Send a text message (UTF-8); dropped if the socket is closing."""
        if self.close_sent or self._lost or self.transport.is_closing():
            return
        length = len(payload)
        if length < 126:
            header = bytes((0x81, length))
        elif length < 1 << 16:
            header = b"\x81\x7e" + length.to_bytes(2, "big")
        else:
            header = b"\x81\x7f" + length.to_bytes(8, "big")
        self.transport.write(header + payload)

    async def drained(self) -> None:
        """Wait until the peer has read enough of what was sent."""
        await self._drained.wait()

    def hold(self, reason: str) -> None:
        """Stop reading until :meth:`release` is called for every reason."""
        if not self._holds and not self.read_paused:
            self.transport.pause_reading()
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        """Take a reason to hold back."""
        if reason in self._holds:
            self._holds.discard(reason)
            if not self._holds and not self.read_paused and not self.transport.is_closing():
                self.transport.resume_reading()

    # What uvicorn and the event loop call ----------------------------------------------------------

    def handle_connect(self, event: Any) -> None:
        """Offer the short way to the application."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.handshake_complete:
            extensions: Any = self.scope["extensions"]
            extensions[EXTENSION] = self

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of those who wait to send."""
        self._lost = True
        self._drained.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop reading requests while the peer does not read answers."""
        super().pause_writing()
        self._drained.clear()
        if self._handler is not None:
            self.hold("slow reader")

    def resume_writing(self) -> None:
        """Go on reading."""
        super().resume_writing()
        self._drained.set()
        self.release("slow reader")

    def send_receive_event_to_app(self) -> None:
        """Deliver a fragmented message; in turn with the whole ones on the short way."""
        if self._handler is None:
            super().send_receive_event_to_app()
            return
        data, self.frames = b"".join(self.frames), []
        self._handler(data)

    def data_received(self, data: bytes) -> None:
        """Cut the stream into frames; handle whole messages, leave the rest to uvicorn."""
        if self._handler is None:
            # Bytes that follow the handshake request at once would be split between two parsers.
            self._early = self._early or self.handshake_initiated or not data.endswith(b"\r\n\r\n")
            super().data_received(data)
            return
        if self._pending:
            self._pending += data
            if len(self._pending) < self._missing:
                return
            data = bytes(self._pending)
            self._pending.clear()
        position = 0
        while position < len(data):
            end = self._frame(data, position)
            if end == 0:
                self._pending += data[position:] if position else data
                return
            position = end

    def _frame(self, data: bytes, start: int) -> int:
        """Deal with the frame at ``start``; return where it ends, 0 if it is not complete yet."""
        have = len(data) - start
        self._missing = 2
        if have < 2:
            return 0
        first, second = data[start], data[start + 1]
        length, body = second & 127, start + 2
        if length > 125:
            extended = 2 if length == 126 else 8
            self._missing = 2 + extended
            if have < self._missing:
                return 0
            body += extended
            length = int.from_bytes(data[start + 2 : body], "big")
        if second & _MASKED:
            body += 4
        end = body + length
        handler = self._handler
        if handler is None or length > self.config.ws_max_size:
            # Too large, or closing: uvicorn's parser answers with the right close code.
            self._handler = None
            super().data_received(data[start:])
            return len(data)
        if len(data) < end:
            self._missing = end - start
            return 0
        if first in _DATA_FRAMES and second & _MASKED and not self._fragmented:
            handler(apply_mask(data[body:end], data[body - 4 : body]))
            return end
        if first & 0x0F < 8:
            self._fragmented = not first & 0x80
        super().data_received(data[start:end])
        return end
