"""Noise that is correlated between steps: what it is, what it hides, and when it begins anew."""

import copy
import itertools
import math
import os
import pickle

import numpy as np
import pytest
import torch
from scipy import signal, stats

import privada as pv
from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.randomness import SecureSource, SeededSource
from privada.core.values import ClippedSum
from privada.noise.gaussian import lattice_spacing
from privada.participation import CyclicPoisson, Poisson

SIGMA, SENSITIVITY = 1.7, 0.3
EVENT = events.poisson(0.1, SIGMA)
KINDS = [
    pv.noise.Banded(1), pv.noise.Banded(2), pv.noise.Banded(5), pv.noise.Banded(4, momentum=0.9),
]  # fmt: skip


OPTIMISED = [pv.noise.Banded(5, steps=40), pv.noise.Banded(3, momentum=0.5, steps=9)]


def receipts(count):
    return pv.Ledger(None).charge({EVENT: count}, run="first").use(EVENT, count)


def matrix(kind, steps):
    """Return C: banded, lower triangular, the same coefficients in each column."""
    found = np.zeros((steps, steps))
    for row in range(steps):
        for column in range(max(0, row - kind.bands + 1), row + 1):
            found[row, column] = kind.coefficients[row - column]
    return found


def run(stream, steps, size, sensitivities=None):
    """Return the releases of zero, and what each says of its noise."""
    paid = receipts(steps)
    made = [
        stream.release(ClippedSum(torch.zeros(size), s), paid, 10)
        for s in (sensitivities or [SENSITIVITY] * steps)
    ]
    return np.stack([each.value.double().numpy() for each in made]), [e.noise_std for e in made]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_coefficients_are_those_of_the_root_and_of_norm_one(kind):
    places = range(kind.bands)
    root = [math.comb(2 * k, k) / 4**k for k in places]
    expected = [
        sum(root[i] * root[k - i] * kind.momentum ** (k - i) for i in range(k + 1)) for k in places
    ]
    expected = np.array(expected) / np.linalg.norm(expected)
    np.testing.assert_allclose(kind.coefficients, expected, rtol=1e-12)
    assert np.linalg.norm(matrix(kind, 20), axis=0).max() <= 1 + 1e-12


