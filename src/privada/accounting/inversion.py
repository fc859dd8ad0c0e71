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
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privada.accounting.mixtures import Mixture, SampledGaussian, mixtures_of
from privada.accounting.orders import Vector
from privada.accounting.pld import GRID_ERROR_EACH, divergences

Complex = NDArray[np.complex128]
_Group = tuple[float, bool]  # a rate, and whether a record is replaced

SMALLEST_DELTA = 1e-100
# Knots reach at least so far: half the square of a number of standard deviations.
_LEAST_REACH = 18.0
# Knots in a standard deviation of the noise. What they add to epsilon falls with the square.
_FINE = 40
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
# Frequencies in a block and in a part of it; up to how many columns are turned for many blocks at
# once, and how many numbers that may make.
_BLOCK, _INNER = 64, 8
_FEW_ROWS, _MOST_TOGETHER = 8, 1 << 17
# The most frequencies and multiplications in one inversion; beyond, it is done less closely.
_MOST_FREQUENCIES, _MOST_WORK = 1 << 16, 2e9
# What rounding may change of each term, as a fraction of it: at least, and for each radian of the
# angles t |L| that the steps have on average. Masses below the least weight are left out of these.
_TERM_ERROR, _ANGLE_ERROR, _LEAST_WEIGHT = 1e-12, 4e-15, 1e-30
_LARGEST_EXPONENT = 600.0
# Guesses of epsilon end where one is within this of its result, and bisections within this.
_NEAR, _MOST_GUESSES, _CLOSE = 0.2, 10, 1e-10
_FURTHEST = 1e9


class _Losses(NamedTuple):
    """Losses at one rate, the logarithms of their masses for each multiplier, and the rest."""

    values: Vector
    logs: Vector
    infinite: Vector


def _knots(sigmas: list[float], reach: float) -> Vector:
    """Return losses from 0 on at which the curves of unsampled Gaussians are taken.

    The least noisy of them has losses up to v^2 / 2 + reach v with v = 1 / sigma. At each loss the
    spacing is right for the noisiest that still has mass there.
    """
    least, most = 1 / max(sigmas), 1 / min(sigmas)
    first = least * (least / 2 + reach)
    near = np.linspace(0.0, first, 1 + math.ceil(first / least * _FINE))
    if most == least:
        return near
    v = np.geomspace(least, most, 4096)
    places = v + reach * np.log(v)  # the integral of one over the spacing
    count = math.ceil((places[-1] - places[0]) * _FINE)
    v = np.interp(np.linspace(places[0], places[-1], count + 1)[1:], places, v)
    return np.concatenate([near, v * (v / 2 + reach)])


def _gaussian(sigma: float, knots: Vector) -> tuple[Vector, float, float]:
    """Return the logarithms of an unsampled Gaussian's masses at knots above 0.

    And the mass at 0, and that of an infinite loss. The loss is its own dual: without the record,
    what is said here of a loss holds of its opposite.
    """
    values = divergences(knots, 1.0, sigma)
    falls, widths = -np.diff(values), np.diff(knots)
    left, right = falls / -np.expm1(-widths), falls / np.expm1(np.minimum(widths, 700.0))
    masses = left - np.append(right[1:], 0.0)
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(masses, 0.0))
    return logs, max(0.0, float(1 - values[0] - 2 * right[0])), float(values[-1])


def _losses(
    rate: float, replacing: bool, sigmas: list[float], reach: float, direction: int
) -> _Losses:
    """Return the losses of sampled Gaussians at one rate, in one direction."""
    knots = _knots(sigmas, reach)
    above = knots[1:]
    found = [_gaussian(sigma, knots) for sigma in sigmas]
    if rate == 1:
        rows = [_row(p - above, middle, p) for p, middle, _ in found]
        return _Losses(_row(-above, 1.0, above), np.array(rows), np.array([b for *_, b in found]))
    kept, sampled = math.log1p(-rate), math.log(rate)
    mild = np.log1p(rate * np.expm1(np.minimum(above, 1.0)))
    up = np.where(above > 1, np.logaddexp(kept, sampled + above), mild)
    # the last is where nothing but the unsampled part can have come from
    down = np.append(np.log1p(rate * np.expm1(-above)), kept)
    rows, infinite = [], []
    for with_record, middle, beyond in found:
        without = with_record - above
        upper = np.logaddexp(kept + without, sampled + with_record)
        far = math.log(max(beyond, 1e-300))
        if replacing:
            # Above 0 the curve is that of Poisson sampling, below it is its mirror image. The rest
            # has no loss; there is some, since the line from 0 to the first knot is less steep than
            # the curve, which leaves some by itself.
            both = float(np.exp(upper).sum() + np.exp(without).sum())
            rows.append(_row(without, max(0.0, 1 - both - rate * beyond), upper))
        elif direction == 0:
            lower = np.logaddexp(kept + with_record, sampled + without)
            rows.append(_row(np.append(lower, kept + far), middle, upper))
        else:
            rows.append(_row(np.append(with_record, far), middle, without))
        infinite.append(0.0 if direction == 1 else rate * beyond)
    values = _row(-up, 1.0, up) if replacing else _row(down, 1.0, up) * (1 - 2 * direction)
    return _Losses(values, np.array(rows), np.array(infinite))


