"""Prices at small sampling rates against bounds from below, closed forms and other accountants."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import epsilon_of, events, inversion, loss_grids, moment_functions, pld
from privada.accounting.accountants import loss_distributions
from privada.accounting.mixtures import SampledGaussian, mixtures_of
from tests.oracles import hockey_stick, lower_bound

Long = np.longdouble
DIRECTIONS = (hockey_stick.REMOVING, hockey_stick.ADDING)


def poisson(counts):
    return {events.poisson(*mechanism): n for mechanism, n in counts.items()}


# Losses that are all alike, rare large ones, and both; a step or less per record up to many epochs.
CASES = [
    (1e-3, 0.5, 1000, 1e-5),
    (1e-3, 4.0, 100_000, 1e-8),
    (1e-3, 20.0, 1_000_000, 1e-12),
    (1e-4, 0.3, 1000, 1e-7),
    (1e-4, 0.5, 10_000, 1e-5),
    (1e-4, 1.0, 1_000_000, 1e-10),
    (1e-4, 4.0, 10_000, 1e-5),
    (1e-5, 0.5, 100_000, 1e-7),
    (1e-5, 1.0, 3_000_000, 1e-12),
    (1e-5, 4.0, 100_000, 1e-7),
    (1e-6, 0.3, 100_000, 1e-5),
    (1e-6, 0.3, 10_000_000, 1e-12),
    (1e-6, 0.4, 10_000_000, 1e-8),
    (1e-6, 1.0, 1_000_000, 1e-7),
    (1e-6, 4.0, 10_000_000, 1e-12),
    (1e-6, 20.0, 10_000_000, 1e-9),
]


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta"), CASES)
def test_a_price_is_above_a_bound_from_below_and_within_a_per_cent(rate, sigma, steps, delta):
    counts = {(rate, sigma): steps}
    found = epsilon_of(poisson(counts), delta)
    least = lower_bound.epsilon(counts, delta, found)
    assert least <= found <= 1.01 * least


@pytest.mark.parametrize(
    ("rate", "low", "high", "steps", "delta"),
    [(1e-3, 1.5, 4.0, 1000, 1e-6), (1e-5, 0.4, 4.0, 5000, 1e-8), (1e-6, 1.0, 20.0, 500_000, 1e-9)],
)
def test_so_is_that_of_a_schedule(rate, low, high, steps, delta):
    counts = {(rate, float(sigma)): steps for sigma in np.geomspace(low, high, 17)}
    found = epsilon_of(poisson(counts), delta)
    least = lower_bound.epsilon(counts, delta, found, 6e-3)
    assert least <= found <= 1.01 * least


# On a grid, rounding would be more than a hundredth of these deltas.
@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta"),
    [
        (0.04, 200.0, 700_000, 1e-9),
        (0.017, 95.0, 20_000_000, 1e-7),
        (0.1, 5.0, 1000, 1e-11),
        (0.9, 3.0, 100, 1e-12),
        (0.01, 0.6, 1000, 1e-20),
    ],
)
def test_so_is_one_at_a_larger_rate_where_a_grid_has_too_few_digits(rate, sigma, steps, delta):
    assert pld.rounding(steps) > 0.01 * delta
    found = epsilon_of({events.poisson(rate, sigma): steps}, delta)
    least = lower_bound.epsilon({(rate, sigma): steps}, delta, found)
    assert least <= found <= 1.01 * least


# prv-accountant 0.2.0 (Gopi, Lee and Wutschitz, 2021): its bound from below, its estimate and its
# bound from above, with delta_error = delta / 1000 and eps_error of 1e-3 and twice 5e-3
@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "theirs"),
    [
        (1e-3, 1.0, 1000, 1e-5, (0.147886, 0.148902, 0.149917)),
        (1e-4, 0.5, 10_000, 1e-5, (1.169946, 1.175259, 1.180572)),
        (1e-5, 0.5, 100_000, 1e-7, (0.906418, 0.911645, 0.916871)),
    ],
)
def test_reference_values_of_another_accountant(rate, sigma, steps, delta, theirs):
    below, estimate, above = theirs
    found = epsilon_of({events.poisson(rate, sigma): steps}, delta)
    assert below <= found <= above
    assert found == pytest.approx(estimate, rel=1e-3)


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-12])
@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (3.0, 10), (40.0, 1000)])
def test_the_bound_from_below_is_below_the_closed_form_and_near_it(sigma, steps, delta):
    exact = get_epsilon_gaussian(sigma / math.sqrt(steps), delta)
    least = lower_bound.epsilon({(1.0, sigma): steps}, delta, exact)
    assert 0.99 * exact <= least <= exact


def test_the_bound_from_below_notices_a_little_more_noise():
    wrong = epsilon_of({events.poisson(1e-5, 4.05): 1_000_000}, 1e-7)
    assert lower_bound.epsilon({(1e-5, 4.0): 1_000_000}, 1e-7, 1.02 * wrong) > wrong


@pytest.mark.parametrize("delta", [1e-3, 1e-7, 1e-12, 1e-30])
@pytest.mark.parametrize("total", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("steps", [1, 1000, 10_000_000])
def test_gaussian_steps_compose_to_the_closed_form(steps, total, delta):
    found = inversion.epsilon({SampledGaussian(1.0, total * math.sqrt(steps)): steps}, delta)
    exact = hockey_stick.gaussian_epsilon(total, delta)
    assert exact <= found <= exact * 1.002


def test_a_tiny_delta_of_one_step_that_is_hardly_ever_sampled():
    rate, sigma, delta = 1e-9, 0.5, 5.1088411413971337e-73
    exact = hockey_stick.epsilon_at(lambda e: hockey_stick.delta(e, rate, sigma, 0), delta)
    assert exact <= inversion.epsilon({SampledGaussian(rate, sigma): 1}, delta) <= exact * 1.2


@pytest.mark.parametrize(
    ("rate", "sigma", "share"),
    [(1e-3, 1.0, 0.1), (1e-3, 0.3, 0.5), (1e-6, 0.3, 0.1), (1e-6, 4.0, 0.01), (1e-6, 0.05, 0.3)],
)
def test_one_step_costs_what_the_definition_says(rate, sigma, share):
    delta = share * rate * math.erf(math.sqrt(0.125) / sigma)  # of the total variation distance
    exact = max(
        hockey_stick.epsilon_at(lambda e, d=d: hockey_stick.delta(e, rate, sigma, d), delta)
        for d in DIRECTIONS
    )
    found = inversion.epsilon({SampledGaussian(rate, sigma): 1}, delta)
    assert exact <= found <= exact * 1.005


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta"),
    [
        (1e-3, 0.7, 5000, 1e-5),
        (1e-3, 3.0, 1000, 1e-6),
        (1e-4, 0.5, 1000, 1e-7),
        (0.05, 1.0, 9, 0.01),
    ],
)
@pytest.mark.parametrize("replacing", [False, True])
def test_the_grid_says_the_same(rate, sigma, steps, delta, replacing):
    counts = {SampledGaussian(rate, sigma, replacing): steps}
    assert inversion.epsilon(counts, delta) == pytest.approx(
        pld.epsilon(counts, delta)[0], rel=2e-3
    )


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta"),
    [(1e-5, 2.0, 1_000_000, 1e-8), (1e-6, 1.0, 1_000_000, 1e-7), (1e-6, 0.6, 3_000_000, 1e-9)],
)
def test_replacing_a_record_costs_no_less_than_removing_one_with_half_the_noise(
    rate, sigma, steps, delta
):
    population = 10**7
    fixed = events.fixed_size(population, round(rate * population), sigma)
    found = epsilon_of({fixed: steps}, delta)
    assert found >= epsilon_of({events.poisson(rate, sigma / 2): steps}, delta)
    assert found <= epsilon_of({fixed: steps}, delta, "rdp")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-3, 1e-6])
def test_knots_that_multipliers_share_are_above_the_curve_of_each(rate, direction):
    sigmas = [0.3, 0.5, 2.0, 20.0]
    values, logs, infinite = moment_functions.losses_at(rate, False, sigmas, 8.0, direction)
    order = np.argsort(values)
    sign = 1 - 2 * direction
    for sigma, row, beyond in zip(sigmas, np.exp(logs)[:, order], infinite, strict=True):
        assert row.sum() + beyond == pytest.approx(1, abs=1e-12)
        for y in np.random.default_rng(3).normal(0.0, 2 / sigma, 12):
            epsilon = sign * math.log1p(rate * math.expm1(y))
            above = values[order] > epsilon
            finite = row[above] @ -np.expm1(epsilon - values[order][above])
            true = float(hockey_stick.delta(epsilon, rate, sigma, direction))
            assert finite + beyond >= true * (1 - loss_grids.GRID_ERROR_EACH)
            assert finite + beyond <= true * 1.01 + 1e-15


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("count", [1, 63, 64, 700])
def test_averages_are_those_of_the_definition(rows, count):
    rng = np.random.default_rng(rows + count)
    values = np.log1p(1e-3 * np.expm1(np.linspace(-7.0, 7.0, 500)))
    weights = rng.random((rows, values.size))
    weights /= weights.sum(axis=1, keepdims=True)
    spacing = 5.0 / count / float(np.abs(values).mean())
    found = moment_functions.averages(values, weights, spacing, count)
    assert found.shape == (count + 1, rows)
    half = np.outer(np.arange(count + 1) * Long(spacing), values.astype(Long)) / 2
    sine = np.sin(half)
    exact = (2j * sine * np.exp(1j * half)) @ weights.T
    # what `_ANGLE_ERROR` allows for each radian
    angles = spacing * np.arange(count + 1)[:, None] * (weights @ np.abs(values))
    assert np.all(np.abs(found - exact) <= 4e-15 * angles)


@given(
    total=st.floats(0.3, 3),
    steps=st.integers(1, 10**6),
    epsilon=st.floats(0, 5),
    tilt=st.floats(0.05, 30),
    width=st.floats(0.2, 30),
    count=st.integers(1, 400),
    variance=st.floats(1e-8, 1),
)
@settings(max_examples=200, deadline=None)
def test_no_line_gives_less_than_the_closed_form(
    total, steps, epsilon, tilt, width, count, variance
):
    parts = mixtures_of({SampledGaussian(1.0, total * math.sqrt(steps)): steps})
    sigmas = [parts[0].near.sigma]
    losses = {(1.0, False): moment_functions.losses_at(1.0, False, sigmas, 9.0, 0)}
    line = inversion._Inversion(moment_functions.Composition(parts, losses), 1e-5)
    bound = line._along(tilt, 2 * math.pi / width, count, variance)
    assert bound.delta(epsilon) >= float(hockey_stick.delta(epsilon, 1.0, total, 0)) * (1 - 1e-9)


def summed(losses, steps, bound, variance, epsilon):
    """The trapezoidal sum along a bound's line, from the same masses, with more digits."""
    values, logs, _ = losses
    tilt, frequencies = Long(bound.points[0].real), bound.points.imag.astype(Long)
    weights = np.exp(logs[0].astype(Long) + tilt * values)
    total = weights.sum()
    less = np.zeros(frequencies.size, dtype=np.clongdouble)
    for k, frequency in enumerate(frequencies):
        half = frequency / 2 * values.astype(Long)
        sine = np.sin(half)
        less[k] = -2 * (sine * sine) @ weights / total
        less[k] += 2j * ((sine * np.cos(half)) @ weights / total)
    s = tilt + 1j * frequencies
    logs = Long(steps) * (np.log(total) + np.log1p(less)) + s * (s + 1) * Long(variance) / 2
    terms = np.exp(logs - s * Long(epsilon)) / (s * (s + 1))
    spacing = frequencies[1] / np.arccos(Long(-1))
    return spacing * (terms.real.sum() - terms[0].real / 2)


