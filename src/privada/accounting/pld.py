"""Privacy loss distributions of Gaussian mechanisms, composed by the thousand in milliseconds.

A mechanism's loss is put on a grid by the connect-the-dots construction, which never under-states
it. Composition is a product of characteristic functions: their logarithms are kept, so that n
compositions cost one multiplication, one exponential and one inverse transform, whatever n is.
Many different multipliers are mixed from the few of a lattice, which never under-states them.
The grid is refined until epsilon no longer moves, in a way that depends on the question alone:
the same question has the same answer in every process, to the last bit. dp_accounting does the
same point by point and is the oracle that the tests hold this module to.

References: Koskela, Jalko and Honkela (2020), Computing Tight Differential Privacy Guarantees
Using FFT; Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022), Connect the Dots; for fixed-size
sampling, Balle, Barthe and Gaboardi (2018), Privacy Amplification by Subsampling, Theorem 11, and
Zhu, Dong and Wang (2022), Optimal Accounting of Differential Privacy via Characteristic Function.
"""

import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

import numpy as np
from scipy import fft

from privada.accounting import rdp
from privada.accounting.loss_grids import (
    GRID_ERROR_EACH,
    Kept,
    Transform,
    Vector,
    grid_ends,
    log_decay,
    log_moment,
    log_transform,
    logarithm,
    loss_range,
    loss_variance,
)
from privada.accounting.mixtures import Mixture, SampledGaussian, mixtures_of
from privada.accounting.orders import ORDERS

# Mass that may be cut from each tail of a composition, and what rounding in the transforms may
# misplace, at least and for each composition; all are added to delta. The tests measure the
# rounding against closed forms and extended precision: up to 1.8e-16 for each composition.
_TAIL = 1e-14
_TRANSFORM_ERROR = 1e-12
_TRANSFORM_ERROR_EACH = 5e-16
# Below this, and below SMALLEST_MULTIPLIER, the construction runs out of floating-point range;
# other accountants take over.
SMALLEST_DELTA = 1e-10
# Changes of epsilon below this fraction end the refinement; each step divides the grid by four, and
# what is left by about sixteen. Mixtures, which are slower, are refined less.
_STABLE, _STABLE_MIXED = 1e-3, 1e-2
_MOST_POINTS = 1 << 22
# The first guess of an interval is divided by this for an answer that is about right.
_COARSE, _MOST_COARSE = 16, 1 << 19
# A band of two to this power is narrow enough not to be narrowed further.
_NARROW = 9


def _log_moments(part: Mixture, interval: float, direction: int, order: float) -> float:
    """Return a bound on the sum of the logarithms over a part: that of its mean share, times it.

    The logarithm of a mixture is concave in the share.
    """
    near = log_moment(part.near, interval, direction, order)
    if part.mean == 1:
        return part.steps * near
    far = log_moment(part.far, interval, direction, order)
    return part.steps * float(
        np.logaddexp(math.log(part.mean) + near, math.log1p(-part.mean) + far)
    )


def _band(parts: tuple[Mixture, ...], interval: float, direction: int, size: int) -> int:
    """Return a number of places beyond which a composition's function is smaller than e^-99.

    That changes no probability by more. A mixture's function is no larger than the larger of two,
    and all are at most 1, so that parts that would not narrow it much further are not looked at.
    """
    total = np.zeros(size.bit_length() - 1)
    for part in parts:
        near, far = (log_decay(m, interval, direction, size) for m in (part.near, part.far))
        total += part.steps * np.maximum(near, far)
        if total[min(_NARROW, total.size - 1)] < -99:
            break
    small = np.flatnonzero(total < -99)
    return 1 << int(small[0]) if small.size else size // 2 + 1


