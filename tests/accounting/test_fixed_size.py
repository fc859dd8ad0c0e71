"""Fixed-size sampling without replacement, for replacing one record."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve
from scipy.stats import norm

import privada as pv
from privada.accounting import epsilon_of, events, loss_grids, pld
from privada.accounting.mixtures import SampledGaussian


def amplified_delta(epsilon, rate, sigma):
    """Balle, Barthe and Gaboardi (2018), Theorem 11, on the Gaussian's own curve."""
    inner = math.log1p(math.expm1(epsilon) / rate)
    tails = norm.cdf(0.5 / sigma - inner * sigma), norm.cdf(-0.5 / sigma - inner * sigma)
    return rate * (tails[0] - math.exp(inner) * tails[1])


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_one_step_has_the_curve_of_the_amplification_theorem(rate, sigma):
    for epsilon in (0.01, 0.1, 0.5):
        delta = amplified_delta(epsilon, rate, sigma)
        if delta < 1e-9:
            continue
        found, _ = pld.epsilon({SampledGaussian(rate, sigma, True): 1}, delta)
        assert epsilon <= found * (1 + 1e-12)
        assert found == pytest.approx(epsilon, rel=2e-3)


def instance_delta(epsilon, sigma, steps, others):
    """The divergence of a real instance: one of two scalars in [-1, 1] a step, its sum released.

    The first record is 1 or -1; the second is `others`. The losses of one step are put on a fine
    grid, rounded down, so that the result is a lower bound, and convolved.
    """
    x = np.linspace(-1 - 12 * sigma, 1 + 12 * sigma, 40_001)
    width = x[1] - x[0]
    p = (norm.pdf(x, 1, sigma) + norm.pdf(x, others, sigma)) / 2
    q = (norm.pdf(x, -1, sigma) + norm.pdf(x, others, sigma)) / 2
    grain = 1e-3
    index = np.floor(np.log(p / q) / grain).astype(int)
    low = index.min()
    one = np.bincount(index - low, weights=p * width)
    total = one
    for _ in range(steps - 1):
        total = np.maximum(fftconvolve(total, one), 0.0)
    losses = (np.arange(total.size) + steps * low) * grain
    above = losses > epsilon
    return float(total[above] @ -np.expm1(epsilon - losses[above]))


@pytest.mark.parametrize("others", [-1.0, 0.0, 0.5, 1.0])
@pytest.mark.parametrize(("sigma", "steps"), [(2.0, 1), (2.0, 4), (5.0, 8)])
def test_no_real_instance_exceeds_the_composed_curve(sigma, steps, others):
    event = events.fixed_size(2, 1, sigma)
    for delta in (1e-2, 1e-3, 1e-4):
        epsilon = epsilon_of({event: steps}, delta)
        assert instance_delta(epsilon, sigma, steps, others) <= delta * 1.001


def test_the_instance_oracle_would_notice_a_multiplier_that_is_not_halved():
    wrong, _ = pld.epsilon({SampledGaussian(0.5, 2.0, True): 4}, 1e-3)
    assert instance_delta(wrong, 2.0, 4, 0.0) > 1e-3


@given(rate=st.floats(1e-3, 0.95), sigma=st.floats(0.8, 20), steps=st.integers(1, 300))
@settings(max_examples=25, deadline=None)
def test_the_tight_bound_is_below_renyi_and_above_poisson_of_half_the_noise(rate, sigma, steps):
    size = max(1, round(rate * 10_000))
    fixed = {events.fixed_size(10_000, size, sigma): steps}
    tight = epsilon_of(fixed, 1e-5)
    assert tight <= epsilon_of(fixed, 1e-5, "rdp") * (1 + 2e-3)
    poisson = epsilon_of({events.poisson(size / 10_000, sigma / 2): steps}, 1e-5)
    assert tight >= poisson * (1 - 2e-3)


def test_the_whole_batch_is_a_gaussian_of_half_the_noise():
    whole = epsilon_of({events.fixed_size(500, 500, 6.0): 10}, 1e-5)
    assert whole == pytest.approx(epsilon_of({events.gaussian(3.0): 10}, 1e-5), rel=1e-9)


def test_the_loss_distribution_is_its_own_dual():
    removing, adding = loss_grids.loss_grids(SampledGaussian(0.2, 1.5, True), 1e-3)
    assert removing is adding
    size = removing.probabilities.size
    assert removing.lowest == -(size // 2)
    losses = (removing.lowest + np.arange(size)) * 1e-3
    dual = (removing.probabilities * np.exp(-losses))[::-1]
    assert np.allclose(removing.probabilities, dual, atol=1e-15)
    assert removing.probabilities.sum() + removing.infinity == pytest.approx(1, abs=1e-12)


def test_a_rate_stands_for_the_records():
    by_rate = pv.accounting.epsilon(
        sampling_rate=0.02, noise_multiplier=4.0, steps=100, delta=1e-5, sampling="fixed-size"
    )
    assert by_rate == pytest.approx(epsilon_of({events.fixed_size(500, 10, 4.0): 100}, 1e-5))


def test_calibration_covers_fixed_size_sampling():
    sigma = pv.accounting.noise_multiplier(
        epsilon=1.0, delta=1e-5, sampling_rate=0.02, steps=100, sampling="fixed-size"
    )
    cost = epsilon_of({events.fixed_size(500, 10, sigma): 100}, 1e-5)
    assert 0.998 < cost <= 1.0
