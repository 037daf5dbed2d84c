"""Turn-KL entropy: how evenly an update moves the turns of a trajectory (AT2PO, arXiv 2601.04767, eq. 13).

With KL_k the sum over turn k's tokens of old_logprob - logprob and KL the sum over the row, H_turn is the entropy of
softmax_k(KL_k / KL), divided by the logarithm of the number of turns: 1 if all turns move alike, towards 0 if one turn
takes the whole change. It is a metric and enters no loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Rows
from ..tensors import masked, turn_sums
from ..verdict import Evidence, Verdict


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        least: a mean below this is a warning; the paper plots H_turn and sets no limit, so 0 warns of nothing.
    """

    least: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.least <= 1, "least must lie in [0, 1]")


def turn_kl_entropy(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    loss_mask_BT: Tensor,
    turn_ids_BT: Tensor,
    *,
    epsilon: float = 0.0,
) -> Tensor:
    """Return H_turn of every row, shape (rows,), in [0, 1]; has no gradient.

    Args:
        logprobs_BT: float; log-probabilities now.
        old_logprobs_BT: float; the same before the update.
        loss_mask_BT: bool or 0/1.
        turn_ids_BT: int; turn of each token, -1 for none.
        epsilon: added inside the logarithm; 1e-10 in the released code.

    A row with fewer than two turns, or whose policy did not move (KL exactly 0), has 0, as in the released code.
    """
    lost_BT = (old_logprobs_BT - logprobs_BT).detach()
    turn_BK, counts_BK = turn_sums(lost_BT, turn_ids_BT, loss_mask_BT)
    there_BK = counts_BK > 0
    total_B = turn_BK.sum(-1, keepdim=True)
    turns_B = there_BK.sum(-1)
    defined_B = (turns_B > 1) & (total_B.squeeze(-1) != 0)
    share_BK = turn_BK / torch.where(total_B == 0, torch.ones_like(total_B), total_B)
    # Rows of no turn would give NaN: let them have one.
    allowed_BK = there_BK | ~defined_B.unsqueeze(-1)
    probability_BK = share_BK.masked_fill(~allowed_BK, -torch.inf).softmax(-1)
    logs_BK = (probability_BK + epsilon).clamp_min(torch.finfo(turn_BK.dtype).tiny).log()
    entropy_B = -(probability_BK * logs_BK).sum(-1) / turns_B.clamp_min(2).to(turn_BK.dtype).log()
    return masked(entropy_B, defined_B)


def indicate(config: Config, rows: Rows) -> Verdict:
    """Judge the mean H_turn of a batch; needs logprobs_BT, old_logprobs_BT and turn_ids_BT."""
    entropy_B = turn_kl_entropy(
        rows.need("logprobs_BT", "turn-kl"),
        rows.need("old_logprobs_BT", "turn-kl"),
        rows.loss_mask_BT,
        rows.need("turn_ids_BT", "turn-kl"),
    )
    if not len(entropy_B):
        return Verdict("unknown", (Evidence("turn_kl_entropy", None, None, config.least, "There are no rows."),))
    mean = float(entropy_B.mean())
    fired = not mean >= config.least
    text = f"turn_kl_entropy {mean:.4g} is {'below' if fired else 'at least'} {config.least:g}."
    return Verdict("warning" if fired else "fine", (Evidence("turn_kl_entropy", fired, mean, config.least, text),))
