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
from ..tensors import Spread, dense, segment_sum, spread


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        normalise: "std" divides by the group's standard deviation, "mean" only subtracts its mean.
        over: "rows": every row is a sample of its group's statistics (with turn rows a long trajectory counts more, as
            in the released GiGPO and RLVMR trainers); "trajectories": the mean of every trajectory's rows is.
        singleton: a group of one: "raw" keeps its score, as verl does; "zero" gives 0.
        epsilon: added to the standard deviation.
    """

    normalise: Literal["std", "mean"] = "std"
    over: Literal["rows", "trajectories"] = "rows"
    singleton: Literal["raw", "zero"] = "raw"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require(self.epsilon >= 0, "epsilon must not be negative")


def grpo(
    scores_N: Tensor,
    groups_N: Tensor,
    trajectories_N: Tensor | None = None,
    *,
    normalise: Literal["std", "mean"] = "std",
    singleton: Literal["raw", "zero"] = "raw",
    epsilon: float = 1e-6,
) -> Tensor:
    """Return the advantage of every score within its group, shape (N,).

    Args:
        scores_N: float.
        groups_N: int; equal numbers share a group.
        trajectories_N: int; where given, the statistics count every trajectory once, by the mean of its scores.
        normalise: see :class:`Config`.
        singleton: see :class:`Config`.
        epsilon: see :class:`Config`.

    A group of equal scores gives exactly 0.
    """
    group = spread(scores_N, groups_N) if trajectories_N is None else by_trajectory(scores_N, groups_N, trajectories_N)
    centred = scores_N - group.mean
    values = centred / (group.std + epsilon) if normalise == "std" else centred
    # verl takes mean 0 and deviation 1 for a group of one.
    raw = scores_N / (1 + epsilon) if normalise == "std" else scores_N
    return torch.where(group.size == 1, raw if singleton == "raw" else torch.zeros_like(raw), values)


def by_trajectory(scores_N: Tensor, groups_N: Tensor, trajectories_N: Tensor) -> Spread:
    """Return the spread of every row's group over the mean scores of its trajectories."""
    index, size = dense(trajectories_N)
    means = segment_sum(scores_N, index, size) / segment_sum(torch.ones_like(scores_N), index, size)
    # Any row of a trajectory knows its group.
    groups = groups_N.new_zeros(size).index_copy_(0, index, groups_N)
    return Spread(*(each[index] for each in spread(means, groups)))


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch; needs token_rewards_BT, group_B (and trajectory_B for ``over = "trajectories"``)."""
    values = grpo(
        rows.scores_B("grpo"),
        rows.need("group_B", "grpo"),
        rows.need("trajectory_B", "grpo") if config.over == "trajectories" else None,
        normalise=config.normalise,
        singleton=config.singleton,
        epsilon=config.epsilon,
    )
    return Credit(values.unsqueeze(-1) * rows.loss_mask_BT.to(values.dtype), details={"row_B": values})
