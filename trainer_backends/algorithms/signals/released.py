"""T2PO's signal as released: a certainty of the next token, from raw logits.

score = (1 - alpha) max log p + alpha (1 - clip(H / ln V, 0, 1)), with V the size of the vocabulary. Its first term is
not bounded below, so it is no number between 0 and 1: take the arithmetic mean over a turn. The released setting
``combine_alpha`` is 1 - alpha.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..parts import PartConfig, require
from ..tensors import masked
from ..uncertainty import Signal, Statistics


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        alpha: weight of the entropy; 0.4 in the released code and the paper, 0.1 in its file for vLLM's V1.
    """

    alpha: float = 0.4

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "alpha must lie in [0, 1]")


def released(entropy_X: Tensor, peak_X: Tensor, vocabulary: int, alpha: float = 0.4) -> Tensor:
    """Return the score of every distribution.

    Args:
        entropy_X: float; H in nats.
        peak_X: float; the largest log-probability.
        vocabulary: number of tokens V, at least 2.
        alpha: weight of the entropy.
    """
    flatness = (entropy_X / math.log(vocabulary)).clamp(0, 1)
    return (1 - alpha) * peak_X + alpha * (1 - flatness)


class Released(Signal):
    """The released score; it remembers nothing."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def online(self, statistics: Statistics, memory: dict[str, Tensor]) -> Tensor:
        """Return the score of the next token of every request."""
        return released(statistics.entropy, -statistics.confidence, statistics.vocabulary, self.config.alpha)

    def scores(self, statistics_BT: Statistics, mask_BT: Tensor | None = None) -> Tensor:
        """Return the score of every token."""
        scores = self.online(statistics_BT, {})
        return scores if mask_BT is None else masked(scores, mask_BT)


def make(config: Config) -> Signal:
    """Return the signal."""
    return Released(config)
