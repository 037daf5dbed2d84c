"""Entropy of token distributions and log-probabilities of labels, in one pass over the logits.

H = logsumexp(z) - sum p z in nats, of softmax(logits / temperature): say which temperature a recorded entropy has. The
released AEPO and T2PO code use raw logits, that is temperature 1. Rows are taken in chunks, and the backward pass
computes the probabilities again, so that beside the logits (and their gradient) only a chunk is ever held; autograd
through softmax would keep several tensors of the size of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...errors import InvalidRequest
from .parts import PartConfig, require

_CPU_CHUNK, _CHUNK = 2**18, 2**26
"""Entries per chunk: on a CPU a chunk and its two copies should stay in its cache."""
_LEAST = -1e30
"""Stands for a log-probability of -inf (a forbidden token), whose product with probability 0 would be NaN."""


class Config(PartConfig, frozen=True):
    """Settings of the entropy bonus.

    Attributes:
        coefficient: the loss of every token is lowered by coefficient times its entropy; 0.001 in RAGEN.
        temperature: logits are divided by it before the entropy is taken.
    """

    coefficient: float = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.coefficient), "coefficient must be finite")
        require(self.temperature > 0, "temperature must be positive")


class Moments(NamedTuple):
    """What one pass over the logits gives, each of the logits' shape without the last dimension.

    Attributes:
        log_norm: logsumexp of the scaled logits.
        entropy: in nats.
        peak: the largest log-probability.
    """

    log_norm: Tensor
    entropy: Tensor
    peak: Tensor


def moments(logits_XV: Tensor, temperature: float = 1.0) -> Moments:
    """Return normaliser, entropy and largest log-probability of every distribution; has no gradient.

    Args:
        logits_XV: float, any leading shape; -inf forbids a token. Half precision is computed and returned in float32.
        temperature: logits are divided by it.

    Raises:
        InvalidRequest: the temperature is not positive.
    """
    if not temperature > 0:
        raise InvalidRequest(f"No entropy at temperature {temperature}.", hint="Give a temperature above 0.")
    rows_RV = logits_XV.detach().flatten(0, -2)
    on_cpu = rows_RV.device.type == "cpu"
    sums = _sums(rows_RV, temperature, forbidden=not on_cpu)
    # On a CPU a look at the result is free, and the pass that -inf needs is left out until some row turns out to hold
    # one. Elsewhere looking would wait for the device.
    if on_cpu and bool((damaged := sums[2].isnan().squeeze(-1)).any()):
        sums[:, damaged] = _sums(rows_RV[damaged], temperature, forbidden=True)
    top, total, weighted = sums
    log_total = total.log()
    found = (top / temperature + log_total, log_total - weighted / total, -log_total)
    return Moments(*(each.view(logits_XV.shape[:-1]) for each in found))


def _sums(rows_RV: Tensor, temperature: float, *, forbidden: bool) -> Tensor:
    """Return max z, sum e and sum e d of every row with d = (z - max z) / temperature, e = exp(d); shape (3, rows, 1).

    Unless ``forbidden`` is set, a row with an entry of -inf gets NaN in the last.
    """
    out = rows_RV.new_empty((3, len(rows_RV), 1), dtype=_wide(rows_RV.dtype))
    # One product in place of two passes; decided by the vocabulary alone, so that a row's numbers do not depend on how
    # many others there are.
    dot, start = _rows_at_once(rows_RV) == 1, 0
    for chunk, (centred, weights) in _chunks(rows_RV):
        top, total, weighted = out[:, start : (start := start + len(chunk))]
        torch.amax(chunk, -1, keepdim=True, out=top)
        torch.exp(_centre(chunk, top, temperature, centred, forbidden), out=weights)
        torch.sum(weights, -1, keepdim=True, out=total)
        if dot:
            weighted.copy_(torch.dot(weights[0], centred[0]))
        else:
            torch.sum(weights.mul_(centred), -1, keepdim=True, out=weighted)
    return out


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _rows_at_once(rows_RV: Tensor) -> int:
    size = _CPU_CHUNK if rows_RV.device.type == "cpu" else _CHUNK
    return max(1, size // max(1, rows_RV.shape[1]))


def _chunks(rows_RV: Tensor) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
    """Yield the rows in chunks, each with two buffers of its shape that are used again for the next."""
    step = _rows_at_once(rows_RV)
    wide = _wide(rows_RV.dtype)
    # Fresh memory costs more than the arithmetic on it: every page is touched for the first time.
    spare = [rows_RV.new_empty((min(step, len(rows_RV)), rows_RV.shape[1]), dtype=wide) for _ in range(2)]
    for chunk in torch.split(rows_RV, step):
        yield chunk.to(wide), (spare[0][: len(chunk)], spare[1][: len(chunk)])


def _centre(chunk: Tensor, shift: Tensor, temperature: float, out: Tensor, forbidden: bool) -> Tensor:
    """Write (chunk - shift) / temperature into ``out``; with ``forbidden``, a finite number where that is -inf."""
    torch.sub(chunk, shift, out=out)
    if temperature != 1:
        out.div_(temperature)
    return out.clamp_min_(_LEAST) if forbidden else out


class _EntropyAndLogprobs(torch.autograd.Function):
    """Entropies and log-probabilities whose backward pass computes the probabilities again."""

    @staticmethod
    def forward(ctx: Any, logits_RV: Tensor, labels_R: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Keep the logits, which are alive anyway, and two numbers a row."""
        found = moments(logits_RV, temperature)
        picked = logits_RV.gather(-1, labels_R.unsqueeze(-1)).squeeze(-1).to(found.log_norm.dtype)
        ctx.save_for_backward(logits_RV, labels_R, found.log_norm, found.entropy)
        ctx.temperature = temperature
        return found.entropy, picked / temperature - found.log_norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """dH/dz = -p (log p + H), dlogp/dz = [z is the label's] - p, both over the temperature."""
        entropy_grad, logprob_grad = grads
        logits, labels, log_norm, entropy = ctx.saved_tensors
        out = torch.empty_like(logits)
        start = 0
        for chunk, (logp, probs) in _chunks(logits):
            rows = slice(start, start := start + len(chunk))
            shift = log_norm[rows].unsqueeze(-1) * ctx.temperature
            torch.exp(_centre(chunk, shift, ctx.temperature, logp, forbidden=True), out=probs)
            by_entropy, by_logprob = entropy_grad[rows].unsqueeze(-1), logprob_grad[rows].unsqueeze(-1)
            # -g_H p (log p + H) - g_L p, then g_L at the label.
            logp.add_(entropy[rows].unsqueeze(-1)).mul_(by_entropy).add_(by_logprob).mul_(probs).neg_()
            logp.scatter_add_(-1, labels[rows].unsqueeze(-1), by_logprob)
            out[rows] = logp.div_(ctx.temperature)
        return out, None, None


