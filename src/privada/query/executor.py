"""Where clipped sums are computed: a draw goes in, a sum of bounded sensitivity comes out."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from privada.core.randomness import RandomSource
from privada.core.ranks import Ranks
from privada.core.values import ClippedSum
from privada.data import Indices
from privada.preconditioning import FlatScaling


@dataclass(frozen=True)
class Draw:
    """The rows that one look takes, and which of them are bounded together. Private: never shown.

    `groups` has the number of the unit or of the micro-batch that each row is in; None if each row
    is bounded by itself.

    Example:
        >>> import numpy as np, torch
        >>> from privada.query.executor import Draw
        >>> drawn = Draw(np.array([3, 5, 8]), torch.tensor([0, 0, 1]))
        >>> [part.rows.tolist() for part in drawn.split(2)]
        [[3, 5], [8]]
    """

    rows: Indices
    groups: Tensor | None = None

    def split(self, parts: int) -> list["Draw"]:
        """Return disjoint parts; what is bounded together stays together."""
        labels = np.arange(len(self.rows)) if self.groups is None else self.groups.numpy()
        chosen = [np.flatnonzero(labels % parts == part) for part in range(parts)]
        return [
            Draw(
                self.rows[places],
                None if self.groups is None else self.groups[torch.from_numpy(places)],
            )
            for places in chosen
        ]

    def __repr__(self) -> str:
        return "Draw(<private>)"


class Executor(Protocol):
    """Computes clipped sums over drawn rows, at the model's current parameters.

    Guarantee: adding or removing one unit moves a sum by at most the sensitivity that the sum
    carries. An executor neither draws, pays nor adds noise: these happen once, whatever computes
    the sums.
    """

    def clipped_sum(self, drawn: Draw, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the scaled gradients of a draw, each bounded by the clip norm."""

    def squared_sum(self, bound: float, rng: RandomSource) -> ClippedSum:
        """Return sum_i min(g_ij^2, bound) over all units, coordinate by coordinate.

        `rng` chooses the rows of units that have more than a look takes.
        """

    def features(self) -> int:
        """Return how many features a record has; raise if its inputs are not one row of numbers."""

    def feature_sum(self, rng: RandomSource) -> ClippedSum:
        """Return the sum over all units of x^2 / |x^2|, and of how large their rows are.

        `rng` chooses the rows of units that have more than a look takes.
        """

    def recheck(self) -> None:
        """Try the model on dummy examples again; raise if it does not keep examples apart."""


class Execution(Protocol):
    """A choice of where sums are computed, made before the records are known.

    Example:
        >>> import privada as pv
        >>> pv.execute.InParts(2).describe()
        'each batch in 2 parts'
    """

    def over(self, local: Executor) -> Executor:
        """Return the executor of a run, given the one that computes sums in this process."""

    def describe(self) -> str:
        """Return it in words."""


@runtime_checkable
class Together(Execution, Protocol):
    """A choice by which several processes compute the sums of one run."""

    def join(self) -> Ranks | None:
        """Return the processes, this one included; None where each is a run by itself."""


@runtime_checkable
class Followed(Protocol):
    """The executor of a process that does not lead: it computes what it is asked for."""

    def answer(self, message: Any) -> None:
        """Compute a part of what rank 0 asks for, and send it there."""


@runtime_checkable
class Led(Protocol):
    """The executor of rank 0, which the others can be asked by while they listen."""

    def others_listen(self, listening: bool) -> None:
        """Say whether all others wait to be asked, at the same parameters."""
