"""ARPO: GRPO over the leaves of branched rollouts, with or without a say of all leaves on a prefix they share.

``share = "soft"`` (default, and the only one the authors implemented) is GRPO: every row carries its own advantage,
also on a prefix that other rows share; the loss then averages over the copies. ``share = "hard"`` gives the tokens of
a shared segment the mean of the advantages of all rows that hold it (Dong et al. 2025, hard advantage estimation).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..rows import Credit, Rows
from ..tensors import dense, masked, segment_sum, to_tokens
from . import grpo


class Config(grpo.Config, frozen=True):
    """Settings; all others are those of ``grpo``.

    Attributes:
        share: see the module.
    """

    share: Literal["soft", "hard"] = "soft"


def shared_mean(values_B: Tensor, segment_ids_BT: Tensor, loss_mask_BT: Tensor, groups_B: Tensor) -> Tensor:
    """Return for every trained token the mean value of the rows that hold its segment, shape (B, T).

    Args:
        values_B: float.
        segment_ids_BT: int; equal numbers within a group are one segment; a token of none (-1) keeps its row's value.
        loss_mask_BT: bool or 0/1; a row holds a segment if it has a trained token in it.
        groups_B: int.
    """
    held = loss_mask_BT.bool() & (segment_ids_BT >= 0)
    segments, count = dense(segment_ids_BT.flatten())
    keys, total = dense((dense(groups_B)[0].unsqueeze(-1) * count + segments.view_as(segment_ids_BT)).flatten())
    keys = keys.view_as(segment_ids_BT)
    # A row counts once in a segment, however many of its tokens lie there.
    row = torch.arange(len(values_B), device=values_B.device).unsqueeze(-1)
    pairs = torch.unique((row * total + keys)[held])
    sums = segment_sum(values_B[pairs // total], pairs % total, total)
    rows = segment_sum(values_B.new_ones(len(pairs)), pairs % total, total)
    means = (sums / rows.clamp_min(1))[keys]
    return masked(torch.where(held, means, values_B.unsqueeze(-1)), loss_mask_BT)


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch; needs what ``grpo`` needs, and segment_ids_BT for ``share = "hard"``."""
    values = grpo.row_advantages(config, rows, "arpo")
    tokens = to_tokens(values, rows.loss_mask_BT)
    if config.share == "hard":
        segments = rows.need("segment_ids_BT", "arpo")
        tokens = shared_mean(values, segments, rows.loss_mask_BT, rows.need("group_B", "arpo"))
    return Credit(tokens, details={"row_B": values})
