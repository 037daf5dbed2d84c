"""One worker process as the hub sees it: started, written to, read from, ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import cast

import msgspec

from . import work
from .remote import Call
from .worker import CLOCK, LENGTH, NUMBER, PAGE_BYTES, Answer, framed

log = logging.getLogger(__name__)
TAIL_BYTES = 4096
"""What is kept of a process's standard error."""
LAST_WORDS_S = 0.1
"""Time a process gets to say where it hangs before it is killed."""
_numbers = itertools.count(1)
_decode = msgspec.msgpack.Decoder(list[Answer], ext_hook=work.unpack_extension).decode
_pack = msgspec.msgpack.Encoder().encode


class Process(asyncio.Protocol):
    """One life of a worker. Calls go in by :meth:`send`, come back by ``answered``; ``ended`` tells that it is gone.

    Everything that is sent in one turn of the event loop goes in one frame.

    Args:
        name: for logs.
        setup: the first frame's content.
        answered: called with each answer and its call.
        ended: called once when the process is gone or its channel broke.

    Attributes:
        pending: message number -> call without an answer, in the order they were sent.
        born: monotonic seconds.
        answers: how many there were.
        late: the call for whose time limit it was killed.
        idle: monotonic seconds since when it works on nothing although calls wait; None where that is not so.
        tail: end of what it wrote to its standard error.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        name: str,
        setup: bytes,
        answered: Callable[[Call, Answer], None],
        ended: Callable[[], None],
    ) -> None:
        self.name = name
        self.pending: dict[int, Call] = {}
        self.born = time.monotonic()
        self.answers = 0
        self.late: Call | None = None
        self.idle: float | None = None
        self.tail = b""
        self._answered = answered
        self._ended = ended
        self._gone = False
        self._lost = False
        self._transport: asyncio.Transport | None = None
        self._setup = setup
        self._errors: asyncio.ReadTransport | None = None
        self._out: list[bytes] = []
        self._in = bytearray()
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        page = _shared_file()
        errors, errors_in = os.pipe()
        try:
            os.truncate(page, PAGE_BYTES)
            self._page = mmap.mmap(page, PAGE_BYTES)
            # The hub's own path, so that the very same code is found, and rows' modules as the hub would find them.
            code = f"import sys; sys.path[:] = {sys.path!r}; from {__package__}.worker import main; main()"
            self._popen = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", code, str(theirs.fileno()), str(page), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=errors_in,
                stderr=errors_in,
                pass_fds=(theirs.fileno(), page),
                start_new_session=True,  # Ctrl-C in the terminal is the hub's business
            )
        except BaseException:
            ours.close()
            os.close(errors)
            raise
        finally:
            theirs.close()
            os.close(page)
            os.close(errors_in)
        self._connecting = self._loop.create_task(self._connect(ours, errors))

    async def _connect(self, channel: socket.socket, errors: int) -> None:
        pipe = os.fdopen(errors, "rb", buffering=0)
        self._errors, _ = await self._loop.connect_read_pipe(lambda: _Errors(self), pipe)
        try:
            await self._loop.create_unix_connection(lambda: self, sock=channel)
        finally:
            if self._lost:  # before uvloop tied the socket to its transport, which has closed the descriptor
                channel.detach()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def send(self, call: Call, env: int, source: int) -> None:
        """Send a call, whose job is done on environment ``source``, or ``env`` where that is 0."""
        number = next(_numbers)
        self.pending[number] = call
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(_pack((number, env, source, msgspec.Raw(call.body))))

    def _flush(self) -> None:
        if self._transport is not None and self._out and not self._transport.is_closing():
            self._transport.write(framed(self._out))
            self._out.clear()

    def executing(self) -> tuple[Call | None, float]:
        """Return the call it is working on, and the monotonic seconds when it began."""
        number: int = NUMBER.unpack_from(self._page, 0)[0]
        began: float = CLOCK.unpack_from(self._page, NUMBER.size)[0]
        return self.pending.get(number), began

    # Its end ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Notice a death that the channel did not tell (an environment's child may hold the other end)."""
        if self._popen.poll() is not None:
            self._gone_now()

    def kill(self) -> None:
        """Kill it."""
        self._popen.kill()

    def expire(self, call: Call) -> None:
        """Kill it because ``call`` takes too long; it first writes where it hangs."""
        if self.late is None:
            self.late = call
            self._popen.send_signal(signal.SIGUSR1)
            self._loop.call_later(LAST_WORDS_S, self._popen.kill)

    async def wait(self, seconds: float) -> int:
        """Return the exit code; a process that is still there after ``seconds`` is killed."""
        deadline = time.monotonic() + seconds
        while (code := self._popen.poll()) is None:
            if time.monotonic() >= deadline:
                self._popen.kill()
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.005)  # its last words are read
        if self._errors is not None:
            self._errors.close()  # an environment's child may hold the other end
        return code

    def close(self) -> None:
        """Let it do what was sent, close its environments and end."""
        self._flush()
        self._gone = True
        if self._transport is not None:
            self._transport.close()
        else:
            self._popen.kill()

    def _gone_now(self) -> None:
        if not self._gone:
            self._gone = True
            self._ended()

    # What the event loop calls ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waited."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(LENGTH.pack(len(self._setup)) + self._setup)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take answers."""
        buffer = self._in
        buffer += data
        while len(buffer) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                return
            answers = _decode(bytes(memoryview(buffer)[LENGTH.size : end]))
            del buffer[:end]
            for answer in answers:
                self.answers += 1
                self._answered(self.pending.pop(answer.number), answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self._lost = True
        self._gone_now()


class _Errors(asyncio.Protocol):
    """Logs what a process writes to its standard error, and keeps the end of it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def data_received(self, data: bytes) -> None:
        self._process.tail = (self._process.tail + data)[-TAIL_BYTES:]
        with contextlib.suppress(ValueError):
            log.info("%s: %s", self._process.name, data.decode("utf-8", "replace").rstrip())


def _shared_file() -> int:
    """Return the descriptor of a file without a name."""
    if sys.platform == "linux":
        return os.memfd_create("turngym-worker")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
