"""The wire: one multiplexed WebSocket to the hub, on which requests survive a broken connection.

``Wire.request`` sends the items of one operation and waits for their replies. When the connection breaks, it
connects again with growing pauses and sends every unanswered request once more; the protocol makes that safe
(session ids and reset seeds chosen by the client, ``step_index`` on every step). Listings go over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus

from .. import __version__
from ..errors import (
    Draining,
    InvalidRequest,
    PayloadTooLarge,
    ServerUnavailable,
    TurngymError,
    Unauthorized,
    from_problem,
)
from ..protocol import MAX_ITEMS, Answer, Reply
from .address import Address
from .websocket import Socket

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("turngym.client")

MAX_BYTES = 4 * 2**20  # a larger request is sent as several, so that a server with a message limit takes it
OPEN_TIMEOUT_S = 10.0
GOODBYE_S = 2.0
PING_AFTER_S = 20.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
TOO_BIG = 1009  # WebSocket close code (RFC 6455, 7.4.1)
# HTTP answers to the handshake that a gateway gives while the hub behind it is away.
AWAY = (408, 425, 500, 502, 503, 504)


class Request(msgspec.Struct):
    """One request frame, with the items not yet encoded (``protocol.Frame`` is the same on the hub's side)."""

    id: int
    op: str
    items: Sequence[msgspec.Struct]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Answer).decode


class _Call:
    """One request that waits for its answer; ``sent_at`` is 0 while it could not be sent."""

    __slots__ = ("broken_at", "data", "future", "op", "sent_at")

    def __init__(self, op: str, data: bytes, future: asyncio.Future[list[Reply]]) -> None:
        self.op = op
        self.data = data
        self.future = future
        self.sent_at = 0.0
        self.broken_at = 0.0


