"""DAPO's soft penalty for rows that come near the length limit (Yu et al. 2025, eq. 13; a baseline of AT2PO).

0 up to limit - buffer tokens, then falling linearly to -factor at the limit, and -factor beyond. It is added to the
reward of the row's last trained token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Rows
from ..tensors import last_of_row, to_tokens


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        limit: tokens of the longest possible response; DAPO 20,480, AT2PO's baseline 6,192.
        buffer: tokens before the limit in which the penalty grows; DAPO 4,096, AT2PO's baseline 2,000.
        factor: penalty at the limit.
        length: "span": from the first to the last trained token, observations between them included, as the limit
            counts them; "trained": trained tokens only.
    """

    limit: int
    buffer: int = 4096
    factor: float = 1.0
    length: Literal["span", "trained"] = "span"

    def __post_init__(self) -> None:
        require(0 < self.buffer <= self.limit, "buffer must lie in (0, limit]")
        require(self.factor >= 0, "factor must not be negative")


def lengths(loss_mask_BT: Tensor, length: Literal["span", "trained"] = "span") -> Tensor:
    """Return the length of every row in tokens, int of shape (B,); 0 without a trained token."""
    inside = loss_mask_BT.long()
    if length == "trained":
        return inside.sum(-1)
    # Trained tokens at or before, and at or after a token: both are positive from the first to the last.
    before, after = inside.cumsum(-1), inside.flip(-1).cumsum(-1).flip(-1)
    return ((before > 0) & (after > 0)).sum(-1)


def penalty(lengths_B: Tensor, limit: int, buffer: int, factor: float = 1.0, *, dtype: torch.dtype) -> Tensor:
    """Return the penalty of every row, from -factor to 0, shape (B,).

    Args:
        lengths_B: int.
        limit: see :class:`Config`.
        buffer: see :class:`Config`.
        factor: see :class:`Config`.
        dtype: of the result.
    """
    return ((limit - buffer - lengths_B).to(dtype) / buffer).clamp(-1, 0) * factor


def shape(config: Config, rows: Rows) -> Rows:
    """Return the rows with the penalty in their rewards; needs token_rewards_BT."""
    rewards: Tensor = rows.need("token_rewards_BT", "overlong")
    counts = lengths(rows.loss_mask_BT, config.length)
    penalties = penalty(counts, config.limit, config.buffer, config.factor, dtype=rewards.dtype)
    return replace(rows, token_rewards_BT=rewards + to_tokens(penalties, last_of_row(rows.loss_mask_BT)))
