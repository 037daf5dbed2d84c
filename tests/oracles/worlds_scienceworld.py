"""ScienceWorld's checks for ``worlds.py``: recorded runs of the original's wrapper, and its tables of variations.

The recordings list the valid actions, look around and into the inventory after every action, as the wrapper does, on
a Java whose hashes are fixed; so do these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from turngym.envs.scienceworld.bridge import call
from turngym.envs.scienceworld.env import ScienceWorld
from turngym.envs.scienceworld.simulation import Answer, Start, gold_path, pool
from turngym.envs.scienceworld.tasks import BY_NUMBER, SIMPLIFICATIONS, TASKS

Case = tuple[str, bool, str]


def seen(answer: Answer) -> dict[str, Any]:
    """Return an answer under the recordings' names."""
    return {
        "obs": answer.observation,
        "look": answer.look,
        "inv": answer.inventory,
        "score": answer.points,
        "done": answer.completed or answer.points < 0,
        "moves": answer.moves,
        "n_valid": len(answer.valid),
        "valid": list(answer.valid),
        "valid_sha16": hashlib.sha256("\n".join(answer.valid).encode()).hexdigest()[:16],
    }


def _same(got: dict[str, Any], want: dict[str, Any]) -> tuple[bool, str]:
    # Long lists of actions are recorded as their number and hash only.
    wrong = [key for key in got if want.get(key) is not None and got[key] != want[key]]
    return not wrong, "; ".join(f"{key}: got {got[key]!r:.300}, recorded {want[key]!r:.300}" for key in wrong)


def episodes(path: Path, data: Path) -> Iterator[Case]:
    """Play every recorded run again."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        record = json.loads(line)
        task, variation, simplification = record["task"], record["variation"], record["simplification"]
        name = f"line {number}: {record['kind']} {task} {variation}"
        if record["gold"] is not None:
            gold = list(gold_path(Start(task, variation, simplification)))
            yield f"{name}: solution", gold == record["gold"], f"got {gold}, recorded {record['gold']}"
        env = ScienceWorld(tasks=[task], simplifications=simplification, observation="full", max_steps=10_000)
        split, index = place(env, variation)
        env.reset(seed=0, options={"split": split, "task": index})
        description = f"Task Description:\n{env.description}"
        yield f"{name}: task", description == record["task_desc"], f"got {description!r:.300}"
        yield f"{name}: reset", *_same(seen(env.answer), record["reset"])
        for step in record["steps"]:
            if env.done:  # the original goes on after the end
                got = seen(env.simulation.act(step["action"]))
            else:
                _, reward, terminated, _, info = env.step(step["action"])
                got = {**seen(env.answer), "reward": round(100 * reward), "done": terminated}
                got["score"] = info["score_points"]
            yield f"{name}: {step['action']!r:.60}", *_same(got, step)


def place(env: ScienceWorld, variation: int) -> tuple[str, int]:
    """Return the split and the index that have a variation of the environment's only task."""
    first = 0
    for split in ("train", "validation", "test"):
        if variation < first + env.splits[split]:
            return split, variation - first
        first += env.splits[split]
    raise LookupError(f"no variation {variation}")


def variations(path: Path, data: Path) -> Iterator[Case]:
    """Compare our table with the recorded one and with the simulator's own."""
    recorded = json.loads(path.read_text(encoding="utf-8"))
    ours = {task.name: task for task in TASKS}
    for name, want in recorded["tasks"].items():
        if name not in ours:
            yield name, False, "no such task"
            continue
        spans = {part: ours[name].span(part) for part in ("train", "dev", "test")}
        got = {"max": ours[name].variations, **{part: [s[0], s[-1], len(s)] for part, s in spans.items()}}
        yield name, got == want, f"got {got}, recorded {want}"
    names = sorted(recorded["simplifications"].split(", "))
    yield "simplifications", sorted(SIMPLIFICATIONS) == names, f"recorded {names}"
    for number, task in enumerate(BY_NUMBER):
        got = asked(task.name)
        yield f"the simulator's {task.name}", *_same(got, {**got, "number": number, **parts(task.name)})


def parts(name: str) -> dict[str, Any]:
    """Return our splits of a task."""
    task = next(task for task in TASKS if task.name == name)
    return {part: list(task.span(part)) for part in ("train", "dev", "test")}


def asked(name: str) -> dict[str, Any]:
    """Return the simulator's own number and splits of a task."""
    jvm = pool().choose()
    with jvm.lock:
        seat = jvm.seat()
        ask = partial(call, seat.interface)
        jvm.run(seat, ask("load", name, 0, "", False))
        number, *lists = jvm.run(
            seat, ask("getTaskNames"), *(ask(f"getVariations{part}") for part in ("Train", "Dev", "Test"))
        )
        (number,) = jvm.run(seat, call(number, "indexOf", name))
        shown = jvm.run(seat, *(call(each, "toString") for each in lists))
    found = {part: json.loads(text) for part, text in zip(("train", "dev", "test"), shown, strict=True)}
    return {"number": number, **found}


CHECKS = {"scienceworld.jsonl": episodes, "scienceworld_variations.json": variations}
