"""``turngym data``: the worlds' data sets on this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from ...errors import InvalidRequest
from . import sets, store
from .download import Show
from .fetch import fetch
from .sets import DataSet
from .store import Status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    words = parser.add_subparsers(dest="word", metavar="list | add | fetch | remove", required=True)
    show = words.add_parser("list", help="what there is, where, and what needs it")
    show.add_argument("--json", action="store_true", help="as JSON")
    names = ", ".join(sets.SETS)
    add = words.add_parser("add", help="use a copy of your own")
    add.add_argument("name", metavar="NAME", help=names)
    add.add_argument("folder", metavar="FOLDER", help="where it lies")
    add.add_argument("--copy", action="store_true", help="copy the files (default: remember the folder)")
    get = words.add_parser("fetch", help="download it; goes on where an earlier run was interrupted")
    get.add_argument("name", metavar="NAME", help=names)
    get.add_argument("--variant", metavar="NAME", help=_variants())
    get.add_argument("--url", metavar="URL", help='fetch from here: a folder (ends in "/"), or the one file')
    remove = words.add_parser("remove", help="delete what turngym has put there; a folder of your own stays")
    remove.add_argument("name", metavar="NAME", help=names)
    remove.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """List, add, fetch or remove."""
    try:
        return {"list": _list, "add": _add, "fetch": _fetch, "remove": _remove}[args.word](args)
    except OSError as error:
        raise InvalidRequest(
            f"{error.filename or store.home()}: {error.strerror or error}.",
            hint="Check the folder's rights and the disk's room, or set XDG_DATA_HOME to a folder of yours.",
        ) from error


def _variants() -> str:
    several = (data for data in sets.SETS.values() if len(data.variants) > 1)
    return "; ".join(f"{data.name}: {', '.join(data.variants)} (default: {data.variant(None)})" for data in several)


def _list(args: argparse.Namespace) -> int:
    found = {name: store.status(name) for name in sets.SETS}
    if args.json:
        print(json.dumps([_row(sets.SETS[name], status) for name, status in found.items()], indent=2))
        return 0
    console = Console(highlight=False)
    for name, status in found.items():
        console.print(_card(sets.SETS[name], status))
    console.print(f"turngym's own folder: {store.home()}", markup=False, soft_wrap=True)
    return 0


def _row(data: DataSet, status: Status) -> dict[str, object]:
    return {
        "name": data.name,
        "summary": data.summary,
        "state": status.state,
        "where": status.where,
        "path": None if status.path is None else str(status.path),
        "bytes": status.bytes,
        "holds": status.holds,
        "partial_bytes": status.partial,
        "needed_by": data.needed_by,
        "licence": data.licence,
        "source": data.home,
        "variants": list(data.variants),
    }


def _card(data: DataSet, status: Status) -> Table:
    card = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    card.add_column(style="bold", no_wrap=True, min_width=14)
    card.add_column(overflow="fold")
    colour = {"missing": "yellow", "broken": "red"}.get(status.state, "green")
    by = f", by {status.where}" if status.where else ""
    card.add_row(data.name, data.summary)
    card.add_row("", f"[{colour}]{status.state}[/]{by}")
    rows = [
        ("there", status.holds),
        ("folder", "" if status.path is None else f"{status.path} ({_megabytes(status.bytes)})"),
        ("get it", store.advice(data.name) if status.state == "missing" else ""),
        ("begun", f"{_megabytes(status.partial)} of an interrupted fetch" if status.partial else ""),
        ("needed by", data.needed_by),
        ("licence", data.licence),
        ("source", data.home),
    ]
    for head, text in rows:
        if text:
            card.add_row(f"  {head}", Text(text), style="dim" if head in ("licence", "source") else "")
    card.add_row("", "")
    return card


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 50_000 else f"{size / 1e3:,.1f} kB"


def _add(args: argparse.Namespace) -> int:
    holds = (store.copy if args.copy else store.link)(args.name, args.folder)
    print(f"{args.name}: {holds}")
    print(f"{'Copied to' if args.copy else 'Linked in'} {store.writable_home() / args.name}")
    return 0


def _fetch(args: argparse.Namespace) -> int:
    data = sets.get(args.name)
    print(f"{data.name} ({data.variant(args.variant)}): {data.summary}. Licence: {data.licence}")
    console = Console(stderr=True)
    with _progress(console) as progress:

        def say(text: str) -> None:
            # Through the display that owns the terminal, so that neither line damages the other.
            progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

        def bar(name: str) -> Show:
            task = progress.add_task(name, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        path = fetch(args.name, args.variant, url=args.url, say=say, progress=bar)
    print(f"{args.name} is in {path}")
    return 0


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        yield progress


def _remove(args: argparse.Namespace) -> int:
    data, own = sets.get(args.name), store.home()
    path = None if own is None else own / data.name
    if not args.yes and path is not None and os.path.lexists(path):
        what = f"the link to {os.readlink(path)} (that folder stays)" if path.is_symlink() else f"{path} and all in it"
        if not sys.stdin.isatty():
            raise InvalidRequest(f"This would delete {what}.", hint="Say --yes where nobody can be asked.")
        if input(f"Delete {what}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("Nothing was deleted.")
            return 1
    print(f"Deleted {store.remove(args.name)}")
    return 0
