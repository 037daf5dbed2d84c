"""GiGPO: step returns, and clusters of anchors that are those of the released loop."""

from __future__ import annotations

import math
import random
import sys
from difflib import SequenceMatcher
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
pytest.importorskip("rapidfuzz", reason="rapidfuzz: pip install 'turngym[torch]'")
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turngym.errors import MissingExtra
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.credit import gigpo
from turngym.trainer_backends.algorithms.credit._anchors import First, cluster, needed_matches
from turngym.trainer_backends.algorithms.rows import Rows

tensor = torch.tensor


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Step returns.


def test_step_returns_by_hand() -> None:
    rewards = double([1, 2, 4, 8])
    got = gigpo.step_returns(rewards, tensor([0, 0, 0, 1]), tensor([0, 1, 2, 0]), gamma=0.5)
    assert got.tolist() == [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4, 8]


def test_step_returns_go_by_the_turn_and_not_by_the_row() -> None:
    rewards, trajectories = double([8, 1, 4, 2, 6]), tensor([5, 5, 3, 5, 3])
    got = gigpo.step_returns(rewards, trajectories, tensor([3, 0, 9, 1, 7]), gamma=0.5)
    # The turns 2 and 8 are missing, and their time has passed all the same.
    assert got.tolist() == [8, 1 + 0.5 * (2 + 0.25 * 8), 4, 2 + 0.25 * 8, 6 + 0.25 * 4]


