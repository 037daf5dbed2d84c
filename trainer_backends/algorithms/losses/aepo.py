"""AEPO's entropy-balanced clip: PPO with a gradient on the upper bound alone (arXiv 2510.14545, eq. 8-14).

The upper bound is (1 + clip_high) / sg(r) r, the lower bound the constant 1 - clip_low, so the loss has PPO's value and
the gradient factor (dL = -A F dlogprob, eq. 14; eq. 9 misprints the lower bound with clip_high)

    F = 1 + clip_high   A > 0, r > 1 + clip_high
        0               A < 0, r < 1 - clip_low
        r               otherwise.

Paper and released code apply it to every token, whatever its entropy. The dual clip is the released code's and not in
the paper. T2PO's released fork has a loss of the same name that is reversed: it keeps the gradient of clipped
low-entropy tokens and drops that of high-entropy ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..rows import Rows, TokenLoss
from . import ppo


class Config(ppo.Config, frozen=True):
    """Settings.

    Attributes:
        clip_low: the lower bound is 1 - clip_low.
        clip_high: the upper bound is 1 + clip_high.
        dual_clip: cap of the loss for negative advantages, in multiples of -A, with no gradient there; 3 in the
            released code (default, a bound on single tokens); None (in a recipe: inf) is the paper's.
    """


def aepo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> TokenLoss:
    """Return the loss of every token; arguments of shape (rows, tokens), settings as in :class:`Config`."""
    difference = ppo.log_ratio(logprobs_BT, old_logprobs_BT, loss_mask_BT)
    ratio = difference.exp()
    upper = (1 + clip_high) * ratio / ratio.detach()
    bound = torch.where(ratio > 1, upper, ratio.new_tensor(1 - clip_low))
    return ppo.surrogate(ratio, bound, difference, advantages_BT, loss_mask_BT, clip_low, clip_high, dual_clip)


def token_loss(config: Config, rows: Rows, advantages_BT: Tensor) -> TokenLoss:
    """Return the loss of a batch; needs logprobs_BT and old_logprobs_BT."""
    return aepo(
        rows.need("logprobs_BT", "aepo"),
        rows.need("old_logprobs_BT", "aepo"),
        advantages_BT,
        rows.loss_mask_BT,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
