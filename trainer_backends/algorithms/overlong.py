"""DAPO's soft penalty on overlong replies (Yu et al. 2025, eq. 13).

A reply may use ``limit - buffer`` tokens for nothing; within the buffer the penalty goes linearly from 0 to -factor;
beyond the limit it stays there. AT2PO's DAPO baseline has a buffer of 2,000 tokens and factor 1.
"""

from __future__ import annotations

from torch import Tensor

from .parts import PartConfig, require


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        limit: the longest reply in tokens (L_max).
        buffer: tokens before the limit that cost something (L_cache).
        factor: the full penalty, in units of reward.
    """

    limit: int
    buffer: int = 2000
    factor: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.buffer <= self.limit, "buffer must lie in 1 … limit")
        require(self.factor >= 0, "factor must not be negative")


def overlong_penalty(lengths_B: Tensor, *, limit: int, buffer: int = 2000, factor: float = 1.0) -> Tensor:
    """Return what to add to the reward of every reply: from 0 down to -factor.

    Args:
        lengths_B: float; tokens of every reply, those of the policy only.
        limit: see :class:`Config`.
        buffer: see :class:`Config`.
        factor: see :class:`Config`.
    """
    return -factor * ((lengths_B - (limit - buffer)) / buffer).clamp(0, 1)
