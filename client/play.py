"""``turngym play``: play an environment in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import secrets

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ..errors import from_problem
from ..records import Episode
from .evaluation.command import pairs
from .policies.human import QUIT_TEXT, HumanPolicy, Lines
from .rollout import Job, play
from .sources import HubSource, LocalSource, Source, Wanted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("env", help="environment, for example sokoban (turngym envs lists them)")
    parser.add_argument("--split", default="train", metavar="NAME", help="split of tasks (default: %(default)s)")
    parser.add_argument("--task", type=int, metavar="N", help="number of the task (default: one drawn at random)")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the noise (default: one drawn at random)")
    parser.add_argument("--config", action="append", metavar="KEY=VALUE", help="a setting of the environment")
    parser.add_argument("--url", metavar="HUB", help="play on a hub (default: in this process)")


def run(args: argparse.Namespace) -> int:
    """Play one episode."""
    return asyncio.run(_run(args, Console(highlight=False)))


async def _run(args: argparse.Namespace, console: Console, lines: Lines | None = None) -> int:
    source: Source = HubSource(args.url) if args.url else LocalSource()
    try:
        wanted = Wanted(args.env, pairs("--config", args.config), "text")
        size = await source.size(wanted, args.split)
        task = f"{args.split}/{secrets.randbelow(size) if args.task is None else args.task}"
        seed = secrets.randbelow(2**32) if args.seed is None else args.seed
        console.print(Panel(Text(await source.instructions(wanted)), title=args.env, title_align="left"))
        console.print("Type an action or its number; q leaves.\n", style="dim")
        episode = await play(HumanPolicy(console=console, lines=lines), Job("play", wanted, task, seed), source)
    finally:
        await source.aclose()
    return _tell(episode, console, args)


def _tell(episode: Episode, console: Console, args: argparse.Namespace) -> int:
    if episode.error is not None:
        if episode.error.get("detail") != QUIT_TEXT:
            raise from_problem(episode.error)
        console.print("\nYou left.")
    else:
        words = "Solved!" if episode.won else "Out of moves." if episode.status == "truncated" else "Not solved."
        console.print(Panel(Text(episode.final_observation), title=words, title_align="left"))
        console.print(f"Turns: {len(episode.turns)}, reward: {episode.reward:g}")
    split, _, number = episode.task.rpartition("/")
    place = f" --url {args.url}" if args.url else ""
    settings = "".join(f" --config {word}" for word in args.config or [])
    console.print(
        f"Again: turngym play {args.env} --split {split} --task {number} --seed {episode.seed}{settings}{place}",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
    return 0