def pauses() -> Iterator[float]:
    """Yield growing pauses between attempts, in seconds, each drawn anew so that clients do not march in step."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause * random.uniform(0.5, 1.5)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def unreachable(address: Address, why: object) -> ServerUnavailable:
    """Build the error for a hub that cannot be reached."""
    return ServerUnavailable(
        f"The hub at {address.base} cannot be reached ({str(why) or type(why).__name__}).",
        hint="Start one with `turngym serve`, or check the address.",
    )


class Wire:
    """Requests to one hub over one connection at a time.

    Args:
        address: where the hub is.
        timeout_s: seconds to wait for the answer to a request that was sent.
        retry_s: seconds during which a broken connection is rebuilt before requests fail.
    """

    def __init__(self, address: Address, *, timeout_s: float, retry_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self.reconnects = 0
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._ids = 0
        self._calls: dict[int, _Call] = {}
        self._socket: Socket | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._pauses = pauses()
        self._clock: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._opened_at = self._silent_since = self._ticked = 0.0
        self._ssl: ssl.SSLContext | None = None
        self._http: httpx.AsyncClient | None = None

    # Connecting ------------------------------------------------------------------------------------

    async def open(self, wait_s: float = 0.0) -> None:
        """Connect, trying for ``wait_s`` seconds.

        Raises:
            ServerUnavailable: nobody answers there, or what answers is no hub.
            Unauthorized: the API key is missing or wrong.
            InvalidRequest: a web server answers that is no hub.
        """
        deadline = self._loop.time() + wait_s
        while True:
            try:
                socket = await self._open_once()
                break
            except (OSError, InvalidHandshake, EOFError) as error:
                failure = _refusal(self.address, error)
                pause = next(self._pauses)
                if failure is not None:
                    raise failure from error
                if self._loop.time() + pause > deadline:
                    raise unreachable(self.address, error) from error
            await asyncio.sleep(pause)
        self._socket = socket
        self._opened_at = self._silent_since = self._ticked = self._loop.time()
        self._tick()
        for call in list(self._calls.values()):
            self._send(call)

    async def _open_once(self) -> Socket:
        address = self.address
        if address.secure and self._ssl is None:
            self._ssl = ssl.create_default_context()
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            _, socket = await self._loop.create_connection(
                lambda: Socket(address, self._received, self._lost),
                address.host,
                address.port,
                ssl=self._ssl,
            )
            try:
                await socket.opened
            except BaseException:
                socket.abort("no handshake")
                raise
        if socket.over:  # hung up on in the moment of the handshake
            raise ConnectionError("the hub closed the connection")
        return socket

    def _lost(self, socket: Socket, why: str, code: int) -> None:
        """Start to reconnect; requests in flight stay, and are sent again."""
        if self.closed or socket is not self._socket:
            return
        self._socket = None
        log.info("The connection to %s broke (%s); connecting again.", self.address.base, why)
        if code == TOO_BIG and self._calls:
            # Sending it again would break the next connection too.
            number = max(self._calls, key=lambda n: len(self._calls[n].data))
            self._fail(number, PayloadTooLarge("The hub refuses messages of this size.", hint="Send less at once."))
        now = self._loop.time()
        lasted = now - self._opened_at > self.retry_s
        for number, call in list(self._calls.items()):
            call.sent_at = 0.0
            call.broken_at = now if lasted else call.broken_at or now
            if now - call.broken_at > self.retry_s:
                self._fail(number, unreachable(self.address, why))
        self._reconnect()

    def _reconnect(self) -> None:
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect_again())

    async def _connect_again(self) -> None:
        try:
            # Also before the first attempt: a hub that accepts and hangs up must not be hammered.
            await asyncio.sleep(next(self._pauses))
            await self.open(self.retry_s)
            self.reconnects += 1
        except Exception as error:
            # Whatever it is, those who wait must learn it.
            failure = error if isinstance(error, TurngymError) else unreachable(self.address, error)
            self._pauses = pauses()  # the next call starts anew
            for number in list(self._calls):
                self._fail(number, failure)
        finally:
            self._connecting = None

    # Requests --------------------------------------------------------------------------------------

    async def request(self, op: str, items: Sequence[msgspec.Struct], n: int | None = None) -> list[Reply]:
        """Send the items of one operation and return their replies, in order: one an item, or ``n``.

        What fails as a whole (no answer, a request the hub refuses) is told in each reply's ``error``, as if
        the items had failed one by one: a large request travels in several messages, and one that fails must
        not take the answers of the others with it.
        """
        if not items:
            return []
        chunks = self._encode(op, items)
        if len(chunks) == 1:
            return await self._ask(op, n or len(items), *chunks[0][1:])
        answers = await asyncio.gather(*(self._ask(op, *chunk) for chunk in chunks))
        return [reply for answer in answers for reply in answer]

    def _encode(self, op: str, items: Sequence[msgspec.Struct]) -> list[tuple[int, int, bytes]]:
        """Return (number of items, request id, message) per message."""
        if len(items) <= MAX_ITEMS:
            self._ids += 1
            try:
                data = _encode(Request(self._ids, op, items))
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidRequest(f"This cannot be sent as JSON: {error}.", hint="Send plain values.") from error
            if len(data) <= MAX_BYTES or len(items) == 1:
                return [(len(items), self._ids, data)]
        half = len(items) // 2
        return self._encode(op, items[:half]) + self._encode(op, items[half:])

    async def _ask(self, op: str, n: int, number: int, data: bytes) -> list[Reply]:
        if self.closed:
            return _refused(n, ServerUnavailable("This client is closed.", hint="Connect again."))
        call = _Call(op, data, self._loop.create_future())
        self._calls[number] = call
        if self._socket is not None:
            self._send(call)
        else:
            self._reconnect()
        try:
            replies = await call.future
        except TurngymError as error:
            return _refused(n, error)
        finally:
            self._calls.pop(number, None)
        if len(replies) != n:
            if replies and replies[0].error is not None:
                return _refused(n, from_problem(replies[0].error))
            return _refused(n, _not_understood(f"{len(replies)} replies to {n} items"))
        return replies

    def _send(self, call: _Call) -> None:
        assert self._socket is not None
        call.sent_at = self._loop.time()
        self._socket.send(call.data)

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Ask for a listing over HTTP; returns the status and the body.

        Raises:
            ServerUnavailable: nobody answered for ``retry_s`` seconds.
        """
        import httpx

        if self.closed:
            raise ServerUnavailable("This client is closed.", hint="Connect again.")
        if self._http is None:
            # Direct, as the WebSocket is: a proxy named in the environment knows nothing of a hub.
            self._http = httpx.AsyncClient(
                base_url=self.address.base, headers=self.address.headers, timeout=self.timeout_s, trust_env=False
            )
        deadline = self._loop.time() + self.retry_s
        for pause in pauses():
            try:
                response = await self._http.get(path, params=params)
                return response.status_code, response.content
            except httpx.TransportError as error:
                if self._loop.time() + pause > deadline:
                    raise unreachable(self.address, error) from error
            await asyncio.sleep(pause)
        raise AssertionError("pauses() never ends")

    def _received(self, data: bytes) -> None:
        try:
            answer = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            for number in list(self._calls):
                self._fail(number, _not_understood(error))
            return
        call = self._calls.get(answer.id) if answer.id is not None else None
        if call is None:
            # Answers to requests whose caller gave up are dropped; a problem without an id concerns them all.
            if answer.error is not None and answer.id is None:
                for number in list(self._calls):
                    self._fail(number, from_problem(answer.error))
        elif call.future.done():
            pass
        elif answer.error is None:
            call.future.set_result(answer.items)
        elif answer.error.get("code") == Draining.code:
            self._put_off(call)
        else:
            call.future.set_exception(from_problem(answer.error))

    def _put_off(self, call: _Call) -> None:
        """Ask a hub that is shutting down again, until it is gone and another takes its place."""
        now = self._loop.time()
        call.broken_at = call.broken_at or now
        call.sent_at = 0.0
        if now - call.broken_at > self.retry_s:
            call.future.set_exception(unreachable(self.address, "it is shutting down"))
        else:
            self._loop.call_later(next(self._pauses), self._send_again, call)

    def _send_again(self, call: _Call) -> None:
        # Not if it was sent already, on a new connection.
        if self._socket is not None and not call.sent_at and not call.future.done():
            self._send(call)

    def _fail(self, number: int, error: TurngymError) -> None:
        call = self._calls.pop(number)
        if not call.future.done():
            call.future.set_exception(error)

    def _tick(self) -> None:
        """Look after timeouts and the sign of life, a few times per ``timeout_s``."""
        socket, now, interval = self._socket, self._loop.time(), min(1.0, self.timeout_s / 4)
        if socket is None or self.closed:
            return
        late, self._ticked = now - self._ticked > 2 * interval, now
        if socket.heard or late:
            # A loop that was blocked proves nothing about the hub: its answers may lie unread in the socket.
            self._silent_since = now
            self._pauses = pauses()
        if not late:
            for number, call in list(self._calls.items()):
                if call.sent_at and now - call.sent_at > self.timeout_s:
                    self._fail(number, _timed_out(self.address, call.op, self.timeout_s))
        socket.heard = False
        if now - self._silent_since > 2 * PING_AFTER_S:
            socket.abort(f"no sign of life for {2 * PING_AFTER_S:.0f} s")
            return
        if now - self._silent_since > PING_AFTER_S:
            socket.ping()
        self._clock = self._loop.call_later(interval, self._tick)

    def close_soon(self, op: str, items: Sequence[msgspec.Struct]) -> None:
        """Start :meth:`close`; to be called on the loop."""
        self._closing = self._loop.create_task(self.close(op, items))

    async def close(self, op: str = "", items: Sequence[msgspec.Struct] = ()) -> None:
        """End the connection; with ``op`` and ``items``, send one last request if connected."""
        if self.closed:
            return
        try:
            await self.try_request(op, items)
        finally:
            await self._end()

    async def try_request(self, op: str, items: Sequence[msgspec.Struct]) -> None:
        """Send a request if connected, and wait a moment for its answer, which does not matter."""
        if items and self._socket is not None and not self.closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await self.request(op, items)

    async def _end(self) -> None:
        self.closed = True
        for number in list(self._calls):
            self._fail(number, ServerUnavailable("This client was closed.", hint="Connect again."))
        if self._clock is not None:
            self._clock.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()
            self._socket = None
        if self._http is not None:
            await self._http.aclose()