def _row(below: Vector, middle: float, above: Vector) -> Vector:
    """Return what is said of losses below 0, from it downwards, at 0 as a logarithm, and above."""
    return np.concatenate([below[::-1], [math.log(max(middle, 1e-300))], above])


def _less_one(angles: Vector) -> tuple[Vector, Vector]:
    """Return the real and the imaginary part of e^(i angle) - 1, without cancellation."""
    half = np.sin(angles / 2)
    return -2 * half * half, 2 * half * np.cos(angles / 2)


def _logarithm(function: Complex) -> Complex:
    """Return log(1 + z)."""
    real, imaginary = function.real, function.imag
    logs = np.empty_like(function)
    change = 2 * real + real * real + imaginary * imaginary
    logs.real = np.log1p(np.maximum(change, -0.5)) / 2
    small = change < -0.5
    square = (1 + real[small]) ** 2 + imaginary[small] ** 2
    logs.real[small] = np.log(np.maximum(square, 1e-300)) / 2
    logs.imag = np.arctan2(imaginary, 1 + real)
    return logs


def _mixed(share: float, near: Vector, far: Vector) -> Vector:
    """Return the logarithm of a mixture of two numbers that are given by theirs."""
    if share == 1:
        return near
    return np.asarray(np.logaddexp(math.log(share) + near, math.log1p(-share) + far))


def _sigmas(parts: tuple[Mixture, ...]) -> dict[_Group, list[float]]:
    """Return the multipliers at each rate, in order."""
    found: defaultdict[_Group, set[float]] = defaultdict(set)
    for part in parts:
        for rate, sigma, replacing in (part.near, part.far):
            found[rate, replacing].add(sigma)
    return {key: sorted(sigmas) for key, sigmas in found.items()}


class _Line(NamedTuple):
    """log M on a line: at its real point, and how much less it is at each frequency.

    And the angle that the losses of all steps have, on average and without their signs, at a
    frequency of 1.
    """

    real: float
    less: Complex
    angle: float


class _Composition:
    """The finite losses of a composition in one direction, and the mass of the infinite ones."""

    def __init__(self, parts: tuple[Mixture, ...], losses: Mapping[_Group, _Losses]) -> None:
        self._parts, self._losses = parts, losses
        self._rows = {
            SampledGaussian(rate, sigma, replacing): ((rate, replacing), row)
            for (rate, replacing), found in _sigmas(parts).items()
            for row, sigma in enumerate(found)
        }
        self.steps = sum(part.steps for part in parts)
        log_finite = 0.0
        for part in parts:
            near, far = (self._infinite(m) for m in (part.near, part.far))
            for share, n in part.shares:
                log_finite += n * math.log1p(-(share * near + (1 - share) * far))
        self.infinite = -math.expm1(log_finite)

    def capped(self, largest: float) -> "_Composition":
        """Return it with single losses above a largest one made infinite, which costs no less."""
        losses = {}
        for key, (values, logs, infinite) in self._losses.items():
            kept = values <= largest
            beyond = infinite + np.exp(logs[:, ~kept]).sum(axis=1)
            losses[key] = _Losses(values[kept], logs[:, kept], beyond)
        return _Composition(self._parts, losses)

    def _infinite(self, mechanism: SampledGaussian) -> float:
        key, row = self._rows[mechanism]
        return float(self._losses[key].infinite[row])

    def work(self) -> float:
        """Return about how many multiplications one frequency needs."""
        return sum(
            losses.values.size * (8 + losses.infinite.size) for losses in self._losses.values()
        )

    def variance(self) -> float:
        """Return about the variance of the loss."""
        total = 0.0
        for part in self._parts:
            key, row = self._rows[part.near]
            values, masses = self._losses[key].values, np.exp(self._losses[key].logs[row])
            mean = float(masses @ values)
            total += part.steps * max(float(masses @ values**2) - mean * mean, 0.0)
        return max(total, 1e-300)

    def cumulants(self, tilts: Vector) -> Vector:
        """Return about log M at each of several tilts, to choose among them."""
        found = {}
        for key, (values, logs, _) in self._losses.items():
            largest = logs.max(axis=0)
            kept = np.isfinite(largest)
            exponents = np.outer(tilts, values[kept]) + largest[kept]
            top = exponents.max(axis=1)
            ratios = np.exp(logs[:, kept] - largest[kept])
            sums = np.exp(np.maximum(exponents - top[:, None], -700.0)) @ ratios.T
            found[key] = top[:, None] + np.log(np.maximum(sums, 1e-300))
        total = np.zeros_like(tilts)
        for part in self._parts:
            places = (self._rows[m] for m in (part.near, part.far))
            near, far = (found[key][:, row] for key, row in places)
            total += part.steps * _mixed(part.mean, near, far)
        return total

    def line(self, tilt: float, spacing: float, count: int) -> _Line:
        """Return log M at a tilt plus i times the multiples of a spacing, from 0 on."""
        real, less, size = {}, {}, {}
        for key, (values, logs, _) in self._losses.items():
            exponents = logs + tilt * values
            top = exponents.max(axis=1, keepdims=True)
            weights = np.exp(exponents - top)
            sums = weights.sum(axis=1, keepdims=True)
            weights /= sums
            real[key] = (top + np.log(sums))[:, 0]
            kept = weights.max(axis=0) > _LEAST_WEIGHT
            less[key] = _averages(values[kept], weights[:, kept], spacing, count)
            size[key] = weights[:, kept] @ np.abs(values[kept])
        total, angle = 0.0, 0.0
        # of all that are repeated equally often, the product: its logarithm may be another branch,
        # which a whole power does not see
        products: dict[int, Complex] = {}
        for part in self._parts:
            (key, near), (_, far) = (self._rows[m] for m in (part.near, part.far))
            angle += part.steps * float(max(size[key][near], size[key][far]))
            change = less[key][:, near] - less[key][:, far]
            for share, n in part.shares:
                whole = float(_mixed(share, real[key][near], real[key][far]))
                weight = share * math.exp(real[key][near] - whole)
                total += n * whole
                factor = less[key][:, far] + weight * change
                before = products.get(n)
                # (1 + a) (1 + b) - 1 = a + b + a b, which does not cancel
                products[n] = factor if before is None else before + factor + before * factor
        logarithms: Complex = np.zeros(count + 1, dtype=np.complex128)
        for n, product in sorted(products.items()):
            logarithms += n * _logarithm(product)
        return _Line(total, logarithms, angle)


