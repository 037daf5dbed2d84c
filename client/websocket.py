"""One WebSocket connection to the hub, as an asyncio protocol.

It is the Sans-I/O protocol of ``websockets`` on an asyncio transport: a message goes straight from the socket's
callback to its receiver, without a reader task and a queue in between, which halves the client's cost of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from .. import __version__
from .address import Address

MAX_MESSAGE = 2**30


class Socket(asyncio.Protocol):
    """One WebSocket connection; it delivers whole messages and tells once when it is lost."""

    def __init__(
        self, address: Address, on_message: Callable[[bytes], None], on_lost: Callable[[Socket, str, int], None]
    ) -> None:
        self._protocol = ClientProtocol(parse_uri(address.websocket), max_size=MAX_MESSAGE)
        self._headers = address.headers
        self._on_message = on_message
        self._on_lost = on_lost
        self._parts: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.heard = False  # anything came in since it was last set to False
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the handshake."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by class
        request = self._protocol.connect()
        for name, value in {"User-Agent": f"turngym/{__version__}", **self._headers}.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take in what the hub sent."""
        self.heard = True
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Frame):
                self._frame(event)
            elif protocol.handshake_exc is None and not self.opened.done():
                self.opened.set_result(None)
        self._flush()
        if protocol.handshake_exc is not None:
            self._end(protocol.handshake_exc)
        elif protocol.state in (State.CLOSING, State.CLOSED):
            self._end(ConnectionError(f"the hub closed the connection, code {self._close_code()}"))

    def _frame(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.fin and not self._parts:
            self._on_message(bytes(frame.data))
            return
        self._parts.append(bytes(frame.data))
        if frame.fin:
            message = b"".join(self._parts)
            self._parts.clear()
            self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner, unless it was told already."""
        if not self.opened.done() and self._protocol.state is State.CONNECTING:
            self._protocol.receive_eof()  # a handshake error without a body length ends here
            self._end(self._protocol.handshake_exc or ConnectionError("the connection closed during the handshake"))
        self._end(exc or ConnectionError("the connection closed"))
        if not self.gone.done():
            self.gone.set_result(None)

    def _end(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)  # whoever waits for `opened` learns it there
        elif not self.over:
            self._on_lost(self, str(error) or type(error).__name__, self._close_code())
        self.over = True
        if self._transport is not None:
            self._transport.close()

    def _close_code(self) -> int:
        close = self._protocol.close_rcvd
        return 0 if close is None else close.code

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        data = self._protocol.data_to_send()
        transport.write(data[0] if len(data) == 1 else b"".join(data))
        if data and not data[-1] and transport.can_write_eof():
            transport.write_eof()  # how the protocol says that nothing more will come

    def send(self, message: bytes) -> None:
        """Send one text message."""
        self._protocol.send_text(message)
        if not self._flushing:
            # Not at once: what many tasks send in one turn of the loop leaves in one system call.
            self._flushing = True
            self._loop.call_soon(self._flush)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._protocol.send_ping(b"")
        self._flush()

    def abort(self, why: str) -> None:
        """Drop the connection at once."""
        self._end(ConnectionError(why))
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Say goodbye and wait, for a second at most, until the connection is gone."""
        self.over = True
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._flush()
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait([self.gone], timeout=1.0)
            self._transport.abort()
