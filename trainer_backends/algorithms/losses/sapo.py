"""SAPO: a smooth gate in place of the clip (Gao et al. 2025).

Token loss -A (4 / tau) sigmoid(tau (r - 1)), with tau by the sign of A: the gradient factor (dL = -A F dlogprob) is
F = 4 g (1 - g) r with g = sigmoid(tau (r - 1)); it is r at r = 1 and fades on both sides, faster for a larger tau.
Negative advantages get the larger tau. verl averages tokens within rows, then rows (``AGGREGATION``).
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


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        tau_positive: sharpness of the gate where A > 0.
        tau_negative: and where A <= 0.
    """

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        require(self.tau_positive > 0, "tau_positive must be positive")
        require(self.tau_negative > 0, "tau_negative must be positive")


def sapo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> TokenLoss:
    """Return the loss of every token; arguments of shape (rows, tokens), settings as in :class:`Config`."""
    difference = log_ratio(logprobs_BT, old_logprobs_BT, loss_mask_BT)
    ratio = difference.exp()
    positive, negative = ratio.new_tensor(tau_positive), ratio.new_tensor(tau_negative)
    tau = torch.where(advantages_BT > 0, positive, negative)
    loss = -advantages_BT * 4 / tau * torch.sigmoid(tau * (ratio - 1))
    return TokenLoss(loss, {"approx_kl": masked_mean(-difference.detach(), loss_mask_BT)})


def token_loss(config: Config, rows: Rows, advantages_BT: Tensor) -> TokenLoss:
    """Return the loss of a batch; needs logprobs_BT and old_logprobs_BT."""
    return sapo(
        rows.need("logprobs_BT", "sapo"),
        rows.need("old_logprobs_BT", "sapo"),
        advantages_BT,
        rows.loss_mask_BT,
        tau_positive=config.tau_positive,
        tau_negative=config.tau_negative,
    )
