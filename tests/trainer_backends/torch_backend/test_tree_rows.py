"""Rows of turn trees: what leaves share is one row with the weight of all of them, or stands in each of theirs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.records import Completion, Episode, Turn
from turngym.trainer_backends.algorithms.tree import Node, Tree
from turngym.trainer_backends.backend import Grown
from turngym.trainer_backends.torch_backend.tree_rows import samples_of_trees


def ended(tree: Tree, parent: Node, reward: float) -> Node:
    node = tree.draw(parent)
    node.status, node.reward = "leaf", reward
    return node


def episode(name: str, *tokens: int) -> Episode:
    """Return an episode whose turns have so many tokens."""
    turns = [
        Turn(index, "", Completion("", prompt_ids=[5, 6 + index], token_ids=[9] * count))
        for index, count in enumerate(tokens)
    ]
    return Episode(name, "sokoban", "train/0", 0, turns=turns, status="terminated", group="g")


def grown(group: str = "") -> Grown:
    """Return two turns in the first state: one ends the episode, two follow the other."""
    tree = Tree()
    shared = tree.draw(tree.root)
    shared.status = "inner"
    alone = ended(tree, tree.root, 1.0)
    leaves = [alone, ended(tree, shared, 0.0), ended(tree, shared, 1.0)]
    episodes = [episode(f"{group}alone", 2), episode(f"{group}first", 2, 1), episode(f"{group}second", 2, 3)]
    return Grown(SimpleNamespace(tree=tree), episodes, [leaf.number for leaf in leaves])


def test_a_shared_turn_is_one_row_with_the_weight_of_its_leaves() -> None:
    made = grown()
    rows, extra = samples_of_trees(made.episodes, [made], "turn", merged=True)
    weights = {row.nodes[0]: row.weight for row in rows}
    # A token counts 1 / (tokens of the leaf's row) in each row that it would stand in.
    assert weights == {1: pytest.approx(1 / 3 + 1 / 5), 2: 1 / 2, 3: pytest.approx(1 / 3), 4: pytest.approx(1 / 5)}
    assert [row.leaf for row in sorted(rows, key=lambda row: row.nodes)] == [False, True, True, True]
    assert sorted(extra) == ["forest", "nodes_BT"] and len(extra["forest"]) == 5
    assert extra["nodes_BT"].tolist() == [[*row.nodes, *[-1] * (3 - len(row.nodes))] for row in rows]


def test_without_merging_every_leaf_has_all_of_its_turns() -> None:
    two = [grown("a."), grown("b.")]
    chosen = [two[0].episodes[2], two[1].episodes[0]]
    rows, extra = samples_of_trees(chosen, two, "turn", merged=False)
    assert [(row.episode.id, row.nodes) for row in rows] == [
        ("a.second", [1, 1]),
        ("a.second", [4, 4, 4]),
        ("b.alone", [7, 7]),  # numbers go on over the trees
    ]
    assert all(row.weight is None for row in rows)
    assert list(extra) == ["segment_ids_BT"]
