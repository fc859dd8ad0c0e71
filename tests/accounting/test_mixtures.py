"""Multipliers mixed from a lattice: never cheaper than one by one, and hardly dearer."""

import math
from unittest import mock

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import epsilon_of, events, mixtures, noise_multiplier, pld
from privada.accounting.mixtures import Mixture, SampledGaussian, around, mixtures_of, share_of
from tests.oracles import hockey_stick

DIRECTIONS = (hockey_stick.REMOVING, hockey_stick.ADDING)
multipliers = st.floats(math.log(0.02), math.log(1e4)).map(math.exp)


def one_by_one(counts, delta, interval):
    """The epsilon of mechanisms that are all taken as they are."""
    with mock.patch.object(mixtures, "_MOST_EXACT", len(counts)):
        return pld.epsilon(counts, delta, interval)[0]


@given(
    rate=st.floats(1e-4, 1),
    near=st.floats(0.02, 30),
    ratio=st.floats(1.001, 3),
    place=st.floats(0, 1),
    epsilon=st.floats(-5, 20),
)
@settings(max_examples=300, deadline=None)
def test_a_mixture_has_at_least_the_divergence_of_what_is_between(
    rate, near, ratio, place, epsilon
):
    far = near * ratio
    sigma = min(far, max(near, near * ratio**place))
    share = share_of(sigma, near, far)
    for direction in DIRECTIONS:
        of_near, of_sigma, of_far = (
            hockey_stick.delta(epsilon, rate, s, direction) for s in (near, sigma, far)
        )
        with mp.workdps(50):
            mixture = share * of_near + (1 - mp.mpf(share)) * of_far
            assert mixture >= of_sigma * (1 - mp.mpf(10) ** -40)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 7.0, 1e4])
def test_no_smaller_share_would_do(sigma):
    near, far = around(sigma)
    share = share_of(sigma, near, far)
    of_near, of_sigma, of_far = (
        hockey_stick.delta(0.0, 0.5, s, hockey_stick.REMOVING) for s in (near, sigma, far)
    )
    least = (of_sigma - of_far) / (of_near - of_far)
    assert least <= share <= least + 1e-10


@given(sigma=multipliers)
def test_a_multiplier_lies_between_its_neighbours_on_the_lattice(sigma):
    near, far = around(sigma)
    assert near <= sigma < far
    assert far / near == pytest.approx(2 ** (1 / 64))
    assert around(near)[0] == near


@given(
    sigmas=st.lists(multipliers, min_size=1, max_size=60, unique=True),
    count=st.integers(1, 10**6),
)
@settings(max_examples=50, deadline=None)
def test_parts_hold_every_release(sigmas, count):
    counts = {SampledGaussian(0.1, s): count for s in sigmas}
    parts = mixtures_of(counts)
    assert sum(part.steps for part in parts) == count * len(sigmas)
    assert all(0 < share <= 1 for part in parts for share, _ in part.shares)
    if len(sigmas) <= 16:
        assert parts == tuple(Mixture(m, m, ((1.0, count),)) for m in sorted(counts))
    for limit in sigmas:
        below = sum(part.steps for part in parts if part.near.sigma <= limit)
        assert below >= sum(n for m, n in counts.items() if m.sigma <= limit)


def test_few_multipliers_beside_many_at_another_rate_stay_as_they_are():
    few = {SampledGaussian(0.2, 1.0 + k): 1 for k in range(3)}
    many = {SampledGaussian(0.1, 1.0 + k / 100): 1 for k in range(40)}
    exact = [part.near for part in mixtures_of(few | many) if part.near == part.far]
    assert exact == list(few)


def test_of_thousands_of_multipliers_shares_are_rounded_up():
    sigmas = np.geomspace(1, 2, 1001)
    exact, rounded = (
        mixtures_of({SampledGaussian(0.1, s): 1 for s in sigmas[:n]}) for n in (1000, 1001)
    )
    for before, after in zip(exact, rounded[:-1], strict=False):
        assert (before.near, before.far) == (after.near, after.far)
        assert before.mean <= after.mean <= before.mean + 1 / 16
    assert all((16 * share).is_integer() for part in rounded for share, _ in part.shares)


