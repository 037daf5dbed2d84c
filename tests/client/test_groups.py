"""Groups: members play the very same task and variation, and only their noise differs. Over the whole registry."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import turngym
from turngym.client.connect import HubClient
from turngym.client.evaluation.plan import EvalPlan
from turngym.client.evaluation.runner import evaluate
from turngym.envs.core import member_seed
from turngym.envs.registry import get_spec, specs, unmet
from turngym.records import StepResult, read_episodes

MEMBERS, STEPS, SEED = 4, 12, 7


@pytest.fixture(scope="module")
def client(hub: Any) -> Iterator[HubClient]:
    with turngym.connect(hub.url) as found:
        yield found


@pytest.fixture(params=list(specs()))
def env_id(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if (error := unmet(name)) is not None:
        pytest.skip(f"data: {error}")
    return name


def without_seed(result: StepResult) -> tuple[Any, ...]:
    info = {name: value for name, value in result.info.items() if name != "seed"}
    return result.observation, result.reward, result.terminated, result.truncated, info


def course(env: Any, seeds: list[int] | None = None, options: dict[str, Any] | None = None) -> list[list[Any]]:
    """Play the same actions in every member; return what each member saw, its seed left out."""
    if seeds is not None:
        env.reset(seed=seeds, options=options)
    choose = random.Random(SEED)
    seen = [[without_seed(result)] for result in env.last]
    for _ in range(STEPS):
        going = [i for i, result in enumerate(env.last) if not result.done]
        if not going:
            break
        admissible = env.last[going[0]].info["admissible"]
        action = choose.choice(admissible)
        for i, result in env.step_some(dict.fromkeys(going, action)).items():
            seen[i].append(without_seed(result))
    return seen


def test_members_over_http(env_id: str, client: HubClient) -> None:
    group = client.group(env_id, MEMBERS, seed=SEED, split="test")
    infos = [result.info for result in group.last]
    assert len({info["task"] for info in infos}) == 1 and infos[0]["task"].startswith("test/")
    assert [info["seed"] for info in infos] == [member_seed(SEED, member) for member in range(MEMBERS)]
    first, *others = (without_seed(result) for result in group.last)
    assert all(other == first for other in others), "one initial state, whatever the noise"
    remote = course(group)
    if get_spec(env_id).load().deterministic:
        assert all(member == remote[0] for member in remote)
    group.close()
    # In process, the same task and the same noise take the same course.
    local = turngym.make_vec(env_id, MEMBERS, autoreset_mode="Disabled")
    seeds = [member_seed(SEED, member) for member in range(MEMBERS)]
    assert course(local, seeds, {"task": infos[0]["task"]}) == remote
    local.close()


def test_shared_noise_makes_members_equal(env_id: str, client: HubClient) -> None:
    group = client.group(env_id, 3, seed=SEED, split="train", shared_noise=True)
    assert {result.info["seed"] for result in group.last} == {SEED}
    one, *others = course(group)
    assert all(other == one for other in others)
    group.close()


def test_attempts_of_an_evaluation_are_a_group(env_id: str, client: HubClient, tmp_path: Any, hub: Any) -> None:
    plan = EvalPlan(envs=[env_id], policies=["random"], episodes=2, pass_k=3, turn={"max_turns": 2})
    for name, url in (("here", None), ("there", hub.url)):
        evaluate(plan, tmp_path / name, url=url)
    here, there = (
        {episode.id: episode for episode in read_episodes(tmp_path / name / "episodes.jsonl")}
        for name in ("here", "there")
    )
    assert len(here) == 6 and here.keys() == there.keys()
    for task in {episode.task for episode in here.values()}:
        members = [episode for episode in [*here.values(), *there.values()] if episode.task == task]
        assert {episode.status for episode in members} <= {"terminated", "truncated"}
        assert len({str(episode.turns[0].prompt) for episode in members}) == 1
        assert len({episode.turns[0].anchor for episode in members}) == 1
        assert len({episode.seed for episode in members}) == 3 and len({episode.group for episode in members}) == 1
