"""Multi-head attention: its projections are linear layers, the rest has no parameters."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privada.clipping.recording import Recorder, Rule
from privada.clipping.rules.linear import project


def _chunk(recorder: Recorder, weight: Any, which: int, width: int) -> Any:
    """Return one third of packed projections, as a piece of the parameter."""
    if weight is None:
        return None
    with recorder.seeing():
        return weight[which * width : (which + 1) * width]


def _mask(attention: Tensor | None, padding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the two masks as one that is added to the scores; (N, 1, 1, S) or (.., L, S)."""
    total: Tensor | None = None
    for given in (attention, padding):
        if given is None:
            continue
        if given.dtype == torch.bool:
            given = torch.zeros_like(given, dtype=dtype).masked_fill_(given, -math.inf)
        total = given if total is None else total + given
    return total


def _projected(
    recorder: Recorder,
    given: tuple[Tensor, Tensor, Tensor],
    own: tuple[Any, Any, Any] | None,
    packed_weight: Any,
    packed_bias: Any,
) -> list[Tensor]:
    """Return the projections of query, key and value, by weights of their own or packed ones."""
    query, key, value = given
    width = query.shape[2]
    if own is None and key is query and value is query:
        packed = project(recorder, query, packed_weight, packed_bias)
        return list(torch.split(packed, width, dim=-1))
    weights = own or [_chunk(recorder, packed_weight, i, width) for i in range(3)]
    biases = [_chunk(recorder, packed_bias, i, width) for i in range(3)]
    return [
        project(recorder, values, weight, bias)
        for values, weight, bias in zip(given, weights, biases, strict=True)
    ]


def multi_head_attention(
    recorder: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Attend, as torch.nn.MultiheadAttention does, from (L, N, E) to (S, N, E)."""
    extras = (bias_k, bias_v, static_k, static_v)
    if query.ndim != 3 or add_zero_attn or any(extra is not None for extra in extras):
        return NotImplemented
    if any(recorder.piece(values) is not None for values in (query, key, value)):
        return NotImplemented
    length, batch, width = query.shape
    own = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    parts = _projected(recorder, (query, key, value), own, in_proj_weight, in_proj_bias)
    heads = [
        part.reshape(part.shape[0], batch, num_heads, width // num_heads).permute(1, 2, 0, 3)
        for part in parts
    ]
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask.view(batch, num_heads, *attn_mask.shape[1:])
    padding = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
    mask, rate = _mask(attn_mask, padding, heads[0].dtype), dropout_p if training else 0.0
    mixed, attended = _attend(heads, mask, rate, need_weights, is_causal)
    if attended is not None and average_attn_weights:
        attended = attended.mean(dim=1)
    joined = mixed.permute(2, 0, 1, 3).reshape(length, batch, width)
    return project(recorder, joined, out_proj_weight, out_proj_bias), attended


def _attend(
    heads: list[Tensor], mask: Tensor | None, rate: float, need_weights: bool, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Return what the heads attend to, and the weights of each if they are wanted."""
    q, k, v = heads
    if not need_weights:
        causal = is_causal and mask is None
        return functional.scaled_dot_product_attention(q, k, v, mask, rate, causal), None
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    attended = functional.softmax(scores if mask is None else scores + mask, dim=-1)
    attended = functional.dropout(attended, rate)
    return attended @ v, attended


RULES: dict[Any, Rule] = {functional.multi_head_attention_forward: multi_head_attention}
