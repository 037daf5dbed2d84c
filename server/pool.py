"""Worker processes for environments that do not step inline, and what happens when one dies.

Every environment lives in one process and is known to the hub as a :class:`Remote`, which holds what rebuilds it. When
a process dies, or is killed because a job took too long, its environments are without a place; each is rebuilt by
replay, in whichever process has room, when something is next asked of it. Calls that were under way are simply made
again: what a lost process had done is gone with it, so that they take effect once. The call that it was working on is
the suspect.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterable
from typing import Any

from ..envs.registry import EnvSpec
from ..errors import (
    CapacityReached,
    Draining,
    EnvironmentFailed,
    InvalidRequest,
    ReplayDiverged,
    SessionNotFound,
    StepTimeout,
    TurngymError,
    from_problem,
)
from . import work
from .process import Process
from .remote import Call, Remote
from .worker import Answer

log = logging.getLogger(__name__)
DEATHS = 2
"""Processes a call may take with it."""
DEATHS_BY_KILL = 4
"""The same where they got SIGKILL: that mostly comes from outside, and hits whatever is running."""
LOSSES = 100
"""Processes that may die while a call waits in them."""
BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
"""Pause before a process is started in place of one that died; doubled from death to death, up to the maximum."""
GOOD_S = 10.0
"""A process that lived so long was well: the pause is the first one again."""
PATIENCE_S = 0.5
"""Environments wait so long for a process to be restarted before they rather go to a fuller one."""
LONG_S = 2.0
"""When a call takes longer, those behind it look for another process."""
IDLE_S = 60.0
"""Seconds after which a process that works on none of its calls is killed; it needs some time to start."""
CLOSE_S = 2.0
"""Seconds that processes get to close their environments."""
STARTS = 3
"""Starts in a row that fail before calls are refused."""


class Worker:
    """One place of the pool: a process, and after its death the next.

    Attributes:
        number: from 1 on.
        slow: for environments whose calls may take seconds.
        process: None while there is none.
        remotes: the environments that live here.
        waiting: calls for the next process, with the environments' numbers.
        busy: a call has been running for a long time.
        lives: processes so far.
        failures: deaths in a row.
        mute: starts in a row that gave no answer.
        not_before: monotonic seconds of the next start.
    """

    def __init__(self, number: int, *, slow: bool = False) -> None:
        self.number = number
        self.slow = slow
        self.process: Process | None = None
        self.remotes: set[Remote] = set()
        self.waiting: list[tuple[Call, int, int]] = []
        self.busy = False
        self.lives = 0
        self.failures = 0
        self.mute = 0
        self.not_before = 0.0
        self.timer: asyncio.TimerHandle | None = None

    def send(self, call: Call, env: int, source: int = 0) -> None:
        """Send a call to the process, or to the next one."""
        if self.process is None:
            self.waiting.append((call, env, source))
        else:
            self.process.send(call, env, source)

    def calls(self) -> list[Call]:
        """Return all calls that are waited for."""
        found = [] if self.process is None else [*self.process.pending.values()]
        return [call for call in (*found, *(each[0] for each in self.waiting)) if not call.moved]


class Pool:
    """Up to ``size`` worker processes, and as many more for slow environments, started when they are needed.

    Args:
        rows: registry rows that may be asked for.
        size: processes at most, for the quick environments and for the slow ones each.
        step_timeout_s: longest time a job may take.
        make_timeout_s: the same for jobs that may have to read or build data.

    Attributes:
        used: there are rows.
        restarts: processes that were started in place of one that died.
        rebuilt: environment id -> environments rebuilt.

    Raises:
        InvalidRequest: a row cannot be sent to a process.
    """

    def __init__(self, rows: Iterable[EnvSpec], size: int, step_timeout_s: float, make_timeout_s: float) -> None:
        self.restarts = 0
        self.rebuilt: Counter[str] = Counter()
        rows = list(rows)
        self.used = bool(rows)
        self._setup = _setup(rows)
        self._slow = {row.id for row in rows if row.slow}
        quick, slow = size * (len(self._slow) < len(rows)), size * bool(self._slow)
        self._workers = [Worker(number, slow=number > quick) for number in range(1, quick + slow + 1)]
        self._step_timeout_s = step_timeout_s
        self._make_timeout_s = make_timeout_s
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def size(self) -> int:
        """Processes at most."""
        return len(self._workers)

    @property
    def alive(self) -> int:
        """Processes that run."""
        return sum(worker.process is not None for worker in self._workers)

    def check(self) -> None:
        """Raise :class:`CapacityReached` if no process can be started for some environments."""
        for slow in (False, True):
            workers = [worker for worker in self._workers if worker.slow == slow]
            if workers and all(worker.mute >= STARTS for worker in workers):
                raise CapacityReached("No worker process can be started.", hint="See the server's log for the cause.")

    # Calls -----------------------------------------------------------------------------------------

    def new(self, make: work.Make) -> Remote:
        """Return an environment that is still to be made, by a :class:`work.Make` or :class:`work.Replay`."""
        return Remote(next(self._numbers), make)

    def run(
        self, job: work.Job, remote: Remote | None = None, copy: Remote | None = None
    ) -> asyncio.Future[tuple[Any, float]]:
        """Do a job; await what it gave and the seconds it took.

        Args:
            job: what to do.
            remote: the environment it is done on, or that it makes; None where it needs none.
            copy: the environment that it makes of ``remote``.

        Raises:
            InvalidRequest: the job cannot be sent.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # kept, because asking is a system call
        future: asyncio.Future[tuple[Any, float]] = self._loop.create_future()
        self._dispatch(Call(job, remote, copy, future))
        return future

    def drop(self, remote: Remote) -> None:
        """Close an environment, after the calls under way."""
        remote.closed = True
        if remote.worker is not None:
            self._leave(remote)

    def _leave(self, remote: Remote) -> None:
        """Close the environment where it lives; from then on it lives nowhere."""
        worker, remote.worker = remote.worker, None
        if worker is not None:
            worker.remotes.discard(remote)
            worker.send(Call(work.End(), None), remote.number)

    def _dispatch(self, call: Call) -> None:
        """Send a call to where its environment lives, to a place found for it otherwise."""
        remote = call.remote
        if self._closing:
            call.fail(Draining("The hub shuts down.", hint="Connect again when it is back."))
            return
        if remote is None:
            worker = self._place(call.job.env_id)  # type: ignore[attr-defined]  # a job without environment names one
            worker.send(call, 0)
        else:
            if remote.closed:
                call.fail(SessionNotFound("The session was closed meanwhile.", hint="Create or restore it."))
                return
            if remote.worker is None:
                remote.worker = self._place(remote.make.env_id)
                remote.worker.remotes.add(remote)
                if remote.made:
                    remote.worker.send(Call(remote.rebuild(), remote), remote.number)
            worker = remote.worker
            if call.copy is None:
                worker.send(call, remote.number)
            else:
                call.copy.worker = worker
                worker.remotes.add(call.copy)
                worker.send(call, call.copy.number, remote.number)
        if worker.process is None:
            self._start_soon(worker)

    def _place(self, env_id: str) -> Worker:
        """Return the worker that a new environment goes to."""
        now, slow = time.monotonic(), env_id in self._slow
        return min(
            (worker for worker in self._workers if worker.slow == slow),
            key=lambda worker: (
                worker.mute >= STARTS,
                worker.busy,
                worker.process is None and worker.not_before - now > PATIENCE_S,
                len(worker.remotes),
            ),
        )

    def _answered(self, worker: Worker, call: Call, answer: Answer) -> None:
        worker.busy = False
        worker.mute = 0
        if call.moved:
            return
        if answer.problem is not None:
            self._refused(worker, call, answer)
        elif call.future is None:
            if call.remote is not None:
                self._rebuilt(call.remote)
        else:
            try:
                call.settle(call.take(answer), answer.seconds)
            except Exception as error:  # a value that is not what the job gives
                call.fail(error)

    def _rebuilt(self, remote: Remote) -> None:
        remote.deaths = 0
        remote.failure = None
        self.rebuilt[remote.make.env_id] += 1

    def _refused(self, worker: Worker, call: Call, answer: Answer) -> None:
        assert answer.problem is not None
        if answer.trace:
            log.error("An environment failed in worker %d:\n%s", worker.number, answer.trace)
        error = _error_of(answer.problem)
        remote = call.copy or call.remote
        if remote is not None and call.job.makes:
            worker.remotes.discard(remote)
            remote.worker = None
        if call.future is None and remote is not None:
            log.error("Environment %d of %s was lost with its process: %s", remote.number, remote.make.env_id, error)
            hint = "Create the session again."
            remote.failure = ReplayDiverged(f"The session was lost and could not be rebuilt: {error}", hint=hint)
        elif remote is not None and remote.failure is not None:
            call.fail(remote.failure)  # the call stood behind its rebuild
        else:
            call.fail(error)

    # Processes -------------------------------------------------------------------------------------

    def _start_soon(self, worker: Worker) -> None:
        """Start a process, now or when the backoff is over."""
        if worker.timer is None and worker.process is None:
            loop = asyncio.get_running_loop()
            worker.timer = loop.call_later(max(0.0, worker.not_before - time.monotonic()), self._start, worker)

    def _start(self, worker: Worker) -> None:
        worker.timer = None
        if self._closing:
            return
        try:
            process = Process(
                f"worker {worker.number}",
                self._setup,
                lambda call, answer: self._answered(worker, call, answer),
                lambda: self._background(self._bury(worker)),
            )
        except OSError as error:
            log.error("Worker %d cannot be started: %s", worker.number, error)
            self._failed(worker, mute=True)
            self._again(worker, worker.calls(), {})
            return
        worker.process = process
        self.restarts += worker.lives > 0
        worker.lives += 1
        log.info("Worker %d runs as process %d", worker.number, process.pid)
        waiting, worker.waiting = worker.waiting, []
        for each in waiting:
            process.send(*each)

    def _failed(self, worker: Worker, *, mute: bool) -> None:
        worker.failures += 1
        worker.mute += mute
        pause = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** min(worker.failures - 1, 20))
        worker.not_before = time.monotonic() + pause

    async def _bury(self, worker: Worker) -> None:
        """Deal with the death of a worker's process."""
        process = worker.process
        assert process is not None
        suspect, _ = process.executing()
        code = await process.wait(1.0)
        calls = worker.calls()
        if time.monotonic() - process.born > GOOD_S:
            worker.failures = 0
        worker.not_before = 0.0
        if process.late is None:
            self._failed(worker, mute=not process.answers and suspect is None and code != -signal.SIGKILL)
        self._report(worker, process, code, len(calls))
        worker.process = None
        worker.busy = False
        verdict = None if suspect is None else self._verdict(suspect, process, code)
        doomed = {} if suspect is None or verdict is None else {suspect.remote or suspect: verdict}
        self._again(worker, calls, doomed)
        self._start_soon(worker)

    def _again(self, worker: Worker, calls: list[Call], doomed: dict[Remote | Call, TurngymError]) -> None:
        """Make the calls of a lost process again, but those that are doomed."""
        for remote in worker.remotes:
            remote.worker = None
        worker.remotes.clear()
        worker.waiting.clear()
        for call in calls:
            call.losses += 1
            error = doomed.get(call.remote or call)
            if error is None and (worker.mute >= STARTS or call.losses > LOSSES):
                error = EnvironmentFailed("No worker process lives long enough.", hint="See the server's log.")
            if error is not None:
                call.fail(error)
            elif call.future is not None:
                self._dispatch(call)

    def _verdict(self, suspect: Call, process: Process, code: int) -> TurngymError | None:
        """Return what the call that a process died of fails with, None if it may try again."""
        if process.late is suspect:
            return StepTimeout(
                f"The environment did not answer within {self._limit(suspect):g} s.",
                hint="Its session is closed: create another, or raise the server's timeout.",
            )
        suspect.deaths += 1
        deaths = suspect.deaths
        if suspect.future is None and suspect.remote is not None:  # each rebuild is a new call
            suspect.remote.deaths += 1
            deaths = suspect.remote.deaths
        if deaths < (DEATHS_BY_KILL if code == -signal.SIGKILL else DEATHS):
            return None
        what = type(suspect.job).__name__.lower()
        return EnvironmentFailed(
            f"{deaths} worker processes died of this session (job {what!r}; {_ending(code)}).",
            hint="The session is closed. The server's log has what the processes said last.",
        )

    def _report(self, worker: Worker, process: Process, code: int, calls: int) -> None:
        words = process.tail.decode("utf-8", "replace").strip()
        log.warning(
            "Worker %d (process %d) is gone after %.1f s: %s; %d environments to rebuild, %d calls to make again, "
            "next start in %.2f s%s",
            worker.number,
            process.pid,
            time.monotonic() - process.born,
            "it was killed because a call took too long" if process.late else _ending(code),
            len(worker.remotes),
            calls,
            max(0.0, worker.not_before - time.monotonic()),
            f"; it said last:\n{words}" if words else "",
        )

    def _limit(self, call: Call) -> float:
        return self._make_timeout_s if call.job.long else self._step_timeout_s

    # The watch -------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Kill what takes too long, and lead others around it; called every now and then."""
        now = time.monotonic()
        for worker in self._workers:
            process = worker.process
            if process is None:
                continue
            process.check()
            call, began = process.executing()
            worker.busy = call is not None and now - began > LONG_S
            if call is None:
                self._check_idle(process, now)
                continue
            process.idle = None
            if now - began > self._limit(call):
                process.expire(call)
            elif worker.busy:
                self._evacuate(worker, call, now - began)

    def _check_idle(self, process: Process, now: float) -> None:
        """Kill a process that does not turn to the calls that wait for it: one that was stopped, for example."""
        if not process.pending:
            process.idle = None
        elif process.idle is None:
            process.idle = now
        elif now - process.idle > max(IDLE_S, self._step_timeout_s):
            log.warning("Process %d has done nothing for %.0f s", process.pid, now - process.idle)
            process.kill()

    def _evacuate(self, worker: Worker, running: Call, seconds: float) -> None:
        """Let the calls behind a long one go elsewhere, where a rebuild is cheaper than what they have waited."""
        others = (other for other in self._workers if other.slow == worker.slow and other is not worker)
        if all(other.busy or other.mute for other in others):
            return
        for call in worker.calls():
            remote = call.remote
            if call is running or call.future is None or (remote is not None and remote is running.remote):
                continue
            if remote is not None and remote.seconds > seconds:
                continue
            call.moved = True
            for each in (remote, call.copy):
                if each is not None and each.worker is worker:
                    self._leave(each)
            again = Call(call.job, remote, call.copy, call.future)
            again.deaths, again.losses = call.deaths, call.losses
            self._dispatch(again)

    # The end ---------------------------------------------------------------------------------------

    def _background(self, work_on: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work_on)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all processes; they close their environments first, if that does not take long."""
        self._closing = True
        processes = [worker.process for worker in self._workers if worker.process is not None]
        for worker in self._workers:
            if worker.timer is not None:
                worker.timer.cancel()
        for process in processes:
            process.close()
        await asyncio.gather(*(process.wait(CLOSE_S) for process in processes))
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        for worker in self._workers:
            calls = worker.calls()
            worker.process = None
            self._again(worker, calls, {})


def _setup(rows: list[EnvSpec]) -> bytes:
    """Return what a worker process is told first."""
    files: dict[str, str] = {}
    for row in rows:
        module = row.entry.partition(":")[0]
        if module == "__main__":
            raise InvalidRequest(
                f"The environment {row.id} is a class of the main program, which worker processes cannot import.",
                hint="Put the class into a module of its own.",
            )
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None:
            files[module] = file
    try:
        return pickle.dumps((rows, files))
    except Exception as error:
        raise InvalidRequest(
            f"The registry's rows cannot be sent to worker processes: {error}.",
            hint="Give EnvSpec.kwargs plain values only.",
        ) from error


def _error_of(problem: dict[str, Any]) -> TurngymError:
    error = from_problem(problem)
    if error.code != problem["code"]:  # a class that only the environment's package knows
        vars(error).update(code=problem["code"], status=problem["status"], title=problem["title"])
    return error


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
