"""Which example each number of a forward and a backward pass depends on.

Every number has a label: none, one example, or several. While a pass runs, the labels of each
operation's results follow from those of its arguments and from what the operation can reach, not
from the values: `x.amax().clamp(min=1)` depends on all examples even where the clamp hides it, and
so does a branch of `torch.where` that no value takes. What no rule knows depends on everything that
it was given.

Labels live beside the memory that they are about, so that views, writes in place and results that
are written to given memory need no rules of their own. Values that a program reads, such as by
`item()`, leave no trace here; whoever relies on labels must refuse such reads.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from privada.clipping.dependence_given import Arguments, Found, Given
from privada.clipping.dependence_rules import ALL_RULES
from privada.clipping.labels import SEVERAL, Labels, join, join_all, join_over, labels_of_rows


class _Shadow:
    """The labels of one storage, one for each `unit` of bytes."""

    def __init__(self, storage: torch.UntypedStorage, unit: int) -> None:
        self.storage, self.unit = storage, unit  # kept alive, so that its address stays its own
        self.labels = torch.zeros(storage.nbytes() // unit, dtype=torch.uint8)

    def of(self, tensor: Tensor) -> Tensor:
        """Return the labels of a tensor's numbers in this storage, last dimension the parts."""
        size = tensor.element_size()
        if size < self.unit:
            self.labels = self.labels.repeat_interleave(self.unit // size)
            self.unit = size
        parts = size // self.unit
        stride = [s * parts for s in tensor.stride()]
        return self.labels.as_strided(
            (*tensor.shape, parts), (*stride, 1), tensor.storage_offset() * parts
        )


class Dependence(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows which example each number depends on while it is entered.

    Edge cases: tensors without ordinary memory, such as sparse ones, have no labels; an operation
    on one of them raises TypeError.

    Example:
        >>> import torch
        >>> from privada.clipping.dependence import Dependence
        >>> x = torch.ones(3, 2)
        >>> with (seen := Dependence()):
        ...     seen.own(x)
        ...     alone, mixed = 2 * x, x - x.mean(dim=0)
        >>> seen.labels(alone)[:, 0].tolist(), seen.labels(mixed)[:, 0].tolist()
        ([1, 2, 3], [255, 255, 255])
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shadows: dict[int, _Shadow] = {}

    # ------------------------------------------------------------------ labels

    def own(self, tensor: Tensor, first: int = 1, count: int = SEVERAL) -> None:
        """Say that row i of a tensor belongs to example `first` + i, modulo `count` examples."""
        with _disable_current_modes():
            rows = labels_of_rows(len(tensor), first, count)
            self.write(tensor, rows.view(-1, *[1] * (tensor.ndim - 1)))

    def labels(self, tensor: Tensor) -> Labels:
        """Return the label of each number of a tensor, None if none depends on an example."""
        shadow = self._shadows.get(_key(tensor))
        if shadow is None:
            return None
        found = shadow.of(tensor)
        found = found[..., 0] if found.shape[-1] == 1 else join_over(found, [-1])[..., 0]
        return found if bool(found.any()) else None

    def write(self, tensor: Tensor, labels: Labels) -> None:
        """Give the numbers of a tensor other labels."""
        shadow = self._shadows.get(_key(tensor))
        if shadow is None:
            if labels is None or tensor.numel() == 0:
                return
            shadow = _Shadow(tensor.untyped_storage(), tensor.element_size())
            self._shadows[_key(tensor)] = shadow
        place = shadow.of(tensor)
        if labels is None:
            place.zero_()
        else:
            place.copy_(labels.unsqueeze(-1))

    # ------------------------------------------------------------------ following

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and give its results their labels."""
        kwargs = kwargs or {}
        named = _named(func, args, kwargs)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            known = any(
                _key(value) in self._shadows
                for value in tree_leaves((args, kwargs))
                if isinstance(value, Tensor)
            )
            # before the operation, which may write over them
            found = Given(self.labels, func, named).follow(ALL_RULES) if known else None
        result = func(*args, **kwargs)
        if found is not None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._note(func, named, result, found)
        return result

    def _note(self, func: Any, named: Arguments, result: Any, found: Found) -> None:
        """Write down the labels of what an operation returned, and of what it wrote to."""
        if torch.Tag.inplace_view in func.tags:
            return  # `transpose_` and its like move no number, and labels stay with the numbers
        outputs = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        written = _writes(func)
        if not written and self._are_views(outputs, named):
            return  # they have the labels of what they are views of
        for place, labels in zip(outputs, found(outputs), strict=True):
            self.write(place, _shaped(labels, place))
        returned = {id(value) for value in outputs}
        for name in written:
            for value in tree_leaves(named[name]):
                if isinstance(value, Tensor) and id(value) not in returned:
                    self.write(value, _shaped(self.all_of(named), value))

    @staticmethod
    def _are_views(outputs: list[Tensor], named: Arguments) -> bool:
        """Return whether results have the memory of an argument, which not all schemas say."""
        given = {_key(v) for v in tree_leaves(list(named.values())) if isinstance(v, Tensor)}
        return bool(outputs) and all(_key(out) in given for out in outputs)

    def all_of(self, named: Arguments) -> Labels:
        """Return the label of what depends on all arguments."""
        total: Labels = None
        for value in tree_leaves(list(named.values())):
            if isinstance(value, Tensor):
                total = join(total, join_all(self.labels(value)))
        return total


def _key(tensor: Tensor) -> int:
    if tensor.layout != torch.strided:
        raise TypeError(f"dependence cannot be followed through {tensor.layout}")
    return int(tensor.untyped_storage()._cdata)


def _shaped(labels: Labels, like: Tensor) -> Labels:
    return None if labels is None else labels.expand(like.shape)


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Return the arguments of an operation by name, defaults included."""
    schema = func._schema.arguments
    named = {a.name: a.default_value if a.has_default_value() else None for a in schema}
    named.update(zip((a.name for a in schema), args, strict=False))
    named.update(kwargs)
    return named


def _writes(func: Any) -> set[str]:
    """Return the names of the arguments that an operation writes to."""
    return {
        a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    }
