"""GiGPO: the outcome within the task's group, plus the step within the group of rows that saw the same state.

A = A_episode + omega A_step (Feng et al. 2025, eq. 9; the base of T2PO). A_episode is GRPO's over the rows' scores.
A_step compares the discounted step returns R_k = r_k + gamma R_(k+1) of the rows of one task with the same *anchor*,
the observation they acted on. Both for every trained token of a turn row.

Released and offered: similar anchors (``anchors = "similar"``), statistics over rows instead of trajectories
(``over = "rows"``, so that long trajectories weigh more). The released trainers also duplicate random rows before
they compute advantages, which shifts the statistics; a copy here gets an empty loss mask and changes nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Credit, Rows
from ..tensors import discounted_sum, masked, to_tokens
from ._anchors import cluster
from .grpo import Normalise, Over, Singleton, grpo


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        omega: weight of the step level.
        gamma: discount of step rewards per turn.
        normalise: "mean" subtracts the group's mean at both levels (T2PO, table 5), "std" divides by its deviation too.
        over: what the episode level's statistics count: "trajectories" once each, or "rows" as released.
        singleton: a task with one sample: "raw" keeps its score, as released; "zero" gives 0.
        step_singleton: a state seen once: "zero" gives 0, as released; "raw" keeps its return.
        anchors: "exact": equal texts; "similar": difflib's ratio with the first text of a cluster reaches threshold.
        threshold: that ratio. T2PO: 0.9 for search, 0.95 by default.
        autojunk: difflib's heuristic for texts of 200 characters and more, as released. With it a character that makes
            up over 1% of the first text starts no match, so that long texts without rare characters are hardly ever
            similar; without it the ratio says what it seems to, and takes longer.
        epsilon: added to the standard deviation.
    """

    omega: float = 1.0
    gamma: float = 0.95
    normalise: Normalise = "mean"
    over: Over = "trajectories"
    singleton: Singleton = "raw"
    step_singleton: Singleton = "zero"
    anchors: Literal["exact", "similar"] = "exact"
    threshold: float = 0.95
    autojunk: bool = True
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require(0 <= self.gamma <= 1, "gamma must lie in [0, 1]")
        require(0 < self.threshold <= 1, "threshold must lie in (0, 1]")
        require(self.epsilon >= 0, "epsilon must not be negative")


def step_returns(
    rewards_B: Tensor,
    trajectories_B: Tensor,
    turns_B: Tensor,
    *,
    gamma: float = 0.95,
    counted_B: Tensor | None = None,
) -> Tensor:
    """Return R of every turn row: the sum over later turns j of gamma^(j - k) r_j; shape (B,).

    Args:
        rewards_B: float; reward of the turn.
        trajectories_B: int; rows of one trajectory share a number; rows may stand in any order.
        turns_B: int; place of the row in its trajectory. A turn that is missing still takes its time.
        gamma: discount per turn.
        counted_B: bool; rows whose reward counts; None for all. Two counted rows of one turn count twice.
    """
    order = turns_B.argsort(stable=True)
    order = order[trajectories_B[order].argsort(stable=True)]
    rewards = rewards_B if counted_B is None else masked(rewards_B, counted_B)
    trajectories, turns = trajectories_B[order], turns_B[order]
    gap = turns.diff(append=turns[-1:]).to(rewards.dtype)
    same = trajectories.diff(append=trajectories[-1:]) == 0
    discount = torch.where(same, rewards.new_tensor(gamma) ** gap, rewards.new_zeros(()))
    sums = discounted_sum(rewards[order].unsqueeze(0), discount.unsqueeze(0)).squeeze(0)
    return torch.empty_like(sums).index_copy_(0, order, sums)


def step_groups(config: Config, rows: Rows) -> Tensor:
    """Return the number of every row's state, shape (B,); -1 for a row without a trained token."""
    groups: Tensor = rows.need("group_B", "gigpo")
    clusters = cluster(
        rows.need("anchors", "gigpo"),
        groups.tolist(),
        config.threshold if config.anchors == "similar" else None,
        autojunk=config.autojunk,
        counted=rows.counted_B.tolist(),
    )
    return torch.tensor(clusters, dtype=torch.long, device=groups.device)


def gigpo(
    scores_B: Tensor,
    step_returns_B: Tensor,
    groups_B: Tensor,
    step_groups_B: Tensor,
    trajectories_B: Tensor | None = None,
    *,
    counted_B: Tensor | None = None,
    omega: float = 1.0,
    normalise: Normalise = "mean",
    singleton: Singleton = "raw",
    step_singleton: Singleton = "zero",
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the advantages of the rows and their two parts, episode and step; each of shape (B,).

    Args:
        scores_B: float; score of the row, for the episode level.
        step_returns_B: float; see :func:`step_returns`, less what the turn loses for itself.
        groups_B: int; rows of one task share a number.
        step_groups_B: int; rows of one task that saw the same state share a number.
        trajectories_B: int; where given, the episode level counts every trajectory once.
        counted_B: bool; rows that are part of the statistics; None for all.
        omega: see :class:`Config`.
        normalise: see :class:`Config`.
        singleton: see :class:`Config`.
        step_singleton: see :class:`Config`.
        epsilon: see :class:`Config`.
    """
    episode = grpo(
        scores_B,
        groups_B,
        trajectories_B,
        counted_N=counted_B,
        normalise=normalise,
        singleton=singleton,
        epsilon=epsilon,
    )
    step = grpo(
        step_returns_B,
        step_groups_B,
        counted_N=counted_B,
        normalise=normalise,
        singleton=step_singleton,
        epsilon=epsilon,
    )
    return episode + omega * step, episode, step


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch of turn rows.

    Needs token_rewards_BT, step_reward_B, group_B, trajectory_B, turn_B and anchors; takes step_penalty_B off the step
    returns where there is one.
    """
    part = "gigpo"
    trajectories, counted = rows.need("trajectory_B", part), rows.counted_B
    steps = step_returns(
        rows.need("step_reward_B", part),
        trajectories,
        rows.need("turn_B", part),
        gamma=config.gamma,
        counted_B=counted,
    )
    if rows.step_penalty_B is not None:
        steps = steps - rows.step_penalty_B
    clusters = step_groups(config, rows)
    both, episode, step = gigpo(
        rows.scores_B(part),
        steps,
        rows.need("group_B", part),
        clusters,
        trajectories if config.over == "trajectories" else None,
        counted_B=counted,
        omega=config.omega,
        normalise=config.normalise,
        singleton=config.singleton,
        step_singleton=config.step_singleton,
        epsilon=config.epsilon,
    )
    details = {"episode_B": episode, "step_B": step, "step_group_B": clusters, "step_return_B": steps}
    return Credit(to_tokens(both, rows.loss_mask_BT), details=details)
