"""Privacy loss distributions of Gaussian mechanisms, composed by the thousand in milliseconds.

A mechanism's loss is put on a grid by the connect-the-dots construction, which never under-states
it. Composition is a product of characteristic functions: their logarithms are kept, so that n
compositions cost one multiplication, one exponential and one inverse transform, whatever n is.
The grid is refined until epsilon no longer moves, in a way that depends on the question alone:
the same question has the same answer in every process, to the last bit. dp_accounting does the
same point by point and is the oracle that the tests hold this module to.

References: Koskela, Jalko and Honkela (2020), Computing Tight Differential Privacy Guarantees
Using FFT; Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022), Connect the Dots; for fixed-size
sampling, Balle, Barthe and Gaboardi (2018), Privacy Amplification by Subsampling, Theorem 11, and
Zhu, Dong and Wang (2022), Optimal Accounting of Differential Privacy via Characteristic Function.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import erfcx

from privada.accounting import rdp
from privada.accounting.orders import ORDERS

Vector = NDArray[np.float64]
Transform = NDArray[np.complex128]


class Mechanism(NamedTuple):
    """A sampled Gaussian release: the rate, and the noise over what one record can change.

    `replacing` is False for Poisson sampling under add-or-remove-one, True for fixed-size sampling
    under replace-one, where a record's exchange changes a clipped sum by up to twice the clip norm
    and the multiplier is over that.
    """

    rate: float
    sigma: float
    replacing: bool = False


# Mass that may be cut from each tail of a composition, and what rounding in the transforms may
# misplace, at least and for each composition; all are added to delta. The tests measure the
# rounding against closed forms and extended precision: up to 1.8e-16 for each composition.
_TAIL = 1e-14
_TRANSFORM_ERROR = 1e-12
_TRANSFORM_ERROR_EACH = 5e-16
# By which fraction rounding may lower the curve of one mechanism on its grid (3e-12 was measured):
# all masses are raised by it. A curve that dominates does so under composition.
_GRID_ERROR_EACH = 1e-11
# Below these the construction runs out of floating-point range; other accountants take over.
SMALLEST_DELTA = 1e-10
SMALLEST_MULTIPLIER = 0.02
# Changes of epsilon below this fraction end the refinement; each step divides the grid by four.
_STABLE = 1e-3
_MOST_POINTS = 1 << 22
# How many standard deviations of the noise a single loss distribution keeps on either side.
_REACH = 10.0


@dataclass(frozen=True)
class _Grid:
    """Loss probabilities on multiples of an interval, from `lowest` on, and a mass at infinity."""

    lowest: int
    probabilities: Vector
    infinity: float


def _divergences(epsilon: Vector, rate: float, sigma: float) -> Vector:
    """Return, of P = (1-q) N(0) + q N(1) against Q = N(0), delta(epsilon) or its complement.

    At epsilon >= 0 the result is the hockey-stick divergence delta(epsilon), at epsilon < 0 it is
    delta(epsilon) - (1 - e^epsilon). With t = (x - 1) / s where the loss at x is epsilon, and m
    the Mills ratio, these are q phi(t) (m(t) - m(t + 1/s)) and q phi(t) (m(-t - 1/s) - m(-t)):
    each keeps its relative precision far into its tail.
    """
    shift, root_half = 1 / sigma, math.sqrt(0.5)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        growth = np.expm1(np.minimum(epsilon, 30.0)) + rate
        log_odds = np.where(
            epsilon > 30,
            epsilon + np.log1p(-(1 - rate) * np.exp(-np.maximum(epsilon, 30.0))),
            np.log(np.maximum(growth, 0)),
        ) - math.log(rate)
        t = sigma * log_odds - shift / 2
        weight = rate / 2 * np.exp(-(t**2) / 2)
        above = epsilon >= 0
        near = np.where(above, t, -(t + shift))
        far = np.where(above, t + shift, -t)
        value = weight * (erfcx(root_half * near) - erfcx(root_half * far))
    return np.where(np.isneginf(t), 0.0, np.maximum(value, 0.0))


def _reach(mechanism: Mechanism) -> tuple[float, float]:
    """Return the least and the greatest loss that a grid keeps."""
    rate, sigma, _ = mechanism
    losses = (np.array([-_REACH, _REACH]) * sigma + [0, 1] - 0.5) / sigma**2
    if rate < 1:
        losses = np.logaddexp(math.log1p(-rate), math.log(rate) + losses)
    return float(losses[0]), float(losses[1])


@lru_cache(maxsize=128)
def _loss_grids(mechanism: Mechanism, interval: float) -> tuple[_Grid, _Grid]:
    """Return the loss distributions of removing a record and of adding one.

    Connect-the-dots: the hockey-stick curve is taken at the grid points and joined by straight
    lines in e^epsilon, which lie above it. The second distribution is the first one's dual.

    For replacing a record the curve at epsilon >= 0 is the same, q delta(epsilon') with
    e^epsilon = 1 + q (e^epsilon' - 1), by the amplification theorem for sampling without
    replacement; at epsilon < 0 it follows from that by the symmetry of the relation. The whole
    curve is convex in e^epsilon, so one pair of distributions has it and may be composed.
    """
    rate, sigma, replacing = mechanism
    ends = _reach(mechanism)
    low, high = math.floor(ends[0] / interval), math.ceil(ends[1] / interval)
    if replacing:
        low = -high
    epsilon = np.arange(low, high + 1, dtype=np.float64) * interval
    zero = -low
    if replacing:
        right = _divergences(epsilon[zero:], rate, sigma)
        values = np.concatenate([(right * np.exp(-epsilon[zero:]))[:0:-1], right])
    else:
        values = _divergences(epsilon, rate, sigma)
    below = np.append(values[:zero], values[zero])  # delta(0) is its own complement
    rises, falls = np.diff(below), -np.diff(values[zero:])
    up, down = math.expm1(interval), -math.expm1(-interval)
    masses = np.empty_like(values)
    masses[0] = rises[0] / up - below[0]
    masses[1:zero] = rises[1:] / up - rises[:-1] / down
    masses[zero] = 1 - falls[0] / up - rises[-1] / down
    masses[zero + 1 : -1] = falls[:-1] / down - falls[1:] / up
    masses[-1] = falls[-1] / down
    masses = np.maximum(masses, 0.0)
    removing = _Grid(low, masses, float(values[-1]))
    if rate == 1 or replacing:  # the same in both directions
        return removing, removing
    dual = (masses * np.exp(-epsilon))[::-1]
    adding = _Grid(-high, dual, float(below[0] * math.exp(-epsilon[0])))
    return removing, adding


@lru_cache(maxsize=2)
def _log_probabilities(mechanism: Mechanism, interval: float, direction: int) -> Vector:
    with np.errstate(divide="ignore"):
        return np.log(_loss_grids(mechanism, interval)[direction].probabilities)


@lru_cache(maxsize=8192)
def _log_moment(mechanism: Mechanism, interval: float, direction: int, order: float) -> float:
    """Return log E exp(order * loss / interval) over the finite losses, offset by the lowest."""
    logs = _log_probabilities(mechanism, interval, direction)
    terms = order * np.arange(logs.size) + logs
    top = float(terms.max())
    # what would underflow, which is slow, is rounded up to e^-99
    return top + math.log(float(np.exp(np.maximum(terms - top, -99.0)).sum()))


@lru_cache(maxsize=256)
def _spread(mechanism: Mechanism, interval: float, direction: int) -> float:
    """Return the variance of the finite losses, in units of the interval squared."""
    grid = _loss_grids(mechanism, interval)[direction]
    steps = np.arange(grid.probabilities.size, dtype=float)
    mean = float(grid.probabilities @ steps)
    return float(grid.probabilities @ (steps - mean) ** 2)


class _TransformCache:
    """The logarithms of characteristic functions used last, within a bound on memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[tuple[Mechanism, float, int, int], Transform] = OrderedDict()

    def get(self, mechanism: Mechanism, interval: float, direction: int, size: int) -> Transform:
        key = (mechanism, interval, direction, size)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        probabilities = _loss_grids(mechanism, interval)[direction].probabilities
        rows = -(-probabilities.size // size)
        wrapped = np.pad(probabilities, (0, rows * size - probabilities.size))
        function = fft.rfft(wrapped.reshape(rows, size).sum(axis=0))
        # several times faster than the complex logarithm, and finite where the function vanishes
        power = np.maximum(function.real**2 + function.imag**2, 1e-300)
        logs = np.empty_like(function)
        logs.real, logs.imag = np.log(power) / 2, np.arctan2(function.imag, function.real)
        self._kept[key] = logs
        while sum(kept.nbytes for kept in self._kept.values()) > self._most:
            self._kept.popitem(last=False)
        return logs


_transforms = _TransformCache(most_bytes=1 << 28)


def _least(bound: Callable[[float], float], starts: Collection[int]) -> float:
    """Return about the least value, at powers of two, of a function that falls and then rises."""
    least, start = min((bound(2.0**start), start) for start in starts)
    for direction in (1, -1):
        exponent = start + direction
        while (value := bound(2.0**exponent)) < least - max(1.0, 0.01 * abs(least)):
            least, exponent = value, exponent + direction
        least = min(least, value)
    return least


def _window(counts: Mapping[Mechanism, int], interval: float, direction: int) -> tuple[int, int]:
    """Return the places, counted from the lowest, outside which a composition has no mass.

    By Chernoff's bound, (log E e^(t loss) + slack) / t, at powers of two t. The logarithm is convex
    in t, so the bound falls up to the best order and rises beyond; at any order it holds.
    """
    sizes = {m: _loss_grids(m, interval)[direction].probabilities.size for m in counts}
    variance = sum(n * _spread(m, interval, direction) for m, n in counts.items())
    longest = sum(n * (sizes[m] - 1) for m, n in counts.items())
    slack = math.log(1 / _TAIL)
    # the best order for a Gaussian, and where large losses are rare and the tail is theirs
    best = round(math.log2(math.sqrt(2 * slack / variance))) if variance > 0 else 0
    rare = round(math.log2(slack / max(sizes.values())))
    starts = range(min(best, rare), max(best, rare) + 1)

    def reach(order: float) -> float:
        moment = sum(n * _log_moment(m, interval, direction, order) for m, n in counts.items())
        return (moment + slack) / abs(order)

    high = min(longest, math.ceil(_least(reach, starts)))
    low = max(0, math.floor(-_least(lambda order: reach(-order), starts)))
    return low, max(high, low)


def rounding(counts: Mapping[Mechanism, int]) -> float:
    """Return the mass that rounding in the transforms may misplace in a composition."""
    return _TRANSFORM_ERROR + _TRANSFORM_ERROR_EACH * sum(counts.values())


def _composed(
    counts: Mapping[Mechanism, int], interval: float, direction: int
) -> tuple[Vector, Vector, float]:
    """Return the losses of a composition, their probabilities, and the mass at infinity."""
    low, high = _window(counts, interval, direction)
    size = 1 << max(4, math.ceil(math.log2(high - low + 1)))
    logs = np.zeros(size // 2 + 1, dtype=np.complex128)
    lowest, log_finite = 0, 0.0
    for mechanism, n in counts.items():
        grid = _loss_grids(mechanism, interval)[direction]
        logs += n * _transforms.get(mechanism, interval, direction, size)
        lowest += n * grid.lowest
        log_finite += n * math.log1p(-grid.infinity)
    # What is smaller than e^-99 changes no probability by more than that.
    kept = np.flatnonzero(logs.real > -99)
    function = np.zeros_like(logs)
    with np.errstate(over="ignore", invalid="ignore"):
        function[kept] = np.exp(logs[kept])
    wrapped = fft.irfft(function, size)
    raised = math.exp(_GRID_ERROR_EACH * sum(counts.values()))
    probabilities: Vector = raised * np.maximum(np.roll(wrapped, -(low % size)), 0.0)
    losses = (lowest + low + np.arange(size, dtype=np.float64)) * interval
    infinity = raised * -math.expm1(log_finite) + 2 * _TAIL + rounding(counts)
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


def _at_interval(counts: Mapping[Mechanism, int], delta: float, interval: float) -> float:
    directions = (0,) if all(m.rate == 1 or m.replacing for m in counts) else (0, 1)
    windows = (_window(counts, interval, d) for d in directions)
    if any(high - low > 4 * _MOST_POINTS for low, high in windows):
        return math.inf
    return max(_solve(*_composed(counts, interval, d), delta) for d in directions)


# For mechanisms with counts that are powers of two, and a delta, an interval that is fine enough.
_settled: OrderedDict[tuple[tuple[tuple[Mechanism, int], ...], float], float] = OrderedDict()


def _points(counts: Mapping[Mechanism, int], interval: float) -> int:
    low, high = _window(counts, interval, 0)
    longest = max(_loss_grids(m, interval)[0].probabilities.size for m in counts)
    return max(high - low, longest)


def _refined(counts: Mapping[Mechanism, int], delta: float, interval: float) -> tuple[float, float]:
    """Return epsilon and its interval, divided by four until it changes epsilon by a hair only."""
    value = _at_interval(counts, delta, interval)
    while _points(counts, interval) * 4 <= _MOST_POINTS:
        finer = _at_interval(counts, delta, interval / 4)
        stable = abs(finer - value) <= _STABLE * finer
        interval, value = interval / 4, min(value, finer)
        if stable:
            break
    return value, interval


def _interval(counts: Mapping[Mechanism, int], delta: float) -> float:
    """Return an interval for these counts, the one that serves the next powers of two.

    It is a function of its arguments alone, whether it is remembered or not.
    """
    rounded = {m: 1 << (n - 1).bit_length() for m, n in counts.items()}
    key = tuple(rounded.items()), delta
    if key not in _settled:
        second = int(np.searchsorted(ORDERS, 2.0))
        power = sum(n * rdp.sampled_gaussian(m.rate, m.sigma)[second] for m, n in rounded.items())
        widest = max(high - low for low, high in map(_reach, rounded))
        guess = float(power + 12 * math.sqrt(power)) / 2048
        start = min(max(guess, widest / (1 << 18)), widest / 64)
        _settled[key] = _refined(rounded, delta, start)[1]
        while len(_settled) > 256:
            _settled.popitem(last=False)
    _settled.move_to_end(key)
    return _settled[key]


def epsilon(
    counts: Mapping[Mechanism, int] | Mapping[tuple[float, float], int],
    delta: float,
    interval: float | None = None,
) -> tuple[float, float]:
    """Return the epsilon at `delta` of a composition, and the interval of the grid it is from.

    Guarantee: never below the true value, and within a tenth of a per cent of what a four times
    coarser grid gives: the grid, the cut tails and the rounding of the transforms err upwards.
    Both results depend on the arguments alone, not on their order nor on earlier questions.

    Edge cases: no mechanisms give 0. `delta` must be at least `SMALLEST_DELTA` and every
    multiplier at least `SMALLEST_MULTIPLIER`; the caller sees to it. A given `interval` is used
    as it is. So many steps that rounding may outgrow `delta` give infinity.

    On one interval epsilon grows with the counts and falls with delta. The interval may change
    where a count passes a power of two, where delta changes, and where epsilon is so near to 0
    that a finer one is needed; there, more steps may appear cheaper, by about what refining may
    leave, a tenth of a per cent. Each of the two values is an upper bound.
    """
    if not counts:
        return 0.0, 0.0
    composed = dict(sorted((Mechanism(*mechanism), int(n)) for mechanism, n in counts.items()))
    if rounding(composed) > delta:
        return math.inf, 0.0
    if interval is not None:
        return _at_interval(composed, delta, interval), interval
    return _refined(composed, delta, 4 * _interval(composed, delta))
