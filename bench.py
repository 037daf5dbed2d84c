"""``turngym bench``: the parts that the client measures, and the algorithms of training."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any

from .client.bench import command
from .errors import MissingExtra

TITLE = "Algorithms on one thread, in processor time; the loop is the plain form of the released trainers"
INSTALL = 'pip install "turngym[torch]"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_arguments(parser, ["algorithms"])


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        MissingExtra: the algorithms are asked for by name, and torch is not installed.
    """
    if importlib.util.find_spec("torch") is not None:
        return command.run(args, {"algorithms": command.Extra(TITLE, _algorithms)})
    if "algorithms" in args.parts:
        raise MissingExtra("The algorithms need torch.", hint=f"Run: {INSTALL}")
    if not args.parts:
        print(f"The algorithms are left out: they need torch ({INSTALL}).", file=sys.stderr)
    return command.run(args)


def _algorithms() -> list[dict[str, Any]]:
    from .trainer_backends import bench

    return bench.algorithms()
