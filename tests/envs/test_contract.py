"""One contract over the whole registry: what every environment promises."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from turngym import make
from turngym.envs.core import TextEnv, member_seed
from turngym.envs.registry import get_spec, specs
from turngym.envs.turn.env import TurnEnv
from turngym.envs.turn.prompts import STYLES
from turngym.errors import EpisodeOver, InvalidRequest, NotReset, UnknownTask

# Ten steps a second: run with `-m browser_contract`; by default test_browser.py compares it with the text environment.
IN_A_BROWSER = pytest.param("webshop-browser", marks=[pytest.mark.browser_contract, pytest.mark.needs("chromium")])
IDS = [*specs(), IN_A_BROWSER]
SLOW = ("scienceworld",)  # a step takes ten milliseconds and more: an eighth of the episodes
NONSENSE = ["", " ", "xyzzy", "||", "Left ||", "\x00", "\ud800", "é😀", "a" * 5000, "{}", "<action>go</action>"]


@pytest.fixture(params=IDS)
def env_id(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def episodes(env_id: str, number: int) -> range:
    return range(max(1, number // 8) if env_id in SLOW else number)


def play(env: TextEnv | TurnEnv, actions: list[str]) -> list[object]:
    return [env.step(action) for action in actions if not env.done]


def some_actions(env: TextEnv, seed: int, n: int) -> list[str]:
    """Admissible actions with nonsense strewn in, chosen on a scratch copy."""
    choice = random.Random(seed)
    scratch, actions = env.fork(), []
    while len(actions) < n and not scratch.done:
        action = choice.choice(NONSENSE) if choice.random() < 0.2 else choice.choice(scratch._admissible())
        scratch.step(action)
        actions.append(action)
    return actions


def test_gymnasium_check(env_id: str) -> None:
    env = gymnasium.make(get_spec(env_id).gymnasium_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checker's remarks on text spaces; its assertions are what counts
        check_env(env.unwrapped)
        check_env(TurnEnv(make(env_id)))


def test_equal_transcripts(env_id: str) -> None:
    first, second = make(env_id), make(env_id)
    for index in episodes(env_id, 8):
        options = {"split": "test", "task": index}
        assert first.reset(seed=index, options=options) == second.reset(seed=index, options=options)
        actions = some_actions(first, index, 30)
        assert play(first, actions) == play(second, actions)


def test_tasks_and_noise_are_the_same_in_another_process(env_id: str) -> None:
    code = (
        "import sys; from turngym import make; env = make(sys.argv[1])\n"
        "for index in range(int(sys.argv[2])):\n"
        "    print(env.reset(seed=index, options={'task': f'test/{index}'}))\n"
        "    while not env.done: print(env.step(env._admissible()[0]))\n"
        "print(env.reset(seed=3))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, env_id, str(len(episodes(env_id, 8)))],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert runs[0] == runs[1] and len(runs[0].splitlines()) > 16


def test_task_and_seed_of_the_info_rebuild_the_episode(env_id: str) -> None:
    env, other = make(env_id), make(env_id)
    env.reset(seed=5)
    for _ in episodes(env_id, 5):
        observation, info = env.reset()  # no seed: drawn and reported
        actions = some_actions(env, 3, 20)
        transcript = play(env, actions)
        assert other.reset(seed=info["seed"], options={"task": info["task"]}) == (observation, info)
        assert play(other, actions) == transcript


def test_fork_continues_and_is_independent(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=1, options={"task": "test/1"})
    play(env, some_actions(env, 1, 3))
    if env.done:
        env.reset(seed=1, options={"task": "test/1"})
    actions = some_actions(env, 2, 20)
    twin = env.fork()
    before = env._observe(), env.steps, env.done
    expected = play(twin, actions)
    assert (env._observe(), env.steps, env.done) == before
    assert play(env, actions) == expected


def test_what_is_called_deterministic_is(env_id: str) -> None:
    env, other = make(env_id), make(env_id)
    transcripts = set()
    for index in episodes(env_id, 16):
        env.reset(seed=index, options={"task": f"test/{index}"})
        other.reset(seed=index + 1000, options={"task": f"test/{index}"})
        actions = some_actions(env, index, 20)
        results = [[step[:4] for step in play(each, actions)] for each in (env, other)]  # type: ignore[index]
        transcripts.add(results[0] == results[1])
    if env.deterministic:
        assert transcripts == {True}
    elif env_id in ("bandit", "frozen-lake"):
        assert False in transcripts


def test_fork_with_a_seed_equals_reseed(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=1, options={"task": "test/2"})
    twin = env.fork(seed=99)
    actions = some_actions(twin, 4, 20)
    expected = play(twin, actions)
    env.reseed(99)
    assert play(env, actions) == expected


def test_no_process_wide_generator(env_id: str) -> None:
    random.seed(0)
    np.random.seed(0)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    env = make(env_id)
    env.reset(seed=0)
    scratch = env.fork()
    while not scratch.done:
        scratch.step(scratch._admissible()[0])
    after = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    assert before == after


def test_admissible_actions_are_accepted(env_id: str) -> None:
    env = make(env_id)
    for index in episodes(env_id, 8):
        _, info = env.reset(seed=index, options={"task": f"train/{index}"})
        for _ in range(10):
            if env.done:
                break
            assert info["admissible"]
            for action in info["admissible"][:: len(info["admissible"]) // 8 + 1 if env_id in SLOW else 1]:
                assert env.fork().step(action)[4]["action_valid"]
            info = env.step(info["admissible"][index % len(info["admissible"])])[4]


@pytest.mark.parametrize("action", NONSENSE)
def test_nonsense_is_answered_in_world(env_id: str, action: str) -> None:
    env = make(env_id)
    env.reset(seed=0, options={"task": "test/0"})
    observation, reward, terminated, _, info = env.step(action)
    assert isinstance(observation, str) and isinstance(reward, float)
    assert not info["action_valid"] or action == "Left ||"
    assert not terminated


def test_infos_are_json(env_id: str) -> None:
    env = make(env_id)
    _, info = env.reset(seed=0)
    infos = [info] + [step[4] for step in play(env, some_actions(env, 0, 10))]  # type: ignore[index]
    for item in infos:
        assert json.loads(json.dumps(item, allow_nan=False)) == item
        assert {"task", "seed", "step", "admissible", "anchor", "won", "score"} <= set(item)
        assert 0 <= item["score"] <= 1


def test_truncated_apart_from_terminated(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=0, options={"task": "test/0"})
    while not env.done:
        _, _, terminated, truncated, info = env.step("xyzzy")
    assert truncated and not terminated and info["admissible"] == [] and env.steps == env.max_steps
    with pytest.raises(EpisodeOver):
        env.step("xyzzy")


def test_expert_solves(env_id: str) -> None:
    env = make(env_id)
    wins = 0
    for index in episodes(env_id, 64):
        env.reset(seed=index, options={"split": "test", "task": index})
        for action in env.expert():
            assert env.step(action)[4]["action_valid"]
        wins += env._won()
    assert env.expert_success > 0
    assert wins / len(episodes(env_id, 64)) >= env.expert_success


def test_tasks(env_id: str) -> None:
    env = make(env_id)
    assert {"train", "test"} <= set(env.splits)
    tasks = env.tasks("test")
    assert len(tasks) == env.splits["test"] and tasks[3] == "test/3" and tasks[-1] == f"test/{len(tasks) - 1}"
    assert list(tasks[2:4]) == ["test/2", "test/3"]
    starts = {env.reset(seed=0, options={"task": task})[0] for task in tasks[:32]}
    assert len(starts) > 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"split": "nowhere"}, UnknownTask),
        ({"split": ["train"]}, UnknownTask),
        ({"task": "test/999999999"}, UnknownTask),
        ({"task": "test/-1"}, UnknownTask),
        ({"task": "7"}, UnknownTask),
        ({"task": True}, UnknownTask),
        ({"task": 1.5}, UnknownTask),
        ({"split": "train", "task": "test/1"}, UnknownTask),
        ({"level": 3}, InvalidRequest),
    ],
)
def test_bad_reset_options(env_id: str, options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make(env_id).reset(seed=0, options=options)


@pytest.mark.parametrize("seed", [-1, 2**53, 1.0, True, "1"])
def test_bad_seeds(env_id: str, seed: object) -> None:
    with pytest.raises(InvalidRequest, match="seed"):
        make(env_id).reset(seed=seed)  # type: ignore[arg-type]


def test_misuse(env_id: str) -> None:
    env = make(env_id)
    with pytest.raises(NotReset):
        env.step("x")
    with pytest.raises(NotReset):
        next(env.expert())
    with pytest.raises(NotReset):
        make(env_id, render_mode="ansi").render()
    env.reset(seed=0)
    with pytest.raises(InvalidRequest):
        env.step(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        make(env_id, max_steps=0)
    with pytest.raises(InvalidRequest, match="max_steps"):
        make(env_id, max_step=3)


def test_render(env_id: str) -> None:
    env = make(env_id, render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    if "rgb_array" in env.metadata["render_modes"]:
        image = env.picture()
        assert image.dtype == np.uint8 and image.ndim == 3 and image.std() > 0
    with pytest.raises(InvalidRequest):
        make(env_id, render_mode="hologram")


@pytest.mark.parametrize("style", STYLES)
def test_turn_level(env_id: str, style: str) -> None:
    env = TurnEnv(make(env_id), style=style, hooks={"format-penalty": {}})
    for index in episodes(env_id, 8):
        env.reset(seed=index, options={"task": f"test/{index}"})
        for reply in env.expert():
            *_, info = env.step(reply)
            assert info["format_valid"] and info["action_valid"], info["parse_error"]
            json.dumps(info, allow_nan=False)
        assert env.turns[-1].next_anchor == info["anchor"]


def test_group_members_have_noise_of_their_own() -> None:
    seeds = {member_seed(7, member) for member in range(1000)} | {member_seed(8, member) for member in range(1000)}
    assert len(seeds) == 2000
    assert member_seed(7 + 5 * 2**32, 0) != member_seed(7, 5)
    assert member_seed(7, 3) == member_seed(7, 3)
