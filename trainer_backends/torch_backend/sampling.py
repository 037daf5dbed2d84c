"""Drawing tokens: by inverse distribution function, from numbers that belong to the request."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import torch
from torch import Tensor


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a reply is generated.

    Attributes:
        max_tokens: greatest length.
        temperature: 0 takes the most likely token.
        top_p: nucleus.
        top_k: most likely tokens kept; 0 for all.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def truncates(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


class Drawn(NamedTuple):
    """What one step drew, for each of B rows.

    Attributes:
        ids_B: token ids.
        logprobs_B: log-probability under the policy at the row's temperature (at 1 where it is 0), before any
            truncation, so that a trainer can compute the same.
        entropies_B: entropy of that distribution in nats.
    """

    ids_B: Tensor
    logprobs_B: Tensor
    entropies_B: Tensor

    def forced(self, mask_B: Tensor, tokens_B: Tensor, logits_BV: Tensor) -> Drawn:
        """Return the same with some rows forced to given tokens; their log-probability is the unforced policy's."""
        if mask_B.device.type == "cpu" and not bool(mask_B.any()):
            return self
        own = logits_BV.log_softmax(-1).gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1)
        return Drawn(
            torch.where(mask_B, tokens_B, self.ids_B), torch.where(mask_B, own, self.logprobs_B), self.entropies_B
        )


def draw(
    logits_BV: Tensor,
    temperature_B: Tensor,
    uniform_B: Tensor,
    *,
    top_p_B: Tensor | None = None,
    top_k_B: Tensor | None = None,
) -> Drawn:
    """Draw one token a row.

    Args:
        logits_BV: float32.
        temperature_B: 0 for the most likely token.
        uniform_B: numbers in [0, 1); the same number draws the same token, whatever else is in the batch.
        top_p_B: nucleus of each row, None where no row truncates.
        top_k_B: tokens kept of each row, 0 for all.
    """
    greedy = temperature_B == 0
    scaled = logits_BV / torch.where(greedy, 1.0, temperature_B).unsqueeze(-1)
    logprobs_BV = scaled.log_softmax(-1)
    probabilities = logprobs_BV.exp()
    entropies = -(probabilities * logprobs_BV.clamp_min(-1e4)).sum(-1)
    if top_p_B is not None and top_k_B is not None:
        probabilities = _truncated(probabilities, top_p_B, top_k_B)
    below = probabilities.cumsum(-1)
    # The sum may end a little off 1: scaling the number instead keeps every token in reach and no other.
    drawn = torch.searchsorted(below, uniform_B.unsqueeze(-1) * below[:, -1:], right=True)
    ids = drawn.squeeze(-1).clamp_max(logits_BV.shape[-1] - 1)
    if greedy.any():
        ids = torch.where(greedy, logits_BV.argmax(-1), ids)
    return Drawn(ids, logprobs_BV.gather(-1, ids.unsqueeze(-1)).squeeze(-1), entropies)


def _truncated(probabilities_BV: Tensor, top_p_B: Tensor, top_k_B: Tensor) -> Tensor:
    ordered, places = probabilities_BV.sort(dim=-1, descending=True, stable=True)
    # A token is kept while what is more likely does not fill the nucleus: the first always is.
    outside = (ordered.cumsum(-1) - ordered) >= top_p_B.unsqueeze(-1)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    outside |= (top_k_B.unsqueeze(-1) > 0) & (rank >= top_k_B.unsqueeze(-1))
    return probabilities_BV.masked_fill(outside.scatter(-1, places, outside), 0.0)