def theirs(rate, sigmas, interval, pessimistic):
    """dp_accounting's epsilon of releases composed one by one, a bound from above or from below."""
    composed = privacy_loss_distribution.identity(interval, pessimistic)
    for sigma in sigmas:
        composed = composed.compose(
            privacy_loss_distribution.from_gaussian_mechanism(
                sigma,
                sampling_prob=rate,
                value_discretization_interval=interval,
                pessimistic_estimate=pessimistic,
                use_connect_dots=pessimistic,
            )
        )
    return composed.get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize(
    ("rate", "low", "high", "interval"),
    [(0.01, 0.8, 1.6, 1e-3), (0.1, 0.4, 0.8, 1e-2), (0.3, 3.0, 9.0, 1e-3), (0.001, 0.5, 1.0, 1e-3)],
)
def test_a_schedule_costs_what_dp_accounting_says_one_by_one(rate, low, high, interval):
    sigmas = np.geomspace(low, high, 24)
    found = epsilon_of({events.poisson(rate, s): 1 for s in sigmas}, 1e-5)
    assert theirs(rate, sigmas, interval, pessimistic=False) <= found
    assert found <= theirs(rate, sigmas, interval, pessimistic=True) * 1.003


@given(
    sigmas=st.lists(st.floats(0.3, 20), min_size=17, max_size=40, unique=True),
    rate=st.floats(2e-3, 0.5),
    steps=st.integers(1, 200),
    replacing=st.booleans(),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
)
@settings(max_examples=25, deadline=None)
def test_mixing_never_under_charges_and_hardly_over(sigmas, rate, steps, replacing, delta):
    counts = {SampledGaussian(rate, s, replacing): steps for s in sigmas}
    mixed, interval = pld.epsilon(counts, delta)
    exact = one_by_one(counts, delta, interval)
    same, _ = pld.epsilon(counts, delta, interval)
    assert exact * (1 - 1e-9) <= mixed <= same
    assert same <= 1.003 * exact + 1e-6


@given(seed=st.integers(0, 2**32 - 1), rate=st.floats(5e-3, 0.2), low=st.floats(0.5, 3))
@settings(max_examples=3, deadline=None)
def test_rounding_shares_never_under_charges_and_hardly_over(seed, rate, low):
    sigmas = low * 2 ** np.random.default_rng(seed).uniform(0, 0.5, 200)
    counts = {SampledGaussian(rate, s): 1 for s in sigmas}
    with mock.patch.object(mixtures, "_MOST_SHARES", 100):
        rounded, interval = pld.epsilon(counts, 1e-5)
    exact = one_by_one(counts, 1e-5, interval)
    assert exact * (1 - 1e-9) <= rounded <= 1.005 * exact


@given(
    sigmas=st.lists(st.floats(0.5, 8), min_size=30, max_size=60, unique=True),
    rate=st.floats(0.01, 0.3),
)
@settings(max_examples=5, deadline=None)
def test_on_one_grid_more_steps_never_get_cheaper(sigmas, rate):
    counts = [{SampledGaussian(rate, s): 1 for s in sigmas[:n]} for n in range(17, len(sigmas))]
    found = [pld.epsilon(each, 1e-5, 4.0**-5)[0] for each in counts]
    assert found == sorted(found)


def test_what_was_asked_before_does_not_move_a_mixture():
    counts = {SampledGaussian(0.01, 1 + k / 50): 1 + k for k in range(40)}
    first = pld.epsilon(counts, 1e-5)
    for asked in (dict(list(counts.items())[:n]) for n in (39, 17, 25)):
        pld.epsilon(asked, 1e-5)
    assert pld.epsilon(dict(reversed(counts.items())), 1e-5) == first


@pytest.mark.parametrize("steps", [20, 300, 2000])
def test_a_long_schedule_is_calibrated_to_its_budget(steps):
    schedule = [(20 + t) ** 0.25 for t in range(steps)]
    sigma = noise_multiplier(
        epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=steps, schedule=schedule
    )
    spent = epsilon_of({events.poisson(0.01, sigma * f): 1 for f in schedule}, 1e-5)
    assert 0.999 <= spent <= 1.0
