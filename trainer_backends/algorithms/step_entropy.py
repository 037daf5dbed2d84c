"""How unsure the policy was at the start of a turn: the signal that ARPO and AEPO branch on.

Both take -sum p log p over the ten most likely tokens, for the first 20 tokens of a turn, divided by ln V. The
released code *sums* over the tokens, so that short turns look surer than they are; the papers divide a sum by V. Here
the default is the mean over tokens. What is left out by the ten most likely tokens biases the entropy downward; a full
entropy, where the engine gives one, may be passed to :func:`of_entropies`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Reduce = Literal["mean", "sum"]
FIRST_TOKENS = 20
TOP = 10


def of_top_logprobs(
    logprobs_TK: Tensor, vocabulary: int, *, first: int = FIRST_TOKENS, top: int = TOP, reduce: Reduce = "mean"
) -> Tensor:
    """Return the step entropy of one turn, a scalar in units of ln V.

    Args:
        logprobs_TK: log-probabilities of the most likely tokens at every place, in any order; at least one place.
        vocabulary: V, size of the vocabulary.
        first: places used.
        top: tokens used at each.
        reduce: "mean" over places, or "sum" as released.
    """
    used = logprobs_TK[:first].topk(min(top, logprobs_TK.shape[-1]), dim=-1).values
    return of_entropies(-(used.exp() * used).sum(-1), vocabulary, first=first, reduce=reduce)


def of_entropies(entropies_T: Tensor, vocabulary: int, *, first: int = FIRST_TOKENS, reduce: Reduce = "mean") -> Tensor:
    """Return the step entropy from the entropy of each token in nats; 0 for a turn without tokens."""
    used = entropies_T[:first]
    if used.numel() == 0:
        return used.new_zeros(())
    return (used.mean() if reduce == "mean" else used.sum()) / math.log(vocabulary)


def turn_entropy(logprobs_T: Tensor) -> Tensor:
    """Return H(n) = -mean log p over the sampled tokens of a turn, in nats (AT2PO eq. 2); 0 without tokens."""
    return -logprobs_T.mean() if logprobs_T.numel() else torch.zeros((), dtype=logprobs_T.dtype)
