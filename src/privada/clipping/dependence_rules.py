"""What the results of an operation can depend on, by what the operation can reach.

A rule errs towards dependence: the labels that it gives are of everything that could matter to a
result for some values. Operations without a rule, whose results torch does not say to be taken
number by number, depend on everything that they are given.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

from privada.clipping.labels import NOBODY, Labels, join, join_all, join_over

aten = torch.ops.aten

# How far below torch's function for packing its sort may be on the stack.
_DEPTH_OF_A_SORT = 16

Arguments = dict[str, Any]
Found = Callable[[list[Tensor]], Iterable[Labels]]


class Given:
    """The arguments of one operation, and the labels that its results will have."""

    def __init__(self, labels_of: Callable[[Tensor], Labels], func: Any, named: Arguments) -> None:
        self.of, self.func, self.named = labels_of, func, named
        self._outputs_only = {a.name for a in func._schema.arguments if a.is_out}

    def follow(self) -> Found:
        """Return a function from the results to their labels."""
        if all(self.of(value) is None for value in self.tensors()):
            return _nothing(self)
        packet = self.func.overloadpacket
        rule = _RULES.get(packet)
        if rule is None and torch.Tag.pointwise in self.func.tags:
            rule = _pointwise
        if rule is None:
            total = self.everything()
            return lambda outputs: [total] * len(outputs)
        return rule(self)

    def tensors(self) -> list[Tensor]:
        """The tensors that are read."""
        values = [v for name, v in self.named.items() if name not in self._outputs_only]
        return [value for value in tree_leaves(values) if isinstance(value, Tensor)]

    def everything(self) -> Labels:
        """Return the label of what depends on all that is read."""
        total: Labels = None
        for value in self.tensors():
            total = join(total, join_all(self.of(value)))
        return total

    def __getitem__(self, name: str) -> Any:
        """Return an argument."""
        return self.named[name]

    def labels(self, name: str) -> Labels:
        """Return the labels of an argument."""
        value = self.named.get(name)
        return self.of(value) if isinstance(value, Tensor) else None

    def full(self, value: Tensor) -> Tensor:
        """Return the labels of a tensor, zeros where it has none."""
        found = self.of(value)
        return torch.zeros(value.shape, dtype=torch.uint8) if found is None else found


# ---------------------------------------------------------------------- rules


def _pointwise(given: Given) -> Found:
    """Results depend on the numbers in their own place, with broadcasting."""
    total: Labels = None
    for value in given.tensors():
        total = join(total, given.of(value))
    return lambda outputs: [_fitting(total, out) for out in outputs]


def _fitting(labels: Labels, out: Tensor) -> Labels:
    """Return labels that broadcast to a result; of everything if they do not."""
    if labels is None:
        return None
    try:
        return labels.expand(out.shape)
    except RuntimeError:
        return join_all(labels)


def _by_reduction(given: Given) -> Found:
    """A loss: number by number, or all of them in one."""
    if given["reduction"] == 0:
        return _pointwise(given)
    total = given.everything()
    return lambda outputs: [total] * len(outputs)


def _overwritten(given: Given) -> Found:
    """The first argument is written to and not read."""
    total: Labels = None
    for value in given.tensors()[1:]:
        total = join(total, given.of(value))
    return lambda outputs: [total] * len(outputs)


def _nothing(given: Given) -> Found:
    """Results have the shape of an argument and nothing of its values."""
    return lambda outputs: [None] * len(outputs)


def _along(given: Given) -> Found:
    """Results depend on everything along some dimensions."""
    if given.func.overloadpacket is aten.sort and _packs_sequences():
        return _sorted_lengths(given)
    if "dim" not in given.named:  # of two tensors, or over all dimensions
        if torch.Tag.pointwise in given.func.tags or "other" in given.named:
            return _pointwise(given)
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


def _backward(given: Given) -> bool:
    return "backward" in given.func._schema.name


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


def _moved(*names: str) -> Callable[[Given], Found]:
    """Numbers are put elsewhere, or added up where they meet; places do not depend on values."""

    def rule(given: Given) -> Found:
        others = [v for n, v in given.named.items() if n not in names]
        if any(isinstance(v, Tensor) and given.of(v) is not None for v in others):
            total = given.everything()
            return lambda outputs: [total] * len(outputs)
        return _by_labels(given, names)

    return rule


def _by_labels(given: Given, names: Sequence[str]) -> Found:
    """Run the operation on each label's places: where it is not zero, the label has come to."""
    values = {name: _lists(given[name], given.full) for name in names}
    total: Labels = None
    for label in _present(t for part in values.values() for t in _flat(part)):
        masks = {n: _lists(part, _is(label)) for n, part in values.items()}
        reached = _call(given.func, {**given.named, **masks})
        total = join(total, torch.where(reached > 0, label, 0).to(torch.uint8))
    return lambda outputs: [total]


