"""A lean WebSocket load generator: the client side costs a few microseconds a message, so the server is measured.

It speaks just enough of RFC 6455 for loopback: text frames with a zero mask, answers unfragmented, no extensions.
"""

from __future__ import annotations

import asyncio
import base64
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .servers import family

Frames = Callable[[int], bytes]
"""Gives the payload of a peer's n-th message."""


@dataclass
class LoadResult:
    """What a load of some seconds gave.

    Attributes:
        steps: steps answered inside the measured window.
        seconds: length of the window.
        p50_ms: median time from sending a message to its answer.
        p99_ms: 99th percentile of the same.
        server_cpu_s: processor time that the server process used in the window.
    """

    steps: int
    seconds: float
    p50_ms: float
    p99_ms: float
    server_cpu_s: float

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds

    @property
    def cpu_us(self) -> float:
        """Server processor time per step, in microseconds."""
        return 1e6 * self.server_cpu_s / max(1, self.steps)


@dataclass
class Window:
    """Shared state of a run's peers."""

    open: bool = False
    stop: bool = False
    steps: int = 0
    latencies: list[float] = field(default_factory=list)
    failed: str = ""


class Peer(asyncio.Protocol):
    """One socket: sends a message, waits for the answer, sends the next."""

    def __init__(self, host: str, path: str, frames: Frames, per_message: int, window: Window) -> None:
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        self._frames = frames
        self._per_message = per_message
        self._window = window
        self._buffer = bytearray()
        self._upgraded = False
        self._sent = 0
        self._started = 0.0
        self.transport: asyncio.Transport
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note an early end."""
        if not self._window.stop:
            self._window.failed = self._window.failed or f"the server closed a socket ({exc})"
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("no upgrade"))

    def data_received(self, data: bytes) -> None:
        """Take answers apart and go on."""
        buffer = self._buffer
        buffer += data
        if not self._upgraded:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if b" 101 " not in buffer[: buffer.find(b"\r\n")]:
                self._window.failed = bytes(buffer[:200]).decode("latin-1")
                self.transport.close()
                return
            del buffer[: end + 4]
            self._upgraded = True
            self.ready.set_result(None)
        while (payload := self._next_frame()) is not None:
            self._answered(payload)

    def _next_frame(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, head = buffer[1] & 127, 2
        if size == 126:
            head, size = 4, int.from_bytes(buffer[2:4], "big")
        elif size == 127:
            head, size = 10, int.from_bytes(buffer[2:10], "big")
        if len(buffer) < head + size:
            return None
        payload = bytes(buffer[head : head + size])
        opcode = buffer[0] & 15
        del buffer[: head + size]
        if opcode != 1 and opcode != 2:
            self._window.failed = f"unexpected frame of kind {opcode}: {payload[:100]!r}"
        return payload

    def _answered(self, payload: bytes) -> None:
        window = self._window
        if b'"error"' in payload:
            window.failed = window.failed or payload[:300].decode("utf-8", "replace")
            window.stop = True
        if window.open:
            window.steps += self._per_message
            window.latencies.append(time.perf_counter() - self._started)
        if not window.stop:
            self.send()

    def send(self) -> None:
        """Send the next message."""
        payload = self._frames(self._sent)
        self._sent += 1
        size = len(payload)
        if size < 126:
            head = bytes((0x81, 0x80 | size))
        elif size < 65536:
            head = bytes((0x81, 0xFE)) + size.to_bytes(2, "big")
        else:
            head = bytes((0x81, 0xFF)) + size.to_bytes(8, "big")
        self._started = time.perf_counter()
        self.transport.write(head + b"\0\0\0\0" + payload)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and those it started have used."""
    total = 0.0
    for each in family(pid):
        with open(f"/proc/{each}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def drive(
    port: int, path: str, peers: Sequence[Frames], per_message: int, server_pid: int, seconds: float
) -> LoadResult:
    """Load a server with one socket per entry of ``peers`` for some seconds.

    Raises:
        RuntimeError: the server closed a socket or answered with an error.
    """
    loop = asyncio.get_running_loop()
    window = Window()
    made: list[Peer] = []
    for frames in peers:
        _, peer = await loop.create_connection(
            lambda frames=frames: Peer(f"127.0.0.1:{port}", path, frames, per_message, window),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        made.append(peer)
        await peer.ready
    for peer in made:
        peer.send()
    await asyncio.sleep(min(0.5, seconds / 2))
    window.open, cpu, start = True, cpu_seconds(server_pid), time.perf_counter()
    await asyncio.sleep(seconds)
    window.open, elapsed, cpu = False, time.perf_counter() - start, cpu_seconds(server_pid) - cpu
    window.stop = True
    for peer in made:
        peer.transport.abort()
    if window.failed or not window.latencies:
        raise RuntimeError(f"the load on {path} failed: {window.failed or 'no answer came'}")
    marks = sorted(window.latencies)
    p99 = marks[min(len(marks) - 1, int(0.99 * len(marks)))]
    return LoadResult(window.steps, elapsed, 1e3 * statistics.median(marks), 1e3 * p99, cpu)
