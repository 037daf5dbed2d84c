"""``turngym study``: train several methods with several seeds from the same starts, and compare them.

A study is a TOML file in ``configs/studies/`` (or any path): a base recipe, seeds, and methods, each the tables of a
recipe in which it differs from the base. Methods whose environment, policy and supervised start agree go on from one
start for each seed; starts lie beside the studies' folders and serve all of them. A finished run is not made again, and
one that was cut off is continued.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import msgspec

from ..envs.core import SEED_LIMIT
from ..envs.presets import config_names, read_config
from ..errors import InvalidRequest, TurngymError, nearest
from .algorithms.parts import require
from .recipes import Recipe, RunTable, SamplingTable, UpdateTable, load_recipe, recipe_of

Table = dict[str, Any]
DEFAULT_ROOT = "runs"
STARTS = "starts"
COMPARED = "compared.html"


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Methods to compare.

    Attributes:
        base: name or path of the recipe that they share.
        methods: name -> tables that differ. A table with an id takes the place of the base's, the keys of any other
            are added to it; "none" removes a table.
        common: tables in which all methods differ from the base, merged before their own.
        summary: one line.
        seeds: every method is trained with each.
    """

    base: str
    methods: dict[str, Table]
    common: Table = {}
    summary: str = ""
    seeds: list[int] = msgspec.field(default_factory=lambda: [0, 1, 2])

    def __post_init__(self) -> None:
        require(bool(self.methods), "methods must name at least one")
        require(bool(self.seeds), "seeds must name at least one")
        require(len(set(self.seeds)) == len(self.seeds), "seeds must differ")
        require(all(0 <= seed < SEED_LIMIT for seed in self.seeds), "seeds must lie in [0, 2**53)")

    def recipe(self, method: str) -> Recipe:
        """Return a method's recipe.

        Raises:
            InvalidRequest: no such method, or its tables do not fit.
        """
        if method not in self.methods:
            raise InvalidRequest(f"No method {method!r:.60}.", hint=nearest(method, self.methods))
        data = _merged(msgspec.to_builtins(load_recipe(self.base)), self.common)
        data = _merged(data, self.methods[method])
        return recipe_of(data, f"Method {method}", "Correct the study.")


def _merged(base: Table, changes: Mapping[str, Any]) -> Table:
    data = dict(base)
    for key, value in changes.items():
        if value == "none":
            data.pop(key, None)
        elif isinstance(value, dict) and "id" not in value:
            data[key] = {**(data.get(key) or {}), **value}
        else:
            data[key] = value
    return data


def load_study(name: str) -> Study:
    """Return the study of that name or path, every recipe checked.

    Raises:
        InvalidRequest: no such study, or something in it is wrong; the message names it.
    """
    study = read_config("studies", name, Study)
    for method in study.methods:
        study.recipe(method)
    return study


class Run(msgspec.Struct, frozen=True):
    """One training run of a study.

    Attributes:
        label: method.
        recipe: what is trained.
        out: its folder.
        start: the run from whose end it goes on; None makes a new policy.
    """

    label: str
    recipe: Recipe
    out: Path
    start: Run | None = None

    @property
    def policy(self) -> Path:
        """The policy that a start makes."""
        return self.out / "checkpoints" / "step-000000"


def runs(study: Study, out: Path, methods: Sequence[str] = ()) -> Iterator[Run]:
    """Yield the methods' runs, all methods of one seed before the next seed; starts lie beside ``out``."""
    for seed in study.seeds:
        for method in methods or study.methods:
            recipe = study.recipe(method)
            recipe = msgspec.structs.replace(recipe, run=msgspec.structs.replace(recipe.run, seed=seed))
            start = None if recipe.start is None else _start(recipe, out.parent)
            yield Run(method, msgspec.structs.replace(recipe, start=None), out / f"{method}-seed{seed}", start)


