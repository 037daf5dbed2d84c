"""PPO's clipped surrogate (Schulman et al. 2017, eq. 7), with DAPO's clip-higher and the dual clip.

With r = exp(logprob - old_logprob) the token loss is max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); where A < 0
the dual clip (Ye et al. 2020) caps it at -A dual_clip. The gradient is -A r grad logprob, or 0 where the clip is
active. StarPO-S and DAPO set clip_high = 0.28 ("clip-higher").
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Rows, TokenLoss
from ..tensors import masked, masked_mean, masked_share

MAX_LOG_RATIO = 20.0
"""verl's bound of the log ratio, so that no ratio overflows."""


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        clip_low: the ratio is clipped at 1 - clip_low.
        clip_high: and at 1 + clip_high.
        dual_clip: cap of the loss for negative advantages, in multiples of -A; above 1; None (in a recipe: inf) for
            none. 3 in verl and in all forks of the papers.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0

    def __post_init__(self) -> None:
        require(0 <= self.clip_low < 1, "clip_low must lie in [0, 1)")
        require(self.clip_high >= 0, "clip_high must not be negative")
        require(self.dual_clip is None or self.dual_clip > 1, "dual_clip must be greater than 1")


def log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """Return logprobs - old_logprobs, bounded to ±20, and 0 outside the mask, whatever stands there."""
    return masked(logprobs_BT - old_logprobs_BT, loss_mask_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ppo(
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
    difference = log_ratio(logprobs_BT, old_logprobs_BT, loss_mask_BT)
    ratio = difference.exp()
    return clipped(ratio, difference, advantages_BT, loss_mask_BT, clip_low, clip_high, dual_clip)


def clipped(
    ratio_BT: Tensor,
    log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> TokenLoss:
    """Return PPO's loss for any ratio; GSPO and ATPO give it those of whole rows and turns."""
    return surrogate(ratio_BT, None, log_ratio_BT, advantages_BT, loss_mask_BT, clip_low, clip_high, dual_clip)


def surrogate(
    ratio_BT: Tensor,
    bound_BT: Tensor | None,
    log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> TokenLoss:
    """Return -A r with r replaced by ``bound_BT`` where PPO's pessimistic maximum takes the clipped ratio.

    That is where A < 0 and r < 1 - clip_low, and where A > 0 and r > 1 + clip_high. PPO's bound is the clipped ratio
    itself (None); GPPO and AEPO give one that keeps a gradient.
    """
    inside = loss_mask_BT.bool()
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    active = advantages_BT * (ratio_BT - clipped_BT).detach() > 0
    loss = -advantages_BT * torch.where(active, clipped_BT if bound_BT is None else bound_BT, ratio_BT)
    metrics = {"clip_fraction": masked_share(active, inside, loss.dtype)}
    if dual_clip is not None:
        cap = -advantages_BT * dual_clip
        capped = (advantages_BT < 0) & (loss > cap)
        metrics["dual_clip_fraction"] = masked_share(capped, inside, loss.dtype)
        loss = torch.where(capped, cap, loss)
    metrics["approx_kl"] = -masked_mean(log_ratio_BT, inside)
    return TokenLoss(loss, {name: value.detach() for name, value in metrics.items()})


def token_loss(config: Config, rows: Rows, advantages_BT: Tensor) -> TokenLoss:
    """Return the loss of a batch; needs logprobs_BT and old_logprobs_BT."""
    return ppo(
        rows.need("logprobs_BT", "ppo"),
        rows.need("old_logprobs_BT", "ppo"),
        advantages_BT,
        rows.loss_mask_BT,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
