"""Independent chains: a group of episodes of one task (StarPO, GRPO, GiGPO, T2PO, RLVMR)."""

from __future__ import annotations

from ..parts import PartConfig, require
from ..tree import Node, Plan


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        samples: episodes of a group. 16 in RAGEN, 8 in GiGPO, T2PO and RLVMR, 5 in T2PO's search tasks.
    """

    samples: int = 8

    def __post_init__(self) -> None:
        require(self.samples >= 1, "samples must be at least 1")


class Chains(Plan):
    """``samples`` episodes from the first state on."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def _first(self) -> list[Node]:
        return [self.tree.root] * self.config.samples


def make(config: Config, *, seed: int, can_fork: bool) -> Chains:
    """Return the plan of one task; chains draw no lots and fork nothing."""
    return Chains(config)
