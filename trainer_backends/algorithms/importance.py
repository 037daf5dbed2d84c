"""Importance correction between the inference engine and the trainer (truncated and masked importance sampling).

The engine samples with slightly other probabilities than the trainer computes for the same weights, and with older
weights when it runs ahead. The policy loss divides by the trainer's old probabilities; a token's loss is therefore
multiplied by w = exp(old_logprob - rollout_logprob), which must not run away. Two published ways:

- ``mode = "truncate"`` (TIS, Yao et al. 2025): w is cut at ``cap``;
- ``mode = "mask"`` (MIS, Liu et al. 2025): what has w outside [floor, cap] is dropped, the rest keeps its w.

``level`` says whose w it is: that of every token, of the row (product of its tokens' ratios, bounded to exp(±20)), or
of the row's geometric mean. ``veto`` drops a row as soon as one of its tokens is that improbable for the trainer.
Forced tokens and observations are outside the mask and never count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .parts import PartConfig, require
from .tensors import masked, masked_mean, masked_sum

MAX_LOG_WEIGHT = 20.0


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        level: whose weight counts.
        mode: what happens to a weight out of bounds.
        cap: upper bound of a weight; 2 in the field's examples.
        floor: lower bound for ``mode = "mask"``.
        veto: a row with a token whose own weight is below this is dropped; 0 for no veto.
    """

    level: Literal["token", "sequence", "geometric"] = "token"
    mode: Literal["truncate", "mask"] = "truncate"
    cap: float = 2.0
    floor: float = 0.0
    veto: float = 0.0

    def __post_init__(self) -> None:
        require(self.cap >= 1, "cap must be at least 1")
        require(0 <= self.floor <= 1, "floor must lie in [0, 1]")
        require(0 <= self.veto < 1, "veto must lie in [0, 1)")
        require(self.mode == "mask" or self.floor == 0, "floor is for mode = mask")


@dataclass(frozen=True)
class Correction:
    """Weights to multiply token losses with.

    Attributes:
        weights_BT: float, without gradient; 0 where the token is masked or dropped.
        kept_BT: bool; the loss mask without what was dropped. ``aggregate`` over the loss mask keeps the mean's
            denominator, over ``kept_BT`` it shrinks with what was dropped, as in verl.
        metrics: detached scalars: mean and largest weight before bounding, share of tokens bounded or dropped,
            effective sample size as a share of the tokens, and the k3 estimate of KL(rollout || trainer).
    """

    weights_BT: Tensor
    kept_BT: Tensor
    metrics: dict[str, Tensor]


def correct(
    old_logprobs_BT: Tensor, rollout_logprobs_BT: Tensor, loss_mask_BT: Tensor, config: Config | None = None
) -> Correction:
    """Return the correction of a batch; arguments of shape (rows, tokens), None for the default settings."""
    config = config or Config()
    inside = loss_mask_BT.bool()
    difference = masked((old_logprobs_BT - rollout_logprobs_BT).detach(), inside)
    own = difference.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)
    level = own
    if config.level != "token":
        log_B = difference.sum(-1) if config.level == "sequence" else masked_mean(difference, inside, -1)
        level = log_B.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).unsqueeze(-1).expand_as(difference)
    free = level.exp()
    vetoed_B = (inside & (own.exp() < config.veto)).any(-1, keepdim=True)
    kept = inside & ~vetoed_B
    outside = free > config.cap
    if config.mode == "mask":
        outside = outside | (free < config.floor)
        kept = kept & ~outside
    weights = masked(free.clamp(max=config.cap), kept)
    metrics = {
        "importance_mean": masked_mean(free, inside),
        "importance_max": masked(free, inside).max() if free.numel() else free.sum(),
        "importance_bounded": masked_mean((outside | vetoed_B).to(free.dtype), inside),
        "importance_ess": _effective_share(weights, inside),
        "rollout_kl": masked_mean(own.exp() - own - 1, inside),
    }
    return Correction(weights, kept, metrics)


def _effective_share(weights_BT: Tensor, inside_BT: Tensor) -> Tensor:
    count = inside_BT.sum().clamp_min(1).to(weights_BT.dtype)
    squares = masked_sum(weights_BT.square(), inside_BT)
    return masked_sum(weights_BT, inside_BT).square() / (count * squares.clamp_min(torch.finfo(squares.dtype).tiny))
