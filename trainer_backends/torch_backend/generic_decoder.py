"""Decoding with the model's own forward pass: any causal language model of transformers.

Rows are padded on the left, as transformers' own generation does, so that whatever a family does with positions, masks
and sliding windows holds here too. The cache is allocated once, like the fast decoder's: the tokens of all active rows
end at one shared column, where every step writes the next ones; a row that joins is laid so that it ends there too.

A model that keeps something else than keys and values (recurrent states) is computed anew from the row's tokens for
every token: slow, but right.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ...errors import InvalidRequest
from .decoder import Prompts, base_of

SLACK = 64
"""Columns that are free at least when rows are laid anew, so that this is rare."""
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")


def limit_of(config: Any) -> int:
    """Return how many tokens a model takes; a model without positions of its own takes any number."""
    config = config.get_text_config(decoder=True)
    return next((int(value) for name in _LIMITS if (value := getattr(config, name, None))), sys.maxsize)


def keeps_keys(model: Any) -> bool:
    """Return whether keys and values of the tokens seen are all that a model keeps of them."""
    base = base_of(model)
    if getattr(base, "_is_stateful", False):
        return False
    layers = DynamicCache(config=base.config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


class _Store:
    """Keys and values of one layer, shape (places, heads, columns, width) each."""

    def __init__(self, layer: Any, places: int, columns: int) -> None:
        self.keys, self.values = (_resized(part[:1, :, :0], places, columns) for part in (layer.keys, layer.values))

    def grow(self, columns: int) -> None:
        places = self.keys.shape[0]
        self.keys, self.values = (_resized(part, places, columns) for part in (self.keys, self.values))

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


def _resized(part: Tensor, places: int, columns: int) -> Tensor:
    new = part.new_zeros(places, part.shape[1], columns, part.shape[3])
    new[: part.shape[0], :, : part.shape[2]] = part
    return new


class _Column(DynamicLayer):
    """What a model sees of a store in one step: it adds a column and reads all from ``first`` on."""

    keys: Tensor
    values: Tensor

    def __init__(self, store: _Store, rows: int, first: int, column: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values = (part[:rows, :, first : column + 1] for part in store.both)
        self.seen = column - first
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys[:, :, -1:] = key_states
        self.values[:, :, -1:] = value_states
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.seen


class GenericDecoder:
    """The forward pass of any causal language model over cached rows; see :class:`Decoding` for its methods.

    Args:
        model: a ``…ForCausalLM``, also with adapters.
        places: rows of the cache.

    Raises:
        InvalidRequest: the model is an encoder-decoder.
    """

    def __init__(self, model: Any, places: int) -> None:
        if getattr(model.config, "is_encoder_decoder", False):
            raise InvalidRequest(f"{model.config.model_type} reads with an encoder.", hint="Use a decoder-only model.")
        self.model = model
        self.places = places
        self.limit = limit_of(model.config)
        self.cached = keeps_keys(model)
        self.lengths = torch.zeros(places, dtype=torch.long, device=self.device)
        self.tokens: list[list[int]] = [[] for _ in range(places)]
        self.starts = [0] * places
        """Column of each row's first token."""
        self.column = 0
        """Column that the next step writes."""
        self.columns = 0
        self.stores: list[_Store] = []
        takes = inspect.signature(base_of(model).forward).parameters
        self._takes_positions, self._keeps_last = "position_ids" in takes, "logits_to_keep" in takes

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def reserve(self, length: int) -> None:
        """Check that the model takes rows of ``length`` tokens.

        Raises:
            InvalidRequest: it does not.
        """
        if length > self.limit:
            raise InvalidRequest(f"{length} tokens, but the model takes {self.limit}.", hint="Send a shorter prompt.")

    def swap(self, first: int, second: int) -> None:
        """Exchange two places."""
        if first == second:
            return
        places, swapped = [first, second], [second, first]
        lengths = self.lengths[places].tolist()
        begin = min(self.starts[place] for place in places)
        end = max(self.starts[place] + length for place, length in zip(places, lengths, strict=True))
        for store in self.stores:
            for part in store.both:
                part[places, :, begin:end] = part[swapped, :, begin:end]
        self.lengths[places] = self.lengths[swapped]
        self.tokens[first], self.tokens[second] = self.tokens[second], self.tokens[first]
        self.starts[first], self.starts[second] = self.starts[second], self.starts[first]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target`` the first ``length`` tokens of ``source``."""
        start, begin = max(0, self.column - length), self.starts[source]
        for store in self.stores:
            for part in store.both:
                part[target, :, start : start + length] = part[source, :, begin : begin + length]
        self.starts[target] = start
        self.lengths[target] = length
        self.tokens[target] = self.tokens[source][:length]

    @torch.no_grad()
    def step(self, ids_B: Tensor, prompts: Prompts | None = None) -> Tensor:
        """Append one token to each of the first B places, and prompts to others, a pass each.

        Returns:
            The logits after the last token of each, those of the prompts at the end, shape (B + R, V), float32.
        """
        logits = [self._advance(ids_B)] if len(ids_B) else []
        if prompts is not None:
            logits.append(self._extend(*prompts))
        return torch.cat(logits)

    # Inside ----------------------------------------------------------------------------------------

    def _extend(self, ids_RT: Tensor, places_R: Tensor, counts_R: Tensor) -> Tensor:
        places, counts = places_R.tolist(), counts_R.tolist()
        lengths = self.lengths[places_R].tolist()
        totals = [length + count for length, count in zip(lengths, counts, strict=True)]
        self.reserve(max(totals))
        for place, length, count, ids in zip(places, lengths, counts, ids_RT.tolist(), strict=True):
            self.tokens[place] = self.tokens[place][:length] + ids[:count]
        self.lengths[places_R] = torch.tensor(totals, device=self.device)
        if not self.cached:
            return self._recomputed(places)
        # Every row computes equally many tokens, some of them again where it had fewer to append: then all padding
        # lies before a row's first token and none within it.
        width = max(counts)
        kept = [max(0, total - width) for total in totals]
        cache = self._taken(places, kept)
        ids = torch.zeros(len(places), width, dtype=torch.long)
        for row, place in enumerate(places):
            new = self.tokens[place][kept[row] :]
            ids[row, width - len(new) :] = torch.tensor(new)
        logits = self._forward(ids.to(self.device), totals, max(kept) + width, cache)
        self._put(places, totals, cache)
        return logits

    def _advance(self, ids_B: Tensor) -> Tensor:
        rows = len(ids_B)
        lengths = self.lengths[:rows].tolist()
        longest = max(lengths)
        self.reserve(longest + 1)
        for place, token in enumerate(ids_B.tolist()):
            self.tokens[place] = [*self.tokens[place][: lengths[place]], token]
        self.lengths[:rows] += 1
        if not self.cached:
            return self._recomputed(range(rows))
        self._line_up(lengths)
        first = self.column - longest
        cache = Cache(layers=[_Column(store, rows, first, self.column) for store in self.stores])
        logits = self._forward(ids_B.unsqueeze(-1), [length + 1 for length in lengths], longest + 1, cache)
        self.column += 1
        return logits

    def _forward(self, ids_RT: Tensor, totals: Sequence[int], span: int, cache: Cache) -> Tensor:
        """Run the model over the last T of ``span`` columns, in which rows of those lengths end at the last."""
        self._calm()
        pads = span - torch.tensor(totals, device=self.device).unsqueeze(-1)
        columns = torch.arange(span, device=self.device)
        options: dict[str, Any] = {"logits_to_keep": 1} if self._keeps_last else {}
        if self._takes_positions:
            options["position_ids"] = (columns - pads).clamp_min(0)[:, -ids_RT.shape[1] :]
        mask = (columns >= pads).long()
        out = self.model(input_ids=ids_RT, attention_mask=mask, past_key_values=cache, use_cache=True, **options)
        return out.logits[:, -1].float()  # type: ignore[no-any-return]

    def _recomputed(self, places: Sequence[int]) -> Tensor:
        """Compute whole rows, padded on the right, where nothing that looks back sees it."""
        self._calm()
        rows = [self.tokens[place] for place in places]
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
        last = torch.tensor([len(row) - 1 for row in rows])
        mask = (torch.arange(ids.shape[1]) <= last.unsqueeze(-1)).long()
        out = self.model(input_ids=ids.to(self.device), attention_mask=mask.to(self.device), use_cache=False)
        return out.logits[range(len(rows)), last.to(self.device)].float()  # type: ignore[no-any-return]

    def _calm(self) -> None:
        """Switch dropout off, which the update may have left on."""
        if self.model.training:
            self.model.eval()

    def _taken(self, places: Sequence[int], kept: Sequence[int]) -> DynamicCache:
        """Return a cache with the first ``kept`` tokens of some rows, padded on the left."""
        cache = DynamicCache()  # full length in every layer: a sliding window is a matter of the mask
        past = max(kept)
        for number, store in enumerate(self.stores if past else ()):
            keys, values = (part.new_zeros(len(places), part.shape[1], past, part.shape[3]) for part in store.both)
            for row, (place, count) in enumerate(zip(places, kept, strict=True)):
                begin = self.starts[place]
                for target, part in zip((keys, values), store.both, strict=True):
                    target[row, :, past - count :] = part[place, :, begin : begin + count]
            cache.update(keys, values, number)
        return cache

    def _put(self, places: Sequence[int], totals: Sequence[int], cache: DynamicCache) -> None:
        """Keep what was computed of some rows; each ends at the shared column."""
        self.column = max(self.column, *totals)
        self._widen(self.column)
        layers: list[Any] = cache.layers
        if not self.stores:
            self.stores = [_Store(layer, self.places, self.columns) for layer in layers]
        for store, layer in zip(self.stores, layers, strict=True):
            for part, computed in zip(store.both, (layer.keys, layer.values), strict=True):
                for row, (place, total) in enumerate(zip(places, totals, strict=True)):
                    part[place, :, self.column - total : self.column] = computed[row, :, -total:]
        for place, total in zip(places, totals, strict=True):
            self.starts[place] = self.column - total

    def _line_up(self, lengths: Sequence[int]) -> None:
        """Let the first rows end at the shared column, with room for one more."""
        longest = max(lengths)
        if self.column < longest or self.column >= self.columns:
            self.column = longest
            self._widen(longest + SLACK)
        for place, length in enumerate(lengths):
            start, begin = self.column - length, self.starts[place]
            if start != begin:
                for store in self.stores:
                    for part in store.both:
                        part[place, :, start : self.column] = part[place, :, begin : begin + length].clone()
                self.starts[place] = start

    def _widen(self, columns: int) -> None:
        if columns > self.columns:
            self.columns = columns + columns // 2
            for store in self.stores:
                store.grow(self.columns)