@given(seed=st.integers(0, 10_000), gamma=st.floats(0, 1), count=st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_step_returns_are_discounted_sums(seed: int, gamma: float, count: int) -> None:
    draw = random.Random(seed)
    steps = draw.sample([(name, turn) for name in range(9) for turn in range(9)], count)
    rewards = [draw.choice([0.0, draw.random()]) for _ in steps]
    trajectories, turns = [name for name, _ in steps], [turn for _, turn in steps]
    got = gigpo.step_returns(double(rewards), tensor(trajectories).long(), tensor(turns).long(), gamma=gamma)
    expected = [
        sum(
            gamma ** (later - turn) * reward
            for (other, later), reward in zip(steps, rewards, strict=True)
            if other == name and later >= turn
        )
        for name, turn in steps
    ]
    torch.testing.assert_close(got, double(expected))


# The advantage.


def shop() -> Rows:
    """One task, two trajectories; the state "page" is seen twice, the others once."""
    return Rows(
        loss_mask_BT=tensor([[1, 1], [1, 0], [1, 1]]),
        token_rewards_BT=double([[0, 10], [10, 0], [0, 4]]),
        group_B=tensor([0, 0, 0]),
        trajectory_B=tensor([0, 0, 1]),
        turn_B=tensor([0, 1, 0]),
        step_reward_B=double([0, 10, 4]),
        step_penalty_B=double([0, 0, 1]),
        anchors=["page", "item", "page"],
    )


def test_gigpo_by_hand() -> None:
    got = parts.load("credit", "gigpo", {"gamma": 0.5, "omega": 2.0})(shop())
    # The penalty is a turn's own: it is not part of earlier returns.
    assert got.details["step_return_B"].tolist() == [5, 10, 3]
    assert got.details["step_group_B"].tolist() == [0, 1, 0]
    assert got.details["step_B"].tolist() == [1, 0, -1]
    assert got.details["episode_B"].tolist() == [3, 3, -3]
    assert got.advantages_BT.tolist() == [[5, 5], [3, 0], [-5, -5]]


def test_gigpo_as_released() -> None:
    config = {"gamma": 0.5, "over": "rows", "normalise": "std", "step_singleton": "raw", "epsilon": 0}
    got = parts.load("credit", "gigpo", config)(shop()).details
    by = math.sqrt(12)
    assert got["episode_B"].tolist() == pytest.approx([2 / by, 2 / by, -4 / by])
    assert got["step_B"].tolist() == pytest.approx([1 / math.sqrt(2), 10, -1 / math.sqrt(2)])


def test_rows_that_do_not_count_are_part_of_neither_level() -> None:
    scores, steps = double([1, 3, 100]), double([2, 6, 100])
    both = tensor([0, 0, 0]), tensor([5, 5, 5])
    for trajectories in (None, tensor([0, 1, 2])):
        _, episode, step = gigpo.gigpo(scores, steps, *both, trajectories, counted_B=tensor([True, True, False]))
        assert episode[:2].tolist() == [-1, 1]
        assert step[:2].tolist() == [-2, 2]


def test_similar_anchors_are_a_setting() -> None:
    rows = shop()
    words = [random.Random(place).choice(["open", "take", "look", "room", "desk"]) for place in range(60)]
    rows.anchors = [" ".join(words), "item", " ".join(["shut", *words[1:]])]

    def groups(**config: Any) -> list[int]:
        found: list[int] = parts.load("credit", "gigpo", config)(rows).details["step_group_B"].tolist()
        return found

    assert groups() == [0, 1, 2]
    assert groups(anchors="similar", autojunk=False) == [0, 1, 0]
    assert groups(anchors="similar", autojunk=False, threshold=0.995) == [0, 1, 2]
    assert groups(anchors="similar") == [0, 1, 2]


def test_a_penalty_is_not_carried_back() -> None:
    rows = shop()
    rows.step_penalty_B = double([0, 0.1, 0])
    got = parts.load("credit", "gigpo", {"gamma": 0.5})(rows).details
    assert got["step_return_B"].tolist() == [5, 9.9, 4]


# Clusters.


def released(anchors: list[str], groups: list[int], threshold: float, autojunk: bool = True) -> list[int]:
    """The loop of the released code: every row against the first member of every cluster."""
    out: list[int] = []
    firsts: list[tuple[int, str]] = []
    for text, group in zip(anchors, groups, strict=True):
        for number, (other, first) in enumerate(firsts):
            if other == group and SequenceMatcher(None, text, first, autojunk).ratio() >= threshold:
                out.append(number)
                break
        else:
            out.append(len(firsts))
            firsts.append((group, text))
    return out


def variants(draw: random.Random, length: int, alphabet: str, count: int) -> list[str]:
    """Texts that share much with each other."""
    texts = ["".join(draw.choices(alphabet, k=length))]
    while len(texts) < count:
        text = list(draw.choice(texts))
        for _ in range(draw.choice([0, 1, 2, 5, 20])):
            place = draw.randrange(len(text) + 1)
            text[place : place + draw.choice([0, 1, 3])] = draw.choices(alphabet, k=draw.choice([0, 1, 3]))
        texts.append("".join(text))
    return texts


ALPHABETS = ("ab", "abcdefgh", "the quick brown fox 0123456789", "".join(map(chr, range(32, 127))), "é漢字\n😀ab")


@given(
    seed=st.integers(0, 10_000),
    length=st.sampled_from([0, 1, 12, 60, 199, 200, 260]),
    alphabet=st.sampled_from(ALPHABETS),
    threshold=st.sampled_from([0.3, 0.6, 0.9, 0.95, 1.0]),
    autojunk=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_clusters_are_those_of_the_released_loop(
    seed: int, length: int, alphabet: str, threshold: float, autojunk: bool
) -> None:
    draw = random.Random(seed)
    anchors = variants(draw, length, alphabet, 8)
    groups = [draw.randrange(2) for _ in anchors]
    assert cluster(anchors, groups, threshold, autojunk=autojunk) == released(anchors, groups, threshold, autojunk)


@given(seed=st.integers(0, 10_000), length=st.sampled_from([30, 199, 200, 300]), alphabet=st.sampled_from(ALPHABETS))
@settings(max_examples=50, deadline=None)
def test_matches_are_counted_as_difflib_counts_them(seed: int, length: int, alphabet: str) -> None:
    text, other = variants(random.Random(seed), length, alphabet, 2)
    places: dict[str, list[int]] = {}
    for place, character in enumerate(text):
        places.setdefault(character, []).append(place)
    for autojunk in (True, False):
        matcher = SequenceMatcher(None, text, other, autojunk)
        size = sum(block.size for block in matcher.get_matching_blocks())
        first = First(other, autojunk)
        assert first.matches(text, places, size)
        assert not first.matches(text, places, size + 1)


@example(length=25, threshold=0.56)  # 0.56 * 25 / 2 is a little more than 7, and 2 * 7 / 25 is 0.56
@example(length=7, threshold=0.8571428571428572)  # a little more than 2 * 3 / 7, and times 7 / 2 it is 3
@given(length=st.integers(0, 3000), threshold=st.floats(0.01, 1))
@settings(max_examples=200)
def test_needed_matches_is_where_the_ratio_reaches_the_threshold(length: int, threshold: float) -> None:
    needed = needed_matches(length, threshold)
    if length:
        assert 2.0 * needed / length >= threshold
        assert needed == 0 or 2.0 * (needed - 1) / length < threshold
    else:
        assert needed == 0  # difflib calls two empty texts equal


def test_the_result_depends_on_the_order_of_rows() -> None:
    a, b, c = "abcdefghijklmnopqrst", "abcdefghijklmnopqrYZ", "abcdefghijklmnopWXYZ"
    assert cluster([a, b, c], [0, 0, 0], 0.9) == [0, 0, 1]
    assert cluster([b, c, a], [0, 0, 0], 0.9) == [0, 0, 0]
    assert cluster([c, a, b], [0, 0, 0], 0.9) == [0, 1, 0]


def test_autojunk_hides_what_long_texts_share() -> None:
    words = [random.Random(place).choice(["open", "take", "look", "room", "desk"]) for place in range(60)]
    one, other = " ".join(words), " ".join(["shut", *words[1:]])
    assert cluster([one, other], [0, 0], 0.9, autojunk=False) == [0, 0]
    assert cluster([one, other], [0, 0], 0.9) == [0, 1]


def test_groups_never_mix_and_rows_that_do_not_count_open_nothing() -> None:
    anchors, groups = ["same", "same", "new", "same", "new"], [0, 1, 0, 1, 0]
    for threshold in (None, 0.9):
        assert cluster(anchors, groups, threshold) == [0, 1, 2, 1, 2]
        counted = [True, True, False, True, True]
        assert cluster(anchors, groups, threshold, counted=counted) == [0, 1, -1, 1, 2]


def test_a_row_without_a_trained_token_attracts_no_other() -> None:
    rows = shop()
    rows.loss_mask_BT = tensor([[0, 0], [1, 0], [1, 1]])
    got = parts.load("credit", "gigpo", {"anchors": "similar"})(rows).details
    assert got["step_group_B"].tolist() == [-1, 0, 1]


def test_similar_anchors_without_rapidfuzz_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    assert cluster(["a", "b"], [0, 0]) == [0, 1]
    with pytest.raises(MissingExtra, match="rapidfuzz"):
        cluster(["a", "b"], [0, 0], 0.9)
