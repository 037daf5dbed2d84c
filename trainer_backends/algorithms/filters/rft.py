"""Rejection-sampling fine-tuning: keep the episodes that went well enough to be imitated (T2PO, appendix B.1)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ..outcomes import Outcomes
from ..parts import PartConfig


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        threshold: keep what is *above* it. T2PO's code: 0.9 for WebShop, 0.8 for ALFWorld.
        of: the number compared: the task "score" in [0, 1] or the episode's "reward".
    """

    threshold: float = 0.9
    of: Literal["score", "reward"] = "score"


def keep(config: Config, outcomes: Outcomes) -> Tensor:
    """Return which episodes to imitate, bool of shape (N,); needs scores_N for ``of = "score"``."""
    values: Tensor = outcomes.rewards_N if config.of == "reward" else outcomes.need("scores_N", "rft")
    return values > config.threshold
