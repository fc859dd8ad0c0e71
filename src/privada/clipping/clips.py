"""The ways of bounding what one record adds to a sum.

A clipping is two choices: how one gradient is bounded, and whether gradients are averaged over
micro-batches first. From them follow the sensitivity of the sum, which noise is scaled to, and the
number of its terms, which it is divided by.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from privada.clipping.projection import Ellipsoid
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource, integers
from privada.core.validation import integer, positive
from privada.preconditioning import FlatScaling

# Beyond these, float32 would round what is divided by gamma by more than the engines allow for.
_LEAST_GAMMA, _LARGEST_GAMMA = 1e-6, 1e6


@runtime_checkable
class Bound(Protocol):
    """How one gradient is bounded."""

    def sum_of(self, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
        """Return the sum of rows, each whitened and with a norm of at most `clip` afterwards.

        A row that is not finite counts as zero.
        """


@runtime_checkable
class ByNorm(Bound, Protocol):
    """A bound that multiplies a gradient by a factor, for which its norm is all one needs."""

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """Return factors of at most one, given upper bounds on the norms of whitened gradients."""

    def finish_(self, total: Tensor, clip: float) -> Tensor:
        """Multiply a sum of rescaled gradients in place by what all of them have in common."""


@dataclass(frozen=True)
class Threshold:
    """Shortens a gradient to the clip norm where it is longer."""

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """Return min(1, clip / norm)."""
        return clip / norms.clamp(min=clip)

    def finish_(self, total: Tensor, clip: float) -> Tensor:
        """Return the sum as it is."""
        return total

    def sum_of(self, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
        """Return the sum of the bounded rows."""
        return _rescaled(self, rows, scaling, clip)

    def __repr__(self) -> str:
        return "threshold()"


@dataclass(frozen=True)
class Automatic:
    """Divides a gradient by its own norm and a little more."""

    gamma: float

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """Return gamma / (norm + gamma).

        A factor above one, such as clip / (norm + gamma) would often be, could make one of the
        numbers that a short gradient is the product of overflow.
        """
        return self.gamma / (norms + self.gamma)

    def finish_(self, total: Tensor, clip: float) -> Tensor:
        """Multiply by clip / gamma, in two steps of which neither overflows."""
        return total.mul_(1 / self.gamma).mul_(clip)

    def sum_of(self, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
        """Return the sum of the bounded rows."""
        return _rescaled(self, rows, scaling, clip)

    def __repr__(self) -> str:
        return f"automatic(gamma={self.gamma:g})"


def factors_in(bound: ByNorm, norms: Tensor, clip: float, dtype: torch.dtype) -> Tensor:
    """Return the factors of a bound in a type, none rounded up by more than its eps."""
    factors = bound.factors(norms, clip)
    # below the smallest normal number a factor could be rounded up by much
    return torch.where(factors < torch.finfo(dtype).tiny, 0.0, factors).to(dtype)


def _rescaled(bound: ByNorm, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
    """Return the sum of whitened rows, each times its factor."""
    if scaling.shift is not None:
        rows = rows - scaling.shift
    if scaling.scale is not None:
        rows = rows / scaling.scale
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    finite = torch.isfinite(norms)
    if not bool(finite.all()):
        rows = torch.where(finite[:, None], rows, 0.0)
        norms = torch.where(finite, norms, 0.0)
    return bound.finish_(factors_in(bound, norms, clip, rows.dtype) @ rows, clip)


@dataclass(frozen=True)
class Clipping:
    """How a sum is made in which no record counts for much: a bound, over micro-batches or not.

    `bound` says how one gradient is bounded. With a `size`, the gradients of about so many records
    are averaged and the averages are bounded. `by_unit` says that the rows of a unit are averaged
    and bounded together. `threshold`, `automatic`, `ellipsoid` and `microbatches` make the usual
    ones.

    Guarantee: adding or removing one record moves the sum by at most `sensitivity(clip)` in
    Euclidean norm, in the whitened space: by `clip` where records are bounded one by one, and by
    twice that where averages are, one of which a record can turn round.

    Edge cases: a gradient or an average that is not finite counts as zero. An empty batch gives
    zero.

    Example:
        >>> from privada.clipping import microbatches, threshold
        >>> threshold().sensitivity(0.5), threshold().terms(64)
        (0.5, 64)
        >>> microbatches(4).sensitivity(0.5), microbatches(4).terms(64)
        (1.0, 16.0)

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """

    bound: Bound
    size: int | None = None
    by_unit: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.bound, type) or not isinstance(self.bound, Bound):
            raise ArgumentError(
                f"Expected bound to be a way of bounding a gradient, got bound={self.bound!r}. "
                "Use threshold(), automatic(), ellipsoid() or microbatches(size)."
            )
        if self.size is not None:
            integer("size", self.size, remedy="It is the number of records in a micro-batch.")
            if self.by_unit:
                raise ArgumentError(
                    f"Expected a clipping of single units with groups, got micro-batches of "
                    f"{self.size}. Use threshold(), automatic() or ellipsoid()."
                )

    @cached_property
    def by_norm(self) -> ByNorm | None:
        """The bound, if norms of single records' gradients are all that it needs."""
        bound = self.bound
        alone = self.size is None and not self.by_unit
        return bound if alone and isinstance(bound, ByNorm) else None

    def of_units(self) -> "Clipping":
        """Return the same for units of several rows: their average gradient is what is bounded."""
        return replace(self, by_unit=True)

    def sensitivity(self, clip: float) -> float:
        """Return by how much one record more or less can move the sum."""
        return clip if self.size is None else 2 * clip

    def terms(self, batch_size: float) -> float:
        """Return the expected number of terms of the sum, for an expected number of records.

        Raises:
            ArgumentError: a micro-batch is larger than a batch.
        """
        if self.size is None:
            return batch_size
        if self.size > batch_size:
            raise ArgumentError(
                f"Expected size <= batch_size ({batch_size:g}), got size={self.size}. Take smaller "
                "micro-batches, or larger batches."
            )
        return batch_size / self.size

    def deal(self, count: int, batch_size: float, rng: RandomSource) -> Tensor | None:
        """Return the group of each of `count` records; None if each is a group by itself.

        Each record's group is drawn by itself, uniformly from ceil(batch_size / size), so that
        whether a record is there tells nothing about the groups of others.
        """
        if self.size is None or self.size == 1:
            return None
        return torch.from_numpy(integers(rng, math.ceil(self.terms(batch_size)), count))

    def add_rows(
        self,
        total: Tensor,
        rows: Iterable[Tensor],
        groups: Tensor | None,
        scaling: FlatScaling,
        clip: float,
    ) -> None:
        """Add the bounded sum of gradients that come as rows, some at a time.

        `groups` has the micro-batch or the unit of each row, ascending. Without it each row is a
        group by itself.
        """
        if groups is not None and (self.by_unit or self.size is not None):
            rows = averages(rows, groups)
        for some in rows:
            with torch.autocast(total.device.type, enabled=False):
                total += self.bound.sum_of(some, scaling, clip)

    def __repr__(self) -> str:
        if self.size is None:
            return repr(self.bound)
        micro = f"microbatches({self.size})"
        return micro if self.bound == Threshold() else f"{self.bound!r} of {micro}"


