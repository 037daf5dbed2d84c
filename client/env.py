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
from ..records import Completion, Observation, StepResult, Turn
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
        turns: turn level: the turns of this episode, as ``TurnEnv.turns``.
    """

    def __init__(self, hub: AsyncHub, card: EnvCard, session: Session) -> None:
        self.hub = hub
        self.card = card
        self.session = session
        self.owns_hub = False
        self.turns: list[Turn] = []
        self._text = ""

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
        return self.card.splits if self.session.splits is None else self.session.splits

    @property
    def separator(self) -> str | None:
        """What joins several actions in one step, if anything does."""
        return self.card.separator

    @property
    def render_mode(self) -> str | None:
        """What :meth:`render` returns."""
        mode = self.session.origin.config.get("render_mode")
        return None if mode is None else str(mode)

    def task_type(self) -> str:
        """Return the kind of the current task, as the info of the reset told it; "" where there is only one."""
        return self.session.task_type

    def wrap(self, action: str, thought: str = "") -> str:
        """Return ``action`` as this level wants it: bare, or in a well-formed reply of the prompt style."""
        if self.level == "text":
            return action
        from ..envs.turn.prompts import get_style

        return get_style(self.session.origin.turn.get("style", self.card.style)).wrap(action, thought)

    def tasks(self, split: str = "test") -> Sequence[str]:
        """Return the task ids of a split.

        Raises:
            UnknownTask: no such split.
        """
        splits = self.splits
        if split not in splits:
            raise UnknownTask(f"No split {split!r:.60}.", hint=nearest(str(split), splits))
        return Tasks(split, range(splits[split]))

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
        self.turns = []
        self._text = result.info.get("observation", "")
        return result.observation, result.info

    async def step(self, action: str | Completion) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Act once; returns and errors as for ``TextEnv.step`` or ``TurnEnv.step``.

        Raises:
            ServerUnavailable: the hub did not answer; calling again with the same action does not act twice.
            ReplayDiverged: the hub lost the session, and a replay led elsewhere.
        """
        text, anchor = action_text(action), self.session.anchor
        (result,) = await self.hub.step({self.session: text})
        result = _result(result)
        if self.level == "turn":
            completion = action if isinstance(action, Completion) else Completion(text)
            note_turn(self.turns, self._text, anchor, completion, result)
            self._text = result.info["observation"]
        return result.observation, result.reward, result.terminated, result.truncated, result.info

    async def fork(self, seed: int | None = None) -> AsyncEnvClient:
        """Return an independent copy in the current state; ``seed`` as for ``TextEnv.fork``."""
        twin = AsyncEnvClient(self.hub, self.card, await self.hub.fork(self.session, seed))
        twin.turns, twin._text = list(self.turns), self._text
        return twin

    async def reseed(self, seed: int) -> None:
        """Restart the noise from ``seed`` in the middle of an episode; the state stays."""
        old, self.session = self.session, await self.hub.fork(self.session, check_seed(seed))
        await self.hub.close([old])

    async def instructions(self) -> str:
        """Return the rules as a player of the current task must know them.

        Raises:
            NotReset: they may depend on the settings or the task, and there was no reset.
        """
        if not self.session.task and not self.session.origin.config and self.card.instructions:
            return self.card.instructions
        return (await self._ask("render", Render(self.session.id))).instructions or ""

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
    def turns(self) -> list[Turn]:
        """Turn level: the turns of this episode, as ``TurnEnv.turns``."""
        return self.remote.turns

    @property
    def instructions(self) -> str:
        """The rules as a player of the current task must know them."""
        return self._thread.run(self.remote.instructions())

    @property
    def rebuilt(self) -> int:
        """Sessions of this connection that were rebuilt by replay so far."""
        return self.remote.hub.rebuilt

    def tasks(self, split: str = "test") -> Sequence[str]:
        """Return the task ids of a split; see ``TextEnv.tasks``."""
        return self.remote.tasks(split)

    def task_type(self) -> str:
        """Return the kind of the current task; "" where there is only one."""
        return self.remote.task_type()

    def wrap(self, action: str, thought: str = "") -> str:
        """Return ``action`` as this level wants it: bare, or in a well-formed reply of the prompt style."""
        return self.remote.wrap(action, thought)

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


def note_turn(turns: list[Turn], observation: str, anchor: str, completion: Completion, result: StepResult) -> None:
    """Append the turn that led to ``result``, and take over what the hooks rewrote in earlier ones.

    Args:
        turns: the turns before.
        observation: raw observation before the turn.
        anchor: key of the state before the turn.
        completion: the reply that was sent.
        result: what the turn level made of it; its info is described in ``docs/protocol.md``.
    """
    from ..envs.turn.hooks import revise

    info = result.info
    turn = Turn(
        index=len(turns),
        observation=observation,
        completion=completion,
        action=info["action"],
        anchor=anchor,
        next_anchor=info["anchor"],
        action_valid=info["action_valid"],
        format_valid=info["format_valid"],
        void=info["void"],
        tag=info["tag"],
        reward=result.reward,
        rewards=dict(info["rewards"]),
        steps=info["steps"],
    )
    turns.append(turn)
    for index, components in info["revised"].items():
        for name, value in components.items():
            turns[int(index)] = revise(turns[int(index)], name, value)


def picture_of(reply: Reply) -> NDArray[np.uint8]:
    """Return the picture of a reply to ``render`` (height, width, 3)."""
    return read_png(base64.b64decode(reply.png or ""))


def _result(result: Any) -> StepResult:
    if isinstance(result, StepResult):
        return result
    raise result
