"""``turngym demo``: start a hub, evaluate two policies on every environment over HTTP, write a report."""

from __future__ import annotations

import argparse
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ..errors import ServerUnavailable
from .evaluation.command import show_results
from .evaluation.folder import REPORT
from .evaluation.plan import ALL, EvalPlan
from .evaluation.progress import Shown
from .evaluation.runner import DEFAULT_ROOT, Limits, evaluate

START_S = 60.0
STEP_S = "300"  # ScienceWorld's expert plans a whole task before the first step; a busy machine needs minutes
STOP_S = 20.0
WIDTH = 140
AT_ONCE = 8  # episodes; a small machine that starts a Java meanwhile answers them all in time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--episodes", type=int, default=16, metavar="N", help="tasks per environment (%(default)s)")
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: a new one in runs/)")


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    out = Path(args.out or f"{DEFAULT_ROOT}/demo-{time.strftime('%Y%m%d-%H%M%S')}")
    plan = EvalPlan(
        envs=[ALL],
        policies=["expert", "random"],
        summary="Demo: expert and random play on every environment, through a hub",
        episodes=args.episodes,
    )
    with hub(out) as url:
        console.print(f"A hub is running on {url}. Expert and random play through it, {args.episodes} tasks each:")
        results = evaluate(plan, out, url=url, limits=Limits(concurrency=AT_ONCE), progress=Shown(console))
    show_results(results, console)
    beside = Path(sys.executable).with_name("turngym")
    program = str(beside) if shutil.which("turngym") is None and beside.exists() else "turngym"
    console.print("\nOpen the report in a browser:")
    console.print(f"  {(out / REPORT).resolve().as_uri()}", markup=False, soft_wrap=True)
    console.print("\nWhat to try next:")
    console.print(f"  {program} play sokoban                 # play one yourself")
    console.print(f"  {program} serve                        # a hub with a console for the browser")
    console.print(
        f"  {program} eval --env sokoban --model NAME --base-url http://127.0.0.1:8001/v1   # your own model",
        soft_wrap=True,
    )
    return 1 if results.missing else 0


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Start a hub as a process of its own on a free port of this machine; yield its URL, stop it at the end.

    Args:
        folder: where its log goes.

    Raises:
        ServerUnavailable: it did not start; the log says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "hub.log"
    package = __package__.partition(".")[0]
    words = ["--host", "127.0.0.1", "--port", "0", "--step-timeout", STEP_S]
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", f"{package}.cli", "serve", *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield _url(process, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the address that the hub prints once it listens."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline().decode("utf-8", "replace") if ready else ""
    found = re.search(r"http://\S+", line)
    if found is None:
        raise ServerUnavailable(f"The hub did not start within {START_S:g} s.", hint=f"Read {log}.")
    return found[0]
