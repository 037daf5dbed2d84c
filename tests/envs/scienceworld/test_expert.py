"""The expert plays solutions that answer the simulator's own questions."""

from __future__ import annotations

import pytest

from turngym.envs.registry import unmet
from turngym.envs.scienceworld.env import ScienceWorld

MISSING = unmet("scienceworld")


@pytest.mark.skipif(MISSING is not None, reason=f"extra: {MISSING}")
def test_the_expert_gives_the_number_that_is_asked_for() -> None:
    env = ScienceWorld(tasks=["mendelian-genetics-unknown-plant"], admissible="none")
    for task in env.tasks("test")[:20]:
        env.reset(seed=0, options={"task": task})
        if "0" in env.solution:
            break
    last = env.solution.index("0") + 1
    for wanted in env.solution[:last]:
        assert env.expert_action() == wanted
        info = env.step(wanted)[4]
    assert env.steps == last and info["action_valid"]
    assert env.expert_action() == env.solution[last]
