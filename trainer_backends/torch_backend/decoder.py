"""Decoding with a static cache: the forward pass of Llama-like models with few, large operations.

``generate`` of transformers spends most of a small model's time on bookkeeping: modules, masks and growing caches for
every token. Here queries, keys and values come from one product, gate and up projections from another, the heads of a
group share one attention call, and keys and values are written into a cache that is allocated once. The merged weights
are the model's own: each parameter becomes a view of a part, so that an optimizer step is seen at once and nothing is
kept twice.

Rows of the cache are *places*. The first ``active`` places are decoded together; the others keep the tokens of turns
past, so that a prompt that begins like one seen before is only computed from where it differs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InvalidRequest

FAMILIES = ("qwen3", "qwen2", "llama", "mistral")


def base_of(model: Any) -> Any:
    """Return the model of transformers inside one that peft has wrapped, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def supported(model: Any) -> bool:
    """Return whether :class:`Decoder` can run a model; ``GenericDecoder`` can run any."""
    base = base_of(model)
    config = base.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu":
        return False
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    # The other kinds turn positions by angles that depend on the length of the row.
    if window is not None or rotation not in ("default", "linear", "llama3", "yarn"):
        return False
    return type(base.lm_head) is nn.Linear and type(base.model.embed_tokens) is nn.Embedding and _plain(base.model)


def _plain(core: Any) -> bool:
    """Return whether the layers are what their family's are: no quantised ones, no adapters but LoRA's plain form."""
    linears = (linear for layer in core.layers for linear in _linears(layer))
    norms = (norm for layer in core.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm))
    return all(type(linear) is nn.Linear or _plain_lora(linear) for linear in linears) and all(
        type(norm).__name__.endswith("RMSNorm") for norm in (*norms, core.norm)
    )


