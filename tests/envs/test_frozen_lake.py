"""FrozenLake: maps, slipping, rewards, the expert, settings."""

from __future__ import annotations

from collections import Counter

import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from turngym import make
from turngym.envs.frozen_lake import ACTIONS, best_actions, lake_of
from turngym.errors import InvalidRequest

ROWS = ["FFF", "FSF", "FFG"]


def test_a_move_slips_to_either_side_with_a_third_each() -> None:
    ends: Counter[str] = Counter()
    env = make("frozen-lake", rows=ROWS)
    for seed in range(3000):
        env.reset(seed=seed)
        ends[env.step("Right")[0]] += 1
    assert set(ends) == {"_P_\n___\n__G", "___\n__P\n__G", "___\n___\n_PG"}
    # Seeds are fixed; more than five standard deviations around a third.
    assert all(abs(count / 3000 - 1 / 3) < 0.05 for count in ends.values())


def test_steps_are_gymnasiums_own() -> None:
    engine = FrozenLakeEnv(desc=ROWS, is_slippery=True)
    env = make("frozen-lake", rows=ROWS)
    for seed in range(30):
        engine.reset(seed=seed)
        env.reset(seed=seed)
        # Its reset draws a start cell from the same stream.
        env.np_random.random()
        while not env.done:
            cell, reward, terminated, _, _ = engine.step(env.steps % 4)
            observation, ours, over, _, _ = env.step(ACTIONS[env.steps % 4])
            assert (ours, over) == (float(reward), terminated)
            assert observation.replace("\n", "")[int(cell)] in "P√"


def test_firm_ice_and_ends() -> None:
    env = make("frozen-lake", rows=["SH", "FG"], slippery=False)
    first, _ = env.reset(seed=0)
    assert first == "PO\n_G"
    observation, reward, terminated, _, info = env.step("Right")
    assert (observation, reward, terminated, info["won"]) == ("_X\n_G", 0.0, True, False)
    env.reset(seed=0)
    assert not env.step("up")[4]["action_effective"]
    observation, reward, terminated, _, info = env.step("Down || Right || Left")
    assert (observation, reward, terminated, info["won"]) == ("_O\n_√", 1.0, True, True)
    assert info["steps"] == 2


def test_maps_are_solvable_and_as_icy_as_asked() -> None:
    env = make("frozen-lake", slippery=False)
    ice = 0
    for task in env.tasks("train")[:200]:
        observation, _ = env.reset(seed=0, options={"task": task})
        assert (observation.count("P"), observation.count("G")) == (1, 1)
        ice += observation.count("_")
        for action in env.expert():
            env.step(action)
        assert env._won()
    assert 0.78 < ice / (200 * 14) < 0.88  # 0.8 drawn; solvable maps have more


def test_the_expert_keeps_off_the_hole() -> None:
    lake = lake_of(("SFF", "HFF", "FFG"), True)
    # From the start, only a move up never slips down into the hole.
    assert ACTIONS[best_actions(lake)[0]] == "Up"


@pytest.mark.parametrize(
    "config",
    [
        {"size": 1},
        {"size": 17},
        {"size": 4.0},
        {"frozen": 0},
        {"frozen": "most"},
        {"frozen": float("nan")},
        {"slippery": "no"},
        {"rows": ["SF", "FF"]},
        {"rows": ["SG", "F"]},
        {"rows": "SG"},
        {"rows": [1, 2]},
        {"rows": 5},
        {"rows": []},
        {"rows": ["SG" + "F" * 15] + ["F" * 17] * 16},
    ],
)
def test_bad_settings(config: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        make("frozen-lake", **config)
