"""``turngym bench``: the parts that the client measures, the algorithms of training, and training itself."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from .client.bench import command
from .errors import MissingExtra

TITLE = "Algorithms on one thread, in processor time; the loop is the plain form of the released trainers"
NAMES = ("algorithms", "train")
INSTALL = 'pip install "turngym[torch]"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_arguments(parser, NAMES)


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        MissingExtra: a part that needs torch is asked for by name, and torch is not installed.
    """
    if importlib.util.find_spec("torch") is not None:
        return command.run(args, _parts())
    wanted = [name for name in NAMES if name in args.parts]
    if wanted:
        raise MissingExtra(f"Part {wanted[0]!r} needs torch.", hint=f"Run: {INSTALL}")
    if not args.parts:
        print(f"{' and '.join(NAMES)} are left out: they need torch ({INSTALL}).", file=sys.stderr)
    return command.run(args)


def _parts() -> dict[str, command.Part]:
    from .trainer_backends import bench as algorithms
    from .trainer_backends.torch_backend import bench as train

    return {
        "algorithms": command.Part({"algorithms": TITLE}, lambda args: iter([("algorithms", algorithms.algorithms())])),
        "train": command.Part(train.TITLES, lambda args: train.tables()),
    }
