"""RLOO: the outcome of a row against the mean of the others in its group (Ahmadian et al. 2024, eq. 8).

A = s - (mean of the other scores) = (s - mean) n / (n - 1), for every trained token of the row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..parts import PartConfig
from ..rows import Credit, Rows
from ..tensors import spread, to_tokens
from .grpo import Singleton


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        singleton: a group of one has no others: "raw" keeps its score, as verl does; "zero" gives 0.
    """

    singleton: Singleton = "raw"


def rloo(
    scores_N: Tensor, groups_N: Tensor, *, counted_N: Tensor | None = None, singleton: Singleton = "raw"
) -> Tensor:
    """Return the advantage of every score, shape (N,).

    Args:
        scores_N: float.
        groups_N: int; equal numbers share a group.
        counted_N: bool; scores that are part of the baseline; None for all.
        singleton: see :class:`Config`.
    """
    group = spread(scores_N, groups_N, counted_N=counted_N)
    values = (scores_N - group.mean) * (group.size / (group.size - 1).clamp_min(1))
    return torch.where(group.size == 1, scores_N if singleton == "raw" else torch.zeros_like(scores_N), values)


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch of trajectory rows; needs token_rewards_BT and group_B."""
    scores, groups = rows.scores_B("rloo"), rows.need("group_B", "rloo")
    values = rloo(scores, groups, counted_N=rows.counted_B, singleton=config.singleton)
    return Credit(to_tokens(values, rows.loss_mask_BT), details={"row_B": values})
