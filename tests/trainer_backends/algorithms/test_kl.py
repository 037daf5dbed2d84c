"""KL estimators: values and gradients by hand, bounds, and the straight-through forms that verl's release lacks."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.errors import InvalidRequest
from turngym.trainer_backends.algorithms.kl import Config, kl, penalised
from turngym.trainer_backends.algorithms.parts import configure

LOG2 = math.log(2.0)
# estimator -> value and gradient at logprob - ref_logprob = log 2.
AT_LOG2 = {
    "k1": (LOG2, 1.0),
    "k2": (LOG2**2 / 2, LOG2),
    "k3": (0.5 + LOG2 - 1, 0.5),
    "abs": (LOG2, 1.0),
    "k1+": (LOG2, LOG2),
    "k3+": (0.5 + LOG2 - 1, LOG2),
}


@pytest.mark.parametrize("estimator", AT_LOG2)
def test_value_and_gradient(estimator: str) -> None:
    value, slope = AT_LOG2[estimator]
    logprob = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    estimate = kl(logprob, torch.tensor([-1.0 - LOG2, -1.0], dtype=torch.float64), estimator)
    (found,) = torch.autograd.grad(estimate.sum(), logprob)
    assert estimate.tolist() == pytest.approx([value, 0.0])
    assert found.tolist() == pytest.approx([slope, 1.0 if estimator == "k1" else 0.0])


def test_below_the_reference_the_signs_turn() -> None:
    difference = torch.tensor([-LOG2], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    assert float(kl(difference, zero, "k1")) == pytest.approx(-LOG2)
    assert float(kl(difference, zero, "abs")) == pytest.approx(LOG2)
    assert float(kl(difference, zero, "k3")) == pytest.approx(2 - LOG2 - 1)


def test_k3_is_bounded() -> None:
    far = kl(torch.tensor([-50.0, 50.0]), torch.zeros(2), "k3")
    # exp(-20) + 20 - 1 and exp(20) - 20 - 1, both cut at 10.
    assert far.tolist() == [10.0, 10.0]


@pytest.mark.parametrize("estimator", ["k1+", "k3+"])
def test_straight_through_forms_do_not_raise_as_in_verl(estimator: str) -> None:
    logprob = torch.randn(5, requires_grad=True)
    kl(logprob, torch.randn(5), estimator).sum().backward()
    assert logprob.grad is not None and torch.isfinite(logprob.grad).all()


def test_unknown_estimators_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"k4.*Did you mean"):
        kl(torch.zeros(1), torch.zeros(1), "k4")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="coefficient"):
        configure(Config, {"coefficient": -1.0}, "kl")


def test_a_penalty_on_rewards_has_no_gradient_and_stays_inside_the_mask() -> None:
    logprobs = torch.tensor([[-1.0, -1.0, math.nan]], requires_grad=True)
    rewards = torch.tensor([[0.0, 1.0, 0.0]])
    found = penalised(rewards, logprobs, torch.tensor([[-2.0, -1.0, 0.0]]), torch.tensor([[1, 1, 0]]), coefficient=0.5)
    torch.testing.assert_close(found, torch.tensor([[-0.5, 1.0, 0.0]]))
    assert not found.requires_grad
