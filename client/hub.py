"""The asynchronous client of one hub: listings, sessions, and their rebuilding by replay."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from gymnasium.vector import AutoresetMode

from ..envs.core import check_seed
from ..envs.vector import Start, VectorCore
from ..errors import (
    ReplayDiverged,
    ServerUnavailable,
    SessionBusy,
    SessionNotFound,
    TurngymError,
    UnknownEnvironment,
    from_problem,
)
from ..protocol import (
    MAX_ITEMS,
    PREFIX,
    EnvCard,
    Fork,
    Group,
    Level,
    Reply,
    Reset,
    SessionCard,
    Step,
    Target,
    TaskPage,
)
from ..records import StepResult
from .address import Address
from .session import Origin, Session, checked, start_of
from .transport import Wire, pauses

if TYPE_CHECKING:
    from .env import AsyncEnvClient
    from .vector import AsyncVectorClient

log = logging.getLogger("turngym.client")

TIMEOUT_S, RETRY_S = 120.0, 60.0
MAX_REBUILDS = 5  # in a row, for one operation: a hub that loses sessions faster than that is of no use
GATHER_S = 0.01
T = TypeVar("T")


class _Batch:
    """Sessions that are rebuilt by one request; several callers may wait for it."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.task: asyncio.Task[dict[str, TurngymError]] | None = None


