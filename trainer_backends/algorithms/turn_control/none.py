"""No turn control: every generation is kept."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from ..parts import PartConfig
from ..uncertainty import turn_signal
from .tds import Counters


class Config(PartConfig, frozen=True):
    """No settings."""

    def phi(self, scores_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the arithmetic mean signal of every turn, shape (rows,); no decision looks at it."""
        return turn_signal(scores_BT, mask_BT, mean="arithmetic")


class KeepAll:
    """Decisions without a rule; has the methods of TDS and asks for no signal."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counters = Counters()

    def begin(self, environment: Hashable) -> None:
        """Start an episode."""

    def fork(self, environment: Hashable, twin: Hashable) -> None:
        """Let an episode go on in a second environment too."""

    def end(self, environment: Hashable) -> None:
        """Forget a finished episode."""

    def decide(self, environment: Hashable, phi: float | None, tokens: int) -> bool:
        """Return False: keep the turn."""
        self.counters.kept += 1
        return False


def make(config: Config) -> KeepAll:
    """Return the control of a run."""
    return KeepAll(config)
