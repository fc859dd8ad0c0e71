"""The losses of sampled Gaussians at knots, and the moment generating function of a composition.

Knots may lie anywhere, so that losses at a rate of 1e-6 need no more of them than at 1e-3. How an
epsilon comes of the function, and why that is an upper bound, is in `inversion`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privada.accounting.loss_grids import divergences
from privada.accounting.mixtures import Mixture, SampledGaussian
from privada.accounting.orders import Vector

Complex = NDArray[np.complex128]
Group = tuple[float, bool]  # a rate, and whether a record is replaced

# Knots in a standard deviation of the noise. What they add to epsilon falls with the square.
_FINE = 40
# Frequencies in a block and in a part of it; up to how many columns are turned for many blocks at
# once, and how many numbers that may make.
_BLOCK, _INNER = 64, 8
_FEW_ROWS, _MOST_TOGETHER = 8, 1 << 17
# Masses below this are left out of averages, for which what rounding may do is charged.
_LEAST_WEIGHT = 1e-30


class Losses(NamedTuple):
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


def losses_at(
    rate: float, replacing: bool, sigmas: list[float], reach: float, direction: int
) -> Losses:
    """Return the losses of sampled Gaussians at one rate, in one direction."""
    knots = _knots(sigmas, reach)
    above = knots[1:]
    found = [_gaussian(sigma, knots) for sigma in sigmas]
    if rate == 1:
        rows = [_row(p - above, middle, p) for p, middle, _ in found]
        return Losses(_row(-above, 1.0, above), np.array(rows), np.array([b for *_, b in found]))
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
    return Losses(values, np.array(rows), np.array(infinite))


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


def multipliers_at(parts: tuple[Mixture, ...]) -> dict[Group, list[float]]:
    """Return the multipliers at each rate, in order."""
    found: defaultdict[Group, set[float]] = defaultdict(set)
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


class Composition:
    """The finite losses of a composition in one direction, and the mass of the infinite ones."""

    def __init__(self, parts: tuple[Mixture, ...], losses: Mapping[Group, Losses]) -> None:
        self._parts, self._losses = parts, losses
        self._rows = {
            SampledGaussian(rate, sigma, replacing): ((rate, replacing), row)
            for (rate, replacing), found in multipliers_at(parts).items()
            for row, sigma in enumerate(found)
        }
        self.steps = sum(part.steps for part in parts)
        log_finite = 0.0
        for part in parts:
            near, far = (self._infinite(m) for m in (part.near, part.far))
            for share, n in part.shares:
                log_finite += n * math.log1p(-(share * near + (1 - share) * far))
        self.infinite = -math.expm1(log_finite)

    def capped(self, largest: float) -> "Composition":
        """Return it with single losses above a largest one made infinite, which costs no less."""
        losses = {}
        for key, (values, logs, infinite) in self._losses.items():
            kept = values <= largest
            beyond = infinite + np.exp(logs[:, ~kept]).sum(axis=1)
            losses[key] = Losses(values[kept], logs[:, kept], beyond)
        return Composition(self._parts, losses)

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
            less[key] = averages(values[kept], weights[:, kept], spacing, count)
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


def averages(values: Vector, weights: Vector, spacing: float, count: int) -> Complex:
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
