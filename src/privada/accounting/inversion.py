"""What steps at small sampling rates cost: delta by inverting a moment generating function.

At a rate q the loss of a step is of the order of q, and rarely of the order of 1. A grid that is
fine enough for the one and wide enough for the other has millions of points. Nothing here is on a
grid, so that a price takes as long at a rate of 1e-6 as at 1e-3. Why it is an upper bound:

1. The loss of an unsampled Gaussian is put on knots by connect-the-dots. They may lie anywhere:
   its hockey-stick curve is joined by straight lines in e^epsilon, which lie above it. Sampling
   maps the curve affinely, so the same masses at the mapped knots, log(1 - q + q e^y), dominate the
   sampled Gaussian, and what dominates does so under composition.
2. Let L be the finite loss of the composition and M(s) = E e^(s L), a product over the steps. With
   any tilt c > 0,

       delta(e) = E max(0, 1 - e^(e - L)) = 1 / (2 pi i) int M(s) e^(-s e) / (s (s + 1)) ds

   along the line of real part c, since 1 / (s (s + 1)) is the Laplace transform of 1 - e^-u.
3. The trapezoidal rule with a spacing of 2 pi / w gives, by Poisson's summation formula,
   sum_m e^(c m w) delta(e + m w) over all whole m. Every term is positive and that of m = 0 is the
   one that is wanted: the rule errs upwards. Chernoff's bound says how wide w must be for the
   others to be small.
4. One more Gaussian release, with very much noise, is composed: what is released besides never
   lowers the divergence. Its factor e^(-v t^2 / 2) bounds what lies beyond the last frequency t,
   which is added. It raises epsilon by about (c + 1) v / 2, and v is chosen for that to be small.
5. What rounding may do to the terms that are summed is added, and every mass is raised as in `pld`.

The tilt, the width and the last frequency decide how tight the bound is and how long it takes, and
never whether it holds.

References: Zhu, Dong and Wang (2022), Optimal Accounting of Differential Privacy via Characteristic
Function; Abate and Whitt (1992), The Fourier-Series Method for Inverting Transforms of Probability
Distributions, for the positive aliases; Alghamdi et al. (2023), The Saddle-Point Method in
Differential Privacy, for the tilt; Doroshenko et al. (2022), Connect the Dots.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privada.accounting.loss_grids import GRID_ERROR_EACH
from privada.accounting.mixtures import SampledGaussian, mixtures_of
from privada.accounting.moment_functions import Complex, Composition, losses_at, multipliers_at
from privada.accounting.orders import Vector

SMALLEST_DELTA = 1e-100
# Knots reach at least so far: half the square of a number of standard deviations.
_LEAST_REACH = 18.0
# By which fraction of delta each of these may raise it: infinite losses, aliases, what is cut.
_SLACK = 1e-4
# By which fraction the release that is composed besides may raise epsilon, about: in a first look,
# and in the answer.
_ROUGHLY, _CLOSELY = 1e-2, 2e-4
# An epsilon smaller than this over the tilt is as exact as this is, and not more.
_SMALL = 1e-3
# Tilts that are looked at, in halvings and doublings of the one that fits a Gaussian.
_TILTS = 2.0 ** (np.arange(-56, 81) / 4)
_LARGEST_TILT, _LARGEST_CUMULANT = 1e100, 1e15
# The most frequencies and multiplications in one inversion; beyond, it is done less closely.
_MOST_FREQUENCIES, _MOST_WORK = 1 << 16, 2e9
# What rounding may change of each term, as a fraction of it: at least, and for each radian of the
# angles t |L| that the steps have on average.
_TERM_ERROR, _ANGLE_ERROR = 1e-12, 4e-15
_LARGEST_EXPONENT = 600.0
# Guesses of epsilon end where one is within this of its result, and bisections within this.
_NEAR, _MOST_GUESSES, _CLOSE = 0.2, 10, 1e-10
_FURTHEST = 1e9


@dataclass(frozen=True)
class _Bound:
    """An upper bound on delta at any epsilon, by the trapezoidal rule along one line."""

    points: Complex
    logs: Complex
    weights: Vector
    besides: float
    besides_each: float
    infinite: float
    round_up: float

    def delta(self, epsilon: float) -> float:
        """Return the bound; infinity where it is far above 1, or no number."""
        largest = float(self.logs[0].real - self.points[0].real * epsilon)
        if not largest < _LARGEST_EXPONENT:
            return math.inf
        terms = np.exp(self.logs - self.points * epsilon) / (self.points * (self.points + 1))
        besides = math.exp(largest) * (self.besides + self.besides_each * epsilon)
        total = float(self.weights @ terms.real) + besides
        if not math.isfinite(total):
            return math.inf
        return self.round_up * (max(total, 0.0) + self.infinite)


class _Inversion:
    """The epsilon of a composition in one direction, as closely as is asked for."""

    def __init__(self, composition: Composition, delta: float) -> None:
        self._composition, self._delta = composition, delta
        tilts = _TILTS * math.sqrt(2 * max(1.0, -math.log(delta)) / composition.variance())
        tilts = tilts[tilts < _LARGEST_TILT]
        cumulants = composition.cumulants(tilts)
        finite = np.abs(cumulants) < _LARGEST_CUMULANT
        self._tilts, self._cumulants = tilts[finite], cumulants[finite]

    def first(self) -> float:
        """Return an epsilon to start from, by the conversion of Canonne, Kamath and Steinke."""
        s = self._tilts
        best = (self._cumulants - math.log(self._delta) + s * np.log(s) - (1 + s) * np.log1p(s)) / s
        return max(float(best.min(initial=math.inf)), 0.0)

    def _bound(self, epsilon: float, lowest: float, smoothing: float) -> tuple[_Bound, float]:
        """Return a bound, tight from the lowest to an epsilon, and the scale on which it falls."""
        s = self._tilts
        saddle = float(s[np.argmin(self._cumulants - s * epsilon - np.log(s * (s + 1)))])
        scale = max(epsilon, _SMALL / saddle)
        variance = 2 * smoothing * scale * min(scale, 1 / (saddle + 1))
        # Chernoff's bound over what is wanted; aliases are small if the width is this and more
        excess = self._cumulants + s * (s + 1) * variance / 2 - s * lowest - math.log(self._delta)
        gaps = s[None, :] - s[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(gaps != 0, (excess - math.log(_SLACK)) / np.abs(gaps), np.inf)
        right = np.where(gaps > 0, needed, np.inf).min(axis=1)
        left = np.where(gaps < 0, needed, np.inf).min(axis=1)
        left = np.minimum(left, -math.log(_SLACK * self._delta) / s)
        widths = np.maximum(right, left)
        widths = np.where(widths > 0, widths, 1 / s)  # any will do
        lasts = np.sqrt(2 * np.maximum(excess - math.log(_SLACK) - np.log(s), 4.0) / variance)
        counts = widths * lasts / (2 * math.pi)
        best = int(np.argmin(counts))
        most = min(_MOST_FREQUENCIES, _MOST_WORK / self._composition.work())
        if counts[best] > most:  # less closely, with fewer frequencies
            variance *= (counts[best] / most) ** 2
            lasts *= most / counts[best]
        tilt, spacing = float(s[best]), 2 * math.pi / float(widths[best])
        count = max(1, math.ceil(float(lasts[best]) / spacing))
        return self._along(tilt, spacing, count, variance), 1 / saddle

    def _along(self, tilt: float, spacing: float, count: int, variance: float) -> _Bound:
        line = self._composition.line(tilt, spacing, count)
        points = np.full(count + 1, complex(tilt))
        points.imag = spacing * np.arange(count + 1)
        weights = np.full(count + 1, spacing / math.pi)
        weights[0] /= 2
        frequencies = points.imag
        last = float(frequencies[-1])
        # As fractions of the real term: what rounding may change of each, relative to what it would
        # be were all losses equal, and what lies beyond the last, where the sum of 1 / t^2 times
        # the spacing is below 1 / last.
        sizes = weights * np.exp(-variance * frequencies**2 / 2) / np.abs(points * (points + 1))
        angles = _ANGLE_ERROR * float(sizes @ frequencies)
        cut = math.exp(-variance * last * last / 2) / (math.pi * last)
        return _Bound(
            points=points,
            logs=line.real + line.less + points * (points + 1) * variance / 2,
            weights=weights,
            besides=_TERM_ERROR * float(sizes.sum()) + angles * line.angle + cut,
            besides_each=angles,
            infinite=self._composition.infinite,
            round_up=math.exp(GRID_ERROR_EACH * self._composition.steps),
        )

    def epsilon(self, guess: float, lowest: float, smoothing: float) -> float:
        """Return an epsilon whose delta is within the one that is asked for."""
        if not self._tilts.size or guess == math.inf:
            return math.inf
        bound, scale = self._bound(guess, lowest, smoothing)
        if not bound.round_up * bound.infinite < self._delta:
            return math.inf
        if bound.delta(0.0) <= self._delta:
            return 0.0
        low, high, stride = 0.0, guess, scale
        while bound.delta(high) > self._delta:
            low, high, stride = high, high + stride, 2 * stride
            if stride > _FURTHEST * scale:
                return math.inf
        while high - low > _CLOSE * high:
            middle = (low + high) / 2
            low, high = (low, middle) if bound.delta(middle) <= self._delta else (middle, high)
        return high


@dataclass(frozen=True)
class _Direction:
    """A composition in one direction, and what its steps without the record can take off a loss."""

    composition: Composition
    drift: float
    delta: float

    def rough(self) -> float:
        """Return an epsilon from guesses that follow each other down."""
        guess = _Inversion(self.composition, self.delta).first()
        value = math.inf
        for _ in range(_MOST_GUESSES):
            found = self.near(guess, 0.0, _ROUGHLY)
            value = min(value, found)
            if not found < guess * (1 - _NEAR):
                break
            guess = found * found / guess
        return value

    def near(self, guess: float, least: float, smoothing: float) -> float:
        """Return an epsilon that is tight if it is between a fraction of a guess and the guess.

        A loss so large that the steps that follow cannot bring it near to epsilon counts in full,
        or all but, and is made infinite.
        """
        composition = self.composition.capped(guess + self.drift - math.log(_SLACK))
        return _Inversion(composition, self.delta).epsilon(guess, least * guess, smoothing)


def _largest_gain(rate: float) -> float:
    """Return what a step can take off the loss of removing a record at most."""
    return -math.log1p(-rate) if rate < 1 else math.inf


def epsilon(counts: Mapping[SampledGaussian, int], delta: float) -> float:
    """Return the epsilon at `delta` of a composition.

    Guarantee: never below the true value, and, as measured, within a tenth of a per cent of it. Up
    to a tenth more comes of the mixtures that more than 16 multipliers at one rate are made into,
    and a quarter if they are more than a thousand. Where epsilon is far smaller than the spread of
    the loss, as next to a delta at which it is 0, it may be several per cent. It depends on the
    arguments alone.

    Edge cases: no mechanisms give 0. `delta` must be at least `SMALLEST_DELTA` and every multiplier
    at least `SMALLEST_MULTIPLIER`; the caller sees to it. More than some 1e11 steps cost infinity.
    """
    if not counts:
        return 0.0
    parts = mixtures_of({SampledGaussian(*mechanism): int(n) for mechanism, n in counts.items()})
    expected = sum(part.steps * part.near.rate for part in parts)
    if GRID_ERROR_EACH * sum(part.steps for part in parts) > 1:
        return math.inf
    reach = math.sqrt(2 * max(math.log(expected / delta / _SLACK), _LEAST_REACH))
    alike = all(part.near.rate == 1 or part.near.replacing for part in parts)
    drift = sum(part.steps * _largest_gain(part.near.rate) for part in parts)
    ways = []
    for direction in (0,) if alike else (0, 1):
        losses = {
            key: losses_at(*key, sigmas, reach, direction)
            for key, sigmas in multipliers_at(parts).items()
        }
        ways.append(_Direction(Composition(parts, losses), drift, delta))
    value = 0.0
    for first, way in sorted(((way.rough(), way) for way in ways), key=lambda pair: -pair[0]):
        if first <= value or first == math.inf:  # the other direction costs more, or all is said
            value = max(value, first)
        else:
            value = max(value, min(first, way.near(first, 1 - _NEAR, _CLOSELY)))
    return value
