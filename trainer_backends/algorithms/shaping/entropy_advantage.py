"""AEPO's entropy-aware advantage: more weight to tokens at which the policy was unsure (Dong et al. 2025, eq. 10-11).

A' = A (1 + weight z), z being the token's entropy less the mean over the group's trained tokens, by their standard
deviation. Algorithm 2 of the paper writes A (1 + z)^weight instead; eq. 11 is what the code does, and what is here.

The released code takes the statistics over whatever is in the micro-batch (``over = "batch"``, on such a micro-batch),
lets the factor turn an advantage round where z < -1 / weight (``min_factor = -inf``), and returns NaN for a single
token and noise for constant entropies. It also skips the step without a word where no entropies were computed, which
was so in every published run. Here missing entropies are an error.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..parts import PartConfig, require
from ..rows import Rows
from ..tensors import masked, spread


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        weight: the paper's a.
        over: whose tokens the statistics are of: the rows of one task ("group", the paper) or all rows given
            ("batch").
        std: "unbiased" divides by n - 1, "population" by n.
        tolerance: deviations up to this count as none: the advantages then stay as they are.
        min_factor: lower bound of the factor; 0 keeps the sign of every advantage.
    """

    weight: float = 0.2
    over: Literal["group", "batch"] = "group"
    std: Literal["unbiased", "population"] = "unbiased"
    tolerance: float = 1e-8
    min_factor: float = 0.0

    def __post_init__(self) -> None:
        require(self.tolerance >= 0, "tolerance must not be negative")
        require(self.min_factor <= 1, "min_factor must not be above 1")


def entropy_scores(
    entropies_BT: Tensor,
    loss_mask_BT: Tensor,
    groups_B: Tensor | None = None,
    *,
    unbiased: bool = True,
    tolerance: float = 1e-8,
) -> Tensor:
    """Return z of every trained token and 0 elsewhere, shape (B, T); 0 where all entropies agree.

    Args:
        entropies_BT: float, nats; detached.
        loss_mask_BT: bool or 0/1.
        groups_B: int; rows whose tokens are compared with each other; None for all.
        unbiased: the variance divides by n - 1 instead of n.
        tolerance: see :class:`Config`.
    """
    inside, entropies = loss_mask_BT.bool(), entropies_BT.detach()
    groups = torch.zeros(len(inside), dtype=torch.long, device=inside.device) if groups_B is None else groups_B
    tokens = spread(
        entropies.flatten(),
        groups.unsqueeze(-1).expand_as(inside).flatten(),
        unbiased=unbiased,
        counted_N=inside.flatten(),
    )
    mean, std = tokens.mean.view_as(entropies), tokens.std.view_as(entropies)
    spreads = inside & (std > tolerance)
    return masked((entropies - mean) / std.clamp_min(tolerance), spreads)


def shape(config: Config, rows: Rows, advantages_BT: Tensor) -> Tensor:
    """Return the shaped advantages, shape (B, T); needs entropies_BT, and group_B for ``over = "group"``."""
    part = "entropy-advantage"
    scores = entropy_scores(
        rows.need("entropies_BT", part),
        rows.loss_mask_BT,
        rows.need("group_B", part) if config.over == "group" else None,
        unbiased=config.std == "unbiased",
        tolerance=config.tolerance,
    )
    factor = (1 + config.weight * scores).clamp_min(config.min_factor)
    return masked(advantages_BT * factor, rows.loss_mask_BT)
