"""AEPO's dynamic entropy-balanced rollout (section 3.1).

*Pre-monitoring* (eq. 5): one chain is sampled first; m of the k samples become chains from the first state, the rest
branches, with m = k sigmoid(beta (H_first - H_tools)). *Branching* (eqs. 6, 7) as in ARPO, with a penalty that grows
with the number l of consecutive branches:

- ``variant = "paper"`` (default): P = (base + weight * dH)(1 - clip(slope * l, 0, 1)) > threshold, slope 0.2; l counts
  the states right before this one in its chain that branched; H_tools is the mean over the turns after a tool call; m
  is rounded to the nearest number; the first chain counts as one of the m.
- "released": clip((U + weight * dH) * max(0, 1 - slope * l), 0, 1) >= threshold with a uniform U, slope 0.05; l
  counts the depths right before this one at which any chain of the *task* branched; H_tools includes the first turn;
  beta is 0.5 and m is rounded down plus one. (Its first chain is thrown away; here it counts: a sample is a sample.)

The shipped scripts turn pre-monitoring off (``pre_monitoring = false``: ``initial`` chains).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ..parts import PartConfig, require
from ..tree import Node, check_fork
from ._branching import Branching


class Config(PartConfig, frozen=True):
    """Settings; None takes the variant's own value.

    Attributes:
        samples: k, episodes of a group.
        initial: chains sampled first where there is no pre-monitoring.
        beams: Z, branches made at once.
        pre_monitoring: let the first chain's entropies decide how many chains are sampled.
        beta: sensitivity of that; 0.2 in the paper, 0.5 in the code.
        base: alpha, in the paper's rule.
        weight: gamma (entropy weight).
        threshold: tau.
        slope: penalty per consecutive branch; 0.2 in the paper, 0.05 in the code.
        variant: see above.
    """

    samples: int = 16
    initial: int = 8
    beams: int = 1
    pre_monitoring: bool = True
    beta: float | None = None
    base: float = 0.5
    weight: float = 0.2
    threshold: float = 0.5
    slope: float | None = None
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        require(1 <= self.initial <= self.samples, "initial must lie between 1 and samples")
        require(self.beams >= 1, "beams must be at least 1")
        require(self.slope is None or self.slope >= 0, "slope must not be negative")


def chains(samples: int, h_first: float, h_tools: float, *, beta: float = 0.2) -> float:
    """Return m = k sigmoid(beta (H_first - H_tools)) (eq. 5), not rounded."""
    x = beta * (h_first - h_tools)
    # The form that does not overflow for either sign.
    return samples * (1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x)))


def allocate(
    samples: int,
    h_first: float,
    h_tools: Sequence[float],
    *,
    beta: float = 0.2,
    rounding: Literal["nearest", "released"] = "nearest",
) -> int:
    """Return how many of ``samples`` are chains, between 1 and ``samples``.

    Args:
        samples: k.
        h_first: step entropy of the first turn.
        h_tools: step entropies that are compared with it; none means no difference.
        beta: sensitivity.
        rounding: "nearest", or "released": down, plus one.
    """
    mean = sum(h_tools) / len(h_tools) if h_tools else h_first
    real = chains(samples, h_first, mean, beta=beta)
    count = math.floor(real + 0.5) if rounding == "nearest" else math.floor(real) + 1
    return min(samples, max(1, count))


def probability(
    change: float, consecutive: int, *, base: float = 0.5, weight: float = 0.2, slope: float = 0.2
) -> float:
    """Return P = (base + weight * dH)(1 - clip(slope * l, 0, 1)) (eq. 6)."""
    return (base + weight * change) * (1 - min(1.0, max(0.0, slope * consecutive)))


def released_score(
    uniform: float, change: float, consecutive: int, *, weight: float = 0.2, slope: float = 0.05
) -> float:
    """Return clip((U + weight * dH) max(0, 1 - slope * l), 0, 1); the released code branches from the threshold on."""
    return min(1.0, max(0.0, (uniform + weight * change) * max(0.0, 1 - slope * consecutive)))


class Aepo(Branching):
    """Chains and branches, balanced by entropy."""

    def __init__(self, config: Config, seed: int) -> None:
        released = config.variant == "released"
        when: Literal["before", "after"] = "before" if released else "after"
        first = 1 if config.pre_monitoring else config.initial
        super().__init__(config.samples, first, config.beams, when, released, seed)
        self.config = config
        self.beta = config.beta if config.beta is not None else (0.5 if released else 0.2)
        self.slope = config.slope if config.slope is not None else (0.05 if released else 0.2)
        self.probing = config.pre_monitoring
        """The first chain is under way, and nothing branches yet."""
        self.allocated = config.samples if config.pre_monitoring else config.initial
        """m, once it is known."""

    def _contested(self, node: Node) -> Node | None:
        return None if self.probing else super()._contested(node)

    def _refill(self) -> list[Node]:
        if not self.probing:
            return super()._refill()
        self.probing = False
        released = self.config.variant == "released"
        steps = [node.step_entropy for node in self._probe()]
        first = steps[0] if steps else 0.0
        self.allocated = allocate(
            self.samples,
            first,
            steps if released else steps[1:],
            beta=self.beta,
            rounding="released" if released else "nearest",
        )
        roots = self._roots(self.allocated - 1)
        return roots or super()._refill()

    def _probe(self) -> list[Node]:
        """Return the turns of the first chain, as far as it came."""
        turns, state = [], self.tree.root
        while state.children:
            state = self.tree.nodes[state.children[0]]
            if state.status in ("inner", "leaf"):
                turns.append(state)
        return turns

    def consecutive(self, state: Node) -> int:
        """Return l: how many states right before this one branched, in its chain or (released) in the whole tree."""
        count = 0
        if self.config.variant == "paper":
            above = self.tree.parent(state)
            while above.branched:  # the first state never branches
                count, above = count + 1, self.tree.parent(above)
            return count
        branched = {each.depth for each in self.tree.nodes if each.branched}
        while state.depth - count - 1 in branched:
            count += 1
        return count

    def decide(self, node: Node, state: Node, beam: int) -> bool:
        """Return whether ``state`` gets one more sample because of the entropy of ``node``."""
        config, change, before = self.config, self.change(node), self.consecutive(state)
        if config.variant == "released":
            value = released_score(self.uniform(node, beam), change, before, weight=config.weight, slope=self.slope)
            return value >= config.threshold
        value = probability(change, before, base=config.base, weight=config.weight, slope=self.slope)
        return value > config.threshold


def make(config: Config, *, seed: int, can_fork: bool) -> Aepo:
    """Return the plan of one task.

    Raises:
        Unsupported: the environment cannot fork.
    """
    check_fork(can_fork, "aepo")
    return Aepo(config, seed)
