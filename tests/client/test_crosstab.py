"""Tables laid out as the papers print them: groups, seeds, numbers of the last info, their forms on paper."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turngym.cli import main
from turngym.client.evaluation.crosstab import Cell, Crosstab, Head, TableRow, crosstabs
from turngym.client.evaluation.layouts import Column, Layout
from turngym.client.evaluation.metrics import Summary, summarise
from turngym.client.evaluation.plan import EvalPlan, ResolvedPlan, resolve
from turngym.client.evaluation.runner import evaluate
from turngym.client.evaluation.table import print_crosstab
from turngym.client.rollout import numbers_of
from turngym.client.sources import LocalSource
from turngym.errors import InvalidRequest
from turngym.records import Completion, Episode, Turn


async def plan(*layouts: Layout, **changes: Any) -> ResolvedPlan:
    settings: dict[str, Any] = {"envs": ["sokoban"], "policies": ["expert"], "episodes": 4}
    return await resolve(EvalPlan(**settings | {"tables": list(layouts)} | changes), LocalSource())


def played(
    task: str,
    *,
    won: bool = True,
    kind: str = "",
    attempt: int = 0,
    turns: int = 1,
    policy: str = "expert",
    **info: float,
) -> Summary:
    steps = [Turn(n, "o", Completion("r"), action=f"{n}", rewards={"env": 1.0, "hook": 0.5}) for n in range(turns)]
    episode = Episode(f"{policy}:{task}:{attempt}", "sokoban", f"{task}", 0, group=f"sokoban:{task}", turns=steps)
    episode.split, episode.policy, episode.attempt, episode.task_type = task.partition("/")[0], policy, attempt, kind
    episode.status, episode.won, episode.score = "terminated", won, float(won)
    episode.metrics = {f"info.{name}": value for name, value in info.items()} | {"policy_seconds": 0.1}
    return summarise(episode)


def numbers(table: Crosstab) -> list[list[float | None]]:
    return [[cell.mean for cell in row.cells] for row in table.rows]


async def test_columns_across_groups_in_the_order_of_their_names() -> None:
    layout = Layout(
        "t", [Column("success", scale=100)], across="task_type", names={"b": "Bee", "*": "All", "none": "None"}
    )
    found = [played("L0/0", kind="a"), played("L0/1", kind="b", won=False), played("L1/0", kind="b")]
    (table,) = crosstabs(await plan(layout), found)
    assert [head.group for head in table.heads] == ["Bee", "All", "a"] and table.plain
    assert numbers(table) == [[50.0, pytest.approx(200 / 3), 100.0]]
    (only,) = crosstabs(await plan(Layout("t", [Column("success")], across="task_type", splits=["L1"])), found)
    assert [(head.group, head.label) for head in only.heads] == [("b", "success")] and numbers(only) == [[1.0]]
    assert crosstabs(await plan(Layout("t", [Column("success")], splits=["L9"])), found) == []


async def test_rows_by_policy_environment_and_group() -> None:
    layout = Layout("t", [Column("success"), Column("turns")], across="split", down="task_type")
    found = [
        played("L0/0", kind="a", turns=3),
        played("L1/0", kind="b", turns=5),
        played("L0/0", kind="a", won=False, policy="random"),
    ]
    (table,) = crosstabs(await plan(layout, policies=["random", "expert"]), found)
    assert table.keys == ["policy", "group"] and table.grouped and not table.plain
    assert [(row.policy, row.group) for row in table.rows] == [("random", "a"), ("expert", "a"), ("expert", "b")]
    assert numbers(table) == [[0.0, 1.0, None, None], [1.0, 3.0, None, None], [None, None, 1.0, 5.0]]


async def test_numbers_of_the_last_info_and_of_reward_components() -> None:
    layout = Layout(
        "t",
        [
            Column("info.parts.a"),
            Column("info.parts.a", absent="zero"),
            Column("info.part.a", absent="zero"),
            Column("reward.hook"),
            Column("reward.none"),
        ],
    )
    found = [played("test/0", turns=2, **{"parts.a": 0.5}), played("test/1", turns=2)]
    found.append(played("test/0", policy="random"))
    (table,) = crosstabs(await plan(layout, policies=["expert", "random"]), found)
    assert numbers(table) == [[0.5, 0.25, None, 1.0, None], [None, 0.0, None, 0.5, None]]
    assert [head.label for head in table.heads] == ["a", "a", "a", "hook", "none"]


async def test_digits() -> None:
    columns = [Column("success"), Column("episodes"), Column("turns", digits=0)]
    (table,) = crosstabs(await plan(Layout("t", columns, digits=3)), [played("test/0", turns=3)])
    assert table.texts(table.rows[0]) == ["1.000", "1", "3"]


async def test_the_spread_is_that_of_the_seeds() -> None:
    layout = Layout("t", [Column("success", scale=100)])
    # Two attempts with each of three seeds: means 100, 50 and 0.
    found = [played("test/0", attempt=number, won=number in (0, 1, 2)) for number in range(6)]
    (table,) = crosstabs(await plan(layout, seeds=3, pass_k=2), found)
    (cell,) = table.rows[0].cells
    assert (cell.mean, cell.std, cell.episodes) == (50.0, 50.0, 6) and cell.show(2) == "50.00 ±50.00"
    (alone,) = crosstabs(await plan(layout, pass_k=6), found)
    assert alone.rows[0].cells == [Cell(50.0, None, 6)]
    (own,) = crosstabs(await plan(seeds=2, pass_k=3), found)
    assert own.heads[0] == Head("success (%)", digits=2) and own.title == "Over the seeds"
    assert crosstabs(await plan(), found) == []


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (Layout("t", [Column("sucess")]), "Did you mean 'success'"),
        (Layout("t", [Column("components")]), "names no number"),
        (Layout("t", []), "no columns"),
        (Layout("t", [Column("success")], across="split", down="split"), "both ways"),
    ],
)
async def test_layouts_that_do_not_fit(layout: Layout, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await plan(layout)


def test_numbers_in_an_info() -> None:
    info = {
        "task": "test/0", "score": 0.5, "won": True, "rewards": {"env": 1.0}, "bought": "x", "flag": True,
        "parts": {"a": 1, "b": None, "c": float("nan"), "deep": {"d": 1}}, "rank": 3,
    }  # fmt: skip
    assert numbers_of(info) == {"info.flag": 1.0, "info.parts.a": 1.0, "info.rank": 3.0}


def test_a_table_in_the_terminal() -> None:
    cells = [Cell(99.25), Cell(0.0), Cell()]
    heads = [Head("succ.", "L0"), Head("invalid", "L0", 3), Head("succ.", "L1")]
    table = Crosstab("Title [1]", heads, [TableRow("e", "[b]p[/b]", cells)], note="A [note].")
    console = Console(file=io.StringIO(), width=80)
    print_crosstab(table, console)
    title, groups, labels, row, note = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert (title, note) == ("Title [1]", "A [note].")
    assert groups.split() == ["L0", "L1"] and labels.split() == ["policy", "succ.", "invalid", "succ."]
    assert row.split() == ["[b]p[/b]", "99.2", "0.000", "–"]


def test_tables_are_printed_kept_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = tmp_path / "mine.toml"
    layout.write_text(
        'envs = ["webshop"]\npolicies = ["expert", "random"]\nepisodes = 4\nseeds = 2\nspread = "random"\n'
        '[[tables]]\ntitle = "Mine <1>"\nacross = "split"\n'
        'columns = [{value = "info.reward_parts.r_type", label = "type", absent = "zero"}, {value = "success"}]\n'
    )
    out = tmp_path / "run"
    assert main(["eval", "--preset", str(layout), "--out", str(out), "--quiet"]) == 0
    assert re.search(r"expert +1\.0 ±0\.0 +1\.0 ±0\.0\n", capsys.readouterr().out)
    (table,) = json.loads((out / "metrics.json").read_text())["tables"]
    assert table["title"] == "Mine <1>" and [row["policy"] for row in table["rows"]] == ["expert", "random"]
    assert table["rows"][0]["cells"][0] == {"mean": 1.0, "std": 0.0, "episodes": 8}
    row = next(row for row in json.loads((out / "metrics.json").read_text())["rows"] if row["policy"] == "expert")
    assert row["info"]["reward_parts.r_type"] == 1.0 and row["info"]["task_score"] == 100.0
    page = (out / "report.html").read_text()
    assert "<h3>Mine &lt;1&gt;</h3>" in page and ">1.0 ±0.0</td>" in page and "sample standard deviation" in page
    layout.write_text(layout.read_text().replace("Mine <1>", "Other"))
    assert main(["eval", "--report-only", "--out", str(out), "--preset", str(layout)]) == 0
    assert "Other" in capsys.readouterr().out and "<h3>Other</h3>" in (out / "report.html").read_text()


async def test_each_seed_draws_tasks_and_noise_of_its_own() -> None:
    whole = await plan(seeds=3, seed=5, spread="random", episodes=20, envs=["frozen-lake"])
    jobs = list(whole.jobs())
    assert len(jobs) == whole.total == 60 and len({job.id for job in jobs}) == 60
    for number in range(3):
        (alone,) = [await plan(seed=5 + number, spread="random", episodes=20, envs=["frozen-lake"])]
        own = [(job.task, job.seed) for job in jobs if job.attempt == number]
        assert own == [(job.task, job.seed) for job in alone.jobs()] and len({task for task, _ in own}) == 20
    assert len({tuple(job.task for job in jobs if job.attempt == number) for number in range(3)}) == 3


def test_more_seeds_are_another_run(tmp_path: Path) -> None:
    first = EvalPlan(envs=["bandit"], policies=["random"], episodes=2)
    evaluate(first, tmp_path)
    with pytest.raises(InvalidRequest, match="seeds"):
        evaluate(EvalPlan(envs=["bandit"], policies=["random"], episodes=2, seeds=2), tmp_path)
    tables = [Layout("Mine", [Column("success")])]
    again = evaluate(EvalPlan(envs=["bandit"], policies=["random"], episodes=2, tables=tables), tmp_path)
    assert again.played == 0 and [table.title for table in again.tables] == ["Mine"]
