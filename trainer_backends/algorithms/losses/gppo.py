"""GPPO: PPO's clip with a gradient on both bounds (Su et al. 2025; AEPO, arXiv 2510.14545, eq. 19-22).

Where PPO's bound is active it is replaced by beta bound / sg(r) r, whose value is beta bound and whose gradient factor
(dL = -A F dlogprob) is

    F = beta_low (1 - clip_low)     A < 0, r < 1 - clip_low
        beta_high (1 + clip_high)   A > 0, r > 1 + clip_high
        r                           otherwise.

With both betas 1 the loss has PPO's value. Of the two published forms, eq. 20 picks the bound by region (here), the
released code takes the pessimistic maximum over a bound without betas: the same wherever both betas are 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..parts import require
from ..rows import Rows, TokenLoss
from . import ppo


class Config(ppo.Config, frozen=True):
    """Settings.

    Attributes:
        clip_low: the lower bound is 1 - clip_low.
        clip_high: the upper bound is 1 + clip_high.
        beta_low: strength of the lower bound (beta_1); 0 gives its tokens no gradient.
        beta_high: strength of the upper bound (beta_2).
        dual_clip: cap of the loss for negative advantages, in multiples of -A, with no gradient there; None, as in the
            paper, for none; the released code has 3.
    """

    dual_clip: float | None = None
    beta_low: float = 1.0
    beta_high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta_low >= 0, "beta_low must not be negative")
        require(self.beta_high >= 0, "beta_high must not be negative")


def gppo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta_low: float = 1.0,
    beta_high: float = 1.0,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Return the loss of every token; arguments of shape (rows, tokens), settings as in :class:`Config`."""
    difference = ppo.log_ratio(logprobs_BT, old_logprobs_BT, loss_mask_BT)
    ratio = difference.exp()
    # r / sg(r): value 1, gradient that of the log-probability.
    one = ratio / ratio.detach()
    bound = torch.where(ratio > 1, beta_high * (1 + clip_high) * one, beta_low * (1 - clip_low) * one)
    return ppo.surrogate(ratio, bound, difference, advantages_BT, loss_mask_BT, clip_low, clip_high, dual_clip)


def token_loss(config: Config, rows: Rows, advantages_BT: Tensor) -> TokenLoss:
    """Return the loss of a batch; needs logprobs_BT and old_logprobs_BT."""
    return gppo(
        rows.need("logprobs_BT", "gppo"),
        rows.need("old_logprobs_BT", "gppo"),
        advantages_BT,
        rows.loss_mask_BT,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        beta_low=config.beta_low,
        beta_high=config.beta_high,
        dual_clip=config.dual_clip,
    )
