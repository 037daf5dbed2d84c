"""ALFWorld's recorded episodes, and its games' own walkthroughs, on the native engine; see worlds.py."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from turngym.envs.alfworld.data import SPLITS, open_splits, texts_of
from turngym.envs.alfworld.engine import NOTHING_HAPPENS, Game

Case = tuple[str, bool, str]
"""Name, whether it passed, and what differed."""


def replay(game: Game, episode: dict[str, Any]) -> str:
    """Return how the engine's transcript differs from the recorded one; "" where it does not."""
    state = game.start
    commands = game.commands(state)
    wanted = [(episode["intro"], episode["admissible"], episode["won"])]
    got = [(game.intro(), list(commands), game.won(state))]
    for step in episode["steps"]:
        found = commands.get(step["action"].strip())
        text = NOTHING_HAPPENS
        if found is not None:
            state = game.after(state, *found)
            text = game.feedback(state, *found)
        commands = game.commands(state)
        won = game.won(state)
        wanted.append((step["obs"], step["admissible"], step["won"]))
        got.append((text, list(commands), won))
        if step["reward"] != float(won) or step["done"] != won:
            return f"after {step['action']!r}: reward {step['reward']}, done {step['done']}; the engine has won {won}"
    for number, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        for mine, recorded in zip(ours, theirs, strict=True):
            if mine != recorded:
                return f"observation {number}: got {mine!r:.500}, recorded {recorded!r:.500}"
    return ""


def package_texts(data: Path) -> tuple[str, str]:
    """Return the domain and grammar of the package that the recordings were made with.

    Where the package is not installed they are made from the data's: the package leaves out one sink type (it is
    commented out there) and writes the text of ``help`` without a line feed before it, which play does not show.
    """
    domain, grammar = texts_of(data / "alfworld")
    return re.sub(r"\(receptacleType \?r SinkType\)", "", domain), grammar


def generated(path: Path, data: Path) -> Iterator[Case]:
    """Replay the episodes recorded on generated games, which are recorded with them."""
    texts = package_texts(data)
    games: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        record = json.loads(line)
        if record["type"] == "game":
            games[record["id"]] = record
        elif record["type"] == "episode":
            own = games[record["game"]]
            task = own["task"].removesuffix(".")
            game = Game(texts[0], texts[1].replace("UNKNOWN GOAL", task), own["pddl_problem"])
            names = {name: shown for name, shown in zip(game.ids, game.names, strict=True) if "_bar_" in name}
            renamed = {name: shown for name, shown in own.get("entity_names", {}).items() if names.get(name) != shown}
            yield f"line {number}: the names of {record['game']}", not renamed, f"other names: {renamed!r:.300}"
            wrong = replay(game, record)
            yield f"line {number}: {record['kind']} {record['game']}", not wrong, wrong


def official(path: Path, data: Path) -> Iterator[Case]:
    """Replay the episodes recorded on official games, which the data folder holds."""
    splits = open_splits(data / "alfworld")
    places = {name: {game: i for i, game in enumerate(split.ids)} for name, split in splits.items()}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        record = json.loads(line)
        name = f"line {number}: {record['kind']} {record['game']}"
        if record["split"] not in splits or record["game"] not in places[record["split"]]:
            yield name, False, "the data folder lacks this game"
            continue
        file = splits[record["split"]].game(places[record["split"]][record["game"]])
        wrong = replay(Game(file.domain, file.grammar, file.problem), record)
        yield name, not wrong, wrong


def walkthrough(game: Game, actions: tuple[str, ...]) -> str:
    """Return why ``actions`` do not win the game, exactly with the last one; "" where they do."""
    state = game.start
    for number, action in enumerate(actions):
        if game.won(state):
            return f"won before action {number}, {action!r}"
        commands = game.commands(state)
        if action not in commands:
            return f"action {number}, {action!r}, is not admissible"
        state = game.after(state, *commands[action])
        game.feedback(state, *commands[action])
    return "" if game.won(state) else "the goal is not reached"


def all_walkthroughs(data: Path) -> Iterator[Case]:
    """Load every official game and play its walkthrough."""
    splits = open_splits(data / "alfworld")
    for name in SPLITS:
        for index in range(len(splits[name])) if name in splits else ():
            file = splits[name].game(index)
            wrong = walkthrough(Game(file.domain, file.grammar, file.problem), file.walkthrough)
            yield f"{name} {file.id}", not wrong, wrong


CHECKS: dict[str, Callable[[Path, Path], Iterator[Case]]] = {
    "alfworld_episodes.jsonl": generated,
    "alfworld_official_episodes.jsonl": official,
}


def main() -> int:
    """Play the walkthroughs of all games in the data folder; return 0 if all win and there was at least one."""
    folder = os.environ.get("TURNGYM_DATA")
    if not folder:
        print("skipped: TURNGYM_DATA names no folder")
        return 0
    total = failed = 0
    for name, passed, detail in all_walkthroughs(Path(folder)):
        total += 1
        if not passed:
            failed += 1
            print(f"FAILED {name}: {detail}")
    print(f"{total} games, {failed} failed")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    raise SystemExit(main())
