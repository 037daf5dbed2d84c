"""One remote environment: ``AsyncEnvClient``, and ``EnvClient`` with the surface of ``TextEnv`` and ``TurnEnv``."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ..envs.core import Tasks, Text, check_seed
from ..errors import UnknownTask, Unsupported, nearest
from ..protocol import EnvCard, Fork, Level, Render, Reply, Target
from ..records import Completion, Observation, StepResult
from .loop import LoopThread
from .picture import read_png
from .session import Session, action_text, checked, start_of, step_result

if TYPE_CHECKING:
    from .hub import AsyncHub


class AsyncEnvClient:
    """One environment on a hub; the surface of ``TextEnv`` (or ``TurnEnv``), with coroutines.

    Errors are those of the environment in process, as the same classes. One call at a time: fork the environment
    to work on several branches at once.

    Attributes:
        hub: the hub.
        card: description of the environment.
        session: what is known of the session.
        owns_hub: closing this closes the hub's connection.
    """

    def __init__(self, hub: AsyncHub, card: EnvCard, session: Session) -> None:
        self.hub = hub
        self.card = card
        self.session = session
        self.owns_hub = False

    # What is known without asking ------------------------------------------------------------------

    @property
    def level(self) -> Level:
        """Level: "text" or "turn"."""
        return self.session.origin.level

    @property
    def config(self) -> dict[str, Any]:
        """Arguments the environment was made with."""
        return dict(self.session.origin.config)

    @property
    def task(self) -> str:
        """Id of the current task, "" before the first reset."""
        return self.session.task

    @property
    def seed(self) -> int:
        """Seed of the current episode's noise."""
        return self.session.seed

    @property
    def steps(self) -> int:
        """Environment actions since the reset."""
        return self.session.steps

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.session.done

    @property
    def splits(self) -> Mapping[str, int]:
        """Split name -> number of tasks."""
        return self.card.splits

    @property
    def separator(self) -> str | None:
        """What joins several actions in one step, if anything does."""
        return self.card.separator

    @property
    def render_mode(self) -> str | None:
        """What :meth:`render` returns."""
        mode = self.session.origin.config.get("render_mode")
        return None if mode is None else str(mode)

    def tasks(self, split: str = "test") -> Sequence[str]:
        """Return the task ids of a split.

        Raises:
            UnknownTask: no such split.
        """
        if split not in self.card.splits:
            raise UnknownTask(f"No split {split!r:.60}.", hint=nearest(str(split), self.card.splits))
        return Tasks(split, range(self.card.splits[split]))

    # What the hub does -----------------------------------------------------------------------------

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; arguments and errors as for ``TextEnv.reset``.

        Without a seed, one is drawn here as ``TextEnv.reset`` does for an environment whose steps draw no noise;
        where steps draw noise, it is another one than in process. The seed is reported either way.
        """
        (result,) = await self.hub.reset({self.session: start_of(seed, options)})
        result = _result(result)
        return result.observation, result.info

    async def step(self, action: str | Completion) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Act once; returns and errors as for ``TextEnv.step`` or ``TurnEnv.step``.

        Raises:
            ServerUnavailable: the hub did not answer; calling again with the same action does not act twice.
            ReplayDiverged: the hub lost the session, and a replay led elsewhere.
        """
        (result,) = await self.hub.step({self.session: action_text(action)})
        result = _result(result)
        return result.observation, result.reward, result.terminated, result.truncated, result.info

    async def fork(self, seed: int | None = None) -> AsyncEnvClient:
        """Return an independent copy in the current state; ``seed`` as for ``TextEnv.fork``."""
        return AsyncEnvClient(self.hub, self.card, await self.hub.fork(self.session, seed))

    async def reseed(self, seed: int) -> None:
        """Restart the noise from ``seed`` in the middle of an episode; the state stays."""
        old, self.session = self.session, await self.hub.fork(self.session, check_seed(seed))
        await self.hub.close([old])

    async def expert_action(self) -> str | None:
        """Return a good next action (a complete reply at turn level), None where no expert is known."""
        try:
            return (await self._ask("expert", Target(self.session.id))).action
        except Unsupported:
            return None

    async def expert(self) -> AsyncIterator[str]:
        """Yield expert actions, each chosen in the state at the time it is asked for.

        Raises:
            Unsupported: the environment has no expert.
        """
        while not self.done:
            action = await self.expert_action()
            if action is None:
                raise Unsupported(f"{self.card.id} knows no expert action here.")
            yield action

    async def state(self) -> StepResult:
        """Return the last result again, as the hub has it."""
        return step_result(await self._ask("state", Target(self.session.id)))

    async def text(self) -> str:
        """Return the state as text."""
        return (await self._ask("render", Render(self.session.id))).text or ""

    async def picture(self) -> NDArray[np.uint8]:
        """Return the state as an image (height, width, 3).

        Raises:
            Unsupported: the environment draws none.
        """
        return picture_of(await self._ask("render", Render(self.session.id, picture=True)))

    async def render(self) -> Any:
        """Return the state as text ("ansi") or as an image array ("rgb_array"), by ``render_mode``."""
        if self.render_mode is None:
            return None
        return await (self.text() if self.render_mode == "ansi" else self.picture())

    async def close(self) -> None:
        """Close the session, and the connection if it was made for this environment alone."""
        await (self.hub.aclose() if self.owns_hub else self.hub.close([self.session]))

    async def _ask(self, op: str, item: Target | Render | Fork) -> Reply:
        return checked((await self.hub.call(op, {self.session: item}))[0])

    async def __aenter__(self) -> AsyncEnvClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.card.id} {self.task or '(not reset)'} at {self.hub.address.base}>"


