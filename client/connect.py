"""``turngym.connect``: from a URL to a hub, an environment, or many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from gymnasium.vector import AutoresetMode

from ..errors import InvalidRequest
from ..protocol import EnvCard, Level, SessionCard
from .address import parse_address
from .env import AsyncEnvClient, EnvClient
from .hub import RETRY_S, TIMEOUT_S, AsyncHub
from .loop import LoopThread, loop_thread
from .vector import AsyncVectorClient, VectorClient


class HubClient:
    """A hub, for code without an event loop; what :class:`AsyncHub` is for code with one.

    Attributes:
        remote: the asynchronous client behind it, which lives on a loop of its own.
    """

    def __init__(self, remote: AsyncHub, thread: LoopThread) -> None:
        self.remote = remote
        self._thread = thread

    @property
    def rebuilt(self) -> int:
        """Sessions rebuilt by replay so far."""
        return self.remote.rebuilt

    @property
    def reconnects(self) -> int:
        """How often a broken connection was made anew."""
        return self.remote.reconnects

    def envs(self) -> list[EnvCard]:
        """Return what the hub serves."""
        return self._thread.run(self.remote.envs())

    def card(self, env: str) -> EnvCard:
        """Describe one environment; see :meth:`AsyncHub.card`."""
        return self._thread.run(self.remote.card(env))

    def tasks(self, env: str, split: str = "test", start: int = 0, stop: int | None = None) -> list[str]:
        """Return task ids of a split, those from ``start`` to before ``stop``."""
        return self._thread.run(self.remote.tasks(env, split, start, stop))

    def sessions(self) -> list[SessionCard]:
        """Return the live sessions that this API key may see."""
        return self._thread.run(self.remote.sessions())

    def health(self) -> dict[str, Any]:
        """Return what the hub says of itself."""
        return self._thread.run(self.remote.health())

    def make(
        self, env: str, *, level: Level = "text", turn: Mapping[str, Any] | None = None, **config: Any
    ) -> EnvClient:
        """Make an environment on the hub; see :meth:`AsyncHub.make`."""
        return EnvClient(self._thread.run(self.remote.make(env, level=level, turn=turn, **config)), self._thread)

    def make_vec(
        self,
        env: str,
        n: int,
        *,
        level: Level = "text",
        turn: Mapping[str, Any] | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **config: Any,
    ) -> VectorClient:
        """Make ``n`` environments that are stepped by one message; see :meth:`AsyncHub.make_vec`."""
        work = self.remote.make_vec(env, n, level=level, turn=turn, autoreset_mode=autoreset_mode, **config)
        return VectorClient(self._thread.run(work), self._thread)

    def group(
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
    ) -> VectorClient:
        """Make ``n`` environments on one task, already reset; see :meth:`AsyncHub.group`."""
        work = self.remote.group(
            env, n, seed=seed, task=task, split=split, shared_noise=shared_noise, level=level, turn=turn, **config
        )
        return VectorClient(self._thread.run(work), self._thread)

    def close(self) -> None:
        """Close all sessions and the connection."""
        self._thread.run(self.remote.aclose())

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.remote).replace("Async", "", 1).replace("Hub", "HubClient", 1)


@overload
def connect(
    url: str,
    env: str,
    *,
    n: None = None,
    level: Level = "text",
    turn: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    wait_s: float = 0.0,
    **config: Any,
) -> EnvClient: ...
@overload
def connect(
    url: str,
    env: str,
    *,
    n: int,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    level: Level = "text",
    turn: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    wait_s: float = 0.0,
    **config: Any,
) -> VectorClient: ...
@overload
def connect(url: str, env: None = None, **options: Any) -> Any: ...
def connect(
    url: str,
    env: str | None = None,
    *,
    n: int | None = None,
    api_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    wait_s: float = 0.0,
    **config: Any,
) -> Any:
    """Connect to a hub.

    ``connect(url)`` gives a :class:`HubClient`; ``connect(url, "sokoban")`` or ``connect(url + "/sokoban")`` an
    :class:`EnvClient`, a remote ``gymnasium.Env``; ``connect(url, "sokoban", n=64)`` a :class:`VectorClient`, a
    remote ``gymnasium.vector.VectorEnv``. Each has a connection of its own, direct and without proxies; to share
    one, use ``make`` and ``make_vec`` of a :class:`HubClient`.

    When the connection breaks, calls wait until it is made again. When the hub was restarted, sessions are rebuilt
    by replay, with a warning in the log "turngym.client". Neither applies a step twice.

    Args:
        url: "http://127.0.0.1:8000", "https://host/hub/", …; with the environment as last part of the path, or not.
        env: registry id of an environment.
        n: number of environments, for a vector client.
        api_key: None takes the key from the environment variable TURNGYM_API_KEY.
        timeout_s: seconds to wait for one answer.
        retry_s: seconds during which a broken connection is rebuilt.
        wait_s: seconds to wait for a hub that is still starting.
        **config: arguments of the environment, as for ``turngym.make``; and ``level`` ("text": actions, "turn":
            prompts and completions), ``turn`` (options of ``TurnEnv``: style, memory, hooks, …; turn level only) and,
            with ``n``, ``autoreset_mode`` ("NextStep", "SameStep" or "Disabled").

    Raises:
        ServerUnavailable: nobody answers at this address.
        Unauthorized: the API key is missing or wrong.
        UnknownEnvironment: the hub does not serve this environment.
        InvalidRequest: the address or an argument does not fit.
    """
    thread = loop_thread()
    limits = {"timeout_s": timeout_s, "retry_s": retry_s, "wait_s": wait_s}
    remote = thread.run(connect_async(url, env, n=n, api_key=api_key, **limits, **config))
    if isinstance(remote, AsyncEnvClient):
        thread.close_at_exit(remote.hub)
        return EnvClient(remote, thread)
    if isinstance(remote, AsyncVectorClient):
        thread.close_at_exit(remote.hub)
        return VectorClient(remote, thread)
    thread.close_at_exit(remote)
    return HubClient(remote, thread)


async def connect_async(
    url: str,
    env: str | None = None,
    *,
    n: int | None = None,
    api_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    wait_s: float = 0.0,
    **options: Any,
) -> Any:
    """Connect from code that runs on an event loop.

    Returns:
        An :class:`AsyncHub`, :class:`AsyncEnvClient` or :class:`AsyncVectorClient`, with arguments and errors as
        for :func:`connect`.
    """
    address, env = parse_address(url, env, api_key)
    if env is None and (n is not None or options):
        named = ", ".join(["n"] * (n is not None) + sorted(options))
        raise InvalidRequest(f"{named} was given without an environment.", hint='Name one: connect(url, "sokoban").')
    for name, value in (("timeout_s", timeout_s), ("retry_s", retry_s), ("wait_s", wait_s)):
        if not isinstance(value, int | float) or not 0 <= value < 1e9 or (name == "timeout_s" and value == 0):
            raise InvalidRequest(f"{name} is {value!r:.60}.", hint="Give a number of seconds.")
    hub = AsyncHub(address, timeout_s=timeout_s, retry_s=retry_s)
    try:
        await hub.open(wait_s)
        if env is None:
            return hub
        client = await (hub.make(env, **options) if n is None else hub.make_vec(env, n, **options))
        client.owns_hub = True
        return client
    except BaseException:
        await hub.aclose()
        raise


__all__ = ["HubClient", "connect", "connect_async"]
