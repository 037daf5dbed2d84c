"""A bandit whose action says how long it takes."""

from __future__ import annotations

import re
import time

from turngym.envs import registry
from turngym.envs.bandit import Bandit
from turngym.envs.core import Effect


class Slow(Bandit):
    """Sleeps as many seconds as the action says."""

    def _apply(self, action: str) -> Effect:
        while action == "spin":  # and never give way: this holds the interpreter's lock
            re.search("(a+)+$", "a" * 30 + "b")
        time.sleep(float(action))
        return super()._apply("Teacher")


registry.register(registry.EnvSpec("slow", f"{__name__}:Slow", hidden=True))
