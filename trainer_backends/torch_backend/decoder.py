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

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InvalidRequest

FAMILIES = ("qwen3", "qwen2", "llama", "mistral")


def supported(model: Any) -> bool:
    """Return whether :class:`Decoder` can run a model; if not, ``GenericDecoder`` can."""
    config = model.config
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return config.model_type in FAMILIES and config.hidden_act == "silu" and window is None


class _Layer:
    """One transformer block's merged weights."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norm = layer.input_layernorm
        self.post_norm = layer.post_attention_layernorm
        self.qkv, self.qkv_bias = _merged(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = attention.o_proj
        # Qwen3 normalises every head's queries and keys.
        self.q_norm, self.k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.gate_up, self.gate_up_bias = _merged(mlp.gate_proj, mlp.up_proj)
        self.down = mlp.down_proj


def _merged(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Lay the weights of several linears one behind the other; each keeps a view of its own part."""
    for linear in linears:
        if type(linear) is not nn.Linear:
            raise InvalidRequest(f"A {type(linear).__name__} layer cannot be merged.", hint="Use GenericDecoder.")
    weight = _laid_out([linear.weight for linear in linears])
    return weight, None if linears[0].bias is None else _laid_out([linear.bias for linear in linears])


def _laid_out(parameters: list[Tensor]) -> Tensor:
    whole = torch.cat([parameter.detach() for parameter in parameters])
    start = 0
    for parameter in parameters:
        parameter.data = whole[start : start + len(parameter)]
        start += len(parameter)
    return whole


