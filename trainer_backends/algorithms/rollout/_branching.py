"""What ARPO and AEPO share: branch where a turn's entropy differs from that of its chain's first turn.

A branch is one more sample in a state that a chain has reached, so that prefixes are shared and nothing is executed
twice. ``when`` says which entropy decides:

- "before" (released code): the entropy of the turn that has just been executed decides whether the state it led to
  gets more than one continuation;
- "after" (papers: "after each tool call the entropy of the model's output is monitored"): the entropy of the first
  continuation decides whether its state gets further ones.

Chains end, then what is left of the budget goes to new chains from the first state.
"""

from __future__ import annotations

import abc
from typing import Literal

from ....envs.core import stable_rng
from ..tree import Node, Plan

When = Literal["before", "after"]


class Branching(Plan):
    """Chains that branch within a budget of ``samples`` episodes.

    Args:
        samples: episodes in all.
        initial: chains sampled first.
        beams: branches made at once (Z).
        when: which entropy decides.
        one_by_one: new chains for what is left of the budget are started one at a time, as in the released code, so
            that they may branch too; else all at once.
        seed: of the uniform draws; every node has its own draw, whatever the order of events.
    """

    def __init__(self, samples: int, initial: int, beams: int, when: When, one_by_one: bool, seed: int) -> None:
        super().__init__()
        self.samples = samples
        self.initial = initial
        self.beams = beams
        self.when = when
        self.one_by_one = one_by_one
        self.seed = seed
        self.started = 0
        """Episodes begun, branches included."""

    def _first(self) -> list[Node]:
        return self._roots(self.initial)

    def _roots(self, wanted: int) -> list[Node]:
        count = max(0, min(wanted, self.samples - self.started))
        self.started += count
        return [self.tree.root] * count

    def _after(self, node: Node) -> list[Node]:
        go_on = [node] if node.status == "inner" else []
        state = self._contested(node)
        if state is None:
            return go_on
        branches = 0
        for beam in range(self.beams):
            if self.started + branches < self.samples and self.decide(node, state, beam):
                branches += 1
        state.branched = branches > 0
        self.started += branches
        return go_on + [state] * branches

    def _contested(self, node: Node) -> Node | None:
        """Return the state that ``node``'s entropy may give further samples; None where there is no decision."""
        if self.when == "before":
            return node if node.status == "inner" else None
        # One decision a state, made by its first continuation; before the first turn there was no observation.
        return self.tree.parent(node) if node.depth > 1 and node.path[-1] == 0 else None

    def _refill(self) -> list[Node]:
        return self._roots(1 if self.one_by_one else self.samples - self.started)

    def change(self, node: Node) -> float:
        """Return the turn's step entropy minus that of its chain's first turn."""
        first = self.tree.nodes[self.tree.root.children[node.path[0]]]
        return node.step_entropy - first.step_entropy

    def uniform(self, node: Node, beam: int) -> float:
        """Return the draw in [0, 1) of a node and beam."""
        return float(stable_rng("branch", self.seed, *node.path, -1, beam).random())

    @abc.abstractmethod
    def decide(self, node: Node, state: Node, beam: int) -> bool:
        """Return whether ``state`` gets one more sample because of the entropy of ``node``."""
