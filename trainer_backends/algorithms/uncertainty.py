"""T2PO's uncertainty: entropy and confidence of a token (eq. 1), what a signal is, and its mean over a turn (4.3).

The signals themselves are the parts of ``signals/``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...errors import InvalidRequest
from .entropy import moments
from .slots import Field
from .tensors import masked, masked_mean

Mean = Literal["geometric", "arithmetic"]


class Statistics(NamedTuple):
    """Eq. 1 of every distribution, of the logits' shape without the last dimension.

    Attributes:
        entropy: H = -sum p log p, in nats.
        confidence: C = -(mean of the j largest log-probabilities), in nats.
        vocabulary: number of tokens in the distribution.
    """

    entropy: Tensor
    confidence: Tensor
    vocabulary: int


def statistics(logits_XV: Tensor, top_j: int = 1) -> Statistics:
    """Return entropy and confidence of softmax(logits), in one pass over the logits; has no gradient.

    Args:
        logits_XV: float, any leading shape, before temperature and top-p. Half precision is computed in float32.
        top_j: log-probabilities in C; with 1 they come with the pass, with more a search for them is added.

    Raises:
        InvalidRequest: ``top_j`` is not in 1 … vocabulary.
    """
    vocabulary = logits_XV.shape[-1]
    if not 1 <= top_j <= vocabulary:
        raise InvalidRequest(f"top_j = {top_j} of {vocabulary} tokens.", hint="Choose 1 … vocabulary.")
    found = moments(logits_XV)
    if top_j == 1:
        return Statistics(found.entropy, -found.peak, vocabulary)
    top = logits_XV.detach().topk(top_j, dim=-1).values.to(found.entropy.dtype)
    return Statistics(found.entropy, found.log_norm - top.mean(-1), vocabulary)


class Signal(abc.ABC):
    """A number for every token, from the distribution that it was drawn from.

    Attributes:
        fields: what it remembers of each request while tokens are generated.
        top_j: log-probabilities that the confidence needs.
    """

    fields: Mapping[str, Field] = {}
    top_j: int = 1

    def statistics(self, logits_XV: Tensor) -> Statistics:
        """Return what the signal computes from."""
        return statistics(logits_XV, self.top_j)

    @abc.abstractmethod
    def online(self, statistics: Statistics, memory: dict[str, Tensor]) -> Tensor:
        """Return the signal of the next token of B requests, shape (B,), and bring ``memory`` up to date."""

    @abc.abstractmethod
    def scores(self, statistics_BT: Statistics, mask_BT: Tensor | None = None) -> Tensor:
        """Return the signal of every token of whole replies, shape (rows, tokens); tokens outside the mask have 0."""


def turn_signal(
    scores_BT: Tensor, mask_BT: Tensor, *, mean: Mean = "geometric", floor: float = 1e-6, skip: int = 0
) -> Tensor:
    """Return Phi, the signal of a turn: the mean of its tokens' signals, shape (rows,).

    Args:
        scores_BT: float; signal of every token; NaN outside the mask is harmless.
        mask_BT: bool or 0/1; tokens that count. Leave forced tokens out: they say nothing about the policy.
        mean: "geometric": exp(mean log max(score, floor)), the paper's product and root in the form that does not
            underflow; for signals in [0, 1]. "arithmetic": as released, for any signal.
        floor: smallest factor; without it a single 0, which min-max normalisation always makes, gives Phi = 0.
        skip: first counted tokens that are left out; 32 in the released code.

    A turn without counted tokens has 0. Sources: T2PO, section 4.3 (geometric); released rollout loop (arithmetic).

    Raises:
        InvalidRequest: the floor of a geometric mean is not positive.
    """
    counted = mask_BT.bool() & (mask_BT.long().cumsum(-1) > skip)
    if mean == "arithmetic":
        return masked_mean(scores_BT, counted, -1)
    if not floor > 0:
        raise InvalidRequest(f"floor = {floor}.", hint="The logarithm needs a floor above 0.")
    logs = torch.where(counted, scores_BT, 1.0).clamp_min(floor).log()
    return masked(masked_mean(logs, counted, -1).exp(), counted.any(-1))
