"""GMPO: the geometric mean of a row's token ratios, clipped token by token (Zhao et al. 2025, eq. 4-6).

The log ratio of every token is clipped to [-clip_low, clip_high] on the side where clipping makes the objective smaller
(A > 0: above, A < 0: below; A = 0: both), averaged over the row and exponentiated: row loss = -mean(A) exp(mean log r).
The gradient of an unclipped token is -mean(A) s grad logprob / n, with s the row's ratio and n its trained tokens.
Every token carries the row's loss, so that the mean over rows of their means (``AGGREGATION``) is the paper's; verl
also counts rows without a trained token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..aggregate import Mode
from ..parts import PartConfig, require
from ..rows import Rows, TokenLoss
from ..tensors import masked_mean
from .ppo import log_ratio

AGGREGATION: Mode = "seq-mean-token-mean"
WHOLE_ROWS = True


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        clip_low: the log ratio is clipped at -clip_low; 0.4 in the paper.
        clip_high: and at clip_high; 0.4 in the paper.
    """

    clip_low: float = 0.4
    clip_high: float = 0.4

    def __post_init__(self) -> None:
        require(self.clip_low >= 0, "clip_low must not be negative")
        require(self.clip_high >= 0, "clip_high must not be negative")


def gmpo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> TokenLoss:
    """Return the loss of every token; arguments of shape (rows, tokens), settings as in :class:`Config`.

    A row's advantage is the mean of its tokens'. Log ratios are bounded to ±20 before they are clipped.
    """
    free = log_ratio(logprobs_BT, old_logprobs_BT, loss_mask_BT)
    sign = advantages_BT.sign()
    kept = sign * torch.minimum(sign * free, sign * free.clamp(-clip_low, clip_high))
    ratio_B = masked_mean(kept, loss_mask_BT, -1).exp()
    loss_B = -masked_mean(advantages_BT, loss_mask_BT, -1) * ratio_B
    metrics = {
        "clip_fraction": masked_mean((kept != free).to(free.dtype), loss_mask_BT),
        "approx_kl": masked_mean(-free, loss_mask_BT),
    }
    loss = loss_B.unsqueeze(-1).expand_as(free)
    return TokenLoss(loss, {name: value.detach() for name, value in metrics.items()})


def token_loss(config: Config, rows: Rows, advantages_BT: Tensor) -> TokenLoss:
    """Return the loss of a batch; needs logprobs_BT and old_logprobs_BT."""
    return gmpo(
        rows.need("logprobs_BT", "gmpo"),
        rows.need("old_logprobs_BT", "gmpo"),
        advantages_BT,
        rows.loss_mask_BT,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
