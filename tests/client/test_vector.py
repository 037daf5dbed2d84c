"""Remote vector environments: the same as local ones, one message a step, groups, failures of single members."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import turngym
from turngym.client import transport
from turngym.client.connect import HubClient, connect_async
from turngym.envs.core import member_seed
from turngym.errors import EnvironmentFailed, EpisodeOver, InvalidRequest, NotReset, UnknownTask
from turngym.records import StepResult


@pytest.fixture
def hub_client(url: str) -> Iterator[HubClient]:
    with turngym.connect(url) as client:
        yield client


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def course(env: Any, seed: int, steps: int, options: dict[str, Any]) -> list[Any]:
    """Play at random and return everything the vector environment said."""
    choose = random.Random(seed)
    observations, infos = env.reset(seed=seed, options=options)
    seen: list[Any] = [observations, plain(infos)]
    for _ in range(steps):
        result = env.step([choose.choice(["Up", "Down", "Left", "Right"]) for _ in range(env.num_envs)])
        seen += [plain(part) for part in result]
    return seen


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_courses_are_those_of_the_local_vector(mode: str, hub_client: HubClient) -> None:
    # Sokoban's steps draw no noise, so that even the seeds of autoresets agree.
    settings = {"autoreset_mode": mode, "max_steps": 4}
    remote = hub_client.make_vec("sokoban", 5, **settings)  # type: ignore[arg-type]
    local = turngym.make_vec("sokoban", 5, **settings)  # type: ignore[arg-type]
    assert remote.metadata["autoreset_mode"] is local.metadata["autoreset_mode"] is AutoresetMode(mode)
    assert course(remote, 3, 12, {"split": "test"}) == course(local, 3, 12, {"split": "test"})
    observations, _ = remote.reset()
    assert observations in remote.observation_space
    assert len(remote.action_space.sample()) == 5


def test_the_turn_level(hub_client: HubClient) -> None:
    remote = hub_client.make_vec("frozen-lake", 3, level="turn", turn={"memory": 1})
    local = turngym.make_vec("frozen-lake", 3, level="turn", turn={"memory": 1})
    for env in (remote, local):
        assert env.reset(seed=1)[0] in env.observation_space
    actions = [str(action) for action in local.expert_actions()]
    assert remote.expert_actions() == actions
    assert [plain(part) for part in remote.step(actions)] == [plain(part) for part in local.step(actions)]
    remote.close()


def test_a_step_is_one_message(hub_client: HubClient, monkeypatch: pytest.MonkeyPatch) -> None:
    env = hub_client.make_vec("frozen-lake", 64)
    env.reset(seed=0)
    sent: list[bytes] = []
    send = transport.Socket.send
    monkeypatch.setattr(transport.Socket, "send", lambda socket, data: (sent.append(data), send(socket, data)))
    env.step(["nonsense"] * 64)
    assert len(sent) == 1


def test_large_requests_travel_in_parts(hub_client: HubClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ITEMS", 5)
    monkeypatch.setattr(transport, "MAX_BYTES", 2_000)
    env = hub_client.make_vec("tally-inline", 12)
    env.reset(seed=0)
    observations, *_ = env.step([f"{i:0700d}" for i in range(12)])
    assert observations == tuple(f"{i:0700d}" for i in range(12))
    assert env.step(["x"] * 12)[0][11] == f"{11:0700d} x"


def test_disabled_and_masks(hub_client: HubClient) -> None:
    env = hub_client.make_vec("frozen-lake", 2, max_steps=1, autoreset_mode="Disabled")
    env.reset(seed=1)
    env.step_some({0: "Left"})
    with pytest.raises(EpisodeOver):
        env.step(["Left", "Left"])
    _, infos = env.reset(seed=[7, 8], options={"reset_mask": np.array([True, False])})
    assert infos["_seed"].tolist() == [True, False] and infos["seed"][0] == 7
    assert env.last[1] is not None and env.last[1].info["seed"] == 2
    env.step(["Left", "Left"])


def test_chosen_members(hub_client: HubClient) -> None:
    env = hub_client.make_vec("tally-inline", 3)
    with pytest.raises(NotReset):
        env.step_some({0: "one"})
    env.reset(seed=0)
    assert env.step_some({}) == {}
    results = env.step_some({2: "one", 0: "two"})
    assert [(i, result.observation) for i, result in results.items() if isinstance(result, StepResult)] == [
        (2, "one"),
        (0, "two"),
    ]
    outcomes = env.reset_some({0: {"task": "test/99999"}, 1: {"task": "test/3", "seed": 9}})
    assert isinstance(outcomes[0], UnknownTask)
    assert isinstance(outcomes[1], StepResult) and outcomes[1].info["task"] == "test/3"
    env.step(["three"] * 3)
    assert [last.observation for last in env.last if last is not None] == ["two three", "three", "one three"]


def test_a_member_that_fails_harms_no_other(hub_client: HubClient) -> None:
    env = hub_client.make_vec("tally-inline", 3)
    env.reset(seed=0)
    env.step(["one"] * 3)
    with pytest.raises(EnvironmentFailed) as caught:
        env.step(["two", "break", "two"])
    assert "Members [1] failed" in caught.value.__notes__[0]
    outcomes = env.step_some({0: "three", 1: "break"})
    assert isinstance(outcomes[0], StepResult) and isinstance(outcomes[1], EnvironmentFailed)
    assert env.step(["four"] * 3)[0] == ("one two three four", "one four", "one two four")


def test_nothing_is_sent_if_an_action_does_not_fit(hub_client: HubClient) -> None:
    env = hub_client.make_vec("tally-inline", 2)
    env.reset(seed=0)
    with pytest.raises(InvalidRequest):
        env.step(["one", 3])  # type: ignore[list-item]
    assert env.step(["two", "two"])[0] == ("two", "two")


def test_experts_forks_and_rendering(hub_client: HubClient) -> None:
    env = hub_client.make_vec("sokoban", 3, render_mode="ansi")
    assert env.expert_actions() == [None] * 3
    env.reset(seed=0, options={"tasks": ["test/0", "test/1", "test/2"]})
    twin = env.fork(2)
    while (action := env.expert_actions()[0]) is not None:
        env.step_some({0: action})
    assert env.last[0] is not None and env.last[0].info["won"]
    assert twin.task == "test/2" and twin.text() == env.render()[2]
    blind = hub_client.make_vec("sokoban", 2)
    blind.reset(seed=0)
    assert blind.render() == (None, None)
    seeing = hub_client.make_vec("frozen-lake", 2, render_mode="rgb_array")
    seeing.reset(seed=0)
    assert seeing.render()[1].shape[2] == 3


def test_groups_share_a_task_and_differ_in_noise(hub_client: HubClient) -> None:
    group = hub_client.group("tally-inline", 4, seed=11, split="test")
    assert group.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    firsts = [last.info for last in group.last if last is not None]
    assert len({info["task"] for info in firsts}) == 1 and firsts[0]["task"].startswith("test/")
    assert [info["seed"] for info in firsts] == [member_seed(11, i) for i in range(4)]
    assert len(set(group.step(["one"] * 4)[1].tolist())) > 1
    named = hub_client.group("tally-inline", 3, seed=1, task="test/5", shared_noise=True)
    assert [last.info["task"] for last in named.last if last is not None] == ["test/5"] * 3
    assert len(set(named.step(["one"] * 3)[1].tolist())) == 1
    again = hub_client.group("tally-inline", 4, seed=11, split="test")
    assert again.step(["one"] * 4)[1].tolist() == [last.reward for last in group.last if last is not None]
    with pytest.raises(UnknownTask):
        hub_client.group("tally-inline", 2, seed=1, task="test/99999")
    for wrong in ({"n": 0}, {"n": 100_000}, {"seed": -1}):
        with pytest.raises(InvalidRequest):
            hub_client.group(**{"env": "tally-inline", "n": 2, "seed": 1, **wrong})


async def test_the_asynchronous_surface(url: str) -> None:
    async with await connect_async(url) as hub:
        env = await hub.make_vec("sokoban", 3, autoreset_mode="SameStep", max_steps=4)
        local = turngym.make_vec("sokoban", 3, autoreset_mode="SameStep", max_steps=4)
        assert (await env.reset(seed=4))[0] == local.reset(seed=4)[0]
        for _ in range(5):
            assert (await env.step(["Up"] * 3))[0] == local.step(["Up"] * 3)[0]
        assert set(await env.step_some({1: "Down"})) == {1}
        assert set(await env.reset_some({1: {"seed": 3}})) == {1}
        assert await env.expert_actions() == [member.expert_action() for member in await members(env)]
        group = await hub.group("sokoban", 2, seed=0)
        assert group.num_envs == 2 and group.last[0] is not None
        both = await asyncio.gather(env.step(["Up"] * 3), group.step(["Up"] * 2))
        assert [len(result[0]) for result in both] == [3, 2]


async def members(env: Any) -> list[Any]:
    """Rebuild the members in this process from what their sessions know."""
    found = []
    for session in env.sessions:
        local = turngym.make("sokoban", **session.origin.config)
        local.reset(seed=session.seed, options={"task": session.task})
        for action in session.log:
            local.step(action)
        found.append(local)
    return found
