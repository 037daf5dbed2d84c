"""Shaping of rewards before credit, and of advantages after it."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import InvalidRequest, MissingInput
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.rewards import overlong
from turngym.trainer_backends.algorithms.rewards.normalise import normalise
from turngym.trainer_backends.algorithms.rows import Rows
from turngym.trainer_backends.algorithms.shaping.entropy_advantage import entropy_scores

tensor = torch.tensor
seeds = st.integers(0, 10_000)


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def shaped(rows: Rows, advantages: torch.Tensor, **config: Any) -> torch.Tensor:
    result: torch.Tensor = parts.load("shaping", "entropy-advantage", config)(rows, advantages)
    return result


# The entropy-aware advantage.


def unsure() -> Rows:
    """One group of three rows: entropies 1, 2 and 6 on trained tokens; another row alone."""
    return Rows(
        loss_mask_BT=tensor([[1, 1], [0, 1], [1, 0]]),
        entropies_BT=double([[1, 2], [math.nan, 6], [3, math.nan]]),
        group_B=tensor([0, 0, 1]),
    )


def test_entropy_advantage_by_hand() -> None:
    # Mean 3, squares 14; a lone token has no spread and keeps its advantage.
    advantages = double([[2, 2], [-1, -1], [5, 5]])
    by = math.sqrt(7)
    got = shaped(unsure(), advantages, weight=0.5)
    expected = [2 * (1 - 1 / by), 2 * (1 - 0.5 / by), 0, -(1 + 1.5 / by), 5, 0]
    assert got.flatten().tolist() == pytest.approx(expected)
    population = shaped(unsure(), advantages, weight=0.5, std="population")
    assert population[0, 0].item() == pytest.approx(2 * (1 - 1 / math.sqrt(14 / 3)))


def test_entropy_advantage_over_the_batch() -> None:
    # 1, 2, 6, 3: mean 3, squares 14, divided by 3.
    got = shaped(unsure(), torch.ones(3, 2, dtype=torch.float64), over="batch")
    assert got[1, 1].item() == pytest.approx(1 + 0.2 * 3 / math.sqrt(14 / 3))
    assert got[2, 0] == 1


def test_the_factor_keeps_the_sign() -> None:
    rows, advantages = unsure(), torch.full((3, 2), -2.0, dtype=torch.float64)
    assert shaped(rows, advantages, weight=5)[0, 0] == 0
    free = shaped(rows, advantages, weight=5, min_factor=-math.inf)[0, 0].item()
    assert free == pytest.approx(-2 * (1 - 10 / math.sqrt(7)))


@pytest.mark.parametrize("value", [0.7, 1 / 3, 0.1])
def test_constant_entropies_change_nothing(value: float) -> None:
    mask = torch.ones(3, 7)
    rows = Rows(loss_mask_BT=mask, entropies_BT=torch.full((3, 7), value, dtype=torch.float64))
    advantages = torch.randn(3, 7, dtype=torch.float64)
    assert shaped(rows, advantages, over="batch").equal(advantages)
    noisy = rows.entropies_BT + 1e-12 * torch.randn(3, 7, dtype=torch.float64)  # type: ignore[operator]
    assert shaped(Rows(loss_mask_BT=mask, entropies_BT=noisy), advantages, over="batch").equal(advantages)


def test_missing_entropies_are_an_error() -> None:
    """Entropy advantage errors when entropies are missing: the released code skips it in silence."""
    with pytest.raises(MissingInput, match="entropy-advantage needs entropies_BT"):
        shaped(Rows(loss_mask_BT=torch.ones(2, 2), group_B=tensor([0, 0])), torch.ones(2, 2))
    with pytest.raises(MissingInput, match="entropy-advantage needs group_B"):
        shaped(Rows(loss_mask_BT=torch.ones(2, 2), entropies_BT=torch.ones(2, 2)), torch.ones(2, 2))


def test_entropies_are_constants() -> None:
    entropies = torch.rand(2, 3, requires_grad=True)
    advantages = torch.rand(2, 3, requires_grad=True)
    rows = Rows(loss_mask_BT=torch.ones(2, 3), entropies_BT=entropies)
    shaped(rows, advantages, over="batch").sum().backward()
    assert entropies.grad is None and advantages.grad is not None


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_order_padding_and_empty_rows_do_not_matter(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(5, 4, generator=draw) > 0.4
    entropies, groups = torch.rand(5, 4, generator=draw, dtype=torch.float64), torch.randint(2, (5,), generator=draw)
    scores = entropy_scores(entropies, mask, groups)
    order = torch.randperm(5, generator=draw)
    torch.testing.assert_close(entropy_scores(entropies[order], mask[order], groups[order]), scores[order])
    wide = torch.nn.functional.pad(entropies, (1, 2), value=math.nan)
    torch.testing.assert_close(entropy_scores(wide, torch.nn.functional.pad(mask, (1, 2)), groups)[:, 1:-2], scores)
    more = entropy_scores(
        torch.cat([entropies, entropies[:2]]),
        torch.cat([mask, torch.zeros_like(mask[:2])]),
        torch.cat([groups, groups[:2]]),
    )
    torch.testing.assert_close(more[:5], scores)
    assert not more[5:].any()
    assert entropy_scores(entropies.float(), mask, groups).dtype == torch.float32


# Reward normalisation.


def test_normalise_by_hand() -> None:
    scores, groups = double([1, 2, 6, 5, 5, 9]), tensor([0, 0, 0, 1, 1, 2])
    by = math.sqrt(7) + 0.5
    assert normalise(scores, groups, method="identity").equal(scores)
    assert normalise(scores, groups, method="mean").tolist() == [-2, -1, 3, 0, 0, 0]
    assert normalise(scores, groups, epsilon=0.5).tolist() == pytest.approx([-2 / by, -1 / by, 3 / by, 0, 0, 0])
    clipped = normalise(scores, groups, method="asym_clip", epsilon=0.5, low=-0.5, high=0.75)
    assert clipped.tolist() == pytest.approx([-0.5, -1 / by, 0.75, 0, 0, 0])
    # A deviation of sqrt(7) is not larger than this epsilon.
    assert not normalise(scores, groups, epsilon=3).any()


def scored() -> Rows:
    return Rows(
        loss_mask_BT=tensor([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]),
        token_rewards_BT=double([[1, 0, 3, 0], [0, 1, 0, 0], [0, 0, 0, 10], [7, 0, 0, 0]]),
        group_B=tensor([0, 0, 1, 1]),
        environment_B=tensor([0, 1, 1, 0]),
    )


@pytest.mark.parametrize(
    ("group", "expected"), [("state", [1.5, -1.5, 0]), ("inductive", [0, -4.5, 4.5]), ("batch", [-1, -4, 5])]
)
def test_normalised_scores_lie_on_the_last_trained_token(group: str, expected: list[float]) -> None:
    rows = scored()
    before = rows.token_rewards_BT
    got = parts.load("rewards", "normalise", {"method": "mean", "group": group})(rows).token_rewards_BT
    first, second, third = expected
    # The last row has no trained token: it is part of no statistics, and its score has no place.
    assert got.tolist() == [[0, 0, first, 0], [0, second, 0, 0], [0, 0, 0, third], [0, 0, 0, 0]]
    assert rows.token_rewards_BT is before and before.equal(scored().token_rewards_BT)  # type: ignore[union-attr]


def test_identity_is_the_default() -> None:
    rows = scored()
    assert parts.load("rewards", "normalise")(rows) is rows


@pytest.mark.parametrize(("group", "field"), [("state", "group_B"), ("inductive", "environment_B")])
def test_normalisation_names_what_it_lacks(group: str, field: str) -> None:
    rows = Rows(loss_mask_BT=torch.ones(2, 2), token_rewards_BT=torch.ones(2, 2))
    with pytest.raises(MissingInput, match=f"normalise needs {field}"):
        parts.load("rewards", "normalise", {"method": "mean", "group": group})(rows)


# The overlong penalty.


def test_overlong_penalty_by_hand() -> None:
    got = overlong.penalty(tensor([0, 6, 7, 8, 10, 11]), 10, 4, 2.0, dtype=torch.float64)
    assert got.tolist() == [0, 0, -0.5, -1, -2, -2]


def test_lengths_count_observations_or_not() -> None:
    mask = tensor([[0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    assert overlong.lengths(mask).tolist() == [4, 6, 0]
    assert overlong.lengths(mask, "trained").tolist() == [3, 6, 0]


def test_the_penalty_is_added_to_the_last_trained_token() -> None:
    rows = scored()
    got = parts.load("rewards", "overlong", {"limit": 4, "buffer": 2})(rows).token_rewards_BT
    assert got.tolist() == [[1, 0, 2.5, 0], [0, 1, 0, 0], [0, 0, 0, 9], [7, 0, 0, 0]]
    assert rows.token_rewards_BT.equal(scored().token_rewards_BT)  # type: ignore[union-attr]
    trained = parts.load("rewards", "overlong", {"limit": 4, "buffer": 2, "length": "trained"})(rows)
    assert trained.token_rewards_BT[0].tolist() == [1, 0, 3, 0]


@pytest.mark.parametrize(
    "config", [{"limit": 10, "buffer": 11}, {"limit": 10, "buffer": 0}, {"limit": 9, "factor": -1}, {}]
)
def test_a_penalty_that_makes_no_sense_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="rewards overlong"):
        parts.load("rewards", "overlong", config)