def _power(base: Transform, exponent: int) -> Transform:
    """Return a whole power by squaring, which keeps more digits than the logarithm."""
    if exponent == 1:
        return base
    half = _power(base, exponent // 2)
    return half * half * base if exponent % 2 else half * half


@Kept
def _log_mixtures(
    part: Mixture, interval: float, direction: int, size: int, band: int
) -> Transform:
    """Return the logarithm of the product of a part's characteristic functions."""
    near, far = (log_transform(m, interval, direction, size, band) for m in (part.near, part.far))
    base: Transform = np.exp(far)
    change: Transform = np.exp(near) - base
    product: Transform = np.ones_like(base)
    for share, n in part.shares:
        product *= _power(base + share * change, n)
    return logarithm(product)


def _least(bound: Callable[[float], float], starts: Collection[int]) -> float:
    """Return about the least value, at powers of two, of a function that falls and then rises."""
    least, start = min((bound(2.0**start), start) for start in starts)
    for direction in (1, -1):
        exponent = start + direction
        while (value := bound(2.0**exponent)) < least - max(1.0, 0.01 * abs(least)):
            least, exponent = value, exponent + direction
        least = min(least, value)
    return least


@lru_cache(maxsize=64)
def _window(parts: tuple[Mixture, ...], interval: float, direction: int) -> tuple[int, int]:
    """Return the places outside which a composition has no mass.

    By Chernoff's bound, (log E e^(t loss) + slack) / t, at powers of two t. The logarithm is convex
    in t, so the bound falls up to the best order and rises beyond; at any order it holds.
    """
    lowest = highest = longest = 0
    variance = 0.0
    for part in parts:
        ends = [grid_ends(m, interval, direction) for m in (part.near, part.far)]
        lowest += part.steps * min(low for low, _, _ in ends)
        highest += part.steps * max(high for _, high, _ in ends)
        longest = max(longest, *(high - low + 1 for low, high, _ in ends))
        variance += part.steps * loss_variance(part.near, interval, direction)
    slack = math.log(1 / _TAIL)
    # the best order for a Gaussian, and where large losses are rare and the tail is theirs
    best = round(math.log2(math.sqrt(2 * slack / variance))) if variance > 0 else 0
    rare = round(math.log2(slack / longest))
    starts = range(min(best, rare), max(best, rare) + 1)

    def reach(order: float) -> float:
        moment = sum(_log_moments(part, interval, direction, order) for part in parts)
        return (moment + slack) / abs(order)

    high = min(highest, math.ceil(_least(reach, starts)))
    low = max(lowest, math.floor(-_least(lambda order: reach(-order), starts)))
    return low, max(high, low)


def rounding(steps: int) -> float:
    """Return the mass that rounding in the transforms may misplace in a composition."""
    return _TRANSFORM_ERROR + _TRANSFORM_ERROR_EACH * steps


def _steps(parts: tuple[Mixture, ...]) -> int:
    return sum(part.steps for part in parts)


def _composed(
    parts: tuple[Mixture, ...], interval: float, direction: int
) -> tuple[Vector, Vector, float]:
    """Return the losses of a composition, their probabilities, and the mass at infinity."""
    low, high = _window(parts, interval, direction)
    size = 1 << max(4, math.ceil(math.log2(high - low + 1)))
    band = _band(parts, interval, direction, size)
    logs = np.zeros(band, dtype=np.complex128)
    log_finite, steps = 0.0, _steps(parts)
    for part in parts:
        if part.near == part.far:
            logs += part.steps * log_transform(part.near, interval, direction, size, band)
        else:
            logs += _log_mixtures(part, interval, direction, size, band)
        near, far = (grid_ends(m, interval, direction)[2] for m in (part.near, part.far))
        for share, n in part.shares:
            log_finite += n * math.log1p(-(share * near + (1 - share) * far))
    kept = np.flatnonzero(logs.real > -99)
    function = np.zeros(size // 2 + 1, dtype=np.complex128)
    with np.errstate(over="ignore", invalid="ignore"):
        function[kept] = np.exp(logs[kept])
    wrapped = fft.irfft(function, size)
    round_up = math.exp(GRID_ERROR_EACH * steps)
    probabilities: Vector = round_up * np.maximum(np.roll(wrapped, -(low % size)), 0.0)
    losses = (low + np.arange(size, dtype=np.float64)) * interval
    infinity = round_up * -math.expm1(log_finite) + 2 * _TAIL + rounding(steps)
    return losses, probabilities, infinity


def _solve(losses: Vector, probabilities: Vector, infinity: float, delta: float) -> float:
    """Return the least epsilon >= 0 whose hockey-stick divergence is at most `delta`.

    With U_k the mass from the k-th loss l_k on, and R_k the same mass weighted by e^(l_k - loss),
    the divergence up to l_k is infinity + U_k - e^(epsilon - l_k) R_k. It falls as epsilon grows,
    so the first loss at which it is within delta is found by bisection.
    """
    # NaN, where mass overflowed, is no bound
    if not infinity <= delta or not math.isfinite(float(probabilities.sum())):
        return math.inf
    start = int(np.searchsorted(losses, 0.0, side="right"))
    losses, probabilities = losses[start:], probabilities[start:]
    if not losses.size:
        return 0.0
    low, high = -1, losses.size - 1
    mass = weighted = float(probabilities[-1])
    while high - low > 1:
        middle = (low + high) // 2
        between = probabilities[middle:high]
        decay = np.exp(losses[middle] - losses[middle:high])
        mass_there = mass + float(between.sum())
        weighted_there = float(between @ decay) + weighted * math.exp(losses[middle] - losses[high])
        if infinity + mass_there - weighted_there <= delta:
            high, mass, weighted = middle, mass_there, weighted_there
        else:
            low = middle
    excess = infinity + mass - delta
    if excess <= 0 or weighted <= 0:
        return float(losses[high]) if low >= 0 else 0.0
    # rounded up by more than the addition may round down
    return max(0.0, float(losses[high]) * (1 + 1e-15) + math.log(excess / weighted))


def _at_interval(parts: tuple[Mixture, ...], delta: float, interval: float) -> float:
    alike = all(part.near.rate == 1 or part.near.replacing for part in parts)
    directions = (0,) if alike else (0, 1)
    windows = (_window(parts, interval, d) for d in directions)
    if any(high - low > 4 * _MOST_POINTS for low, high in windows):
        return math.inf
    return max(_solve(*_composed(parts, interval, d), delta) for d in directions)


def _points(parts: tuple[Mixture, ...], interval: float) -> int:
    low, high = _window(parts, interval, 0)
    ends = (grid_ends(part.near, interval, 0) for part in parts)
    return max(high - low, *(highest - lowest + 1 for lowest, highest, _ in ends))


def _refined(parts: tuple[Mixture, ...], delta: float, interval: float) -> tuple[float, float]:
    """Return epsilon and its interval, divided by four until it changes epsilon by a hair only."""
    value = _at_interval(parts, delta, interval)
    mixed = any(part.near != part.far for part in parts)
    enough = _STABLE_MIXED if mixed else _STABLE
    while _points(parts, interval) * 4 <= _MOST_POINTS:
        finer = _at_interval(parts, delta, interval / 4)
        stable = abs(finer - value) <= enough * finer
        interval, value = interval / 4, min(value, finer)
        if stable:
            break
    return value, interval


def _guess(parts: tuple[Mixture, ...]) -> float:
    """Return an interval to start from."""
    second = int(np.searchsorted(ORDERS, 2.0))
    power = sum(
        part.steps * rdp.sampled_gaussian(part.near.rate, part.near.sigma)[second] for part in parts
    )
    widest = max(high - low for low, high in (loss_range(part.near) for part in parts))
    guess = float(power + 12 * math.sqrt(power)) / 2048
    return min(max(guess, widest / (1 << 18)), widest / 64)


def roughly(mechanism: SampledGaussian, steps: int, delta: float) -> float:
    """Return about what `epsilon` would, from one coarse grid: as a rule within 3 in 10,000."""
    parts = (Mixture(mechanism, mechanism, ((1.0, steps),)),)
    interval = _guess(parts) / _COARSE
    while _points(parts, interval) > _MOST_COARSE:
        interval *= 4
    return _at_interval(parts, delta, interval)


@lru_cache(maxsize=256)
def _settled(mechanism: SampledGaussian, count: int, delta: float) -> float:
    """Return an interval that is fine enough."""
    parts = (Mixture(mechanism, mechanism, ((1.0, count),)),)
    return _refined(parts, delta, _guess(parts))[1]


def epsilon(
    counts: Mapping[SampledGaussian, int] | Mapping[tuple[float, float], int],
    delta: float,
    interval: float | None = None,
) -> tuple[float, float]:
    """Return the epsilon at `delta` of a composition, and the interval of the grid it is from.

    Guarantee: never below the true value, and within a tenth of a per cent of what a four times
    coarser grid gives: the grid, the cut tails and the rounding of the transforms err upwards. So
    do the mixtures that more than 16 multipliers at one rate are made into. These add up to a
    tenth of a per cent, or a quarter if they are more than a thousand, and are refined until a
    grid gives 1% less at most, which leaves a tenth of that. Both results depend on the arguments
    alone, not on their order nor on earlier questions.

    Edge cases: no mechanisms give 0. `delta` must be at least `SMALLEST_DELTA` and every
    multiplier at least `SMALLEST_MULTIPLIER`; the caller sees to it. A given `interval` is used
    as it is. So many steps that rounding may outgrow `delta` give infinity.

    On one interval epsilon grows with the counts and falls with delta. The interval may change
    where a count, or the first guess for several mechanisms, passes a power of two or four, where
    delta changes, and where epsilon is so near to 0 that a finer one is needed; there, more steps
    may appear cheaper, by about what refining may leave, a tenth of a per cent. Each of the two
    values is an upper bound.
    """
    if not counts:
        return 0.0, 0.0
    parts = mixtures_of({SampledGaussian(*mechanism): int(n) for mechanism, n in counts.items()})
    if rounding(_steps(parts)) > delta:
        return math.inf, 0.0
    if interval is not None:
        return _at_interval(parts, delta, interval), interval
    if len(parts) == 1:  # one interval serves all counts up to the next power of two
        count = 1 << (parts[0].steps - 1).bit_length()
        return _refined(parts, delta, 4 * _settled(parts[0].near, count, delta))
    # one of few intervals, so that similar questions share what is known of mechanisms on it
    return _refined(parts, delta, 4.0 ** math.ceil(math.log(_guess(parts), 4)))
