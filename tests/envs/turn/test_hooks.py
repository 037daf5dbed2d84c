"""Hooks over whole groups, and the length reward."""

from __future__ import annotations

from turngym.envs.turn.hooks import MetaReasoning, apply_group_hooks, length_rewards, make_hooks
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


def test_length_is_counted_in_tokens_where_they_are_known() -> None:
    episodes = [episode("a", [1], True), episode("b", [1], True)]
    for one, tokens, text in zip(episodes, (10, 20), ("long" * 9, "short"), strict=True):
        one.turns[0].completion = Completion(text, completion_tokens=tokens)
    done = apply_group_hooks(make_hooks({"length": {}}), episodes)
    assert [e.turns[-1].rewards["length"] for e in done] == [0.5, -0.5]


def turn(index: int, tag: str, action: str, *, valid: bool = True, well_formed: bool = True) -> Turn:
    one = Turn(index, "o", Completion(""), action=action, tag=tag, anchor="s", next_anchor="t")
    one.action_valid, one.format_valid = valid, well_formed
    return one


def test_reflection_pays_after_a_bad_turn_and_only_then() -> None:
    for variant in ("paper", "released"):
        hook = MetaReasoning(variant=variant)  # type: ignore[arg-type]
        now = turn(1, "reflection", "b")
        assert hook.turn([turn(0, "", "a"), now]) == 0.0
        assert hook.turn([turn(0, "", "a", valid=False), now]) == 1.0
        assert hook.turn([turn(0, "", "a", well_formed=False), now]) == 1.0
        assert hook.turn([turn(0, "", "b", valid=False), now]) == 0.0
    first = [turn(0, "reflection", "a")]
    assert (MetaReasoning().turn(first), MetaReasoning(variant="released").turn(first)) == (0.0, 1.0)


def test_only_the_paper_asks_for_a_valid_action_and_a_new_transition() -> None:
    paper, released = MetaReasoning(), MetaReasoning(variant="released")
    bad = [turn(0, "explore", "a", valid=False)]
    assert (paper.turn(bad), released.turn(bad)) == (0.0, 1.0)
    again = [turn(0, "", "a"), turn(1, "explore", "a")]
    assert (paper.turn(again), released.turn(again)) == (0.0, 0.0)
    again[1].anchor = "elsewhere"
    assert (paper.turn(again), released.turn(again)) == (1.0, 0.0)