@pytest.mark.parametrize("kind", [*KINDS, *OPTIMISED], ids=lambda kind: kind.name)
def test_the_matrix_turns_the_noise_into_independent_normals(kind):
    steps, size = 12, 4000
    values, _ = run(kind.start(SecureSource()), steps, size)
    spacing = lattice_spacing(SIGMA * SENSITIVITY / kind.coefficients[0])
    values += np.random.default_rng(0).uniform(-spacing / 2, spacing / 2, values.shape)
    normals = matrix(kind, steps) @ values / (SIGMA * SENSITIVITY)
    assert stats.kstest(normals.ravel(), "norm").pvalue > 1e-7
    products = np.corrcoef(normals)[np.triu_indices(steps, 1)]
    assert np.abs(products).max() < 6 / math.sqrt(size)
    low, high = stats.chi2.interval(1 - 1e-8, steps * size)
    # rounding to the lattice, and what is added to smooth it, are less than a part in a thousand
    assert low < (normals**2).sum() < high * 1.001


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_release_says_how_much_noise_it_has_by_itself(kind):
    steps = 9
    _, said = run(kind.start(SecureSource()), steps, 3)
    rows = np.linalg.norm(np.linalg.inv(matrix(kind, steps)), axis=1)
    np.testing.assert_allclose(said, SIGMA * SENSITIVITY * rows, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_noise_in_sums_is_that_of_the_matrices(kind):
    steps = 30
    workload = np.zeros((steps, steps))
    for row in range(steps):
        for column in range(row + 1):
            workload[row, column] = sum(kind.momentum**k for k in range(row - column + 1))
    expected = np.linalg.norm(workload @ np.linalg.inv(matrix(kind, steps)), axis=1)
    np.testing.assert_allclose(kind.relative_stds(steps), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", OPTIMISED, ids=lambda kind: kind.name)
def test_coefficients_for_a_number_of_steps_leave_the_least_noise(kind):
    def error(coefficients):
        response = signal.lfilter(
            [1.0], coefficients, np.cumsum(kind.momentum ** np.arange(kind.steps))
        )
        squares = np.cumsum(response**2)
        return squares.mean() * (coefficients @ coefficients)

    least = error(kind.coefficients)
    assert np.linalg.norm(kind.coefficients) == pytest.approx(1.0, abs=1e-12)
    assert least < error(pv.noise.Banded(kind.bands, kind.momentum).coefficients)
    for step in np.random.default_rng(0).normal(size=(50, kind.bands)):
        assert error(kind.coefficients + 1e-3 * step) > least * (1 - 1e-9)


def test_sums_have_less_noise_the_more_bands_there_are():
    stds = [pv.noise.Banded(bands).relative_stds(100)[-1] for bands in (1, 2, 4, 8, 16, 32)]
    assert stds == sorted(stds, reverse=True)
    assert stds[-1] < stds[0] / 3


def test_noise_is_taken_back_in_proportion_to_the_sensitivity():
    kind, changing = pv.noise.Banded(3), [1.0, 0.25, 4.0, 2.0]
    plain, _ = run(kind.start(SeededSource(4, "noise")), 4, 500, [1.0] * 4)
    other, _ = run(kind.start(SeededSource(4, "noise")), 4, 500, changing)
    # both lie on lattices of at most a thirty-second of the standard deviation
    np.testing.assert_allclose(other / np.array(changing)[:, None], plain, atol=SIGMA / 16)


def beginnings_anew(stream):
    yield "restart", lambda: (stream.restart(), stream)[1]
    yield "copy", lambda: copy.copy(stream)
    yield "deepcopy", lambda: copy.deepcopy(stream)
    yield "pickle", lambda: pickle.loads(pickle.dumps(stream))


@pytest.mark.parametrize("place", range(4))
def test_what_begins_anew_has_nothing_to_do_with_what_was_before(place):
    size = 20_000
    stream = pv.noise.Banded(4).start(SecureSource())
    before, stds = run(stream, 5, size)
    _, anew = list(beginnings_anew(stream))[place]
    after, again = run(anew(), 5, size)
    np.testing.assert_allclose(stds, again)
    crossed = np.corrcoef(before, after)[:5, 5:]
    assert np.abs(crossed).max() < 6 / math.sqrt(size)


def test_a_pickle_holds_no_noise():
    stream = pv.noise.Banded(4).start(SecureSource())
    run(stream, 5, 10_000)
    assert len(pickle.dumps(stream)) < 1000


def test_a_forked_child_begins_anew():
    stream = pv.noise.Banded(3).start(SeededSource(1, "noise"))
    run(stream, 4, 8)
    made = stream._made
    stream._process = os.getpid() + 1  # as the child finds it
    run(stream, 1, 8)
    assert made == 4
    assert stream._made == 1


def test_another_number_of_parameters_begins_anew():
    stream = pv.noise.Banded(3).start(SeededSource(1, "noise"))
    run(stream, 4, 8)
    _, stds = run(stream, 1, 9)
    assert stds[0] == pytest.approx(SIGMA * SENSITIVITY / pv.noise.Banded(3).coefficients[0])


@pytest.mark.parametrize(
    "sampling", [Poisson(), CyclicPoisson(3), pv.participation.Everyone(),
                 pv.participation.FixedSize()],
)  # fmt: skip
def test_units_that_come_too_often_are_refused(sampling):
    sampler = sampling.among(40, 40 if sampling.name == "everyone" else 10)
    with pytest.raises(ArgumentError, match=r"CyclicPoisson\(4\)"):
        pv.noise.Banded(4).event(sampler, 1.0)
    assert pv.noise.Banded(1).event(sampler, 1.0) == sampler.event(1.0)


@pytest.mark.parametrize("wrong", [0, 2.5, -1, True, "3"])
def test_bands_must_be_a_whole_number(wrong):
    with pytest.raises(ArgumentError, match="bands"):
        pv.noise.Banded(wrong)


@pytest.mark.parametrize("wrong", [1.0, -0.1, math.nan, "0.9"])
def test_momentum_must_be_below_one(wrong):
    with pytest.raises(ArgumentError, match="momentum"):
        pv.noise.Banded(2, momentum=wrong)


# ---------------------------------------------------------------------- what it costs, exactly


def divergence(p, q, weight, epsilon):
    """Return the hockey-stick divergence of two densities on a grid."""
    return float((np.maximum(p - math.exp(epsilon) * q, 0) * weight).sum())


def two_steps(shifts, probabilities):
    """Return the densities of two releases, turned by C, without and with one unit.

    The unit moves them by one of `shifts`, each with its probability.
    """
    points = np.linspace(-12, 12, 961)
    first, second = np.meshgrid(points, points, indexing="ij")

    def density(shift):
        return stats.norm.pdf(first - shift[0]) * stats.norm.pdf(second - shift[1])

    without = density((0.0, 0.0))
    left = 1 - sum(probabilities)
    moved = left * without
    for shift, probability in zip(shifts, probabilities, strict=True):
        moved += probability * density(shift)
    return without, moved, (points[1] - points[0]) ** 2


def delta_of(event, count, epsilon):
    """Return the delta at an epsilon by the library's own loss distributions, by bisection."""
    low, high = 1e-12, 1.0 - 1e-12
    for _ in range(60):
        middle = math.sqrt(low * high)
        if pv.accounting.epsilon_of({event: count}, middle) > epsilon:
            low = middle
        else:
            high = middle
    return high


SIGMAS, RATE = 0.8, 0.6


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_two_steps_in_turns_cost_no_more_than_one_charge(epsilon):
    c = pv.noise.Banded(2).coefficients / SIGMAS
    # dealt to the first part, a unit shows in both steps; dealt to the second, in the second
    without, moved, weight = two_steps([(c[0], c[1]), (0.0, c[0])], [RATE / 2, RATE / 2])
    paid = delta_of(events.poisson(RATE, SIGMAS), 1, epsilon)
    assert divergence(without, moved, weight, epsilon) <= paid
    assert divergence(moved, without, weight, epsilon) <= paid


def test_a_unit_that_is_known_to_be_first_costs_just_one_charge():
    c = pv.noise.Banded(2).coefficients / SIGMAS
    without, moved, weight = two_steps([(c[0], c[1])], [RATE])
    paid = delta_of(events.poisson(RATE, SIGMAS), 1, 1.0)
    found = max(divergence(moved, without, weight, 1.0), divergence(without, moved, weight, 1.0))
    assert found == pytest.approx(paid, rel=1e-3)  # the grid's own error is of that order


def of_a_unit(steps, parts, part, coins, c):
    """Return what C makes of a unit's trace: part and coins say in which steps it takes part."""
    trace = np.zeros(steps)
    trace[part::parts] = coins
    return np.convolve(trace, c)[:steps] / SIGMAS


def sampled_divergences(steps, parts, known, epsilon, samples=400_000):
    """Return both divergences of all releases of a run, by samples, each with its standard error.

    Of one unit, whose part is `known` or drawn as well; all likelihoods are summed over the parts
    and coins that are possible. Nothing of the library is in it but the coefficients.
    """
    c, rng = pv.noise.Banded(parts).coefficients, np.random.default_rng(steps * parts)
    possible = []
    for part in range(parts) if known is None else [known]:
        turns = len(range(part, steps, parts))
        for coins in itertools.product([0, 1], repeat=turns):
            share = RATE ** sum(coins) * (1 - RATE) ** (turns - sum(coins))
            share /= parts if known is None else 1
            possible.append((share, of_a_unit(steps, parts, part, coins, c)))
    weights, shifts = np.array([w for w, _ in possible]), np.array([m for _, m in possible])

    def ratio(v):  # of the densities with the unit and without it
        return np.exp(v @ shifts.T - (shifts**2).sum(axis=1) / 2) @ weights

    without = rng.normal(size=(samples, steps))
    chosen = rng.choice(len(weights), size=samples, p=weights)
    with_unit = rng.normal(size=(samples, steps)) + shifts[chosen]
    found = []
    for losses in (ratio(with_unit), 1 / ratio(without)):
        each = np.maximum(0, 1 - math.exp(epsilon) / losses)
        found.append((each.mean(), each.std() / math.sqrt(samples)))
    return found


@pytest.mark.parametrize(("steps", "parts"), [(4, 2), (5, 2), (6, 3), (7, 3), (3, 4)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_a_run_costs_no_more_than_its_turns_and_no_less_if_the_part_is_known(steps, parts, epsilon):
    turns = math.ceil(steps / parts)
    paid = delta_of(events.poisson(RATE, SIGMAS), turns, epsilon)
    for found, error in sampled_divergences(steps, parts, None, epsilon):
        assert found <= paid + 6 * error
    if steps % parts == 0:  # the unit of the first part then shows in all that is released
        found = sampled_divergences(steps, parts, 0, epsilon)
        largest, error = max(found)
        assert abs(largest - paid) < 6 * error + 1e-3 * paid


def test_without_turns_correlated_noise_would_cost_more_than_independent_noise():
    """A unit in both steps: why sampling in which turns are too close is refused."""
    c = pv.noise.Banded(2).coefficients / SIGMAS
    without, moved, weight = two_steps([(c[0], c[0] + c[1])], [1.0])
    paid = delta_of(events.gaussian(SIGMAS), 2, 2.0)
    assert divergence(moved, without, weight, 2.0) > 1.2 * paid
