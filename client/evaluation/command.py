"""``turngym eval``: evaluate policies and hosted models."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
from rich.console import Console

from ...errors import InvalidRequest
from ...protocol import Level
from ..policies.hosted import DEFAULT_KEY
from .folder import METRICS, REPORT, RunFolder
from .layouts import check_layouts
from .plan import KINDS, EvalEnv, EvalPlan
from .presets import eval_preset_names, load_eval_preset
from .progress import Progress, Quiet, Shown
from .runner import Limits, Results, evaluate, write_results
from .table import print_crosstab, print_table

WIDTH_OF_FILES = 200  # columns where the output is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    what = parser.add_argument_group("what is evaluated")
    what.add_argument("--preset", metavar="NAME", help=f"start from a preset or a TOML file ({_names()})")
    what.add_argument("--env", action="append", metavar="A,B", help='environments or environment presets, or "all"')
    what.add_argument("--split", action="append", metavar="A,B", help="splits of tasks (default: test)")
    what.add_argument("--episodes", type=int, metavar="N", help="tasks per environment and split (default: 256)")
    what.add_argument("--pass-k", type=int, metavar="K", help="attempts at each task (default: 1)")
    what.add_argument("--first", action="store_true", help="the first tasks, instead of tasks spread over the split")
    what.add_argument("--drawn", action="store_true", help="tasks drawn by the seed, instead")
    what.add_argument("--seed", type=int, metavar="S", help="seed of tasks' noise and scripted policies (default: 0)")
    what.add_argument("--seeds", type=int, metavar="N", help="play it all with N seeds from --seed on (default: 1)")
    what.add_argument("--level", choices=get_args(Level), help="prompts and replies, or bare actions (default: turn)")
    what.add_argument("--style", metavar="NAME", help="prompt style (default: the environment's own)")
    what.add_argument("--max-turns", type=int, metavar="N", help="turns after which an episode is cut off")
    what.add_argument("--memory", type=int, metavar="N", help="past turns in the prompt, -1 for all")
    what.add_argument("--turn", action="append", metavar="KEY=VALUE", help="a setting of the turn level")
    what.add_argument("--config", action="append", metavar="KEY=VALUE", help="a setting of every environment")
    who = parser.add_argument_group("who plays")
    who.add_argument("--policy", action="append", metavar="A,B", help=f"{', '.join(KINDS[:3])}, DIR, or module:Class")
    who.add_argument("--replay", action="append", metavar="FILE", help="play the episodes of a records file again")
    who.add_argument("--model", action="append", metavar="NAME", help="a hosted model; may be repeated")
    who.add_argument("--base-url", action="append", metavar="URL", help="its server: one for all, or one per --model")
    who.add_argument(
        "--device", metavar="NAME", help="where a DIR's policy runs: cpu or cuda (default: where there is)"
    )
    who.add_argument("--api-key-env", metavar="NAME", help=f"environment variable of the API key ({DEFAULT_KEY})")
    who.add_argument(
        "--temperature", type=float, metavar="T", help="0 is greedy (default: the server's, or a DIR's own)"
    )
    who.add_argument("--top-p", type=float, metavar="P", help="nucleus (default: the server's)")
    who.add_argument("--top-k", type=int, metavar="K", help="most likely tokens (default: the server's)")
    who.add_argument("--max-tokens", type=int, metavar="N", help="longest reply, 0 for no limit (default: 1024)")
    who.add_argument("--sampling-seed", type=int, metavar="S", help="send seeds derived from this one (default: none)")
    who.add_argument("--logprobs", action="store_true", help="record the log-probability of each token")
    who.add_argument("--body", action="append", metavar="KEY=VALUE", help="a further field of every request")
    who.add_argument("--prefix", metavar="TEXT", help='what the chat template writes before a reply, e.g. "<think>"')
    who.add_argument("--price-input", type=float, metavar="X", help="price of 1M prompt tokens")
    who.add_argument("--price-output", type=float, metavar="X", help="price of 1M reply tokens")
    how = parser.add_argument_group("how it runs")
    default = Limits()
    how.add_argument("--url", metavar="HUB", help="evaluate through a hub (default: in this process)")
    how.add_argument("--out", metavar="DIR", help="folder of the run (default: runs/NAME, the same for the same plan)")
    how.add_argument("--concurrency", type=int, default=default.concurrency, help="episodes at once (%(default)s)")
    how.add_argument("--retries", type=int, default=default.retries, help="of a failed call to a model (%(default)s)")
    how.add_argument("--timeout", type=float, default=default.timeout, metavar="S", help="of such a call (%(default)s)")
    how.add_argument(
        "--give-up-after", type=int, default=default.give_up_after, metavar="N",
        help="leave a policy after N failures in a row, 0 for never (%(default)s)",
    )  # fmt: skip
    how.add_argument("--keep-prompts", action="store_true", help="record the prompt of every turn")
    how.add_argument(
        "--report-only",
        action="store_true",
        help="write metrics and report of --out anew, with the tables of --preset if it is given; play nothing",
    )
    how.add_argument("--quiet", action="store_true", help="print the table only")


_EPILOG = """\
examples:
  turngym eval --env sokoban --policy expert --episodes 256
  turngym eval --env sokoban,frozen-lake --model NAME --base-url http://127.0.0.1:8000/v1 --concurrency 32 --pass-k 5
  turngym eval --env compact-sokoban --policy runs/mine,expert --temperature 0.4 --max-tokens 48
  turngym eval --preset ragen --model NAME --base-url http://127.0.0.1:8000/v1