def _turned(one: tuple[Vector, Vector], other: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    """Return z w - 1 of numbers that are given as z - 1 and w - 1, without cancellation."""
    (a, b), (c, d) = one, other
    return c * (1 + a) - d * b + a, d * (1 + a) + c * b + b


def _averages(values: Vector, weights: Vector, spacing: float, count: int) -> Complex:
    """Return the weighted averages of e^(i t loss) - 1 at the multiples of a spacing.

    Sines are taken at few frequencies: those of a block are products of two, and those of other
    blocks are that block's, turned.
    """
    rows = len(weights)
    found = np.empty((-(-(count + 1) // _BLOCK), _BLOCK, rows), dtype=np.complex128)
    columns = np.ascontiguousarray(weights.T)
    small = np.outer(np.arange(_INNER) * spacing, values)
    large = np.outer(np.arange(0, _BLOCK, _INNER) * spacing, values)[:, None]
    first = _turned(_less_one(large), _less_one(small))
    real, imaginary = (each.reshape(_BLOCK, -1) for each in first)
    # of few columns, these are turned instead, for many blocks at once
    few = rows <= _FEW_ROWS
    together = max(1, _MOST_TOGETHER // columns.size) if few else 1
    for start in range(0, len(found), together):
        here = found[start : start + together]
        turns = _BLOCK * spacing * np.arange(start, start + len(here))
        a, b = _less_one(np.outer(turns, values))
        if not few:
            both = _turned((a, b), (real, imaginary))
            here.real[0], here.imag[0] = (each @ columns for each in both)
            continue
        shape = (_BLOCK, len(here), rows)
        cosines, sines = (
            (each.T[:, :, None] * columns[:, None, :]).reshape(len(values), -1)
            for each in (1 + a, b)
        )
        change = (real @ cosines - imaginary @ sines).reshape(shape) + a @ columns
        here.real = change.transpose(1, 0, 2)
        change = (imaginary @ cosines + real @ sines).reshape(shape) + b @ columns
        here.imag = change.transpose(1, 0, 2)
    return found.reshape(-1, rows)[: count + 1]


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

    def __init__(self, composition: _Composition, delta: float) -> None:
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

    composition: _Composition
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
            key: _losses(*key, sigmas, reach, direction) for key, sigmas in _sigmas(parts).items()
        }
        ways.append(_Direction(_Composition(parts, losses), drift, delta))
    value = 0.0
    for first, way in sorted(((way.rough(), way) for way in ways), key=lambda pair: -pair[0]):
        if first <= value or first == math.inf:  # the other direction costs more, or all is said
            value = max(value, first)
        else:
            value = max(value, min(first, way.near(first, 1 - _NEAR, _CLOSELY)))
    return value
