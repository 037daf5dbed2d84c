"""The hub: the sessions it holds, who may make one, when one ends, and how work on one is scheduled.

The transports (``native``, ``openenv``) decode requests, call :meth:`Hub.dispatch` and encode the replies; what
each operation does stands in ``operations``. All state is touched on the event loop only. Environments whose registry
row says that a step takes microseconds live here and step on the loop; what else they do (making, resets, pictures)
happens in threads. All other environments live in worker processes (``places``).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from ..envs.core import shown
from ..envs.registry import EnvSpec, get_spec
from ..errors import (
    CapacityReached,
    Draining,
    EnvironmentFailed,
    InvalidRequest,
    QuotaExceeded,
    ReplayDiverged,
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
from .places import Places
from .sessions import MAX_WAITING, Account, Link, Session, check_id, missing
from .settings import HubSettings

log = logging.getLogger(__name__)
T = TypeVar("T")
BROKEN = (EnvironmentFailed, StepTimeout, ReplayDiverged)
"""Errors after which a session's environment cannot go on."""
CLOSE_DRAINING = 1012
"""WebSocket close code sent when the hub shuts down ("service restart")."""


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
        places: where the environments live.
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
        self.places = Places(settings, self.specs.values())
        self._cards: dict[str, EnvCard] = {}
        self._tasks: dict[tuple[str, str], Sequence[str]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

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
        job: work.Job | Callable[[], Awaitable[work.Job]] | None,
        finish: Callable[[Any, float], Reply],
        *,
        check: Callable[[], Reply | None] | None = None,
        parent: Session | None = None,
    ) -> operations.Slot:
        """Do ``job`` off the event loop when everything that came before on this session is done.

        Args:
            session: the session it belongs to.
            job: what the environment does, or what gives it in time; None if ``check`` always answers.
            finish: makes the reply, on the event loop, from the result and the seconds it took.
            check: called first; a reply from it is the answer, and nothing is done.
            parent: another session, on whose environment the job is done, and that must stand still meanwhile.
        """
        both = (session,) if parent is None else (session, parent)
        for each in both:
            if each.pending >= MAX_WAITING:
                busy = SessionBusy(
                    f"{each.pending} operations wait for session {each.id}.", hint="Await their answers, then go on."
                )
                if session.env is None and not session.pending:
                    self.drop(session)  # a copy that will not be made
                return self.refused(session.id, session.env_id, busy)
        before = [each.tail for each in both if each.pending and each.tail is not None]
        for each in both:
            each.pending += 1
        if before or callable(job):
            waiting = self._in_turn(before, session, job, finish, check, parent)
            slot: operations.Slot = self._loop.create_task(waiting)
        else:
            slot = self._begin(session, job, finish, check, parent)
        if slot.__class__ is not Reply:
            for each in both:
                each.tail = slot  # type: ignore[assignment]
        return slot

    async def _in_turn(
        self,
        before: Sequence[asyncio.Future[Reply]],
        session: Session,
        job: work.Job | Callable[[], Awaitable[work.Job]] | None,
        finish: Callable[[Any, float], Reply],
        check: Callable[[], Reply | None] | None,
        parent: Session | None,
    ) -> Reply:
        if before:
            await asyncio.wait(before)
        try:
            ready = await job() if callable(job) else job
        except Exception as error:
            return self._over(session, parent, self.failed(session, error))
        slot = self._begin(session, ready, finish, check, parent)
        return slot if isinstance(slot, Reply) else await slot

    def _begin(
        self,
        session: Session,
        job: work.Job | None,
        finish: Callable[[Any, float], Reply],
        check: Callable[[], Reply | None] | None,
        parent: Session | None,
    ) -> operations.Slot:
        """Start a job whose turn it is."""
        try:
            if session.closed:
                raise missing(session.id)
            stored = check() if check is not None else None
            if stored is not None or job is None:
                return self._over(session, parent, session.last if stored is None else stored)
            result = self.places.run(session, job, parent)
        except Exception as error:
            return self._over(session, parent, self.failed(session, error))
        reply: asyncio.Future[Reply] = self._loop.create_future()
        result.add_done_callback(partial(self._end, session, finish, parent, reply))
        return reply

    def _end(
        self,
        session: Session,
        finish: Callable[[Any, float], Reply],
        parent: Session | None,
        reply: asyncio.Future[Reply],
        result: asyncio.Future[tuple[Any, float]],
    ) -> None:
        """Answer with what a job gave."""
        try:
            answer = finish(*result.result())
            if session.closed:  # by its socket, while its environment was being made
                self.places.leave(session)
        except Exception as error:
            if parent is not None and parent.inline and isinstance(error, StepTimeout):
                self.drop(parent, close=False)  # a thread hangs in its environment
            answer = self.failed(session, error)
        self._over(session, parent, answer)
        if not reply.done():
            reply.set_result(answer)

    def _over(self, session: Session, parent: Session | None, reply: Reply) -> Reply:
        session.pending -= 1
        session.touched = time.monotonic()
        if parent is not None:
            parent.pending -= 1
        return reply

    def failed(self, session: Session, error: BaseException) -> Reply:
        """Return the reply for an operation that raised; a session whose environment broke is closed."""
        if not isinstance(error, TurngymError):
            log.error("Session %s of %s is closed", session.id, session.env_id, exc_info=error)
            error = work.broken(error, in_session=True)
        session.stats.errors[error.code] += 1
        if session.env is None or isinstance(error, BROKEN):
            # After a timeout the thread closes the environment itself, once it returns from the step.
            self.drop(session, close=not (session.inline and isinstance(error, StepTimeout)))
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
        """Take a session out and close its environment."""
        if session.closed:
            return
        session.closed = True
        del session.account.sessions[session.id]
        self.total -= 1
        session.stats.live -= 1
        if close:
            self.places.leave(session)

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
            self._cards[env_id] = await self.places.ask(spec, work.Describe(env_id))
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
            self._tasks[key] = await self.places.ask(spec, work.List(env_id, split))
        return self._tasks[key]

    def cards(self, account: Account) -> list[SessionCard]:
        """Describe the sessions of an account."""
        now = time.monotonic()
        return [session.card(now) for session in account.sessions.values()]

    # Life ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the watch over idle sessions and hanging jobs; a closed hub opens again, empty."""
        if self.draining:
            self.draining = self.hurry = False
            self.places = Places(self.settings, self.specs.values())
        self._loop = asyncio.get_running_loop()
        self._watch = self._loop.create_task(self._watching())

    async def _watching(self) -> None:
        settings = self.settings
        tick = max(0.01, min(settings.step_timeout_s / 4, settings.idle_timeout_s / 4, 1.0))
        sweep = max(tick, min(settings.idle_timeout_s / 4, 30.0))
        next_sweep = time.monotonic() + sweep
        while True:
            await asyncio.sleep(tick)
            self.places.watch()
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
        """Close all sessions, and end the worker processes and threads."""
        self.draining = True
        if self._watch is not None:
            self._watch.cancel()
        for account in self.accounts:
            for session in list(account.sessions.values()):
                self.drop(session)
        await self.places.close()
