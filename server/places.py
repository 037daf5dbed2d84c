"""Where environments live: those that step inline in this process, all others in worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from ..envs.registry import EnvSpec
from ..errors import TurngymError
from . import work
from .pool import Pool
from .remote import Remote
from .sessions import Session, missing
from .settings import HubSettings
from .threads import Threads

log = logging.getLogger(__name__)
CLOSE_S = 2.0
"""Seconds that environments get to close at the end."""


class Places:
    """Does jobs where the environments are: in threads of this process, or in worker processes.

    Args:
        settings: of the hub.
        rows: registry rows that it serves.

    Attributes:
        threads: for what environments of this process do off the event loop.
        pool: the worker processes.
    """

    def __init__(self, settings: HubSettings, rows: Iterable[EnvSpec]) -> None:
        outside = [row for row in rows if not row.inline]
        self.threads = Threads(settings.threads, settings.step_timeout_s)
        self.pool = Pool(outside, settings.workers, settings.step_timeout_s, settings.make_timeout_s)
        self._background: set[asyncio.Task[None]] = set()

    def run(self, session: Session, job: work.Job, parent: Session | None) -> asyncio.Future[tuple[Any, float]]:
        """Do a job of a session; await what it gave and the seconds it took.

        Args:
            session: whose environment it is done on, or for whom it makes one.
            job: what to do.
            parent: the session on whose environment it is done instead.

        Raises:
            SessionNotFound: there is no environment.
        """
        env = session.env if parent is None else parent.env
        if env is None and (parent is not None or not job.makes):
            raise missing(session.id if parent is None else parent.id)
        if session.inline:
            return self.threads.run(partial(job.run, env), partial(_close_late, session, parent))
        if env is None:
            make = job.make if isinstance(job, work.Replay) else job
            assert isinstance(make, work.Make)
            return self.pool.run(job, self.pool.new(msgspec.structs.replace(make, seeding=None)))
        assert isinstance(env, Remote)
        return self.pool.run(job, env, None if parent is None else self.pool.new(env.make))

    async def ask(self, spec: EnvSpec, job: work.Job) -> Any:
        """Do a job that needs no session; bugs of the environment become :class:`EnvironmentFailed`."""
        try:
            return (await (self.threads.run(partial(job.run, None)) if spec.inline else self.pool.run(job)))[0]
        except TurngymError:
            raise
        except Exception as error:
            log.error("An environment failed", exc_info=error)
            raise work.broken(error, in_session=False) from error

    async def rules(self, session: Session) -> str:
        """Return the rules as the player of a session must know them."""
        env = session.env
        if isinstance(env, Remote):
            return str((await self.pool.run(work.Rules(), env))[0])
        return "" if env is None else str(env.instructions)

    def leave(self, session: Session) -> None:
        """Close a session's environment, when what runs on it is over."""
        env, session.env = session.env, None
        if isinstance(env, Remote):
            self.pool.drop(env)
        elif env is not None and not session.pending:
            _close(env)
        elif env is not None:
            task = asyncio.get_running_loop().create_task(self._close_later(session, env))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _close_later(self, session: Session, env: work.AnyEnv) -> None:
        if session.pending and session.tail is not None:
            await asyncio.wait([session.tail])  # the last of them: a session that is out gets no more
        with contextlib.suppress(TurngymError):
            await self.threads.run(partial(_close, env))

    def watch(self) -> None:
        """Look for jobs that take too long; called every now and then."""
        self.threads.expire()
        self.pool.watch()

    def check(self) -> None:
        """Raise :class:`CapacityReached` if no job can be done."""
        self.threads.check()
        self.pool.check()

    async def close(self) -> None:
        """End the worker processes and the threads."""
        if self._background:
            await asyncio.wait(list(self._background), timeout=CLOSE_S)
        await self.pool.close()
        self.threads.close()


def _close(env: Any) -> None:
    try:
        getattr(env, "close", lambda: None)()
    except Exception:
        log.exception("An environment failed to close")


def _close_late(session: Session, parent: Session | None, result: Any) -> None:
    """Close what a thread held when it was given up and came back after all."""
    for env in (session.env or getattr(result, "env", result), None if parent is None else parent.env):
        _close(env)
