"""From token losses to one number that does not depend on how a batch is cut into micro-batches.

Every mode is a weighted sum of token losses; the weights divide by counts of the whole mini-batch (``Totals``), so
that the losses of its micro-batches add up to the loss of the whole. Some released trainers weight micro-batches by
their rows instead, so that their loss changes with the packing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from ...errors import InvalidRequest, nearest
from .tensors import masked_sum

Mode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""verl's names: mean over all tokens; mean over rows of their token sums, or of their token means; token sums divided
by the number of rows and the padded length (Dr. GRPO)."""


@dataclass(frozen=True)
class Totals:
    """Counts over a whole mini-batch.

    Attributes:
        tokens: trained tokens (their weights summed, where tokens have weights).
        rows: rows with at least one trained token.
        length: padded length of a row.
    """

    tokens: Tensor | float
    rows: Tensor | float
    length: int

    @classmethod
    def of(cls, loss_mask_BT: Tensor, token_weights_BT: Tensor | None = None) -> Totals:
        """Count in a mini-batch; for one in several tensors, add up the results of each."""
        inside = loss_mask_BT.bool()
        tokens = inside.sum() if token_weights_BT is None else masked_sum(token_weights_BT, inside)
        return cls(tokens, inside.any(-1).sum(), loss_mask_BT.shape[-1])

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.tokens + other.tokens, self.rows + other.rows, max(self.length, other.length))


def aggregate(
    loss_BT: Tensor,
    loss_mask_BT: Tensor,
    mode: Mode = "token-mean",
    *,
    totals: Totals | None = None,
    token_weights_BT: Tensor | None = None,
) -> Tensor:
    """Return the loss of a (micro-)batch, a scalar.

    Args:
        loss_BT: float; loss of each token; NaN outside the mask is harmless.
        loss_mask_BT: bool or 0/1.
        mode: how to average.
        totals: counts of the whole mini-batch; None takes this batch for all of it.
        token_weights_BT: float; how much each token counts, for prefixes that several rows share. A row's mean stays
            a mean over its tokens: the weights are applied to the tokens' terms.

    Rows without a trained token do not count; nothing but such rows gives 0.

    Raises:
        InvalidRequest: no such mode.
    """
    inside = loss_mask_BT.bool()
    totals = Totals.of(inside, token_weights_BT) if totals is None else totals
    weighted = loss_BT if token_weights_BT is None else loss_BT * token_weights_BT
    if mode == "token-mean":
        return masked_sum(weighted, inside) / _at_least_one(totals.tokens)
    sums_B = masked_sum(weighted, inside, -1)
    if mode == "seq-mean-token-sum":
        return sums_B.sum() / _at_least_one(totals.rows)
    if mode == "seq-mean-token-mean":
        return (sums_B / inside.sum(-1).clamp_min(1).to(sums_B.dtype)).sum() / _at_least_one(totals.rows)
    if mode == "seq-mean-token-sum-norm":
        return sums_B.sum() / (_at_least_one(totals.rows) * totals.length)
    raise InvalidRequest(f"No aggregation {mode!r:.60}.", hint=nearest(str(mode), get_args(Mode)))


def _at_least_one(count: Tensor | float) -> Tensor | float:
    return count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1.0)