class Decoder:
    """The forward pass of one model over cached rows.

    Args:
        model: a ``…ForCausalLM`` of one of ``FAMILIES``.
        places: rows of the cache.
        length: tokens a row can hold at first; the cache doubles when a row needs more.
    """

    def __init__(self, model: Any, places: int, length: int = 256) -> None:
        config, core = model.config, model.model
        self.model = model
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

    def _allocate(self, length: int) -> None:
        length = min(length, self.limit)
        shape = (len(self.layers), 2, self.places, self.kv_heads, length, self.head_dim)
        cache = torch.zeros(shape, dtype=self.dtype, device=self.device)
        cache[..., : self.length, :] = self.cache
        self.cache, self.length = cache, length
        positions = torch.arange(length, device=self.device)
        cos, sin = self.rotary(self.embed.weight[:1], positions.unsqueeze(0))
        self.cos, self.sin = cos[0], sin[0]
        # Rotation adds x[d/2:] * -sin to the first half and x[:d/2] * sin to the second.
        self.signed_sin = torch.cat([-self.sin[:, : self.head_dim // 2], self.sin[:, self.head_dim // 2 :]], -1)

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
        longest = int(torch.maximum(self.lengths[first], self.lengths[second]))
        part = self.cache[..., :longest, :]
        both = part[:, :, [second, first]]
        part[:, :, first], part[:, :, second] = both[:, :, 0], both[:, :, 1]
        self.lengths[[first, second]] = self.lengths[[second, first]]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target`` the first ``length`` tokens of ``source``."""
        self.cache[:, :, target, :, :length] = self.cache[:, :, source, :, :length]
        self.lengths[target] = length

    @torch.inference_mode()
    def extend(self, ids_RT: Tensor, places_R: Tensor, counts_R: Tensor) -> Tensor:
        """Append tokens to some rows; return the logits after the last token of each, shape (R, V), float32.

        Args:
            ids_RT: token ids, padded on the right.
            places_R: the rows' places.
            counts_R: tokens of each row, at least 1.
        """
        rows, width = ids_RT.shape
        start_R = self.lengths[places_R]
        self.reserve(int((start_R + counts_R).max()))
        # Padding is written too, behind the row's tokens, where nothing looks before it is written over.
        position_RT = (start_R.unsqueeze(-1) + torch.arange(width, device=self.device)).clamp_max(self.length - 1)
        span = int(position_RT.max()) + 1
        seen = torch.arange(span, device=self.device) <= position_RT.unsqueeze(-1)
        hidden = self._blocks(ids_RT, position_RT, seen, span, places_R)
        self.lengths[places_R] = start_R + counts_R
        last = hidden[torch.arange(rows, device=self.device), counts_R - 1]
        return self._logits(last)

    @torch.inference_mode()
    def step(self, ids_B: Tensor) -> Tensor:
        """Append one token to each of the first B places; return the logits after it, shape (B, V), float32."""
        active = ids_B.shape[0]
        position_B1 = self.lengths[:active].unsqueeze(-1)
        span = int(position_B1.max()) + 1
        self.reserve(span)
        seen = (torch.arange(span, device=self.device) <= position_B1).unsqueeze(1)
        hidden = self._blocks(ids_B.unsqueeze(-1), position_B1, seen, span, None)
        self.lengths[:active] += 1
        return self._logits(hidden[:, 0])

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(self._norm(hidden, self.final_norm))
        return logits.float()

    def _norm(self, x: Tensor, norm: Any) -> Tensor:
        scaled: Tensor = _rms(x, self.epsilon) * norm.weight
        return scaled

    def _blocks(self, ids_RT: Tensor, position_RT: Tensor, seen: Tensor, span: int, places_R: Tensor | None) -> Tensor:
        rows, width = ids_RT.shape
        cos, sin = self.cos[position_RT].unsqueeze(2), self.signed_sin[position_RT].unsqueeze(2)
        row = (torch.arange(rows, device=self.device) if places_R is None else places_R).unsqueeze(-1)
        x = self.embed(ids_RT)
        bias = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill_(~seen, -torch.inf)
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            merged = F.linear(self._norm(x, layer.norm), layer.qkv, layer.qkv_bias)
            merged = merged.view(rows, width, self.heads + 2 * self.kv_heads, self.head_dim)
            turning, value = merged[:, :, : -self.kv_heads], merged[:, :, -self.kv_heads :]
            if layer.q_norm is not None and layer.k_norm is not None:
                scale = torch.cat(
                    [layer.q_norm.weight.expand(self.heads, -1), layer.k_norm.weight.expand(self.kv_heads, -1)]
                )
                turning = _rms(turning, self.epsilon) * scale
            turned = _rotate(turning, cos, sin)
            query, key = turned[:, :, : self.heads], turned[:, :, self.heads :]
            keys[row, :, position_RT] = key
            values[row, :, position_RT] = value
            x = x + layer.out(self._attend(query, keys, values, bias, span, places_R))
            gate, up = F.linear(self._norm(x, layer.post_norm), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return x  # type: ignore[no-any-return]

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, span: int, places_R: Tensor | None
    ) -> Tensor:
        """Return the attention's output, shape (rows, tokens, heads * head_dim)."""
        rows, width = query.shape[:2]
        if places_R is None:
            key, value = keys[:rows, :, :span], values[:rows, :, :span]
        else:
            key, value = keys[places_R, :, :span], values[places_R, :, :span]
        # The query heads of one group are more queries to one key head: nothing is repeated.
        grouped = query.view(rows, width, self.kv_heads, -1, self.head_dim).permute(0, 2, 3, 1, 4)
        grouped = grouped.reshape(rows, self.kv_heads, -1, self.head_dim)
        if width == 1:
            # Plain products: the fused kernel is slower for one query a row on the CPU.
            scores = torch.matmul(grouped * self.head_dim**-0.5, key.transpose(-1, -2)).add_(bias[:, None])
            out = torch.matmul(scores.softmax(-1), value)
        else:
            groups = self.heads // self.kv_heads
            wide = bias[:, None].expand(rows, groups, width, span).reshape(rows, 1, groups * width, span)
            out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=wide)
        out = out.view(rows, self.kv_heads, -1, width, self.head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(rows, width, -1)


def _rms(x: Tensor, epsilon: float) -> Tensor:
    """Return x over its root mean square, computed in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(epsilon))).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([x[..., half:], x[..., :half]], -1) * signed_sin
