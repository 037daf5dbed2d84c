"""REINFORCE++: the discounted rewards that follow a token, whitened over the batch (Hu 2025, section 3).

G_t = r_t + gamma G_(t+1), A = (G - mean) / std over all trained tokens.

``variant = "paper"`` (default) carries G across masked tokens without discount, so that a final reward reaches the
turns before an observation. ``variant = "released"`` is verl's code, which sets G to 0 at every masked token: in rows
with observations every turn but the last is then cut off from the final reward.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Credit, Rows
from ..tensors import discounted_sum, masked_whiten


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        gamma: discount of the reward per trained token.
        variant: what a masked token does to the return; see the module.
    """

    gamma: float = 1.0
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        require(0 <= self.gamma <= 1, "gamma must lie in [0, 1]")


def returns(
    token_rewards_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    gamma: float = 1.0,
    variant: Literal["paper", "released"] = "paper",
) -> Tensor:
    """Return G of every token, shape (B, T); a reward on a masked token counts for the tokens before it.

    Args:
        token_rewards_BT: float.
        loss_mask_BT: bool or 0/1.
        gamma: see :class:`Config`.
        variant: see the module.
    """
    inside = loss_mask_BT.bool()
    if variant == "paper":
        discount = torch.ones_like(token_rewards_BT).masked_fill(inside, gamma)
    else:
        # The next token's return counts only where that token is trained.
        discount = torch.zeros_like(token_rewards_BT).masked_fill(inside.roll(-1, -1), gamma)
    return discounted_sum(token_rewards_BT, discount)


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch; needs token_rewards_BT."""
    rewards = rows.need("token_rewards_BT", "reinforce-pp")
    values = returns(rewards, rows.loss_mask_BT, gamma=config.gamma, variant=config.variant)
    return Credit(masked_whiten(values, rows.loss_mask_BT), details={"return_BT": values})
