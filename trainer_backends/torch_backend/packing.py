"""Rows of tokens laid out so that what they begin with in common is computed once.

A *pack* holds rows as a tree: a token stands once for all rows that agree up to it, in depth-first order. A token sees
those that its own row has before it, which is what a model reading the row alone would see; so neither its hidden state
nor its gradient changes. Turns of an episode share the task and their history, members of a group share even more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
SHARE_BELOW = 0.8
"""Rows are packed where packs hold at most this part of their tokens."""


@dataclass
class Pack:
    """Some rows as one sequence.

    Attributes:
        rows: numbers of the rows.
        nodes: for each, where in the pack its tokens stand.
        pieces: the tokens of each that it does not share with the row before.
        size: tokens of the pack.
    """

    rows: list[int] = field(default_factory=list)
    nodes: list[Ints] = field(default_factory=list)
    pieces: list[Ints] = field(default_factory=list)
    size: int = 0

    def add(self, number: int, row: Ints, common: int) -> None:
        """Add a row that has its first ``common`` tokens in common with the one added last."""
        own = np.arange(self.size, self.size + len(row) - common)
        self.nodes.append(np.concatenate([self.nodes[-1][:common], own]) if common else own)
        self.rows.append(number)
        self.pieces.append(row[common:])
        self.size += len(own)


def cost_ratio(model: Any) -> float:
    """Return how many keys a token attends to for the price of one token's pass through the other weights.

    Args:
        model: decoder of one of ``decoder.FAMILIES``.
    """
    config, layer = model.config, model.layers[0]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = sum(parameter.numel() for parameter in layer.parameters())
    return float(weights / (2 * config.num_attention_heads * width))


def lay_out(rows: Sequence[list[int]], ratio: float, most: int) -> list[Pack]:
    """Distribute rows over packs; each row by itself where they share too little.

    In a pack every token is held against every other, so that packs must not grow without end. For k rows with C tokens
    in common and R of their own a pack costs (C + kR) (ratio + C + kR): a row's part of it is least where the pack has
    C + sqrt(C (ratio + C)) tokens.

    Args:
        rows: token ids.
        ratio: see :func:`cost_ratio`; 0 leaves every row by itself.
        most: tokens of a pack with several rows.
    """
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    packs: list[Pack] = []
    if ratio:
        last = np.empty(0, dtype=np.int64)
        for number in sorted(range(len(rows)), key=lambda number: rows[number]):
            row = arrays[number]
            common = _common(last, row)
            size = len(row) - common + (packs[-1].size if packs else 0)
            if not common or size > min(most, common + math.sqrt(common * (ratio + common))):
                packs.append(Pack())
                common = 0
            packs[-1].add(number, row, common)
            last = row
    if not ratio or sum(pack.size for pack in packs) > SHARE_BELOW * sum(map(len, rows)):
        packs = [Pack() for _ in rows]
        for number, (pack, row) in enumerate(zip(packs, arrays, strict=True)):
            pack.add(number, row, 0)
    return packs


def _common(one: Ints, other: Ints) -> int:
    width = min(len(one), len(other))
    equal = one[:width] == other[:width]
    return width if equal.all() else int(equal.argmin())


def padded(packs: Sequence[Pack]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return what a model reads of P packs, padded on the right to N tokens.

    Returns:
        Token ids, their positions, and the end of each token's subtree, shape (P, N) each. The latter two are None
        where no pack branches, which a causal model needs no telling.
    """
    size = max(pack.size for pack in packs)
    ids, positions = np.zeros((len(packs), size), dtype=np.int64), np.zeros((len(packs), size), dtype=np.int64)
    ends = np.broadcast_to(np.arange(1, size + 1), ids.shape).copy()  # padding sees itself
    branches = False
    for line, depth, end, pack in zip(ids, positions, ends, packs, strict=True):
        line[: pack.size] = np.concatenate(pack.pieces)
        for nodes in pack.nodes:
            depth[nodes] = np.arange(len(nodes))
            end[nodes] = nodes[-1] + 1  # the last row that has a token reaches furthest
        branches |= bool((end[: pack.size] < pack.size).any())
    if not branches:
        return torch.from_numpy(ids), None, None
    return torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(ends)


def mask_of(ends_PN: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the attention's scores, shape (P, 1, N, N): 0 where a token sees another, else -inf.

    Args:
        ends_PN: see :func:`padded`; on any device.
        dtype: of the mask.
    """
    place = torch.arange(ends_PN.shape[1], device=ends_PN.device)
    unseen = place.unsqueeze(-1) >= ends_PN.unsqueeze(1)
    unseen |= place > place.unsqueeze(-1)
    mask = torch.zeros(unseen.shape, dtype=dtype, device=ends_PN.device)
    return mask.masked_fill_(unseen, -torch.inf).unsqueeze(1)


def found(packs: Sequence[Pack], places: Mapping[int, Sequence[int]]) -> tuple[Ints, Ints, Ints]:
    """Return where tokens of the packs' rows stand, in the order of ``places``.

    Args:
        packs: hold all these rows.
        places: number of a row -> places of tokens in it, none of them its first.

    Returns:
        Their packs, their nodes there, and the nodes of the tokens before them in their rows.
    """
    rows = {
        row: (number, nodes)
        for number, pack in enumerate(packs)
        for row, nodes in zip(pack.rows, pack.nodes, strict=True)
    }
    numbers = np.repeat([rows[row][0] for row in places], [len(each) for each in places.values()])
    nodes, before = (
        np.concatenate([rows[row][1][np.asarray(each) - back] for row, each in places.items()]) for back in (0, 1)
    )
    return numbers, nodes, before
