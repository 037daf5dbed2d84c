"""Sample episodes of a report: how the policy played at first, and how it plays now."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...client.evaluation.page import embedded
from ...errors import RecordError
from ...records import Episode
from .folder import EPISODES, EVAL, Run

TASKS = 16
"""Held-out tasks that are shown."""
GROUPS = 4
"""Groups of a training step that are shown."""
# Ids are written first: lines that are not wanted are skipped without being decoded.
_ID = re.compile(rb'\{"id":"[es](\d+)\.')
_decoder = msgspec.json.Decoder(Episode)


def samples(runs: Sequence[Run]) -> tuple[dict[str, Any], str]:
    """Return what the browser of episodes shows, and one sentence about it.

    Of a single run the first and the last evaluation stand side by side, and so do its first and last training step;
    of several runs their last evaluations.

    Args:
        runs: at least one.
    """
    chosen = _of_one(runs[0]) if len(runs) == 1 else _of_many(runs)
    found, dropped = embedded(chosen)
    episodes = list(found.values())
    said = "Turn by turn, " + ("early and late" if len(runs) == 1 else "the runs") + " side by side on the same task."
    if dropped:
        said += f" {dropped} more were left out to keep this file small."
    return {"policies": list(dict.fromkeys(each["policy"] for each in episodes)), "episodes": episodes}, said


def episodes_of(path: Path, steps: set[int]) -> Iterator[tuple[int, Episode]]:
    """Yield (step, episode) of some steps of a run's records; damaged lines are left out.

    Raises:
        RecordError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            for line in file:
                if (found := _ID.match(line)) is None or int(found[1]) not in steps:
                    continue
                try:
                    yield int(found[1]), _decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}.", hint="Make the file readable.") from error


def _of_one(run: Run) -> list[Episode]:
    evaluated = sorted({int(run.evals[place]["step"]) for place in (0, -1)}) if run.evals else []
    played = list(episodes_of(run.path / EVAL, set(evaluated)))
    shown = [_shown(each, "held-out", f"step {step}") for step, each in _interesting(played)]
    # Training episodes bear the step that they led up from.
    trained = sorted({int(run.train[place]["step"]) - 1 for place in (0, -1)}) if run.train else []
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for step, each in episodes_of(run.path / EPISODES, set(trained)):
        groups = {group for known, group in counts if known == step}
        if each.group not in groups and len(groups) == GROUPS:
            continue
        # The leaves of a tree are all first attempts: they are told apart by their order.
        attempt = counts[step, each.group]
        counts[step, each.group] += 1
        shown.append(_shown(each, "training", f"step {step}", attempt))
    return shown


def _of_many(runs: Sequence[Run]) -> list[Episode]:
    played = []
    names = [run.name for run in runs]
    for run in runs:
        name = run.name if names.count(run.name) == 1 else str(run.path)
        last = {int(run.evals[-1]["step"])} if run.evals else set()
        played += [(name, each) for _, each in episodes_of(run.path / EVAL, last)]
    return [_shown(each, "held-out", name) for name, each in _interesting(played)]


def _interesting(played: Sequence[tuple[Any, Episode]]) -> list[tuple[Any, Episode]]:
    """Return the episodes of a few tasks: first those that came out differently."""
    outcomes: dict[str, set[bool]] = defaultdict(set)
    for _, each in played:
        outcomes[each.task].add(each.won)
    tasks = sorted(outcomes, key=lambda task: len(outcomes[task]) == 1)[:TASKS]
    return [(who, each) for who, each in played if each.task in tasks]


def _shown(episode: Episode, what: str, who: str, attempt: int = 0) -> Episode:
    """Return an episode as it is filed in the browser: by what it was played for, and by whom."""
    return msgspec.structs.replace(
        episode, id=f"{who}/{what}/{episode.id}", group="", env=f"{what}: {episode.env}", policy=who, attempt=attempt
    )
