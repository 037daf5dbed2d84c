"""Where a rollout's environments come from: this process, or a hub."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..envs.core import TextEnv
from ..envs.registry import get_spec, make, specs, unmet
from ..envs.turn.env import TurnEnv, at_turn_level
from ..errors import TurngymError
from ..protocol import Level
from ..records import Observation
from .policies.base import AsyncEnv

if TYPE_CHECKING:
    from .hub import AsyncHub

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


class Source(abc.ABC):
    """Lends environments and takes them back for the next episode, and tells what there is."""

    def __init__(self) -> None:
        self._idle: dict[bytes, list[AsyncEnv]] = {}

    @abc.abstractmethod
    async def envs(self) -> list[str]:
        """Return the ids of the environments."""

    @abc.abstractmethod
    async def lacking(self) -> dict[str, str]:
        """Return the environments that cannot be played there: id -> what is missing and how to get it."""

    @abc.abstractmethod
    async def style(self, env: str) -> str:
        """Return the environment's own prompt style."""

    @abc.abstractmethod
    async def size(self, wanted: Wanted, split: str) -> int:
        """Return the number of tasks of a split; task i is called "split/i".

        Raises:
            UnknownTask: no such split.
        """

    @abc.abstractmethod
    async def instructions(self, wanted: Wanted) -> str:
        """Return the rules as a player must know them."""

    @abc.abstractmethod
    async def _make(self, wanted: Wanted) -> AsyncEnv: ...

    @asynccontextmanager
    async def lend(self, wanted: Wanted) -> AsyncIterator[AsyncEnv]:
        """Lend an environment; one in whose use something failed is not lent again."""
        idle = self._idle.setdefault(wanted.key, [])
        env = idle.pop() if idle else await self._make(wanted)
        try:
            yield env
        except BaseException:
            with suppress(TurngymError):
                await env.close()
            raise
        idle.append(env)

    async def aclose(self) -> None:
        """Close the environments that are not lent."""
        for idle in self._idle.values():
            while idle:
                with suppress(TurngymError):
                    await idle.pop().close()


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

    async def fork(self, seed: int | None = None) -> LocalEnv:
        """Return an independent copy, with noise of its own if a seed is given."""
        return LocalEnv(await self._do(self.env.fork, seed), inline=self._inline)

    async def close(self) -> None:
        """Close the environment."""
        await self._do(self.env.close)


class LocalSource(Source):
    """Makes environments in this process."""

    async def envs(self) -> list[str]:
        """Return the ids of the registry."""
        return list(specs())

    async def lacking(self) -> dict[str, str]:
        """Return the environments that this machine lacks something for."""
        return {env_id: str(error) for env_id in specs() if (error := unmet(env_id)) is not None}

    async def style(self, env: str) -> str:
        """Return the environment's own prompt style."""
        return get_spec(env).style

    async def size(self, wanted: Wanted, split: str) -> int:
        """Return the number of tasks of a split."""
        async with self.lend(wanted) as env:
            assert isinstance(env, LocalEnv)
            return len(env.env.tasks(split))

    async def instructions(self, wanted: Wanted) -> str:
        """Return the rules as a player must know them."""
        async with self.lend(wanted) as env:
            assert isinstance(env, LocalEnv)
            return env.env.instructions

    async def _make(self, wanted: Wanted) -> LocalEnv:
        spec = get_spec(wanted.env)
        env = make(wanted.env, **wanted.config)
        if wanted.level == "text":
            return LocalEnv(env, inline=spec.inline)
        return LocalEnv(at_turn_level(wanted.env, env, wanted.turn), inline=spec.inline)


class HubSource(Source):
    """Makes environments on a hub; all share one connection.

    Args:
        url: the hub's address.
        **options: as for ``connect_async`` (API key, timeouts).
    """

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__()
        self._url = url
        self._options = options
        self._connecting = asyncio.Lock()
        self._hub: AsyncHub | None = None

    async def _connected(self) -> AsyncHub:
        async with self._connecting:
            if self._hub is None:
                from .connect import connect_async

                self._hub = await connect_async(self._url, **self._options)
            return self._hub

    async def envs(self) -> list[str]:
        """Return the ids of the environments that the hub serves."""
        return sorted(card.id for card in await (await self._connected()).envs())

    async def lacking(self) -> dict[str, str]:
        """Return the environments that the hub's machine lacks something for."""
        return {card.id: card.needs for card in await (await self._connected()).envs() if card.needs}

    async def style(self, env: str) -> str:
        """Return the environment's own prompt style."""
        return (await (await self._connected()).card(env)).style

    async def size(self, wanted: Wanted, split: str) -> int:
        """Return the number of tasks of a split."""
        async with self.lend(wanted) as env:
            return len(env.tasks(split))  # type: ignore[attr-defined]

    async def instructions(self, wanted: Wanted) -> str:
        """Return the rules as a player must know them, with the environment's default settings."""
        return (await (await self._connected()).card(wanted.env)).instructions

    async def _make(self, wanted: Wanted) -> AsyncEnv:
        hub = await self._connected()
        return await hub.make(wanted.env, level=wanted.level, turn=wanted.turn, **wanted.config)

    async def aclose(self) -> None:
        """Close the sessions and the connection."""
        if self._hub is not None:
            hub, self._hub = self._hub, None
            self._idle.clear()
            await hub.aclose()
