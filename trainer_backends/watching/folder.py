"""The folder of a training run, read at any time: also while the run goes on, or after it was cut off."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ...errors import InvalidRequest, RecordError

RECIPE, METRICS, MACHINE, REPORT = "recipe.json", "metrics.jsonl", "machine.json", "report.html"
EPISODES, EVAL = "episodes.jsonl", "eval.jsonl"
SECONDS = ("rollout_seconds", "measure_seconds", "credit_seconds", "update_seconds")
"""The parts of a step that are timed."""

Entry = Mapping[str, Any]
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Run:
    """One training run as its folder tells it.

    Attributes:
        path: the folder.
        recipe: the recipe as plain data; {} where there is none.
        train: numbers of each training step, oldest first.
        evals: numbers of each evaluation; names begin with "eval_".
        starts: numbers of the supervised start.
        machine: where it ran; {} where that was not noted.
        notes: what is wrong with the folder.
    """

    path: Path
    recipe: dict[str, Any] = field(default_factory=dict)
    train: tuple[Entry, ...] = ()
    evals: tuple[Entry, ...] = ()
    starts: tuple[Entry, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def step(self) -> int:
        """Steps taken."""
        return int(max((entry["step"] for entry in (*self.train, *self.evals)), default=0))

    @property
    def steps(self) -> int:
        """Steps wanted; 0 where the recipe does not say."""
        return int(self.recipe.get("run", {}).get("steps", 0))

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.recipe.get("run", {}).get("seed", 0))

    @property
    def finished(self) -> bool:
        """Whether it came to its end: after the last step the policy is evaluated."""
        run = self.recipe.get("run", {})
        over = bool(run.get("minutes")) and self.seconds >= 60 * run["minutes"]
        over |= bool(run.get("tokens")) and self.total("sampled_tokens") >= run["tokens"]
        return bool(self.evals) and self.evals[-1]["step"] == self.step and (self.step >= self.steps or over)

    @property
    def seconds(self) -> float:
        """Wall-clock time of training so far."""
        return float(max((entry.get("seconds") or 0.0 for entry in (*self.train, *self.evals)), default=0.0))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All numbers that were noted, "eval_…" after the others, in order of first appearance."""
        found = dict.fromkeys(name for entry in (*self.train, *self.evals) for name in entry)
        return tuple(sorted((name for name in found if name not in ("kind", "step")), key=_is_eval))

    def points(self, name: str) -> Points:
        """Return (step, value) of a number, oldest first; what was not finite is NaN."""
        entries = self.evals if _is_eval(name) else self.train
        return [(float(entry["step"]), number_of(entry[name])) for entry in entries if name in entry]

    def last(self, name: str) -> float | None:
        """Return the newest value of a number, None where it was never noted."""
        points = self.points(name)
        return points[-1][1] if points else None

    def total(self, name: str) -> float:
        """Return the sum of a number over the steps."""
        return math.fsum(value for _, value in self.points(name) if math.isfinite(value))


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read the folder of a training run.

    Raises:
        InvalidRequest: there is no training run.
        RecordError: a file in it cannot be read.
    """
    folder = Path(path)
    recipe = _json(folder / RECIPE)
    if not recipe and not (folder / METRICS).is_file():
        raise InvalidRequest(
            f"{folder} is not the folder of a training run.",
            hint=f"Name a folder that holds {RECIPE} and {METRICS}; `turngym train` makes one.",
        )
    entries, notes = _entries(folder / METRICS)
    kinds: dict[str, list[Entry]] = {"train": [], "eval": [], "start": []}
    for entry in entries:
        kinds.setdefault(entry["kind"], []).append(entry)
    return Run(
        path=folder,
        recipe=recipe,
        train=tuple(with_rates(entry) for entry in _latest(kinds["train"])),
        evals=_latest(kinds["eval"]),
        starts=tuple(kinds["start"]),
        machine=_json(folder / MACHINE),
        notes=tuple(notes),
    )


def with_rates(entry: Entry) -> Entry:
    """Return the numbers of a training step with those that follow from them."""
    tokens, seconds = number_of(entry.get("sampled_tokens")), number_of(entry.get("rollout_seconds"))
    won = number_of(entry.get("success")) * number_of(entry.get("episodes"))
    derived = {
        "tokens_per_second": tokens / seconds if seconds else math.nan,
        "won_per_1k_tokens": 1000 * won / tokens if tokens else math.nan,
    }
    return {**entry, **{name: value for name, value in derived.items() if math.isfinite(value)}}


def shares(entry: Entry) -> dict[str, float]:
    """Return each timed part's share of a step, by the part's name; {} where nothing was timed."""
    spent = {name.removesuffix("_seconds"): number_of(entry[name]) for name in SECONDS if name in entry}
    whole = math.fsum(spent.values())
    return {name: seconds / whole for name, seconds in spent.items()} if whole > 0 else {}


def _is_eval(name: str) -> bool:
    return name.startswith("eval_")


def number_of(value: Any) -> float:
    """Return a value of a line of numbers, NaN for what is none."""
    # JSON has no word for NaN and infinity: they are written as null.
    return float(value) if isinstance(value, int | float) else math.nan


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise RecordError(f"{path}: {error}.", hint="Restore the file, or leave this run out.") from error


def _entries(path: Path) -> tuple[list[Entry], list[str]]:
    """Return the lines of a metrics file and what is wrong with it; a last line that is being written is left out."""
    entries: list[Entry] = []
    damaged: list[int] = []
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}.", hint="Make the file readable.") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = msgspec.json.decode(line, type=dict[str, Any])
            if isinstance(entry.get("kind"), str) and isinstance(entry.get("step"), int | float):
                entries.append(entry)
            else:
                damaged.append(number)
        except (msgspec.DecodeError, UnicodeDecodeError):
            damaged.append(number)
    if not damaged:
        return entries, []
    where = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
    return entries, [f"{path.name}: {len(damaged)} damaged lines were left out (line {where})."]


def _latest(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return one entry a step, in order: a step that was taken again counts as it came out last."""
    found = {int(entry["step"]): entry for entry in entries}
    return tuple(found[step] for step in sorted(found))


def smooth(points: Sequence[tuple[float, float]], share: float = 0.05, least: int = 40) -> Points:
    """Return the centred running mean over a share of the points; [] for fewer than ``least`` points.

    Args:
        points: (x, value), in order of x; values that are not finite do not count.
        share: of the points in a window.
        least: fewer points are looked at as they are.
    """
    known = [(x, value) for x, value in points if math.isfinite(value)]
    if len(known) < least:
        return []
    half = max(1, round(share * len(known) / 2))
    sums = [0.0]
    for _, value in known:
        sums.append(sums[-1] + value)
    means = []
    for place, (x, _) in enumerate(known):
        low, high = max(0, place - half), min(len(known), place + half + 1)
        means.append((x, (sums[high] - sums[low]) / (high - low)))
    return means
