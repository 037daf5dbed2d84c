"""``turngym train``: train a policy by a recipe, or go on with a run."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from ...client.demo import hub
from ...errors import InvalidRequest
from ..recipes import Recipe, load_recipe, recipe_names, recipe_of
from ..watching.folder import read_run
from ..watching.progress import held_out, watch
from ..watching.report import write_report
from . import check_packages

DEFAULT_ROOT = "runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "recipe", nargs="?", help="name of a packaged recipe, or the path of a TOML file; left out: list"
    )
    parser.add_argument("--model", metavar="DIR", help="Hugging Face folder or hub name (default: the recipe's)")
    parser.add_argument("--url", metavar="URL", help="play on this hub; default: environments in this process")
    parser.add_argument("--hub", action="store_true", help="start a hub in a process of its own, and play on it")
    parser.add_argument("--out", metavar="DIR", help="folder of the run; an existing run is continued")
    parser.add_argument("--device", default="", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    parser.add_argument("--minutes", type=float, help="end after so much training time (default: the recipe's)")
    parser.add_argument("--seed", type=int, help="seed of the run (default: the recipe's)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="change one setting; VALUE in JSON, inf, or a word",
    )


def run(args: argparse.Namespace) -> int:
    """Train."""
    if args.recipe is None:
        for name in recipe_names():
            print(f"{name:<24} {load_recipe(name).summary}")
        return 0
    recipe = changed(load_recipe(args.recipe), settings(args))
    label = Path(args.recipe).stem
    out = Path(args.out or f"{DEFAULT_ROOT}/train-{label}-{time.strftime('%Y%m%d-%H%M%S')}")
    if args.hub and args.url:
        raise InvalidRequest("--hub starts a hub, and --url names one.", hint="Leave one of them out.")
    with hub(out) if args.hub else nullcontext(args.url) as url:
        final = train(recipe, out, model=args.model, url=url, device=args.device, label=label)
    print(f"Report: {(out / 'report.html').resolve().as_uri()}")
    first = read_run(out).evals[0]
    for each in [first, final] if first["step"] < final["step"] else [final]:
        print(f"Held-out success at step {each['step']:.0f}: {held_out(each)}, {each['eval_episodes']:.0f} tasks")
    return 0


def train(
    recipe: Recipe, out: Path, *, model: str | None = None, url: str | None = None, device: str = "", label: str = ""
) -> Mapping[str, Any]:
    """Train and write the report; return the last evaluation.

    Raises:
        MissingExtra: a package that the recipe needs is not installed.
        InvalidRequest: torch sees no such device; errors as for :class:`~.trainer.Trainer`.
    """
    check_packages("transformers", *(["peft"] if recipe.model.lora is not None else []))
    from .assembly import alone
    from .loading import device_of
    from .trainer import Trainer

    chosen = device_of(device)
    with alone(out), watch(recipe, out, label, device=chosen) as report:
        trainer = Trainer(recipe, out, model=model, url=url, device=chosen, report=report)
        try:
            final = asyncio.run(trainer.train())
        except BaseException:
            with suppress(Exception):  # what ended the run is what has to be said
                write_report([out])
            raise
        write_report([out])
        return final


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the changes that the command line asks for, by "table.key".

    Raises:
        InvalidRequest: a change is not of the form TABLE.KEY=VALUE.
    """
    found: dict[str, Any] = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or not all(name.split(".")):
            raise InvalidRequest(
                f"--set {text!r:.60} is no change.", hint="Write TABLE.KEY=VALUE, for example update.epochs=2."
            )
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = inf if value == "inf" else value  # JSON has no infinity
    for name in ("steps", "minutes", "seed"):
        if getattr(args, name) is not None:
            found[f"run.{name}"] = getattr(args, name)
    return found


def changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Return a recipe with some settings changed, checked again.

    Raises:
        InvalidRequest: there is no such setting, or its value does not fit.
    """
    data = msgspec.to_builtins(recipe)
    for name, value in changes.items():
        table, (*inner, key) = data, name.split(".")
        for each in inner:
            if not isinstance(table.get(each), dict):
                table[each] = {}
            table = table[each]
        table[key] = value
    return recipe_of(data, ", ".join(changes), "Correct the --set.")
