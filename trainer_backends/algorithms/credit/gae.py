"""Generalised advantage estimation over trained tokens (Schulman et al. 2016, eq. 16), as PPO with a critic uses it.

delta_t = r_t + gamma V_(t+1) - V_t and A_t = delta_t + gamma lam A_(t+1), where t + 1 is the next *trained* token:
observations and padding are skipped, with their values and rewards, as in verl. Returns are A + V before whitening.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Credit, Rows
from ..tensors import discounted_sum, following, masked, masked_whiten


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        gamma: discount per token.
        lam: lambda: 1 sums all later errors, 0 takes the next value's word for them.
        whiten: give the advantages mean 0 and variance 1 over all trained tokens of the batch.
    """

    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.gamma <= 1, "gamma must lie in [0, 1]")
        require(0 <= self.lam <= 1, "lam must lie in [0, 1]")


def gae(rewards_BT: Tensor, values_BT: Tensor, loss_mask_BT: Tensor, *, gamma: float = 1.0, lam: float = 1.0) -> Tensor:
    """Return the advantages, 0 where the mask is 0, shape (B, T); not whitened.

    Args:
        rewards_BT: float; what lies on masked entries is skipped.
        values_BT: float; the critic's values.
        loss_mask_BT: bool or 0/1.
        gamma: see :class:`Config`.
        lam: see :class:`Config`.
    """
    inside = loss_mask_BT.bool()
    delta = rewards_BT + gamma * following(values_BT, inside) - values_BT
    # A masked entry hands on what it gets.
    sums = discounted_sum(masked(delta, inside), torch.ones_like(delta).masked_fill(inside, gamma * lam))
    return masked(sums, inside)


def credit(raw_BT: Tensor, values_BT: Tensor, loss_mask_BT: Tensor, whiten: bool) -> Credit:
    """Return advantages and returns from raw advantages."""
    final = masked_whiten(raw_BT, loss_mask_BT) if whiten else raw_BT
    return Credit(final, masked(raw_BT + values_BT, loss_mask_BT), {"raw_BT": raw_BT})


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch; needs token_rewards_BT and values_BT."""
    rewards, values = rows.need("token_rewards_BT", "gae"), rows.need("values_BT", "gae").detach()
    raw = gae(rewards, values, rows.loss_mask_BT, gamma=config.gamma, lam=config.lam)
    return credit(raw, values, rows.loss_mask_BT, config.whiten)
