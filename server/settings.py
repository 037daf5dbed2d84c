"""What a hub can be told at start."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..envs.core import SEED_LIMIT
from ..envs.registry import get_spec, specs
from ..errors import InvalidRequest

MIB = 1 << 20
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Settings of a hub.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        envs: registry ids to serve; None serves the whole registry.
        api_keys: key name -> key. Empty means that no key is asked for. Sessions and quotas belong to a name.
        max_sessions: sessions the hub holds at most.
        max_sessions_per_key: sessions one key holds at most; None means no limit of its own.
        idle_timeout_s: seconds without use after which a session is evicted, unless a live socket holds it.
        max_body_bytes: largest request body and largest WebSocket message.
        step_timeout_s: longest time one operation of an environment may take.
        make_timeout_s: the same for making, restoring and rebuilding one in a worker process, which may have to read or
            build data first.
        drain_timeout_s: longest time that running operations get to finish after SIGTERM.
        workers: processes for environments that do not step inline; by default as many as there are processor cores.
        threads: threads for what environments that step inline do off the event loop: creation, resets, pictures.
        runs: folder whose runs the console shows; None for none.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    envs: tuple[str, ...] | None = None
    api_keys: Mapping[str, str] = field(default_factory=dict)
    max_sessions: int = 20_000
    max_sessions_per_key: int | None = None
    idle_timeout_s: float = 3600.0
    max_body_bytes: int = 16 * MIB
    step_timeout_s: float = 60.0
    make_timeout_s: float = 900.0
    drain_timeout_s: float = 20.0
    workers: int = field(default_factory=cores)
    threads: int = 32
    runs: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidRequest(f"port is {self.port}.", hint="Give a port from 0 to 65535; 0 takes a free one.")
        for name in ("max_sessions", "max_body_bytes", "idle_timeout_s", "step_timeout_s", "make_timeout_s"):
            _check_positive(name, getattr(self, name))
        for name in ("workers", "threads"):
            _check_positive(name, getattr(self, name))
        if self.max_sessions_per_key is not None:
            _check_positive("max_sessions_per_key", self.max_sessions_per_key)
        if self.drain_timeout_s < 0:
            raise InvalidRequest(f"drain_timeout_s is {self.drain_timeout_s}.", hint="Give zero or more seconds.")
        for env_id in self.envs or ():
            get_spec(env_id)
        if self.envs is not None and not self.envs:
            raise InvalidRequest("No environment was chosen.", hint="Leave envs out to serve all of them.")
        for name, key in self.api_keys.items():
            _check_key(name, key)
        if len(set(self.api_keys.values())) != len(self.api_keys):
            raise InvalidRequest("Two key names have the same API key.", hint="Give every name a key of its own.")

    def env_ids(self) -> tuple[str, ...]:
        """Return the ids served, sorted and without repeats."""
        return tuple(sorted(set(specs() if self.envs is None else self.envs)))


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not 0 < value < SEED_LIMIT:
        raise InvalidRequest(f"{name} is {value!r:.60}.", hint="Give a positive number.")


def _check_key(name: str, key: str) -> None:
    if not _KEY_NAME.fullmatch(name):
        raise InvalidRequest(f"API key name {name!r:.60} does not fit.", hint='Use letters, digits, ".", "_", "-".')
    if not (key.isascii() and key.isprintable()) or " " in key or not 8 <= len(key) <= 512:
        raise InvalidRequest(
            f"The API key named {name!r} does not fit.", hint="Use 8 to 512 printable ASCII characters, no spaces."
        )


def read_keys(path: str | Path) -> dict[str, str]:
    """Read an API key file: one ``name key`` a line; empty lines and lines that start with ``#`` are skipped.

    Raises:
        InvalidRequest: the file cannot be read, or names the line that does not fit.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Cannot read the API key file {path}: {error}.") from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 2 or parts[0] in keys:
            raise InvalidRequest(f"{path}, line {number} does not fit.", hint='Write "name key", each name once.')
        _check_key(*parts)
        keys[parts[0]] = parts[1]
    if not keys:
        raise InvalidRequest(f"{path} holds no API key.", hint='Write one "name key" a line.')
    return keys
