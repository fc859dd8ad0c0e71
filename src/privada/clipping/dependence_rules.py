"""What the results of an operation can depend on, by what the operation can reach.

Layers and indexing have rules in files of their own; `ALL_RULES` has those of all three.
"""

import sys
from collections.abc import Callable
from types import FrameType

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from privada.clipping import dependence_indexing, dependence_layers
from privada.clipping.dependence_given import (
    Found,
    Given,
    Rules,
    aten,
    nothing,
    pointwise,
    register,
)
from privada.clipping.labels import Labels, join, join_all, join_over

# How far below torch's function for packing its sort may be on the stack.
_DEPTH_OF_A_SORT = 16


def _by_reduction(given: Given) -> Found:
    """A loss: number by number, or all of them in one."""
    if given["reduction"] == 0:
        return pointwise(given)
    total = given.everything()
    return lambda outputs: [total] * len(outputs)


def _overwritten(given: Given) -> Found:
    """The first argument is written to and not read."""
    total: Labels = None
    for value in given.tensors()[1:]:
        total = join(total, given.of(value))
    return lambda outputs: [total] * len(outputs)


def _along(given: Given) -> Found:
    """Results depend on everything along some dimensions."""
    if given.func.overloadpacket is aten.sort and _packs_sequences():
        return _sorted_lengths(given)
    if "dim" not in given.named:  # of two tensors, or over all dimensions
        if torch.Tag.pointwise in given.func.tags or "other" in given.named:
            return pointwise(given)
        rest = given.everything()
        return lambda outputs: [rest] * len(outputs)
    total: Labels = None
    for value in given.tensors():
        total = join(total, given.of(value))
    assert total is not None
    dims = given["dim"]
    dims = [dims] if isinstance(dims, int) else dims
    ndim = total.ndim
    dims = range(ndim) if dims is None or len(dims) == 0 else [d % max(1, ndim) for d in dims]
    found = join_over(total, list(dims))

    def labels(outputs: list[Tensor]) -> list[Labels]:
        shape = [n for d, n in enumerate(found.shape) if d not in set(dims)]
        return [found if out.ndim == ndim else found.reshape(shape) for out in outputs]

    return labels


def _packs_sequences() -> bool:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH_OF_A_SORT):
        if frame is None or frame.f_code is pack_padded_sequence.__code__:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code is pack_padded_sequence.__code__


def _sorted_lengths(given: Given) -> Found:
    """Sequences are packed by length and put back in order afterwards.

    Which of them is computed beside which follows from all lengths; what is computed does not.
    """
    _, order = torch.sort(given["self"], dim=-1, descending=given["descending"])
    moved = given.full(given["self"])[order]
    return lambda outputs: [moved, None]


def _trailing(*names: str) -> Callable[[Given], Found]:
    """Results depend on everything along the last dimensions, as in layer normalisation."""

    def rule(given: Given) -> Found:
        count = len(given["normalized_shape"])
        total = join_all(join(given.labels("weight"), given.labels("bias")))
        for name in names:
            found = given.labels(name)
            if found is not None:
                total = join(total, join_over(found, range(found.ndim - count, found.ndim)))
        rest, ndim = given.everything(), given["input"].ndim
        # gradients of the weight and the bias have fewer dimensions than the input
        return lambda outputs: [total if out.ndim == ndim else rest for out in outputs]

    return rule


def _leading(keep: int | Callable[[Tensor], int], *names: str) -> Callable[[Given], Found]:
    """Results depend on everything in their own row, a row being given by leading dimensions."""

    def rule(given: Given) -> Found:
        first = given[names[0]]
        count = keep if isinstance(keep, int) else keep(first)
        total: Labels = None
        for name in names:
            found = given.labels(name)
            if found is not None and found.ndim >= count:
                found = join_over(found, range(count, found.ndim))
                total = join(total, found.reshape(found.shape[:count]))
            else:
                total = join(total, join_all(found))
        for name, value in given.named.items():
            if name not in names and isinstance(value, Tensor):
                total = join(total, join_all(given.labels(name)))
        assert total is not None
        rows = total.expand(first.shape[:count])

        def labels(outputs: list[Tensor]) -> list[Labels]:
            return [
                rows.reshape(*rows.shape, *[1] * (out.ndim - count))
                if out.shape[:count] == rows.shape
                else join_all(rows)
                for out in outputs
            ]

        return labels

    return rule


def _nll(given: Given) -> Found:
    """The negative log-likelihood of classes in the second dimension, or in the only one."""
    if given["reduction"] != 0:
        total = given.everything()
        return lambda outputs: [total] * len(outputs)
    own = _leading(1, *(n for n in ("self", "grad_output", "target") if n in given.named))
    named = {k: v for k, v in given.named.items() if k != "total_weight"}
    found = own(Given(given.of, given.func, named))
    return lambda outputs: [*found(outputs[:1]), *[None] * (len(outputs) - 1)]


