"""How runs came out: the columns of the table at the end, in the report and in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...client.evaluation.metrics import Estimate
from ...errors import MissingExtra
from .alarms import judge
from .folder import Run
from .groups import Group
from .units import Unit


class Column(NamedTuple):
    """One column.

    Attributes:
        title: heading.
        value: of a group.
        unit: how it reads.
        good: whether more is better (1), worse (-1) or neither (0).
    """

    title: str
    value: Callable[[Group], Estimate | float | None]
    unit: Unit
    good: int = 0


COLUMNS = (
    Column("success before", lambda group: group.first("eval_success"), "share"),
    Column("success", lambda group: group.final("eval_success"), "share", 1),
    Column("tokens per success", lambda group: group.final("eval_tokens_won"), "number", -1),
    Column("turns per success", lambda group: group.final("eval_turns_won"), "number", -1),
    Column("sampled tokens", lambda group: group.total("sampled_tokens"), "count"),
    Column("time", lambda group: group.seconds, "seconds"),
)


def best_of(groups: Sequence[Group]) -> set[tuple[int, str]]:
    """Return (group, column) of the best values, where groups can be compared and differ."""
    best: set[tuple[int, str]] = set()
    for column in COLUMNS:
        values = [(mean_of(column.value(group)), row) for row, group in enumerate(groups)]
        known = [(column.good * value, row) for value, row in values if value is not None]
        if column.good and len({value for value, _ in known}) > 1:
            best |= {(row, column.title) for value, row in known if value == max(known)[0]}
    return best


def mean_of(value: Estimate | float | None) -> float | None:
    """Return the number itself, without its interval."""
    return value.mean if isinstance(value, Estimate) else value


def level_of(run: Run) -> str:
    """Return the level of the verdict over a run, "" where it cannot be judged on this machine."""
    try:
        return judge(run.train).level
    except MissingExtra:
        return ""


def steps_of(group: Group) -> str:
    """Return how many steps the runs took."""
    low, high = min(run.step for run in group.runs), max(run.step for run in group.runs)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
