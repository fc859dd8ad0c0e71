"""The privacy loss of one sampled Gaussian on a grid, and what a composition asks of it.

A loss is put on multiples of an interval by the connect-the-dots construction, which never
under-states it. What is found for one mechanism is kept, since many compositions share it.

References: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022), Connect the Dots, arXiv
2207.04380; for fixed-size sampling, Balle, Barthe and Gaboardi (2018), Privacy Amplification by
Subsampling, arXiv 1807.01647, Theorem 11.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import erfcx

from privada.accounting.mixtures import SampledGaussian

Vector = NDArray[np.float64]
Transform = NDArray[np.complex128]

# By which fraction rounding may lower the curve of one mechanism on its grid (3e-12 was measured):
# all masses are raised by it. A curve that dominates does so under composition.
GRID_ERROR_EACH = 1e-11
# How many standard deviations of the noise a single loss distribution keeps on either side.
_REACH = 10.0


@dataclass(frozen=True)
class Grid:
    """Loss probabilities on multiples of an interval, from `lowest` on, and a mass at infinity."""

    lowest: int
    probabilities: Vector
    infinity: float


class Grids(NamedTuple):
    """The loss distributions of removing a record and of adding one."""

    removing: Grid
    adding: Grid

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        return self.removing.probabilities.nbytes + self.adding.probabilities.nbytes


class _Large(Protocol):
    @property
    def nbytes(self) -> int: ...


Result = TypeVar("Result", bound=_Large)


class Kept(Generic[Result]):
    """The results of a function that were used last, within a bound on memory.

    Threads may get in each other's way, at the price of a result that is made twice.
    """

    def __init__(self, make: Callable[..., Result], most_bytes: int = 1 << 27) -> None:
        self._make, self._most, self._bytes = make, most_bytes, 0
        self._kept: OrderedDict[tuple[Hashable, ...], Result] = OrderedDict()

    def __call__(self, *key: Hashable) -> Result:
        """Return the result, which is made unless it was kept."""
        found = self._kept.pop(key, None)
        if found is None:
            found = self._make(*key)
            self._bytes += found.nbytes
        self._kept[key] = found
        while self._bytes > self._most:
            try:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
            except KeyError:  # none is left, and what two threads made was counted twice
                self._bytes = 0
        return found

    def cache_clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self._bytes = 0


def divergences(epsilon: Vector, rate: float, sigma: float) -> Vector:
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


def loss_range(mechanism: SampledGaussian) -> tuple[float, float]:
    """Return the least and the greatest loss that a grid keeps."""
    rate, sigma, _ = mechanism
    losses = (np.array([-_REACH, _REACH]) * sigma + [0, 1] - 0.5) / sigma**2
    if rate < 1:
        losses = np.logaddexp(math.log1p(-rate), math.log(rate) + losses)
    return float(losses[0]), float(losses[1])


@Kept
def loss_grids(mechanism: SampledGaussian, interval: float) -> Grids:
    """Return the loss distributions of removing a record and of adding one.

    Connect-the-dots: the hockey-stick curve is taken at the grid points and joined by straight
    lines in e^epsilon, which lie above it. The second distribution is the first one's dual.

    For replacing a record the curve at epsilon >= 0 is the same, q delta(epsilon') with
    e^epsilon = 1 + q (e^epsilon' - 1), by the amplification theorem for sampling without
    replacement; at epsilon < 0 it follows from that by the symmetry of the relation. The whole
    curve is convex in e^epsilon, so one pair of distributions has it and may be composed.
    """
    rate, sigma, replacing = mechanism
    ends = loss_range(mechanism)
    low, high = math.floor(ends[0] / interval), math.ceil(ends[1] / interval)
    if replacing:
        low = -high
    epsilon = np.arange(low, high + 1, dtype=np.float64) * interval
    zero = -low
    if replacing:
        right = divergences(epsilon[zero:], rate, sigma)
        values = np.concatenate([(right * np.exp(-epsilon[zero:]))[:0:-1], right])
    else:
        values = divergences(epsilon, rate, sigma)
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
    removing = Grid(low, masses, float(values[-1]))
    if rate == 1 or replacing:  # the same in both directions
        return Grids(removing, removing)
    dual = (masses * np.exp(-epsilon))[::-1]
    return Grids(removing, Grid(-high, dual, float(below[0] * math.exp(-epsilon[0]))))


@lru_cache(maxsize=1 << 14)
def grid_ends(
    mechanism: SampledGaussian, interval: float, direction: int
) -> tuple[int, int, float]:
    """Return the places of the lowest and the highest finite loss, and the mass at infinity."""
    grid = loss_grids(mechanism, interval)[direction]
    return grid.lowest, grid.lowest + grid.probabilities.size - 1, grid.infinity


@lru_cache(maxsize=1 << 14)
def loss_variance(mechanism: SampledGaussian, interval: float, direction: int) -> float:
    """Return the variance of the finite losses, in units of the interval squared."""
    grid = loss_grids(mechanism, interval)[direction]
    steps = np.arange(grid.probabilities.size, dtype=float)
    mean = float(grid.probabilities @ steps)
    return float(grid.probabilities @ (steps - mean) ** 2)


@Kept
def _log_spread_out(mechanism: SampledGaussian, interval: float, direction: int) -> Vector:
    """Return the logarithms of probabilities on the multiples of `_stride`, for bounds on moments.

    Each mass goes to its two neighbours there, with the same mean, which raises every moment: by
    little, since it adds less than a fiftieth to the variance.
    """
    masses = loss_grids(mechanism, interval)[direction].probabilities
    stride = _stride(mechanism, interval, direction)
    rows = np.zeros((-(-masses.size // stride) + 1, stride))
    rows.ravel()[: masses.size] = masses
    share = np.arange(stride) / stride
    masses = rows @ (1 - share)
    masses[1:] += rows[:-1] @ share
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(masses))


def _stride(mechanism: SampledGaussian, interval: float, direction: int) -> int:
    return max(1, int(math.sqrt(loss_variance(mechanism, interval, direction)) / 4))


@lru_cache(maxsize=1 << 16)
def log_moment(mechanism: SampledGaussian, interval: float, direction: int, order: float) -> float:
    """Return log E exp(order * loss / interval) over the finite losses, or slightly more."""
    logs = _log_spread_out(mechanism, interval, direction)
    lowest, _, _ = grid_ends(mechanism, interval, direction)
    stride = _stride(mechanism, interval, direction)
    terms = order * (lowest + stride * np.arange(logs.size)) + logs
    top = float(terms.max())
    # what would underflow, which is slow, is rounded up to e^-99
    return top + math.log(float(np.exp(np.maximum(terms - top, -99.0)).sum()))


def logarithm(function: Transform) -> Transform:
    """Return a logarithm several times faster than NumPy's, and finite where it vanishes."""
    power = np.maximum(function.real**2 + function.imag**2, 1e-300)
    logs = np.empty_like(function)
    logs.real, logs.imag = np.log(power) / 2, np.arctan2(function.imag, function.real)
    return logs


@Kept
def transform(mechanism: SampledGaussian, interval: float, direction: int, size: int) -> Transform:
    """Return a loss's characteristic function at the multiples of 2 pi / size."""
    grid = loss_grids(mechanism, interval)[direction]
    start = grid.lowest % size
    rows = -(-(start + grid.probabilities.size) // size)
    wrapped = np.zeros(rows * size)
    wrapped[start : start + grid.probabilities.size] = grid.probabilities
    return np.asarray(fft.rfft(wrapped.reshape(rows, size).sum(axis=0)))


@Kept
def log_decay(mechanism: SampledGaussian, interval: float, direction: int, size: int) -> Vector:
    """Return the logarithm of the largest modulus beyond each power of two of places."""
    modulus = np.abs(transform(mechanism, interval, direction, size))
    beyond = np.maximum.accumulate(modulus[::-1])[::-1]
    return np.asarray(np.log(np.maximum(beyond[1 << np.arange(size.bit_length() - 1)], 1e-300)))


@Kept
def log_transform(
    mechanism: SampledGaussian, interval: float, direction: int, size: int, band: int
) -> Transform:
    """Return the logarithm of a characteristic function, at the first places."""
    return logarithm(transform(mechanism, interval, direction, size)[:band])
