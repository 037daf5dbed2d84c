"""The command line: ``turngym COMMAND``, one row of ``COMMANDS`` for each."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from . import __version__
from .errors import TurngymError, nearest


class Command(NamedTuple):
    """One sub-command; its module is imported only when it is called.

    Attributes:
        module: module relative to the package, with ``add_arguments(parser)`` and ``run(args) -> int``.
        summary: one line for the help.
        also: a module that is imported with it, for what it registers.
    """

    module: str
    summary: str
    also: str = ""


COMMANDS = {
    "envs": Command(".envs.command", "list the environments, or describe one"),
    "serve": Command(".server.command", "start the hub"),
    "play": Command(".client.play", "play an environment in the terminal"),
    "eval": Command(
        ".client.evaluation.command",
        "evaluate policies, trained ones too, and hosted models",
        also=".trainer_backends.torch_backend.folder_policy",
    ),
    "demo": Command(".client.demo", "start a hub, evaluate on it, and write a report"),
    "train": Command(".trainer_backends.torch_backend.command", "train a policy by a recipe"),
    "study": Command(".trainer_backends.study", "train several methods with several seeds, and compare them"),
    "policy": Command(".trainer_backends.torch_backend.policy_command", "make a small policy, or export a trained one"),
    "report": Command(".trainer_backends.watching.report", "write the report of a training run, also while it goes on"),
    "compare": Command(".trainer_backends.watching.compare", "compare training runs: a table, and figures"),
    "data": Command(".envs.datasets.command", "list, add, fetch or remove the worlds' data sets"),
    "bench": Command(".bench", "measure speed and memory on this machine"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0, 1 for an error that says what to do next, 2 for wrong usage, 130 when interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="turngym", description="Multi-turn text environments: serve, play, evaluate.")
    parser.add_argument("--version", action="version", version=f"turngym {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    name = next((word for word in words if not word.startswith("-")), "")
    if name and name not in COMMANDS:
        parser.error(f"no command {name!r}. {nearest(name, COMMANDS)}")
    try:
        for key, command in COMMANDS.items():
            sub = commands.add_parser(key, help=command.summary, description=command.summary)
            if key == name:
                # A command whose packages are missing says so when it is imported.
                if command.also:
                    importlib.import_module(command.also, __package__)
                module = importlib.import_module(command.module, __package__)
                module.add_arguments(sub)
                sub.set_defaults(run=module.run)
        args = parser.parse_args(words)
        return int(args.run(args))
    except TurngymError as error:
        print(f"turngym: {error.detail}", file=sys.stderr)
        if error.hint:
            print(f"         {error.hint}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"turngym: {error.strerror}: {error.filename or 'a file'} could not be written.", file=sys.stderr)
        print("         Free disk space, then run the command again.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("turngym: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
