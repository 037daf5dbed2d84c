"""Turn trees as flat tensors: values of all nodes, and weights that count a shared prefix once.

Work goes level by level over all trees together; no loop over nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ...errors import InvalidRequest, nearest
from .tensors import segment_sum, spread
from .tree import Tree

Weights = Literal["ratio", "softmax", "mean", "leaves"]
Difference = Literal["value", "parent", "root", "both"]


@dataclass
class Forest:
    """N nodes of several trees; parents come before their children.

    Attributes:
        parent_N: int; number of the parent, a root's own number for a root.
        tree_N: int; which tree.
        depth_N: int; turns from the root on.
        entropy_N: float; H(n), 0 for roots.
        leaf_N: bool; the episode ended here.
        reward_N: float; its outcome, 0 elsewhere.
    """

    parent_N: Tensor
    tree_N: Tensor
    depth_N: Tensor
    entropy_N: Tensor
    leaf_N: Tensor
    reward_N: Tensor

    @classmethod
    def of(cls, trees: Sequence[Tree], dtype: torch.dtype = torch.float32) -> Forest:
        """Flatten trees; node k of the i-th tree gets the number k + the sizes of the trees before it."""
        starts = list(itertools.accumulate((len(tree.nodes) for tree in trees), initial=0))
        nodes = [(place, node) for place, tree in enumerate(trees) for node in tree.nodes]
        return cls(
            torch.tensor([starts[place] + (node.parent or 0) for place, node in nodes], dtype=torch.long),
            torch.tensor([place for place, _ in nodes], dtype=torch.long),
            torch.tensor([node.depth for _, node in nodes], dtype=torch.long),
            torch.tensor([node.entropy for _, node in nodes], dtype=dtype),
            torch.tensor([node.status == "leaf" for _, node in nodes], dtype=torch.bool),
            torch.tensor([node.reward or 0.0 for _, node in nodes], dtype=dtype),
        )

    def __len__(self) -> int:
        return self.parent_N.numel()

    def levels(self) -> Iterator[Tensor]:
        """Yield the numbers of the nodes of every depth from 1 on, the first level first."""
        for depth in range(1, int(self.depth_N.max()) + 1 if len(self) else 0):
            yield (self.depth_N == depth).nonzero().squeeze(-1)

    def up(self, start_N: Tensor) -> Tensor:
        """Return for every node the sum of ``start_N`` over itself and all nodes below it."""
        total = start_N.clone()
        for level in reversed(list(self.levels())):
            total.index_add_(0, self.parent_N[level], total[level])
        return total

    def down(self, start_N: Tensor) -> Tensor:
        """Return for every node the sum of ``start_N`` over itself and all nodes above it."""
        total = start_N.clone()
        for level in self.levels():
            total[level] += total[self.parent_N[level]]
        return total


def values(
    forest: Forest,
    *,
    weights: Weights = "ratio",
    normalise: bool = True,
    epsilon: float = 1e-6,
    unfinished: Literal["drop", "zero"] = "drop",
) -> tuple[Tensor, Tensor]:
    """Return (V_N, alive_N): the value of every node, and which nodes have an ended episode at or below them.

    A leaf's value is its reward, normalised over the leaves of its tree with the population deviation where
    ``normalise`` is set (a tree of equal rewards gives 0). An inner node's value is a mean over its children (AT2PO
    eq. 3).

    Args:
        forest: the trees.
        weights: of the children: "ratio" H(c) / sum H(c') as the paper prints it (equal where all entropies are 0),
            "softmax" of the entropies as the released runs use, "mean", or "leaves": the mean over all leaves below.
        normalise: see above.
        epsilon: added to the deviation.
        unfinished: nodes without any ended episode below them: "drop" leaves them out of their parent's mean; "zero"
            gives them the value 0, which dilutes it, as the released code does.

    Raises:
        InvalidRequest: no such weights.
    """
    if weights not in get_args(Weights):
        raise InvalidRequest(f"No child weights {weights!r:.60}.", hint=nearest(str(weights), get_args(Weights)))
    leaf, zero = forest.leaf_N, torch.zeros_like(forest.reward_N)
    found = zero.clone()
    rewards = forest.reward_N[leaf]
    if normalise:
        group = spread(rewards, forest.tree_N[leaf], unbiased=False)
        rewards = (rewards - group.mean) / (group.std + epsilon)
    found[leaf] = rewards
    below = forest.up(leaf.to(zero.dtype))
    alive = below > 0
    if weights == "leaves":
        return torch.where(alive, forest.up(found) / below.clamp_min(1), zero), alive
    counted = alive if unfinished == "drop" else torch.ones_like(alive)
    for level in reversed(list(forest.levels())):
        children = level[counted[level]]
        parents = forest.parent_N[children]
        share = _shares(forest.entropy_N[children], parents, len(forest), weights)
        found.index_add_(0, parents, share * found[children])
    return found, alive


def _shares(entropy_C: Tensor, parent_C: Tensor, size: int, weights: Weights) -> Tensor:
    count = segment_sum(torch.ones_like(entropy_C), parent_C, size)[parent_C]
    if weights == "mean":
        return 1 / count
    if weights == "softmax":
        top = entropy_C.new_full((size,), -torch.inf).scatter_reduce_(0, parent_C, entropy_C, "amax")
        power = (entropy_C - top[parent_C]).exp()
        return power / segment_sum(power, parent_C, size)[parent_C]
    total = segment_sum(entropy_C, parent_C, size)[parent_C]
    return torch.where(total > 0, entropy_C / total.clamp_min(torch.finfo(total.dtype).tiny), 1 / count)


def advantages(forest: Forest, values_N: Tensor, difference: Difference = "value") -> Tensor:
    """Return A_N: "value" V (AT2PO's default), "parent" V - V_parent, "root" V - V_root, "both" their sum.

    A root owns no tokens; its advantage is its value in every form.

    Raises:
        InvalidRequest: no such difference.
    """
    is_root = forest.depth_N == 0
    if difference == "value":
        return values_N.clone()
    roots = values_N.new_zeros(int(forest.tree_N.max()) + 1 if len(forest) else 0)
    roots.index_copy_(0, forest.tree_N[is_root], values_N[is_root])
    local, whole = values_N - values_N[forest.parent_N], values_N - roots[forest.tree_N]
    forms = {"parent": local, "root": whole, "both": local + whole}
    if difference not in forms:
        raise InvalidRequest(f"No difference {difference!r:.60}.", hint=nearest(str(difference), get_args(Difference)))
    return torch.where(is_root, values_N, forms[difference])


def prefix_weights(forest: Forest, tokens_N: Tensor) -> Tensor:
    """Return the weight w_N with which a node's tokens, trained once, count as in one row per leaf.

    With rows that repeat shared prefixes, the "seq-mean-token-mean" of R leaf rows gives a token the weight
    1 / (R n_leaf) in each row it stands in, n_leaf the trained tokens of that row. So w_n = sum over the leaves below n
    of 1 / n_leaf, and ``aggregate(..., "seq-mean-token-sum", totals=Totals(..., rows=R), token_weights_BT=w)`` gives
    the same loss and gradient from distinct tokens, if whole trees share a mini-batch: advantages, ratios and
    log-probabilities are equal in all copies. 0 for nodes without a leaf below them.

    Args:
        forest: the trees.
        tokens_N: trained tokens of each node.
    """
    length = forest.down(tokens_N.to(forest.reward_N.dtype))
    share = torch.where(forest.leaf_N & (length > 0), 1 / length.clamp_min(1), torch.zeros_like(length))
    return forest.up(share)
