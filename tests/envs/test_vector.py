"""Vector environments of this process: gymnasium's conventions, autoreset modes, chosen members."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

import turngym
from turngym.envs.vector import LocalVector, batch_infos
from turngym.errors import EpisodeOver, InvalidRequest, NotReset, UnknownEnvironment, UnknownTask
from turngym.records import StepResult

MODES = ["NextStep", "SameStep", "Disabled"]


def vector(n: int = 3, **config: Any) -> LocalVector:
    return turngym.make_vec("frozen-lake", n, **config)


def test_it_is_a_gymnasium_vector_environment() -> None:
    env = vector(4)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.num_envs == 4
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.action_space == batch_space(env.single_action_space, 4)
    observations, infos = env.reset(seed=0)
    assert observations in env.observation_space
    observations, rewards, terminations, truncations, infos = env.step(env.action_space.sample())
    assert observations in env.observation_space and isinstance(observations, tuple)
    assert rewards.dtype == np.float64 and rewards.shape == (4,)
    assert terminations.dtype == truncations.dtype == np.bool_
    assert infos["action_valid"].dtype == np.bool_ and infos["step"].dtype == np.int64
    assert infos["_anchor"].all() and infos["anchor"].dtype == object
    env.close()
    assert env.closed


@pytest.mark.parametrize("mode", [*MODES, AutoresetMode.SAME_STEP])
def test_the_mode_is_stated(mode: Any) -> None:
    assert vector(autoreset_mode=mode).metadata["autoreset_mode"] is AutoresetMode(mode)


def test_members_behave_as_single_environments() -> None:
    env = vector(3, max_steps=50)
    observations, infos = env.reset(seed=[5, 6, 7], options={"tasks": ["test/1", "test/2", None], "split": "test"})
    singles = [turngym.make("frozen-lake", max_steps=50) for _ in range(3)]
    expected = [
        single.reset(seed=seed, options=options)
        for single, seed, options in zip(
            singles, [5, 6, 7], [{"task": "test/1"}, {"task": "test/2"}, {"split": "test"}], strict=True
        )
    ]
    assert observations == tuple(each[0] for each in expected)
    assert list(infos["task"]) == [each[1]["task"] for each in expected]
    for _ in range(5):
        live = [i for i, single in enumerate(singles) if not single.done]
        results = env.step_some(dict.fromkeys(live, "Down"))
        assert results == {i: StepResult(*singles[i].step("Down")) for i in live}


def test_one_seed_counts_up() -> None:
    assert list(vector(3).reset(seed=10)[1]["seed"]) == [10, 11, 12]
    assert list(vector(2).reset(seed=np.int64(3))[1]["seed"]) == [3, 4]  # type: ignore[arg-type]


def test_equal_seeds_equal_courses_through_autoresets() -> None:
    courses = []
    for _ in range(2):
        env = vector(4, max_steps=3)
        course: list[Any] = [env.reset(seed=3, options={"split": "test"})[0]]
        for _ in range(12):
            observations, rewards, *_, infos = env.step(["Down", "Right", "Left", "Up"])
            course.append((observations, rewards.tolist(), infos["task"].tolist()))
        courses.append(course)
    assert courses[0] == courses[1]


def test_next_step_resets_in_the_step_after_the_end() -> None:
    env = vector(2, max_steps=2)
    first, _ = env.reset(seed=1, options={"split": "test"})
    env.step(["Left", "Left"])
    _, _, terminations, truncations, infos = env.step(["Left", "Left"])
    assert (terminations | truncations).all()
    tasks = list(infos["task"])
    observations, rewards, terminations, truncations, infos = env.step(["ignored", "ignored"])
    assert not rewards.any() and not terminations.any() and not truncations.any()
    assert "action_valid" not in infos and list(infos["step"]) == [0, 0]
    assert list(infos["task"]) != tasks and all(task.startswith("test/") for task in infos["task"])
    assert observations != first


def test_next_step_mixes_resets_and_steps() -> None:
    env = vector(2, max_steps=2)
    env.reset(seed=1)
    env.step_some({0: "Left"})
    env.step(["Left", "Left"])
    *_, infos = env.step(["ignored", "Left"])
    assert list(infos["_action_valid"]) == [False, True]
    assert list(infos["step"]) == [0, 2]


def test_same_step_keeps_what_the_reset_replaced() -> None:
    env, plain = vector(2, max_steps=1, autoreset_mode="SameStep"), vector(2, max_steps=1, autoreset_mode="Disabled")
    for each in (env, plain):
        each.reset(seed=1)
    observations, rewards, _, truncations, infos = env.step(["Left", "Right"])
    final, final_rewards, _, final_truncations, final_infos = plain.step(["Left", "Right"])
    assert list(infos["final_obs"]) == list(final) and list(infos["_final_obs"]) == [True, True]
    assert rewards.tolist() == final_rewards.tolist()
    assert truncations.tolist() == final_truncations.tolist()
    assert infos["final_info"]["anchor"].tolist() == final_infos["anchor"].tolist()
    assert list(infos["step"]) == [0, 0]
    assert observations == tuple(each._observe() for each in env.envs)


def test_same_step_has_no_final_info_before_the_end() -> None:
    env = vector(2, autoreset_mode="SameStep", slippery=False)
    env.reset(seed=1)
    assert "final_obs" not in env.step(["nonsense", "nonsense"])[4]


def test_disabled_refuses_members_that_are_over_and_steps_none() -> None:
    env = vector(2, max_steps=2, autoreset_mode="Disabled")
    env.reset(seed=1)
    env.step_some({0: "Left"})
    env.step(["Left", "Left"])
    with pytest.raises(EpisodeOver, match="members 0 are over") as caught:
        env.step(["Left", "Left"])
    assert "reset_mask" in caught.value.hint and "step_some" in caught.value.hint
    assert env.envs[1].steps == 1
    observations, infos = env.reset(options={"reset_mask": np.array([True, False]), "split": "test"})
    assert list(infos["_task"]) == [True, False] and infos["task"][0].startswith("test/")
    last = env.last[1]
    assert last is not None and observations[1] == last.observation
    env.step(["Left", "Left"])


def test_the_options_belong_to_the_caller() -> None:
    options = {"reset_mask": np.array([True, True])}
    env = vector(2)
    env.reset(options=options)
    assert set(options) == {"reset_mask"}


def test_chosen_members() -> None:
    env = vector(3, max_steps=1)
    outcomes = env.reset_some({0: {"seed": 4, "task": "test/5"}, 2: {"split": "test"}})
    assert set(outcomes) == {0, 2} and env.envs[0].task == "test/5" and env.last[1] is None
    with pytest.raises(NotReset):
        env.step_some({1: "Left"})
    with pytest.raises(NotReset):
        env.step(["Left"] * 3)
    assert set(env.step_some({0: "Left"})) == {0}
    with pytest.raises(EpisodeOver):
        env.step_some({0: "Left", 2: "Left"})
    assert env.envs[2].steps == 0
    outcomes = env.reset_some({0: {"task": "test/99999"}, 1: {"seed": 1}})
    assert isinstance(outcomes[0], UnknownTask) and isinstance(outcomes[1], StepResult)


def test_no_member_is_stepped_if_an_action_does_not_fit() -> None:
    env = vector(2)
    env.reset(seed=0)
    with pytest.raises(InvalidRequest):
        env.step(["Left", 3])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest):
        env.step_some({0: "nonsense", 1: 3})  # type: ignore[dict-item]
    assert [each.steps for each in env.envs] == [0, 0]


def test_a_member_that_fails_is_named_and_the_others_go_on() -> None:
    env = vector(2, autoreset_mode="SameStep")
    env.reset(seed=0)
    env.envs[1].done = True  # behind the vector's back
    with pytest.raises(EpisodeOver) as caught:
        env.step(["nonsense", "Left"])
    assert "Members [1] failed" in caught.value.__notes__[0]
    assert env.last[0] is not None and env.last[0].info["step"] == 1
    outcomes = env.step_some({0: "nonsense", 1: "Left"})
    assert isinstance(outcomes[1], EpisodeOver) and isinstance(outcomes[0], StepResult)


@pytest.mark.parametrize(
    ("seed", "options", "error"),
    [
        ([1, 2], {}, InvalidRequest),
        ("abc", {}, InvalidRequest),
        (-1, {}, InvalidRequest),
        (None, {"tusk": 1}, InvalidRequest),
        (None, {"tasks": ["test/1"]}, InvalidRequest),
        (None, {"tasks": ["test/1"] * 3, "task": "test/1"}, InvalidRequest),
        (None, {"tasks": "abc"}, InvalidRequest),
        (None, {"task": "test/99999"}, UnknownTask),
        (None, {"split": "holiday"}, UnknownTask),
        (None, {"reset_mask": [True, True, True]}, InvalidRequest),
        (None, {"reset_mask": np.array([1, 1, 1])}, InvalidRequest),
        (None, {"reset_mask": np.array([True])}, InvalidRequest),
        (None, {"reset_mask": np.array([False] * 3)}, InvalidRequest),
        (None, {"reset_mask": np.array([True, False, True])}, NotReset),
    ],
)
def test_wrong_resets(seed: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        vector(3).reset(seed=seed, options=options)


@pytest.mark.parametrize("call", [{"actions": ["Left"]}, {"actions": ["Left"] * 4}])
def test_a_wrong_number_of_actions(call: dict[str, Any]) -> None:
    env = vector(3)
    env.reset(seed=0)
    with pytest.raises(InvalidRequest, match="actions for 3 environments"):
        env.step(**call)
    for member in (3, -1, "0", True):
        with pytest.raises(InvalidRequest, match="No member"):
            env.step_some({member: "Left"})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="reset argument"):
        env.reset_some({0: {"sead": 1}})


def test_wrong_makes() -> None:
    with pytest.raises(UnknownEnvironment):
        turngym.make_vec("frozen-sea", 2)
    for n in (0, -1, 1.5, True):
        with pytest.raises(InvalidRequest):
            turngym.make_vec("frozen-lake", n)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="autoreset_mode") as caught:
        vector(autoreset_mode="NextStepp")
    assert "NextStep" in caught.value.hint
    with pytest.raises(InvalidRequest, match="text level"):
        vector(turn={"memory": 1})
    with pytest.raises(InvalidRequest, match="level"):
        vector(level="word")
    with pytest.raises(InvalidRequest):
        vector(no_such_setting=1)


def test_the_turn_level() -> None:
    env = vector(2, level="turn", turn={"memory": 2}, max_steps=4)
    observations, infos = env.reset(seed=0)
    assert observations in env.observation_space and infos["turn"].tolist() == [0, 0]
    actions = env.expert_actions()
    _, rewards, *_, infos = env.step([str(action) for action in actions])
    assert infos["format_valid"].tolist() == [True, True]
    assert infos["rewards"]["env"].tolist() == rewards.tolist()


def test_experts_forks_and_rendering() -> None:
    env = turngym.make_vec("sokoban", 2, render_mode="ansi")
    assert env.expert_actions() == [None, None]
    env.reset(seed=0, options={"task": "test/0"})
    twin = env.fork(1)
    while not env.envs[0].done:
        env.step_some({0: str(env.expert_actions()[0])})
    assert env.envs[0].done and env.expert_actions()[0] is None
    assert twin.steps == 0 and not twin.done
    assert env.render() == tuple(each._observe() for each in env.envs)


def test_infos_are_batched_as_gymnasium_does() -> None:
    infos = [
        {"a": 1, "b": 0.5, "c": True, "d": "x", "e": {"f": 1}, "g": [1, 2], "i": {}},
        {"a": 2, "b": 1.5, "c": False, "d": "y", "e": {"f": 2, "h": 3.0}, "g": [3, 4], "i": {}},
    ]
    base: dict[str, Any] = {}
    reference = gymnasium.vector.VectorEnv()
    reference.num_envs = 3
    for i, info in enumerate(infos):
        base = reference._add_info(base, info, i)
    batched = batch_infos(3, dict(enumerate(infos)))

    def same(left: Any, right: Any) -> bool:
        if isinstance(left, dict):
            return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
        return bool(left.dtype == right.dtype and left.tolist() == right.tolist())

    assert same(batched, base)


def test_numbers_of_mixed_kinds_keep_their_values() -> None:
    batched = batch_infos(3, {0: {"x": 1, "y": 2**70, "z": None}, 2: {"x": 0.5, "y": 1, "z": 4}})
    assert batched["x"].tolist() == [1.0, 0.0, 0.5] and batched["_x"].tolist() == [True, False, True]
    assert batched["y"].tolist() == [2**70, None, 1]
    assert batched["z"].tolist() == [None, None, 4]
