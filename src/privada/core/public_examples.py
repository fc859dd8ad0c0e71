"""Public examples: data that the guarantee does not cover, used to shape methods."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from privada.core.validation import integer


@dataclass(frozen=True, eq=False)
class Public:
    """Examples that are public: methods may take gradients of them without paying.

    Args:
        data: what `Trainer` takes as data: a pair of arrays, tensors or sparse matrices, or a
            map-style dataset.
        batch_size: how many of them a public gradient is averaged over, drawn afresh for each;
            None for all of them.
        seed: decides which ones. It protects nothing, since they are public.

    Guarantee: none for these examples. Whoever is in them gets no protection, so they must not
    come from the private records; the statement says that they were declared public.

    Edge cases: a batch size beyond the number of examples means all of them. Examples that are the
    private records, the same memory or subset, or copies of most of them, are refused by a run.

    Example:
        >>> import numpy as np, privada as pv
        >>> public = pv.Public((np.zeros((40, 3)), np.zeros(40, dtype=int)), batch_size=8)
        >>> public.batch_size
        8

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Section 3, Option 1.
    """

    data: Any
    batch_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            integer("batch_size", self.batch_size)
        integer("seed", self.seed, least=0)

    def __repr__(self) -> str:
        return f"Public(batch_size={self.batch_size})"


def as_public(data: Any) -> Public:
    """Return public examples as they are, and anything else as public examples."""
    return data if isinstance(data, Public) else Public(data)


class PublicSide(Protocol):
    """Takes gradients of public examples at a model's current parameters."""

    def check(self, public: Public, *, declared: bool = True) -> None:
        """Take the gradient of a few examples, and raise what that raises.

        Examples that were declared public are refused if they are the private records.
        """

    def average(self, public: Public, number: int) -> Tensor:
        """Return the average gradient of public batch `number` as one vector."""

    def each(self, public: Public, number: int) -> Tensor:
        """Return the gradients of the examples of public batch `number` as rows."""

    def squares(self, public: Public, number: int) -> Tensor:
        """Return the average square of each coordinate over the gradients of a public batch."""
