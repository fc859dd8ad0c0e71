"""Divergences of fixed-size samples against the curve of the amplification theorem, in mpmath."""

import math

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import events, rdp
from privada.accounting.fixed_size_divergences import fixed_size_divergences
from tests.oracles import renyi

ORDERS = (1.01, 1.5, 2.0, 6.3, 30.0, 128.0, 1024.0)
RATES = (1e-8, 1e-5, 1e-3, 0.1, 0.7, 1 - 1e-6)
SIGMAS = (0.01, 0.1, 0.3, 1.0, 3.0, 20.0, 1e3, 1e6)
GRID = [(rate, sigma) for rate in RATES for sigma in SIGMAS]
COVER = [(rate, sigma) for rate, sigma in GRID if sigma in (0.1, 1.0, 3.0, 1e6)]

rates = st.floats(math.log(1e-8), math.log(0.999)).map(math.exp)
sigmas = st.floats(math.log(1e-2), math.log(1e6)).map(math.exp)


def place(order):
    return int(np.flatnonzero(np.isclose(rdp.ORDERS, order, rtol=1e-12))[0])


def check_against_the_curve(rate, sigma, orders):
    ours = rdp.fixed_size_gaussian(rate, sigma)
    for order in orders:
        expected = renyi.amplified_curve(rate, sigma, float(rdp.ORDERS[place(order)]))
        assert expected <= ours[place(order)] <= expected * (1 + mp.mpf(6e-10))


@pytest.mark.parametrize(("rate", "sigma"), COVER)
def test_divergence_is_that_of_the_amplified_curve(rate, sigma):
    check_against_the_curve(rate, sigma, (1.01, 6.3, 128.0))


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "sigma"), GRID)
def test_divergence_is_that_of_the_amplified_curve_at_more_orders(rate, sigma):
    check_against_the_curve(rate, sigma, ORDERS)


@pytest.mark.parametrize("sigma", [0.01, 0.5, 4.0, 1e4])
def test_the_curve_of_the_whole_is_the_gaussians(sigma):
    """So that the oracle is held to a closed form too."""
    for order in (1.01, 3.0, 50.0):
        expected = mp.mpf(order) / (2 * mp.mpf(sigma) ** 2)
        whole = renyi.amplified_curve(1.0 - 2**-53, sigma, order)
        assert float(whole / expected) == pytest.approx(1, rel=1e-13)


@pytest.mark.parametrize("sigma", [1e-3, 0.01, 0.7, 3.0, 1e4])
def test_the_whole_is_a_gaussian(sigma):
    expected = rdp.ORDERS / (2 * sigma**2)
    np.testing.assert_array_equal(rdp.fixed_size_gaussian(1.0, sigma), expected)
    nearly = rdp.fixed_size_gaussian(1 - 1e-13, sigma)
    np.testing.assert_allclose(nearly, expected, rtol=1e-9)
    assert (nearly <= expected).all()


@pytest.mark.parametrize("sigma", [0.3, 0.8, 3.0])
@pytest.mark.parametrize("size", [10, 100, 500])
@pytest.mark.parametrize("others", [-1.0, 0.0, 0.4])
@pytest.mark.parametrize("backwards", [False, True])
def test_no_real_exchange_diverges_by_more(size, sigma, others, backwards):
    ours = events.divergence(events.fixed_size(1000, size, sigma), events.REPLACE)
    for order in (1.5, 2.0, 20.0):
        real = renyi.replaced_in_sample(size / 1000, sigma, order, others, backwards)
        assert real <= ours[place(order)]


def test_a_real_exchange_would_notice_a_multiplier_that_is_not_halved():
    wrong = rdp.fixed_size_gaussian(0.5, 3.0)
    assert renyi.replaced_in_sample(0.5, 3.0, 2.0) > wrong[place(2.0)]


def theorem_27(rate, sigma, order):
    """The bound of Wang, Balle and Kasiviswanathan (2019) at a whole order, in mpmath."""
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
@pytest.mark.parametrize("sigma", [0.3, 1.2, 20.0, 1e4])
def test_the_bound_by_moments_is_never_lower(rate, sigma, order):
    assert rdp.fixed_size_gaussian(rate, sigma)[place(order)] <= theorem_27(rate, sigma, order)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.5), (0.01, 2.0), (0.3, 1.0), (1e-3, 5.0)])
def test_dp_accounting_is_never_lower(rate, sigma):
    theirs = dp_accounting.rdp.RdpAccountant(
        orders=rdp.ORDERS[:120], neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    theirs.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(
            10**6, round(rate * 10**6), dp_accounting.GaussianDpEvent(sigma)
        )
    )
    ours = rdp.fixed_size_gaussian(rate, sigma)[:120]
    assert (ours <= np.asarray(theirs.rdp)).all()


@given(rate=rates, sigma=sigmas)
@settings(max_examples=100, deadline=None)
def test_replacing_costs_no_less_than_removing_and_no_more_than_without_sampling(rate, sigma):
    """At one noise over what a change moves the sum by: the curve has Poisson sampling's half."""
    ours = rdp.fixed_size_gaussian(rate, sigma)
    assert (ours <= rdp.ORDERS / (2 * sigma**2)).all()
    if rate >= 1e-5 and sigma >= 0.05:
        assert (ours >= rdp.sampled_gaussian(rate, sigma) * (1 - 1e-9)).all()


@given(rate=rates, sigma=sigmas, factor=st.floats(1.001, 3))
@settings(max_examples=200, deadline=None)
def test_divergence_falls_with_the_noise_and_grows_with_the_rate_and_the_order(rate, sigma, factor):
    here = rdp.fixed_size_gaussian(rate, sigma)
    assert np.isfinite(here).all()
    assert (here > 0).all()
    assert (rdp.fixed_size_gaussian(rate, sigma * factor) < here).all()
    # without much noise next to nothing is left of the rate but a logarithm
    assert (rdp.fixed_size_gaussian(rate / factor, sigma) <= here * (1 + 1e-12)).all()
    assert (np.diff(here) > 0).all()


@pytest.mark.parametrize("rate", [1e-8, 0.01, 0.9])
def test_with_next_to_no_noise_a_larger_bound_stands_in(rate):
    below, above = (fixed_size_divergences(rate, s, rdp.ORDERS) for s in (0.99999e-4, 1e-4))
    assert (below > above).all()
    np.testing.assert_allclose(below, above, rtol=1e-3)
    tiny = fixed_size_divergences(rate, 1e-90, rdp.ORDERS)
    np.testing.assert_allclose(tiny, rdp.ORDERS / 2 * 1e180, rtol=1e-9)


def test_noise_beyond_numbers_costs_infinity_or_next_to_nothing():
    assert (rdp.fixed_size_gaussian(0.1, 0.0) == np.inf).all()
    least = rdp.fixed_size_gaussian(1e-8, 1e150)
    assert ((least > 0) & (least < 1e-200)).all()
