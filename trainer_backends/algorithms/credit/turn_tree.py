"""Turn-wise credit from a turn tree (AT2PO, section 3.2, eq. 3).

Every token gets the advantage of the turn it belongs to, A_n, made from the values V_n of the tree's nodes; see
``forest.values`` and ``forest.advantages`` for the forms. The paper's best is A = V with entropy weights. Tokens that
were not sampled (tool results) belong to no turn: their mask is 0.
"""

from __future__ import annotations

from typing import Literal

import torch

from .. import forest as trees
from ..parts import PartConfig, require
from ..rows import Credit, Rows

REQUIRES = ("tree",)


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        weights: of a node's children; "ratio" as printed in eq. 3, "softmax" as in the released runs.
        difference: "value" A = V; "parent", "root" or "both" subtract.
        normalise: rewards are normalised over the leaves of a tree.
        unfinished: "drop" turns without an ended episode; "zero" as in the released code.
        epsilon: added to the deviation.
    """

    weights: trees.Weights = "ratio"
    difference: trees.Difference = "value"
    normalise: bool = True
    unfinished: Literal["drop", "zero"] = "drop"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        require(self.epsilon >= 0, "epsilon must not be negative")


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch; needs forest and nodes_BT."""
    forest: trees.Forest = rows.need("forest", "turn-tree")
    nodes = rows.need("nodes_BT", "turn-tree")
    values_N, _ = trees.values(
        forest,
        weights=config.weights,
        normalise=config.normalise,
        epsilon=config.epsilon,
        unfinished=config.unfinished,
    )
    advantages_N = trees.advantages(forest, values_N, config.difference)
    trained = rows.loss_mask_BT.bool() & (nodes >= 0)
    spread_BT = advantages_N.to(nodes.device)[nodes.clamp_min(0)]
    return Credit(
        torch.where(trained, spread_BT, torch.zeros_like(spread_BT)),
        details={"values_N": values_N, "advantages_N": advantages_N},
    )
