"""What the hub knows of an environment in a worker process: where it lives, and what rebuilds it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..protocol import LogEntry
from . import work

if TYPE_CHECKING:
    from .pool import Worker
    from .worker import Answer


class Remote:
    """An environment in a worker process.

    Attributes:
        number: its number, unique in the pool.
        make: the job that makes it, without a reset.
        worker: where it lives; None where it must be (re)built first.
        made: it has been made once.
        closed: nobody wants it any more.
        task: task of the episode, "" before the first reset.
        seed: seed of the episode's noise.
        done: the episode is over.
        log: actions and noise seeds since the reset.
        digest: of the outcomes since the reset.
        seconds: time that making it and the jobs of its log took: about what a rebuild takes.
        deaths: worker processes that died while they rebuilt it, since a rebuild succeeded.
        failure: why the last rebuild failed.
    """

    __slots__ = (
        "_make_s",
        "closed",
        "deaths",
        "digest",
        "done",
        "failure",
        "log",
        "made",
        "make",
        "number",
        "seconds",
        "seed",
        "task",
        "worker",
    )

    def __init__(self, number: int, make: work.Make) -> None:
        self.number = number
        self.make = make
        self.worker: Worker | None = None
        self.made = False
        self.closed = False
        self.task = ""
        self.seed = 0
        self.done = False
        self.log: list[LogEntry] = []
        self.digest = 0
        self.seconds = 0.0
        self.deaths = 0
        self.failure: Exception | None = None
        self._make_s = 0.0

    def rebuild(self) -> work.Job:
        """Return the job that makes it anew, as it stands."""
        return work.Replay(self.make, self.task, self.seed, self.log, self.digest) if self.task else self.make

    def note(self, job: work.Job, answer: Answer, outcome: work.Outcome | None) -> None:
        """Take in what a job gave."""
        if isinstance(job, work.Act):
            self.log.append(job.action)
        elif answer.start is not None:
            self.task, self.seed = answer.start
            self.log = list(job.log) if isinstance(job, work.Replay) else []
            self.seconds = self._make_s
        if job.makes:
            self.made = True
            self._make_s = answer.seconds
        if outcome is not None:
            self.seconds += answer.seconds
            self.done = outcome.terminated or outcome.truncated
            self.digest = answer.digest

    def inherit(self, parent: Remote, seed: int | None) -> None:
        """Become what a fork of ``parent`` is."""
        self.made = True
        self.task, self.seed, self.done = parent.task, parent.seed, parent.done
        self.log = parent.log.copy() if seed is None else [*parent.log, seed]
        self.digest, self.seconds, self._make_s = parent.digest, parent.seconds, parent._make_s


class Call:
    """A job on its way to a worker and back.

    Attributes:
        job: what to do.
        body: the job, encoded.
        remote: the environment it is done on; None where it needs none.
        copy: the environment that it makes of ``remote``.
        future: gets (result, seconds); None for a rebuild, which is part of another call.
        deaths: worker processes that died while they did it.
        losses: worker processes that died while it was under way, doing it or not.
        moved: the answer no longer matters.
    """

    __slots__ = ("body", "copy", "deaths", "future", "job", "losses", "moved", "remote")

    def __init__(
        self,
        job: work.Job,
        remote: Remote | None,
        copy: Remote | None = None,
        future: asyncio.Future[tuple[Any, float]] | None = None,
    ) -> None:
        self.job = job
        self.body = work.pack_job(job)
        self.remote = remote
        self.copy = copy
        self.future = future
        self.deaths = 0
        self.losses = 0
        self.moved = False

    def take(self, answer: Answer) -> Any:
        """Return the job's result, and let the environment's record take it in."""
        job, remote = self.job, self.remote
        if remote is None:
            return job.read(answer.value)
        if self.copy is not None:
            self.copy.inherit(remote, job.seed if isinstance(job, work.Branch) else None)
            return work.Made(self.copy)
        result = job.read(answer.value)
        if job.makes:
            result = work.Made(remote, None if result is None else work.Outcome(*result), answer.splits)
        outcome = result.outcome if job.makes else result if isinstance(result, work.Outcome) else None
        remote.note(job, answer, outcome)
        return result

    def settle(self, result: Any, seconds: float) -> None:
        """Give the result."""
        if self.future is not None and not self.future.done():
            self.future.set_result((result, seconds))

    def fail(self, error: BaseException) -> None:
        """Give an error."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
