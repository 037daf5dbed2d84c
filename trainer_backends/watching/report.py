"""``turngym report``: one HTML file with a run's figures, verdict and episodes, which needs nothing else."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__
from ...client.evaluation import charts
from ...client.evaluation.metrics import Estimate
from ...client.evaluation.page import build_page
from ...errors import MissingExtra, RecordError
from .alarms import SERIES, judge, onsets
from .figures import INTERVALS, UNITS, Figure, draw, figures_of, says
from .folder import REPORT, SECONDS, Run, number_of, read_run
from .groups import Axis, Group, apart, differences
from .outcome import COLUMNS, Column, best_of, level_of, mean_of, steps_of
from .samples import samples
from .units import Unit, text_of

LEVELS = {"collapse": "bad", "warning": "cut", "fine": "won", "unknown": "lost"}
"""What the verdict says -> colour class."""
_SPREADS = {"min-max": "least and greatest", "95": "95 % interval of the mean (Student's t)"}
_AXES = {"step": "step", "tokens": "sampled tokens", "seconds": "seconds of training"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a training run; several get one line each")
    parser.add_argument("--out", metavar="FILE", help=f"HTML file to write (default: {REPORT} in the first folder)")


def run(args: argparse.Namespace) -> int:
    """Write the report."""
    print(f"Report: {write_report(args.runs, args.out).resolve().as_uri()}")
    return 0


def write_report(folders: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a run, or of several with one line each, and return its path.

    Args:
        folders: of the runs; they may still be going on.
        out: file to write; by default ``report.html`` in the first run's folder.

    Raises:
        InvalidRequest: a folder holds no training run.
        RecordError: a file cannot be read, or the report not written.
    """
    runs = [read_run(folder) for folder in folders]
    path = Path(out) if out is not None else runs[0].path / REPORT
    return save(build_report(apart(runs)), path)


def save(page: bytes, path: Path) -> Path:
    """Write a whole file at once.

    Raises:
        RecordError: the disk refused.
    """
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(page)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RecordError(f"Cannot write {path}: {error.strerror}.", hint="Name another file with --out.") from error
    return path


def build_report(groups: Sequence[Group], axis: Axis = "step", metrics: Sequence[str] = ()) -> bytes:
    """Return the report as UTF-8 HTML.

    Args:
        groups: what is drawn as one line each; a single run is drawn in more detail.
        axis: what figures lie over.
        metrics: draw these numbers alone; all by default.
    """
    runs = [run for group in groups for run in group.runs]
    single = runs[0] if len(runs) == 1 else None
    browsed, said = samples(runs)
    since = [_first_seen(run) for run in runs]
    parts = {
        "title": escape(f"turngym: {', '.join(group.name for group in groups)}"),
        "heading": escape(_heading(groups)),
        "facts": _facts(runs),
        "notes": "".join(f"<li>{escape(note)}</li>" for note in notes_of(runs)),
        "outcome_text": escape(_outcome_text(groups)),
        "outcome": _outcome(groups),
        "differences": _differences(groups),
        "verdicts": "".join(_verdict(run, own, single is None) for run, own in zip(runs, since, strict=True)),
        "legend": "" if len(groups) == 1 else _keys([group.said for group in groups]),
        "figures_text": escape(_figures_text(groups, axis)),
        "figures": "".join(_panels(groups, axis, metrics, since[0])),
        "evaluations": "" if single is None else _evaluations(single),
        "shown": escape(said),
        "settings": "".join(_settings(run) for run in runs),
    }
    body = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return build_page(body, parts, browsed)


def notes_of(runs: Sequence[Run]) -> list[str]:
    """Return what a reader should know before the numbers: runs that are not over, files that are damaged."""
    notes = []
    for run in runs:
        of = f" of {run.steps}" if run.steps else ""
        if not run.train:
            notes.append(f"{run.name}: no training step was noted yet.")
        elif not run.finished:
            notes.append(f"{run.name} is not over: {run.step}{of} steps were noted.")
        notes += [f"{run.name}, {note}" for note in run.notes]
    return notes


