"""The critic's loss."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.errors import InvalidRequest
from turngym.trainer_backends.algorithms.parts import configure
from turngym.trainer_backends.algorithms.value_loss import Config, explained_variance, value_loss


def double(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_larger_of_the_free_and_the_clipped_error_counts() -> None:
    # Old value 0, clip 0.5: value 2 counts as 0.5, value -2 as -0.5, value 0.25 as itself.
    values = double([[2.0, -2.0, 0.25, 2.0]]).requires_grad_()
    returns = double([[3.0, 3.0, 3.0, 0.0]])
    tokens = value_loss(values, torch.zeros_like(values), returns, torch.ones(1, 4))
    expected = double([[0.5 * 2.5**2, 0.5 * 5**2, 0.5 * 2.75**2, 0.5 * 2**2]])
    torch.testing.assert_close(tokens.loss_BT.detach(), expected)
    (found,) = torch.autograd.grad(tokens.loss_BT.sum(), values)
    # No gradient where the clipped error is the larger one.
    torch.testing.assert_close(found, double([[0.0, -5.0, -2.75, 2.0]]))
    assert float(tokens.metrics["value_clip_fraction"]) == 0.25
    assert float(tokens.metrics["value_error"]) == pytest.approx((1 + 25 + 2.75**2 + 4) / 4)


def test_without_a_clip_it_is_half_the_squared_error() -> None:
    values = double([[2.0, math.nan]])
    tokens = value_loss(values, values, double([[3.0, math.inf]]), torch.tensor([[1, 0]]), clip=None)
    assert float(tokens.loss_BT[0, 0]) == 0.5
    assert all(torch.isfinite(each) for each in tokens.metrics.values())


def test_explained_variance() -> None:
    returns, mask = double([[1.0, 2.0, 3.0, 9.0]]), torch.tensor([[1, 1, 1, 0]])
    assert float(explained_variance(returns, returns, mask)) == 1.0
    assert float(explained_variance(torch.full_like(returns, 7.0), returns, mask)) == pytest.approx(0.0)
    # Twice the returns: the error has the returns' own variance.
    assert float(explained_variance(2 * returns, returns, mask)) == pytest.approx(0.0)
    assert float(explained_variance(returns, torch.ones_like(returns), mask)) == 0.0
    assert float(explained_variance(returns, returns, torch.zeros_like(mask))) == 0.0


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="clip"):
        configure(Config, {"clip": 0.0}, "critic")
