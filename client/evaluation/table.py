"""The table of an evaluation: which columns, how a cell reads, and its form in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .crosstab import Crosstab
from .definitions import DEFINITIONS
from .metrics import Estimate, Row, show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ALWAYS = ("episodes", "success", "reward", "turns", "invalid", "repetitive", "truncated", "seconds")
COLUMNS = ("episodes", "failed", "success", "pass_at", "score", "reward", "turns", "invalid", "repetitive",
           "format_valid", "void", "truncated", "overflow", "tokens_turn", "cut", "cost", "turns_won", "tokens_won",
           "actions", "prompt_tokens_turn", "seconds")  # fmt: skip


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the columns that say something about these rows."""
    columns = []
    for name in COLUMNS:
        values = [getattr(row, name) for row in rows]
        if name == "score":
            told = any(row.score is not None and row.score != row.success for row in rows)
        elif name == "pass_at":
            told = any(len(value) > 1 for value in values)
        elif name in ("format_valid", "void"):
            told = any(value is not None for value in values)
        elif name == "actions":
            told = any(row.actions != row.turns for row in rows)
        else:
            told = name in ALWAYS or any(value is not None and value != 0 for value in values)
        if told:
            columns.append(name)
    return columns


def cell(row: Row, name: str) -> str:
    """Return one cell of a table as text."""
    value = getattr(row, name)
    if name == "pass_at":
        return show(value[max(value)], "share") if value else "–"
    return show(value, DEFINITIONS[name].unit)


def heading(name: str, rows: Sequence[Row]) -> str:
    """Return the heading of a column."""
    if name == "pass_at":
        return f"pass@{max((max(row.pass_at, default=1) for row in rows), default=1)}"
    return DEFINITIONS[name].label


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Print one line per environment and policy, with as many columns as the console is wide."""
    own = [row for row in rows if row.by == "env"]
    order = list(dict.fromkeys(row.env for row in own))
    own.sort(key=lambda row: order.index(row.env))
    if not own:
        return
    columns = columns_of(own)
    table = _table(own, columns)
    while (
        len(columns) > 3
        and console.measure(table, options=console.options.update(width=10_000)).maximum > console.width
    ):
        columns.pop()
        table = _table(own, columns)
    console.print(table)


def print_crosstab(table: Crosstab, console: Console) -> None:
    """Print one of the tables that a plan lays out, its groups over its columns."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in table.keys:
        shown.add_column(name, no_wrap=True)
    last = None
    for head in table.heads:
        group, last = ("" if head.group == last else head.group), head.group
        label = group if table.plain else f"{group}\n{head.label}" if table.grouped else head.label
        shown.add_column(escape(label), justify="right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(escape(row.key(key)) for key in table.keys), *table.texts(row))
    console.print(f"[bold]{escape(table.title)}[/bold]")
    console.print(shown)
    if table.note:
        console.print(table.note, style="dim", markup=False)


def _table(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("environment", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for name in columns:
        table.add_column(heading(name, rows), justify="right", no_wrap=True)
    last = ""
    for row in rows:
        cells = [_with_interval(row, name) for name in columns]
        table.add_row("" if row.env == last else row.env, row.policy, *cells)
        last = row.env
    return table


def _with_interval(row: Row, name: str) -> str:
    text, value = cell(row, name), getattr(row, name)
    if name == "success" and isinstance(value, Estimate):
        return f"{text} [dim]({100 * value.low:.0f}–{100 * value.high:.0f})[/dim]"
    return f"[red]{text}[/red]" if name == "failed" and value else text
