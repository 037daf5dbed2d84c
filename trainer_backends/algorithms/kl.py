"""Estimators of KL(policy || reference) from sampled tokens (Schulman, "Approximating KL divergence", 2020).

With d = ref_logprob - logprob:

- "k1": -d. Unbiased; its gradient as a loss is not that of the KL (its mean is 0).
- "k2": d² / 2. Biased; its gradient is an unbiased estimate of the KL's.
- "k3": exp(d) - d - 1. Unbiased and never negative; d is bounded to ±20, the result to ±10, as in verl.
- "abs": |d|.
- "k1+", "k3+": the value of k1 or k3 with the gradient of k2 (straight through). In the released verl they raise.

As a penalty on rewards only the value counts; as a term of the loss the gradient does, so there "k2", "k1+" or "k3+"
is sound.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from ...errors import InvalidRequest, nearest
from .parts import PartConfig, require
from .tensors import masked

Estimator = Literal["k1", "k1+", "k2", "k3", "k3+", "abs"]
MAX_DIFFERENCE, MAX_K3 = 20.0, 10.0


class Config(PartConfig, frozen=True):
    """Settings of the KL penalty.

    Attributes:
        estimator: see above; "k3" (verl's "low_var_kl") in T2PO's and RLVMR's scripts, "k1" in RAGEN.
        coefficient: weight of the term; with 0 no reference model is needed, and none should be run.
        where: a term of the loss, or a penalty on every token's reward.
    """

    estimator: Estimator = "k3+"
    coefficient: float = 0.0
    where: Literal["loss", "reward"] = "loss"

    def __post_init__(self) -> None:
        require(self.coefficient >= 0, "coefficient must not be negative")


def kl(logprobs_X: Tensor, ref_logprobs_X: Tensor, estimator: Estimator = "k3+") -> Tensor:
    """Return the estimate for every token, of the inputs' shape, in nats.

    Raises:
        InvalidRequest: no such estimator.
    """
    if estimator not in get_args(Estimator):
        raise InvalidRequest(f"No KL estimator {estimator!r:.60}.", hint=nearest(str(estimator), get_args(Estimator)))
    if estimator.endswith("+"):
        k2 = _plain(logprobs_X, ref_logprobs_X, "k2")
        return k2 - k2.detach() + _plain(logprobs_X, ref_logprobs_X, estimator.removesuffix("+")).detach()
    return _plain(logprobs_X, ref_logprobs_X, estimator)


def _plain(logprobs_X: Tensor, ref_logprobs_X: Tensor, estimator: str) -> Tensor:
    difference = ref_logprobs_X - logprobs_X
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference.square()
    if estimator == "abs":
        return difference.abs()
    bounded = difference.clamp(-MAX_DIFFERENCE, MAX_DIFFERENCE)
    return (bounded.exp() - bounded - 1).clamp(-MAX_K3, MAX_K3)


def penalised(
    token_rewards_BT: Tensor,
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    coefficient: float,
    estimator: Estimator = "k1",
) -> Tensor:
    """Return the token rewards less coefficient times the KL of every trained token; has no gradient."""
    estimate = kl(logprobs_BT.detach(), ref_logprobs_BT, estimator)
    return token_rewards_BT - coefficient * masked(estimate, loss_mask_BT)