def _present(labels: Iterable[Tensor]) -> list[int]:
    """Return the labels that occur."""
    counts = sum(torch.bincount(each.reshape(-1).long(), minlength=256) for each in labels)
    return [label for label in torch.as_tensor(counts).nonzero()[:, 0].tolist() if label != NOBODY]


def _is(label: int) -> Callable[[Tensor], Tensor]:
    return lambda labels: (labels == label).float()


def _lists(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return [change(v) for v in value] if isinstance(value, (list, tuple)) else change(value)


def _flat(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _call(func: Any, named: Arguments) -> Any:
    args, kwargs = [], {}
    for argument in func._schema.arguments:
        if argument.kwarg_only:
            kwargs[argument.name] = named[argument.name]
        else:
            args.append(named[argument.name])
    if "value" in named and func.overloadpacket is aten.constant_pad_nd:
        args[-1] = 0
    kwargs.pop("dtype", None)
    return func(*args, **kwargs)


def _matrices(first: str, second: str, added: str = "") -> Callable[[Given], Found]:
    """Products of matrices: rows of the one, columns of the other."""

    def rule(given: Given) -> Found:
        total: Labels = given.labels(added) if added else None
        left, right = given.labels(first), given.labels(second)
        if left is not None:
            total = join(total, join_over(left, [-1]))
        if right is not None:
            total = join(total, join_over(right, [-2]))
        return lambda outputs: [_fitting(total, out) for out in outputs]

    return rule


def _vectors(matrix: str, added: str = "") -> Callable[[Given], Found]:
    """The product of a matrix and a vector."""

    def rule(given: Given) -> Found:
        total = join_all(given.labels("vec"))
        rows = given.labels(matrix)
        if rows is not None:
            total = join(total, join_over(rows, [-1])[..., 0])
        total = join(total, given.labels(added) if added else None)
        return lambda outputs: [_fitting(total, out) for out in outputs]

    return rule


def _grouped(labels: Labels, groups: int) -> Labels:
    """Return (rows, groups) from the labels of (rows, channels, ...)."""
    if labels is None:
        return None
    rows = join_over(labels, range(2, labels.ndim)).reshape(labels.shape[:2])
    split = rows.reshape(len(rows), groups, -1)
    return join_over(split, [-1])[..., 0]


def _channels(labels: Labels, out: Tensor, groups: int) -> Labels:
    """Return labels of (rows, channels, ...) from those of (rows, groups)."""
    if labels is None:
        return None
    each = labels.repeat_interleave(out.shape[1] // groups, dim=1)
    return each.reshape(*each.shape, *[1] * (out.ndim - 2))


def _kernels(given: Given) -> Labels:
    """Return the labels of a kernel by group, as (1, groups); for per-example kernels too."""
    found, groups = given.labels("weight"), given["groups"]
    if found is None:
        return None
    flat = found.reshape(groups, -1)
    return join_over(flat, [-1]).reshape(1, groups)


def _convolution(given: Given) -> Found:
    groups = given["groups"]
    total = join(_grouped(given.labels("input"), groups), _kernels(given))
    bias = given.labels("bias")

    def labels(outputs: list[Tensor]) -> list[Labels]:
        (out,) = outputs
        offset = None if bias is None else bias.reshape(1, -1, *[1] * (out.ndim - 2))
        return [join(_channels(total, out, groups), offset)]

    return labels


def _convolution_backward(given: Given) -> Found:
    groups = given["groups"]
    outer = _grouped(given.labels("grad_output"), groups)
    inner = _grouped(given.labels("input"), groups)
    through = join(outer, _kernels(given))
    over = [None if v is None else join_over(v, [0]) for v in (outer, inner)]
    weights = join(*over)

    def labels(outputs: list[Tensor]) -> list[Labels]:
        found: list[Labels] = []
        wanted = [place for place, asked in enumerate(given["output_mask"]) if asked]
        for place, out in zip(wanted, outputs, strict=True):
            if place == 0:
                found.append(_channels(through, out, groups))
            elif weights is None:
                found.append(None)
            else:
                each = weights[0] if place == 1 else over[0][0]  # type: ignore[index]
                each = each.repeat_interleave(len(out) // groups)
                found.append(each.reshape(-1, *[1] * (out.ndim - 1)))
        return found

    return labels


def _group_norm(given: Given) -> Found:
    groups = given["group"]
    own = given.labels("weight"), given.labels("bias")
    names = ("grad_out", "input", "mean", "rstd") if _backward(given) else ("input",)
    rows = given["N"]
    total: Labels = None
    for name in names:
        found = given.labels(name)
        if found is not None:
            total = join(total, join_over(found.reshape(rows, groups, -1), [-1])[..., 0])
    rest = given.everything()

    def labels(outputs: list[Tensor]) -> list[Labels]:
        found: list[Labels] = []
        for out in outputs:
            if out.shape == given["input"].shape:
                each = _channels(total, out, groups)
                for one in own:
                    if one is not None:
                        each = join(each, one.reshape(1, -1, *[1] * (out.ndim - 2)))
                found.append(each)
            else:
                same = total is not None and out.shape == total.shape
                found.append(total if same else rest)
        return found

    return labels


def _batch_norm(given: Given) -> Found:
    """Statistics over all but the channels, where they are taken of the batch."""
    name = "train" if "train" in given.named else "training"
    if given.named.get(name) is False:
        total = given.labels("grad_out" if _backward(given) else "input")
        for each in ("weight", "bias", "running_mean", "running_var"):
            total = join(total, join_all(given.labels(each)))
        whole = given.everything()
        return lambda outputs: [total if out.ndim > 1 else whole for out in outputs]
    rest: Labels = None
    for value in given.tensors():
        found = given.of(value)
        if found is None:
            continue
        if found.ndim > 1:
            found = join_over(found, [d for d in range(found.ndim) if d != 1]).reshape(-1)
        rest = join(rest, found)
    assert rest is not None
    channels = rest

    def labels(outputs: list[Tensor]) -> list[Labels]:
        return [
            channels.reshape(1, -1, *[1] * (out.ndim - 2)) if out.ndim > 1 else channels
            for out in outputs
        ]

    return labels


def _recurrent(given: Given) -> Found:
    """One layer over time: (time, batch, features) in, states of (batch, features) beside it."""
    total: Labels = None
    count = given["input"].shape[1]
    for name, value in given.named.items():
        if not isinstance(value, Tensor):
            continue
        found = given.labels(name)
        if found is None:
            continue
        place = 1 if name == "input" else found.ndim - 2
        if found.ndim < 2 or found.shape[place] != count:
            total = join(total, join_all(found))
            continue
        found = join_over(found, [d for d in range(found.ndim) if d != place])
        total = join(total, found.reshape(count))
    assert total is not None
    rows = total.expand(count)

    def labels(outputs: list[Tensor]) -> list[Labels]:
        return [
            rows.reshape(-1, 1) if out.ndim > 1 and out.shape[-2] == count else join_all(rows)
            for out in outputs
        ]

    return labels


def _nll(given: Given) -> Found:
    """The negative log-likelihood of classes in the second dimension, or in the only one."""
    if given["reduction"] != 0:
        total = given.everything()
        return lambda outputs: [total] * len(outputs)
    own = _leading(1, *(n for n in ("self", "grad_output", "target") if n in given.named))
    named = {k: v for k, v in given.named.items() if k != "total_weight"}
    found = own(Given(given.of, given.func, named))
    return lambda outputs: [*found(outputs[:1]), *[None] * (len(outputs) - 1)]


def _embedding(given: Given) -> Found:
    """Rows of a table, by number."""
    indices, table = given.labels("indices"), join_all(given.labels("weight"))
    total = join(None if indices is None else indices.unsqueeze(-1), table)
    return lambda outputs: [total]


def _gather(given: Given) -> Found:
    """Numbers picked along a dimension; picks that depend on examples may reach all of it."""
    values, picks = given.labels("self"), given.labels("index")
    dim, index = given["dim"], given["index"]
    if given.func.overloadpacket is aten.index_select:
        shape = [1] * max(1, given["self"].ndim)
        shape[dim] = -1
        picks = None if picks is None else picks.reshape(shape)
    if values is not None and picks is None:
        values = given.func(values, dim, index)
    elif values is not None:
        values = join_over(values, [dim])
        if given.func.overloadpacket is aten.gather:
            kept = [slice(0, n) if d != dim else slice(None) for d, n in enumerate(index.shape)]
            values = values[tuple(kept)]
    total = join(values, picks)
    return lambda outputs: [_fitting(total, out) for out in outputs]


def _index(given: Given) -> Found:
    """x[a, b, ...]: exact in what depends on no example, everything along the rest."""
    values = given.labels("self")
    indices = given["indices"]
    picks = [None if i is None else given.of(i) for i in indices]
    chosen: Labels = None
    for each in picks:
        chosen = join(chosen, each)
    if values is not None:
        loose = [d for d, each in enumerate(picks) if each is not None]
        values = join_over(values, loose).expand(given["self"].shape) if loose else values
        values = given.func(values.contiguous(), indices)
    places = [d for d, i in enumerate(indices) if i is not None]
    together = places == list(range(places[0], places[-1] + 1)) if places else True

    def labels(outputs: list[Tensor]) -> list[Labels]:
        (out,) = outputs
        if chosen is None:
            return [values]
        after = given["self"].ndim - len(indices)
        after += sum(
            1 for d, i in enumerate(indices) if i is None and (d > places[0] or not together)
        )
        after += sum(
            1 for d, i in enumerate(indices) if i is None and d < places[0] and not together
        )
        spread = chosen.reshape(*chosen.shape, *[1] * after)
        return [join(values, _fitting(spread, out))]

    return labels


def _index_put(given: Given) -> Found:
    """x[a, b, ...] = v, or += v."""
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in given["indices"]):
        return _masked_put(given)
    own, indices = given.full(given["self"]), given["indices"]
    picks = [None if i is None else given.of(i) for i in indices]
    chosen: Labels = None
    for each in picks:
        chosen = join(chosen, each)
    values = given.full(given["values"])
    if chosen is not None:
        shape = torch.zeros(own.shape, dtype=torch.uint8)[tuple(_slices(indices))].shape
        try:
            joined = join(
                values.expand(shape),
                chosen.reshape(*chosen.shape, *[1] * (len(shape) - chosen.ndim)).expand(shape),
            )
        except RuntimeError:
            joined = join(join_all(values), join_all(chosen))
        assert joined is not None
        values = joined
    total = (
        own
        if given["accumulate"] or chosen is not None
        else own.index_put(indices, torch.zeros((), dtype=torch.uint8))
    )
    for label in _present([values]):
        mask = torch.zeros(own.shape).index_put(indices, (values == label).float(), True)
        found = torch.where(mask > 0, label, 0).to(torch.uint8)
        joined = join(total, found)
        assert joined is not None
        total = joined
    loose = [d for d, each in enumerate(picks) if each is not None]
    total = join_over(total, loose)
    return lambda outputs: [total]


def _masked_put(given: Given) -> Found:
    """x[mask] = v: whether a number is written to depends on its own place in the mask."""
    mask, *more = given["indices"]
    if mask is None or more:
        total = given.everything()
        return lambda outputs: [total] * len(outputs)
    own = given.full(mask)
    own = own.reshape(*own.shape, *[1] * (given["self"].ndim - own.ndim))
    found = join(join(given.labels("self"), own), join_all(given.labels("values")))
    return lambda outputs: [found]


def _slices(indices: Sequence[Tensor | None]) -> list[Any]:
    return [slice(None) if i is None else i for i in indices]


def _scatter(given: Given) -> Found:
    """Numbers put along a dimension, by places that may depend on examples."""
    dim = given["dim"]
    names = [n for n in ("self", "src", "source") if isinstance(given.named.get(n), Tensor)]
    if given.labels("index") is None and len(names) == 2:
        return _by_labels(given, names)
    source = next(
        (given[n] for n in ("src", "source") if isinstance(given.named.get(n), Tensor)), None
    )
    total: Labels = given.labels("self")
    for each in (given["index"], source):
        found = None if each is None else given.of(each)
        if found is not None:
            if found.ndim == given["self"].ndim:
                found = join_over(found, [dim])
                shape = list(given["self"].shape)
                if any(n not in (1, shape[d]) for d, n in enumerate(found.shape)):
                    found = join_all(found)
            else:
                found = join_all(found)
            total = join(total, found)
    assert total is not None
    spread = join_over(total, [dim])
    return lambda outputs: [_fitting(spread, out) for out in outputs]


def _stacked(given: Given) -> Found:
    """Tensors one after the other."""
    parts = [given.full(value) for value in given["tensors"]]
    total = _call(given.func, {**given.named, "tensors": parts} | _no_out(given))
    return lambda outputs: [total]


def _no_out(given: Given) -> Arguments:
    if "out" not in given.named:
        return {}
    like = given["out"]
    return {"out": torch.zeros(like.shape, dtype=torch.uint8)}


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


_RULES: dict[Any, Callable[[Given], Found]] = {}


def _register(rule: Callable[[Given], Found], names: str) -> None:
    """Give some operations a rule. Not every version of torch has all of them."""
    for name in names.split():
        packet = getattr(aten, name, None)
        if packet is not None:
            _RULES[packet] = rule


_register(
    _pointwise,
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
_register(
    _by_reduction,
    """
    mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss
    """,
)
_register(_overwritten, "copy_ fill_")
_register(
    _nothing,
    """
    zero_ uniform_ normal_ bernoulli_ random_ exponential_ zeros_like ones_like empty_like
    full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full
    new_empty_strided sym_size sym_numel sym_stride is_same_size empty_strided
    """,
)
_register(
    _along,
    """
    sum mean amax amin max min argmax argmin var std var_mean std_mean linalg_vector_norm
    norm logsumexp prod any all nansum cumsum cumprod cummax cummin logcumsumexp _softmax
    _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax sort topk
    kthvalue median nanmedian mode count_nonzero aminmax glu _fft_c2c _fft_r2c _fft_c2r
    """,
)
_register(_trailing("input"), "native_layer_norm _fused_rms_norm")
_register(
    _trailing("grad_out", "input", "mean", "rstd"),
    """
    native_layer_norm_backward _fused_rms_norm_backward
    """,
)
_register(_matrices("self", "mat2"), "mm bmm")
_register(_matrices("mat1", "mat2", "self"), "addmm")
_register(_matrices("batch1", "batch2", "self"), "baddbmm")
_register(_vectors("self"), "mv")
_register(_vectors("mat", "self"), "addmv")
_register(_convolution, "convolution")
_register(_convolution_backward, "convolution_backward")
_register(_group_norm, "native_group_norm native_group_norm_backward")
_register(
    _batch_norm,
    """
    native_batch_norm _native_batch_norm_legit native_batch_norm_backward
    _batch_norm_with_update batch_norm_backward _native_batch_norm_legit_no_training
    """,
)
_register(_recurrent, "mkldnn_rnn_layer")
_register(_nll, "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward")
_register(_embedding, "embedding")
_register(_gather, "gather index_select")
_register(_index, "index _unsafe_index")
_register(_index_put, "index_put index_put_ _index_put_impl_ _unsafe_index_put")
_register(
    _scatter,
    """
    scatter scatter_ scatter_add scatter_add_ index_add index_add_ index_copy index_copy_
    scatter_reduce scatter_reduce_ index_fill index_fill_
    """,
)
_register(_stacked, "cat stack")
_register(
    _moved("self"),
    """
    repeat roll flip constant_pad_nd diag_embed pixel_shuffle pixel_unshuffle
    channel_shuffle rot90 reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d im2col col2im unfold_copy
    """,
)
_register(_moved("grad_output"), "slice_backward select_backward diagonal_backward")
_register(_moved("grad_in"), "unfold_backward")
_register(_moved("self", "src"), "slice_scatter select_scatter diagonal_scatter")
_register(
    _leading(1, "query", "key", "value", "attn_mask"),
    """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention
    """,
)
_register(
    _leading(1, "query", "key", "value", "attn_mask", "grad_out", "out", "logsumexp"),
    """
    _scaled_dot_product_flash_attention_for_cpu_backward
    """,
)
for _dims in (1, 2, 3):
    _here = _spatial(_dims)
    _register(
        _leading(_here, "self"),
        f"""
        avg_pool{_dims}d _adaptive_avg_pool{_dims}d adaptive_max_pool{_dims}d
        max_pool{_dims}d_with_indices upsample_nearest{_dims}d
        """,
    )
    _register(
        _leading(_here, "grad_output", "self", "indices"),
        f"""
        avg_pool{_dims}d_backward _adaptive_avg_pool{_dims}d_backward
        adaptive_max_pool{_dims}d_backward max_pool{_dims}d_with_indices_backward
        """,
    )
    _register(
        _leading(_here, "grad_output", "self"),
        f"""
        upsample_nearest{_dims}d_backward reflection_pad{_dims}d_backward
        replication_pad{_dims}d_backward
        """,
    )
for _kind, _dims in (("linear1d", 1), ("bilinear2d", 2), ("bicubic2d", 2), ("trilinear3d", 3)):
    _register(_leading(_spatial(_dims), "self"), f"upsample_{_kind}")
    _register(_leading(_spatial(_dims), "grad_output"), f"upsample_{_kind}_backward")
_register(_leading(1, "input", "grid"), "grid_sampler_2d grid_sampler_3d")
_register(
    _leading(1, "grad_output", "input", "grid"),
    """
    grid_sampler_2d_backward grid_sampler_3d_backward
    """,
)


_register(_packed, "_pack_padded_sequence")
_register(_unpacked, "_pad_packed_sequence")
