"""Where the examples of a batch are in a tensor."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExampleLayout:
    """Where the examples are in a tensor: its first dimension, alone or outermost in a product
    with others; another dimension; or innermost in the first. `expand` says that the operation was
    given something that no example owns, and is run once for each: in a new first dimension, or
    instead of a first dimension of one.
    """

    dimension: int = 0
    innermost: bool = False
    expand: Literal["", "new", "instead"] = ""

    def arrange(self, values: Tensor, examples: int, tail: int) -> Tensor:
        """Return values as (examples, positions, *tail), `tail` trailing dimensions untouched."""
        rest = values.shape[values.ndim - tail :]
        if examples > 1 and self.innermost:
            values = values.reshape(-1, examples, *values.shape[1:]).movedim(1, 0)
        elif examples > 1 and self.dimension:
            values = values.movedim(self.dimension, 0)
        if values.ndim == tail + 2 and values.shape[0] == examples:
            return values
        return (
            values.reshape(examples, -1, *rest)
            if values.numel()
            else values.new_zeros((examples, 0, *rest))
        )


FIRST = ExampleLayout()


def candidates(shape: torch.Size, examples: int, tail: int) -> list[ExampleLayout]:
    """Return the layouts that a shape allows, for two examples or more."""
    lead = len(shape) - tail
    if lead < 1:
        return []
    found = []
    if shape[0] and shape[0] % examples == 0:
        found.append(FIRST)
        if shape[0] > examples:
            found.append(ExampleLayout(innermost=True))
    return found + [
        ExampleLayout(d) for d in range(1, lead) if shape[d] and shape[d] % examples == 0
    ]
