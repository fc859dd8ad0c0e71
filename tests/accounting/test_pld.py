"""Loss distributions against closed forms, quadrature and dp_accounting."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from privada.accounting import epsilon_of, events, loss_grids, pld
from privada.accounting.mixtures import SampledGaussian, mixtures_of
from tests.oracles import hockey_stick, lower_bound

DIRECTIONS = (hockey_stick.REMOVING, hockey_stick.ADDING)
MECHANISMS = [
    (1.0, 1.0),
    (1.0, 30.0),
    (0.99, 0.2),
    (0.5, 0.3),
    (0.1, 20.0),
    (0.01, 0.1),
    (0.01, 1.0),
    (1e-4, 0.7),
    (1e-6, 1.0),
]


@pytest.fixture(autouse=True)
def _nothing_asked_before():
    forget()


def forget():
    """Empty every cache of the module, as in a new process."""
    for cached in vars(pld).values():
        if not isinstance(cached, type) and hasattr(cached, "cache_clear"):
            cached.cache_clear()


def curve(grid, interval, epsilon):
    """The hockey-stick divergence of a discrete loss distribution, from its definition."""
    losses = (grid.lowest + np.arange(grid.probabilities.size)) * interval
    above = losses > epsilon
    finite = grid.probabilities[above] @ -np.expm1(epsilon - losses[above])
    return float(finite) + grid.infinity


def one_step_epsilon(rate, sigma, delta):
    return max(
        hockey_stick.epsilon_at(lambda e, d=d: hockey_stick.delta(e, rate, sigma, d), delta)
        for d in DIRECTIONS
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "sigma"), MECHANISMS)
def test_one_step_has_the_curve_of_the_definition_at_the_grid_points(rate, sigma, direction):
    interval = 1 / 64
    grid = loss_grids.loss_grids(SampledGaussian(rate, sigma), interval)[direction]
    for epsilon in (-4.0, -1.0, -0.125, 0.0, 0.125, 1.0, 4.0, 20.0):
        expected = float(hockey_stick.delta(epsilon, rate, sigma, direction))
        assert curve(grid, interval, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "sigma"), MECHANISMS)
def test_one_step_is_never_below_the_curve_between_the_grid_points(rate, sigma, direction):
    interval = 0.3
    grid = loss_grids.loss_grids(SampledGaussian(rate, sigma), interval)[direction]
    for epsilon in np.linspace(-2.95, 6.05, 31).tolist():
        true = float(hockey_stick.delta(epsilon, rate, sigma, direction))
        assert curve(grid, interval, epsilon) >= true * (1 - 1e-9) - 1e-15


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.3, 1.0, 10.0])
def test_a_full_batch_has_the_same_curve_in_both_directions(sigma, direction):
    interval = 0.05
    grid = loss_grids.loss_grids(SampledGaussian(1.0, sigma), interval)[direction]
    for epsilon in (0.0, 1.0, 10.0, 40.0, 60.0):
        expected = float(hockey_stick.delta(epsilon, 1.0, sigma, direction))
        assert curve(grid, interval, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "sigma"), MECHANISMS)
@pytest.mark.parametrize("interval", [0.1, 1e-3])
def test_the_masses_of_one_step_add_up_to_one(rate, sigma, interval, direction):
    grid = loss_grids.loss_grids(SampledGaussian(rate, sigma), interval)[direction]
    assert grid.probabilities.sum() + grid.infinity == pytest.approx(1, abs=1e-11)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "sigma"), [(1.0, 1.0), (0.5, 0.3), (0.01, 1.0)])
def test_losses_beyond_the_grid_count_as_infinite(rate, sigma, direction):
    interval = 0.1
    grid = loss_grids.loss_grids(SampledGaussian(rate, sigma), interval)[direction]
    beyond = (grid.lowest + grid.probabilities.size) * interval
    assert curve(grid, interval, beyond) == grid.infinity
    assert grid.infinity >= hockey_stick.delta(beyond, rate, sigma, direction)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-10])
@pytest.mark.parametrize(
    ("rate", "sigma"),
    [(0.01, 0.02), (0.01, 0.05), (0.5, 0.05), (0.2, 0.1), (0.01, 1.0), (0.9, 4.0)],
)
def test_one_step_is_tight_and_never_below_the_definition(rate, sigma, delta):
    exact = one_step_epsilon(rate, sigma, delta)
    found, _ = pld.epsilon({(rate, sigma): 1}, delta)
    assert exact <= found <= exact * 1.001


PAIRS = [
    ((0.1, 1.0), (0.01, 0.5), 0.5),
    ((0.1, 1.0), (0.01, 0.5), 2.0),
    ((0.5, 1.0), (0.6, 1.0), 0.1),
    ((0.5, 1.0), (0.6, 1.0), 1.0),
    ((0.3, 0.2), (0.5, 0.1), 40.0),
    ((1.0, 2.0), (0.1, 1.0), 2.0),
    ((1.0, 0.1), (0.1, 1.0), 60.0),
]


@pytest.mark.parametrize(("first", "second", "epsilon"), PAIRS)
def test_two_different_steps_compose_as_the_definition_says(first, second, epsilon):
    delta = max(hockey_stick.delta_of_two(epsilon, first, second, d) for d in DIRECTIONS)
    found, _ = pld.epsilon({first: 1, second: 1}, float(delta))
    assert epsilon * (1 - 1e-10) <= found <= epsilon * 1.001


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("total_sigma", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("steps", [1, 10, 1000, 100_000])
def test_gaussian_steps_compose_to_the_closed_form(steps, total_sigma, delta):
    exact = get_epsilon_gaussian(total_sigma, delta)
    found, _ = pld.epsilon({(1.0, total_sigma * math.sqrt(steps)): steps}, delta)
    # what rounding in the transforms may misplace is charged, and shows at the smallest delta
    rounding = pld.rounding(steps)
    assert exact <= found <= exact * (1.001 + 0.1 * rounding / delta)


@pytest.mark.parametrize(
    ("steps", "total_sigma", "delta"),
    [
        (10**6, 0.2318, 3.5e-9),
        (10**7, 0.3, 1e-10),
        (10**7, 1.0, 1e-10),
        (43_000_000, 2.7, 5e-10),
        (50_000_000, 0.2, 5e-9),
        (50_000_000, 0.2, 1e-8),
        (10**8, 1.0, 1e-8),
    ],
)
def test_rounding_in_millions_of_steps_is_charged(steps, total_sigma, delta):
    exact = get_epsilon_gaussian(total_sigma, delta)
    found, _ = pld.epsilon({(1.0, total_sigma * math.sqrt(steps)): steps}, delta)
    assert found >= exact


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta"),
    [(250 / 60_000, 4.0, 2500, 1e-6), (0.01, 4.0, 10_000, 1e-5), (0.1, 2.0, 200, 1e-8)],
)
def test_sampled_steps_agree_with_dp_accounting_on_a_fine_grid(rate, sigma, steps, delta):
    theirs = PLDAccountant(value_discretization_interval=1e-5)
    theirs.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    found, _ = pld.epsilon({(rate, sigma): steps}, delta)
    assert found == pytest.approx(theirs.get_epsilon(delta), rel=2e-4)


def test_a_fixed_interval_is_wrong_where_each_loss_is_tiny_and_refining_is_not():
    rate, sigma, steps, delta = 250 / 60_000, 4.0, 2500, 1e-6
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    coarse, fine = (PLDAccountant(value_discretization_interval=h) for h in (1e-3, 1e-5))
    coarse.compose(event, steps)
    fine.compose(event, steps)
    assert coarse.get_epsilon(delta) > 1.05 * fine.get_epsilon(delta)
    found, _ = pld.epsilon({(rate, sigma): steps}, delta)
    assert fine.get_epsilon(delta) - 1e-6 <= found <= 1.005 * fine.get_epsilon(delta)


@given(
    rate=st.floats(1e-3, 1),
    sigma=st.floats(0.3, 10),
    steps=st.integers(1, 2000),
    interval=st.floats(3e-3, 0.3),
)
@settings(max_examples=40, deadline=None)
def test_a_coarser_grid_never_promises_more(rate, sigma, steps, interval):
    counts = {(rate, sigma): steps}
    fine, _ = pld.epsilon(counts, 1e-5, interval)
    coarse, used = pld.epsilon(counts, 1e-5, 4 * interval)
    assert used == 4 * interval
    assert coarse >= fine * (1 - 1e-6) - 1e-9


@pytest.mark.parametrize(
    ("rate", "sigma", "steps"),
    [(0.01, 0.02, 10), (0.5, 0.05, 200), (0.1, 0.3, 5000), (0.5, 0.1, 20_000), (0.01, 0.1, 10**6)],
)
def test_a_huge_epsilon_is_finite_and_below_the_basic_composition(rate, sigma, steps):
    found, _ = pld.epsilon({(rate, sigma): steps}, 1e-5)
    assert 700 < found < steps * float(one_step_epsilon(rate, sigma, 1e-5 / steps))


@pytest.mark.parametrize(
    ("rate", "sigma", "steps"), [(1 / 60_000, 0.6, 10), (1e-6, 0.5, 1000), (1e-4, 0.3, 10)]
)
def test_rare_large_losses_do_not_outgrow_the_largest_grid(rate, sigma, steps, monkeypatch):
    composed = pld._composed

    def guarded(parts, interval, direction):
        low, high = pld._window(parts, interval, direction)
        assert high - low <= 2 * pld._MOST_POINTS
        return composed(parts, interval, direction)

    monkeypatch.setattr(pld, "_composed", guarded)
    assert pld.epsilon({(rate, sigma): steps}, 1e-5)[0] < 10


def test_consecutive_step_counts_share_a_grid_and_never_get_cheaper():
    found = [pld.epsilon({(0.01, 1.0): n}, 1e-5) for n in range(1025, 1200)]
    assert all(before[0] <= after[0] for before, after in itertools.pairwise(found))
    assert len({interval for _, interval in found}) == 1
    assert pld._settled.cache_info().currsize == 1


@pytest.mark.parametrize(
    ("rate", "sigma"), [(0.01, 1.0), (0.1, 4.0), (0.5, 0.5), (1e-3, 0.6), (0.004, 1.1)]
)
def test_past_a_power_of_two_one_more_step_is_cheaper_by_a_tenth_of_a_per_cent_at_most(rate, sigma):
    for exponent in range(3, 15):
        at, beyond = (pld.epsilon({(rate, sigma): 2**exponent + k}, 1e-5)[0] for k in (0, 1))
        assert beyond >= at * (1 - 1e-3)


QUESTIONS = [
    ({(0.01, 1.0): 100_000, (0.3, 0.3): 1}, 1e-5),
    ({(0.01, 1.0): 1, (0.3, 0.3): 100_000}, 1e-5),
    ({(0.01, 1.0): 1000}, 1e-5),
    ({(0.01, 1.0): 1000}, 1e-7),
    ({(0.01, 1.0): 1001}, 1e-5),
    ({(0.01, 1.0): 400_000}, 1e-5),
    ({(0.2, 3.0): 7, (0.1, 2.0): 70, (1.0, 9.0): 1, (0.01, 0.8): 700}, 1e-6),
    ({SampledGaussian(0.05, 1.5, True): 300}, 1e-5),
]


def test_what_was_asked_before_does_not_move_the_result():
    fresh = []
    for counts, delta in QUESTIONS:
        forget()
        fresh.append(pld.epsilon(counts, delta))
    for order in itertools.islice(itertools.permutations(range(len(QUESTIONS))), 0, None, 8000):
        forget()
        found = {k: pld.epsilon(*QUESTIONS[k]) for k in order}
        assert [found[k] for k in range(len(QUESTIONS))] == fresh


@pytest.mark.parametrize("interval", [None, 1e-3])
def test_the_order_of_the_mechanisms_does_not_move_the_result(interval):
    counts, delta = QUESTIONS[6]
    expected = pld.epsilon(counts, delta, interval)
    for items in itertools.permutations(counts.items()):
        forget()
        assert pld.epsilon(dict(items), delta, interval) == expected


@given(
    rate=st.floats(1e-4, 1),
    sigma=st.floats(0.3, 20),
    steps=st.integers(1, 20_000),
    delta=st.floats(1e-8, 1e-3),
)
@settings(max_examples=25, deadline=None)
def test_the_grid_is_fine_enough_for_the_question_itself(rate, sigma, steps, delta):
    counts = {(rate, sigma): steps}
    value, interval = pld.epsilon(counts, delta)
    if (
        pld._points(mixtures_of({SampledGaussian(rate, sigma): steps}), interval) * 16
        <= pld._MOST_POINTS
    ):
        finer, _ = pld.epsilon(counts, delta, interval / 4)
        assert value == pytest.approx(finer, rel=5e-3, abs=1e-9)


def test_a_composition_whose_mass_overflows_costs_infinity_and_not_nothing():
    losses, nothing = np.arange(-2.0, 3.0), np.zeros(5)
    assert pld._solve(losses, nothing, 0.0, 1e-5) == 0
    assert pld._solve(losses, nothing + np.nan, 0.0, 1e-5) == math.inf
    assert pld._solve(losses, nothing, math.nan, 1e-5) == math.inf


def test_more_steps_than_rounding_allows_cost_infinity():
    assert pld.epsilon({(0.01, 1.0): 10**12}, 1e-5)[0] == math.inf


@given(
    probabilities=st.lists(st.floats(0, 1), min_size=1, max_size=40),
    lowest=st.integers(-20, 20),
    interval=st.floats(1e-3, 60),
    delta=st.floats(1e-6, 0.5),
)
@settings(max_examples=300, deadline=None)
def test_the_solution_is_where_the_divergence_meets_delta(probabilities, lowest, interval, delta):
    masses = np.array(probabilities) / max(1.0, sum(probabilities))
    losses = (lowest + np.arange(masses.size)) * interval
    grid = loss_grids.Grid(lowest, masses, 1e-7)
    found = pld._solve(losses, masses, 1e-7, delta)
    assert curve(grid, interval, found) <= delta * (1 + 1e-9) + 1e-14
    if found > 0:
        assert curve(grid, interval, found * (1 - 1e-6) - 1e-9) >= delta * (1 - 1e-6) - 1e-14


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "sigma"), MECHANISMS)
def test_moments_are_bounded_from_above_and_closely(rate, sigma, direction):
    mechanism, interval = SampledGaussian(rate, sigma), 1e-3
    grid = loss_grids.loss_grids(mechanism, interval)[direction]
    places = grid.lowest + np.arange(grid.probabilities.size)
    deviation = math.sqrt(loss_grids.loss_variance(mechanism, interval, direction))
    for order in (-1 / deviation, -1e-3, 1e-3, 1 / deviation):
        exact = logsumexp(order * places, b=grid.probabilities)
        found = loss_grids.log_moment(mechanism, interval, direction, order)
        assert exact - 1e-9 <= found <= exact + 0.02 * (order * deviation) ** 2 * math.e + 1e-9


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("steps", [1, 30, 1000])
def test_what_lies_beyond_the_band_does_not_count(steps, direction, monkeypatch):
    parts = mixtures_of({SampledGaussian(0.1, 1 + k / 100): steps for k in range(50)})
    losses, narrow, _ = pld._composed(parts, 1e-3, direction)
    assert pld._band(parts, 1e-3, direction, losses.size) < losses.size // 4
    monkeypatch.setattr(pld, "_band", lambda parts, interval, direction, size: size // 2 + 1)
    _, full, _ = pld._composed(parts, 1e-3, direction)
    np.testing.assert_allclose(narrow, full, atol=1e-15)


def test_no_mechanisms_cost_nothing():
    assert pld.epsilon({}, 1e-5) == (0.0, 0.0)


@pytest.mark.parametrize("delta", [1e-11, 1e-13])
def test_a_delta_below_the_range_needs_no_grid(delta):
    found = epsilon_of({events.poisson(0.01, 1.0): 100}, delta)
    least = lower_bound.epsilon({(0.01, 1.0): 100}, delta, found)
    assert least <= found <= 1.01 * least
    assert found < epsilon_of({events.poisson(0.01, 1.0): 100}, delta, "rdp")


def test_noise_below_the_range_falls_back_to_renyi():
    counts = {events.poisson(0.01, 0.019): 100}
    assert epsilon_of(counts, 1e-5) == epsilon_of(counts, 1e-5, "rdp")
