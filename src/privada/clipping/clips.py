"""The ways of bounding what one record adds to a sum.

A clipping is three independent choices: how one gradient is bounded, whether gradients are averaged
over micro-batches first, and how the clip norm follows from releases. From them follow the
sensitivity of the sum, which noise is scaled to, and the number of its terms, which it is divided
by.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from privada.clipping.averages import averages
from privada.clipping.bounds import Automatic, Bound, ByNorm, Threshold, whitened_norms
from privada.clipping.layer_bounds import PerLayer, checked_shares
from privada.clipping.norm_controls import (
    CONSTANT,
    Adaptive,
    InTurns,
    NormControl,
    State,
    checked_control,
)
from privada.clipping.projection import Ellipsoid
from privada.core.deprecation import renamed, renamed_argument
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource, integers
from privada.core.tensors import Layout
from privada.core.validation import integer, positive, shown
from privada.core.values import ClippedSum, Release
from privada.preconditioning import FlatScaling

# Beyond these, float32 would round what is divided by gamma by more than the engines allow for.
_LEAST_GAMMA, _LARGEST_GAMMA = 1e-6, 1e6


@dataclass(frozen=True)
class Clipping:
    """How a sum is made in which no record counts for much.

    `bound` says how one gradient is bounded. With a `size`, the gradients of about so many records
    are averaged and the averages are bounded. `by_unit` says that the rows of a unit are averaged
    and bounded together. `control` says how the clip norm follows from releases. `threshold`,
    `automatic`, `ellipsoid`, `per_layer`, `microbatches`, `in_turns` and `adaptive` make the usual
    ones.

    The clip norm of each release comes from a state: `init` gives the first, `norm` reads the clip
    norm off it, `seen` gives the next one after a release.

    Guarantee: adding or removing one record moves the sum by at most `sensitivity(clip)` in
    Euclidean norm, in the whitened space: by `clip` where records are bounded one by one, and by
    twice that where averages are, one of which a record can turn round. Extra coordinates that a
    control asks for are counted in.

    Edge cases: a gradient or an average that is not finite counts as zero. An empty batch gives
    zero.

    Example:
        >>> from privada.clipping import microbatches, threshold
        >>> threshold().sensitivity(0.5), threshold().expected_terms(64)
        (0.5, 64)
        >>> microbatches(4).sensitivity(0.5), microbatches(4).expected_terms(64)
        (1.0, 16.0)
        >>> clipping = threshold()
        >>> clipping.norm(clipping.init(0.5))
        0.5

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1
    (arXiv 1607.00133).
    """

    bound: Bound
    size: int | None = None
    by_unit: bool = False
    control: NormControl = CONSTANT

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
            if checked_control(self.control).coordinates:
                raise ArgumentError(
                    f"Expected a clipping of single records with {self.control.describe()}, got "
                    f"micro-batches of {self.size}: a count of averages would not tell how long "
                    "gradients are. Use threshold(), automatic() or ellipsoid()."
                )
        checked_control(self.control)

    @cached_property
    def by_norm(self) -> ByNorm | None:
        """The bound, if norms of single records' gradients are all that it needs."""
        bound = self.bound
        alone = self.size is None and not self.by_unit
        return bound if alone and isinstance(bound, ByNorm) else None

    def on(self, layout: Layout) -> "Clipping":
        """Return the same for a model with parameters of a layout, which layers are found in."""
        if not isinstance(self.bound, PerLayer):
            return self
        return replace(self, bound=self.bound.on(layout))

    def of_units(self) -> "Clipping":
        """Return the same for units of several rows: their average gradient is what is bounded."""
        return replace(self, by_unit=True)

    def init(self, clip: float) -> State:
        """Return the state before the first release, given the clip norm to start with."""
        return self.control.init(clip)

    def norm(self, state: State) -> float:
        """Return the clip norm of the next release."""
        return self.control.norm(state)

    def seen(self, release: Release, state: State) -> State:
        """Return the state after a release, from which the next clip norm follows."""
        return self.control.seen(release, state)

    def calibrated(self, noise_multiplier: float, batch_size: float) -> "Clipping":
        """Return the same for a noise multiplier and an expected number of units.

        A control that asks for extra coordinates finds its share of the noise by them.
        """
        return replace(self, control=self.control.calibrated(noise_multiplier, batch_size))

    def sensitivity(self, clip: float) -> float:
        """Return by how much one record more or less can move the sum."""
        return self.control.sensitivity(clip if self.size is None else 2 * clip)

    def expected_terms(self, batch_size: float) -> float:
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

    def assign_microbatches(
        self, count: int, batch_size: float, rng: RandomSource
    ) -> Tensor | None:
        """Return the group of each of `count` records; None if each is a group by itself.

        Each record's group is drawn by itself, uniformly from ceil(batch_size / size), so that
        whether a record is there tells nothing about the groups of others.
        """
        if self.size is None or self.size == 1:
            return None
        return torch.from_numpy(integers(rng, math.ceil(self.expected_terms(batch_size)), count))

    def terms(self, batch_size: float) -> float:
        """Return what `expected_terms` does; its former name."""
        renamed("Clipping.terms", "Clipping.expected_terms")
        return self.expected_terms(batch_size)

    @renamed_argument("bits", "rng")
    def deal(self, count: int, batch_size: float, rng: RandomSource) -> Tensor | None:
        """Return what `assign_microbatches` does; its former name."""
        renamed("Clipping.deal", "Clipping.assign_microbatches")
        return self.assign_microbatches(count, batch_size, rng)

    def no_statistics(self, device: torch.device) -> Tensor:
        """Return the extra coordinates of no unit: zeros, in float64."""
        return torch.zeros(self.control.coordinates, dtype=torch.float64, device=device)

    def add_rows(
        self,
        total: Tensor,
        statistics: Tensor,
        rows: Iterable[Tensor],
        groups: Tensor | None,
        scaling: FlatScaling,
        clip: float,
    ) -> None:
        """Add the bounded sum of gradients that come as rows, some at a time.

        `groups` has the micro-batch or the unit of each row, ascending. Without it each row is a
        group by itself. What a control wants to know of them is added to `statistics`.
        """
        if groups is not None and (self.by_unit or self.size is not None):
            rows = averages(rows, groups)
        for some in rows:
            with torch.autocast(total.device.type, enabled=False):
                total += self.bound.sum_of(some, scaling, clip)
                if len(statistics):
                    statistics += self.control.statistics(whitened_norms(some, scaling), clip)

    def clipped(self, total: Tensor, statistics: Tensor, clip: float) -> ClippedSum:
        """Return a sum and its extra coordinates as one value, with its sensitivity."""
        extra = len(statistics)
        if extra:
            total = torch.cat([total, statistics.to(total.dtype)])
        return ClippedSum(total, self.sensitivity(clip), extra)

    def __repr__(self) -> str:
        text = repr(self.bound)
        if self.size is not None:
            micro = f"microbatches({self.size})"
            text = micro if self.bound == Threshold() else f"{text} of {micro}"
        if self.control == CONSTANT:
            return text
        control = self.control.describe()
        return control if text == repr(Threshold()) else f"{control} of {text}"


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
        >>> microbatches(4), microbatches(4).sensitivity(0.5), microbatches(4).expected_terms(64)
        (microbatches(4), 1.0, 16.0)

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Appendix B, where averages over 4 records are clipped.
    """
    return Clipping(Threshold(), integer("size", size, remedy="It counts records."))


def per_layer(shares: Mapping[str, float] | None = None, of: Clipping | None = None) -> Clipping:
    """Return clipping of each layer by itself: u_l min(1, C_l / |u_l|) for its part u_l.

    The squares of the clip norms C_l of the layers add up to the square of the clip norm C. A layer
    is a module with parameters of its own, which are clipped together: a weight with its bias. A
    tied parameter belongs to the module that has it first. One layer with large gradients does not
    shorten those of the others.

    Args:
        shares: public numbers in proportion to which the layers have their C_l, by the names of
            layers in model.named_modules(); equal ones if they are not given. A layer can be
            divided by naming each of its parameters instead.
        of: how each layer's gradient is bounded: `threshold()`, which it is if it is not given, or
            `automatic()`; also with micro-batches, or with clip norms in turns.

    Returns:
        The clipping.

    Guarantee: one record moves the sum by at most sqrt(sum_l C_l^2) = C in the norm of all
    coordinates, so that noise is scaled to C as it is for `threshold`. The shares must not come
    from private data.

    Edge cases: a gradient that is not finite in one layer counts as zero in all. Names that are
    missing or unknown are an error when the engine is made, before any record is read.

    Example:
        >>> import privada as pv
        >>> pv.clipping.per_layer(), pv.clipping.per_layer().sensitivity(0.5)
        (per_layer(), 0.5)
        >>> pv.clipping.per_layer({"0": 1.0, "2": 2.0}, of=pv.clipping.automatic())
        per_layer({'0': 1, '2': 2}) of automatic(gamma=0.01)

    Reference: McMahan, Ramage, Talwar and Zhang (2018), Learning Differentially Private Recurrent
    Language Models, Section 3 (arXiv 1710.06963); He et al. (2022), Exploring the Limits of
    Differentially Private Deep Learning with Group-wise Clipping (arXiv 2212.01539).
    """
    base = _base(of)
    if isinstance(base.bound, PerLayer) or not isinstance(base.bound, ByNorm):
        raise ArgumentError(
            f"Expected `of` to bound a gradient by its norm, got of={base!r}. Use threshold() or "
            "automatic()."
        )
    return replace(base, bound=PerLayer(base.bound, checked_shares(shares)))


def in_turns(*turns: tuple[int, float], of: Clipping | None = None) -> Clipping:
    """Return clipping with clip norms by turns of releases, which are known beforehand.

    After the last turn the first one comes again. The clip norm of a method is not used: the turns
    say all of them.

    Args:
        turns: pairs of a number of releases and their clip norm.
        of: how gradients are bounded; `threshold()` if it is not given.

    Returns:
        The clipping.

    Guarantee: one record moves a sum by at most the clip norm of its turn, and noise is scaled to
    that: each release costs the same.

    Example:
        >>> import privada as pv
        >>> clipping = pv.clipping.in_turns((2, 1.0), (3, 5.0), of=pv.clipping.automatic())
        >>> clipping
        in_turns((2, 1), (3, 5)) of automatic(gamma=0.01)
        >>> clipping.norm({"seen": 1}), clipping.norm({"seen": 2}), clipping.norm({"seen": 5})
        (1.0, 5.0, 1.0)

    Reference: Li et al. (2023), Differentially Private Adaptive Optimization with Delayed
    Preconditioners, Algorithm 1 (arXiv 2212.00309).
    """
    return replace(_base(of), control=InTurns(turns))


def adaptive(
    quantile: float = 0.5,
    rate: float = 0.2,
    count_noise: float = 0.05,
    of: Clipping | None = None,
) -> Clipping:
    """Return clipping whose clip norm follows a quantile of the gradients' norms, privately.

    Each unit adds one more coordinate to the clipped sum, kappa (b - 1/2), with b = 1 if its
    whitened gradient has a norm of at most the clip norm C, else 0, and kappa = ratio C. The noisy
    sum of these tells the share of short gradients, share = 1/2 + sum / (kappa B) with the expected
    number of units B, brought between 0 and 1, and the clip norm becomes
    C exp(-rate (share - quantile)). It stays within four powers of ten of the first one, which is
    the `clip` of a method.

    The ratio is found by `calibrated`, for a noise multiplier z: 1 / sqrt((count_noise B / z)^2 -
    1/4), so that the noise in the count has a standard deviation of count_noise B. It is one at
    most, and before calibration; for small batches the count is then noisier than that.

    Args:
        quantile: the share of gradients that are not to be shortened.
        rate: by how much the logarithm of the clip norm moves.
        count_noise: the noise in the count, in units of the expected number of units.
        of: how gradients are bounded; `threshold()` if it is not given.

    Returns:
        The clipping.

    Guarantee: gradient and count of one unit have a norm of at most C sqrt(1 + ratio^2 / 4)
    together. That is the sensitivity, so one release pays for both, and the noise on the gradient
    is larger by this factor. The clip norm follows from releases alone.

    Edge cases: a unit whose gradient is not finite adds nothing, neither to the sum nor to the
    count. Micro-batches are refused.

    Example:
        >>> import privada as pv
        >>> clipping = pv.clipping.adaptive()
        >>> clipping, round(clipping.sensitivity(1.0), 4)
        (adaptive(quantile=0.5, rate=0.2, count_noise=0.05), 1.118)
        >>> round(clipping.calibrated(noise_multiplier=1.0, batch_size=256).sensitivity(1.0), 4)
        1.0008

    Reference: Andrew, Thakkar, McMahan and Ramaswamy (2021), Differentially Private Learning with
    Adaptive Clipping, Algorithm 1 and Theorem 1 (arXiv 1905.03871).
    """
    return replace(_base(of), control=Adaptive(quantile, rate, count_noise))


def _base(of: Any) -> Clipping:
    return THRESHOLD if of is None else checked(of)


THRESHOLD = threshold()


def checked(clipping: Any) -> Clipping:
    """Return `clipping` if it is one."""
    if not isinstance(clipping, Clipping):
        raise ArgumentError(
            f"Expected clipping to be a Clipping, got clipping={shown(clipping)}. Use threshold(), "
            "automatic(), per_layer(), ellipsoid() or microbatches(size) of privada.clipping."
        )
    return clipping
