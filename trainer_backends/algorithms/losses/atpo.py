"""ATPO: one ratio for every turn, the geometric mean of its tokens' ratios (AT2PO, arXiv 2601.04767, eq. 4-5).

As GSPO, with the mean over the tokens of one turn: an unclipped token has the gradient -A s_turn grad logprob. The
released code takes every maximal run of trained tokens for a turn, so that two adjacent turns with no observation
between them merge, and a forced token inside a turn cuts it in two; here ``turn_ids_BT`` says what a turn is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....errors import InvalidRequest
from ..aggregate import Mode
from ..rows import Rows, TokenLoss
from ..tensors import masked, turn_sums
from . import ppo
from ._shared_ratio import shared_ratio

AGGREGATION: Mode = "seq-mean-token-mean"
WHOLE_ROWS = True


class Config(ppo.Config, frozen=True):
    """Settings.

    Attributes:
        clip_low: the ratio is clipped at 1 - clip_low; 3e-3 in paper and script.
        clip_high: and at 1 + clip_high; 4e-3 in paper and script.
        dual_clip: cap of the loss for negative advantages, in multiples of -A; None, as in the paper, for none.
    """

    clip_low: float = 3e-3
    clip_high: float = 4e-3
    dual_clip: float | None = None


def turn_log_ratio(log_ratio_BT: Tensor, turn_ids_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """Return the mean log ratio of the turn of every token, shape (rows, tokens); outside the mask it means nothing.

    Args:
        log_ratio_BT: float; logprobs - old_logprobs.
        turn_ids_BT: int; equal ids in a row are one turn, wherever its tokens stand.
        loss_mask_BT: bool or 0/1; only set tokens enter a mean.

    Raises:
        InvalidRequest: a trained token belongs to no turn (its id is negative).
    """
    sums_BK, counts_BK = turn_sums(log_ratio_BT, turn_ids_BT, loss_mask_BT)
    if int(counts_BK.long().sum()) != int(loss_mask_BT.bool().sum()):
        raise InvalidRequest("A trained token belongs to no turn.", hint="Give it a turn id, or loss mask 0.")
    means_BK = sums_BK / counts_BK.clamp_min(1)
    return means_BK.gather(-1, turn_ids_BT.clamp_min(0))


def atpo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    loss_mask_BT: Tensor,
    turn_ids_BT: Tensor,
    *,
    clip_low: float = 3e-3,
    clip_high: float = 4e-3,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Return the loss of every token; arguments of shape (rows, tokens), settings as in :class:`Config`.

    The log ratio is bounded above by 10, as in the released code. Numbering the turns takes one look at ``turn_ids_BT``
    on the host.

    Raises:
        InvalidRequest: a trained token belongs to no turn.
    """
    log_ratio = masked(logprobs_BT - old_logprobs_BT, loss_mask_BT)
    with torch.no_grad():
        turn = turn_log_ratio(log_ratio, turn_ids_BT, loss_mask_BT)
    ratio = shared_ratio(log_ratio, turn)
    return ppo.clipped(ratio, log_ratio, advantages_BT, loss_mask_BT, clip_low, clip_high, dual_clip)


def token_loss(config: Config, rows: Rows, advantages_BT: Tensor) -> TokenLoss:
    """Return the loss of a batch; needs logprobs_BT, old_logprobs_BT and turn_ids_BT."""
    return atpo(
        rows.need("logprobs_BT", "atpo"),
        rows.need("old_logprobs_BT", "atpo"),
        advantages_BT,
        rows.loss_mask_BT,
        rows.need("turn_ids_BT", "atpo"),
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
