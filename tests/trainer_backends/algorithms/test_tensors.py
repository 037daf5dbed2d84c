"""Sums, means and spreads over masks and groups."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.trainer_backends.algorithms import tensors

tensor = torch.tensor


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(rows=st.integers(0, 4), width=st.integers(0, 70), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_discounted_sums_are_the_recursion(rows: int, width: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=draw, dtype=torch.float64)
    discount = torch.rand(rows, width, generator=draw, dtype=torch.float64).round(decimals=1)
    same_x, same_discount = x.clone(), discount.clone()
    expected, after = torch.zeros_like(x), torch.zeros(rows, dtype=torch.float64)
    for t in reversed(range(width)):
        after = x[:, t] + discount[:, t] * after
        expected[:, t] = after
    torch.testing.assert_close(tensors.discounted_sum(x, discount), expected)
    assert x.equal(same_x) and discount.equal(same_discount)


def test_following() -> None:
    x, mask = double([[1, math.nan, 3, 4, math.nan]]), tensor([[1, 0, 1, 1, 0]])
    assert tensors.following(x, mask).tolist() == [[3, 3, 4, 0, 0]]
    assert tensors.following(tensor([[5, 6]]), tensor([[0, 0]])).tolist() == [[0, 0]]
    assert tensors.following(torch.zeros(2, 0), torch.zeros(2, 0)).shape == (2, 0)


def test_spread_by_hand() -> None:
    x, ids = double([1, 2, 6, 5, math.nan]), tensor([7, 7, 7, 1, 7])
    counted = tensor([1, 1, 1, 1, 0])
    got = tensors.spread(x, ids, counted_N=counted)
    assert got.mean.tolist() == [3, 3, 3, 5, 3]
    assert got.std.tolist() == pytest.approx([math.sqrt(7)] * 3 + [0, math.sqrt(7)])
    assert got.size.tolist() == [3, 3, 3, 1, 3]
    assert tensors.spread(x[:4], ids[:4], unbiased=False).std[0].item() == pytest.approx(math.sqrt(14 / 3))


def test_a_group_in_which_nothing_counts_has_no_spread() -> None:
    got = tensors.spread(double([math.nan, 2]), tensor([0, 1]), counted_N=tensor([0, 1]))
    assert [each.tolist() for each in got] == [[0, 2], [0, 0], [0, 1]]
    assert [each.shape for each in tensors.spread(double([]), tensor([]).long())] == [(0,)] * 3


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e17, -0.7])
def test_equal_numbers_have_no_spread_at_all(value: float) -> None:
    for dtype in (torch.float32, torch.float64):
        got = tensors.spread(torch.full((11,), value, dtype=dtype), torch.zeros(11).long())
        assert not got.std.any() and got.mean.dtype == dtype


def test_masked_whiten() -> None:
    x, mask = double([[1, 2, math.nan], [6, math.nan, math.nan]]), tensor([[1, 1, 0], [1, 0, 0]])
    by = math.sqrt(7)
    assert tensors.masked_whiten(x, mask, 0).flatten().tolist() == pytest.approx([-2 / by, -1 / by, 0, 3 / by, 0, 0])
    assert not tensors.masked_whiten(x, tensor([[0, 1, 0], [0, 0, 0]])).any()
    assert not tensors.masked_whiten(x, torch.zeros(2, 3)).any()
