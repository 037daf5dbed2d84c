"""Void-turn filtering: leave out episodes with a turn that holds neither an action nor an answer (SimpleTIR).

T2PO compares with it. The records mark such turns (``Turn.void``). Nothing may be left: the caller then samples anew.
"""

from __future__ import annotations

from torch import Tensor

from ..outcomes import Outcomes
from ..parts import PartConfig


class Config(PartConfig, frozen=True):
    """No settings."""


def keep(config: Config, outcomes: Outcomes) -> Tensor:
    """Return which episodes to train on, bool of shape (N,); needs void_N."""
    void: Tensor = outcomes.need("void_N", "void-turns")
    return ~void
