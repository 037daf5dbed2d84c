"""StarPO-S: train on the groups whose rewards differ most (RAGEN, section 4.2).

Keeps the share ``ratio`` of the groups with the largest unbiased standard deviation of the episode rewards. The number
is rounded down, as released, but never to 0: the released filter keeps no group of three at ratio 0.25. Groups of equal
deviation are taken in the order of their numbers. The released code filters on rewards that its normalisation has
already changed in place; outcomes are raw.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..outcomes import Outcomes
from ..parts import PartConfig, require
from ..tensors import dense, spread


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        ratio: share of the groups to keep, above 0; 1 switches the filter off.
        order: "std" prefers the largest deviations, "std-rev" the smallest.
        constant: groups of equal rewards among the kept: "keep" them, as released (they teach a critic, but have no
            advantage within the group), or "drop" them. One group is kept in any case.
    """

    ratio: float = 0.25
    order: Literal["std", "std-rev"] = "std"
    constant: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio must lie in (0, 1]")


def best_groups(
    stds_G: Tensor,
    *,
    ratio: float = 0.25,
    order: Literal["std", "std-rev"] = "std",
    constant: Literal["keep", "drop"] = "keep",
) -> Tensor:
    """Return which groups to keep, bool of shape (G,).

    Args:
        stds_G: float; deviation of the rewards of every group.
        ratio: see :class:`Config`.
        order: see :class:`Config`.
        constant: see :class:`Config`.
    """
    kept = torch.ones_like(stds_G, dtype=torch.bool)
    if ratio == 1 or stds_G.numel() == 0:
        return kept
    # 0.29 * 100 is a little less than 29.
    count = max(1, math.floor(ratio * stds_G.numel() + 1e-9))
    ranking = stds_G.argsort(descending=order == "std", stable=True)
    flat = stds_G == 0
    if constant == "drop":
        ranking = ranking[flat[ranking].long().argsort(stable=True)]
    kept = torch.zeros_like(kept).index_fill_(0, ranking[:count], True)
    if constant == "drop":
        kept = (kept & ~flat).index_fill_(0, ranking[:1], True)
    return kept


def keep(config: Config, outcomes: Outcomes) -> Tensor:
    """Return which episodes to train on, bool of shape (N,): all or none of a group."""
    index, size = dense(outcomes.groups_N)
    deviation = spread(outcomes.rewards_N, outcomes.groups_N).std
    stds = deviation.new_zeros(size).index_copy_(0, index, deviation)
    return best_groups(stds, ratio=config.ratio, order=config.order, constant=config.constant)[index]
