"""Where a rollout's environments come from: this process, or a hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from ..envs.core import TextEnv
from ..envs.registry import get_spec, make
from ..envs.turn.env import TurnEnv
from ..protocol import Level
from ..records import Observation
from .policies.base import AsyncEnv

T = TypeVar("T")


class Wanted(msgspec.Struct, frozen=True):
    """Which environment is wanted.

    Attributes:
        env: registry id.
        config: arguments of the environment.
        level: "text" or "turn".
        turn: arguments of ``TurnEnv``; turn level only.
    """

    env: str
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    level: Level = "turn"
    turn: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> bytes:
        """Equal for equal wishes."""
        return msgspec.json.encode(self, order="sorted")


class Source(Protocol):
    """Lends environments and lists their tasks."""

    async def tasks(self, wanted: Wanted, split: str) -> Sequence[str]:
        """Return the task ids of a split."""
        ...

    async def style(self, env: str) -> str:
        """Return the environment's own prompt style."""
        ...

    def lend(self, wanted: Wanted) -> Any:
        """Return an async context manager that gives an :class:`AsyncEnv`."""
        ...

    async def aclose(self) -> None:
        """Close everything."""
        ...


class LocalEnv:
    """An environment of this process behind the asynchronous surface.

    One whose step takes longer than microseconds works in a thread, so that others go on meanwhile.
    """

    def __init__(self, env: TextEnv | TurnEnv, *, inline: bool) -> None:
        self.env = env
        self._inline = inline

    async def _do(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return call(*args, **kwargs) if self._inline else await asyncio.to_thread(call, *args, **kwargs)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode."""
        return await self._do(self.env.reset, seed=seed, options=options)

    async def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Act once."""
        return await self._do(self.env.step, action)

    async def expert_action(self) -> str | None:
        """Return the expert's action."""
        return await self._do(self.env.expert_action)

    async def close(self) -> None:
        """Close the environment."""
        await self._do(self.env.close)


class LocalSource:
    """Makes environments in this process and uses them again once an episode is over."""

    def __init__(self) -> None:
        self._idle: dict[bytes, list[LocalEnv]] = {}

    def _make(self, wanted: Wanted) -> LocalEnv:
        spec = get_spec(wanted.env)
        env = make(wanted.env, **wanted.config)
        if wanted.level == "text":
            return LocalEnv(env, inline=spec.inline)
        return LocalEnv(TurnEnv(env, **{"style": spec.style, **wanted.turn}), inline=spec.inline)

    async def tasks(self, wanted: Wanted, split: str) -> Sequence[str]:
        """Return the task ids of a split."""
        async with self.lend(wanted) as env:
            return env.env.tasks(split)

    async def style(self, env: str) -> str:
        """Return the environment's own prompt style."""
        return get_spec(env).style

    @asynccontextmanager
    async def lend(self, wanted: Wanted) -> AsyncIterator[LocalEnv]:
        """Lend an environment; one that raised is not used again."""
        idle = self._idle.setdefault(wanted.key, [])
        env = idle.pop() if idle else self._make(wanted)
        try:
            yield env
        except BaseException:
            await env.close()
            raise
        idle.append(env)

    async def aclose(self) -> None:
        """Close the environments that are not lent."""
        for idle in self._idle.values():
            while idle:
                await idle.pop().close()


__all__ = ["AsyncEnv", "LocalEnv", "LocalSource", "Source", "Wanted"]
