"""T2PO's self-calibrated uncertainty M_t (eq. 1-3): entropy and confidence, each brought to [0, 1], as one number.

M = alpha H~ + (1 - alpha) U~, where H~ is the entropy and U~ the doubt that the confidence C expresses.

**The sign.** C of eq. 1 is a negative log-probability. With the largest probability alone (``top_j = 1``, "the
probability of the arg-max token" in section 4.1) C grows with doubt, so that eq. 3's term 1 - C~ falls where H~ rises
and the two cancel. ``sign = "fixed"`` (default) therefore takes U~ = C~; M is then an uncertainty, as section 4.1 and
figure 3 have it. ``sign = "literal"`` takes eq. 3's U~ = 1 - C~. With a larger ``top_j`` (DeepConf takes 20) the small
log-probabilities of a peaked distribution outweigh the large one, C grows with *certainty*, and the literal form is the
uncertainty: choose ``sign = "literal"`` there.

**The normalisation.** Eq. 2 takes minimum and maximum "across the decoding trajectory", not known while tokens are
generated. "running" (default) takes those of the tokens so far and leaves each M_t as it was computed; "trajectory"
takes those of the whole reply and works only afterwards; "range" divides by ln V, bounded to [0, 1], so that signals of
different turns are in the same units. Where minimum and maximum are equal, up to rounding, the normalised value is 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ....errors import InvalidRequest
from ..parts import PartConfig, require
from ..slots import Field
from ..tensors import masked
from ..uncertainty import Signal, Statistics

Normalisation = Literal["running", "trajectory", "range"]
Sign = Literal["fixed", "literal"]


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        alpha: weight of the entropy; 0.4 is the best of the paper's table 7.
        top_j: log-probabilities in the confidence; the paper gives no number.
        normalisation: see above.
        sign: see above.
    """

    alpha: float = 0.4
    top_j: int = 1
    normalisation: Normalisation = "running"
    sign: Sign = "fixed"

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "alpha must lie in [0, 1]")
        require(self.top_j >= 1, "top_j must be at least 1")


def paper(
    statistics_BT: Statistics,
    mask_BT: Tensor | None = None,
    *,
    alpha: float = 0.4,
    normalisation: Normalisation = "running",
    sign: Sign = "fixed",
) -> Tensor:
    """Return M of every token of whole replies, shape (rows, tokens), in [0, 1]; 0 outside the mask.

    Args:
        statistics_BT: entropy and confidence of every token, each of shape (rows, tokens).
        mask_BT: bool or 0/1; tokens that are there. None for all.
        alpha: see :class:`Config`.
        normalisation: see :class:`Config`.
        sign: see :class:`Config`.
    """
    mask = torch.ones_like(statistics_BT.entropy, dtype=torch.bool) if mask_BT is None else mask_BT.bool()
    both = []
    for values in (statistics_BT.entropy, statistics_BT.confidence):
        if normalisation == "range":
            both.append(_by_range(values, statistics_BT.vocabulary))
            continue
        low, high = torch.where(mask, values, torch.inf), torch.where(mask, values, -torch.inf)
        if normalisation == "running":
            low, high = low.cummin(-1).values, high.cummax(-1).values
        elif values.numel():
            low, high = low.amin(-1, keepdim=True), high.amax(-1, keepdim=True)
        both.append(_between(values, low, high))
    return masked(_combine(both[0], both[1], alpha, sign), mask)


def _by_range(values: Tensor, vocabulary: int) -> Tensor:
    return (values / math.log(vocabulary)).clamp(0, 1)


def _between(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return (values - low) / (high - low), 0 where the range is empty or not wider than rounding makes it."""
    width = high - low
    wide = width > 8 * torch.finfo(values.dtype).eps * torch.maximum(low.abs(), high.abs())
    return torch.where(wide, (values - low) / torch.where(wide, width, 1.0), 0.0)


def _combine(entropy: Tensor, confidence: Tensor, alpha: float, sign: Sign) -> Tensor:
    doubt = confidence if sign == "fixed" else 1 - confidence
    return alpha * entropy + (1 - alpha) * doubt


class Paper(Signal):
    """The paper's signal; it remembers the smallest and largest entropy and confidence of each request."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.top_j = config.top_j
        if config.normalisation == "running":
            names = ("entropy", "confidence")
            self.fields = {f"{name}_min": Field(math.inf) for name in names} | {
                f"{name}_max": Field(-math.inf) for name in names
            }

    def online(self, statistics: Statistics, memory: dict[str, Tensor]) -> Tensor:
        """Return M of the next token of every request.

        Raises:
            InvalidRequest: the normalisation needs the whole reply.
        """
        config = self.config
        if config.normalisation == "trajectory":
            raise InvalidRequest(
                'normalisation = "trajectory" needs the whole reply.', hint='Choose "running" or "range" for control.'
            )
        both = []
        for name, values in (("entropy", statistics.entropy), ("confidence", statistics.confidence)):
            if config.normalisation == "range":
                both.append(_by_range(values, statistics.vocabulary))
                continue
            # fmin and fmax pass over a NaN, which would otherwise stay for the rest of the request.
            low = memory[f"{name}_min"] = torch.fmin(memory[f"{name}_min"], values)
            high = memory[f"{name}_max"] = torch.fmax(memory[f"{name}_max"], values)
            both.append(_between(values, low, high))
        return _combine(both[0], both[1], config.alpha, config.sign)

    def scores(self, statistics_BT: Statistics, mask_BT: Tensor | None = None) -> Tensor:
        """Return M of every token of whole replies."""
        config = self.config
        return paper(statistics_BT, mask_BT, alpha=config.alpha, normalisation=config.normalisation, sign=config.sign)


def make(config: Config) -> Signal:
    """Return the signal."""
    return Paper(config)