def averages(rows: Iterable[Tensor], groups: Tensor) -> Iterator[Tensor]:
    """Yield the averages over rows of one group, in float64, as soon as a group is complete."""
    start = 0
    held: tuple[int, Tensor, Tensor] | None = None
    for some in rows:
        here = groups[start : start + len(some)].to(some.device)
        start += len(some)
        found, places, counts = torch.unique_consecutive(
            here, return_inverse=True, return_counts=True
        )
        sums = torch.zeros((len(found), some.shape[1]), dtype=torch.float64, device=some.device)
        sums.index_add_(0, places, some.double())
        if held is not None and held[0] == int(found[0]):
            sums[0] += held[1]
            counts[0] += held[2]
        elif held is not None:
            yield (held[1] / held[2])[None]
        if len(found) > 1:
            yield sums[:-1] / counts[:-1, None]
        held = int(found[-1]), sums[-1].clone(), counts[-1]
    if held is not None:
        yield (held[1] / held[2])[None]


def threshold() -> Clipping:
    """Return the ordinary clipping: u min(1, clip / |u|) for each whitened gradient u.

    Guarantee: one record moves the sum by at most `clip`.

    Edge cases: a gradient that is not finite counts as zero.

    Example:
        >>> from privada.clipping import threshold
        >>> threshold(), threshold().sensitivity(0.5)
        (threshold(), 0.5)

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """
    return Clipping(Threshold())


