"""What rounding takes from a composition of sampled Gaussians, by arithmetic with more digits."""

import mpmath as mp
import numpy as np
import pytest
from scipy import fft

from privada.accounting import loss_grids, pld
from privada.accounting.mixtures import Mixture, SampledGaussian, mixtures_of
from tests.oracles import hockey_stick

Long = np.longdouble

extended = pytest.mark.skipif(
    np.finfo(Long).eps > 2e-19, reason="this machine has no numbers with more digits than double"
)


def exact_masses(mechanism, interval, direction):
    """Connect-the-dots masses from the definition, in mpmath, and the mass at infinity.

    The masses of a curve D at the points e_k are the differences of its slopes in x = e^e: the
    piecewise linear function has a kink of Q(e_k), and P(e_k) = e^(e_k) Q(e_k).
    """
    grid = loss_grids.loss_grids(mechanism, interval)[direction]
    with mp.workdps(40):
        points = [
            mp.mpf(grid.lowest + k) * mp.mpf(interval) for k in range(grid.probabilities.size)
        ]
        curve = [hockey_stick.delta(e, mechanism.rate, mechanism.sigma, direction) for e in points]
        x = [mp.exp(e) for e in points]
        slopes = [(curve[k + 1] - curve[k]) / (x[k + 1] - x[k]) for k in range(len(x) - 1)]
        # left of the grid the line goes to (0, 1), right of it the curve is level
        slopes = [(curve[0] - 1) / x[0], *slopes, mp.mpf(0)]
        masses = [x[k] * (slopes[k + 1] - slopes[k]) for k in range(len(x))]
        return np.array([Long(mp.nstr(m, 25)) for m in masses]), Long(mp.nstr(curve[-1], 25))


