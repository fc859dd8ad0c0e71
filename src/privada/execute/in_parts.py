"""A batch in several parts, one after another."""

from dataclasses import dataclass
from functools import reduce
from operator import add

from privada.core.randomness import RandomSource
from privada.core.validation import integer
from privada.core.values import ClippedSum
from privada.preconditioning import FlatScaling
from privada.query.executor import Draw, Executor


@dataclass(frozen=True)
class InParts:
    """Computes each batch in a number of parts, whose clipped sums are added.

    Less memory for large batches of records that are costly to load; and the least example of
    what data-parallel and federated training rest on: sums over disjoint units add up.

    Args:
        parts: how many; rows of one unit or of one micro-batch stay together.

    Guarantee: the sum is that of the whole batch, up to rounding, with the same sensitivity.

    Example:
        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3, noise_multiplier=1.0,
        ...     delta=1e-3, executor=pv.execute.InParts(2),
        ... ).fit()

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Section 3.1, on lots of several batches.
    """

    parts: int = 2

    def __post_init__(self) -> None:
        integer("parts", self.parts)

    def over(self, local: Executor) -> Executor:
        """Return the executor that asks the local one for each part."""
        return _InParts(local, self.parts)

    def describe(self) -> str:
        """Return it in words."""
        return f"each batch in {self.parts} parts"


@dataclass(frozen=True)
class _InParts:
    local: Executor
    parts: int

    def clipped_sum(self, drawn: Draw, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum over the parts."""
        parts = (self.local.clipped_sum(part, scaling, clip) for part in drawn.split(self.parts))
        return reduce(add, parts)

    def squared_sum(self, bound: float, rng: RandomSource) -> ClippedSum:
        """Return the local executor's sum, which is made in parts by itself."""
        return self.local.squared_sum(bound, rng)

    def features(self) -> int:
        """Return how many features a record has."""
        return self.local.features()

    def feature_sum(self, rng: RandomSource) -> ClippedSum:
        """Return the local executor's sum, which is made in parts by itself."""
        return self.local.feature_sum(rng)

    def recheck(self) -> None:
        """Let the local executor try the model again."""
        self.local.recheck()
