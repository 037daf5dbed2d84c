"""Token-level thinking intervention (T2PO, section 4.2, algorithm 1): end thinking when its signal stands still.

With Delta_t = |M_t - M_(t-1)| of an uncertainty signal, in two variants:

- ``variant = "paper"`` (default): at token t > ``min_tokens`` inside the thinking, when the mean of the last
  ``window`` + 1 Deltas is below ``epsilon`` (eq. 4), or when t >= ``budget`` (eq. 6), the closing tag and ``then`` are
  forced from t + 1 on; once per reply. Should token t itself close the thinking, nothing is forced.
- ``variant = "released"``: when ``window`` consecutive Deltas are each at most ``epsilon``, or ``budget`` tokens follow
  the opening tag (tested first), the closing tag is forced at once in place of this token; it may happen again when
  thinking is opened again. There is no ``min_tokens``, and nothing follows the tag.

The paper's is the default: a single larger Delta does not start the count again, and what follows the tag is explicit.
The released processor shares its state between the sequences of a batch, so that Deltas are taken between different
sequences; here every request has its own. It runs in evaluation too: whether it does is the caller's choice.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ....errors import MissingInput
from ..markers import Markers
from ..parts import require
from ..slots import Field
from ..thinking import BUDGET, STAGNATION, Control, Decision, Rule, Step, ThinkingConfig
from ..uncertainty import Signal

REQUIRES = ("signal",)


class Config(ThinkingConfig, frozen=True):
    r"""Settings; the tags are explained at :class:`ThinkingConfig`.

    Attributes:
        variant: see above.
        epsilon: tolerance in units of the signal; 1e-4 in paper and code.
        window: N; 20 for WebShop and Search, 15 for ALFWorld in the paper, 20 in the code.
        min_tokens: no stagnation is looked for before this many tokens (L_min; the paper gives no number).
        budget: L_max; 450 in paper and code. With a reply limit at or below it, it never acts.
        then: what is forced after the closing tag; None for the variant's own: "\n<action>", or nothing as released.
    """

    variant: Literal["paper", "released"] = "paper"
    epsilon: float = 1e-4
    window: int = 20
    min_tokens: int = 32
    budget: int = 450

    @property
    def after(self) -> str:
        """The paper's queue goes on after the closing tag, the released code's does not."""
        return super().after if self.variant == "paper" else ""

    def __post_init__(self) -> None:
        require(self.epsilon >= 0, "epsilon must not be negative")
        require(self.window >= 1, "window must be at least 1")
        require(self.min_tokens >= 0, "min_tokens must not be negative")
        require(self.budget >= 1, "budget must be at least 1")


def _delta(step: Step, memory: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return |M_t - M_(t-1)| and whether there is one, and remember M_t."""
    assert step.scores is not None
    delta = (step.scores - memory["previous"]).abs()
    memory["previous"] = step.scores
    return delta, step.t >= 2


class PaperRule(Rule):
    """Algorithm 1."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.fields = {"previous": Field(math.nan), "deltas": Field(0.0, None, config.window + 1)}

    def decide(self, step: Step, memory: dict[str, Tensor]) -> Decision:
        """Return the decision for B requests."""
        config, width = self.config, self.config.window + 1
        delta, there = _delta(step, memory)
        # The window is a ring; its oldest entry is overwritten.
        place = ((step.t - 2).clamp_min(0) % width).unsqueeze(-1)
        old = memory["deltas"].gather(-1, place)
        deltas = memory["deltas"].scatter(-1, place, torch.where(there.unsqueeze(-1), delta.unsqueeze(-1), old))
        memory["deltas"] = deltas
        full = step.t >= width + 1
        stagnant = full & (step.t > config.min_tokens) & (deltas.mean(-1) < config.epsilon)
        spent = step.t >= config.budget
        fire = (stagnant | spent) & (step.interventions == 0)
        return Decision(torch.zeros_like(fire), fire, torch.where(stagnant, STAGNATION, BUDGET))


class ReleasedRule(Rule):
    """The released processor, with a state for every request."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.fields = {"previous": Field(math.nan), "still": Field(0, torch.long)}

    def decide(self, step: Step, memory: dict[str, Tensor]) -> Decision:
        """Return the decision for B requests."""
        delta, there = _delta(step, memory)
        small = there & step.inside & (delta <= self.config.epsilon)
        memory["still"] = still = torch.where(small, memory["still"] + 1, 0)
        spent = step.since >= self.config.budget
        fire = spent | (still >= self.config.window)
        return Decision(fire, torch.zeros_like(fire), torch.where(spent, BUDGET, STAGNATION))


def make(config: Config, markers: Markers, signal: Signal | None = None, **placement: Any) -> Control:
    """Return the control.

    Args:
        config: settings.
        markers: ``config.markers(tokenizer)``, or token ids given by hand.
        signal: an uncertainty signal.
        placement: ``device`` and ``dtype`` of :class:`Control`.

    Raises:
        MissingInput: there is no signal.
    """
    if signal is None:
        raise MissingInput("tti needs an uncertainty signal.", hint='Name one: [signal] id = "paper".')
    rule = PaperRule(config) if config.variant == "paper" else ReleasedRule(config)
    return Control(rule, markers, signal, **placement)
