"""The report: one HTML file that needs nothing else, with charts, tables and the episodes themselves."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

import msgspec

from ... import __version__
from ...records import Episode
from . import charts
from .crosstab import SPREAD, Crosstab
from .definitions import DEFINITIONS, INTERVALS
from .metrics import Estimate, Row, Summary, show
from .page import OUTCOMES, build_page, embedded, outcome
from .plan import ResolvedPlan
from .table import cell, columns_of, heading

EPISODES_SHOWN = 50  # per environment and policy
SOLVED_SHARE = 0.2  # of those, room kept for solved ones

# Texts of sections are HTML; nothing in them comes from a run.
_ENDS = " &ensp; ".join(f'<i class="swatch {css}"></i>{name}' for name, css in OUTCOMES.items())

Read = Callable[[Callable[[Episode], bool]], Iterable[Episode]]


def build_report(
    plan: ResolvedPlan,
    rows: Sequence[Row],
    crosstabs: Sequence[Crosstab],
    summaries: Sequence[Summary],
    read: Read,
    notes: Sequence[str],
) -> bytes:
    """Return the report as UTF-8 HTML.

    Args:
        plan: the plan of the run.
        rows: the table.
        crosstabs: the tables that the plan lays out.
        summaries: numbers of every episode, in the order in which they are to be shown.
        read: yields the recorded episodes that a predicate wants; it is asked once.
        notes: what a reader should know, shown at the top.
    """
    policies = [policy.name for policy in plan.policies]
    envs = [env.name for env in plan.envs]
    chosen, said = choose(summaries)
    found, dropped = embedded(read(lambda episode: episode.id in chosen))
    episodes = [found[summary.id] for summary in summaries if summary.id in found]
    if dropped:
        said.append(f"{dropped} more were left out to keep this file small")
    parts = {
        "title": escape(f"turngym: {', '.join(envs)}"),
        "heading": escape(plan.summary or "Evaluation"),
        "facts": _facts(plan, summaries),
        "notes": "".join(f"<li>{escape(note)}</li>" for note in notes),
        "overview": _overview(rows, policies, envs),
        "crosstabs": _crosstabs(crosstabs, policies, plan.seeds),
        "legend": _legend(policies),
        "charts": _charts(rows, summaries, policies, envs),
        "tables": _tables(rows, policies, envs),
        "shown": escape(f"Turn by turn, the policies side by side on the same task. {'; '.join(said)}"),
        "definitions": _definitions(),
        "settings": escape(msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()),
    }
    body = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return build_page(body, parts, {"policies": policies, "episodes": episodes})


def choose(summaries: Sequence[Summary]) -> tuple[set[str], list[str]]:
    """Return the ids of the episodes to show, and what was left out.

    Tasks are taken whole, for all policies, so that they can be compared: first those that some policy did not
    solve, with some room kept for solved ones.
    """
    ids: set[str] = set()
    said = []
    by_env: dict[str, dict[str, list[Summary]]] = defaultdict(lambda: defaultdict(list))
    for summary in summaries:
        by_env[summary.env][summary.task].append(summary)
    for env, tasks in by_env.items():
        unsolved = [own for own in tasks.values() if not all(summary.won for summary in own)]
        solved = [own for own in tasks.values() if all(summary.won for summary in own)]
        # Every policy has about as many episodes of a task; the most any has decides how many tasks there is room for.
        most = max(max(Counter(summary.policy for summary in own).values()) for own in tasks.values())
        room = max(1, EPISODES_SHOWN // most)
        kept = min(len(solved), max(int(room * SOLVED_SHARE), room - len(unsolved)))
        taken = [*unsolved[: room - kept], *solved[:kept]]
        ids.update(summary.id for own in taken for summary in own)
        if len(taken) < len(tasks):
            said.append(f"{env}: {len(taken)} of {len(tasks)} tasks are shown, unsolved ones first")
    return ids, said


def _facts(plan: ResolvedPlan, summaries: Sequence[Summary]) -> str:
    finished = sum(not summary.failed for summary in summaries)
    styles = sorted({str(env.turn.get("style", "")) for env in plan.envs} - {""})
    facts = {
        "episodes": f"{finished:,} of {plan.total:,}",
        "tasks": f"{sum(size for sizes in plan.sizes.values() for size in sizes.values()):,}",
        "attempts a task": str(plan.pass_k),
        "splits": ", ".join(plan.splits),
        "seed": str(plan.seed) if plan.seeds == 1 else f"{plan.seed} to {plan.seed + plan.seeds - 1}",
        "level": plan.level + (f" ({', '.join(styles)})" if styles else ""),
        "turngym": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items())


def _by(rows: Sequence[Row], by: str = "env") -> dict[tuple[str, str], Row]:
    return {(row.policy, row.env): row for row in rows if row.by == by}


def _overview(rows: Sequence[Row], policies: Sequence[str], envs: Sequence[str]) -> str:
    """Return the success rates, policies down and environments across."""
    found = _by(rows)
    head = "".join(f"<th>{escape(env)}</th>" for env in envs)
    body = []
    for index, policy in enumerate(policies):
        cells = []
        for env in envs:
            row = found.get((policy, env))
            if row is None or row.success is None:
                cells.append("<td class='none'>–</td>")
                continue
            value = row.success
            share = f"{round(100 * value.mean)}%"
            cells.append(
                f'<td class="heat" style="--share:{share}"><b>{100 * value.mean:.1f}</b> %'
                f"<small>{100 * value.low:.1f} to {100 * value.high:.1f}</small></td>"
            )
        swatch = f'<i class="swatch {charts.colour(index)}"></i>'
        body.append(f"<tr><th>{swatch}{escape(policy)}</th>{''.join(cells)}</tr>")
    return f"<table class='overview'><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _crosstabs(tables: Sequence[Crosstab], policies: Sequence[str], seeds: int) -> str:
    """Return the section of the tables that the plan lays out, "" without any."""
    if not tables:
        return ""
    parts = "".join(
        f"<h3>{escape(table.title)}</h3><div class='scroll'>{_crosstab(table, policies)}</div>"
        + (f"<p>{escape(table.note)}</p>" if table.note else "")
        for table in tables
    )
    said = f"<p>{escape(SPREAD)}</p>" if seeds > 1 else ""
    return f"<section><h2>Tables</h2>{said}{parts}</section>"


def _crosstab(table: Crosstab, policies: Sequence[str]) -> str:
    """Return one table; the headings of groups span their columns."""
    two = table.grouped and not table.plain
    keys = "".join(f"<th class='key' rowspan='{1 + two}'>{name}</th>" for name in table.keys)
    groups = [(group, len(list(own))) for group, own in groupby(table.heads, key=lambda head: head.group)]
    top = "".join(f"<th class='group{' edge' * two}' colspan='{width}'>{escape(group)}</th>" for group, width in groups)
    # The first column of a group is set off from the one before it.
    edges = [" class='edge'" * (two and not n) for _, width in groups for n in range(width)]
    labels = "".join(f"<th{edge}>{escape(head.label)}</th>" for edge, head in zip(edges, table.heads, strict=True))
    head = f"<tr>{keys}{top if table.grouped else labels}</tr>" + (f"<tr>{labels}</tr>" if two else "")
    body = []
    for row in table.rows:
        swatch = f'<i class="swatch {charts.colour(policies.index(row.policy))}"></i>'
        cells = [f"<td class='key'>{swatch * (key == 'policy')}{escape(row.key(key))}</td>" for key in table.keys]
        cells += [
            f'<td{edge} title="{cell.episodes:,} episodes">{text}</td>'
            for edge, cell, text in zip(edges, row.cells, table.texts(row), strict=True)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table class='paper'><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


def _legend(policies: Sequence[str]) -> str:
    return "".join(
        f'<span><i class="swatch {charts.colour(index)}"></i>{escape(policy)}</span>'
        for index, policy in enumerate(policies)
    )


def _charts(rows: Sequence[Row], summaries: Sequence[Summary], policies: Sequence[str], envs: Sequence[str]) -> str:
    """Return the sections of charts, one chart an environment in each."""
    found = _by(rows)
    groups: dict[tuple[str, str], list[Summary]] = defaultdict(list)
    for summary in summaries:
        groups[summary.policy, summary.env].append(summary)
    sections: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for env in envs:
        # Every policy has its place in every chart, so that its colour is the same in all.
        own = {policy: found.get((policy, env)) or Row(by="env", policy=policy, env=env) for policy in policies}
        played = {policy: [s for s in groups[policy, env] if not s.failed] for policy in policies}
        _charts_of(sections, env, own, played, {policy: groups[policy, env] for policy in policies})
    parts = []
    for (title, text), panels in sections.items():
        cards = "".join(f"<figure><figcaption>{escape(env)}</figcaption>{svg}</figure>" for env, svg in panels.items())
        parts.append(f"<section><h2>{escape(title)}</h2><p>{text}</p><div class='panels'>{cards}</div></section>")
    return "".join(parts)


def _charts_of(
    sections: dict[tuple[str, str], dict[str, str]],
    env: str,
    rows: Mapping[str, Row],
    played: Mapping[str, list[Summary]],
    everything: Mapping[str, list[Summary]],
) -> None:
    success = ("Success", "Share of episodes that solved their task, with 95 % bootstrap intervals over tasks.")
    sections[success][env] = charts.bars({policy: row.success for policy, row in rows.items()})
    ends = ("How episodes ended", _ENDS)
    counts = {policy: Counter(_outcome(summary) for summary in own) for policy, own in everything.items()}
    sections[ends][env] = charts.outcomes(counts, OUTCOMES)
    attempts = ("Success with several attempts", "pass@k: at least one of k attempts solves the task.")
    if any(len(row.pass_at) > 1 for row in rows.values()):
        curves = {policy: [(float(k), share) for k, share in row.pass_at.items()] for policy, row in rows.items()}
        sections[attempts][env] = charts.lines(curves, "attempts", steps=False)
    budget = ("Success against turn budget", "Share of episodes solved within so many turns.")
    # Where everything takes one turn there is nothing to see.
    if any(summary.turns > 1 for own in played.values() for summary in own):
        sections[budget][env] = charts.lines(budgets(played), "turns", steps=True)
        turns = ("Turns", "How many turns episodes took.")
        sections[turns][env] = charts.histogram(
            {policy: Counter(summary.turns for summary in own) for policy, own in played.items()}, "turns"
        )
    if any(played.values()):
        reward = ("Reward", "Reward per episode by component; “env” is the environment's own.")
        sections[reward][env] = charts.components({policy: row.components for policy, row in rows.items()})


def _outcome(summary: Summary) -> str:
    status = "failed" if summary.failed else "truncated" if summary.truncated else "terminated"
    return outcome(status, summary.won, summary.overflow)


def budgets(played: Mapping[str, Sequence[Summary]]) -> dict[str, list[tuple[float, float]]]:
    """Return per policy the share of episodes solved within t turns, for t from 1 to the longest episode's."""
    last = max((summary.turns for own in played.values() for summary in own), default=1)
    curves: dict[str, list[tuple[float, float]]] = {}
    for policy, own in played.items():
        after = Counter(summary.won_after for summary in own if summary.won)
        solved = 0
        curves[policy] = []
        for turn in range(1, last + 1 if own else 1):
            solved += after[turn]
            curves[policy].append((float(turn), solved / len(own)))
    return curves


