"""The bandit: names, rewards, chances, settings."""

from __future__ import annotations

import pytest

from turngym import make
from turngym.errors import InvalidRequest


def pulls(arm: str, n: int = 2000, **config: object) -> list[float]:
    env = make("bandit", **config)
    rewards = []
    for seed in range(n):
        env.reset(seed=seed, options={"task": "test/0"})
        _, reward, terminated, _, _ = env.step(arm)
        assert terminated
        rewards.append(reward)
    return rewards


@pytest.mark.parametrize(
    ("config", "low"), [({}, 0.15), ({"variant": "released"}, 0.1), ({"low_reward": 0.2, "variant": "released"}, 0.2)]
)
def test_the_low_arm_is_safe(config: dict[str, object], low: float) -> None:
    assert set(pulls("librarian", 20, **config)) == {low}


def test_the_high_arm_pays_in_a_quarter_of_the_cases() -> None:
    rewards = pulls("TRADER")
    assert set(rewards) == {0.0, 1.0}
    # Seeds are fixed; five standard deviations around 0.25.
    assert abs(sum(rewards) / len(rewards) - 0.25) < 0.05


def test_names_of_the_splits_and_their_order() -> None:
    env = make("bandit")
    for split, names in (
        ("train", {"Teacher", "Engineer"}),
        ("validation", {"Teacher", "Engineer"}),
        ("test", {"Librarian", "Trader"}),
    ):
        orders = {tuple(env.reset(seed=0, options={"task": task})[1]["admissible"]) for task in env.tasks(split)[:64]}
        assert len(orders) == 2 and all(set(order) == names for order in orders)


@pytest.mark.parametrize(("env_id", "arm"), [("bandit", "Trader"), ("bandit-reversed", "Librarian")])
def test_won_means_the_better_arm(env_id: str, arm: str) -> None:
    env = make(env_id)
    for seed in range(20):
        env.reset(seed=seed, options={"split": "test", "task": seed})
        assert env.expert_action() == arm
        observation, reward, _, _, info = env.step(arm)
        assert info["won"] and observation == f"{arm}: {reward} points"
        env.reset(seed=seed, options={"split": "test", "task": seed})
        assert not env.step("Librarian" if arm == "Trader" else "Trader")[4]["won"]


def test_an_unknown_arm_costs_a_step_and_no_luck() -> None:
    env, other = make("bandit"), make("bandit")
    for seed in range(20):
        env.reset(seed=seed, options={"task": "test/1"})
        other.reset(seed=seed, options={"task": "test/1"})
        observation, *_, info = env.step("both")
        assert not info["action_valid"] and "There is no arm 'both'" in observation
        assert env.step("Trader")[1] == other.step("Trader")[1]


def test_words_of_ones_own() -> None:
    env = make("bandit", pair="moon-sun")
    assert sorted(env.reset(seed=0)[1]["admissible"]) == ["Moon", "Sun"]
    assert env.expert_action() == "Sun"


@pytest.mark.parametrize(
    "config",
    [
        {"pair": "phoenix"},
        {"pair": "-"},
        {"pair": "moon-Moon"},
        {"pair": "moon- "},
        {"pair": ["moon", "sun"]},
        {"variant": "code"},
        {"variant": []},
        {"low_reward": "much"},
        {"low_reward": float("nan")},
        {"reversed": "no"},
    ],
)
def test_bad_settings(config: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        make("bandit", **config)
