"""What an operation is given, and the rules by which its results depend on that.

A rule errs towards dependence: the labels that it gives are of everything that could matter to a
result for some values. Operations without a rule, whose results torch does not say to be taken
number by number, depend on everything that they are given.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from privada.clipping.labels import Labels, join, join_all

aten = torch.ops.aten

Arguments = dict[str, Any]
Found = Callable[[list[Tensor]], Iterable[Labels]]
Rules = dict[Any, Callable[["Given"], Found]]


class Given:
    """The arguments of one operation, and the labels that its results will have."""

    def __init__(self, labels_of: Callable[[Tensor], Labels], func: Any, named: Arguments) -> None:
        self.of, self.func, self.named = labels_of, func, named
        self._outputs_only = {a.name for a in func._schema.arguments if a.is_out}

    def follow(self, rules: Rules) -> Found:
        """Return a function from the results to their labels, by the rule of the operation."""
        if all(self.of(value) is None for value in self.tensors()):
            return nothing(self)
        packet = self.func.overloadpacket
        rule = rules.get(packet)
        if rule is None and torch.Tag.pointwise in self.func.tags:
            rule = pointwise
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


def pointwise(given: Given) -> Found:
    """Results depend on the numbers in their own place, with broadcasting."""
    total: Labels = None
    for value in given.tensors():
        total = join(total, given.of(value))
    return lambda outputs: [fitting(total, out) for out in outputs]


def fitting(labels: Labels, out: Tensor) -> Labels:
    """Return labels that broadcast to a result; of everything if they do not."""
    if labels is None:
        return None
    try:
        return labels.expand(out.shape)
    except RuntimeError:
        return join_all(labels)


def nothing(given: Given) -> Found:
    """Results have the shape of an argument and nothing of its values."""
    return lambda outputs: [None] * len(outputs)


def register(rules: Rules, rule: Callable[[Given], Found], names: str) -> None:
    """Give some operations a rule. Not every version of torch has all of them."""
    for name in names.split():
        packet = getattr(aten, name, None)
        if packet is not None:
            rules[packet] = rule
