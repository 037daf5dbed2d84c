"""``turngym bench``: measure speed and memory on this machine, next to the limits."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ...envs.registry import specs, unmet
from . import clients, measure, scienceworld, worlds
from .servers import pin

Row = dict[str, Any]
Tables = Iterator[tuple[str, list[Row]]]
"""Tables by name, each as soon as it is measured."""
PRODUCTS = (1_000, 10_000, 100_000)
COUNTS = (1, 16, 64, 256, 1000)


class Part(NamedTuple):
    """Something to measure.

    Attributes:
        titles: over its tables, by name.
        tables: measures, given the command's arguments.
        missing: says what is left out, and how to have it.
    """

    titles: Mapping[str, str]
    tables: Callable[[argparse.Namespace], Tables]
    missing: Callable[[argparse.Namespace], list[str]] = lambda args: []


def _envs(args: argparse.Namespace) -> Tables:
    yield "envs", measure.environments(args.seconds)


def _serving(args: argparse.Namespace) -> Tables:
    rows = measure.serving(args.sessions, args.seconds, _existing(args.openenv_python))
    yield "serving", rows
    yield "ratios", ratios(rows)


def _costs(args: argparse.Namespace) -> Tables:
    yield "costs", measure.step_costs(args.seconds)


def _clients(args: argparse.Namespace) -> Tables:
    yield "clients", clients.clients(args.seconds)


def _memory(args: argparse.Namespace) -> Tables:
    yield "memory", measure.memory(args.idle)


def _webshop(args: argparse.Namespace) -> Tables:
    yield "webshop", worlds.webshop(args.products, args.seconds)
    yield "webshop_policies", worlds.webshop_policies(args.products[:1])


def _alfworld(args: argparse.Namespace) -> Tables:
    yield "alfworld", worlds.alfworld(args.seconds, _existing(args.alfworld_python))


def _scienceworld(args: argparse.Namespace) -> Tables:
    if unmet("scienceworld") is None:
        yield "scienceworld", scienceworld.steps()
        yield "scienceworld_sessions", scienceworld.sessions()


def _existing(path: str) -> str | None:
    return path if Path(path).exists() else None


def _unplayable(args: argparse.Namespace) -> list[str]:
    return [f"{env_id} was left out: {why}" for env_id in specs() if (why := unmet(env_id)) is not None]


def _without(what: str, path: str, target: str) -> list[str]:
    return [] if _existing(path) else [f"{what} was left out: {path} is missing. `make {target}` sets it up."]


PARTS = {
    "envs": Part({"envs": "In this process, one core"}, _envs, _unplayable),
    "serving": Part(
        {
            "serving": "Over loopback, replies of 1 KB, server and load on a core each",
            "ratios": "Ratios of steps per second, same run",
        },
        _serving,
        lambda args: _without("Stock OpenEnv", args.openenv_python, "conformance"),
    ),
    "costs": Part(
        {"costs": "The hub's processor time per step, 64 sessions over native WebSockets, in microseconds"},
        _costs,
        _unplayable,
    ),
    "clients": Part({"clients": "Our own client, 1 KB echo"}, _clients),
    "memory": Part({"memory": "Idle sessions, reset, in one hub process and its workers"}, _memory, _unplayable),
    "webshop": Part(
        {
            "webshop": "WebShop in process, in processor time; the start on the clock",
            "webshop_policies": "What simple policies reach in WebShop, test split",
        },
        _webshop,
    ),
    "alfworld": Part(
        {"alfworld": "ALFWorld in process, in processor time; the stock engine on games just played"},
        _alfworld,
        lambda args: _without("The stock engine", args.alfworld_python, "alfworld-test"),
    ),
    "scienceworld": Part(
        {
            "scienceworld": "ScienceWorld beside its stock package, same actions; start: until the first observation",
            "scienceworld_sessions": "Java's memory per ScienceWorld session that has played",
        },
        _scienceworld,
        lambda args: [why for why in _unplayable(args) if why.startswith("scienceworld ")],
    ),
}


def add_arguments(parser: argparse.ArgumentParser, extra: Iterable[str] = ()) -> None:
    """Declare the arguments; ``extra`` names further parts."""
    names = ", ".join([*PARTS, *extra])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure: {names} (default: all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (default %(default)s)")
    counts = ",".join(map(str, COUNTS))
    parser.add_argument("--sessions", type=_numbers, default=counts, help="session counts (default %(default)s)")
    parser.add_argument("--idle", type=int, default=10_000, help="idle sessions for memory (default %(default)s)")
    parser.add_argument(
        "--products",
        type=_numbers,
        default=",".join(map(str, PRODUCTS)),
        help="sizes of WebShop's procedural shop (default %(default)s; 1000000 takes minutes and 2 GB of disk)",
    )
    parser.add_argument(
        "--openenv-python",
        default=".venv-openenv/bin/python",
        metavar="PYTHON",
        help="interpreter with openenv, for the stock server (`make conformance` sets it up; left out if missing)",
    )
    parser.add_argument(
        "--alfworld-python",
        default=".venv-alfworld/bin/python",
        metavar="PYTHON",
        help="interpreter with alfworld, for the stock engine (`make alfworld-test` sets it up; left out if missing)",
    )
    parser.add_argument("--out", metavar="FILE", help="write all numbers as JSON")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def run(args: argparse.Namespace, extra: Mapping[str, Part] | None = None) -> int:
    """Measure, and print every table as soon as it is there; ``extra`` are further parts by name."""
    known = {**PARTS, **(extra or {})}
    if unknown := set(args.parts) - set(known):
        print(f"turngym bench: no part {min(unknown)!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    pin(1)
    results: dict[str, Any] = {"machine": machine()}
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["machine"].items()))
    missing: dict[str, None] = {}
    for name, part in known.items():
        if args.parts and name not in args.parts:
            continue
        for table, rows in part.tables(args):
            results[table] = rows
            show(part.titles[table], rows, args.markdown)
            if args.out:
                Path(args.out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        missing |= dict.fromkeys(part.missing(args))
    for line in missing:
        print(f"\n{line}")
    return 0


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that matter."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "python": platform.python_version(),
        **{name: version(name) for name in ("uvicorn", "uvloop", "websockets", "gymnasium", "msgspec")},
    }


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return turngym's rate over each yardstick's, by session count and steps a message."""
    rates = {(row["server"], row["sessions"], row["per_message"]): row["steps_per_s"] for row in rows}
    table = []
    for (server, sessions, per_message), rate in rates.items():
        if server == "turngym":
            row: dict[str, Any] = {"sessions": sessions, "per_message": per_message}
            row["to_bare"] = rate / rates["bare echo", sessions, per_message]
            for name in ("stock OpenEnv", "stock OpenEnv, own client"):
                stock = rates.get((name, sessions, 1))
                row["to_" + name.replace(",", "").replace(" ", "_")] = stock and rate / stock
            table.append(row)
    return table


def show(title: str, rows: list[Row], markdown: bool) -> None:
    """Print a table; one without rows is left out."""
    if not rows:
        return
    columns = list(rows[0])
    names = [column.replace("_", " ") for column in columns]
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if markdown:
        print(f"\n### {title}\n\n| {' | '.join(names)} |")
        print("|" + "---|" * len(columns))
        print("\n".join(f"| {' | '.join(row)} |" for row in cells), flush=True)
        return
    table = Table(*names, title=title, title_justify="left", box=None)
    for row in cells:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print()


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