@pytest.mark.skipif(
    np.finfo(Long).eps > 2e-19, reason="this machine has no numbers with more digits than double"
)
@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "epsilon", "tilt", "width", "count", "variance"),
    [
        (1e-3, 0.5, 1000, 3.2, 2.0, 10.0, 200, 1e-3),
        (1e-5, 1.0, 3_000_000, 0.17, 80.0, 0.2, 120, 3e-6),
        (1e-6, 0.3, 1, 0.01, 2.5, 12.0, 600, 1e-4),
        (1e-6, 4.0, 10_000_000, 0.00455, 7000.0, 0.004, 130, 3e-10),
        (1e-4, 1.0, 1_000_000_000, 34.0, 3.0, 40.0, 130, 1.0),
        (1.0, 3e4, 100_000_000, 2.0, 15.0, 2.0, 100, 1e-4),
    ],
)
def test_what_is_charged_for_rounding_covers_it(
    rate, sigma, steps, epsilon, tilt, width, count, variance
):
    losses = moment_functions.losses_at(rate, False, [sigma], 8.0, 0)
    composition = moment_functions.Composition(
        mixtures_of({SampledGaussian(rate, sigma): steps}), {(rate, False): losses}
    )
    line = inversion._Inversion(composition, 1e-5)
    bound = line._along(tilt, 2 * math.pi / width, count, variance)
    exact = summed(losses, steps, bound, variance, epsilon)
    last = float(bound.points[-1].imag)
    largest = math.exp(bound.logs[0].real - tilt * epsilon)
    cut = largest * math.exp(-variance * last**2 / 2) / (math.pi * last)
    finite = bound.delta(epsilon) / bound.round_up - bound.infinite - cut
    charged = largest * (bound.besides + bound.besides_each * epsilon) - cut
    # a third of what is charged is enough, so there is something in hand
    assert finite - charged + (charged + (bound.round_up - 1) * finite) / 3 >= exact
    assert finite <= exact * (1 + 1e-6) + 2 * charged


