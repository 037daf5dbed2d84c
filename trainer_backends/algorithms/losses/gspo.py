"""GSPO: one ratio for a whole row, the geometric mean of its tokens' ratios (Zheng et al. 2025, eq. 5-7).

s = exp(mean over the row's trained tokens of logprob - old_logprob); every token carries s in the forward pass and its
own log-probability in the backward pass (GSPO-token), so an unclipped token has the gradient -A s grad logprob.
Clipping is PPO's, with bounds two orders of magnitude tighter. The paper averages tokens within rows, then rows
(``AGGREGATION``).
"""

from __future__ import annotations

from torch import Tensor

from ..aggregate import Mode
from ..rows import Rows, TokenLoss
from ..tensors import masked, masked_mean
from . import ppo
from ._shared_ratio import shared_ratio

AGGREGATION: Mode = "seq-mean-token-mean"
WHOLE_ROWS = True


class Config(ppo.Config, frozen=True):
    """Settings.

    Attributes:
        clip_low: the ratio is clipped at 1 - clip_low; 3e-4 in the paper.
        clip_high: and at 1 + clip_high; 4e-4 in the paper.
        dual_clip: cap of the loss for negative advantages, in multiples of -A; None, as in the paper, for none.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    dual_clip: float | None = None


def gspo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Return the loss of every token; arguments of shape (rows, tokens), settings as in :class:`Config`.

    The log ratio is bounded above by 10. A row without a trained token has ratio 1.
    """
    log_ratio = masked(logprobs_BT - old_logprobs_BT, loss_mask_BT)
    row = masked_mean(log_ratio, loss_mask_BT, -1).unsqueeze(-1)
    ratio = shared_ratio(log_ratio, row)
    return ppo.clipped(ratio, log_ratio, advantages_BT, loss_mask_BT, clip_low, clip_high, dual_clip)


def token_loss(config: Config, rows: Rows, advantages_BT: Tensor) -> TokenLoss:
    """Return the loss of a batch; needs logprobs_BT and old_logprobs_BT."""
    return gspo(
        rows.need("logprobs_BT", "gspo"),
        rows.need("old_logprobs_BT", "gspo"),
        advantages_BT,
        rows.loss_mask_BT,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
