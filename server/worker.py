"""A worker process: many environments, and the jobs that the hub sends for them, done one by one.

:func:`main` is started by ``process`` with a socket, a page of shared memory and the hub's process id. Both directions
carry frames: a length (4 bytes), then a MessagePack array of :class:`Message` or of :class:`Answer`. The first frame is
a pickle of ``(rows, files)``: the registry rows that may be asked for, and module name -> file for those whose module
may be found by its file only. The process ends when the socket is closed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any
from zlib import crc32

import msgspec

from ..envs.registry import EnvSpec, is_registered, register
from ..errors import SessionNotFound, TurngymError
from . import work

LENGTH = struct.Struct("<I")
NUMBER = struct.Struct("<Q")
CLOCK = struct.Struct("<d")
PAGE_BYTES = NUMBER.size + CLOCK.size
"""The shared page: number of the message that is being worked on (0 for none), monotonic seconds when that began."""
SAY_S = 0.001
"""Answers are sent together as long as the first of them waits no longer than this."""
SLOW_S = 0.0005
"""What took longer the last time is not begun before the answers so far are sent."""


class Message(msgspec.Struct, array_like=True):
    """A job for a worker.

    Attributes:
        number: number of the message, never used twice.
        env: number of the environment, chosen by the hub; 0 where there is none.
        source: number of the environment that the job is done on, where it makes another.
        job: what to do.
    """

    number: int
    env: int
    source: int
    job: work.AnyJob


class Answer(msgspec.Struct, array_like=True):
    """What came of a job.

    Attributes:
        number: number of the message.
        seconds: time the job took.
        value: what it gave.
        digest: of all outcomes of the episode, this one included.
        start: task and seed of the episode, where one began.
        splits: of a new environment, as in :class:`work.Made`.
        problem: the error it raised, as a problem document.
        trace: traceback of an error that is a bug.
    """

    number: int
    seconds: float
    value: Any = None
    digest: int = 0
    start: tuple[str, int] | None = None
    splits: dict[str, int] | None = None
    problem: dict[str, Any] | None = None
    trace: str = ""


class Seat:
    """An environment with the digest of its episode's outcomes so far, and whether its last job was slow."""

    __slots__ = ("digest", "env", "slow")

    def __init__(self, env: Any, digest: int) -> None:
        self.env = env
        self.digest = digest
        self.slow = False


class FileFinder(MetaPathFinder):
    """Finds modules by their files, and makes their packages up; asked after everything else."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module known by its file."""
        if fullname in self._files:
            return importlib.util.spec_from_file_location(fullname, self._files[fullname])
        if any(name.startswith(f"{fullname}.") for name in self._files):
            return ModuleSpec(fullname, None, is_package=True)
        return None