@given(
    rate=st.floats(-6, -2).map(lambda x: 10**x),
    sigma=st.floats(-1, 1.3).map(lambda x: 10**x),
    steps=st.floats(0, 7).map(lambda x: round(10**x)),
    delta=st.floats(-12, -3).map(lambda x: 10**x),
)
@settings(max_examples=15, deadline=None)
def test_more_of_anything_never_costs_less_beyond_what_is_left_open(rate, sigma, steps, delta):
    here = inversion.epsilon({SampledGaussian(rate, sigma): steps}, delta)
    for dearer in (
        inversion.epsilon({SampledGaussian(rate, sigma): steps + math.ceil(0.01 * steps)}, delta),
        inversion.epsilon({SampledGaussian(1.01 * rate, sigma): steps}, delta),
        inversion.epsilon({SampledGaussian(rate, sigma / 1.01): steps}, delta),
        inversion.epsilon({SampledGaussian(rate, sigma): steps}, delta / 1.01),
        inversion.epsilon({SampledGaussian(rate, sigma, True): steps}, delta),
    ):
        assert dearer >= here * (1 - 1e-3)


@pytest.mark.parametrize(("sigma", "steps"), [(0.6, 100), (1.0, 1000), (4.0, 100_000)])
def test_there_is_no_step_between_the_two_ways(sigma, steps):
    edge = loss_distributions._SMALL_RATE
    below, above = (
        epsilon_of({events.poisson(rate, sigma): steps}, 1e-5) for rate in (edge * (1 - 1e-9), edge)
    )
    assert below == pytest.approx(above, rel=1.5e-3)


