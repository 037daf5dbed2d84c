"""ScienceWorld as an environment."""

from __future__ import annotations

from typing import Any

import pytest

from turngym.envs.registry import unmet
from turngym.envs.scienceworld.env import ScienceWorld
from turngym.errors import InvalidRequest, NotReset

MISSING = unmet("scienceworld")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"extra: {MISSING}")


def made(*tasks: str | int, admissible: str = "none", **more: Any) -> ScienceWorld:
    return ScienceWorld(tasks=tasks, admissible=admissible, **more)


def test_a_wrong_decision_ends_the_task_at_minus_a_hundred() -> None:
    env = made("find-animal")
    _, info = env.reset(seed=0, options={"task": "test/0"})
    before = info["score_points"]  # being where one has to be may give some already
    observation, reward, terminated, truncated, info = env.step("focus on agent")
    assert observation == "You focus on the agent."
    assert (reward, terminated, truncated, info["won"]) == ((-100 - before) / 100, True, False, False)
    assert (info["score"], info["score_points"]) == (0.0, -100)


def test_a_solution_gives_every_point_once() -> None:
    env = made("find-animal")
    _, info = env.reset(seed=0, options={"task": "test/0"})
    rewards = [env.step(action)[1] for action in env.expert()]
    assert sum(rewards) == pytest.approx((100 - info["score_points"]) / 100)
    assert sum(reward > 0 for reward in rewards) > 2
    assert env._won() and env.expert_action() is None


@pytest.mark.parametrize(("rule", "wins"), [("paper", True), ("released", True)])
def test_final_reward(rule: str, wins: bool) -> None:
    env = made("lifespan-longest-lived", reward="final", success_rule=rule, success_reward=10)
    env.reset(seed=0, options={"task": "test/0"})
    rewards = [env.step(action)[1] for action in env.expert()]
    assert rewards == [*[0.0] * (len(rewards) - 1), 10.0 * wins]
    env.reset(seed=0, options={"task": "test/0"})
    assert env.step("focus on agent")[1:3] == (0.0, True)


def test_released_success_takes_a_partial_score_at_the_end() -> None:
    # Both animals are asked for; the second decision is a wrong one, or the only one that counts.
    outcomes = {}
    for rule in ("paper", "released"):
        env = made("lifespan-longest-lived-then-shortest-lived", success_rule=rule)
        env.reset(seed=0, options={"task": "test/0"})
        for action in env.expert():
            *_, info = env.step(action)
            outcomes[rule, info["score_points"], env.done] = info["won"]
    assert not any(won for (_, _, done), won in outcomes.items() if not done)
    assert all(won for (_, points, done), won in outcomes.items() if done and points == 100)


def test_what_is_not_understood_is_invalid() -> None:
    env = made("find-animal", admissible="list")
    _, info = env.reset(seed=0, options={"task": "test/0"})
    assert "look around" in info["admissible"]
    checks = [("xyzzy", False), ("teleport to hallway", True), ("look at door", False), ("0", True)]
    checks += [("look around", True), ("a " * 10**5, False)]
    for action, valid in checks:
        observation, *_, info = env.step(action)
        assert info["action_valid"] is valid, observation
        if observation.startswith("Ambiguous"):
            assert "0" in info["admissible"]
    assert not info["action_effective"]
    assert env.step("wait1")[4]["action_effective"]


def test_none_lists_nothing() -> None:
    env = made("find-animal")
    _, info = env.reset(seed=0, options={"task": "test/0"})
    assert info["admissible"] == [] == env.step("look around")[4]["admissible"]


def test_full_observations_add_the_room_and_the_inventory() -> None:
    env, plain = made("find-animal", observation="full"), made("find-animal")
    options = {"task": "test/0"}
    env.reset(seed=0, options=options)
    plain.reset(seed=0, options=options)
    full = env.step("wait1")[0]
    assert full.startswith(plain.step("wait1")[0] + "\n\nThis room is called")
    assert full.endswith("\nIn your inventory, you see:\n\tan orange")


def test_the_instructions_state_the_task_and_the_actions_there_are() -> None:
    env = made("test-conductivity", "find-animal")
    env.reset(seed=0, options={"task": "test/0"})
    assert env.task_type() == "find-animal" and "Your task is to find" in env.instructions
    assert "connect OBJ" not in env.instructions and "teleport" in env.instructions
    env.reset(seed=0, options={"task": "test/1"})
    assert env.task_type() == "test-conductivity" and "connect OBJ" in env.instructions
    plain = made("find-animal", simplifications="openDoors")
    assert "connect OBJ" in plain.instructions and "teleport" not in plain.instructions


def test_electrical_tasks_are_possible_when_easy() -> None:
    env = made("power-component")
    env.reset(seed=0, options={"task": "test/0"})
    actions = [action for action in env.expert() if env.step(action)]
    assert env._won() and any(action.startswith("connect") for action in actions)


def test_the_expert_knows_when_it_has_been_left() -> None:
    env = made("find-animal")
    env.reset(seed=0, options={"task": "test/0"})
    first = env.expert_action()
    env.step("xyzzy")  # nothing has happened
    assert env.expert_action() == first == env.solution[0]
    twin = env.fork()
    assert isinstance(twin, ScienceWorld)
    twin.step("wait1")
    assert twin.expert_action() is None
    assert [env.step(action) for action in env.expert()] and env._won()


def test_the_expert_goes_on_where_its_actions_come_in_small_letters() -> None:
    env = ScienceWorld(admissible="none")
    env.reset(seed=0, options={"task": "test/1250"})
    capital = next(place for place, action in enumerate(env.solution) if action != action.lower())
    for action in env.solution[: capital + 1]:
        env.step(action.lower())
    assert env.expert_action() == env.solution[capital + 1]
    env.close()


def test_closing_gives_the_place_back() -> None:
    env = made("find-animal")
    env.reset(seed=0, options={"task": "test/0"})
    env.step("teleport to outside")
    twin = env.fork()
    env.close()
    assert env.step("look around") == twin.step("look around")
    with pytest.raises(NotReset):
        _ = made("find-animal").simulation


@pytest.mark.parametrize(
    "wrong",
    [
        {"admissible": "all"},
        {"observation": None},
        {"reward": "points"},
        {"success_rule": 100},
        {"success_reward": "10"},
        {"simplifications": "hard"},
        {"tasks": ["boiling"]},
    ],
)
def test_bad_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        ScienceWorld(**wrong)
