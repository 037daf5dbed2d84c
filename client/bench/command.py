"""``turngym bench``: measure speed and memory on this machine, next to the limits."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ...envs.registry import specs, unmet
from . import clients, measure, scienceworld, worlds
from .servers import pin

PARTS = ("envs", "serving", "costs", "clients", "memory", "webshop", "alfworld", "scienceworld")
PRODUCTS = (1_000, 10_000, 100_000)
COUNTS = (1, 16, 64, 256, 1000)
TITLES = {
    "envs": "In this process, one core",
    "serving": "Over loopback, replies of 1 KB, server and load on a core each",
    "ratios": "Ratios of steps per second, same run",
    "costs": "The hub's processor time per step, 64 sessions over native WebSockets, in microseconds",
    "clients": "Our own client, 1 KB echo",
    "memory": "Idle sessions, reset, in one hub process",
    "webshop": "WebShop in process, in processor time; the start on the clock",
    "webshop_policies": "What simple policies reach in WebShop, test split",
    "alfworld": "ALFWorld in process, in processor time; the stock engine on games just played",
    "scienceworld": "ScienceWorld beside its stock package, the same actions; start: until the first observation",
    "scienceworld_sessions": "Java's memory per ScienceWorld session that has played",
}


class Extra(NamedTuple):
    """A part that is measured outside the client.

    Attributes:
        titles: over its tables, by name.
        tables: measures.
    """

    titles: Mapping[str, str]
    tables: Callable[[], Mapping[str, list[dict[str, Any]]]]


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


def run(args: argparse.Namespace, extra: Mapping[str, Extra] | None = None) -> int:
    """Measure and print; ``extra`` are further parts by name."""
    extra = extra or {}
    known = [*PARTS, *extra]
    unknown = set(args.parts) - set(known)
    if unknown:
        print(f"turngym bench: no part {min(unknown)!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    stock = args.openenv_python if Path(args.openenv_python).exists() else None
    stock_alfworld = args.alfworld_python if Path(args.alfworld_python).exists() else None
    parts = args.parts or known
    pin(1)
    results: dict[str, Any] = {"machine": machine()}
    if "envs" in parts:
        results["envs"] = measure.environments(args.seconds)
    if "serving" in parts:
        results["serving"] = measure.serving(args.sessions, args.seconds, stock)
        results["ratios"] = ratios(results["serving"])
    if "costs" in parts:
        results["costs"] = measure.step_costs(args.seconds)
    if "clients" in parts:
        results["clients"] = clients.clients(args.seconds)
    if "memory" in parts:
        results["memory"] = measure.memory(args.idle)
    if "webshop" in parts:
        results["webshop"] = worlds.webshop(args.products, args.seconds)
        results["webshop_policies"] = worlds.webshop_policies(args.products[:1])
    if "alfworld" in parts:
        results["alfworld"] = worlds.alfworld(args.seconds, stock_alfworld)
    without = unmet("scienceworld")
    if "scienceworld" in parts and without is None:
        results["scienceworld"] = scienceworld.steps()
        results["scienceworld_sessions"] = scienceworld.sessions()
    titles = dict(TITLES)
    for name, part in extra.items():
        titles |= part.titles
        if name in parts:
            results |= part.tables()
    show(results, args.markdown, titles)
    if "serving" in parts and stock is None:
        print(f"\nStock OpenEnv was left out: {args.openenv_python} is missing. `make conformance` sets it up.")
    if "alfworld" in parts and stock_alfworld is None:
        print(f"\nThe stock engine was left out: {args.alfworld_python} is missing. `make alfworld-test` sets it up.")
    if "scienceworld" in parts and without is not None:
        print(f"\nScienceWorld was left out: {without}")
    if {"envs", "costs", "memory"} & set(parts):
        for missing in (f"{env_id} was left out: {why}" for env_id in specs() if (why := unmet(env_id)) is not None):
            print(f"\n{missing}")
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
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


def show(results: dict[str, Any], markdown: bool, titles: Mapping[str, str]) -> None:
    """Print every table."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["machine"].items()))
    for part, title in titles.items():
        rows = results.get(part)
        if not rows:
            continue
        columns = list(rows[0])
        cells = [[_cell(row.get(column)) for column in columns] for row in rows]
        if markdown:
            print(f"\n### {title}\n\n| {' | '.join(c.replace('_', ' ') for c in columns)} |")
            print("|" + "---|" * len(columns))
            print("\n".join(f"| {' | '.join(row)} |" for row in cells))
            continue
        table = Table(*(c.replace("_", " ") for c in columns), title=title, title_justify="left", box=None)
        for row in cells:
            table.add_row(*row)
        console.print(table)
        console.print()


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