The same command resumes an interrupted run: finished episodes are kept, failed ones are played again.
The exit status is 1 if episodes are missing at the end."""


def _names() -> str:
    return ", ".join(eval_preset_names()) or "none"


def run(args: argparse.Namespace) -> int:
    """Evaluate, or write the report of a run anew."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    if args.report_only:
        results = _report_only(args.out, args.preset)
    else:
        plan = plan_of(args)
        human = any("human" in (policy, getattr(policy, "kind", "")) for policy in plan.policies)
        progress: Progress = Quiet() if args.quiet or human else Shown(console)
        limits = Limits(
            concurrency=1 if human else _positive("--concurrency", args.concurrency),
            retries=args.retries,
            timeout=args.timeout,
            give_up_after=args.give_up_after,
        )
        results = evaluate(plan, args.out, url=args.url, limits=limits, progress=progress)
    show_results(results, console)
    return 1 if results.missing else 0


def show_results(results: Results, console: Console) -> None:
    """Print the table, the notes and where the files lie."""
    console.print()
    print_table(results.rows, console)
    console.print()
    for table in results.tables:
        print_crosstab(table, console)
        console.print()
    for note in results.notes:
        console.print(f"Note: {note}.", markup=False)
    if results.problem is not None:
        console.print(f"Last failure: {results.problem.detail}", markup=False, style="red")
        if results.problem.hint:
            console.print(f"              {results.problem.hint}", markup=False)
    if results.missing:
        console.print("Run the same command again to play what is missing.")
    console.print(f"Report:  {results.folder / REPORT}", markup=False, soft_wrap=True)
    console.print(f"Numbers: {results.folder / METRICS}", markup=False, soft_wrap=True)


def _report_only(out: str | None, preset: str | None) -> Results:
    if out is None:
        raise InvalidRequest("--report-only needs the folder of a run.", hint="Name it with --out.")
    folder = RunFolder(Path(out))
    plan = folder.plan()
    if plan is None:
        raise InvalidRequest(f"{out} holds no run.", hint="Name a folder that turngym eval has written.")
    if preset is not None:
        plan.tables = load_eval_preset(preset).tables
        check_layouts(plan.tables)
    return write_results(folder, plan, [])


