"""``turngym envs``: list the registry, or describe one environment."""

from __future__ import annotations

import argparse
import inspect

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .presets import preset_names
from .registry import get_spec, make, parameters, specs, unmet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("env", nargs="?", help="describe this environment")
    parser.add_argument("--ids", action="store_true", help="print bare ids only")


def run(args: argparse.Namespace) -> int:
    """List or describe."""
    if args.ids:
        print("\n".join(specs()))
        return 0
    console = Console()
    if args.env:
        _describe(console, args.env)
        return 0
    table = Table("id", "gymnasium id", "what it is", box=None, header_style="bold")
    for spec in specs().values():
        table.add_row(spec.id, spec.gymnasium_id, spec.summary)
        missing = unmet(spec.id)
        if missing is not None:
            table.add_row("", "", Text(f"needs: {missing}", style="yellow"))
    console.print(table)
    console.print(f"\nPresets (configs/envs): {', '.join(preset_names())}", highlight=False)
    console.print("Describe one: turngym envs ID      Play one: turngym play ID", highlight=False)
    return 0


def _describe(console: Console, env_id: str) -> None:
    spec = get_spec(env_id)
    env = make(env_id)
    observation, info = env.reset(seed=0, options={"task": f"{next(iter(env.splits))}/0"})
    console.print(f"[bold]{spec.id}[/bold]  {spec.summary}\n")
    console.print(inspect.getdoc(type(env)) or "", highlight=False, markup=False)
    console.print("\n[bold]Rules[/bold]")
    console.print(env.instructions, highlight=False, markup=False)
    console.print("\n[bold]First observation[/bold]")
    console.print(observation, highlight=False, markup=False)
    console.print(f"\nActions: {', '.join(info['admissible'][:20])}", highlight=False, markup=False)
    console.print(f"Splits:  {', '.join(f'{name} ({size:,})' for name, size in env.splits.items())}", highlight=False)
    table = Table("setting", "default", box=None, header_style="bold")
    for name, parameter in parameters(type(env)).items():
        default = spec.kwargs.get(name, parameter.default)
        table.add_row(name, "required" if default is inspect.Parameter.empty else repr(default))
    console.print()
    console.print(table)