def _refused(n: int, error: TurngymError) -> list[Reply]:
    problem = error.to_problem()
    return [Reply(error=problem) for _ in range(n)]


def _timed_out(address: Address, op: str, timeout_s: float) -> ServerUnavailable:
    return ServerUnavailable(
        f"The hub at {address.base} did not answer to {op!r} within {timeout_s:g} s.",
        hint="Call again (the same action is not applied twice), or connect with a larger timeout_s.",
    )


def _not_understood(why: object) -> ServerUnavailable:
    return ServerUnavailable(
        f"The hub's answer was not understood ({why}).",
        hint=f"Let hub and client be of the same version; this client is turngym {__version__}.",
    )


def _refusal(address: Address, error: Exception) -> TurngymError | None:
    """Return why the hub does not want this connection, None where trying again may help."""
    if not isinstance(error, InvalidStatus):
        if isinstance(error, ssl.SSLCertVerificationError):
            return unreachable(address, error)
        # A hub that goes down hangs up; what it never does is to answer in another protocol.
        if isinstance(error, InvalidMessage) and not isinstance(error.__cause__, EOFError):
            return InvalidRequest(f"What answers at {address.websocket} is no turngym hub.", hint="Check the address.")
        return None
    status, body = error.response.status_code, error.response.body or b""
    if status in AWAY:
        return None
    try:
        return from_problem(msgspec.json.decode(body, type=dict[str, Any]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    if status in (401, 403):
        return Unauthorized(
            f"The hub at {address.base} wants an API key." if address.api_key is None else "The API key is wrong.",
            hint="Pass api_key=..., or set TURNGYM_API_KEY.",
        )
    return InvalidRequest(
        f"{address.websocket} answered HTTP {status}: there is no turngym hub.",
        hint="Check the address; end it with a slash if its path is where the hub is mounted.",
    )
