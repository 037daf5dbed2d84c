"""RAGEN's normalisation of episode rewards before credit assignment (its ``reward_normalization``; off by default).

The score of a row (rewards and penalties summed) is compared with those of its group and put on the row's last trained
token. RAGEN needs it for GRPO: its row ids are unique, so that GRPO's own groups have one member each and change
nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Rows
from ..tensors import last_of_row, spread, to_tokens

Method = Literal["identity", "mean", "mean_std", "asym_clip"]


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        method: "identity" changes nothing; "mean" subtracts the group's mean; "mean_std" divides by its unbiased
            deviation too; "asym_clip" then cuts the result to [low, high].
        group: who is compared: rows of one task ("state"), of one kind of environment ("inductive"), or all
            ("batch").
        low: lower bound of "asym_clip".
        high: its upper bound.
        epsilon: added to the deviation; a group whose deviation is not larger gives 0.
    """

    method: Method = "identity"
    group: Literal["state", "inductive", "batch"] = "state"
    low: float = -1.0
    high: float = 3.0
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require(self.low < self.high, "low must be less than high")
        require(self.epsilon >= 0, "epsilon must not be negative")


def normalise(
    scores_N: Tensor,
    groups_N: Tensor,
    *,
    method: Method = "mean_std",
    low: float = -1.0,
    high: float = 3.0,
    epsilon: float = 1e-6,
    counted_N: Tensor | None = None,
) -> Tensor:
    """Return the normalised scores, shape (N,).

    Args:
        scores_N: float.
        groups_N: int; equal numbers share a group.
        method: see :class:`Config`.
        low: see :class:`Config`.
        high: see :class:`Config`.
        epsilon: see :class:`Config`.
        counted_N: bool; scores that are part of the statistics; None for all.
    """
    if method == "identity":
        return scores_N
    group = spread(scores_N, groups_N, counted_N=counted_N)
    centred = scores_N - group.mean
    if method == "mean":
        return centred
    scaled = torch.where(group.std > epsilon, centred / (group.std + epsilon), torch.zeros_like(centred))
    return scaled.clamp(low, high) if method == "asym_clip" else scaled


def shape(config: Config, rows: Rows) -> Rows:
    """Return the rows with normalised scores as rewards.

    Needs token_rewards_BT, and group_B ("state") or environment_B ("inductive").
    """
    part = "normalise"
    if config.method == "identity":
        return rows
    scores = rows.scores_B(part)
    if config.group == "batch":
        groups = torch.zeros_like(scores, dtype=torch.long)
    else:
        groups = rows.need("group_B" if config.group == "state" else "environment_B", part)
    values = normalise(
        scores,
        groups,
        method=config.method,
        low=config.low,
        high=config.high,
        epsilon=config.epsilon,
        counted_N=rows.counted_B,
    )
    return replace(rows, token_rewards_BT=to_tokens(values, last_of_row(rows.loss_mask_BT)))
