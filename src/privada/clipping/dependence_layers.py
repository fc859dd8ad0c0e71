"""What the results of layers depend on: products of matrices, convolutions, normalisations."""

from collections.abc import Callable

from torch import Tensor

from privada.clipping.dependence_given import Found, Given, Rules, fitting, register
from privada.clipping.labels import Labels, join, join_all, join_over


def _backward(given: Given) -> bool:
    return "backward" in given.func._schema.name


def _matrices(first: str, second: str, added: str = "") -> Callable[[Given], Found]:
    """Products of matrices: rows of the one, columns of the other."""

    def rule(given: Given) -> Found:
        total: Labels = given.labels(added) if added else None
        left, right = given.labels(first), given.labels(second)
        if left is not None:
            total = join(total, join_over(left, [-1]))
        if right is not None:
            total = join(total, join_over(right, [-2]))
        return lambda outputs: [fitting(total, out) for out in outputs]

    return rule


def _vectors(matrix: str, added: str = "") -> Callable[[Given], Found]:
    """The product of a matrix and a vector."""

    def rule(given: Given) -> Found:
        total = join_all(given.labels("vec"))
        rows = given.labels(matrix)
        if rows is not None:
            total = join(total, join_over(rows, [-1])[..., 0])
        total = join(total, given.labels(added) if added else None)
        return lambda outputs: [fitting(total, out) for out in outputs]

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


RULES: Rules = {}
register(RULES, _matrices("self", "mat2"), "mm bmm")
register(RULES, _matrices("mat1", "mat2", "self"), "addmm")
register(RULES, _matrices("batch1", "batch2", "self"), "baddbmm")
register(RULES, _vectors("self"), "mv")
register(RULES, _vectors("mat", "self"), "addmv")
register(RULES, _convolution, "convolution")
register(RULES, _convolution_backward, "convolution_backward")
register(RULES, _group_norm, "native_group_norm native_group_norm_backward")
register(
    RULES,
    _batch_norm,
    """
    native_batch_norm _native_batch_norm_legit native_batch_norm_backward
    _batch_norm_with_update batch_norm_backward _native_batch_norm_legit_no_training
    """,
)
register(RULES, _recurrent, "mkldnn_rnn_layer")