def entropy_and_logprobs(logits_XV: Tensor, labels_X: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the entropy of every distribution and the log-probability of its label, both with gradients.

    Args:
        logits_XV: float, any leading shape, for example (rows, tokens, vocabulary). Half precision is computed and
            returned in float32.
        labels_X: int; the token that was sampled.
        temperature: logits are divided by it, as they were when the tokens were sampled.

    Raises:
        InvalidRequest: the temperature is not positive.
    """
    shape = logits_XV.shape[:-1]
    both: tuple[Tensor, Tensor] = _EntropyAndLogprobs.apply(  # type: ignore[no-untyped-call]
        logits_XV.flatten(0, -2), labels_X.flatten(), temperature
    )
    entropy, logprobs = both
    return entropy.view(shape), logprobs.view(shape)


def token_entropy(logits_XV: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the entropy of every distribution in nats, with a gradient; see :func:`entropy_and_logprobs`."""
    labels = torch.zeros(logits_XV.shape[:-1], dtype=torch.long, device=logits_XV.device)
    return entropy_and_logprobs(logits_XV, labels, temperature)[0]


def entropy_bonus(entropies_BT: Tensor, coefficient: float) -> Tensor:
    """Return what to add to the token losses so that entropy is rewarded: -coefficient H."""
    return -coefficient * entropies_BT
