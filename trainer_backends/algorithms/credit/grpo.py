"""GRPO: the outcome of a row against the outcomes of its group (Shao et al. 2024, eq. 3).

A = (s - mean) / (std + epsilon) over the rows of one task, for every trained token of the row, with the unbiased
standard deviation, as in verl. ``normalise = "mean"`` leaves the division out (Dr. GRPO).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Credit, Rows
from ..tensors import Spread, dense, segment_sum, spread, to_tokens

Normalise = Literal["std", "mean"]
Over = Literal["rows", "trajectories"]
Singleton = Literal["raw", "zero"]


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        normalise: "std" divides by the group's standard deviation, "mean" only subtracts its mean.
        over: "rows": every row is a sample of its group's statistics (with turn rows a long trajectory counts more, as
            in the released GiGPO and RLVMR trainers); "trajectories": the mean of every trajectory's rows is.
        singleton: a group of one: "raw" keeps its score, as verl does; "zero" gives 0.
        epsilon: added to the standard deviation.
    """

    normalise: Normalise = "std"
    over: Over = "rows"
    singleton: Singleton = "raw"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require(self.epsilon >= 0, "epsilon must not be negative")


def grpo(
    scores_N: Tensor,
    groups_N: Tensor,
    trajectories_N: Tensor | None = None,
    *,
    counted_N: Tensor | None = None,
    normalise: Normalise = "std",
    unbiased: bool = True,
    singleton: Singleton = "raw",
    epsilon: float = 1e-6,
) -> Tensor:
    """Return the advantage of every score within its group, shape (N,).

    Args:
        scores_N: float.
        groups_N: int; equal numbers share a group.
        trajectories_N: int; where given, the statistics count every trajectory once, by the mean of its scores.
        counted_N: bool; scores that are part of the statistics; None for all.
        normalise: see :class:`Config`.
        unbiased: the variance divides by n - 1 instead of n.
        singleton: see :class:`Config`.
        epsilon: see :class:`Config`.

    A group of equal scores gives exactly 0.
    """
    group = group_spread(scores_N, groups_N, trajectories_N, counted_N=counted_N, unbiased=unbiased)
    centred = scores_N - group.mean
    values = centred / (group.std + epsilon) if normalise == "std" else centred
    # verl takes mean 0 and deviation 1 for a group of one.
    raw = scores_N / (1 + epsilon) if normalise == "std" else scores_N
    return torch.where(group.size == 1, raw if singleton == "raw" else torch.zeros_like(raw), values)


def group_spread(
    scores_N: Tensor,
    groups_N: Tensor,
    trajectories_N: Tensor | None = None,
    *,
    counted_N: Tensor | None = None,
    unbiased: bool = True,
) -> Spread:
    """Return the spread of every row's group, over rows or (where trajectories are given) their mean scores."""
    if trajectories_N is None:
        return spread(scores_N, groups_N, unbiased=unbiased, counted_N=counted_N)
    index, size = dense(trajectories_N)
    weights = torch.ones_like(scores_N) if counted_N is None else counted_N.to(scores_N.dtype)
    count = segment_sum(weights, index, size)
    means = segment_sum(scores_N * weights, index, size) / count.clamp_min(1)
    # Any row of a trajectory knows its group.
    groups = groups_N.new_zeros(size).index_copy_(0, index, groups_N)
    return Spread(*(each[index] for each in spread(means, groups, unbiased=unbiased, counted_N=count > 0)))


def row_advantages(config: Config, rows: Rows, part: str) -> Tensor:
    """Return the advantage of every row, shape (B,); ``part`` names who asks in errors."""
    return grpo(
        rows.scores_B(part),
        rows.need("group_B", part),
        rows.need("trajectory_B", part) if config.over == "trajectories" else None,
        counted_N=rows.counted_B,
        normalise=config.normalise,
        singleton=config.singleton,
        epsilon=config.epsilon,
    )


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch; needs token_rewards_BT, group_B (and trajectory_B for ``over = "trajectories"``)."""
    values = row_advantages(config, rows, "grpo")
    return Credit(to_tokens(values, rows.loss_mask_BT), details={"row_B": values})