class Environments:
    """The environments of this process; does jobs on them.

    Args:
        page: the shared page.
        rows: registry rows that may have to be registered.
    """

    def __init__(self, page: mmap.mmap, rows: Iterable[EnvSpec]) -> None:
        self._page = page
        self._rows = {row.id: row for row in rows}
        self._seats: dict[int, Seat] = {}

    def slow(self, message: Message) -> bool:
        """Return whether a job may take its time."""
        seat = self._seats.get(message.env)
        return seat is None or seat.slow or not isinstance(message.job, work.Act)

    def answer(self, message: Message) -> bytes:
        """Do a job; return the encoded answer."""
        started = time.perf_counter()
        # The clock first: read in between, the page shows the former message, which is over.
        CLOCK.pack_into(self._page, NUMBER.size, time.monotonic())
        NUMBER.pack_into(self._page, 0, message.number)
        try:
            answer = self._done(message)
            answer.seconds = time.perf_counter() - started
            seat = self._seats.get(message.env)
            if seat is not None:
                seat.slow = answer.seconds > SLOW_S
            return work.pack(answer)
        except TurngymError as error:
            problem, trace = error.to_problem(), ""
        except BaseException as error:  # SystemExit included: an environment may not end its neighbours
            problem, trace = work.broken(error, in_session=bool(message.env)).to_problem(), traceback.format_exc()
        finally:
            NUMBER.pack_into(self._page, 0, 0)
        refusal = Answer(message.number, time.perf_counter() - started, problem=problem, trace=trace)
        try:
            return work.pack(refusal)
        except TurngymError:  # an error with extra members that cannot travel
            refusal.problem = {name: str(value) for name, value in problem.items()} | {"status": problem["status"]}
            return work.pack(refusal)

    def _done(self, message: Message) -> Answer:
        job = message.job
        answer = Answer(message.number, 0.0)
        if job.long:
            self._know(job.env_id)  # type: ignore[union-attr]
        if not message.env:
            answer.value = job.run(None)  # type: ignore[arg-type]
            return answer
        number = message.source or message.env
        seat = self._seats.get(number)
        if seat is None and (message.source or not job.makes):
            raise SessionNotFound(f"This worker holds no environment {number}.")
        result = job.run(None if seat is None else seat.env)  # type: ignore[arg-type]
        if isinstance(result, work.Made):
            digest = result.digest if seat is None else seat.digest
            seat = self._seats[message.env] = Seat(result.env, digest)
            answer.splits = result.splits
            result = result.outcome
        assert seat is not None
        answer.value = result
        if isinstance(result, work.Outcome):
            body = work.pack(result)
            answer.value = msgspec.Raw(body)
            if isinstance(job, work.Act):
                seat.digest = crc32(body, seat.digest)
            else:
                answer.start = (str(seat.env.task), int(seat.env.seed))
                if not isinstance(job, work.Replay):
                    seat.digest = crc32(body)
            answer.digest = seat.digest
        elif isinstance(job, work.End):
            del self._seats[number]
        return answer

    def _know(self, env_id: str) -> None:
        row = self._rows.get(env_id)
        if row is None:
            return
        if not is_registered(env_id):
            importlib.import_module(row.entry.partition(":")[0])  # modules may register their rows themselves
        if not is_registered(env_id):
            register(row)
        del self._rows[env_id]

    def close(self) -> None:
        """Close all environments."""
        for seat in self._seats.values():
            try:
                seat.env.close()
            except Exception:
                traceback.print_exc()


def serve(channel: socket.socket, page: mmap.mmap) -> None:
    """Answer frame after frame until the hub closes the channel."""
    stream = channel.makefile("rb", buffering=1 << 18)

    def read() -> bytes | None:
        head = stream.read(LENGTH.size)
        return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None

    first = read()
    if first is None:
        return
    rows, files = pickle.loads(first)
    sys.meta_path.append(FileFinder(files))
    environments = Environments(page, rows)
    decode = msgspec.msgpack.Decoder(list[Message]).decode
    while (frame := read()) is not None:
        answers: list[bytes] = []
        since = time.perf_counter()
        for message in decode(frame):
            if answers and (environments.slow(message) or time.perf_counter() - since > SAY_S):
                channel.sendall(framed(answers))
                answers, since = [], time.perf_counter()
            answers.append(environments.answer(message))
        channel.sendall(framed(answers))
    environments.close()


def framed(parts: Sequence[bytes]) -> bytes:
    """Return one frame with all parts, which are encoded already."""
    count = len(parts)
    head = bytes((0x90 | count,)) if count < 16 else b"\xdd" + count.to_bytes(4, "big")
    body = b"".join((head, *parts))
    return LENGTH.pack(len(body)) + body


def _end_with(parent: int) -> None:
    """Let the kernel end this process when the hub dies, even while an environment never returns."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died already
        sys.exit(0)


def main() -> None:
    """Run a worker."""
    channel, page, parent = (int(word) for word in sys.argv[1:])
    _end_with(parent)
    faulthandler.register(signal.SIGUSR1)  # the hub asks so where a job hangs before it ends this process
    # Whoever stops a service signals all its processes, and the hub wants to drain. Handlers, not SIG_IGN: that would
    # be inherited by what environments start.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the hub is gone
        serve(socket.socket(fileno=channel), mmap.mmap(page, PAGE_BYTES))