def method_of(recipe: Mapping[str, Any]) -> str:
    """Return the parts of a recipe in a few words: what controls sampling, who gets credit, what is minimised."""
    tables = [
        recipe.get("rollout"),
        recipe.get("token_control"),
        recipe.get("turn_control"),
        *recipe.get("filters", []),
    ]
    tables += [recipe.get("credit"), *recipe.get("shaping", []), recipe.get("loss")]
    ids = [table["id"] for table in tables if table and "id" in table]
    return ", ".join(name for name in dict.fromkeys(ids) if name not in ("chains", "none"))


# The head -------------------------------------------------------------------------------------------


def _heading(groups: Sequence[Group]) -> str:
    if len(groups) > 1:
        return "Training compared: " + ", ".join(group.name for group in groups)
    return groups[0].runs[0].recipe.get("summary") or f"Training: {groups[0].name}"


def _facts(runs: Sequence[Run]) -> str:
    def every(values: Sequence[str]) -> str:
        return ", ".join(dict.fromkeys(value for value in values if value))

    tables = [run.recipe.get("env", {}) for run in runs]
    tokens, episodes = (sum(run.total(name) for run in runs) for name in ("sampled_tokens", "episodes"))
    spent = sum(run.total(name) for run in runs for name in SECONDS)
    facts = {
        "runs": every([run.name for run in runs]),
        "environment": every([str(table.get("preset", "")) for table in tables]),
        "method": " / ".join(dict.fromkeys(method_of(run.recipe) for run in runs)),
        "policy": every([str(run.recipe.get("model", {}).get("path", "")) for run in runs]),
        "seeds": every([str(run.seed) for run in runs]),
        "steps": every([f"{run.step:,} of {run.steps:,}" if run.steps else f"{run.step:,}" for run in runs]),
        "episodes": text_of(episodes, "count"),
        "sampled tokens": text_of(tokens, "count"),
        "training time": text_of(spent, "seconds"),
        "machine": every([_machine(run.machine) for run in runs]),
        "turngym": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    shown = {name: text for name, text in facts.items() if text}
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in shown.items())


def _machine(machine: Mapping[str, Any]) -> str:
    if not machine:
        return ""
    device = "" if machine.get("device") in (None, "cpu") else f", {machine['device']}"
    return f"{machine.get('cores')} cores, {machine.get('memory_gib')} GiB{device}"


def _outcome_text(groups: Sequence[Group]) -> str:
    text = "The last evaluation on held-out tasks. The interval of a single run is the bootstrap's over tasks (95 %)"
    if any(len(group.runs) > 1 for group in groups):
        text += f"; of several runs, with the mean: {_SPREADS[groups[0].spread]} over runs"
    return f"{text}."


def _outcome(groups: Sequence[Group]) -> str:
    heads = ["", "runs", "steps", *(column.title for column in COLUMNS), "signs of collapse"]
    head = "".join(f"<th{' class=key' * (not n)}>{escape(text)}</th>" for n, text in enumerate(heads))
    best = best_of(groups)
    body = []
    for row, group in enumerate(groups):
        cells = [f"<td>{len(group.runs)}</td>", f"<td>{steps_of(group)}</td>"]
        cells += [_cell(column, group, (row, column.title) in best) for column in COLUMNS]
        chips = " ".join(_chip(level_of(run)) for run in group.runs)
        swatch = f'<i class="swatch {charts.colour(row)}"></i>' * (len(groups) > 1)
        body.append(f"<tr><td class='key'>{swatch}{escape(group.name)}</td>{''.join(cells)}<td>{chips}</td></tr>")
    return f"<table class='data outcome'><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(column: Column, group: Group, best: bool) -> str:
    value = column.value(group)
    mean = mean_of(value)
    if mean is None:
        return "<td data-v=''>–</td>"
    text = text_of(mean, column.unit)
    if isinstance(value, Estimate) and (value.low, value.high) != (value.mean, value.mean):
        text += f"<br><small>{text_of(value.low, column.unit)} to {text_of(value.high, column.unit)}</small>"
    return f"<td{' class=best' * best} data-v='{mean!r}'>{text}</td>"


