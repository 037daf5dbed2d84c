from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from turngym.client.evaluation.definitions import DEFINITIONS
from turngym.client.evaluation.metrics import (
    Row,
    bootstrap,
    latest,
    pass_at_k,
    rows,
    show,
    summarise,
)
from turngym.client.evaluation.plan import (
    EvalEnv,
    EvalPlan,
    PolicySpec,
    ResolvedPlan,
    chosen,
    folder_name,
    resolve,
)
from turngym.client.evaluation.runner import Limits, Results, evaluate
from turngym.client.policies import BasePolicy, Context, RandomPolicy
from turngym.client.sources import LocalSource
from turngym.envs import registry
from turngym.envs.bandit import Bandit
from turngym.envs.core import Effect
from turngym.errors import EnvironmentFailed, InvalidRequest, PolicyFailed, UnknownTask
from turngym.records import Completion, Episode, Turn, read_episodes


def plan(**changes: Any) -> EvalPlan:
    return EvalPlan(**{"envs": ["bandit"], "policies": ["random"], "episodes": 8, **changes})


async def resolved(**changes: Any) -> ResolvedPlan:
    return await resolve(plan(**changes), LocalSource())


# Plans ---------------------------------------------------------------------------------------------


async def test_a_plan_fixes_every_episode() -> None:
    one, two = (
        await resolved(pass_k=2, envs=["bandit", "sokoban"]),
        await resolved(pass_k=2, envs=["bandit", "sokoban"]),
    )
    assert list(one.jobs()) == list(two.jobs())
    assert len(list(one.jobs())) == one.total == 2 * 8 * 2
    assert len({job.id for job in one.jobs()}) == one.total
    assert len({(job.wanted.env, job.seed) for job in one.jobs()}) == one.total
    assert {job.seed for job in one.jobs()}.isdisjoint(job.seed for job in (await resolved(seed=1)).jobs())