class EnvClient(gymnasium.Env[Any, str]):
    """One environment on a hub, as a ``gymnasium.Env``: a ``TextEnv`` or ``TurnEnv`` that runs elsewhere.

    Made by :func:`turngym.connect` or ``HubClient.make``. See :class:`AsyncEnvClient` for what the methods do.

    Attributes:
        remote: the asynchronous client behind it, which lives on a loop of its own.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, remote: AsyncEnvClient, thread: LoopThread) -> None:
        self.remote = remote
        self._thread = thread
        self.observation_space = observation_space(remote.level)
        self.action_space = Text()
        self.render_mode = remote.render_mode

    @property
    def card(self) -> EnvCard:
        """Description of the environment."""
        return self.remote.card

    @property
    def level(self) -> Level:
        """Level: "text" or "turn"."""
        return self.remote.level

    @property
    def config(self) -> dict[str, Any]:
        """Arguments the environment was made with."""
        return self.remote.config

    @property
    def task(self) -> str:
        """Id of the current task, "" before the first reset."""
        return self.remote.task

    @property
    def seed(self) -> int:
        """Seed of the current episode's noise."""
        return self.remote.seed

    @property
    def steps(self) -> int:
        """Environment actions since the reset."""
        return self.remote.steps

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.remote.done

    @property
    def splits(self) -> Mapping[str, int]:
        """Split name -> number of tasks."""
        return self.remote.splits

    @property
    def separator(self) -> str | None:
        """What joins several actions in one step, if anything does."""
        return self.remote.separator

    @property
    def rebuilt(self) -> int:
        """Sessions of this connection that were rebuilt by replay so far."""
        return self.remote.hub.rebuilt

    def tasks(self, split: str = "test") -> Sequence[str]:
        """Return the task ids of a split; see ``TextEnv.tasks``."""
        return self.remote.tasks(split)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see :meth:`AsyncEnvClient.reset`."""
        result = self._thread.run(self.remote.reset(seed=seed, options=options))
        super().reset(seed=self.seed)
        return result

    def step(self, action: str | Completion) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once; see :meth:`AsyncEnvClient.step`."""
        return self._thread.run(self.remote.step(action))

    def fork(self, seed: int | None = None) -> EnvClient:
        """Return an independent copy in the current state; ``seed`` as for ``TextEnv.fork``."""
        return EnvClient(self._thread.run(self.remote.fork(seed)), self._thread)

    def reseed(self, seed: int) -> None:
        """Restart the noise from ``seed`` in the middle of an episode; the state stays."""
        self._thread.run(self.remote.reseed(seed))

    def expert_action(self) -> str | None:
        """Return a good next action (a complete reply at turn level), None where no expert is known."""
        return self._thread.run(self.remote.expert_action())

    def expert(self) -> Iterator[str]:
        """Yield expert actions; see :meth:`AsyncEnvClient.expert`."""
        while not self.done:
            action = self.expert_action()
            if action is None:
                raise Unsupported(f"{self.card.id} knows no expert action here.")
            yield action

    def state(self) -> StepResult:
        """Return the last result again, as the hub has it."""
        return self._thread.run(self.remote.state())

    def text(self) -> str:
        """Return the state as text."""
        return self._thread.run(self.remote.text())

    def picture(self) -> NDArray[np.uint8]:
        """Return the state as an image (height, width, 3)."""
        return self._thread.run(self.remote.picture())

    def render(self) -> Any:
        """Return the state as text ("ansi") or as an image array ("rgb_array"), by ``render_mode``."""
        return self._thread.run(self.remote.render())

    def close(self) -> None:
        """Close the session, and the connection if it was made for this environment alone."""
        self._thread.run(self.remote.close())

    def __repr__(self) -> str:
        return repr(self.remote).replace("Async", "", 1)


def observation_space(level: Level) -> gymnasium.Space[Any]:
    """Return the space of the observations of a level."""
    if level == "text":
        return Text()
    from ..envs.turn.env import ChatSpace

    return ChatSpace()


def picture_of(reply: Reply) -> NDArray[np.uint8]:
    """Return the picture of a reply to ``render`` (height, width, 3)."""
    return read_png(base64.b64decode(reply.png or ""))


def _result(result: Any) -> StepResult:
    if isinstance(result, StepResult):
        return result
    raise result