def _start(recipe: Recipe, root: Path) -> Run:
    """Return the run that makes a recipe's start; its folder's name stands for all that the start depends on."""
    run = recipe.run
    alone = Recipe(
        env=recipe.env,
        model=recipe.model,
        start=recipe.start,
        sampling=msgspec.structs.replace(recipe.sampling, tasks=SamplingTable().tasks),  # it has no part in a start
        credit={"id": "grpo"},
        update=UpdateTable(micro_tokens=recipe.update.micro_tokens),
        run=RunTable(seed=run.seed, steps=0, eval_tasks=run.eval_tasks, eval_temperature=run.eval_temperature),
    )
    digest = hashlib.sha256(msgspec.json.encode(alone)).hexdigest()[:8]
    return Run("start", alone, root / STARTS / f"{digest}-seed{run.seed}")


def _finished(run: Run) -> bool:
    from .watching.folder import read_run

    return (run.out / "recipe.json").is_file() and read_run(run.out).finished


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("study", nargs="?", help="name of a packaged study, or the path of a TOML file; left out: list")
    parser.add_argument("--out", metavar="DIR", help="folder of the runs; what is there is continued")
    parser.add_argument("--method", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="runs at a time (default: one a core)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Train what is missing, then compare."""
    if args.study is None:
        for name in config_names("studies"):
            print(f"{name:<24} {load_study(name).summary}")
        return 0
    if args.jobs < 0:
        raise InvalidRequest(f"--jobs is {args.jobs}.", hint="Give a number of runs, or 0 for one a core.")
    from .torch_backend.loading import device_of

    device = device_of(args.device)
    study = load_study(args.study)
    for method in args.method:
        study.recipe(method)
    out = Path(args.out or f"{DEFAULT_ROOT}/study-{Path(args.study).stem}")
    jobs = args.jobs or multiprocessing.cpu_count()
    wanted = list(runs(study, out, args.method))
    signal.signal(signal.SIGTERM, _interrupted)
    starts = {each.start.out: each.start for each in wanted if each.start is not None and not _finished(each)}
    failed = _train(list(starts.values()), jobs, device)
    failed |= {} if failed else _train(wanted, jobs, device)
    _compare([each for each in wanted if (each.out / "metrics.jsonl").is_file()], out)
    for name, error in failed.items():
        print(f"{name}: {error}", file=sys.stderr)
    return 1 if failed else 0


def _interrupted(*_: Any) -> None:
    """End the runs too when the study is told to end."""
    for child in multiprocessing.active_children():
        child.terminate()
    sys.exit(128 + signal.SIGTERM)


def _train(wanted: Sequence[Run], jobs: int, device: str) -> dict[str, str]:
    """Train runs in processes of their own; return what failed and why."""
    missing = [each for each in wanted if not _finished(each)]
    failed, done, began = {}, len(wanted) - len(missing), time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, multiprocessing.cpu_count() // jobs)))  # for the runs' updates
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        futures = {pool.submit(_one, each, device): each for each in missing}
        for future in as_completed(futures):
            name, done = futures[future].out.name, done + 1
            try:
                told = f"{100 * future.result():.1f} % held-out success"
            except Exception as error:  # one run's failure does not end the others
                hint = getattr(error, "hint", "")
                failed[name] = told = f"{type(error).__name__}: {error} {hint}".strip()
            print(f"{done}/{len(wanted)} {name}: {told}, after {(time.monotonic() - began) / 60:.1f} min", flush=True)
    return failed


def _one(each: Run, device: str) -> float:
    """Train one run; what it shows goes to a file in its folder."""
    from contextlib import redirect_stdout

    from .torch_backend.command import train

    each.out.mkdir(parents=True, exist_ok=True)
    model = None if each.start is None else str(each.start.policy)
    with open(each.out / "progress.txt", "a", encoding="utf-8") as shown, redirect_stdout(shown):
        try:
            return float(train(each.recipe, each.out, model=model, device=device, label=each.label)["eval_success"])
        except TurngymError as error:
            raise RuntimeError(f"{error.detail} {error.hint}") from None  # a plain error travels between processes


def _compare(made: Sequence[Run], out: Path) -> None:
    from .watching.compare import compare

    if made:
        compare([each.out for each in made], out / COMPARED, over="tokens")
