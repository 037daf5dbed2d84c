"""From token losses to one number: the modes by hand, and packing."""

from __future__ import annotations

import math
from typing import get_args

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import InvalidRequest
from turngym.trainer_backends.algorithms.aggregate import Mode, Totals, aggregate

LOSS = torch.tensor([[1.0, 2.0, 9.0, 3.0], [5.0, math.nan, 1.0, math.nan], [math.inf] * 4], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
BY_HAND = {
    "token-mean": 12 / 5,
    "seq-mean-token-sum": (6 + 6) / 2,
    "seq-mean-token-mean": (2 + 3) / 2,
    "seq-mean-token-sum-norm": (6 + 6) / (2 * 4),
}


@pytest.mark.parametrize("mode", BY_HAND)
def test_modes_by_hand(mode: Mode) -> None:
    assert set(BY_HAND) == set(get_args(Mode))
    assert float(aggregate(LOSS, MASK, mode)) == pytest.approx(BY_HAND[mode])
    assert float(aggregate(LOSS, torch.zeros_like(MASK), mode)) == 0.0


def test_token_weights_count_a_shared_token_once() -> None:
    # Two rows share their first token; each copy counts half.
    loss, mask = torch.tensor([[4.0, 1.0], [4.0, 3.0]]), torch.ones(2, 2)
    weights = torch.tensor([[0.5, 1.0], [0.5, 1.0]])
    assert float(aggregate(loss, mask, token_weights_BT=weights)) == pytest.approx(8 / 3)


@pytest.mark.parametrize("mode", BY_HAND)
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 7))
@settings(max_examples=15, deadline=None)
def test_micro_batches_add_up_to_the_whole(mode: Mode, seed: int, cut: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    loss = torch.randn(7, 5, generator=draw, dtype=torch.float64)
    mask = torch.randint(3, (7, 5), generator=draw) > 0
    mask[cut % 7] = False
    pieces = [(loss[:cut], mask[:cut]), (loss[cut:, :], mask[cut:])]
    totals = Totals.of(pieces[0][1]) + Totals.of(pieces[1][1])
    parted = sum(aggregate(*piece, mode, totals=totals) for piece in pieces)
    torch.testing.assert_close(parted, aggregate(loss, mask, mode))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Did you mean 'token-mean'"):
        aggregate(LOSS, MASK, "tokens-mean")  # type: ignore[arg-type]
