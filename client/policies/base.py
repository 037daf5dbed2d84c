"""What a policy is, and what it is told when it must act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...envs.core import stable_rng
from ...envs.turn.prompts import get_style
from ...errors import InvalidRequest
from ...protocol import Level
from ...records import Completion, Message, Observation


class AsyncEnv(Protocol):
    """One environment, wherever it runs: the surface of ``TextEnv`` and ``TurnEnv`` that a rollout needs."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode, as ``TextEnv.reset``."""
        ...

    async def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Act once, as ``TextEnv.step``."""
        ...

    async def expert_action(self) -> str | None:
        """Return the expert's action (a whole reply at turn level), None where no expert is known."""
        ...

    async def fork(self, seed: int | None = None) -> AsyncEnv:
        """Return an independent copy in the same state, with noise of its own if a seed is given."""
        ...

    async def close(self) -> None:
        """Free what the environment holds."""
        ...


@dataclass(slots=True)
class Context:
    """What a policy knows in one episode; the rollout moves it on from turn to turn.

    Attributes:
        env: registry id.
        task: task id.
        seed: seed of the environment's noise.
        attempt: number of the attempt at this task, from 0.
        level: "text" or "turn".
        style: id of the prompt style at turn level, "" at text level.
        handle: the environment itself; only a policy that may look behind the observation uses it (expert).
        turn: 0-based number of the turn to be played.
        observation: what the environment answered: text, or the next prompt as chat messages.
        info: info of the last reset or step.
        memory: room for what a policy wants to keep during this episode.
    """

    env: str
    task: str
    seed: int
    attempt: int
    level: Level
    style: str
    handle: AsyncEnv
    turn: int = 0
    observation: Observation = ""
    info: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The raw observation, at either level."""
        return self.observation if isinstance(self.observation, str) else str(self.info["observation"])

    @property
    def messages(self) -> list[Message]:
        """The prompt as chat messages.

        Raises:
            InvalidRequest: at text level, which has no prompt.
        """
        if isinstance(self.observation, str):
            raise InvalidRequest("The text level has no prompt.", hint='Use level "turn" for a model.')
        return self.observation

    @property
    def admissible(self) -> list[str]:
        """The actions that the environment will accept now."""
        return list(self.info.get("admissible", ()))

    def rng(self, seed: int) -> np.random.Generator:
        """Return this episode's generator for a policy with that seed; it lasts for the episode.

        It depends on (policy seed, environment, task, noise seed, attempt) alone, so that the same episode
        takes the same course wherever and whenever it is played.
        """
        if "rng" not in self.memory:
            self.memory["rng"] = stable_rng("policy", seed, self.env, self.task, self.seed, self.attempt)
        rng: np.random.Generator = self.memory["rng"]
        return rng

    def reply(self, action: str, thought: str = "") -> str:
        """Return ``action`` as this level wants it: bare, or wrapped in the style's tags."""
        return action if self.level == "text" else get_style(self.style).wrap(action, thought)


class Policy(Protocol):
    """Answers prompts. One policy plays many episodes at once: what belongs to one lies in its ``Context``.

    Attributes:
        name: name in records, tables and reports.
    """

    name: str

    async def act(self, context: Context) -> Completion:
        """Return the next reply.

        Raises:
            PolicyFailed: no reply could be had; the episode is recorded as failed.
        """
        ...

    async def aclose(self) -> None:
        """Free connections and files."""
        ...


class BasePolicy:
    """A policy that holds nothing which must be freed."""

    async def aclose(self) -> None:
        """Free nothing."""
