"""The stock ALFWorld engine, timed: ``python stock_alfworld.py`` reads games and actions as JSON from its input.

Run by path with an interpreter that has the ``alfworld`` package; it need not have turngym.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def stock_engine(path: Path) -> Any:
    """Return the stock engine with a game loaded, names as ALFWorld shows them."""
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # type: ignore[import-not-found]
    from textworld import EnvInfos  # type: ignore[import-not-found]
    from textworld.envs import PddlEnv  # type: ignore[import-not-found]

    engine = AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
    engine.load(str(path))
    return engine


def private_kib() -> int:
    """Return this process's private memory."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found.group(1))


def measured(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Play each job's actions.

    Args:
        jobs: for each game its ``path``, the ``actions``, and the ``last`` text that they must lead to.

    Raises:
        ValueError: the engine answers otherwise.
    """
    loads, steps, spent, held = [], 0, 0.0, []
    before = 0
    for number, job in enumerate(jobs):
        start = time.process_time()
        engine = stock_engine(Path(job["path"]))
        state = engine.reset()
        loads.append(time.process_time() - start)
        held.append(engine)
        if number == 0:
            before = private_kib()  # the first game brings the modules and the parser
        start = time.process_time()
        for action in job["actions"]:
            state, _, _ = engine.step(action)
        spent += time.process_time() - start
        steps += len(job["actions"])
        if job["actions"] and state.feedback.strip() != job["last"].strip():
            raise ValueError(f"{job['path']}: {state.feedback!r} instead of {job['last']!r}")
    return {
        "load_ms": 1e3 * statistics.median(loads),
        "steps_per_s": steps / spent,
        "session_kib": (private_kib() - before) / max(1, len(held) - 1),
    }


if __name__ == "__main__":
    print(json.dumps(measured(json.load(sys.stdin))))
