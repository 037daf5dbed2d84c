"""ARPO's entropy-based adaptive rollout.

``variant = "released"``: with U uniform, a turn branches where clip(U - weight * dH, 0, 1) <= threshold, that is with
probability 0.5 + weight * dH, on the entropy of the turn before the new observation. ``variant = "paper"`` (default):
it branches where base + weight * dH > threshold, on the entropy of the turn after it, without a lot. dH is the change
of the step entropy since the chain's first turn; the released code keeps that baseline from earlier batches, here it
is the chain's own.
"""

from __future__ import annotations

from typing import Literal

from ..parts import PartConfig, require
from ..tree import Node, check_fork
from ._branching import Branching


class Config(PartConfig, frozen=True):
    """Settings; the defaults are those of the 7B runs.

    Attributes:
        samples: n, episodes of a group.
        initial: chains sampled first.
        beams: Z, branches made at once.
        base: alpha, in the paper's rule.
        weight: beta (entropy weight).
        threshold: tau.
        variant: see above.
    """

    samples: int = 16
    initial: int = 8
    beams: int = 1
    base: float = 0.5
    weight: float = 0.2
    threshold: float = 0.5
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        require(1 <= self.initial <= self.samples, "initial must lie between 1 and samples")
        require(self.beams >= 1, "beams must be at least 1")


def released_score(uniform: float, change: float, weight: float = 0.2) -> float:
    """Return clip(U - weight * dH, 0, 1); the released code branches unless it is above the threshold."""
    return min(1.0, max(0.0, uniform - weight * change))


class Arpo(Branching):
    """Chains that branch where the entropy rose."""

    def __init__(self, config: Config, seed: int) -> None:
        released = config.variant == "released"
        when: Literal["before", "after"] = "before" if released else "after"
        super().__init__(config.samples, config.initial, config.beams, when, released, seed)
        self.config = config

    def decide(self, node: Node, state: Node, beam: int) -> bool:
        """Return whether ``state`` gets one more sample because of the entropy of ``node``."""
        config, change = self.config, self.change(node)
        if config.variant == "released":
            return released_score(self.uniform(node, beam), change, config.weight) <= config.threshold
        return config.base + config.weight * change > config.threshold


def make(config: Config, *, seed: int, can_fork: bool) -> Arpo:
    """Return the plan of one task.

    Raises:
        Unsupported: the environment cannot fork.
    """
    check_fork(can_fork, "arpo")
    return Arpo(config, seed)
