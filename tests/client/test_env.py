"""A remote environment behaves as the local one: transcripts, errors, forks, both levels, sync and async."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import turngym
from turngym.client.connect import connect_async
from turngym.client.evaluation.plan import EvalPlan, resolve
from turngym.client.sources import HubSource
from turngym.envs.presets import EnvPreset
from turngym.errors import (
    EnvironmentFailed,
    EpisodeOver,
    InvalidRequest,
    NotReset,
    SessionBusy,
    TurngymError,
    UnknownTask,
    Unsupported,
)
from turngym.records import Completion

ENVS = ["bandit", "bandit-reversed", "frozen-lake", "sokoban", "sokoban-vocab"]


def transcript(env: Any, seed: int, choose: random.Random, steps: int = 12) -> list[Any]:
    """Play at random, at either level, and return everything the environment said."""
    observation, info = env.reset(seed=seed, options={"split": "test"})
    seen: list[Any] = [observation, info, env.task, env.seed]
    while not env.done and len(seen) < 4 + steps:
        action = choose.choice(info["admissible"])
        if hasattr(env, "wrap") and not isinstance(observation, str):
            action = env.wrap(action, "Thinking.") if choose.random() < 0.7 else f"no tags but {action}"
        result = env.step(action)
        observation, info = result[0], result[4]
        seen += [*result, env.done]
    return seen


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("level", ["text", "turn"])
def test_transcripts_are_those_of_the_local_environment(name: str, level: str, url: str) -> None:
    preset = EnvPreset(name)
    local = preset.make_text() if level == "text" else preset.make_turn()
    remote = turngym.connect(url, name, level=level)  # type: ignore[arg-type]
    for seed in range(3):
        assert transcript(remote, seed, random.Random(seed)) == transcript(local, seed, random.Random(seed))
        assert remote.instructions == local.instructions
    remote.close()


@pytest.mark.parametrize("name", ["bandit", "frozen-lake", "sokoban"])
def test_check_env_passes(name: str, url: str) -> None:
    env = turngym.connect(url, name, max_steps=5) if name != "bandit" else turngym.connect(url, name)
    check_env(env, skip_render_check=True)
    env.close()


def test_the_turns_are_those_of_the_turn_level(url: str) -> None:
    hooks = {"format-penalty": {}, "meta-reasoning": {}}
    preset = EnvPreset("sokoban", turn={"style": "meta-tags", "hooks": hooks, "max_turns": 5})
    local = preset.make_turn()
    remote = turngym.connect(url, "sokoban", level="turn", turn=preset.turn)
    forks = []
    for env in (local, remote):
        env.reset(seed=2, options={"task": "test/1"})
        for number, reply in enumerate(["junk", *["<planning>Go.</planning><action>Up</action>"] * 4]):
            if number == 2:
                forks.append(env.fork())
            env.step(reply)
    plain = [msgspec.structs.replace(turn, info={}) for turn in local.turns]
    assert remote.turns == plain and len(plain) == 5
    assert [len(fork.turns) for fork in forks] == [2, 2]
    remote.reset(seed=2)
    assert remote.turns == []
    remote.close()


def test_a_completion_may_be_stepped(url: str) -> None:
    env = turngym.connect(url, "bandit", level="turn")
    env.reset(seed=0)
    completion = Completion(text=str(env.expert_action()), token_ids=[1, 2, 3])
    env.step(completion)
    assert env.turns[0].completion is completion
    env.close()


def wrongs() -> list[tuple[str, Callable[[Any], Any], type[TurngymError]]]:
    return [
        ("step before reset", lambda env: env.step("Left"), NotReset),
        ("an option", lambda env: env.reset(options={"tusk": 1}), InvalidRequest),
        ("a split", lambda env: env.reset(options={"split": "holiday"}), UnknownTask),
        ("a split of another type", lambda env: env.reset(options={"split": 3}), UnknownTask),
        ("a task", lambda env: env.reset(options={"task": "test/99999"}), UnknownTask),
        ("a task that is no id", lambda env: env.reset(options={"task": "seven"}), UnknownTask),
        ("a task of another type", lambda env: env.reset(options={"task": 1.5}), UnknownTask),
        ("a truth as task", lambda env: env.reset(options={"task": True}), UnknownTask),
        ("a huge task", lambda env: env.reset(options={"task": 2**70}), UnknownTask),
        ("a task below 0", lambda env: env.reset(options={"task": -1}), UnknownTask),
        ("a seed", lambda env: env.reset(seed=-1), InvalidRequest),
        ("a large seed", lambda env: env.reset(seed=2**53), InvalidRequest),
        ("a seed of another type", lambda env: env.reset(seed="1"), InvalidRequest),
        ("an action", lambda env: (env.reset(), env.step(3)), InvalidRequest),
        ("tasks", lambda env: env.tasks("holiday"), UnknownTask),
        ("a noise seed", lambda env: (env.reset(), env.reseed(-5)), InvalidRequest),
        ("a fork's seed", lambda env: (env.reset(), env.fork(seed=1.5)), InvalidRequest),
        ("after the end", lambda env: (env.reset(), env.step("Left"), env.step("Left")), EpisodeOver),
    ]


@pytest.mark.parametrize(("call", "error"), [each[1:] for each in wrongs()], ids=[each[0] for each in wrongs()])
def test_errors_are_those_of_the_local_environment(
    call: Callable[[Any], Any], error: type[TurngymError], url: str
) -> None:
    caught = []
    remote = turngym.connect(url, "frozen-lake", max_steps=1)
    for env in (turngym.make("frozen-lake", max_steps=1), remote):
        with pytest.raises(error) as info:
            call(env)
        assert type(info.value) is error
        caught.append(info.value)
    assert caught[1].hint
    # The environment goes on as if nothing had happened.
    assert remote.reset(seed=3)[0] == turngym.make("frozen-lake").reset(seed=3)[0]
    remote.close()


def test_a_task_may_be_named_in_every_way(url: str) -> None:
    env = turngym.connect(url, "sokoban")
    for options in ({"task": "test/7"}, {"split": "test", "task": 7}, {"split": "test", "task": np.int64(7)}):
        assert env.reset(seed=np.int64(1), options=options)[1]["task"] == env.task == "test/7"  # type: ignore[arg-type]
    assert env.seed == 1
    assert list(env.tasks("test"))[7] == "test/7" and len(env.tasks("train")) == env.splits["train"]
    env.close()


async def test_tasks_are_those_of_the_settings(url: str) -> None:
    env = turngym.connect(url, "tally", size=3)
    assert list(env.tasks("test")) == ["test/0", "test/1", "test/2"] and env.splits["test"] == 3
    env.reset(seed=0, options={"task": "test/2"})
    assert env.fork().splits == env.splits
    env.close()
    with pytest.raises(InvalidRequest, match="tally"):
        turngym.connect(url, "tally", siez=3)
    plan = EvalPlan(envs=["tally"], policies=["random"], level="text", config={"size": 3})
    source = HubSource(url)
    assert (await resolve(plan, source)).sizes == {"tally": {"test": 3}}
    await source.aclose()


def test_resets_without_a_seed_follow_from_the_last_seed(url: str) -> None:
    remote, local = turngym.connect(url, "sokoban"), turngym.make("sokoban")
    seeds = []
    for env in (remote, local):  # Sokoban's steps draw no noise, so that even the chain is the same
        env.reset(seed=5)
        env.step("Up")
        seeds.append([env.reset()[1]["seed"] for _ in range(3)])
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 3
    fresh = [turngym.connect(url, "sokoban") for _ in range(2)]
    first = [env.reset()[1]["seed"] for env in fresh]
    assert first[0] != first[1]
    for env in (remote, *fresh):
        env.close()


def noise(env: Any, steps: int = 8) -> list[float]:
    return [env.step("hello")[1] for _ in range(steps)]


def test_forks_are_independent_and_continue_the_noise(url: str) -> None:
    env = turngym.connect(url, "tally-inline")
    env.reset(seed=1)
    noise(env, 3)
    twins = [env.fork(), env.fork(), env.fork(seed=9), env.fork(seed=9)]
    before = env.state()
    rewards = [noise(twin) for twin in twins]
    assert env.state() == before
    assert rewards[0] == rewards[1] == noise(env)
    assert rewards[2] == rewards[3] != rewards[0]
    assert twins[0].task == env.task and twins[0].seed == env.seed == 1
    twins[0].reset(seed=2)
    assert env.remote.session.log and not twins[0].remote.session.log
    env.close()


def test_reseeding_restarts_the_noise(url: str) -> None:
    env = turngym.connect(url, "tally-inline")
    env.reset(seed=1)
    noise(env, 2)
    twin = env.fork(seed=7)
    env.reseed(7)
    assert noise(env) == noise(twin)
    assert env.state().info["step"] == 10
    env.close()


def test_forks_and_noise_before_the_first_reset(url: str) -> None:
    env = turngym.connect(url, "tally-inline")
    twin = env.fork()
    env.reseed(4)
    other = turngym.connect(url, "tally-inline")
    other.reseed(4)
    assert env.reset()[1]["seed"] == other.reset()[1]["seed"]
    twin.reset(seed=0)
    with pytest.raises(NotReset):
        turngym.connect(url, "frozen-lake").text()
    env.close()
    other.close()


def test_the_expert_solves(url: str) -> None:
    env = turngym.connect(url, "sokoban")
    _, info = env.reset(seed=0, options={"task": "test/0"})
    for action in env.expert():
        *_, info = env.step(action)
    assert info["won"] and env.done
    env.close()
    unknowing = turngym.connect(url, "tally-inline")
    unknowing.reset(seed=0)
    assert unknowing.expert_action() is None
    with pytest.raises(Unsupported):
        next(unknowing.expert())
    unknowing.close()


def test_rendering(url: str) -> None:
    local = turngym.make("frozen-lake", render_mode="rgb_array")
    local.reset(seed=1)
    for mode, check in (
        ("ansi", lambda shown: shown == local._observe()),
        ("rgb_array", lambda shown: np.array_equal(shown, local.picture())),
        (None, lambda shown: shown is None),
    ):
        env = turngym.connect(url, "frozen-lake", render_mode=mode)
        env.reset(seed=1)
        assert check(env.render())
        assert np.array_equal(env.picture(), local.picture())
        env.close()
    blind = turngym.connect(url, "tally-inline")
    blind.reset(seed=1)
    with pytest.raises(Unsupported):
        blind.picture()
    blind.close()


def test_instructions_are_those_of_the_settings(url: str) -> None:
    env = turngym.connect(url, "tally-inline", marker="here")
    env.reset(seed=0)
    assert env.instructions == "Say something. Marker: here."
    assert env.task_type() == ("odd" if env.task.endswith("1") else "even")
    env.close()
    plain = turngym.connect(url, "tally-inline")
    assert plain.instructions == "Say something. Marker: ."
    plain.close()


def test_text_that_json_cannot_carry_is_replaced(url: str) -> None:
    env = turngym.connect(url, "tally-inline")
    env.reset(seed=0)
    assert env.step("a\ud800b\x00ü")[0] == "a?b\x00ü"
    env.close()


def test_prompts_belong_to_the_caller(url: str) -> None:
    env = turngym.connect(url, "sokoban", level="turn")
    observation, _ = env.reset(seed=0)
    kept = [dict(message) for message in observation]
    observation.append({"role": "assistant", "content": "mine"})
    observation[0]["content"] = "changed"
    assert env.state().observation == kept
    assert env.remote.session.observation == kept
    env.close()


def test_an_environment_that_breaks_is_rebuilt_without_the_broken_step(url: str) -> None:
    env = turngym.connect(url, "tally-inline")
    env.reset(seed=0)
    env.step("one")
    with pytest.raises(EnvironmentFailed, match="broken on request"):
        env.step("break")
    assert env.step("two")[0] == "one two"
    env.close()


async def test_one_call_at_a_time(url: str, tmp_path: Any) -> None:
    async with await connect_async(url, "tally", marker=str(tmp_path / "marker")) as env:
        await env.reset(seed=0)
        first = asyncio.ensure_future(env.step("slow"))
        await asyncio.sleep(0)
        with pytest.raises(SessionBusy):
            await env.step("quick")
        assert (await first)[0] == "slow"
        assert (await env.step("quick"))[0] == "slow quick"


async def test_a_cancelled_step_can_be_repeated(url: str, tmp_path: Any) -> None:
    async with await connect_async(url, "tally", marker=str(tmp_path / "marker")) as env:
        await env.reset(seed=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.step("slow"), 0.2)
        assert (await env.step("slow"))[0] == "slow"
        assert (tmp_path / "marker").read_text() == "slow\n"


async def test_many_tasks_share_one_connection(url: str) -> None:
    async with await connect_async(url) as hub:
        envs = await asyncio.gather(*(hub.make("frozen-lake") for _ in range(32)))

        async def play(env: Any, seed: int) -> list[Any]:
            seen = [(await env.reset(seed=seed))[0]]
            while not env.done and len(seen) < 10:
                seen.append((await env.step("Down"))[:4])
            return seen

        remote = await asyncio.gather(*(play(env, seed) for seed, env in enumerate(envs)))
        assert len(await hub.sessions()) >= 32
    local = turngym.make("frozen-lake")
    for seed, seen in enumerate(remote):
        expected: list[Any] = [local.reset(seed=seed)[0]]
        while not local.done and len(expected) < 10:
            expected.append(local.step("Down")[:4])
        assert seen == expected


async def test_the_asynchronous_surface(url: str) -> None:
    async with await connect_async(url, "sokoban", render_mode="ansi") as env:
        await env.reset(seed=1, options={"task": "test/3"})
        twin = await env.fork()
        async for action in env.expert():
            await env.step(action)
        assert env.done and not twin.done
        assert await twin.render() == await twin.text()
        assert (await twin.picture()).ndim == 3
        await twin.reseed(3)
        assert (await twin.state()).info["task"] == "test/3" == twin.task
        assert "Sokoban" in repr(env) or "sokoban" in repr(env)
