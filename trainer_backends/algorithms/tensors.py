"""Sums and means over masks and over groups, without a loop over rows.

Everything keeps the dtype and device of its input. A mean over nothing is 0: rows with an empty mask, groups without
rows and turns without tokens give finite numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Return ``x`` where ``mask`` is set and 0 elsewhere; what lies outside may be NaN and gets no gradient."""
    return torch.where(mask.bool(), x, x.new_zeros(()))


def to_tokens(x_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the value of every row at its masked tokens and 0 elsewhere, shape (B, T)."""
    return masked(x_B.unsqueeze(-1), mask_BT)


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the sum of ``x`` where ``mask`` is set; what lies outside may be NaN."""
    kept = masked(x, mask)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the mean of ``x`` where ``mask`` is set, 0 where it is set nowhere."""
    count = mask.bool().sum() if dim is None else mask.bool().sum(dim)
    return masked_sum(x, mask, dim) / count.clamp_min(1).to(x.dtype)


def masked_share(condition: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the share of masked entries for which ``condition`` holds; 0 where nothing is masked."""
    inside = mask.bool()
    return (condition & inside).sum().to(dtype) / inside.sum().clamp_min(1).to(dtype)


def masked_whiten(x: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Return ``x`` with mean 0 and variance 1 over the masked entries; the variance is the unbiased one.

    One entry or none has no spread: the result is then 0 there. Outside the mask it is 0.
    """
    inside = mask.bool()
    count = inside.sum().to(x.dtype)
    centred = torch.where(inside, x - masked_mean(x, inside), x.new_zeros(()))
    variance = centred.square().sum() / (count - 1).clamp_min(1)
    return centred * torch.rsqrt(variance + epsilon)


class Spread(NamedTuple):
    """Statistics of the group of every entry, each of shape (N,)."""

    mean: Tensor
    std: Tensor
    size: Tensor


def dense(ids_N: Tensor) -> tuple[Tensor, int]:
    """Return the ids renumbered 0 … n-1, and n."""
    if ids_N.numel() == 0:
        return ids_N.long(), 0
    values, index = torch.unique(ids_N, return_inverse=True)
    return index, int(values.numel())


def segment_sum(x_N: Tensor, index_N: Tensor, size: int) -> Tensor:
    """Return the sum of the entries of every segment, shape (size,)."""
    return x_N.new_zeros(size).index_add_(0, index_N, x_N)


def spread(x_N: Tensor, ids_N: Tensor, *, unbiased: bool = True, counted_N: Tensor | None = None) -> Spread:
    """Return mean, standard deviation and size of the group of every entry.

    Args:
        x_N: float.
        ids_N: int; equal numbers share a group.
        unbiased: divide the squares by n - 1 instead of n.
        counted_N: bool; entries that count; the others see their group's statistics without being part of them, and
            may hold NaN. None counts all.

    A group of equal numbers has a deviation of exactly 0: no rounding noise that a small epsilon would blow up.
    """
    index, size = dense(ids_N)
    inside = torch.ones_like(x_N, dtype=torch.bool) if counted_N is None else counted_N.bool()
    x_N = masked(x_N, inside)
    count = segment_sum(inside.to(x_N.dtype), index, size)
    mean = segment_sum(x_N, index, size) / count.clamp_min(1)
    infinity = x_N.new_full((), torch.inf)
    low = x_N.new_full((size,), torch.inf).scatter_reduce_(0, index, torch.where(inside, x_N, infinity), "amin")
    high = x_N.new_full((size,), -torch.inf).scatter_reduce_(0, index, torch.where(inside, x_N, -infinity), "amax")
    # The mean of equal numbers may differ from them in the last bit.
    mean = torch.where(low == high, low, mean)
    squares = segment_sum(masked(x_N - mean[index], inside).square(), index, size)
    std = (squares / (count - int(unbiased)).clamp_min(1)).sqrt()
    return Spread(mean[index], std[index], count[index])


@torch.no_grad()
def discounted_sum(x_BT: Tensor, discount_BT: Tensor) -> Tensor:
    """Return y with y_t = x_t + discount_t * y_(t+1) in every row, y being 0 after the last column.

    The row is cut into about sqrt(T) stretches: all are summed at once, then the sums are carried from stretch to
    stretch. That takes 2 sqrt(T) steps on many numbers each, where a plain loop takes T steps on few. Not
    differentiable: credit is a constant to the loss.
    """
    rows, width = x_BT.shape
    step = max(1, math.isqrt(width))
    count = -(-width // step)
    # Time first, so that every step works on neighbouring numbers: (step, rows, count).
    shape = (rows, count, step)
    padding = (0, count * step - width)
    y = torch.nn.functional.pad(x_BT, padding).reshape(shape).permute(2, 0, 1).contiguous()
    factor = torch.nn.functional.pad(discount_BT, padding).reshape(shape).permute(2, 0, 1).contiguous()
    for t in range(step - 2, -1, -1):
        y[t].addcmul_(factor[t], y[t + 1])
        factor[t].mul_(factor[t + 1])
    after = x_BT.new_zeros(rows, count + 1)
    for k in range(count - 1, 0, -1):
        torch.addcmul(y[0, :, k], factor[0, :, k], after[:, k + 1], out=after[:, k])
    y.addcmul_(factor, after[:, 1:].unsqueeze(0))
    return y.permute(1, 2, 0).reshape(rows, count * step)[:, :width]


def following(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return for every entry the next masked entry of its row after it, 0 where there is none."""
    rows, width = x_BT.shape
    place = torch.arange(width, device=x_BT.device).expand(rows, width)
    place = torch.where(mask_BT.bool(), place, width)
    # The nearest masked place at or after t + 1, for every t.
    nearest = place.flip(-1).cummin(-1).values.flip(-1).roll(-1, -1)
    nearest[:, -1:] = width
    return torch.nn.functional.pad(masked(x_BT, mask_BT), (0, 1)).gather(-1, nearest)


def last_of_row(mask_BT: Tensor) -> Tensor:
    """Return a mask with the last set entry of every row; a row without any stays empty."""
    after = mask_BT.long().flip(-1).cumsum(-1).flip(-1)
    return mask_BT.bool() & (after == 1)


def turn_sums(x_BT: Tensor, turn_ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of ``x`` over the masked tokens of every turn, and their number, both of shape (rows, turns).

    Tokens of no turn (-1) count for nothing. The number of turns is read from the ids, which waits for the device once.
    """
    inside = mask_BT.bool() & (turn_ids_BT >= 0)
    width = int(turn_ids_BT.max().clamp_min(0)) + 1 if turn_ids_BT.numel() else 1
    sums = x_BT.new_zeros(len(x_BT), width)
    index = turn_ids_BT.clamp_min(0)
    counts = torch.zeros_like(sums).scatter_add_(-1, index, inside.to(x_BT.dtype))
    return sums.scatter_add_(-1, index, masked(x_BT, inside)), counts


def turn_segments(turn_ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, int]:
    """Return a number for the (row, turn) of every token, and how many numbers there are.

    Tokens outside the mask, or of no turn (-1), share the last number.
    """
    inside = mask_BT.bool() & (turn_ids_BT >= 0)
    rows, width = turn_ids_BT.shape[0], int(turn_ids_BT.max().clamp_min(0)) + 1 if turn_ids_BT.numel() else 1
    row = torch.arange(rows, device=turn_ids_BT.device).unsqueeze(-1)
    segment = torch.where(inside, row * width + turn_ids_BT, rows * width)
    return segment, rows * width + 1