def _linears(layer: Any) -> tuple[Any, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    return (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    )


def _plain_lora(linear: Any) -> bool:
    if not hasattr(linear, "lora_A") or linear.merged or linear.disable_adapters:
        return False
    one = len(linear.active_adapters) == 1
    parts = (linear.base_layer, *linear.lora_A.values(), *linear.lora_B.values())
    return one and not linear.lora_variant and all(type(part) is nn.Linear for part in parts)


class _Layer:
    """One transformer block's merged weights."""

    def __init__(self, layer: Any) -> None:
        query, key, value, out, gate, up, down = _linears(layer)
        self.norm = layer.input_layernorm
        self.post_norm = layer.post_attention_layernorm
        self.qkv = _Merged(query, key, value)
        self.out = _Merged(out)
        # Qwen3 normalises every head's queries and keys.
        self.q_norm, self.k_norm = (getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm"))
        self.gate_up = _Merged(gate, up)
        self.down = _Merged(down)


class _Merged:
    """Linear layers on one input as one product, and what their adapters add.

    The adapters stay apart: merged into the weights they would have to be taken out again for every update, and in
    bfloat16 much of them would be lost, so that the engine's probabilities were not the trainer's.
    """

    def __init__(self, *linears: Any) -> None:
        plain = [getattr(linear, "base_layer", linear) for linear in linears]
        self.weight = _laid_out([linear.weight for linear in plain])
        self.bias = None if plain[0].bias is None else _laid_out([linear.bias for linear in plain])
        self.adapters: list[tuple[slice, slice, nn.Linear, float]] = []
        """For each: its part of the low-rank product, its part of the output, the way up, and its factor."""
        down, low, high = [], 0, 0
        for linear, inner in zip(linears, plain, strict=True):
            if linear is not inner:
                (name,) = linear.active_adapters
                down.append(linear.lora_A[name].weight)
                places = slice(low, low + len(down[-1])), slice(high, high + len(inner.weight))
                self.adapters.append((*places, linear.lora_B[name], linear.scaling[name]))
                low += len(down[-1])
            high += len(inner.weight)
        self.down = _laid_out(down) if down else None

    def __call__(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        if self.down is not None:
            low = F.linear(x.to(self.down.dtype), self.down)
            for source, target, up, factor in self.adapters:
                out[..., target] += up(low[..., source]) * factor
        return out


def _laid_out(parameters: list[Tensor]) -> Tensor:
    """Lay parameters one behind the other; each keeps a view of its own part."""
    if len(parameters) == 1:
        return parameters[0].detach()
    whole = torch.cat([parameter.detach() for parameter in parameters])
    start = 0
    for parameter in parameters:
        parameter.data = whole[start : start + len(parameter)]
        start += len(parameter)
    return whole


class Prompts(NamedTuple):
    """Tokens to append to R rows.

    Attributes:
        ids_RT: token ids, padded on the right.
        places_R: the rows' places.
        counts_R: tokens of each row, at least 1.
    """

    ids_RT: Tensor
    places_R: Tensor
    counts_R: Tensor


class _Part(NamedTuple):
    """Rows of a pass that append equally many tokens, R rows of T.

    Attributes:
        position_RT: the tokens' positions.
        span: positions that any of them looks at.
        bias_RTS: 0 where a token looks, -inf elsewhere.
        places_R: the rows' places; None for the first ones.
    """

    position_RT: Tensor
    span: int
    bias_RTS: Tensor
    places_R: Tensor | None


class Decoder:
    """The forward pass of one model over cached rows.

    Args:
        model: a ``…ForCausalLM`` of one of ``FAMILIES``, also with LoRA; see :func:`supported`.
        places: rows of the cache.
        length: tokens a row can hold at first; the cache doubles when a row needs more.
    """

    def __init__(self, model: Any, places: int, length: int = 256) -> None:
        base = base_of(model)
        config, core = base.config, base.model
        self.head = base.lm_head
        self.places = places
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.epsilon = config.rms_norm_eps
        self.limit = int(config.max_position_embeddings)
        self.embed, self.final_norm, self.rotary = core.embed_tokens, core.norm, core.rotary_emb
        self.layers = [_Layer(layer) for layer in core.layers]
        self.lengths = torch.zeros(places, dtype=torch.long, device=self.device)
        self.length = 0
        self.cache = torch.empty(len(self.layers), 2, places, self.kv_heads, 0, self.head_dim)
        self._allocate(length)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.embed.weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        dtype: torch.dtype = self.embed.weight.dtype
        return dtype

    @torch.inference_mode(False)  # it outlives the call in which it has to grow
    def _allocate(self, length: int) -> None:
        length = min(length, self.limit)
        shape = (len(self.layers), 2, self.places, self.kv_heads, length, self.head_dim)
        cache = torch.zeros(shape, dtype=self.dtype, device=self.device)
        cache[..., : self.length, :] = self.cache
        self.cache, self.length = cache, length
        positions = torch.arange(length, device=self.device)
        cos, sin = self.rotary(self.embed.weight[:1], positions.unsqueeze(0))
        self.cos, (first, second) = cos[0], sin[0].chunk(2, -1)
        # Rotation adds x[d/2:] * -sin to the first half and x[:d/2] * sin to the second.
        self.signed_sin = torch.cat([-first, second], -1)

    def reserve(self, length: int) -> None:
        """Make room for rows of ``length`` tokens.

        Raises:
            InvalidRequest: the model knows no such position.
        """
        if length > self.limit:
            raise InvalidRequest(f"{length} tokens, but the model takes {self.limit}.", hint="Send a shorter prompt.")
        if length > self.length:
            self._allocate(max(length, min(2 * self.length, self.limit)))

    def swap(self, first: int, second: int) -> None:
        """Exchange two places."""
        if first == second:
            return
        one, other = self.lengths[[first, second]].tolist()
        kept = self.cache[:, :, first, :, :one].clone()
        self.cache[:, :, first, :, :other] = self.cache[:, :, second, :, :other]
        self.cache[:, :, second, :, :one] = kept
        self.lengths[[first, second]] = self.lengths[[second, first]]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target`` the first ``length`` tokens of ``source``."""
        self.cache[:, :, target, :, :length] = self.cache[:, :, source, :, :length]
        self.lengths[target] = length

    @torch.inference_mode()
    def step(self, ids_B: Tensor, prompts: Prompts | None = None) -> Tensor:
        """Append one token to each of the first B places and, in the same pass, prompts to others.

        Returns:
            The logits after the last token of each, those of the prompts at the end, shape (B + R, V), float32.
        """
        active = len(ids_B)
        ids, parts = [], []
        if active:
            start_B = self.lengths[:active]
            ids.append(ids_B)
            parts.append(self._part(start_B.unsqueeze(-1), int(start_B.max()) + 1, None))
        if prompts is not None:
            # Padding repeats the row's last token in its place: what is written twice is the same.
            ahead_RT = torch.arange(prompts.ids_RT.shape[1], device=self.device).minimum(prompts.counts_R[:, None] - 1)
            position_RT = self.lengths[prompts.places_R].unsqueeze(-1) + ahead_RT
            ids.append(prompts.ids_RT.gather(1, ahead_RT).flatten())
            parts.append(self._part(position_RT, int(position_RT.max()) + 1, prompts.places_R))
        self.reserve(max(part.span for part in parts))
        hidden = self._blocks(torch.cat(ids), parts)
        self.lengths[:active] += 1
        if prompts is not None:
            rows, width = prompts.ids_RT.shape
            self.lengths[prompts.places_R] += prompts.counts_R
            last = active + torch.arange(rows, device=self.device) * width + prompts.counts_R - 1
            hidden = torch.cat([hidden[:active], hidden[last]])
        logits: Tensor = self.head(self._norm(hidden, self.final_norm))
        return logits.float()

    def _part(self, position_RT: Tensor, span: int, places_R: Tensor | None) -> _Part:
        unseen = torch.arange(span, device=self.device) > position_RT.unsqueeze(-1)
        bias_RTS = torch.zeros(unseen.shape, dtype=self.dtype, device=self.device).masked_fill_(unseen, -torch.inf)
        return _Part(position_RT, span, bias_RTS, places_R)

    def _norm(self, x: Tensor, norm: Any) -> Tensor:
        scaled: Tensor = _rms(x, self.epsilon) * norm.weight
        return scaled

    def _blocks(self, ids_N: Tensor, parts: list[_Part]) -> Tensor:
        """Return what the blocks make of the N tokens of all parts, shape (N, hidden)."""
        position_N = torch.cat([part.position_RT.flatten() for part in parts])
        cos, sin = self.cos[position_N].unsqueeze(1), self.signed_sin[position_N].unsqueeze(1)
        target = self._targets(position_N, parts)
        sizes = [part.position_RT.numel() for part in parts]
        x = self.embed(ids_N)
        for layer, cached in zip(self.layers, self.cache, strict=True):
            merged = layer.qkv(self._norm(x, layer.norm)).view(len(x), -1, self.head_dim)
            turning, value = merged[:, : -self.kv_heads], merged[:, -self.kv_heads :]
            if layer.q_norm is not None and layer.k_norm is not None:
                turning = _rms(turning, self.epsilon)
                turning[:, : self.heads] *= layer.q_norm.weight
                turning[:, self.heads :] *= layer.k_norm.weight
            turned = _rotate(turning, cos, sin)
            # Keys, then values: much faster than an assignment by indices.
            new = torch.cat([turned[:, self.heads :], value], 1).view(-1, self.head_dim)
            cached.view(-1, self.head_dim).index_copy_(0, target, new)
            queries = torch.split(turned[:, : self.heads], sizes)
            attended = [self._attend(part, query, cached) for part, query in zip(parts, queries, strict=True)]
            x += layer.out(torch.cat(attended) if len(attended) > 1 else attended[0])
            gate, up = layer.gate_up(self._norm(x, layer.post_norm)).chunk(2, -1)
            x += layer.down(F.silu(gate).mul_(up))
        return x  # type: ignore[no-any-return]

    def _targets(self, position_N: Tensor, parts: list[_Part]) -> Tensor:
        """Return where the keys and values of the tokens lie in a layer's cache, seen as rows of one head each."""
        rows = [
            (torch.arange(len(part.position_RT), device=self.device) if part.places_R is None else part.places_R)
            .unsqueeze(-1)
            .expand_as(part.position_RT)
            .flatten()
            for part in parts
        ]
        heads = torch.cat(rows).unsqueeze(-1) * self.kv_heads + torch.arange(self.kv_heads, device=self.device)
        keys = heads * self.length + position_N.unsqueeze(-1)
        return torch.cat([keys, keys + self.places * self.kv_heads * self.length], 1).flatten()

    def _attend(self, part: _Part, query: Tensor, cached: Tensor) -> Tensor:
        """Return the attention's output, shape (rows * tokens, heads * head_dim)."""
        rows, width = part.position_RT.shape
        own = slice(rows) if part.places_R is None else part.places_R
        key, value = cached[:, own, :, : part.span]
        if width == 1:
            # Plain products: the fused kernel is slower for one query a row on the CPU. The query heads of one group
            # are more queries to one key head: nothing is repeated.
            grouped = query.view(rows, self.kv_heads, -1, self.head_dim)
            scores = torch.matmul(grouped * self.head_dim**-0.5, key.transpose(-1, -2)).add_(part.bias_RTS[:, None])
            return torch.matmul(scores.softmax(-1), value).reshape(rows, -1)
        grouped = query.view(rows, width, self.kv_heads, -1, self.head_dim).permute(0, 2, 3, 1, 4)
        groups = grouped.shape[2]
        wide = part.bias_RTS[:, None].expand(rows, groups, width, part.span).reshape(rows, 1, groups * width, part.span)
        out = F.scaled_dot_product_attention(
            grouped.reshape(rows, self.kv_heads, -1, self.head_dim), key, value, attn_mask=wide
        )
        out = out.view(rows, self.kv_heads, groups, width, self.head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(rows * width, -1)


def _rms(x: Tensor, epsilon: float) -> Tensor:
    """Return x over its root mean square, computed in float32."""
    return F.rms_norm(x.float(), x.shape[-1:], None, epsilon).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([x[..., half:], x[..., :half]], -1) * signed_sin
