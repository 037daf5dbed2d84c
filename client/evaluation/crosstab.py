"""Tables as the papers print them: each cell computed from its own episodes, per seed, then over the seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set

import msgspec
import numpy as np

from ..rollout import INFO
from .layouts import ALL_GROUPS, OVER_SEEDS, REWARD, Column, Grouping, Layout
from .metrics import Estimate, Summary, measure
from .plan import ResolvedPlan

SPREAD = "A number after ± is the sample standard deviation over the seeds of the run."


class Cell(msgspec.Struct, omit_defaults=True):
    """One number of a table, scaled as its column says; None where nothing is known.

    Attributes:
        mean: mean over the seeds.
        std: sample standard deviation over the seeds; None with one seed.
        episodes: finished episodes behind it.
    """

    mean: float | None = None
    std: float | None = None
    episodes: int = 0

    def show(self, digits: int) -> str:
        """Return the cell as people read it."""
        if self.mean is None:
            return "–"
        spread = "" if self.std is None else f" ±{self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


class Head(msgspec.Struct, omit_defaults=True):
    """Heading of one column: its number's, under that of its group ("" for none); digits after the point."""

    label: str
    group: str = ""
    digits: int = 1


class TableRow(msgspec.Struct, omit_defaults=True):
    """One row: whose it is, of which group ("" for none), and its cells in the order of the headings."""

    env: str
    policy: str
    cells: list[Cell]
    group: str = ""

    def key(self, name: str) -> str:
        """Return what stands in one of the table's ``keys``."""
        return {"environment": self.env, "policy": self.policy, "group": self.group}[name]


class Crosstab(msgspec.Struct, omit_defaults=True):
    """A finished table."""

    title: str
    heads: list[Head]
    rows: list[TableRow]
    note: str = ""

    @property
    def keys(self) -> list[str]:
        """The columns that say whose a row is: of "environment", "policy" and "group" those that tell rows apart."""
        several = len({row.env for row in self.rows}) > 1
        down = any(row.group for row in self.rows)
        return [*(["environment"] if several else []), "policy", *(["group"] if down else [])]

    def texts(self, row: TableRow) -> list[str]:
        """Return a row's cells as people read them."""
        return [cell.show(head.digits) for cell, head in zip(row.cells, self.heads, strict=True)]

    @property
    def grouped(self) -> bool:
        """Whether the columns stand in groups."""
        return any(head.group for head in self.heads)

    @property
    def plain(self) -> bool:
        """Whether each group is one column of the same number, so that its name is heading enough."""
        return self.grouped and len({head.label for head in self.heads}) == 1


def crosstabs(plan: ResolvedPlan, summaries: Sequence[Summary]) -> list[Crosstab]:
    """Return the plan's tables, without those that no finished episode belongs to."""
    layouts = plan.tables or ([OVER_SEEDS] if plan.seeds > 1 else [])
    return [table for layout in layouts if (table := _crosstab(layout, plan, summaries)).rows]


def _crosstab(layout: Layout, plan: ResolvedPlan, summaries: Sequence[Summary]) -> Crosstab:
    kept = [s for s in summaries if not s.failed and (not layout.splits or s.split in layout.splits)]
    known = {name for summary in kept for name in summary.info}
    owners: dict[tuple[str, str], list[Summary]] = defaultdict(list)
    for summary in kept:
        owners[summary.env, summary.policy].append(summary)
    across, down = (_groups(kind, layout, kept) for kind in (layout.across, layout.down))
    rows = []
    for owner in ((env.name, policy.name) for env in plan.envs for policy in plan.policies):
        for name, wanted in down:
            own = [summary for summary in owners[owner] if wanted(summary)]
            cells = [
                _cell([summary for summary in own if inside(summary)], column, plan.pass_k, known)
                for _, inside in across
                for column in layout.columns
            ]
            if own:
                rows.append(TableRow(*owner, cells, name))
    heads = [Head(column.heading, name, column.shown(layout.digits)) for name, _ in across for column in layout.columns]
    return Crosstab(layout.title, heads, rows, layout.note)


def _groups(
    kind: Grouping, layout: Layout, summaries: Sequence[Summary]
) -> list[tuple[str, Callable[[Summary], bool]]]:
    """Return (shown name, whether an episode belongs to it) for each group that has episodes."""
    if not kind:
        return [("", lambda _: True)]
    there = {str(getattr(summary, kind)) for summary in summaries}
    # A layout that groups both ways has one set of names; each kind takes its own out of it.
    named = {group: name for group, name in layout.names.items() if group in there or group == ALL_GROUPS}
    named |= {group: group for group in sorted(there) if group not in named}

    def member(group: str) -> Callable[[Summary], bool]:
        return lambda summary: group in (ALL_GROUPS, getattr(summary, kind))

    return [(name, member(group)) for group, name in named.items()]


def _cell(own: Sequence[Summary], column: Column, pass_k: int, known: Set[str]) -> Cell:
    by_seed: dict[int, list[Summary]] = defaultdict(list)
    for summary in own:
        by_seed[summary.attempt // pass_k].append(summary)
    values = [value for group in by_seed.values() if (value := _value(group, column, known)) is not None]
    if not values:
        return Cell(episodes=len(own))
    scaled = np.array(values) * column.scale
    std = float(scaled.std(ddof=1)) if len(scaled) > 1 else None
    return Cell(float(scaled.mean()), std, len(own))


def _value(own: Sequence[Summary], column: Column, known: Set[str]) -> float | None:
    if column.value.startswith(INFO):
        name = column.value.removeprefix(INFO)
        told = [summary.info[name] for summary in own if name in summary.info]
        # A number that no episode of the table has is unknown and not 0: the name may be wrong.
        count = len(own) if column.absent == "zero" and name in known else len(told)
        return sum(told) / count if count else None
    row = measure(own, resample=False)
    if column.value.startswith(REWARD):
        return row.components.get(column.value.removeprefix(REWARD))
    value = getattr(row, column.value)
    if isinstance(value, Estimate):
        return value.mean
    if isinstance(value, dict):
        return float(value[max(value)]) if value else None
    return None if value is None else float(value)