class AsyncHub:
    """A hub, from the event loop on which this object was made.

    Any number of tasks may use it at the same time; all share one WebSocket. Calls survive a broken connection,
    and sessions a hub that restarts: they are rebuilt by replay, with a warning in the log "turngym.client".
    Use :func:`turngym.client.connect.connect_async` to make one.

    Attributes:
        address: where the hub is.
        rebuilt: sessions rebuilt by replay so far.
    """

    def __init__(self, address: Address, *, timeout_s: float = TIMEOUT_S, retry_s: float = RETRY_S) -> None:
        self.address = address
        self.rebuilt = 0
        self._wire = Wire(address, timeout_s=timeout_s, retry_s=retry_s)
        self._cards: dict[str, EnvCard] = {}
        self._batch: _Batch | None = None
        self._ids: set[str] = set()
        self._dropped: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        # Neither the wire nor the loop refer to this object: when the last user drops it, its sessions are closed.
        loop, pid = asyncio.get_running_loop(), os.getpid()
        self._finalizer = weakref.finalize(self, _abandon, self._wire, self._ids, loop, pid)
        self._finalizer.atexit = False

    async def open(self, wait_s: float = 0.0) -> AsyncHub:
        """Connect, trying for ``wait_s`` seconds; see ``Wire.open`` for the errors."""
        await self._wire.open(wait_s)
        return self

    @property
    def reconnects(self) -> int:
        """How often a broken connection was made anew."""
        return self._wire.reconnects

    # Listings --------------------------------------------------------------------------------------

    async def envs(self) -> list[EnvCard]:
        """Return what the hub serves."""
        cards = await self._get(f"{PREFIX}/envs", list[EnvCard])
        self._cards.update((card.id, card) for card in cards)
        return cards

    async def card(self, env: str) -> EnvCard:
        """Describe one environment; asked for once, then remembered.

        Raises:
            UnknownEnvironment: the hub does not serve it.
        """
        if env not in self._cards:
            self._cards[env] = await self._get(f"{PREFIX}/envs/{_segment(env)}", EnvCard)
        return self._cards[env]

    async def tasks(self, env: str, split: str = "test", start: int = 0, stop: int | None = None) -> list[str]:
        """Return task ids of a split, those from ``start`` to before ``stop``.

        Raises:
            UnknownTask: no such split.
        """
        found: list[str] = []
        while True:
            first = start + len(found)
            last = first + MAX_ITEMS if stop is None else min(stop, first + MAX_ITEMS)
            params = {"split": split, "start": first, "stop": max(first, last)}
            page = await self._get(f"{PREFIX}/envs/{_segment(env)}/tasks", TaskPage, params)
            found += page.tasks
            if not page.tasks or start + len(found) >= (page.total if stop is None else min(stop, page.total)):
                return found

    async def sessions(self) -> list[SessionCard]:
        """Return the live sessions that this API key may see."""
        return await self._get(f"{PREFIX}/sessions", list[SessionCard])

    async def health(self) -> dict[str, Any]:
        """Return what the hub says of itself."""
        return await self._get("/health", dict[str, Any])

    async def _get(self, path: str, kind: type[T], params: Mapping[str, Any] | None = None) -> T:
        status, body = await self._wire.get(path, params)
        try:
            if status < 400:
                return msgspec.json.decode(body, type=kind)
            raise from_problem(msgspec.json.decode(body, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ServerUnavailable(
                f"{self.address.base}{path} answered HTTP {status}, which was not understood ({error}).",
                hint="Check the address, and that hub and client are of the same version.",
            ) from error

    # Making environments ---------------------------------------------------------------------------

    async def make(
        self, env: str, *, level: Level = "text", turn: Mapping[str, Any] | None = None, **config: Any
    ) -> AsyncEnvClient:
        """Make an environment on the hub.

        Args:
            env: registry id.
            level: "text" (actions) or "turn" (prompts and completions).
            turn: options of ``TurnEnv`` (style, memory, hooks, …); turn level only.
            **config: arguments of the environment, as for ``turngym.make``.

        Raises:
            UnknownEnvironment: the hub does not serve it.
            InvalidRequest: an argument does not fit.
            CapacityReached, QuotaExceeded: there is no room for another session.
        """
        from .env import AsyncEnvClient

        card = await self.card(env)
        (session,) = await self._create(Origin(env, level, config, dict(turn or {})), 1)
        return AsyncEnvClient(self, card, session)

    async def make_vec(
        self,
        env: str,
        n: int,
        *,
        level: Level = "text",
        turn: Mapping[str, Any] | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **config: Any,
    ) -> AsyncVectorClient:
        """Make ``n`` environments that are stepped by one message; see :meth:`make` and ``AsyncVectorClient``."""
        from .vector import AsyncVectorClient

        card = await self.card(env)
        core = VectorCore(n, autoreset_mode)
        return AsyncVectorClient(self, card, await self._create(Origin(env, level, config, dict(turn or {})), n), core)

    async def group(
        self,
        env: str,
        n: int,
        *,
        seed: int,
        task: str | int | None = None,
        split: str | None = None,
        shared_noise: bool = False,
        level: Level = "text",
        turn: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> AsyncVectorClient:
        """Make ``n`` environments on one task, already reset; member i draws its noise from (seed, i).

        Args:
            env: registry id.
            n: members.
            seed: seed of the group, in [0, 2**53).
            task: task of all members; without one, the seed draws one from the split.
            split: split of the task.
            shared_noise: all members get the same noise.
            level: as for :meth:`make`.
            turn: as for :meth:`make`.
            **config: as for :meth:`make`.

        Returns:
            A vector client without autoreset; ``last`` holds the members' first results.
        """
        from .vector import AsyncVectorClient

        card = await self.card(env)
        core, start = VectorCore(n, AutoresetMode.DISABLED), start_of(seed, {"split": split, "task": task})
        origin = Origin(env, level, config, dict(turn or {}))
        sessions = [Session(origin) for _ in range(n)]
        item = Group(
            env,
            n,
            check_seed(seed),
            level,
            config,
            origin.turn,
            start.split,
            start.task,
            shared_noise,
            [session.id for session in sessions],
        )
        replies = await self._ask("group", [item], n)
        await self._adopt(sessions, replies)
        core.began([session.began(reply) for session, reply in zip(sessions, replies, strict=True)])
        return AsyncVectorClient(self, card, sessions, core)

    async def _create(self, origin: Origin, n: int) -> list[Session]:
        sessions = [Session(origin) for _ in range(n)]
        replies = await self._ask("create", [session.create_item() for session in sessions])
        for session, reply in zip(sessions, replies, strict=True):
            session.splits = reply.splits
        return await self._adopt(sessions, replies)

    async def _adopt(self, sessions: list[Session], replies: list[Reply]) -> list[Session]:
        """Own the sessions that were made; if some were not, close the others and raise."""
        made = [session for session, reply in zip(sessions, replies, strict=True) if reply.error is None]
        if len(made) < len(sessions):
            await self._wire.try_request("close", [Target(session.id) for session in made])
        for reply in replies:
            checked(reply)
        for session in sessions:
            self._own(session)
        return sessions

    def _own(self, session: Session) -> None:
        self._ids.add(session.id)
        # A list, because a finalizer may run in any thread and at any moment.
        weakref.finalize(session, self._dropped.append, session.id).atexit = False

    # Operations on sessions ------------------------------------------------------------------------

    async def reset(self, starts: Mapping[Session, Start]) -> list[StepResult | TurngymError]:
        """Reset sessions; returns a result or an error for each, in order."""
        items = {
            session: Reset(
                session.id, session.next_seed() if start.seed is None else start.seed, start.split, start.task
            )
            for session, start in starts.items()
        }
        return await self._play("reset", items)

    async def step(self, actions: Mapping[Session, str]) -> list[StepResult | TurngymError]:
        """Step sessions; returns a result or an error for each, in order."""
        return await self._play(
            "step", {session: Step(session.id, action, session.step_index) for session, action in actions.items()}
        )

    async def _play(self, op: str, items: Mapping[Session, msgspec.Struct]) -> list[StepResult | TurngymError]:
        results: list[StepResult | TurngymError] = []
        replies = await self.call(op, items)
        for (session, item), reply in zip(items.items(), replies, strict=True):
            try:
                checked(reply)
                results.append(session.stepped(item.action, reply) if isinstance(item, Step) else session.began(reply))
            except TurngymError as error:
                results.append(error)
        return results

    async def fork(self, session: Session, seed: int | None) -> Session:
        """Copy a session in its current state.

        Raises:
            Unsupported: the environment cannot be forked.
        """
        twin = session.twin(None if seed is None else check_seed(seed))
        if not session.task:  # nothing was played yet: a new session is as good, and hubs fork only episodes
            await self._adopt([twin], await self._ask("create", [twin.create_item()]))
            return twin
        reply = checked((await self.call("fork", {session: Fork(session.id, seed, twin.id)}))[0])
        self._own(twin)
        session.check_index(reply, session.step_index)
        return twin

    async def call(self, op: str, items: Mapping[Session, msgspec.Struct]) -> list[Reply]:
        """Run one operation on sessions, rebuilding those that the hub does not have (any more)."""
        sessions = list(items)
        for i, session in enumerate(sessions):
            try:
                session.occupy()
            except TurngymError:
                for other in sessions[:i]:
                    other.busy = False
                raise
        try:
            replies = await self._ask(op, list(items.values()))
            for _ in range(MAX_REBUILDS):
                lost = [i for i, reply in enumerate(replies) if _says(reply, SessionNotFound)]
                if not lost:
                    break
                errors = await self._rebuild([sessions[i] for i in lost], op == "reset")
                lost = [i for i in lost if not _note(replies, i, errors.get(sessions[i].id))]
                again = await self._ask(op, [items[sessions[i]] for i in lost])
                for i, reply in zip(lost, again, strict=True):
                    replies[i] = reply
            return replies
        finally:
            for session in sessions:
                session.busy = False

    async def _ask(self, op: str, items: Sequence[msgspec.Struct], n: int | None = None) -> list[Reply]:
        """Send items; where a session is still busy with a request that was cut off, wait for it."""
        if self._dropped:
            self._sweep()
        replies = await self._wire.request(op, items, n)
        if not any(reply.error is not None and _says(reply, SessionBusy) for reply in replies):
            return replies
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wire.timeout_s
        for pause in pauses():
            busy = [i for i, reply in enumerate(replies) if _says(reply, SessionBusy)]
            if not busy or n is not None or loop.time() + pause > deadline:
                break
            await asyncio.sleep(pause)
            again = await self._wire.request(op, [items[i] for i in busy])
            for i, reply in zip(busy, again, strict=True):
                replies[i] = reply
        return replies

    # Rebuilding ------------------------------------------------------------------------------------

    async def _rebuild(self, sessions: Iterable[Session], fresh: bool) -> dict[str, TurngymError]:
        """Rebuild sessions together with those that other callers miss now; returns errors by session id."""
        if fresh:
            # A reset follows: what was played before does not matter.
            return await self._rebuild_now({session.id: session for session in sessions}, fresh)
        batch = self._batch
        if batch is None:
            batch = self._batch = _Batch()
            batch.task = self._background(self._rebuild_batch(batch))
        batch.sessions.update((session.id, session) for session in sessions)
        assert batch.task is not None
        return await asyncio.shield(batch.task)

    async def _rebuild_batch(self, batch: _Batch) -> dict[str, TurngymError]:
        await asyncio.sleep(GATHER_S)
        self._batch = None
        return await self._rebuild_now(batch.sessions, False)

    async def _rebuild_now(self, sessions: Mapping[str, Session], fresh: bool) -> dict[str, TurngymError]:
        errors: dict[str, TurngymError] = {}
        played = [session for session in sessions.values() if session.task and not fresh]
        others = [session for session in sessions.values() if not session.task or fresh]
        made = await self._ask("create", [session.create_item() for session in others])
        restored = await self._ask("restore", [session.restore_item() for session in played])
        for session, reply in zip([*others, *played], [*made, *restored], strict=True):
            try:
                checked(reply)
                if session.task and not fresh:
                    session.check_rebuilt(reply)
            except TurngymError as error:
                errors[session.id] = error
        astray = [Target(each) for each, error in errors.items() if isinstance(error, ReplayDiverged)]
        if astray:
            # It must not stay where the next step would find it.
            await self._ask("close", astray)
        count = len(played) - sum(session.id in errors for session in played)
        if count:
            self.rebuilt += count
            log.warning(
                "Rebuilt %d session%s by replay: the hub at %s no longer had them (it restarted, or evicted them).",
                count,
                "" if count == 1 else "s",
                self.address.base,
            )
        return errors

    # The end ---------------------------------------------------------------------------------------

    async def close(self, sessions: Iterable[Session]) -> None:
        """Close sessions; without a connection there is no waiting for one, as the hub evicts what is not used."""
        sessions = list(sessions)
        for session in sessions:
            session.closed = True
        ids = [session.id for session in sessions if session.id in self._ids]
        self._ids.difference_update(ids)
        await self._wire.try_request("close", [Target(each) for each in ids])

    def _sweep(self) -> None:
        """Close, in the background, the sessions whose last user dropped them."""
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        ids = [each for each in dropped if each in self._ids]
        self._ids.difference_update(ids)
        if ids:
            self._background(self._wire.try_request("close", [Target(each) for each in ids]))

    def _background(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Close all sessions and the connection."""
        self._finalizer.detach()
        await self._wire.close("close", [Target(each) for each in self._ids])
        self._ids.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> AsyncHub:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address.base}>"


def _says(reply: Reply, kind: type[TurngymError]) -> bool:
    return reply.error is not None and reply.error.get("code") == kind.code


def _note(replies: list[Reply], index: int, error: TurngymError | None) -> bool:
    """Put the error of a failed rebuild in the place of the lost reply; returns whether there was one."""
    if error is not None:
        replies[index] = Reply(error=error.to_problem())
    return error is not None


def _segment(env: str) -> str:
    """Return ``env`` if it can stand in a path."""
    if not isinstance(env, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", env):
        raise UnknownEnvironment(f"No environment {env!r:.60}.", hint="envs() of connect(url) lists them.")
    return env


def _abandon(wire: Wire, ids: set[str], loop: asyncio.AbstractEventLoop, pid: int) -> None:
    """Close the connection of a hub that nobody uses any more; runs wherever the garbage collector runs."""
    if pid != os.getpid() or loop.is_closed():
        return
    loop.call_soon_threadsafe(wire.close_soon, "close", [Target(each) for each in ids])
