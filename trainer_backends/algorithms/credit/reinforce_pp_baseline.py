"""REINFORCE++-baseline: the score less the mean of its group, whitened over all trained tokens of the batch.

Hu 2025, section 3 ("REINFORCE++-baseline"), as verl has it: the group gives the baseline, the batch the scale.
"""

from __future__ import annotations

from ..parts import PartConfig
from ..rows import Credit, Rows
from ..tensors import masked_whiten, to_tokens
from .grpo import Singleton, grpo


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        singleton: a group of one: "raw" keeps its score before the whitening, as verl does; "zero" gives 0.
    """

    singleton: Singleton = "raw"


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch; needs token_rewards_BT and group_B."""
    part = "reinforce-pp-baseline"
    scores, groups = rows.scores_B(part), rows.need("group_B", part)
    centred = grpo(scores, groups, counted_N=rows.counted_B, normalise="mean", singleton=config.singleton)
    tokens = to_tokens(centred, rows.loss_mask_BT)
    return Credit(masked_whiten(tokens, rows.loss_mask_BT), details={"row_B": centred})
