"""Turn-level dynamical sampling (T2PO, section 4.3, algorithm 2): sample a turn again that moves the signal too little.

Phi of a turn is the mean of its tokens' uncertainty signals (``uncertainty.turn_signal``), Gamma = |Phi - Phi of the
turn before, as it was kept|. The first turn of an episode is always kept. A turn is generated again from the same state
while Gamma is too small and generations are left; then the last one is kept.

- ``variant = "paper"`` (default): too small is Gamma < ``eta`` = 1e-3, and Phi the geometric mean with a floor.
- ``variant = "released"``: too small is 0 < Gamma < 0.3, and Phi the arithmetic mean after the first 32 tokens.

The released code keeps scores under the first 32 tokens of a reply in a store that is never emptied and reads the first
entries only: from the second call on every Phi is 0, and with ``0 < Gamma`` the rule never acts after turn 2. It also
generates for environments that have finished. Here every decision needs a score, and a finished environment is an
error. Discarded generations cost rollout budget and make the sampled distribution a mixture: log the counters. It is
meant for training; whether it runs in evaluation is the caller's choice.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ....errors import InvalidRequest, MissingInput
from ..parts import PartConfig, require
from ..uncertainty import Mean, turn_signal

REQUIRES = ("signal",)


class Config(PartConfig, frozen=True):
    """Settings; None takes the variant's own value.

    Attributes:
        variant: see above.
        eta: a smaller Gamma is too small; 1e-3 in the paper, 0.3 in the code.
        max_generations: B_max, the first generation included: 1 never generates again. The released ``max_try`` = 2
            counts generations after the first, that is 3 here.
        mean: of the tokens' signals; "geometric" or "arithmetic".
        floor: smallest factor of a geometric mean.
        skip: first tokens of a turn that Phi leaves out; 0 in the paper, 32 in the code.
        min_tokens: a turn of fewer tokens is kept and is not compared with.
    """

    variant: Literal["paper", "released"] = "paper"
    eta: float | None = None
    max_generations: int = 3
    mean: Mean | None = None
    floor: float = 1e-6
    skip: int | None = None
    min_tokens: int = 1

    def __post_init__(self) -> None:
        require(self.eta is None or self.eta >= 0, "eta must not be negative")
        require(self.max_generations >= 1, "max_generations must be at least 1")
        require(self.floor > 0, "floor must be positive")
        require(self.skip is None or self.skip >= 0, "skip must not be negative")
        require(self.min_tokens >= 1, "min_tokens must be at least 1")

    def threshold(self) -> float:
        """Return eta, or the variant's."""
        return (1e-3 if self.variant == "paper" else 0.3) if self.eta is None else self.eta

    def phi(self, scores_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return Phi of every turn, shape (rows,); arguments as for :func:`uncertainty.turn_signal`."""
        paper = self.variant == "paper"
        mean: Mean = self.mean or ("geometric" if paper else "arithmetic")
        skip = (0 if paper else 32) if self.skip is None else self.skip
        return turn_signal(scores_BT, mask_BT, mean=mean, floor=self.floor, skip=skip)


@dataclass
class Counters:
    """What became of the generations.

    Attributes:
        kept: turns that went on to the environment.
        discarded: generations that were thrown away.
        exhausted: kept turns whose Gamma was still too small when no generation was left.
    """

    kept: int = 0
    discarded: int = 0
    exhausted: int = 0

    @property
    def discarded_share(self) -> float:
        """Discarded generations per generation; 0 before the first."""
        return self.discarded / max(1, self.kept + self.discarded)


@dataclass
class _Episode:
    previous: float | None = None
    generations: int = 0


class TurnControl:
    """Decisions for any number of environments, each with its own state."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counters = Counters()
        self._episodes: dict[Hashable, _Episode] = {}

    def begin(self, environment: Hashable) -> None:
        """Start an episode; one that was going on in this environment is forgotten."""
        self._episodes[environment] = _Episode()

    def fork(self, environment: Hashable, twin: Hashable) -> None:
        """Let an episode go on in a second environment too, from where it stands; the first is not changed.

        Raises:
            InvalidRequest: none is going on.
        """
        self._episodes[twin] = replace(self._episode(environment))

    def end(self, environment: Hashable) -> None:
        """Forget a finished episode.

        Raises:
            InvalidRequest: none is going on.
        """
        self._episode(environment)
        del self._episodes[environment]

    def previous(self, environment: Hashable) -> float | None:
        """Return Phi of the turn that the next one is compared with; None before there is one."""
        return self._episode(environment).previous

    def decide(self, environment: Hashable, phi: float | None, tokens: int) -> bool:
        """Return whether to generate this turn again.

        Args:
            environment: whose turn; only one that is still going on is asked for.
            phi: Phi of the newest generation.
            tokens: tokens that Phi is the mean of.

        Raises:
            InvalidRequest: no episode is going on there, or Phi is not finite.
            MissingInput: there is no Phi.
        """
        episode = self._episode(environment)
        if tokens < self.config.min_tokens:
            return self._keep(episode)
        if phi is None:
            raise MissingInput("A turn has no signal.", hint="Generate with a token control that has a signal.")
        if not math.isfinite(phi):
            raise InvalidRequest(f"The signal of a turn is {phi}.", hint="Check the logits for NaN.")
        again = episode.previous is not None and self._too_small(abs(phi - episode.previous))
        if again and episode.generations + 1 < self.config.max_generations:
            episode.generations += 1
            self.counters.discarded += 1
            return True
        self.counters.exhausted += again
        episode.previous = phi
        return self._keep(episode)

    def _too_small(self, gamma: float) -> bool:
        return gamma < self.config.threshold() and (self.config.variant == "paper" or gamma > 0)

    def _keep(self, episode: _Episode) -> bool:
        episode.generations = 0
        self.counters.kept += 1
        return False

    def _episode(self, environment: Hashable) -> _Episode:
        if environment not in self._episodes:
            raise InvalidRequest(f"No episode is going on in {environment!r:.60}.", hint="Call begin first.")
        return self._episodes[environment]


def make(config: Config) -> TurnControl:
    """Return the control of a run."""
    return TurnControl(config)
