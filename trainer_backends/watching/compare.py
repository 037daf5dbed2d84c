"""``turngym compare``: runs beside each other; runs of one recipe that differ in the seed alone are one method."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ...client.evaluation.metrics import Estimate
from ...errors import InvalidRequest, nearest
from .figures import UNITS
from .folder import Run, read_run
from .groups import Axis, Group, Spread, group
from .outcome import COLUMNS, Column, best_of, level_of, mean_of, steps_of
from .report import build_report, notes_of, save
from .units import text_of

CAPTION = "Success, tokens and turns: last evaluation, held-out tasks."

if TYPE_CHECKING:
    from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a training run; it may still be going on")
    parser.add_argument("--out", metavar="FILE", help="write the comparison with all figures to this HTML file")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="compare this number too, and draw those named alone; a name as in metrics.jsonl",
    )
    parser.add_argument(
        "--interval", choices=get_args(Spread), default="min-max", help="of several seeds (default: %(default)s)"
    )
    parser.add_argument("--over", choices=get_args(Axis), default="step", help="x of the figures (default: step)")


def run(args: argparse.Namespace) -> int:
    """Print the table, and write the page where one is asked for."""
    compare(args.runs, args.out, args.metric, args.interval, args.over)
    return 0


def compare(
    folders: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None,
    metrics: Sequence[str] = (),
    spread: Spread = "min-max",
    over: Axis = "step",
) -> None:
    """Print the table of some runs, and write the page with all figures.

    Args:
        folders: of training runs.
        out: HTML file; None for none.
        metrics: numbers to compare beside the usual ones; those alone are drawn then.
        spread: of several seeds.
        over: x of the figures.

    Raises:
        InvalidRequest: a folder is no run's, or no run has such a number.
        RecordError: a file cannot be read or written.
    """
    from rich.console import Console

    runs = [read_run(folder) for folder in dict.fromkeys(folders)]
    check(runs, metrics)
    groups = group(runs, spread)
    # Where nobody looks, in a file or a pipe, the table need not be squeezed.
    console = Console(width=None if sys.stdout.isatty() else 160)
    print_table(groups, console, [column_of(name) for name in metrics])
    for note in notes_of(runs):
        console.print(note, markup=False, highlight=False)
    if out:
        path = save(build_report(groups, over, metrics), Path(out))
        print(f"Figures: {path.resolve().as_uri()}")


def check(runs: Sequence[Run], metrics: Sequence[str]) -> None:
    """Check that the numbers asked for were noted.

    Raises:
        InvalidRequest: no run has such a number.
    """
    known = {name for each in runs for name in each.names}
    for name in metrics:
        if name not in known:
            raise InvalidRequest(f"No run has a number {name!r:.60}.", hint=nearest(name, known))


def column_of(name: str) -> Column:
    """Return the column of the last value of a number."""
    return Column(f"last {name}", lambda group: group.final(name), UNITS.get(name, "number"))


def print_table(groups: Sequence[Group], console: Console, more: Sequence[Column] = ()) -> None:
    """Print one line a method; the best of what can be compared is bold.

    Args:
        groups: the methods.
        console: where to.
        more: columns beside the usual ones.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", caption=CAPTION, caption_justify="left")
    table.add_column("method", no_wrap=True)
    for title in ("runs", "steps", *(column.title for column in (*COLUMNS, *more)), "signs of collapse"):
        table.add_column(title, justify="right")
    best = best_of(groups)
    for row, each in enumerate(groups):
        cells = [Text(each.name), Text(str(len(each.runs))), Text(steps_of(each))]
        cells += [
            Text(_cell(column, each), style="bold" if (row, column.title) in best else "")
            for column in (*COLUMNS, *more)
        ]
        levels = dict.fromkeys(level_of(each_run) or "not judged" for each_run in each.runs)
        table.add_row(*cells, Text(", ".join(levels)))
    console.print(table)


def _cell(column: Column, each: Group) -> str:
    value = column.value(each)
    text = text_of(mean_of(value), column.unit)
    if isinstance(value, Estimate) and value.low != value.high:
        low, high = (text_of(end, column.unit).removesuffix(" %") for end in (value.low, value.high))
        # Its words stay together where a column is narrow.
        text += f" ({low} to {high})".replace(" to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}")
    return text