def _spatial(count: int) -> Callable[[Tensor], int]:
    return lambda value: value.ndim - count


def _packed(given: Given) -> Found:
    """Rows of sequences, packed: which rows there are is read from the lengths."""
    values = given.full(given["input"]).float()
    reached = given.func(values, given["lengths"], given["batch_first"])[0]
    return lambda outputs: [reached.round().to(torch.uint8), None]


def _unpacked(given: Given) -> Found:
    values = given.full(given["data"]).float()
    named = given.named
    reached = given.func(
        values, named["batch_sizes"], named["batch_first"], 0.0, named["total_length"]
    )[0]
    return lambda outputs: [reached.round().to(torch.uint8), None]


RULES: Rules = {}
register(
    RULES,
    pointwise,
    """
    clone _to_copy lift_fresh_copy native_dropout native_dropout_backward gelu_backward
    silu_backward tanh_backward sigmoid_backward threshold_backward hardtanh_backward
    leaky_relu_backward elu_backward softplus_backward hardswish_backward
    hardsigmoid_backward mish_backward log_sigmoid_forward log_sigmoid_backward
    logit_backward softshrink_backward tril triu mse_loss_backward smooth_l1_loss_backward
    huber_loss_backward binary_cross_entropy_backward soft_margin_loss_backward
    masked_fill masked_fill_ where bernoulli nan_to_num _prelu_kernel
    _prelu_kernel_backward addcmul addcdiv lerp polar complex rrelu_with_noise
    """,
)
register(
    RULES,
    _by_reduction,
    """
    mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss
    """,
)
register(RULES, _overwritten, "copy_ fill_")
register(
    RULES,
    nothing,
    """
    zero_ uniform_ normal_ bernoulli_ random_ exponential_ zeros_like ones_like empty_like
    full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full
    new_empty_strided sym_size sym_numel sym_stride is_same_size empty_strided
    """,
)
register(
    RULES,
    _along,
    """
    sum mean amax amin max min argmax argmin var std var_mean std_mean linalg_vector_norm
    norm logsumexp prod any all nansum cumsum cumprod cummax cummin logcumsumexp _softmax
    _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax sort topk
    kthvalue median nanmedian mode count_nonzero aminmax glu _fft_c2c _fft_r2c _fft_c2r
    """,
)
register(RULES, _trailing("input"), "native_layer_norm _fused_rms_norm")
register(
    RULES,
    _trailing("grad_out", "input", "mean", "rstd"),
    """
    native_layer_norm_backward _fused_rms_norm_backward
    """,
)
register(RULES, _nll, "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward")
register(
    RULES,
    _leading(1, "query", "key", "value", "attn_mask"),
    """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention
    """,
)
register(
    RULES,
    _leading(1, "query", "key", "value", "attn_mask", "grad_out", "out", "logsumexp"),
    """
    _scaled_dot_product_flash_attention_for_cpu_backward
    """,
)
for _dims in (1, 2, 3):
    _here = _spatial(_dims)
    register(
        RULES,
        _leading(_here, "self"),
        f"""
        avg_pool{_dims}d _adaptive_avg_pool{_dims}d adaptive_max_pool{_dims}d
        max_pool{_dims}d_with_indices upsample_nearest{_dims}d
        """,
    )
    register(
        RULES,
        _leading(_here, "grad_output", "self", "indices"),
        f"""
        avg_pool{_dims}d_backward _adaptive_avg_pool{_dims}d_backward
        adaptive_max_pool{_dims}d_backward max_pool{_dims}d_with_indices_backward
        """,
    )
    register(
        RULES,
        _leading(_here, "grad_output", "self"),
        f"""
        upsample_nearest{_dims}d_backward reflection_pad{_dims}d_backward
        replication_pad{_dims}d_backward
        """,
    )
for _kind, _dims in (("linear1d", 1), ("bilinear2d", 2), ("bicubic2d", 2), ("trilinear3d", 3)):
    register(RULES, _leading(_spatial(_dims), "self"), f"upsample_{_kind}")
    register(RULES, _leading(_spatial(_dims), "grad_output"), f"upsample_{_kind}_backward")
register(RULES, _leading(1, "input", "grid"), "grid_sampler_2d grid_sampler_3d")
register(
    RULES,
    _leading(1, "grad_output", "input", "grid"),
    """
    grid_sampler_2d_backward grid_sampler_3d_backward
    """,
)
register(RULES, _packed, "_pack_padded_sequence")
register(RULES, _unpacked, "_pad_packed_sequence")

ALL_RULES: Rules = {**RULES, **dependence_indexing.RULES, **dependence_layers.RULES}