def test_groups_are_priced_in_the_way_of_what_they_stand_for(monkeypatch):
    edge = loss_distributions._SMALL_RATE
    counts = {events.poisson(edge * (0.999 + k / 1000), 2 + k / 10): 1 for k in range(60)}
    monkeypatch.setattr(pld, "epsilon", None)
    found = epsilon_of(counts, 1e-12)
    assert 0 < found <= epsilon_of({events.poisson(1.06 * edge, 2.0): 60}, 1e-12, "rdp")


def test_small_and_ordinary_rates_and_unsampled_releases_go_together():
    apart = {(1e-6, 0.5): 1_000_000, (0.05, 2.0): 100, (1.0, 8.0): 1}
    counts = {
        events.poisson(*m) if m[0] < 1 else events.gaussian(m[1]): n for m, n in apart.items()
    }
    found = epsilon_of(counts, 1e-7)
    least = lower_bound.epsilon(apart, 1e-7, found)
    assert least <= found <= 1.01 * least


def test_the_order_of_the_mechanisms_does_not_move_the_result():
    counts = {SampledGaussian(1e-5 * k, 0.5 + k / 10): 1000 * k for k in range(1, 30)}
    there = inversion.epsilon(counts, 1e-8)
    assert inversion.epsilon(dict(reversed(counts.items())), 1e-8) == there


def test_no_mechanisms_cost_nothing():
    assert inversion.epsilon({}, 1e-5) == 0


def test_more_steps_than_rounding_allows_cost_infinity():
    assert inversion.epsilon({SampledGaussian(1e-6, 1.0): 10**12}, 1e-5) == math.inf