async def test_a_plan_is_the_same_in_every_process() -> None:
    here = [[job.id, job.seed] for job in (await resolved()).jobs()]
    code = (
        "import asyncio, json\n"
        "from turngym.client.evaluation.plan import *\n"
        "from turngym.client.sources import LocalSource\n"
        "plan = EvalPlan(envs=['bandit'], policies=['random'], episodes=8)\n"
        "print(json.dumps([[job.id, job.seed] for job in asyncio.run(resolve(plan, LocalSource())).jobs()]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=60).stdout
    assert json.loads(out) == here


async def test_policies_and_variants_meet_the_same_noise() -> None:
    envs = [EvalEnv("sokoban", turn={"style": style}, name=style) for style in ("think-action", "think-answer")]
    jobs = list((await resolved(envs=envs, policies=["random", "expert"])).jobs())
    seeds: dict[str, set[int]] = {}
    for job in jobs:
        seeds.setdefault(job.task, set()).add(job.seed)
    assert len(jobs) == 4 * 8 and all(len(own) == 1 for own in seeds.values())


def test_tasks_are_spread_over_the_split_or_taken_from_its_start() -> None:
    assert list(chosen(100, 4, "even")) == [0, 25, 50, 75]
    assert list(chosen(100, 4, "first")) == [0, 1, 2, 3]
    for size, count in ((7, 7), (256, 100), (3, 2)):
        picked = list(chosen(size, count, "even"))
        assert len(set(picked)) == count and max(picked) < size


async def test_a_smaller_split_is_taken_whole() -> None:
    whole = await resolved(episodes=1000)
    assert whole.total == 256 and whole.sizes == {"bandit": {"test": 256}}


async def test_presets_settings_and_names_are_filled_in() -> None:
    full = await resolved(
        envs=["ragen-sokoban", EvalEnv("sokoban", {}, {"size": 7}, name="mine")],
        config={"max_steps": 20},
        turn={"max_turns": 3},
        policies=["random", PolicySpec("model", model="org/m", base_url="http://127.0.0.1:1/v1")],
    )
    preset, own = full.envs
    assert (preset.name, preset.env, preset.turn["style"], preset.turn["max_turns"]) == (
        "ragen-sokoban", "sokoban", "think-answer", 3,
    )  # fmt: skip
    assert preset.config["max_steps"] == 20 and preset.config["boxes"] == 1
    assert own.config == {"size": 7, "max_steps": 20} and own.turn["style"] == "think-answer"
    assert [policy.name for policy in full.policies] == ["random", "org/m"]
    assert full.policies[1].sampling is not None
    everything = await resolved(envs=["all"])
    assert {"bandit", "frozen-lake", "sokoban"} <= {env.name for env in everything.envs}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"envs": ["sokobn"]}, "Did you mean 'sokoban'"),
        ({"envs": []}, "No environment is named"),
        ({"envs": ["bandit", "bandit"]}, "names are 'bandit'"),
        ({"policies": []}, "No policy is named"),
        ({"policies": ["random", "random"]}, "names are 'random'"),
        ({"splits": ["tset"]}, "Did you mean 'test'"),
        ({"config": {"sise": 3}}, "has no setting 'sise'"),
        ({"turn": {"style": "think-acton"}}, "Did you mean 'think-action'"),
        ({"turn": {"style": "think-action"}, "level": "text"}, "text level has no turn settings"),
        ({"policies": [PolicySpec("model", model="m")], "level": "text"}, "needs prompts"),
    ],
)
async def test_a_plan_that_does_not_fit_says_what_to_type(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidRequest, UnknownTask), match=says):
        await resolved(**changes)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (PolicySpec("exprt"), "Did you mean 'expert'"),
        (PolicySpec("replay"), "needs a records file"),
        (PolicySpec("model"), "needs a model"),
        (PolicySpec("no.such.module:Policy"), "No module named"),
        (PolicySpec("turngym.errors:Policy"), "has no attribute 'Policy'"),
    ],
)
def test_a_policy_that_cannot_be_made_says_why(spec: PolicySpec, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        spec.build()


async def test_equal_plans_share_a_folder_and_others_do_not() -> None:
    name = folder_name(await resolved())
    assert name.startswith("bandit-random-") and name == folder_name(await resolved(summary="another"))
    assert name != folder_name(await resolved(seed=1))
    model = PolicySpec("model", model="org/m 1", base_url="http://a/v1")
    moved = PolicySpec("model", model="org/m 1", base_url="http://b/v1")
    assert folder_name(await resolved(policies=[model])) == folder_name(await resolved(policies=[moved]))
    assert "/" not in folder_name(await resolved(policies=[model]))


# Metrics -------------------------------------------------------------------------------------------


def turn(index: int, **fields: Any) -> Turn:
    reply = Completion(
        text="r", **{name: fields.pop(name) for name in list(fields) if name in Completion.__struct_fields__}
    )
    return Turn(**{"index": index, "observation": "o", "completion": reply, "action": "a", **fields})


def episode(task: int = 0, *turns: Turn, **fields: Any) -> Episode:
    defaults: dict[str, Any] = {
        "id": f"{task}:{fields.get('attempt', 0)}", "env": "e", "task": f"test/{task}", "seed": 0, "split": "test",
        "policy": "p", "status": "terminated", "turns": list(turns), "score": float(fields.get("won", False)),
    }  # fmt: skip
    return Episode(**{**defaults, **fields})


def row_of(*episodes: Episode) -> Row:
    (row,) = (row for row in rows([summarise(each) for each in episodes]) if row.by == "env")
    return row


def test_rates_are_shares_of_turns() -> None:
    turns = [
        turn(0, anchor="x", action="left", format_valid=True, completion_tokens=10, prompt_tokens=100, cost=0.5),
        turn(1, anchor="x", action="left", format_valid=True, action_valid=False, completion_tokens=30),
        turn(2, anchor="y", action="left", format_valid=False, void=True, finish_reason="length"),
        turn(3, anchor="x", action="", format_valid=False, action_valid=False),
        turn(4, anchor="x", action="", format_valid=True),
    ]
    row = row_of(episode(0, *turns, status="truncated"), episode(1, turn(0, format_valid=True, steps=3), won=True))
    assert (row.episodes, row.tasks, row.turns, row.turns_won) == (2, 2, 3.0, 1.0)
    assert row.actions == pytest.approx((5 + 3) / 2)
    assert row.invalid == pytest.approx(3 / 6)  # inadmissible, malformed, both
    assert row.repetitive == pytest.approx(1 / 6)  # only the second "left" in x; no action repeats no action
    assert row.format_valid == pytest.approx(4 / 6)
    assert (row.void, row.cut) == (pytest.approx(1 / 6), pytest.approx(1 / 6))
    assert (row.truncated, row.overflow) == (0.5, 0.0)
    assert (row.tokens_turn, row.prompt_tokens_turn, row.cost) == (20.0, 100.0, 0.5)
    assert row.tokens_won is None  # the won episode's tokens are not known


def test_what_is_not_known_is_not_zero() -> None:
    row = row_of(episode(0, turn(0)))
    assert row.format_valid is row.void is row.tokens_turn is row.cut is row.cost is row.turns_won is None


def test_failed_episodes_count_only_as_failed() -> None:
    row = row_of(episode(0, won=True), episode(1, status="failed", error={"detail": "x"}, reward=9.0))
    assert (row.episodes, row.failed, row.tasks) == (1, 1, 1)
    assert row.success is not None and row.success.mean == 1.0
    lost = row_of(episode(0, status="failed"))
    assert (lost.episodes, lost.failed, lost.success, lost.turns) == (0, 1, None, None)


def test_an_overflowing_turn_counts_in_no_rate() -> None:
    last = turn(1, action="", action_valid=False, finish_reason="context_overflow", steps=0)
    row = row_of(episode(0, turn(0, format_valid=True), last, status="truncated"))
    assert (row.turns, row.invalid, row.overflow, row.truncated) == (1.0, 0.0, 1.0, 1.0)


def test_means_are_taken_over_tasks() -> None:
    attempts = [episode(0, attempt=0, won=True, reward=4.0), *(episode(1, attempt=k, reward=1.0) for k in range(3))]
    row = row_of(*attempts)
    assert row.success is not None and row.success.mean == 0.5  # not 1/4
    assert row.reward is not None and row.reward.mean == 2.5
    assert row.pass_at == {1: 0.5, 2: 0.0, 3: 0.0}  # tasks with fewer attempts are left out


def test_reward_components_are_means_over_episodes() -> None:
    row = row_of(
        episode(0, turn(0, rewards={"env": 1.0, "bonus": 0.5}), turn(1, rewards={"env": 2.0})),
        episode(1, turn(0, rewards={"env": -1.0})),
    )
    assert row.components == {"env": 1.0, "bonus": 0.25}
    assert list(row.components) == ["env", "bonus"]


def test_rows_go_down_to_splits_and_task_types() -> None:
    found = rows(
        [
            summarise(episode(0, won=True, split="test", task_type="look")),
            summarise(episode(1, split="test", task_type="heat")),
            summarise(episode(2, id="v", won=True, split="val", task_type="look")),
        ]
    )
    share = {(row.by, row.split, row.task_type): row.success and row.success.mean for row in found}
    assert share == {
        ("env", "", ""): pytest.approx(2 / 3),
        ("split", "test", ""): 0.5,
        ("split", "val", ""): 1.0,
        ("task_type", "test", "look"): 1.0,
        ("task_type", "test", "heat"): 0.0,
        ("task_type", "val", "look"): 1.0,
    }


def test_environment_variants_are_told_apart_by_their_group() -> None:
    summaries = [summarise(episode(0, group=f"{name}:test/0", id=name)) for name in ("ragen-sokoban", "mine")]
    assert {row.env for row in rows(summaries)} == {"ragen-sokoban", "mine"}


@pytest.mark.parametrize(("attempts", "won"), [(5, 0), (5, 1), (5, 3), (5, 5), (3, 2)])
def test_pass_at_k_is_the_share_of_winning_subsets(attempts: int, won: int) -> None:
    outcomes = [True] * won + [False] * (attempts - won)
    for k in range(1, attempts + 1):
        subsets = list(combinations(outcomes, k))
        assert pass_at_k(attempts, won, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_intervals_agree_with_theory() -> None:
    values = np.zeros((400, 2))
    values[:120, 0] = 1.0
    values[:, 1] = 7.0
    share, constant = bootstrap(values)
    width = 1.96 * math.sqrt(0.3 * 0.7 / 400)
    assert share.mean == pytest.approx(0.3)
    assert share.low == pytest.approx(0.3 - width, abs=0.006) and share.high == pytest.approx(0.3 + width, abs=0.006)
    assert (constant.mean, constant.low, constant.high) == (7.0, 7.0, 7.0)
    assert bootstrap(values) == [share, constant]
    assert bootstrap(values, seed=1) != [share, constant]


def test_intervals_resample_tasks_and_not_episodes() -> None:
    # Ten attempts at each of 20 tasks, all equal within a task: no more certain than one attempt each.
    one = row_of(*(episode(task, won=task % 2 == 0) for task in range(20)))
    ten = row_of(*(episode(task, won=task % 2 == 0, attempt=k) for task in range(20) for k in range(10)))
    assert one.success == ten.success
    assert one.success is not None and one.success.high - one.success.low > 0.3


def test_the_last_record_of_an_episode_counts() -> None:
    summaries = [summarise(episode(0, status="failed")), summarise(episode(1)), summarise(episode(0, won=True))]
    kept = latest(summaries)
    assert [(summary.id, summary.failed) for summary in kept] == [("0:0", False), ("1:0", False)]


def test_numbers_read_well() -> None:
    assert [show(value, "share") for value in (None, 0.5, 1.0)] == ["–", "50.0 %", "100.0 %"]
    assert [show(value) for value in (1.0, -0.123, 12.34, 1234.5)] == ["1.00", "-0.12", "12.3", "1,234"]
    assert [show(3.0, "count"), show(0.0123, "seconds"), show(2.0, "seconds"), show(0.00012, "money")] == [
        "3", "12.3 ms", "2.0 s", "0.0001",
    ]  # fmt: skip


# Runs ----------------------------------------------------------------------------------------------


class Unlucky(BasePolicy):
    """Fails on some tasks until it is told to recover."""

    def __init__(self, name: str = "unlucky", every: int = 3) -> None:
        self.name = name
        self.every = every
        self.inner = RandomPolicy()
        self.calls = 0

    async def act(self, context: Context) -> Completion:
        self.calls += 1
        if self.every and int(context.task.rpartition("/")[2]) % self.every == 0:
            raise PolicyFailed("no luck", hint="Try again.")
        return await self.inner.act(context)


def run(out: Path, policy: Any = None, limits: Limits | None = None, **changes: Any) -> Results:
    policies = {policy.name: policy} if policy else None
    names = [policy.name] if policy else ["random"]
    return evaluate(plan(**{"policies": names, **changes}), out, policies=policies, limits=limits)


def test_a_run_leaves_plan_episodes_metrics_and_report(tmp_path: Path) -> None:
    results = run(tmp_path / "run", policies=["expert", "random"], envs=["bandit", "sokoban"], pass_k=2)
    assert (results.played, results.kept, results.missing, results.problem) == (64, 0, 0, None)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "episodes.jsonl", "metrics.json", "plan.json", "report.html",
    ]  # fmt: skip
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert len({each.id for each in episodes}) == 64
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    (expert,) = [r for r in metrics["rows"] if r["by"] == "env" and (r["policy"], r["env"]) == ("expert", "bandit")]
    assert expert["success"] == {"mean": 1.0, "low": 1.0, "high": 1.0} and expert["pass_at"] == {"1": 1.0, "2": 1.0}
    assert set(metrics["definitions"]) == set(DEFINITIONS)
    # Every number of a row is defined, and every definition is a number of a row.
    assert set(Row.__struct_fields__) - {"by", "policy", "env", "split", "task_type"} == set(DEFINITIONS)


def test_numbers_do_not_depend_on_the_order_of_finishing(tmp_path: Path) -> None:
    one = run(tmp_path / "a", limits=Limits(concurrency=1))
    many = run(tmp_path / "b", limits=Limits(concurrency=7))
    for row in (*one.rows, *many.rows):
        row.seconds = None
    assert one.rows == many.rows


def test_failed_episodes_are_played_again(tmp_path: Path) -> None:
    policy = Unlucky()
    first = run(tmp_path, policy)
    assert (first.played, first.missing) == (8, 3)  # tasks 0, 96 and 192 of 0, 32, …, 224
    assert first.problem is not None and first.problem.detail == "no luck"
    policy.every = 0
    second = run(tmp_path, policy)
    assert (second.played, second.kept, second.missing, second.problem) == (3, 5, 0, None)
    assert run(tmp_path, policy).played == 0


def test_a_policy_that_only_fails_is_given_up(tmp_path: Path) -> None:
    policy = Unlucky(every=1)
    results = run(tmp_path, policy, Limits(concurrency=1, give_up_after=3), episodes=50)
    assert results.missing == 50 and 3 <= results.played < 10
    assert any("given up after 3 failures in a row: no luck" in note for note in results.notes)
    assert run(tmp_path / "all", policy, Limits(give_up_after=0), episodes=50).played == 50


class Failing(Bandit):
    """Fails in every step, as an environment whose process is gone."""

    def _apply(self, action: str) -> Effect:
        raise EnvironmentFailed("it is gone.")


def test_an_environment_that_only_fails_is_given_up_and_the_others_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("turngym_failing")
    module.Failing = Failing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = registry.EnvSpec("failing", "turngym_failing:Failing", hidden=True)
    monkeypatch.setitem(registry._registry, "failing", spec)
    results = evaluate(
        plan(envs=["failing", "bandit"], episodes=20), tmp_path, limits=Limits(concurrency=1, give_up_after=3)
    )
    assert {row.env: row.episodes for row in results.rows if row.episodes} == {"bandit": 20}
    assert "random was given up in failing after 3 failures in a row: it is gone" in results.notes


def test_a_context_too_small_for_the_first_prompt_is_noted(tmp_path: Path) -> None:
    class Tiny(BasePolicy):
        name = "tiny"

        async def act(self, context: Context) -> Completion:
            return Completion(text="", finish_reason="context_overflow")

    results = run(tmp_path, Tiny())
    assert any("8 episodes did not fit" in note and "token limit" in note for note in results.notes)
    assert results.missing == 0 and results.rows[0].overflow == 1.0


def test_another_plan_does_not_fit_into_the_folder(tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / "episodes.jsonl").read_bytes()
    with pytest.raises(InvalidRequest, match=r"another plan: seed is 0 there and 1 here"):
        run(tmp_path, seed=1)
    with pytest.raises(InvalidRequest, match=r"envs\[0\]\.turn\.style is 'think-answer' there"):
        run(tmp_path, turn={"style": "think-action"})
    assert (tmp_path / "episodes.jsonl").read_bytes() == before


def test_a_policy_can_join_a_run_but_none_can_leave_or_change(tmp_path: Path) -> None:
    run(tmp_path)
    both = run(tmp_path, policies=["random", "expert"])
    assert (both.played, both.kept, both.missing) == (8, 8, 0)
    assert {row.policy for row in both.rows} == {"random", "expert"}
    with pytest.raises(InvalidRequest, match="also holds the policy 'random'"):
        run(tmp_path, policies=["expert"])
    with pytest.raises(InvalidRequest, match=r"random\.seed is None there and 5 here"):
        run(tmp_path, policies=[PolicySpec("random", seed=5), "expert"])


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"episodes but no plan\.json"):
        run(tmp_path)
    assert (tmp_path / "episodes.jsonl").read_text() == "mine"


def test_evaluation_through_a_hub_gives_the_same_rows(tmp_path: Path, url: str) -> None:
    here = evaluate(plan(envs=["bandit", "frozen-lake"]), tmp_path / "here")
    there = evaluate(plan(envs=["bandit", "frozen-lake"]), tmp_path / "there", url=url)
    for row in (*here.rows, *there.rows):
        row.seconds = None
    assert here.rows == there.rows


def test_a_policy_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_agent_policy.py").write_text(
        "from turngym.client.policies import RandomPolicy\nclass Agent(RandomPolicy):\n    pass\n"
    )
    results = evaluate(plan(policies=["my_agent_policy:Agent"]), tmp_path / "run")
    assert results.rows[0].policy == "Agent" and results.missing == 0
