"""Threads for what inline environments do that may take longer than a step."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import CapacityReached, StepTimeout

log = logging.getLogger(__name__)


class _Job:
    __slots__ = ("deadline", "future", "given_up", "late", "work")

    def __init__(
        self, work: Callable[[], Any], late: Callable[[Any], None] | None, future: asyncio.Future[Any]
    ) -> None:
        self.work = work
        self.late = late
        self.future = future
        self.deadline: float | None = None
        self.given_up = False


class Threads:
    """Threads started on demand that run one job each at a time, with a time limit a job.

    Python cannot stop a thread. A job over its limit fails with :class:`StepTimeout`, its thread is given up (it ends
    by itself if the job ever returns) and another takes its place. The threads are daemons, so that none of
    them can keep the process alive. ``concurrent.futures`` offers neither.

    Args:
        threads: jobs that run at the same time.
        timeout_s: seconds a job may run; waiting in the queue does not count.
    """

    def __init__(self, threads: int, timeout_s: float) -> None:
        self.threads = threads
        self.timeout_s = timeout_s
        self.stuck = 0
        self._alive = 0
        self._idle = 0
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._running: set[_Job] = set()
        self._lock = threading.Lock()

    def run(
        self, work: Callable[[], Any], late: Callable[[Any], None] | None = None
    ) -> asyncio.Future[tuple[Any, float]]:
        """Run ``work`` in a thread; await the result and the seconds it took.

        Args:
            work: what to do.
            late: called in the thread with the result (None where it raised), if that comes after the time limit.

        Raises:
            CapacityReached: as many jobs hang as there are threads.
        """
        self.check()
        job = _Job(work, late, asyncio.get_running_loop().create_future())
        with self._lock:
            if self._idle > self._queue.qsize() or self._alive >= self.threads:
                self._queue.put(job)
            else:
                self._start(job)
        return job.future

    def check(self) -> None:
        """Raise :class:`CapacityReached` if as many jobs hang as there are threads."""
        if self.stuck >= self.threads:
            raise CapacityReached(
                f"{self.stuck} operations of environments hang.", hint="Restart the server; see its log for the cause."
            )

    def _start(self, job: _Job | None) -> None:
        self._alive += 1
        threading.Thread(target=self._serve, args=(job,), name="turngym-thread", daemon=True).start()

    def _serve(self, job: _Job | None) -> None:
        while True:
            if job is not None and self._execute(job):
                return
            with self._lock:
                self._idle += 1
            job = self._queue.get()
            with self._lock:
                self._idle -= 1
            if job is None:  # close() asks one thread to end
                return

    def _execute(self, job: _Job) -> bool:
        """Run one job; return whether its thread was given up meanwhile."""
        loop = job.future.get_loop()
        with self._lock:
            job.deadline = time.monotonic() + self.timeout_s
            self._running.add(job)
        result: Any = None
        failure: BaseException | None = None
        started = time.perf_counter()
        try:
            result = job.work()
        except BaseException as error:  # whatever an environment raises belongs to its caller
            failure = error
        with self._lock:
            self._running.discard(job)
            self.stuck -= job.given_up
        if job.given_up:
            if job.late is not None:
                job.late(result)
            return True
        try:
            loop.call_soon_threadsafe(_settle, job.future, (result, time.perf_counter() - started), failure)
        except RuntimeError:
            log.debug("The event loop was closed before a thread had finished.")
        return False

    def expire(self) -> None:
        """Give up on the jobs over their time limit; called on the event loop every now and then."""
        now = time.monotonic()
        with self._lock:
            late = [job for job in self._running if job.deadline is not None and job.deadline < now]
            for job in late:
                job.given_up = True
                self._running.discard(job)
                self.stuck += 1
                self._alive -= 1
            # Threads that waited behind the stuck ones are started when the next job comes; jobs already
            # queued need one now.
            waiting = min(self._queue.qsize() - self._idle, self.threads - self._alive)
            for _ in range(max(0, waiting)):
                self._start(None)
        for job in late:
            error = StepTimeout(
                f"The environment did not answer within {self.timeout_s:g} s.",
                hint="Its session is closed: create another, or raise the server's step timeout.",
            )
            _settle(job.future, None, error)

    def close(self) -> None:
        """Let idle threads end; running ones end after their job."""
        with self._lock:
            for _ in range(self._alive):
                self._queue.put(None)


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    elif isinstance(failure, Exception) and not isinstance(failure, StopIteration):
        future.set_exception(failure)
    else:
        # SystemExit would end the hub, and a future refuses StopIteration; here they are failures like any other.
        error = RuntimeError(f"{type(failure).__name__}: {failure}")
        error.__cause__ = failure
        future.set_exception(error)
