"""The hub: the sessions it holds, who may make one, when one ends, and how work on one is scheduled.

The transports (``native``, ``openenv``) decode requests, call :meth:`Hub.dispatch` and encode the replies; what
each operation does stands in ``operations``. All state is touched on the event loop only. What an environment does
happens inline on the loop where its registry row says so (a step takes microseconds), and else in a worker thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ..envs.core import shown
from ..envs.registry import EnvSpec, get_spec
from ..errors import (
    CapacityReached,
    Draining,
    EnvironmentFailed,
    InvalidRequest,
    QuotaExceeded,
    SessionBusy,
    StepConflict,
    StepTimeout,
    TurngymError,
    UnknownEnvironment,
    nearest,
)
from ..protocol import ITEMS, MAX_ITEMS, EnvCard, Level, Reply, SessionCard
from . import operations, work
from .metrics import EnvStats
from .sessions import MAX_WAITING, Account, Link, Session, check_id, missing
from .settings import HubSettings
from .workers import Workers

log = logging.getLogger(__name__)
T = TypeVar("T")
CLOSE_DRAINING = 1012
"""WebSocket close code sent when the hub shuts down ("service restart")."""
CLOSE_S = 2.0
"""Seconds that environments get to close at the end."""


class Hub:
    """Sessions of many environments, and what can be done with them.

    Args:
        settings: see :class:`HubSettings`.
        accounts: everyone who may hold sessions.

    Attributes:
        specs: registry rows served, by id.
        stats: counters by environment id.
        request_errors: error code -> requests that failed before an environment was known.
        links: open WebSockets.
        total: sessions held, of all accounts.
        draining: the hub shuts down; it takes no new work.
        hurry: it does not wait for running operations either.
        busy: requests being answered.
    """

    def __init__(self, settings: HubSettings, accounts: Sequence[Account]) -> None:
        self.settings = settings
        self.accounts = list(accounts)
        self.specs: dict[str, EnvSpec] = {env_id: get_spec(env_id) for env_id in settings.env_ids()}
        self.stats = {env_id: EnvStats(env_id) for env_id in self.specs}
        self.request_errors: Counter[str] = Counter()
        self.links: set[Link] = set()
        self.total = 0
        self.draining = False
        self.hurry = False
        self.busy = 0
        self.workers = Workers(settings.workers, settings.step_timeout_s)
        self._cards: dict[str, EnvCard] = {}
        self._tasks: dict[tuple[str, str], Sequence[str]] = {}
        self._background: set[asyncio.Future[Any]] = set()
        self._watch: asyncio.Task[None] | None = None

    # Requests --------------------------------------------------------------------------------------

    def dispatch(
        self, op: str, items: Sequence[Any], account: Account, link: Link | None = None
    ) -> list[Reply] | Awaitable[list[Reply]]:
        """Run one operation on many items; an item that fails becomes a reply with an error.

        Args:
            op: a key of ``protocol.ITEMS``.
            items: structs of that operation's class.
            account: who asks.
            link: the WebSocket the request came over.

        Returns:
            The replies in the order of the items: at once where nothing had to leave the event loop, else to await.

        Raises:
            InvalidRequest: unknown operation, or too many items.
            Draining: the hub shuts down.
        """
        if self.draining:
            raise Draining("The hub shuts down.", hint="Connect again when it is back, and restore the sessions.")
        if len(items) > MAX_ITEMS:
            raise InvalidRequest(f"{len(items)} items in one request.", hint=f"Send at most {MAX_ITEMS}.")
        operation = operations.OPERATIONS.get(op)
        if operation is not None:
            slots = [operation(self, item, account, link) for item in items]
        elif op == "group":
            slots = operations.groups(self, items, account, link)
        else:
            raise InvalidRequest(f"Unknown operation {shown(op)!r}.", hint=nearest(op[:60], ITEMS))
        for slot in slots:
            if slot.__class__ is not Reply:
                return self._gathered(slots)
        return slots  # type: ignore[return-value]

    async def _gathered(self, slots: list[operations.Slot]) -> list[Reply]:
        self.busy += 1
        try:
            return [slot if isinstance(slot, Reply) else await slot for slot in slots]
        finally:
            self.busy -= 1

    def find(self, session: str, account: Account, link: Link | None) -> Session:
        """Return a session of ``account`` and note that it is in use.

        Raises:
            SessionNotFound: the account holds no such session.
        """
        found = account.sessions.get(session)
        if found is None:
            raise missing(session)
        found.touched = time.monotonic()
        if link is not None:
            found.link = link
        return found

    def inline(self, session: Session, job: Callable[[], T], finish: Callable[[T, float], Reply]) -> Reply:
        """Do ``job`` here and now; arguments as for :meth:`start`."""
        try:
            started = time.perf_counter()
            return finish(job(), time.perf_counter() - started)
        except (Exception, SystemExit) as error:
            return self.failed(session, error)

    def start(
        self,
        session: Session,
        job: Callable[[], T],
        finish: Callable[[T, float], Reply],
        *,
        check: Callable[[], Reply | None] | None = None,
        before: Awaitable[Any] | None = None,
        parent: Session | None = None,
    ) -> operations.Slot:
        """Do ``job`` in a worker thread when everything that came before on this session is done.

        Args:
            session: the session it belongs to.
            job: what the environment does; touches nothing else.
            finish: makes the reply, on the event loop, from the result and the seconds it took.
            check: called first; a reply from it is the answer, and nothing is done.
            before: awaited before the job.
            parent: another session that must stand still meanwhile.
        """
        for each in (session, parent):
            if each is not None and each.pending >= MAX_WAITING:
                busy = SessionBusy(
                    f"{each.pending} operations wait for session {each.id}.", hint="Await their answers, then go on."
                )
                if session.env is None and not session.pending:
                    self.drop(session)  # a copy that will not be made
                return self.refused(session.id, session.env_id, busy)
        session.pending += 1
        if parent is not None:
            parent.pending += 1
        work_on = self._threaded(session, job, finish, check, before, parent)
        return asyncio.get_running_loop().create_task(work_on)

    async def _threaded(
        self,
        session: Session,
        job: Callable[[], T],
        finish: Callable[[T, float], Reply],
        check: Callable[[], Reply | None] | None,
        before: Awaitable[Any] | None,
        parent: Session | None,
    ) -> Reply:
        try:
            async with session.lock, contextlib.nullcontext() if parent is None else parent.lock:
                if session.closed:
                    raise missing(session.id)
                stored = check() if check is not None else None
                if stored is not None:
                    return stored
                if before is not None:
                    await before
                started = time.perf_counter()
                result = await self.workers.run(job, lambda late: _close_late(session, parent, late))
                return finish(result, time.perf_counter() - started)
        except Exception as error:
            if parent is not None and isinstance(error, StepTimeout):
                self.drop(parent, close=False)
            return self.failed(session, error)
        finally:
            session.pending -= 1
            session.touched = time.monotonic()
            if parent is not None:
                parent.pending -= 1

    def failed(self, session: Session, error: BaseException) -> Reply:
        """Return the reply for an operation that raised; a session whose environment broke is closed."""
        if not isinstance(error, TurngymError):
            log.warning("Session %s of %s is closed", session.id, session.env_id)
            error = self._broken(error, "The session is closed. Create another; the server's log has the traceback.")
        session.stats.errors[error.code] += 1
        if session.env is None or isinstance(error, EnvironmentFailed | StepTimeout):
            # After a timeout the worker closes the environment itself, once it returns from the step.
            self.drop(session, close=not isinstance(error, StepTimeout))
        return Reply(session.id, session.step_index, error=error.to_problem())

    def refused(self, session: str, env_id: str, error: TurngymError) -> Reply:
        """Return the reply for an item that no session was found or made for."""
        stats = self.stats.get(env_id)
        (self.request_errors if stats is None else stats.errors)[error.code] += 1
        return Reply(session, error=error.to_problem())

    # Sessions --------------------------------------------------------------------------------------

    def admit(
        self, env_id: str, level: Level, account: Account, link: Link | None, session: str | None, origin: bytes
    ) -> tuple[Session, bool]:
        """Find the session that an earlier, equal request made, or make room for a new one.

        Args:
            env_id: registry id.
            level: "text" or "turn".
            account: who asks.
            link: the WebSocket the request came over.
            session: id chosen by the client, None to choose one.
            origin: digest of the request; compared where the id exists.

        Returns:
            The session, and whether it is new (then it has no environment yet).

        Raises:
            UnknownEnvironment: this hub does not serve it.
            StepConflict: the id belongs to a session made by another request.
            CapacityReached: the hub is full.
            QuotaExceeded: the account holds as many as it may.
        """
        if session is not None and session in account.sessions:
            found = self.find(session, account, link)
            if not origin or found.origin != origin:
                raise StepConflict(f"Session {session!r} exists and was made otherwise.", hint="Choose another id.")
            return found, False
        spec = self.spec(env_id)
        quota = self.settings.max_sessions_per_key
        if quota is not None and len(account.sessions) >= quota:
            raise QuotaExceeded(f"This key holds {quota} sessions, its limit.", hint="Close some of them.")
        if self.total >= self.settings.max_sessions:
            raise CapacityReached(
                f"All {self.settings.max_sessions} sessions are taken.", hint="Close sessions, or retry later."
            )
        chosen = secrets.token_hex(12) if session is None else check_id(session)
        made = Session(chosen, account, self.stats[env_id], level, spec.inline, origin, time.monotonic())
        made.link = link
        account.sessions[chosen] = made
        self.total += 1
        made.stats.live += 1
        made.stats.created += 1
        return made, True

    def drop(self, session: Session, *, close: bool = True) -> None:
        """Take a session out; its environment is closed, in a thread if it does not step inline."""
        if session.closed:
            return
        session.closed = True
        del session.account.sessions[session.id]
        self.total -= 1
        session.stats.live -= 1
        env, session.env = session.env, None if close else session.env
        if env is None or not close:
            return
        if session.inline and not session.pending:
            _close_env(env)
            return
        task = asyncio.get_running_loop().create_task(self._close_later(session, env))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _close_later(self, session: Session, env: work.AnyEnv) -> None:
        async with session.lock:
            with contextlib.suppress(TurngymError):
                await self.workers.run(lambda: _close_env(env))

    def evict(self) -> int:
        """Close the sessions that idled too long and that nothing holds; return how many."""
        limit = time.monotonic() - self.settings.idle_timeout_s
        idle = [
            session
            for account in self.accounts
            for session in account.sessions.values()
            if session.touched < limit and not session.held()
        ]
        for session in idle:
            session.stats.evicted += 1
            self.drop(session)
        if idle:
            log.info("Evicted %d idle sessions", len(idle))
        return len(idle)

    # Listings --------------------------------------------------------------------------------------

    async def card(self, env_id: str) -> EnvCard:
        """Describe one environment; the answer is kept.

        Raises:
            UnknownEnvironment: this hub does not serve it.
            EnvironmentFailed: it cannot be made.
        """
        spec = self.spec(env_id)
        if env_id not in self._cards:
            self._cards[env_id] = await self._asked(lambda: work.card(spec))
        return self._cards[env_id]

    async def all_cards(self) -> list[EnvCard]:
        """Describe every environment; one that cannot be made says what it needs."""
        cards = []
        for env_id, spec in self.specs.items():
            try:
                cards.append(await self.card(env_id))
            except TurngymError as error:
                cards.append(work.broken_card(spec, error))
        return cards

    async def _asked(self, job: Callable[[], T]) -> T:
        """Ask an environment outside any session."""
        try:
            answer: T = await self.workers.run(job)
            return answer
        except TurngymError:
            raise
        except Exception as error:
            raise self._broken(error, "The server's log has the traceback.") from error

    def _broken(self, error: BaseException, hint: str) -> EnvironmentFailed:
        log.error("An environment failed", exc_info=error)
        return EnvironmentFailed(f"{type(error).__name__}: {shown(str(error), 300)}", hint=hint)

    def spec(self, env_id: str) -> EnvSpec:
        """Return the registry row of an environment that this hub serves.

        Raises:
            UnknownEnvironment: it does not.
        """
        if env_id not in self.specs:
            raise UnknownEnvironment(f"No environment {shown(env_id)!r} here.", hint=nearest(env_id[:60], self.specs))
        return self.specs[env_id]

    async def tasks(self, env_id: str, split: str) -> Sequence[str]:
        """Return the task ids of a split (a sequence made on demand).

        Raises:
            UnknownEnvironment: this hub does not serve it.
            UnknownTask: no such split.
        """
        spec = self.spec(env_id)
        key = (env_id, split)
        if key not in self._tasks:
            self._tasks[key] = await self._asked(lambda: work.tasks(spec.id, split))
        return self._tasks[key]

    def cards(self, account: Account) -> list[SessionCard]:
        """Describe the sessions of an account."""
        now = time.monotonic()
        return [session.card(now) for session in account.sessions.values()]

    # Life ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the watch over idle sessions and hanging workers; a closed hub opens again, empty."""
        if self.draining:
            self.draining = self.hurry = False
            self.workers = Workers(self.settings.workers, self.settings.step_timeout_s)
        self._watch = asyncio.get_running_loop().create_task(self._watching())

    async def _watching(self) -> None:
        settings = self.settings
        tick = max(0.01, min(settings.step_timeout_s / 4, settings.idle_timeout_s / 4, 1.0))
        sweep = max(tick, min(settings.idle_timeout_s / 4, 30.0))
        next_sweep = time.monotonic() + sweep
        while True:
            await asyncio.sleep(tick)
            self.workers.expire()
            if time.monotonic() >= next_sweep:
                next_sweep = time.monotonic() + sweep
                self.evict()

    async def drain(self) -> None:
        """Take no new work, let running operations finish within the drain timeout, then close the sockets."""
        self.draining = True
        deadline = time.monotonic() + self.settings.drain_timeout_s

        def waiting() -> bool:
            return time.monotonic() < deadline and not self.hurry

        while waiting() and (self.busy or not all(link.idle for link in self.links)):
            await asyncio.sleep(0.01)
        if self.busy:
            log.warning("%d requests were cut off after %g s", self.busy, self.settings.drain_timeout_s)
        for link in list(self.links):
            link.close(CLOSE_DRAINING, "The hub shuts down.")
        while waiting() and self.links:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Close all sessions and end the worker threads."""
        self.draining = True
        if self._watch is not None:
            self._watch.cancel()
        for account in self.accounts:
            for session in list(account.sessions.values()):
                self.drop(session)
        if self._background:
            await asyncio.wait(list(self._background), timeout=CLOSE_S)
        self.workers.close()


def _close_env(env: Any) -> None:
    try:
        getattr(env, "close", lambda: None)()
    except Exception:
        log.exception("An environment failed to close")


def _close_late(session: Session, parent: Session | None, result: Any) -> None:
    """Close what a worker held when it was given up and came back after all."""
    for env in (session.env or getattr(result, "env", result), None if parent is None else parent.env):
        _close_env(env)