def plan_of(args: argparse.Namespace) -> EvalPlan:
    """Return the plan that the arguments describe: the preset's, with what the arguments say put over it.

    Raises:
        InvalidRequest: the arguments do not fit together.
    """
    plan = load_eval_preset(args.preset) if args.preset else EvalPlan(envs=[])
    changes: dict[str, Any] = {}
    if envs := _listed(args.env):
        changes["envs"] = envs
    if splits := _listed(args.split):
        changes["splits"] = splits
    for name in ("episodes", "pass_k", "seed", "seeds", "level"):
        if getattr(args, name) is not None:
            changes[name] = getattr(args, name)
    if args.first and args.drawn:
        raise InvalidRequest("--first and --drawn are both given.", hint="Give one of them.")
    if args.first or args.drawn:
        changes["spread"] = "first" if args.first else "random"
    if args.keep_prompts:
        changes["keep_prompts"] = True
    turn = {name: getattr(args, name) for name in ("style", "max_turns", "memory") if getattr(args, name) is not None}
    changes["turn"] = {**plan.turn, **pairs("--turn", args.turn), **turn}
    changes["config"] = {**plan.config, **pairs("--config", args.config)}
    changes["sampling"] = {**msgspec.to_builtins(plan.sampling), **_sampling(args)}
    if policies := _policies(args):
        changes["policies"] = policies
    if not changes.get("envs", plan.envs):
        raise InvalidRequest("No environment is named.", hint="Give --env sokoban, or --preset quick.")
    return _checked(plan, changes)


def _checked(plan: EvalPlan, changes: dict[str, Any]) -> EvalPlan:
    data = {**msgspec.to_builtins(plan), **changes}
    # Structs of the preset stay as they are; numbers from the command line are checked like those of a file.
    data["envs"] = [msgspec.to_builtins(env) if isinstance(env, EvalEnv) else env for env in data["envs"]]
    try:
        return msgspec.convert(data, EvalPlan)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The arguments do not fit: {error}.", hint="Correct the value.") from error


def _sampling(args: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("temperature", "top_p", "top_k", "max_tokens")
        if getattr(args, name) is not None
    }
    if args.sampling_seed is not None:
        values["seed"] = args.sampling_seed
    if args.logprobs:
        values["logprobs"] = True
    if args.body:
        values["extra"] = pairs("--body", args.body)
    return values


def _policies(args: argparse.Namespace) -> list[Any]:
    names = _listed(args.policy)
    policies: list[Any] = [{"kind": name, "device": args.device} for name in names] if args.device else [*names]
    for number, file in enumerate(args.replay or []):
        policies.append({"kind": "replay", "file": file, "name": "replay" if number == 0 else f"replay-{number + 1}"})
    models, urls = args.model or [], args.base_url or []
    if urls and len(urls) not in (1, len(models)):
        raise InvalidRequest(
            f"{len(urls)} --base-url for {len(models)} --model.", hint="Give one for all, or one for each."
        )
    shared = {
        name: getattr(args, name)
        for name in ("api_key_env", "prefix", "price_input", "price_output")
        if getattr(args, name) is not None
    }
    for number, model in enumerate(models):
        url = {"base_url": urls[number] if len(urls) > 1 else urls[0]} if urls else {}
        policies.append({"kind": "model", "model": model, **url, **shared})
    return policies


def _listed(values: Sequence[str] | None) -> list[str]:
    return [name.strip() for value in values or [] for name in value.split(",") if name.strip()]


def pairs(option: str, values: Sequence[str] | None) -> dict[str, Any]:
    """Return ``key=value`` words as a dictionary; a value is JSON where it reads as JSON, else text.

    Raises:
        InvalidRequest: a word has another form; ``option`` names where it stood.
    """
    pairs: dict[str, Any] = {}
    for word in values or []:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise InvalidRequest(f"{option} {word!r:.60} is no KEY=VALUE.", hint=f"Write for example {option} size=6.")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        pairs[key.replace("-", "_")] = value
    return pairs


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise InvalidRequest(f"{name} is {value}.", hint="Give a positive number.")
    return value
