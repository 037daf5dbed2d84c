"""No token control: nothing is forced; a signal, where one is given, is recorded for turn control."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..markers import Markers
from ..parts import PartConfig
from ..thinking import Control, Decision, Rule, Step
from ..uncertainty import Signal


class Config(PartConfig, frozen=True):
    """No settings."""

    def markers(self, tokenizer: Any) -> Markers:
        """Return no tags: nothing is looked for."""
        return Markers()


class NoRule(Rule):
    """Never force."""

    forces = False

    def decide(self, step: Step, memory: dict[str, Tensor]) -> Decision:
        """Return the decision for B requests."""
        never = torch.zeros_like(step.inside)
        return Decision(never, never, torch.zeros_like(step.t))


def make(config: Config, markers: Markers | None = None, signal: Signal | None = None, **placement: Any) -> Control:
    """Return the control; ``placement`` is ``device`` and ``dtype`` of :class:`Control`."""
    return Control(NoRule(), markers or Markers(), signal, **placement)
