"""Runs of one method: the same recipe with other seeds, as a mean with an interval."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from os.path import commonprefix
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from ...client.evaluation import charts
from ...client.evaluation.metrics import Estimate
from .figures import INTERVALS, UNITS
from .folder import SECONDS, Points, Run, smooth

Axis = Literal["step", "tokens", "seconds"]
Spread = Literal["min-max", "95"]
GRID = 100
"""Places at which lines over tokens or seconds are averaged: their points do not fall together."""

# 0.975 quantiles of Student's t distribution by degrees of freedom, from 1; beyond them the normal one is close.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
      2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064)  # fmt: skip
_SEED = re.compile(r"(?:^|[-_. ]+)(?:seed|s)?[-_. ]*\d*$", re.IGNORECASE)


@dataclass(frozen=True)
class Group:
    """Runs that one line stands for.

    Attributes:
        name: what they are called.
        runs: at least one.
        spread: what the interval around the mean of several runs is.
    """

    name: str
    runs: tuple[Run, ...]
    spread: Spread = "min-max"

    @cached_property
    def said(self) -> str:
        """The name, with the number of runs where there are several."""
        return self.name if len(self.runs) == 1 else f"{self.name} ({len(self.runs)} runs)"

    def line(self, name: str, css: str, axis: Axis = "step") -> charts.Curve:
        """Return one number as a line: the mean of several runs with its interval, a single run as it is."""
        lines = [_over(run, name, axis) for run in self.runs]
        lines = [points for points in lines if points]
        if len(lines) == 1 and len(self.runs) == 1:
            run, points = self.runs[0], lines[0]
            low, high = (dict(_over(run, each, axis)) for each in INTERVALS.get(name, ("", "")))
            band = [(x, low[x], high[x]) for x, _ in points if x in low and x in high]
            return charts.Curve(self.said, points, css, band, smooth(points))
        found = [(x, self._interval(values, name)) for x, values in _together(lines, axis)]
        means = [(x, each.mean) for x, each in found]
        bounds = [(x, each.low, each.high) for x, each in found]
        if thick := smooth(means):
            # An interval as ragged as the points hides the line.
            lows, highs = (smooth([(each[0], each[end]) for each in bounds]) for end in (1, 2))
            bounds = [(x, lower, upper) for (x, lower), (_, upper) in zip(lows, highs, strict=True)]
        return charts.Curve(self.said, means, css, bounds, thick)

    def final(self, name: str) -> Estimate | None:
        """Return the last value of a number, None where no run has it.

        Of several runs the mean and its interval; of a single one its own interval over tasks, where it was noted.
        """
        values = [value for run in self.runs if (value := run.last(name)) is not None and math.isfinite(value)]
        if not values:
            return None
        if len(values) == 1 and name in INTERVALS:
            run = next(run for run in self.runs if run.last(name) is not None)
            low, high = (run.last(each) for each in INTERVALS[name])
            if low is not None and high is not None:
                return Estimate(values[0], low, high)
        return self._interval(values, name)

    def first(self, name: str) -> Estimate | None:
        """Return a number before training, with its interval over several runs; None where no run has it.

        A run that has not been evaluated again since step 0 has no before and after.
        """
        found = [points for run in self.runs if len(points := run.points(name)) > 1 and points[0][0] == 0]
        values = [points[0][1] for points in found if math.isfinite(points[0][1])]
        return self._interval(values, name) if values else None

    def _interval(self, values: Sequence[float], name: str) -> Estimate:
        found = interval(values, self.spread)
        # Student's t knows nothing of where a share ends.
        share = UNITS.get(name) == "share"
        return Estimate(found.mean, max(found.low, 0.0), min(found.high, 1.0)) if share else found

    def total(self, name: str) -> float:
        """Return the sum of a number over the steps, mean over the runs."""
        return fmean(run.total(name) for run in self.runs)

    @property
    def seconds(self) -> float:
        """Training time, mean over the runs."""
        return fmean(math.fsum(run.total(name) for name in SECONDS) for run in self.runs)


def interval(values: Sequence[float], spread: Spread = "min-max") -> Estimate:
    """Return the mean of at least one value with the least and greatest, or with its 95 % interval (Student's t)."""
    mean = fmean(values)
    if spread == "min-max" or len(values) == 1:
        return Estimate(mean, min(values), max(values))
    quantile = _T[len(values) - 2] if len(values) - 2 < len(_T) else 1.96
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def group(runs: Sequence[Run], spread: Spread = "min-max") -> list[Group]:
    """Return the runs by method, in the order of their first run: recipes that differ in the seed alone are one."""
    found: list[tuple[dict[str, Any], list[Run]]] = []
    for run in runs:
        method = seedless(run.recipe)
        own = next((own for known, own in found if known == method and run.recipe), None)
        if own is None:
            found.append((method, [run]))
        else:
            own.append(run)
    names = _distinct([_name(own) for _, own in found])
    return [Group(name, tuple(own), spread) for name, (_, own) in zip(names, found, strict=True)]


def apart(runs: Sequence[Run]) -> list[Group]:
    """Return every run as a group of its own."""
    return [Group(name, (run,)) for name, run in zip(_distinct([run.name for run in runs]), runs, strict=True)]


def seedless(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without its seed."""
    return {**recipe, "run": {name: value for name, value in recipe.get("run", {}).items() if name != "seed"}}


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the settings in which the groups' recipes differ, by "table.key"; one text a group, "" where unset."""
    tables = [dict(_flat(seedless(each.runs[0].recipe))) for each in groups]
    names = dict.fromkeys(name for table in tables for name in table if name != "summary")
    rows = {name: [table.get(name, "") for table in tables] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        for number, each in enumerate(value):
            yield from _flat(each, f"{name}[{number}]")
    elif value not in (None, [], ""):
        yield name, str(value)


def _name(runs: Sequence[Run]) -> str:
    """Return what a group is called: what the folders' names begin with, without the seed."""
    if len(runs) == 1:
        return runs[0].name
    start = _SEED.sub("", commonprefix([run.name for run in runs]))  # noqa: RUF071 - names, no paths
    return start or runs[0].path.resolve().parent.name


def _distinct(names: Sequence[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} #{names[:place].count(name) + 1}" for place, name in
            enumerate(names)]  # fmt: skip


def _over(run: Run, name: str, axis: Axis) -> Points:
    """Return a number of a run over what a reader asks for."""
    points = [(x, value) for x, value in run.points(name)]
    if axis == "step":
        return points
    spent = ("sampled_tokens",) if axis == "tokens" else SECONDS
    costs = [(entry["step"], math.fsum(entry.get(each) or 0.0 for each in spent)) for entry in run.train]
    reached = dict(zip((step for step, _ in costs), accumulate(cost for _, cost in costs), strict=True))
    return [(reached.get(x, 0.0), value) for x, value in points if x in reached or x == 0]


def _together(lines: Sequence[Points], axis: Axis) -> list[tuple[float, list[float]]]:
    """Return the values of several lines at the places that all of them have."""
    known = [[(x, y) for x, y in points if math.isfinite(y)] for points in lines]
    known = [points for points in known if points]
    if not known:
        return []
    if axis == "step":
        found = [dict(points) for points in known]
        return [(x, [each[x] for each in found]) for x in sorted(set.intersection(*map(set, found)))]
    low, high = max(points[0][0] for points in known), min(points[-1][0] for points in known)
    grid = np.linspace(low, max(low, high), min(GRID, max(map(len, known))))
    tables = [np.array(points) for points in known]
    values = [np.interp(grid, table[:, 0], table[:, 1]) for table in tables]
    return [(float(x), [float(each[place]) for each in values]) for place, x in enumerate(grid)]
