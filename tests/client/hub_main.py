"""A hub process for the tests: `python hub_main.py '{"port": 0, ...}'` serves the registry and a few odd environments.

The JSON holds the settings of the hub and, under "world", a word that the environment "drift" shows.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from turngym.envs.core import Effect, TextEnv
from turngym.envs.registry import EnvSpec, register
from turngym.server.run import serve
from turngym.server.settings import HubSettings

WORLD = "old"


class Tally(TextEnv):
    """Shows all actions so far. "slow" takes half a second after a line is written to ``marker``; "break" raises."""

    def __init__(self, *, marker: str = "", size: int = 256, **base: Any) -> None:
        super().__init__(**base)
        self.marker = marker
        self.splits = {"train": 100_000, "test": size}  # type: ignore[misc]

    @property
    def instructions(self) -> str:
        return f"Say something. Marker: {self.marker}."

    def _begin(self, split: str, index: int) -> None:
        self._state: list[str] = []

    def _apply(self, action: str) -> Effect:
        if action == "break":
            raise RuntimeError("broken on request")
        if action == "slow":
            with open(self.marker, "a") as file:
                file.write("slow\n")
            time.sleep(0.5)
        self._state.append(action)
        return Effect(reward=float(self.np_random.integers(1000)), terminated=action == "end")

    def _observe(self) -> str:
        return " ".join(self._state)

    def _admissible(self) -> list[str]:
        return ["slow", "end"]

    def _extra_info(self) -> dict[str, Any]:
        return {"task_type": "odd" if self.task.endswith("1") else "even"}


class Drift(Tally):
    """Depends on the hub's world, which no replay can bring back."""

    def _observe(self) -> str:
        return f"{WORLD} {super()._observe()}"


def main() -> None:
    global WORLD
    settings = json.loads(sys.argv[1])
    WORLD = settings.pop("world", WORLD)
    name = Path(__file__).stem
    sys.modules[name] = sys.modules["__main__"]
    register(EnvSpec("tally", f"{name}:Tally"))
    register(EnvSpec("tally-inline", f"{name}:Tally", inline=True))
    register(EnvSpec("drift", f"{name}:Drift", inline=True))
    serve(HubSettings(**settings))


if __name__ == "__main__":
    main()