def automatic(gamma: float = 0.01) -> Clipping:
    """Return automatic clipping: u clip / (|u| + gamma) for each whitened gradient u.

    Every gradient is brought to almost the same length, so the clip norm only multiplies the
    learning rate and need not be tuned. `gamma` keeps gradients shorter than itself from being
    blown up.

    Guarantee: one record moves the sum by less than `clip`. The engine puts an upper bound on |u|
    in the place of |u|, so this holds with rounding.

    Edge cases: a gradient of zero stays zero; one that is not finite counts as zero, and so does
    one whose norm is above 1e36 gamma or so, in float32.

    Example:
        >>> from privada.clipping import automatic
        >>> automatic(), automatic(0.1).sensitivity(0.5)
        (automatic(gamma=0.01), 0.5)

    Reference: Bu, Wang, Zha and Karypis (2023), Automatic Clipping: Differentially Private Deep
    Learning Made Easier and Stronger (AUTO-S).
    """
    remedy = "The paper's 0.01 serves for most models."
    positive("gamma", gamma, remedy)
    if not _LEAST_GAMMA <= gamma <= _LARGEST_GAMMA:
        raise ArgumentError(
            f"Expected gamma in [{_LEAST_GAMMA:g}, {_LARGEST_GAMMA:g}], got gamma={gamma!r}. "
            f"{remedy}"
        )
    return Clipping(Automatic(float(gamma)))


def ellipsoid() -> Clipping:
    """Return clipping by projection: the nearest point of the ellipsoid {g : |g / scale| <= clip}.

    Where clipping in the whitened space shortens a gradient and keeps its whitened direction, the
    projection takes most from coordinates with small scales: p_j = g_j / (1 + l / scale_j^2), with
    the multiplier l >= 0 that brings p to the surface. A shift is subtracted first. What is summed
    is p / scale. With equal scales it is the same as `threshold`.

    Guarantee: one record moves the sum by at most `clip`: whatever rounding leaves outside the
    ellipsoid is rescaled.

    Edge cases: a gradient that is not finite counts as zero. Gradients are made for each record, a
    few at a time, which takes more time and memory than clipping by the norm.

    Example:
        >>> import torch
        >>> from privada.clipping import Batch, ellipsoid, make_engine
        >>> from privada.core.tensors import Parameters
        >>> from privada.preconditioning import FlatScaling
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> batch = Batch(torch.tensor([[3.0, 4.0]]), torch.ones(1, 1))
        >>> engine = make_engine(
        ...     "auto", model, lambda out, y: (out * y).sum(), Parameters(model), batch,
        ...     clipping=ellipsoid(),
        ... )
        >>> found = engine.clipped_sum(batch, FlatScaling(torch.tensor([1.0, 10.0]), None), 1.0)
        >>> [round(x, 3) for x in found.value.tolist()]
        [0.92, 0.391]

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithms 1 and 2, line 5.
    """
    return Clipping(Ellipsoid())


def microbatches(size: int) -> Clipping:
    """Return clipping of averages over about `size` records, as older private training did it.

    Each drawn record goes to one of ceil(batch_size / size) groups, chosen uniformly and by itself
    from secret bits. The average gradient of each group, over the members it has, is whitened and
    clipped, and the clipped averages are summed; the release is divided by batch_size / size. This
    is here to reproduce published results: clipping each record is better at equal privacy.

    Guarantee: a record is in one group, whose average it can turn round, and the groups of others
    do not depend on it: one record moves the sum by at most 2 clip, and that is what noise is
    scaled to.

    Edge cases: a group whose average is not finite counts as zero; an empty one has no term. A
    record on which the model fails is left out of its group. A size of 1 makes each record a group
    by itself: the same sum as `threshold`, with twice the noise.

    Example:
        >>> from privada.clipping import microbatches
        >>> microbatches(4), microbatches(4).sensitivity(0.5), microbatches(4).terms(64)
        (microbatches(4), 1.0, 16.0)

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Appendix B, where averages over 4 records are clipped.
    """
    return Clipping(Threshold(), integer("size", size, remedy="It counts records."))


THRESHOLD = threshold()


def checked(clipping: Any) -> Clipping:
    """Return `clipping` if it is one."""
    if not isinstance(clipping, Clipping):
        raise ArgumentError(
            f"Expected clipping to be a Clipping, got clipping={clipping!r}. Use threshold(), "
            "automatic(), ellipsoid() or microbatches(size) of privada.clipping."
        )
    return clipping
