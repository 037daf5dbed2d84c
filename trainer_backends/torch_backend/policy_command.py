"""``turngym policy``: make a policy small enough to train on a CPU, or a plain folder of a trained one."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...envs.presets import load_preset, preset_names
from . import check_packages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from .new_policy import SIZES

    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a Hugging Face folder with random weights and an environment's words")
    new.add_argument("--env", required=True, metavar="PRESET", help=f"environment preset: {', '.join(preset_names())}")
    new.add_argument("--out", required=True, metavar="DIR", help="the folder to make")
    new.add_argument("--size", default="small", choices=sorted(SIZES), help="shape of the model (%(default)s)")
    new.add_argument("--vocabulary", type=int, default=1024, metavar="N", help="tokens at most (%(default)s)")
    new.add_argument("--length", type=int, default=2048, metavar="N", help="positions of the model (%(default)s)")
    new.add_argument(
        "--episodes", type=int, default=200, metavar="N", help="episodes the words come from (%(default)s)"
    )
    new.add_argument("--seed", type=int, default=0, help="seed of the weights (%(default)s)")
    out = actions.add_parser("export", help="write a trained policy as a plain Hugging Face folder, LoRA merged")
    out.add_argument("policy", metavar="DIR", help="folder of a run, of one of its checkpoints, or of any policy")
    out.add_argument("--out", required=True, metavar="DIR", help="the folder to make")


def run(args: argparse.Namespace) -> int:
    """Make the folder.

    Raises:
        MissingExtra: torch or transformers is not installed.
    """
    check_packages("torch", "transformers")
    if args.action == "export":
        from .loading import export

        export(args.policy, Path(args.out))
        print(f"{args.out}: {args.policy} as a plain Hugging Face folder.")
        return 0
    return _new(args)


def _new(args: argparse.Namespace) -> int:
    from .new_policy import new_policy

    made = new_policy(
        load_preset(args.env),
        Path(args.out),
        size=args.size,
        vocabulary=args.vocabulary,
        length=args.length,
        episodes=args.episodes,
        seed=args.seed,
    )
    print(f"{args.out}: {made['parameters']:,} parameters, {made['vocabulary']} tokens.")
    print(f"A text of {args.env} has {made['text_tokens']} tokens on average.")
    return 0
