"""What results depend on where numbers are moved, picked, or put elsewhere."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from privada.clipping.dependence_given import (
    Arguments,
    Found,
    Given,
    Rules,
    aten,
    fitting,
    register,
)
from privada.clipping.labels import NOBODY, Labels, join, join_all, join_over


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
    return lambda outputs: [fitting(total, out) for out in outputs]


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
        return [join(values, fitting(spread, out))]

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
    return lambda outputs: [fitting(spread, out) for out in outputs]


RULES: Rules = {}
register(RULES, _embedding, "embedding")
register(RULES, _gather, "gather index_select")
register(RULES, _index, "index _unsafe_index")
register(RULES, _index_put, "index_put index_put_ _index_put_impl_ _unsafe_index_put")
register(
    RULES,
    _scatter,
    """
    scatter scatter_ scatter_add scatter_add_ index_add index_add_ index_copy index_copy_
    scatter_reduce scatter_reduce_ index_fill index_fill_
    """,
)
register(RULES, _stacked, "cat stack")
register(
    RULES,
    _moved("self"),
    """
    repeat roll flip constant_pad_nd diag_embed pixel_shuffle pixel_unshuffle
    channel_shuffle rot90 reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d im2col col2im unfold_copy
    """,
)
register(RULES, _moved("grad_output"), "slice_backward select_backward diagonal_backward")
register(RULES, _moved("grad_in"), "unfold_backward")
register(RULES, _moved("self", "src"), "slice_scatter select_scatter diagonal_scatter")
