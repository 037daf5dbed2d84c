"""No turn control: every generation is kept."""

from __future__ import annotations

from collections.abc import Hashable

from ..parts import PartConfig
from .tds import Counters


class Config(PartConfig, frozen=True):
    """No settings."""


class KeepAll:
    """Decisions without a rule; has the methods of TDS and asks for no signal."""

    def __init__(self) -> None:
        self.counters = Counters()

    def begin(self, environment: Hashable) -> None:
        """Start an episode."""

    def end(self, environment: Hashable) -> None:
        """Forget a finished episode."""

    def decide(self, environment: Hashable, phi: float | None, tokens: int) -> bool:
        """Return False: keep the turn."""
        self.counters.kept += 1
        return False


def make(config: Config) -> KeepAll:
    """Return the control of a run."""
    return KeepAll()
