"""Entropy-guided tree expansion (AT2PO, algorithm 1).

M chains are run to their end. Then, L times, the K turns with the greatest score H(n) - alpha * siblings(n) are taken
among the turns that did not end an episode, and one more turn is sampled in the state before each of them and run to
its end. That gives M + L K leaves. The paper prints alpha * |children(parent(n))|, the released code one less: the
ranking is the same but for the root, which has no entropy and enters with H = 0 in the released code.

The released code also repeats its list of candidates where it is shorter than K, and does not count the picks of a
round against one another; both are settings. A turn that ended an episode is never sampled again.
"""

from __future__ import annotations

from ..parts import PartConfig, require
from ..tree import Node, Plan, Tree, check_fork


class Config(PartConfig, frozen=True):
    """Settings; the defaults are the paper's.

    Attributes:
        chains: M, chains sampled first.
        rounds: L, expansions.
        picks: K, turns picked in each.
        penalty: alpha, score lost per sibling; the paper does not print it, 0.05 is in its code.
        root: the first state competes too, with an entropy of 0.
        repeat: a list of candidates shorter than ``picks`` is repeated, as in the released code; else fewer are taken.
        refresh: a pick counts as a sibling for the picks after it in the same round; not in the released code.
    """

    chains: int = 10
    rounds: int = 2
    picks: int = 6
    penalty: float = 0.05
    root: bool = True
    repeat: bool = True
    refresh: bool = False

    def __post_init__(self) -> None:
        require(self.chains >= 1, "chains must be at least 1")
        require(self.rounds >= 0, "rounds must not be negative")
        require(self.picks >= 1, "picks must be at least 1")
        require(self.penalty >= 0, "penalty must not be negative")

    @property
    def samples(self) -> int:
        """Leaves of a tree in which every pick finds a candidate."""
        return self.chains + self.rounds * self.picks


def candidates(tree: Tree, *, root: bool = True) -> list[Node]:
    """Return the turns that may be picked: those after which the episode went on, breadth first."""
    return [node for node in tree.breadth_first() if node.status == "inner" and (root or node.parent is not None)]


def score(tree: Tree, node: Node, penalty: float, extra: int = 0) -> float:
    """Return H(n) - penalty * (other samples in the same state); the root counts its own children.

    Args:
        tree: its tree.
        node: a candidate.
        penalty: alpha.
        extra: samples not in the tree yet.
    """
    return node.entropy - penalty * max(0, len(tree.parent(node).children) + extra - 1)


def select(
    tree: Tree, picks: int, *, penalty: float = 0.05, root: bool = True, repeat: bool = True, refresh: bool = False
) -> list[Node]:
    """Return the turns to sample again, best first; ties go to the one that comes first breadth first."""
    found = candidates(tree, root=root)
    if refresh:
        chosen: list[Node] = []
        extra: dict[int, int] = {}
        for _ in range(picks if repeat else min(picks, len(found))):
            left = found if repeat else [node for node in found if node not in chosen]
            if not left:
                break
            best = max(left, key=lambda node: score(tree, node, penalty, extra.get(tree.parent(node).number, 0)))
            chosen.append(best)
            extra[tree.parent(best).number] = extra.get(tree.parent(best).number, 0) + 1
        return chosen
    ranked = sorted(found, key=lambda node: -score(tree, node, penalty))  # sorted() is stable
    if not ranked or not repeat:
        return ranked[:picks]
    return [ranked[place % len(ranked)] for place in range(picks)]


class EntropyTree(Plan):
    """M chains, then L rounds of K more turns where the policy was least sure."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.rounds: list[list[Node]] = []
        """The turns picked in each round so far."""

    def _first(self) -> list[Node]:
        return [self.tree.root] * self.config.chains

    def _refill(self) -> list[Node]:
        config = self.config
        if len(self.rounds) == config.rounds:
            return []
        picked = select(
            self.tree,
            config.picks,
            penalty=config.penalty,
            root=config.root,
            repeat=config.repeat,
            refresh=config.refresh,
        )
        self.rounds.append(picked)
        return [self.tree.parent(node) for node in picked]


def make(config: Config, *, seed: int, can_fork: bool) -> EntropyTree:
    """Return the plan of one task; it draws no lots.

    Raises:
        Unsupported: the environment cannot fork.
    """
    check_fork(can_fork, "entropy-tree")
    return EntropyTree(config)
