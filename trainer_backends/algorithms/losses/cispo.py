"""CISPO: REINFORCE weighted with a clipped ratio that carries no gradient (MiniMax-M1 2025, eq. 4-5).

Token loss -sg(bounded r) A logprob, gradient -bounded(r) A grad logprob: no token is ever dropped. What bounds the
ratio is published in three ways:

- ``bound = "band"`` (default): [1 - clip_low, 1 + clip_high], as in verl and in AEPO's eq. 18;
- ``bound = "ceiling"``: at most ``ceiling``, an absolute value, and nothing below, as in TRL;
- ``bound = "none"``: AEPO's eq. 16, whose gradient (eq. 18) has the clip that eq. 16 leaves out. Not for training.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Rows, TokenLoss
from ..tensors import masked, masked_mean
from .ppo import log_ratio

Bound = Literal["band", "ceiling", "none"]


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        bound: what bounds the ratio, see above.
        clip_low: the band starts at 1 - clip_low.
        clip_high: and ends at 1 + clip_high.
        ceiling: largest ratio for ``bound = "ceiling"``.
    """

    bound: Bound = "band"
    clip_low: float = 0.2
    clip_high: float = 0.2
    ceiling: float = 5.0

    def __post_init__(self) -> None:
        require(0 <= self.clip_low <= 1, "clip_low must lie in [0, 1]")
        require(self.clip_high >= 0, "clip_high must not be negative")
        require(self.ceiling >= 1, "ceiling must be at least 1")


def cispo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    bound: Bound = "band",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ceiling: float = 5.0,
) -> TokenLoss:
    """Return the loss of every token; arguments of shape (rows, tokens), settings as in :class:`Config`."""
    difference = log_ratio(logprobs_BT, old_logprobs_BT, loss_mask_BT).detach()
    ratio = difference.exp()
    weight = ratio
    if bound == "band":
        weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    elif bound == "ceiling":
        weight = ratio.clamp(max=ceiling)
    loss = -weight * advantages_BT * masked(logprobs_BT, loss_mask_BT)
    metrics = {
        "clip_fraction": masked_mean((weight != ratio).to(ratio.dtype), loss_mask_BT),
        "approx_kl": masked_mean(-difference, loss_mask_BT),
    }
    return TokenLoss(loss, metrics)


def token_loss(config: Config, rows: Rows, advantages_BT: Tensor) -> TokenLoss:
    """Return the loss of a batch; needs logprobs_BT and old_logprobs_BT."""
    return cispo(
        rows.need("logprobs_BT", "cispo"),
        rows.need("old_logprobs_BT", "cispo"),
        advantages_BT,
        rows.loss_mask_BT,
        bound=config.bound,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        ceiling=config.ceiling,
    )