def _tables(rows: Sequence[Row], policies: Sequence[str], envs: Sequence[str]) -> str:
    parts = []
    splits = {row.split for row in rows if row.by == "split"}
    for by, title in (("env", "By environment"), ("split", "By split"), ("task_type", "By task type")):
        own = [row for row in rows if row.by == by]
        if own and (by != "split" or len(splits) > 1):
            own.sort(key=lambda row: (envs.index(row.env), row.split, row.task_type, policies.index(row.policy)))
            parts.append(_table(title, own, policies))
    return "".join(parts)


def _table(title: str, rows: Sequence[Row], policies: Sequence[str]) -> str:
    columns = columns_of(rows)
    keys = [key for key in ("split", "task_type") if any(getattr(row, key) for row in rows)]
    names = [*("environment", "policy"), *(key.replace("_", " ") for key in keys)]
    head = "".join(f"<th class='key'>{name}</th>" for name in names) + "".join(
        f'<th title="{escape(DEFINITIONS[name].text)}">{escape(heading(name, rows))}</th>' for name in columns
    )
    best = _best(rows, columns)
    body = []
    last = rows[0].env
    for row in rows:
        first = " class='first'" if row.env != last else ""
        last = row.env
        swatch = f'<i class="swatch {charts.colour(policies.index(row.policy))}"></i>'
        texts = [escape(row.env), swatch + escape(row.policy), *(escape(getattr(row, key)) for key in keys)]
        cells = [f"<td class='key'>{text}</td>" for text in texts]
        for name in columns:
            value = getattr(row, name)
            text = escape(cell(row, name))
            if isinstance(value, Estimate):
                unit = DEFINITIONS[name].unit
                text = f'<span title="{show(value.low, unit)} to {show(value.high, unit)}">{text}</span>'
            sort = _number(value)
            css = " class='best'" if (id(row), name) in best else ""
            cells.append(f'<td{css} data-v="{"" if sort is None else repr(sort)}">{text}</td>')
        body.append(f"<tr{first}>{''.join(cells)}</tr>")
    table = f"<table class='data'><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<h3>{title}</h3><div class='scroll'>{table}</div>"


def _number(value: Any) -> float | None:
    if isinstance(value, Estimate):
        return value.mean
    if isinstance(value, dict):
        return value[max(value)] if value else None
    return None if value is None else float(value)


def _best(rows: Sequence[Row], columns: Sequence[str]) -> set[tuple[int, str]]:
    """Return (row, column) of the best values where policies can be compared and differ."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.env, row.split, row.task_type].append(row)
    best: set[tuple[int, str]] = set()
    for own in groups.values():
        for name in columns:
            good = DEFINITIONS[name].good
            numbers = [(number, row) for row in own if (number := _number(getattr(row, name))) is not None]
            if not good or len({number for number, _ in numbers}) < 2:
                continue
            top = max(good * number for number, _ in numbers)
            best.update((id(row), name) for number, row in numbers if good * number == top)
    return best


def _definitions() -> str:
    items = "".join(
        f"<div><dt>{escape(definition.label)}</dt><dd>{escape(definition.text)}</dd></div>"
        for definition in DEFINITIONS.values()
    )
    return f"<dl class='definitions'>{items}</dl><p>{escape(INTERVALS)}</p>"
