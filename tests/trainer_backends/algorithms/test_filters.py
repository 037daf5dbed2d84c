"""Filters: which episodes are trained on, and that their outcomes stay as they were."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import InvalidRequest, MissingInput
from turngym.records import Completion, Episode, Turn
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.filters import dapo
from turngym.trainer_backends.algorithms.outcomes import Outcomes
from turngym.trainer_backends.algorithms.rows import number


def outcomes(*groups: list[float]) -> Outcomes:
    rewards = [reward for group in groups for reward in group]
    members = [place for place, group in enumerate(groups) for _ in group]
    return Outcomes(rewards_N=torch.tensor(rewards, dtype=torch.float64), groups_N=torch.tensor(members).long())


def kept(filter_id: str, given_: Outcomes, **settings: Any) -> list[bool]:
    """Whether each group is kept; a group is kept or left out as a whole."""
    before = given_.rewards_N.clone()
    mask = parts.load("filters", filter_id, settings)(given_)
    assert mask.dtype == torch.bool and given_.rewards_N.equal(before)
    for group in given_.groups_N.unique():
        assert len(mask[given_.groups_N == group].unique()) == 1
    return given_.of_groups(mask).tolist()


# Deviations 0, sqrt(2), 5 sqrt(2) and sqrt(1/3).
FOUR = outcomes([4, 4, 4], [1, 3], [0, 10], [1, 1, 2])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [False, False, True, False]),
        ({"ratio": 0.5}, [False, True, True, False]),
        ({"ratio": 0.74}, [False, True, True, False]),  # rounded down, as released
        ({"ratio": 0.75}, [False, True, True, True]),
        ({"ratio": 1}, [True, True, True, True]),
        ({"ratio": 0.25, "order": "std-rev"}, [True, False, False, False]),
        ({"ratio": 0.5, "order": "std-rev"}, [True, False, False, True]),
        ({"ratio": 0.5, "order": "std-rev", "constant": "drop"}, [False, True, False, True]),
        ({"ratio": 0.99, "order": "std-rev", "constant": "drop"}, [False, True, True, True]),
        ({"ratio": 1, "constant": "drop"}, [True, True, True, True]),  # switched off
    ],
)
def test_starpo_s_keeps_the_groups_with_the_largest_spread(settings: dict[str, Any], expected: list[bool]) -> None:
    assert kept("starpo-s", FOUR, **settings) == expected


def test_constant_groups_can_be_dropped_but_for_the_last_one() -> None:
    mostly_flat = outcomes([4, 4], [5, 5], [0, 1])
    assert kept("starpo-s", mostly_flat, ratio=0.9) == [True, False, True]
    assert kept("starpo-s", mostly_flat, ratio=0.9, constant="drop") == [False, False, True]
    assert kept("starpo-s", outcomes([4, 4], [5, 5], [6]), ratio=0.9, constant="drop") == [True, False, False]


def test_starpo_s_takes_the_unbiased_deviation() -> None:
    # Unbiased: 2.83 and 2.67; the population's: 2 and 2.5.
    assert kept("starpo-s", outcomes([0, 4], [0, 0, 0, 0, 5, 5, 5, 5]), ratio=0.5) == [True, False]


def test_ties_go_to_the_smaller_group_number() -> None:
    equal = outcomes([0, 1], [1, 0], [5, 5], [0, 1], [3, 4])
    assert kept("starpo-s", equal, ratio=0.4) == [True, True, False, False, False]
    assert kept("starpo-s", equal, ratio=0.4, order="std-rev") == [True, False, True, False, False]


@given(
    groups=st.lists(st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=1, max_size=4), min_size=1, max_size=9),
    ratio=st.floats(0.001, 1),
    order=st.sampled_from(["std", "std-rev"]),
    constant=st.sampled_from(["keep", "drop"]),
)
def test_starpo_s_never_returns_no_group(groups: list[list[float]], ratio: float, order: str, constant: str) -> None:
    found = kept("starpo-s", outcomes(*groups), ratio=ratio, order=order, constant=constant)
    assert any(found)
    if constant == "keep":
        assert sum(found) == (len(groups) if ratio == 1 else max(1, int(ratio * len(groups) + 1e-9)))


def test_a_product_a_little_below_a_whole_number_counts_as_it() -> None:
    many = outcomes(*([0.0, float(place)] for place in range(100)))
    assert sum(kept("starpo-s", many, ratio=0.29)) == 29  # 0.29 * 100 is 28.999…


def test_dapo_keeps_groups_whose_rewards_differ() -> None:
    groups = outcomes([0, 0], [10, 0], [0.1, 0.1, 0.1], [0.1, 0.1, 0.1 + 1e-15], [3])
    assert kept("dapo", groups) == [False, True, False, True, False]


def test_refilling_stops_when_there_are_enough() -> None:
    refill = dapo.Refill[str](dapo.Config(max_batches=3), wanted=3)
    refill.add("ab", [True, False])
    assert (refill.batches, refill.missing, refill.done) == (1, 2, False)
    with pytest.raises(InvalidRequest, match="2 groups are missing"):
        refill.result()
    refill.add("cdef", [False, True, True, True])
    assert refill.done
    assert refill.result() == ["a", "d", "e"]
    with pytest.raises(InvalidRequest, match="complete"):
        refill.add("g", [True])


@pytest.mark.parametrize(("last", "expected"), [("fill", ["b", "a", "c"]), ("fewer", ["b"])])
def test_the_last_batch_is_filled_up_or_not(last: Any, expected: list[str]) -> None:
    refill = dapo.Refill[str](dapo.Config(max_batches=2, last=last), wanted=3)
    refill.add("ab", [False, True])
    refill.add("cd", [False, False])
    assert refill.done
    assert refill.result() == expected


def test_void_turns_and_rft() -> None:
    given_ = outcomes([1, 2], [3])
    given_.void_N = torch.tensor([True, False, False])
    given_.scores_N = torch.tensor([0.9, 0.95, 0.1])
    assert parts.load("filters", "void-turns")(given_).tolist() == [False, True, True]
    assert parts.load("filters", "rft")(given_).tolist() == [False, True, False]  # above the threshold, not at it
    assert parts.load("filters", "rft", {"of": "reward", "threshold": 2})(given_).tolist() == [False, False, True]


@pytest.mark.parametrize(("filter_id", "field"), [("void-turns", "void_N"), ("rft", "scores_N")])
def test_a_filter_names_what_it_lacks(filter_id: str, field: str) -> None:
    with pytest.raises(MissingInput, match=f"{filter_id} needs {field}"):
        parts.load("filters", filter_id)(outcomes([1]))


@pytest.mark.parametrize(
    ("filter_id", "settings"),
    [("starpo-s", {"ratio": 0}), ("starpo-s", {"ratio": 1.1}), ("dapo", {"max_batches": 0}), ("void-turns", {"x": 1})],
)
def test_a_wrong_setting_is_refused(filter_id: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=filter_id):
        parts.load("filters", filter_id, settings)


def test_outcomes_of_records() -> None:
    def episode(task: str, group: str, reward: float, void: bool) -> Episode:
        turns = [Turn(0, "", Completion("")), Turn(1, "", Completion(""), void=void)]
        return Episode("", "bandit", task, 0, group=group, turns=turns, reward=reward, score=reward / 10)

    episodes = [
        episode("a", "g", 1, False),
        episode("b", "g", 2, True),
        episode("a", "", 3, False),
        episode("a", "", 4, False),
    ]
    found = Outcomes.of(episodes)
    assert found.rewards_N.tolist() == [1, 2, 3, 4]
    assert found.groups_N.equal(number(["g", "g", "a", "a"]))
    assert found.need("scores_N", "").tolist() == [0.1, 0.2, 0.3, 0.4]
    assert found.need("void_N", "").tolist() == [False, True, False, False]
    assert found.of_groups(torch.tensor([True, False, True, True])).tolist() == [False, True]
    assert Outcomes.of([]).groups_N.shape == (0,)
