"""Environments that misbehave on purpose, importable by worker processes.

They talk to the tests through the folder ``TURNGYM_ODD``: action "wait NAME" lasts until the file ``open-NAME`` is
there, and the names of closed environments are appended to the file ``closed``.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from turngym.envs import registry
from turngym.envs.core import Effect, TextEnv
from turngym.errors import TurngymError

WAIT_S = 20.0


def folder() -> Path:
    """Where these environments and the tests meet."""
    return Path(os.environ["TURNGYM_ODD"])


def wait(name: str) -> None:
    """Wait until the gate ``name`` is open."""
    deadline = time.monotonic() + WAIT_S
    while not (folder() / f"open-{name}").exists() and time.monotonic() < deadline:
        time.sleep(0.002)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(WAIT_S)


# Ways to take the process along: for worker processes only.
DEATHS = {"kill": _kill, "leave": lambda: os._exit(7), "segfault": faulthandler._sigsegv}  # type: ignore[attr-defined]


def die(how: str, name: str, times: int) -> None:
    """End this process, the first ``times`` times that ``name`` asks for it."""
    file = folder() / f"died-{name}"
    died = len(file.read_bytes()) if file.exists() else 0
    if died < times:
        file.write_bytes(b"x" * (died + 1))
        DEATHS[how]()


class OddError(TurngymError):
    """An error class that only this module knows."""

    code, status, title = "ODD", 418, "Odd"


class Odd(TextEnv):
    """Does what the action says: an environment for everything that can go wrong."""

    splits = {"train": 10, "test": 5}  # noqa: RUF012
    expert_success = 1.0

    def __init__(self, *, name: str = "", broken: str = "", **base: Any) -> None:
        super().__init__(**base)
        self.name = name
        if broken == "value":
            raise ValueError("this setting is no good")
        if broken == "bug":
            raise RuntimeError("a bug in the constructor")
        if broken == "wait":
            wait("create")
        if broken in DEATHS:
            die(broken, name, 100)

    @property
    def instructions(self) -> str:
        return "Anything goes."

    def _begin(self, split: str, index: int) -> None:
        self._state: list[str] = []

    def _apply(self, action: str) -> Effect:
        verb, _, rest = action.partition(" ")
        if verb == "wait":
            wait(rest)
        elif verb == "raise":
            raise RuntimeError("a bug in the environment")
        elif verb == "exit":
            sys.exit(3)
        elif verb == "reward":
            return Effect(float(rest))
        elif verb in DEATHS:
            name, _, times = rest.partition(" ")
            die(verb, name, int(times or 100))
        elif verb == "spin":
            while True:
                pass
        elif verb == "odd":
            raise OddError("This is odd.", hint="Do something else.", how=3)
        self._state.append(action)
        return Effect(float(len(self._state)), terminated=verb == "end")

    def _observe(self) -> str:
        if self._state[-1:] == ["big"]:
            return "x" * 1_000_000
        return "\ud800" if self._state[-1:] == ["surrogate"] else " ".join(self._state)

    def _extra_info(self) -> dict[str, Any]:
        return {"object": {"thing": object()}, "int": {"thing": 2**70}}.get(" ".join(self._state[-1:]), {})

    def _admissible(self) -> list[str]:
        return ["go", "end"]

    def expert_action(self) -> str | None:
        if "slow expert" in self._state:
            wait("expert")
        return "end"

    def close(self) -> None:
        with open(folder() / "closed", "a") as file:
            file.write(f"{self.name}\n")


class Fickle(Odd):
    """Draws from the machine and not from its seed."""

    def _observe(self) -> str:
        return f"{os.urandom(8).hex()} {super()._observe()}"


ROWS = [
    registry.EnvSpec("odd-inline", "odd_envs:Odd", "odd", inline=True, hidden=True),
    registry.EnvSpec("odd-process", "odd_envs:Odd", "odd", hidden=True),
    registry.EnvSpec("fickle", "odd_envs:Fickle", "odd", hidden=True),
    # Games that step inline otherwise, in worker processes.
    registry.EnvSpec("lake-process", "turngym.envs.frozen_lake:FrozenLake", "odd", hidden=True),
    registry.EnvSpec("sokoban-process", "turngym.envs.sokoban.env:Sokoban", "odd", hidden=True),
]
