"""A hard thinking budget alone: after so many thinking tokens the closing tag is forced (a baseline of T2PO's table 3).

It holds for every stretch of thinking in a reply. A signal, where one is given, is only recorded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..markers import Markers
from ..parts import require
from ..thinking import BUDGET, Control, Decision, Rule, Step, ThinkingConfig
from ..uncertainty import Signal


class Config(ThinkingConfig, frozen=True):
    """Settings; the tags are explained at :class:`ThinkingConfig`.

    Attributes:
        budget: tokens between the tags that a policy may sample; 450 in T2PO. 0 closes the thinking at once.
    """

    budget: int = 450

    def __post_init__(self) -> None:
        require(self.budget >= 0, "budget must not be negative")


class BudgetRule(Rule):
    """Force where the budget is spent."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def decide(self, step: Step, memory: dict[str, Tensor]) -> Decision:
        """Return the decision for B requests."""
        spent = step.since >= self.budget
        return Decision(spent, torch.zeros_like(spent), torch.full_like(step.since, BUDGET))


def make(config: Config, markers: Markers, signal: Signal | None = None, **placement: Any) -> Control:
    """Return the control; ``placement`` is ``device`` and ``dtype`` of :class:`Control`."""
    return Control(BudgetRule(config.budget), markers, signal, **placement)
