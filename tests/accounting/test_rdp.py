"""Renyi divergences against quadrature of their definition."""

import math

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import epsilon, events, rdp
from tests.oracles import renyi

ORDERS = (1.01, 1.1, 1.3, 2.0, 2.7, 10.9, 63.0, 1024.0)
RATES = (1e-6, 1e-4, 0.01, 0.5, 0.99, 1.0)
SIGMAS = (0.1, 0.3, 1.0, 4.0, 100.0)
GRID = [(rate, sigma) for rate in RATES for sigma in SIGMAS]
COVER = [pair for i, pair in enumerate(GRID) if i % 4 == 0]

rates = st.floats(1e-4, 0.99)
sigmas = st.floats(0.1, 100)


def place(order):
    return int(np.flatnonzero(np.isclose(rdp.ORDERS, order, rtol=1e-12))[0])


def check_against_the_definition(rate, sigma):
    ours = rdp.sampled_gaussian(rate, sigma)
    for order in ORDERS:
        expected = renyi.sampled_gaussian(rate, sigma, float(rdp.ORDERS[place(order)]))
        assert ours[place(order)] >= expected * (1 - mp.mpf(1e-9))
        if rate < 1e-5 and order % 1:  # the next whole order stands in, see _SMALLEST_RATE
            expected = renyi.sampled_gaussian(rate, sigma, math.ceil(order))
        assert float(ours[place(order)] / expected) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(("rate", "sigma"), COVER)
def test_divergence_is_that_of_the_definition(rate, sigma):
    check_against_the_definition(rate, sigma)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "sigma"), [pair for pair in GRID if pair not in COVER])
def test_divergence_is_that_of_the_definition_on_the_rest_of_the_grid(rate, sigma):
    check_against_the_definition(rate, sigma)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.5), (0.5, 1.0), (0.9, 3.0)])
def test_adding_a_record_diverges_no_more_than_removing_one(rate, sigma):
    ours = rdp.sampled_gaussian(rate, sigma)
    for order in (1.1, 2.0, 10.9):
        assert renyi.sampled_gaussian_reversed(rate, sigma, order) <= ours[place(order)]


@pytest.mark.parametrize("sigma", [1e-3, 5e-3])
def test_the_next_whole_order_stands_in_where_the_noise_is_tiny(sigma):
    ours = rdp.sampled_gaussian(0.1, sigma)
    assert ours[place(2.7)] == ours[place(3.0)]
    assert np.isfinite(ours).all()


@given(rate=st.floats(1e-7, 1), sigma=st.floats(0.05, 1e3))
@settings(max_examples=100, deadline=None)
def test_divergence_grows_with_the_order(rate, sigma):
    steps = np.diff(rdp.sampled_gaussian(rate, sigma))
    assert (steps >= -1e-9 * rdp.sampled_gaussian(rate, sigma)[:-1]).all()


@given(rate=rates, sigma=sigmas, factor=st.floats(1.01, 3))
@settings(max_examples=100, deadline=None)
def test_divergence_falls_as_the_noise_grows(rate, sigma, factor):
    more = rdp.sampled_gaussian(rate, sigma * factor)
    assert (more < rdp.sampled_gaussian(rate, sigma)).all()


@given(rate=rates, sigma=sigmas, share=st.floats(0.1, 0.99))
@settings(max_examples=100, deadline=None)
def test_divergence_grows_with_the_rate(rate, sigma, share):
    less = rdp.sampled_gaussian(max(1e-5, rate * share), sigma)
    assert (less < rdp.sampled_gaussian(rate, sigma)).all()


def test_replacing_a_record_halves_the_multiplier_of_a_gaussian():
    replacing = events.divergence(events.gaussian(6.0), events.REPLACE)
    assert replacing == pytest.approx(rdp.ORDERS / (2 * 3.0**2))
    adding = events.divergence(events.gaussian(6.0), events.ADD_OR_REMOVE)
    assert adding == pytest.approx(rdp.ORDERS / (2 * 6.0**2))


PLACES = [(0,), (5, 40, 120), (60, 3, 3), tuple(range(9, 190, 6)), tuple(range(len(rdp.ORDERS)))]


@pytest.mark.parametrize("places", PLACES, ids=len)
@pytest.mark.parametrize("divergence", [rdp.sampled_gaussian, rdp.fixed_size_gaussian])
@pytest.mark.parametrize("sigma", [0.0, 1e-5, 0.02, 0.7, 3.0, 100.0])
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.3, 1.0])
def test_chosen_orders_have_the_divergence_that_they_have_among_all(
    divergence, rate, sigma, places
):
    if sigma == 0.02:  # where the grid of fractional orders has most points
        places = places[:3]
    expected = divergence(rate, sigma)[list(places)]
    found = divergence(rate, sigma, places)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert not found.flags.writeable  # it is kept, and one caller may not change another's
    assert divergence(rate, sigma, places) is found


@pytest.mark.parametrize("order", [1.01, 1.5, 10.9])
@pytest.mark.parametrize(("rate", "sigma"), [(1e-5, 1e4), (1e-5, 100.0), (0.5, 1e4)])
def test_divergences_of_tiny_losses_do_not_cancel(rate, sigma, order):
    expected = renyi.sampled_gaussian(rate, sigma, float(rdp.ORDERS[place(order)]))
    ours = rdp.sampled_gaussian(rate, sigma)[place(order)]
    assert expected <= ours <= expected * (1 + 1e-9)


def test_divergences_add_up():
    counts = {events.poisson(0.1, 2.0): 3, events.gaussian(5.0): 7}
    expected = 3 * rdp.sampled_gaussian(0.1, 2.0) + 7 * rdp.ORDERS / 50
    assert events.total_divergence(counts, events.ADD_OR_REMOVE) == pytest.approx(
        expected, rel=1e-14
    )


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_conversion_is_the_least_over_the_orders(delta, scale):
    curve = scale * rdp.ORDERS
    expected = min(
        renyi.epsilon(mp.mpf(d), order, delta) for d, order in zip(curve, rdp.ORDERS, strict=True)
    )
    assert rdp.to_epsilon(curve, delta) == pytest.approx(float(expected), rel=1e-12)


def test_conversion_is_zero_only_where_the_total_variation_is_within_delta():
    # Bretagnolle and Huber: TV <= sqrt(1 - exp(-KL)).
    delta = 1e-4
    enough = -math.log1p(-(delta**2))
    assert rdp.to_epsilon(np.full_like(rdp.ORDERS, enough * 0.999), delta) == 0
    assert rdp.to_epsilon(np.full_like(rdp.ORDERS, enough * 1.001), delta) > 0


def test_orders_that_do_not_converge_elsewhere_are_kept():
    theirs = dp_accounting.rdp.RdpAccountant()
    theirs.compose(
        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(0.3)), 40
    )
    assert theirs.get_epsilon(0.0025) > 38
    ours = epsilon(
        sampling_rate=0.05, noise_multiplier=0.3, steps=40, delta=0.0025, accountant="rdp"
    )
    assert ours == pytest.approx(33.446, abs=5e-4)


def test_the_published_federated_figure_is_what_order_one_and_a_quarter_gives():
    divergence = 40 * renyi.sampled_gaussian(0.05, 0.3, 1.25)
    assert float(renyi.epsilon(divergence, 1.25, 0.0025)) == pytest.approx(34.17, abs=5e-3)
