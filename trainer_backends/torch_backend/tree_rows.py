"""From turn trees to training rows: every token knows its node, and what leaves share may be trained once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ...records import Episode
from ..algorithms.forest import Forest, prefix_weights
from ..backend import Grown
from .batch import Sample, samples_of


def samples_of_trees(
    episodes: Sequence[Episode], trees: Sequence[Grown], kind: Literal["turn", "trajectory"], *, merged: bool
) -> tuple[list[Sample], dict[str, Any]]:
    """Return training rows and the fields of ``Rows`` that tell of their trees.

    Args:
        episodes: those of the trees' leaves that are trained on.
        trees: with all their episodes.
        kind: a row is a turn or a whole trajectory.
        merged: one row for every node, weighted by its leaves, as credit over trees wants it; else one for every leaf,
            as methods on chains have it, with the nodes to tell which parts are shared.
    """
    samples = list(_with_nodes(episodes, trees, kind))
    if not merged:
        return samples, {"segment_ids_BT": _nodes(samples)}
    forest = Forest.of([grown.plan.tree for grown in trees])
    once = list({sample.nodes[0]: sample for sample in samples}.values())
    tokens = torch.zeros(len(forest), dtype=torch.long)
    for sample in once:
        tokens[sample.nodes[0]] = sum(sample.trained)
    weights = prefix_weights(forest, tokens)
    for sample in once:
        sample.weight = float(weights[sample.nodes[0]])
        sample.leaf = bool(forest.leaf_N[sample.nodes[0]])
    return once, {"forest": forest, "nodes_BT": _nodes(once)}


def reward_leaves(episodes: Sequence[Episode], trees: Sequence[Grown]) -> None:
    """Give the leaves of trees the rewards of their episodes, where hooks have changed them."""
    rewards = {episode.id: episode.reward for episode in episodes}
    for grown in trees:
        for episode, leaf in zip(grown.episodes, grown.leaves, strict=True):
            grown.plan.tree.nodes[leaf].reward = rewards.get(episode.id, episode.reward)


def _with_nodes(
    episodes: Sequence[Episode], trees: Sequence[Grown], kind: Literal["turn", "trajectory"]
) -> Iterator[Sample]:
    """Yield the rows of the leaves' episodes, every token with the number of its node over all trees."""
    chosen, start = {episode.id: episode for episode in episodes}, 0
    for grown in trees:
        tree = grown.plan.tree
        for episode, leaf in zip(grown.episodes, grown.leaves, strict=True):
            if episode.id in chosen:
                branch = tree.branch(tree.nodes[leaf])
                for sample in samples_of(chosen[episode.id], kind):
                    sample.nodes = [start + branch[turn].number for turn in sample.turns]
                    yield sample
        start += len(tree.nodes)


def _nodes(samples: Sequence[Sample]) -> Tensor:
    width = max((len(sample.places) for sample in samples), default=0)
    return torch.tensor([[*sample.nodes, *[-1] * (width - len(sample.nodes))] for sample in samples])