def _differences(groups: Sequence[Group]) -> str:
    """Return the section of settings in which methods differ, "" where nothing does."""
    rows = differences(groups) if len(groups) > 1 else {}
    if not rows:
        return ""
    head = "".join(f"<th>{escape(group.name)}</th>" for group in groups)
    body = "".join(f"<tr><td class='key'>{escape(name)}</td>{_row(row)}</tr>" for name, row in rows.items())
    table = f"<table class='paper'><thead><tr><th class='key'></th>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<section><h2>How the recipes differ</h2><div class='scroll'>{table}</div></section>"


def _row(values: Sequence[str]) -> str:
    return "".join(f"<td>{escape(value or '–')}</td>" for value in values)


# Signs of collapse ----------------------------------------------------------------------------------


def _chip(level: str) -> str:
    return f'<span class="chip state {LEVELS[level]}">{level}</span>' if level else "not judged"


def _verdict(run: Run, since: Mapping[str, int], folded: bool) -> str:
    """Return the verdict over one run with every indicator it rests on."""
    try:
        verdict = judge(run.train)
    except MissingExtra as error:
        return f"<p>Not judged here: {escape(error.detail)} {escape(error.hint)}</p>"
    body = "".join(
        f"<tr><td class='key'>{escape(each.name.replace('_', ' '))}</td>"
        f"<td>{'–' if each.fired is None else 'fired' if each.fired else 'quiet'}</td>"
        f"<td>{since.get(each.name, '–')}</td><td class='key'>{escape(each.text)}</td></tr>"
        for each in verdict.evidence
    )
    head = "<th class='key'>sign</th><th>now</th><th>first seen at step</th><th class='key'>evidence</th>"
    table = f"<table class='paper'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    told = f"<div class='scroll'>{table}</div>"
    if folded:
        return f"<details><summary>{escape(run.name)} {_chip(verdict.level)}</summary>{told}</details>"
    return f"<p>{_chip(verdict.level)}</p>{told}"


def _first_seen(run: Run) -> dict[str, int]:
    """Return the step at which each sign of collapse was first seen; {} where that cannot be judged here."""
    try:
        return onsets(run.train)
    except MissingExtra:
        return {}


# Figures --------------------------------------------------------------------------------------------


def _figures_text(groups: Sequence[Group], axis: Axis) -> str:
    text = "Bands are 95 % intervals over tasks; long lines are smoothed, with the numbers as noted behind them."
    if any(len(group.runs) > 1 for group in groups):
        text = f"Lines are means over runs, bands {_SPREADS[groups[0].spread]}; long lines are smoothed."
    if axis != "step":
        text += f" Everything lies over {_AXES[axis]}."
    marked = len(groups) == len(groups[0].runs) == 1 and axis == "step"
    return f"{text} Dashed verticals: a sign of collapse is first seen." if marked else text


def _panels(groups: Sequence[Group], axis: Axis, metrics: Sequence[str], since: Mapping[str, int]) -> list[str]:
    runs = [run for group in groups for run in group.runs]
    figures = list(figures_of(runs, metrics))
    if len(groups) == 1:
        marked = since if len(runs) == 1 and axis == "step" else {}
        panels = [_detailed(groups[0], figure, axis, _marks(marked, figure)) for figure in figures]
        return panels if metrics else [*panels, *_start(runs[0])]
    return [_compared(groups, figure, name, axis) for figure in figures for name in figure.lines]


