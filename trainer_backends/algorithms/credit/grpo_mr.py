"""GRPO-MR: the outcome within the task's group, and the meta-reasoning reward among steps with the same tag (RLVMR).

A = alpha A_outcome + (1 - alpha) A_meta (Zhang et al. 2025, eq. 4), for every trained token of a turn row. A_outcome is
the row's score against its task's group, A_meta the tag's reward against the rows that carry the same tag.

Where the paper and its code differ, every choice is a setting. Defaults are the paper's: algorithm 2's groups (task and
tag) and population deviation, eq. 4's convex combination, and 0 for a tag that occurs once. The released code adds
(``combine = "sum"``), takes the unbiased deviation over rows and gives a lone tag its raw reward: a step is then
praised for being the only one of its kind.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Credit, Rows, number
from ..tensors import dense, to_tokens
from .grpo import Normalise, Over, Singleton, grpo


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        combine: "convex": alpha A_outcome + (1 - alpha) A_meta (eq. 4); "sum": A_outcome + weight A_meta (algorithm 2
            and the code).
        alpha: for "convex"; the paper's 0.5.
        weight: for "sum"; 0.5 in the code's defaults, 1 in its scripts. 1 has the direction of alpha = 0.5 at twice
            the size.
        group: who shares a tag's statistics: rows of one task ("env-tag", algorithm 2 and the code) or of the whole
            batch ("tag", eq. 3).
        std: "population" divides by n (algorithm 2), "unbiased" by n - 1 (the code).
        normalise: "std" divides by the deviation, "mean" only subtracts the mean; at both levels.
        over: what the outcome's statistics count: "trajectories" once each, or "rows" as released.
        singleton: a task with one sample: "zero" gives 0, "raw" keeps its score, as released.
        tag_singleton: a tag that occurs once: "zero" gives 0, "raw" keeps its reward, as released.
        epsilon: added to the standard deviation.
    """

    combine: Literal["convex", "sum"] = "convex"
    alpha: float = 0.5
    weight: float = 1.0
    group: Literal["env-tag", "tag"] = "env-tag"
    std: Literal["population", "unbiased"] = "population"
    normalise: Normalise = "std"
    over: Over = "trajectories"
    singleton: Singleton = "zero"
    tag_singleton: Singleton = "zero"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "alpha must lie in [0, 1]")
        require(self.epsilon >= 0, "epsilon must not be negative")


def tag_groups(tags_B: Tensor, groups_B: Tensor | None = None) -> Tensor:
    """Return a number for every (group, tag), or for every tag where no groups are given; shape (B,)."""
    tags, count = dense(tags_B)
    return tags if groups_B is None else dense(groups_B)[0] * count + tags


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch of turn rows.

    Needs token_rewards_BT, meta_reward_B, tags, group_B (and trajectory_B for ``over = "trajectories"``).
    """
    part = "grpo-mr"
    groups, counted = rows.need("group_B", part), rows.counted_B
    tags = number(rows.need("tags", part)).to(groups.device)
    unbiased = config.std == "unbiased"
    outcome = grpo(
        rows.scores_B(part),
        groups,
        rows.need("trajectory_B", part) if config.over == "trajectories" else None,
        counted_N=counted,
        normalise=config.normalise,
        unbiased=unbiased,
        singleton=config.singleton,
        epsilon=config.epsilon,
    )
    meta = grpo(
        rows.need("meta_reward_B", part),
        tag_groups(tags, groups if config.group == "env-tag" else None),
        counted_N=counted,
        normalise=config.normalise,
        unbiased=unbiased,
        singleton=config.tag_singleton,
        epsilon=config.epsilon,
    )
    both = combine(config, outcome, meta)
    return Credit(to_tokens(both, rows.loss_mask_BT), details={"outcome_B": outcome, "meta_B": meta, "row_B": both})


def combine(config: Config, outcome_B: Tensor, meta_B: Tensor) -> Tensor:
    """Return the two parts as one, shape (B,)."""
    if config.combine == "sum":
        return outcome_B + config.weight * meta_B
    return config.alpha * outcome_B + (1 - config.alpha) * meta_B
