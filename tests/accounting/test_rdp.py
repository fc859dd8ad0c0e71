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


@pytest.mark.parametrize("sigma", [0.8, 3.0])
@pytest.mark.parametrize("size", [10, 100, 500])
def test_fixed_size_sampling_covers_a_real_exchange(size, sigma):
    ours = events.divergence(events.fixed_size(1000, size, sigma), events.REPLACE)
    for order in (1.5, 2.0, 20.0):
        assert ours[place(order)] >= renyi.replaced_in_sample(size / 1000, sigma, order)


def theorem_27(rate, sigma, order):
    """The bound of Wang, Balle and Kasiviswanathan at a whole order, in mpmath."""
    with mp.workdps(60 + 8 * order):
        q, s = mp.mpf(rate), mp.mpf(sigma)

        def power(j):
            return mp.exp(mp.mpf(j) * (j - 1) / (2 * s**2))

        def moment(j):
            return mp.fsum((-1) ** (j - k) * mp.binomial(j, k) * power(k) for k in range(j + 1))

        even = {j: moment(j) for j in range(2, order + 2, 2)}
        terms = [
            mp.binomial(order, j)
            * q**j
            * min(4 * mp.sqrt(even[j // 2 * 2] * even[(j + 1) // 2 * 2]), 2 * power(j))
            for j in range(2, order + 1)
        ]
        return mp.log1p(mp.fsum(terms)) / (order - 1)


@pytest.mark.parametrize("order", [2, 3, 11, 40])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("sigma", [0.3, 1.19, 1.21, 2.0, 20.0, 1e4])
def test_fixed_size_sampling_has_the_bound_of_its_theorem(rate, sigma, order):
    expected = theorem_27(rate, sigma, order)
    ours = rdp.fixed_size_gaussian(rate, sigma)[place(order)]
    assert ours >= expected
    assert float(ours / expected) == pytest.approx(1, rel=1e-8)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.5), (0.01, 2.0), (0.3, 1.0), (1e-3, 5.0)])
def test_fixed_size_sampling_agrees_with_dp_accounting_where_nothing_cancels(rate, sigma):
    theirs = dp_accounting.rdp.RdpAccountant(
        orders=rdp.ORDERS[:120], neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    theirs.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(
            10**6, round(rate * 10**6), dp_accounting.GaussianDpEvent(sigma)
        )
    )
    ours = rdp.fixed_size_gaussian(rate, sigma)[:120]
    assert ours == pytest.approx(np.asarray(theirs.rdp), rel=1e-8)


@given(rate=rates, sigma=sigmas, factor=st.floats(1.01, 3))
@settings(max_examples=50, deadline=None)
def test_fixed_size_divergence_falls_as_noise_grows_and_grows_with_the_rate(rate, sigma, factor):
    here = rdp.fixed_size_gaussian(rate, sigma)
    assert (rdp.fixed_size_gaussian(rate, sigma * factor) < here).all()
    assert (rdp.fixed_size_gaussian(rate / factor, sigma) < here).all()


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
