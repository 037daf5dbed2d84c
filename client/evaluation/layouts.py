"""How tables are laid out that read as a paper's: which numbers, grouped by what, down and across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from ...errors import InvalidRequest, nearest
from ..rollout import INFO
from .definitions import DEFINITIONS

REWARD = "reward."
ALL_GROUPS = "*"
Digits = Annotated[int, msgspec.Meta(ge=0, le=6)]
Grouping = Literal["", "split", "task_type"]
_UNKNOWN_VALUES = ("components", "info")  # these hold several numbers; their members are named instead


class Column(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One number of a table.

    Attributes:
        value: a number of ``DEFINITIONS`` ("success", "invalid", …), "reward.NAME" for a reward component, or
            "info.PATH" for a number in an episode's last info, for example "info.reward_parts.r_type".
        label: heading; the number's own by default.
        scale: factor; the papers print shares and scores times 100.
        digits: digits after the point; the table's by default, none for counts.
        absent: an episode whose last info lacks the number is left out of its mean ("skip") or counts as 0 ("zero").
    """

    value: str
    label: str = ""
    scale: float = 1.0
    digits: Digits | None = None
    absent: Literal["skip", "zero"] = "skip"

    @property
    def heading(self) -> str:
        """The heading."""
        known = DEFINITIONS.get(self.value)
        return self.label or (known.label if known else self.value.rpartition(".")[2])

    def shown(self, digits: int) -> int:
        """Return the digits after the point in a table that shows ``digits``."""
        if self.digits is not None:
            return self.digits
        known = DEFINITIONS.get(self.value)
        return 0 if known is not None and known.unit == "count" else digits


class Layout(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A table: one row a policy (and environment), one cell a column and group.

    Attributes:
        title: heading of the table.
        columns: its numbers.
        across: the columns are repeated for each group of this kind.
        down: the rows are repeated for each group of this kind.
        names: group -> shown name, in this order; "*" stands for all groups together. Groups without one follow
            under their own.
        splits: only episodes of these splits; all by default.
        digits: digits after the point.
        note: what a reader should know.
    """

    title: str
    columns: list[Column]
    across: Grouping = ""
    down: Grouping = ""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    splits: list[str] = msgspec.field(default_factory=list)
    digits: Digits = 1
    note: str = ""


OVER_SEEDS = Layout(
    title="Over the seeds",
    columns=[
        Column("success", "success (%)", 100),
        Column("score"),
        Column("reward"),
        Column("turns"),
        Column("invalid", "invalid (%)", 100),
        Column("repetitive", "repetitive (%)", 100),
    ],
    digits=2,
)
"""What a run of several seeds shows where its plan lays no table out."""


def check_layouts(layouts: Sequence[Layout]) -> None:
    """Check what the structs cannot.

    Raises:
        InvalidRequest: a column names no number, a table has no column, or groups twice by the same.
    """
    known = [name for name in DEFINITIONS if name not in _UNKNOWN_VALUES]
    for layout in layouts:
        if not layout.columns:
            raise InvalidRequest(f"The table {layout.title!r:.60} has no columns.", hint="Give it at least one.")
        if layout.across and layout.across == layout.down:
            raise InvalidRequest(
                f"The table {layout.title!r:.60} groups by {layout.down} both ways.", hint="Leave one of them out."
            )
        for column in layout.columns:
            if not column.value.startswith((INFO, REWARD)) and column.value not in known:
                raise InvalidRequest(
                    f"The table {layout.title!r:.60} names no number {column.value!r:.60}.",
                    hint=nearest(column.value, known) + ' Or "info.PATH", "reward.NAME".',
                )
