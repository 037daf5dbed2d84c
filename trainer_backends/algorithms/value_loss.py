"""The critic's loss: squared error, clipped around the values of the rollout (PPO2; verl's compute_value_loss)."""

from __future__ import annotations

import torch
from torch import Tensor

from .parts import PartConfig, require
from .rows import TokenLoss
from .tensors import masked, masked_mean


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        clip: values count as moved by at most this much from the old ones; None (in a recipe: inf) for no clip.
        coefficient: weight of the critic's loss where it shares a network with the policy.
    """

    clip: float | None = 0.5
    coefficient: float = 1.0

    def __post_init__(self) -> None:
        require(self.clip is None or self.clip > 0, "clip must be positive")
        require(self.coefficient >= 0, "coefficient must not be negative")


def value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    clip: float | None = 0.5,
) -> TokenLoss:
    """Return 0.5 max((v - R)², (v_clipped - R)²) for every token.

    Args:
        values_BT: float; the critic's values now.
        old_values_BT: float; its values when the advantages were computed.
        returns_BT: float; targets, in units of reward.
        loss_mask_BT: bool or 0/1.
        clip: v_clipped lies within old ± clip; None for no clip.
    """
    values, old = masked(values_BT, loss_mask_BT), masked(old_values_BT, loss_mask_BT)
    returns = masked(returns_BT, loss_mask_BT)
    loss = free = (values - returns).square()
    if clip is not None:
        near = torch.minimum(torch.maximum(values, old - clip), old + clip)
        loss = torch.maximum(free, (near - returns).square())
    metrics = {
        "value_clip_fraction": masked_mean((loss > free).to(free.dtype), loss_mask_BT),
        "value_error": masked_mean(free, loss_mask_BT),
        "explained_variance": explained_variance(values, returns, loss_mask_BT),
    }
    return TokenLoss(0.5 * loss, {name: value.detach() for name, value in metrics.items()})


def explained_variance(values_BT: Tensor, returns_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """Return 1 - var(R - v) / var(R) over the trained tokens: 1 is a perfect critic, 0 one that knows only the mean.

    Equal returns have no variance to explain: 0.
    """
    left = _variance(returns_BT - values_BT, loss_mask_BT)
    whole = _variance(returns_BT, loss_mask_BT)
    constant = whole == 0
    return torch.where(constant, torch.zeros_like(whole), 1 - left / torch.where(constant, 1.0, whole))


def _variance(x_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    return masked_mean((x_BT - masked_mean(x_BT, loss_mask_BT)).square(), loss_mask_BT)
