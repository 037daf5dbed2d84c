"""Drive the stock ALFWorld engine and ours side by side: the same random commands, the same answers; and their speed.

Run: ``make alfworld-test``, which sets up an environment with the ``alfworld`` package (its planner is built on
installation and is GPLv3: the package stays optional), or with an interpreter that has it
``python tests/oracles/alfworld_stock.py [official games] [procedural games] [steps]``. The games are those of
TURNGYM_DATA or of ``turngym data``.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from turngym.client.bench.stock_alfworld import stock_engine
from turngym.envs.alfworld.data import SPLITS, TASK_TYPES, GameFile, data_folder, open_splits, save_game, texts_of
from turngym.envs.alfworld.engine import NOTHING_HAPPENS, Game
from turngym.envs.alfworld.env import HELD_OUT
from turngym.envs.alfworld.procedural import splits as procedural_splits

NONSENSE = ["", "LOOK", "xyzzy", "go to nowhere 9", "take apple 1", "examine", "go to", "{r.name}", "look.", "a" * 300]


def chosen(draw: random.Random, commands: list[str], plan: list[str]) -> str:
    """Return a random command, oftener one that does something than a walk, now and then nonsense.

    Where ``plan`` has steps left they are mixed in, so that what only purpose reaches is compared as well.
    """
    if draw.random() < 0.1:
        return draw.choice(NONSENSE)
    if plan and plan[0] in commands and draw.random() < 0.7:
        return plan.pop(0)
    doing = [command for command in commands if not command.startswith(("go to", "look", "inventory", "help"))]
    return draw.choice(doing if doing and draw.random() < 0.7 else commands)


class Clock:
    """Seconds and steps of each engine."""

    def __init__(self) -> None:
        self.load = {"stock": 0.0, "ours": 0.0}
        self.play = {"stock": 0.0, "ours": 0.0}
        self.games = self.steps = 0

    def report(self) -> str:
        """Return the means side by side."""
        rows = []
        for name in ("stock", "ours"):
            load, rate = 1000 * self.load[name] / max(1, self.games), self.steps / max(1e-9, self.play[name])
            rows.append(f"{name}: load and reset {load:.1f} ms, {rate:.1f} steps/s")
        return "; ".join(rows)


def played(file: GameFile, path: Path, steps: int, draw: random.Random, clock: Clock) -> str:
    """Return where the engines differ in one random episode; "" where they do not."""
    started = time.perf_counter()
    engine = stock_engine(path)
    theirs = engine.reset()
    clock.load["stock"] += time.perf_counter() - started
    started = time.perf_counter()
    game = Game(file.domain, file.grammar, file.problem)
    state, text = game.start, game.intro()
    commands = game.commands(state)
    clock.load["ours"] += time.perf_counter() - started
    clock.games += 1
    action, done = "the start", False
    plan = list(file.walkthrough) if draw.random() < 0.5 else []
    for index in range(steps + 1):
        want = (theirs.feedback, list(theirs.admissible_commands), theirs["won"])
        got = (text, list(commands), game.won(state))
        if got != want:
            return f"after {action!r} (step {index}): got {got!r:.600}, the stock engine says {want!r:.600}"
        if done or index == steps:
            break
        action = chosen(draw, want[1], plan)
        started = time.perf_counter()
        theirs, _, done = engine.step(action)
        clock.play["stock"] += time.perf_counter() - started
        started = time.perf_counter()
        found = commands.get(action.strip())
        text = NOTHING_HAPPENS
        if found is not None:
            state = game.after(state, *found)
            text = game.feedback(state, *found)
            commands = game.commands(state)
        game.won(state)
        clock.play["ours"] += time.perf_counter() - started
        clock.steps += 1
    return ""


def selected(official: int, procedural: int, draw: random.Random) -> Iterator[GameFile]:
    """Yield games, the official ones from every split."""
    folder = data_folder(None)
    if folder is not None:
        found = open_splits(folder)
        places = [(name, index) for name in SPLITS if name in found for index in range(len(found[name]))]
        for name, index in draw.sample(places, min(official, len(places))):
            yield found[name].game(index)
    ours = procedural_splits(*texts_of(folder), TASK_TYPES, HELD_OUT)
    for index in range(procedural):
        yield ours[("train", "test", "L2")[index % 3]].game(index)


def main(official: int = 210, procedural: int = 30, steps: int = 20, seed: int = 0) -> int:
    """Compare; return 0 if no episode differs and there was at least one."""
    try:
        import alfworld  # noqa: F401
    except ImportError:
        print("skipped: pip install alfworld")
        return 0
    if data_folder(None) is None:
        print("skipped: no official games; set TURNGYM_DATA, or run: turngym data add alfworld FOLDER")
        return 0
    draw, clock, failed = random.Random(seed), Clock(), 0
    with tempfile.TemporaryDirectory() as folder:
        for file in selected(official, procedural, draw):
            wrong = played(file, save_game(file, Path(folder)), steps, draw, clock)
            if wrong:
                failed += 1
                print(f"FAILED {file.id}: {wrong}")
    print(clock.report())
    print(f"{clock.games} games, {clock.steps} steps, {failed} differ")
    return 1 if failed or not clock.games else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
