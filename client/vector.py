"""Many remote environments stepped by one message: ``AsyncVectorClient`` and ``VectorClient``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..envs.core import Text
from ..envs.vector import Outcomes, Plan, ResetResult, Start, StepResults, TextVectorEnv, VectorCore
from ..errors import Unsupported
from ..protocol import EnvCard, Level, Render, Reply, Target
from ..records import StepResult
from .env import AsyncEnvClient, EnvClient, observation_space, picture_of
from .loop import LoopThread
from .session import Session, action_text, check_start, checked

if TYPE_CHECKING:
    from .hub import AsyncHub

R = TypeVar("R")


class AsyncVectorClient:
    """``n`` sessions on a hub, reset and stepped by one message; the surface of ``TextVectorEnv``, with coroutines.

    Attributes:
        hub: the hub.
        card: description of the environment.
        sessions: the members.
        core: the bookkeeping.
        owns_hub: closing this closes the hub's connection.
    """

    def __init__(
        self,
        hub: AsyncHub,
        card: EnvCard,
        sessions: Sequence[Session],
        core: VectorCore,
    ) -> None:
        self.hub = hub
        self.card = card
        self.sessions = list(sessions)
        self.core = core
        self.owns_hub = False

    @property
    def num_envs(self) -> int:
        """Members."""
        return self.core.n

    @property
    def level(self) -> Level:
        """Level: "text" or "turn"."""
        return self.sessions[0].origin.level

    @property
    def last(self) -> list[StepResult | None]:
        """Last result of each member, None before its first reset."""
        return list(self.core.last)

    async def play(self, resets: Mapping[int, Start], steps: Mapping[int, str]) -> Outcomes:
        """Reset these, step those, at the same time; errors are outcomes."""
        begun = {self.sessions[i]: check_start(start) for i, start in resets.items()}
        acted = {self.sessions[i]: action_text(action) for i, action in steps.items()}
        if begun and acted:
            fresh, stepped = await asyncio.gather(self.hub.reset(begun), self.hub.step(acted))
        else:
            fresh, stepped = await self.hub.reset(begun), await self.hub.step(acted)
        return {**dict(zip(resets, fresh, strict=True)), **dict(zip(steps, stepped, strict=True))}

    async def _drive(self, plan: Plan[R]) -> R:
        try:
            wanted = next(plan)
            while True:
                wanted = plan.send(await self.play(*wanted))
        except StopIteration as end:
            result: R = end.value
            return result

    async def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> ResetResult:
        """Reset members; see ``TextVectorEnv.reset``."""
        return await self._drive(self.core.reset(seed, options))

    async def step(self, actions: Iterable[str]) -> StepResults:
        """Step all members; see ``TextVectorEnv.step``."""
        return await self._drive(self.core.step(actions))

    async def step_some(self, actions: Mapping[int, str]) -> Outcomes:
        """Step the members named; see ``TextVectorEnv.step_some``."""
        return await self._drive(self.core.step_some(actions))

    async def reset_some(self, starts: Mapping[int, Mapping[str, Any]]) -> Outcomes:
        """Reset the members named; see ``TextVectorEnv.reset_some``."""
        return await self._drive(self.core.reset_some(starts))

    async def expert_actions(self) -> list[str | None]:
        """Return a good next action for each member, None where none is known or the episode is over."""
        actions: list[str | None] = [None] * self.num_envs
        running = {i: session for i, session in enumerate(self.sessions) if session.task and not session.done}
        replies = await self.hub.call("expert", {session: Target(session.id) for session in running.values()})
        for i, reply in zip(running, replies, strict=True):
            actions[i] = _action(reply)
        return actions

    async def fork(self, member: int, seed: int | None = None) -> AsyncEnvClient:
        """Return an independent copy of one member; ``seed`` as for ``TextEnv.fork``."""
        return AsyncEnvClient(self.hub, self.card, await self.hub.fork(self.sessions[member], seed))

    async def render(self) -> list[Any]:
        """Render every member: None, text ("ansi") or an image array ("rgb_array"), by ``render_mode``."""
        mode = self.sessions[0].origin.config.get("render_mode")
        if mode is None:
            return [None] * self.num_envs
        picture = mode != "ansi"
        items = {session: Render(session.id, picture) for session in self.sessions}
        replies = [checked(reply) for reply in await self.hub.call("render", items)]
        return [picture_of(reply) if picture else reply.text for reply in replies]

    async def close(self) -> None:
        """Close the sessions, and the connection if it was made for them alone."""
        await (self.hub.aclose() if self.owns_hub else self.hub.close(self.sessions))

    async def __aenter__(self) -> AsyncVectorClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.num_envs} x {self.card.id} at {self.hub.address.base}>"


class VectorClient(TextVectorEnv):
    """``n`` environments on a hub as one ``gymnasium.vector.VectorEnv``; a step of all is one message.

    Made by :func:`turngym.connect` with ``n``, ``HubClient.make_vec`` or ``HubClient.group``.

    Attributes:
        remote: the asynchronous client behind it, which lives on a loop of its own.
    """

    def __init__(self, remote: AsyncVectorClient, thread: LoopThread) -> None:
        self.remote = remote
        self._thread = thread
        mode = remote.sessions[0].origin.config.get("render_mode")
        super().__init__(remote.core, observation_space(remote.level), Text(), mode)

    @property
    def card(self) -> EnvCard:
        """Description of the environment."""
        return self.remote.card

    @property
    def rebuilt(self) -> int:
        """Sessions of this connection that were rebuilt by replay so far."""
        return self.remote.hub.rebuilt

    def _play(self, resets: Mapping[int, Start], steps: Mapping[int, str]) -> Outcomes:
        return self._thread.run(self.remote.play(resets, steps))

    def expert_actions(self) -> list[str | None]:
        """Return a good next action for each member, None where none is known or the episode is over."""
        return self._thread.run(self.remote.expert_actions())

    def fork(self, member: int, seed: int | None = None) -> EnvClient:
        """Return an independent copy of one member; ``seed`` as for ``TextEnv.fork``."""
        return EnvClient(self._thread.run(self.remote.fork(member, seed)), self._thread)

    def render(self) -> tuple[Any, ...]:
        """Render every member, by ``render_mode``."""
        return tuple(self._thread.run(self.remote.render()))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the sessions, and the connection if it was made for them alone."""
        self._thread.run(self.remote.close())

    def __del__(self) -> None:
        # Some versions of gymnasium close here, which may run on any thread; dropped sessions are closed anyway.
        pass

    def __repr__(self) -> str:
        return repr(self.remote).replace("Async", "", 1)


def _action(reply: Reply) -> str | None:
    try:
        return checked(reply).action
    except Unsupported:
        return None