def composed(masses, count, size):
    """The count-fold convolution, wrapped to a size, in extended precision."""
    rows = -(-masses.size // size)
    wrapped = np.pad(masses, (0, rows * size - masses.size)).reshape(rows, size).sum(axis=0)
    function = fft.rfft(wrapped)
    assert function.dtype == np.clongdouble
    function[function == 0] = Long("1e-4000")  # which has a logarithm
    return fft.irfft(np.exp(Long(count) * np.log(function)), size)


def divergence(probabilities, losses, infinity, epsilon):
    above = losses > epsilon
    return infinity + np.sum(probabilities[above] * -np.expm1(Long(epsilon) - losses[above]))


CASES = [
    (0.5, 1.0, 1),
    (0.01, 0.5, 100),
    (0.1, 0.5, 10_000),
    (0.01, 1.0, 100_000),
    (0.3, 4.0, 100_000),
    (0.001, 0.7, 100_000),
    (0.9, 20.0, 100_000),
    (0.01, 4.0, 1_000_000),
]


@extended
@pytest.mark.parametrize("direction", [hockey_stick.REMOVING, hockey_stick.ADDING])
@pytest.mark.parametrize(("rate", "sigma", "count"), CASES)
def test_what_is_charged_for_rounding_covers_it(rate, sigma, count, direction):
    mechanism = SampledGaussian(rate, sigma)
    low, high = loss_grids.loss_range(mechanism)
    interval = (high - low) / 1500
    masses, beyond = exact_masses(mechanism, interval, direction)
    losses, found, charged = pld._composed(mixtures_of({mechanism: count}), interval, direction)
    start = (
        round(losses[0] / interval)
        - count * loss_grids.loss_grids(mechanism, interval)[direction].lowest
    )
    exact = np.roll(composed(masses, count, losses.size), -(start % losses.size))
    infinity = -np.expm1(count * np.log1p(-beyond))
    wide = losses.astype(Long)
    for share in (0.5, 0.1, 1e-2, 1e-4, 1e-6, 1e-8, 1e-9):
        above = np.cumsum(exact[::-1])[::-1]
        epsilon = float(losses[np.flatnonzero(above >= share)[-1]])
        true = divergence(exact, wide, infinity, epsilon)
        bound = divergence(found.astype(Long), wide, charged, epsilon)
        assert true <= bound <= true * (1 + 1e-4) + 2 * charged
        # a third of what is charged is enough, so there is something in hand
        lean = np.exp(Long(-2 / 3 * 1e-11 * count))
        third = infinity + (charged - infinity) / 3
        assert divergence(found.astype(Long) * lean, wide, third, epsilon) >= true


@extended
@pytest.mark.parametrize("direction", [hockey_stick.REMOVING, hockey_stick.ADDING])
@pytest.mark.parametrize(("rate", "sigma", "count"), [(0.01, 0.7, 10), (0.3, 4.0, 10_000)])
def test_what_is_charged_for_rounding_covers_that_in_mixtures(rate, sigma, count, direction):
    pair = SampledGaussian(rate, sigma), SampledGaussian(rate, 1.01 * sigma)
    shares = ((0.1, count), (0.35, 3 * count), (0.8, count), (1.0, 7 * count))
    low, high = loss_grids.loss_range(pair[0])
    interval = (high - low) / 1500
    losses, found, charged = pld._composed((Mixture(*pair, shares),), interval, direction)
    size, functions, beyond = losses.size, [], []
    for mechanism in pair:
        masses, infinity = exact_masses(mechanism, interval, direction)
        wrapped = np.zeros(size, dtype=Long)
        lowest = loss_grids.loss_grids(mechanism, interval)[direction].lowest
        np.add.at(wrapped, (lowest + np.arange(masses.size)) % size, masses)
        functions.append(fft.rfft(wrapped))
        beyond.append(infinity)
    product, finite = np.ones_like(functions[0]), Long(1)
    for share, n in shares:
        near, far = Long(share), 1 - Long(share)
        product *= (near * functions[0] + far * functions[1]) ** n
        finite *= (1 - near * beyond[0] - far * beyond[1]) ** n
    exact = np.roll(fft.irfft(product, size), -(round(losses[0] / interval) % size))
    assert exact.dtype == Long
    wide, above = losses.astype(Long), np.cumsum(exact[::-1])[::-1]
    for share in (0.5, 1e-2, 1e-4, 1e-6, 1e-8):
        epsilon = float(losses[np.flatnonzero(above >= share)[-1]])
        true = divergence(exact, wide, 1 - finite, epsilon)
        bound = divergence(found.astype(Long), wide, charged, epsilon)
        assert true <= bound <= true * (1 + 1e-4) + 2 * charged
        # a third of what is charged is enough, so there is something in hand
        lean = np.exp(Long(-2 / 3 * 1e-11 * 12 * count))
        third = 1 - finite + (charged - (1 - finite)) / 3
        assert divergence(found.astype(Long) * lean, wide, third, epsilon) >= true


@pytest.mark.parametrize("direction", [hockey_stick.REMOVING, hockey_stick.ADDING])
@pytest.mark.parametrize(
    ("rate", "sigma"), [(0.999, 0.3), (0.9, 0.7), (0.5, 4.0), (0.01, 0.7), (0.1, 0.1), (1e-6, 20.0)]
)
def test_rounding_lowers_the_curve_of_a_fine_grid_by_less_than_is_charged(rate, sigma, direction):
    mechanism = SampledGaussian(rate, sigma)
    low, high = loss_grids.loss_range(mechanism)
    interval = (high - low) / (1 << 18)
    grid = loss_grids.loss_grids(mechanism, interval)[direction]
    losses = (grid.lowest + np.arange(grid.probabilities.size)) * Long(interval)
    for k in np.random.default_rng(5).integers(0, losses.size - 1, 12):
        point = mp.mpf(int(grid.lowest + k)) * mp.mpf(interval)
        true = Long(mp.nstr(hockey_stick.delta(point, rate, sigma, direction), 25))
        if true > 1e-20:
            found = divergence(grid.probabilities.astype(Long), losses, grid.infinity, losses[k])
            assert found >= true * (1 - loss_grids.GRID_ERROR_EACH)
