"""Hooks over whole groups, and the length reward."""

from __future__ import annotations

from turngym.envs.turn.hooks import apply_group_hooks, length_rewards, make_hooks
from turngym.records import Completion, Episode, Turn


def episode(name: str, lengths: list[int], won: bool) -> Episode:
    turns = [
        Turn(i, "o", Completion("x", token_ids=[0] * n), rewards={"env": 1.0}, reward=1.0)
        for i, n in enumerate(lengths)
    ]
    return Episode(name, "bandit", "test/0", 0, turns=turns, reward=float(len(turns)), won=won)


def test_short_successes_gain_and_long_failures_lose() -> None:
    episodes = [
        episode("a", [5, 5], True),
        episode("b", [30], False),
        episode("c", [20], True),
        episode("d", [], False),
    ]
    done = apply_group_hooks(make_hooks({"length": {"scale": 2.0}}), episodes)
    assert [e.turns[-1].rewards["length"] for e in done[:3]] == [1.0, -1.0, 0.0]
    assert done[0].turns[0].rewards == {"env": 1.0} and done[0].turns[1].revised == ["length"]
    assert done[0].reward == 3.0 and done[1].reward == 0.0 and done[3] == episodes[3]
    assert episodes[0].turns[1].rewards == {"env": 1.0}


def test_equal_lengths_give_nothing() -> None:
    assert length_rewards([3, 3], [True, False]) == [0.0, 0.0]
    assert length_rewards([], []) == []