def _marks(since: Mapping[str, int], figure: Figure) -> list[tuple[float, str]]:
    """Return the signs of collapse that are seen in one of a figure's numbers."""
    return [
        (float(step), f"first seen at step {step}: {sign.replace('_', ' ')}")
        for sign, step in since.items()
        if any(name in figure.lines for name in SERIES[sign])
    ]


def _detailed(group: Group, figure: Figure, axis: Axis, marks: Sequence[tuple[float, str]]) -> str:
    """Return a figure of one group: its numbers are the lines."""
    lines = [
        replace(group.line(name, charts.colour(row), axis), name=label)
        for row, (name, label) in enumerate(figure.lines.items())
    ]
    keys = f"<div class='keys'>{_keys(list(figure.lines.values()))}</div>" if len(lines) > 1 else ""
    return _figure(figure.title, figure.text, draw(lines, figure.unit, _AXES[axis], marks), keys)


def _start(run: Run) -> list[str]:
    """Return the figure of a run's supervised start, [] where it had none."""
    points = [(number_of(entry.get("epoch")), number_of(entry.get("start_loss"))) for entry in run.starts]
    points = [(epoch, loss) for epoch, loss in points if math.isfinite(epoch)]
    lines = [charts.Curve("loss", points, charts.colour(0))]
    text = "Loss of a token, before the first step."
    return [_figure("Supervised start", text, draw(lines, "number", "epoch"), "")] if points else []


def _compared(groups: Sequence[Group], figure: Figure, name: str, axis: Axis) -> str:
    """Return one number of a figure: groups are the lines."""
    lines = [group.line(name, charts.colour(row), axis) for row, group in enumerate(groups)]
    title = figure.title if len(figure.lines) == 1 else f"{figure.title}, {figure.lines[name]}"
    return _figure(title, figure.text, draw(lines, figure.unit, _AXES[axis]), "")


def _figure(title: str, text: str, svg: str, keys: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption><p>{escape(text)}</p>{keys}{svg}</figure>"


def _keys(names: Sequence[str]) -> str:
    return "".join(
        f'<span><i class="swatch {charts.colour(row)}"></i>{escape(name)}</span>' for row, name in enumerate(names)
    )


# The end --------------------------------------------------------------------------------------------


def _evaluations(run: Run) -> str:
    """Return the table of a run's evaluations, "" without any."""
    if not run.evals:
        return ""
    ends = {name for both in INTERVALS.values() for name in both}
    names = [name for name in run.names if name.startswith("eval_") and name not in ends and says([run], name)]
    heads = "".join(f"<th>{escape(name.removeprefix('eval_').replace('_', ' '))}</th>" for name in names)
    body = []
    for entry in run.evals:
        cells = "".join(_number(entry, name, UNITS.get(name, "number")) for name in names)
        body.append(f"<tr><td class='key' data-v='{entry['step']}'>{entry['step']:,}</td>{cells}</tr>")
    head = f"<tr><th class='key'>step</th>{heads}</tr>"
    table = f"<table class='data'><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"
    return f"<section><h2>Evaluations</h2><p>On held-out tasks.</p><div class='scroll'>{table}</div></section>"


def _number(entry: Mapping[str, Any], name: str, unit: Unit) -> str:
    value = entry.get(name)
    text = text_of(value, unit)
    ends = [entry.get(each) for each in INTERVALS.get(name, ())]
    if ends and None not in ends:
        text += f"<br><small>{text_of(ends[0], unit)} to {text_of(ends[1], unit)}</small>"
    return f"<td data-v='{'' if value is None else value}'>{text}</td>"


def _settings(run: Run) -> str:
    texts = {"recipe": run.recipe, "machine": run.machine}
    folds = "".join(
        f"<details><summary>{escape(run.name)}: {what}</summary>"
        f"<pre>{escape(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())}</pre></details>"
        for what, data in texts.items()
        if data
    )
    return folds or f"<p>{escape(run.name)} holds neither.</p>"
