"""What plans cost: reference values, dp_accounting's traps, and what must always hold."""

import math
import subprocess
import sys
from collections import Counter
from unittest import mock

import dp_accounting as dp
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import (
    ACCOUNTANTS,
    epsilon,
    epsilon_of,
    events,
    mixtures,
    pld,
    rdp,
)
from privada.accounting.accountants import costs, loss_distributions, renyi, sampled_gaussians
from privada.accounting.mixtures import SampledGaussian
from privada.core.errors import ArgumentError, EventError
from tests.forks import PATIENCE
from tests.oracles import hockey_stick

REPLACE_ONE = dp.NeighboringRelation.REPLACE_ONE

rates = st.floats(1e-3, 1)
sigmas = st.floats(0.5, 50)
counts = st.integers(1, 5000)
deltas = st.floats(1e-9, 1e-2)


def cost(rate, sigma, steps, delta, accountant):
    return epsilon(
        sampling_rate=rate,
        noise_multiplier=sigma,
        steps=steps,
        delta=delta,
        accountant=accountant,
    )


REFERENCE = [
    (1, 10, 100, 1e-5, 4.7285, 4.3772),
    (256 / 60_000, 1.1, 14_063, 1e-5, 2.5967, 2.3817),
    (0.01, 4, 10_000, 1e-5, 1.0355, 0.9469),
    (0.1, 20, 5000, 1e-6, 1.6641, 1.5467),
    (0.02, 1.2, 3000, 1e-6, 6.0971, 5.6687),
]


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta", "renyi", "tight"), REFERENCE)
def test_reference_values(rate, sigma, steps, delta, renyi, tight):
    # dp_accounting 0.6.0, RDP at its default orders and PLD at an interval of 1e-5
    assert cost(rate, sigma, steps, delta, "rdp") == pytest.approx(renyi, rel=5e-5)
    assert cost(rate, sigma, steps, delta, "pld") == pytest.approx(tight, rel=2e-3)


def test_reference_value_of_the_moments_accountant():
    # Abadi et al. (2016), Section 4: 1.26
    assert cost(0.01, 4, 10_000, 1e-5, "moments") == pytest.approx(1.2586, rel=5e-5)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "published"),
    [
        (64 / 24_768, 1.0, 12_384, 4e-5, 1.52),
        (64 / 60_032, 1.0, 75_040, 1 / 60_000, 1.59),
        (0.008, 0.7, 2250, 1e-3, 4.13),
    ],
    ids=["imdb", "autoencoder", "toy"],
)
def test_published_values_of_adadps(rate, sigma, steps, delta, published):
    assert cost(rate, sigma, steps, delta, "rdp") == pytest.approx(published, abs=5e-3)


def test_reference_value_of_one_run_of_a_selection():
    assert cost(250 / 60_000, 4.0, 2500, 1e-6, "rdp") == pytest.approx(0.230, abs=5e-4)
    assert cost(250 / 60_000, 4.0, 2500, 1e-6, "pld") == pytest.approx(0.203, abs=5e-4)


SCHEDULE = [t**0.25 for t in range(1, 1001)]


def test_reference_values_of_a_thousand_multipliers():
    found = {
        name: epsilon(sampling_rate=0.01, noise_multiplier=SCHEDULE, delta=1e-5, accountant=name)
        for name in ("rdp", "pld")
    }
    assert found["rdp"] == pytest.approx(0.9878, rel=5e-5)
    assert found["pld"] == pytest.approx(0.3031, rel=0.02)


@pytest.mark.slow
def test_a_thousand_multipliers_cost_no_less_than_without_grouping():
    grouped = epsilon(sampling_rate=0.01, noise_multiplier=SCHEDULE, delta=1e-5)
    with mock.patch.object(mixtures, "_MOST_EXACT", 1000):
        ungrouped, _ = pld.epsilon({(0.01, sigma): 1 for sigma in SCHEDULE}, 1e-5)
    assert ungrouped * (1 - 1e-4) <= grouped <= ungrouped * 1.005


def theirs(accountant, event, count, delta):
    accountant.compose(event, count)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(("sigma", "steps"), [(2.0, 1), (2.0, 10), (20.0, 100)])
def test_replacing_a_record_costs_what_twice_the_sensitivity_costs(sigma, steps, accountant):
    event = dp.GaussianDpEvent(sigma)
    tight = theirs(PLDAccountant(REPLACE_ONE), event, steps, 1e-5)
    renyi = theirs(dp.rdp.RdpAccountant(neighboring_relation=REPLACE_ONE), event, steps, 1e-5)
    assert renyi < 0.6 * tight
    whole = epsilon_of({events.fixed_size(1000, 1000, sigma): steps}, 1e-5, accountant)
    beside = {events.gaussian(sigma): steps, events.fixed_size(1000, 1, 1e3): 1}
    for ours in (whole, epsilon_of(beside, 1e-5, accountant)):
        assert tight * (1 - 1e-6) <= ours <= 1.15 * tight


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_forty_thousand_multipliers_are_grouped(accountant):
    plan = [2 + t / 1e4 for t in range(40_000)]
    found = epsilon(sampling_rate=0.001, noise_multiplier=plan, delta=1e-5, accountant=accountant)
    assert cost(0.001, 6.0, 40_000, 1e-5, accountant) < found
    assert found < cost(0.001, 2.0, 40_000, 1e-5, accountant)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_thousands_of_fixed_size_multipliers_are_grouped_and_rounded_down(accountant):
    plan = {events.fixed_size(10_000, 10, 4 + t / 1000): 10 for t in range(2001)}
    plan[events.gaussian(30.0)] = 1
    found = epsilon_of(plan, 1e-5, accountant)
    middle, least = (
        epsilon_of(
            {events.fixed_size(10_000, 10, s): 20_010, events.gaussian(30.0): 1}, 1e-5, accountant
        )
        for s in (5.0, 4.0)
    )
    assert middle < found < least
    if accountant != "pld":
        ungrouped = events.total_divergence(plan, events.REPLACE)
        convert = rdp.to_epsilon if accountant == "rdp" else rdp.moments_epsilon
        exact = convert(ungrouped, 1e-5)
        assert exact <= found <= exact * 1.005


mixed = st.dictionaries(
    st.builds(SampledGaussian, st.floats(1e-3, 1), st.floats(0.3, 30)),
    st.integers(1, 1000),
    min_size=2,
    max_size=60,
)


@given(counts=mixed, groups=st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_every_group_stands_for_steps_that_cost_no_more(counts, groups):
    grouped = sampled_gaussians.grouped(counts, groups)
    assert sum(grouped.values()) == sum(counts.values())
    for corner in counts:
        at_least = [
            sum(n for m, n in tally.items() if m.rate >= corner.rate and m.sigma <= corner.sigma)
            for tally in (grouped, counts)
        ]
        assert at_least[0] >= at_least[1]


@given(
    sigmas=st.lists(st.floats(0.8, 20), min_size=30, max_size=30, unique=True),
    rates=st.lists(st.floats(5e-3, 0.3), min_size=30, max_size=30),
    steps=st.integers(1, 50),
)
@settings(max_examples=8, deadline=None)
def test_grouping_never_under_charges(sigmas, rates, steps):
    plan = {events.poisson(q, s): steps for q, s in zip(rates, sigmas, strict=True)}
    ungrouped = {name: epsilon_of(plan, 1e-5, name) for name in ACCOUNTANTS}
    costs._epsilon.cache_clear()
    with (
        mock.patch.object(loss_distributions, "_MOST_DISTINCT", 3),
        mock.patch.object(renyi, "_MOST_DISTINCT", 3),
    ):
        grouped = {name: epsilon_of(plan, 1e-5, name) for name in ACCOUNTANTS}
    costs._epsilon.cache_clear()
    assert grouped["pld"] >= ungrouped["pld"] * (1 - 1e-4)
    assert grouped["rdp"] >= ungrouped["rdp"]
    assert grouped["moments"] >= ungrouped["moments"]


def test_grouping_is_tried_by_the_property_above():
    plan = {events.poisson(0.01 + k / 1e4, 1 + k / 10): 1 for k in range(30)}
    with (
        mock.patch.object(loss_distributions, "_MOST_DISTINCT", 3),
        mock.patch.object(
            loss_distributions, "grouped", wraps=loss_distributions.grouped
        ) as grouped,
    ):
        costs._epsilon.cache_clear()
        epsilon_of(plan, 1e-5)
    costs._epsilon.cache_clear()
    assert grouped.call_count > 1


@pytest.mark.parametrize(("size", "seed"), [(60, 0), (120, 4)])
def test_many_spread_out_multipliers_cost_no_more_by_the_tight_accountant(size, seed):
    random = np.random.default_rng(seed)
    plan = {
        events.poisson(rate, sigma): int(count)
        for rate, sigma, count in zip(
            10 ** random.uniform(-3, -0.3, size),
            10 ** random.uniform(-0.3, 1.7, size),
            random.integers(1, 50, size),
            strict=True,
        )
    }
    assert epsilon_of(plan, 1e-5) <= epsilon_of(plan, 1e-5, "rdp") * (1 + 1e-9)


@pytest.mark.parametrize(
    "event", [events.poisson(1e-4, 2.0), events.fixed_size(10**6, 100, 2.0)], ids=repr
)
def test_where_rounding_outgrows_delta_the_renyi_bound_takes_over(event):
    plan = {event: 2_000_000}
    assert epsilon_of(plan, 1e-10) <= epsilon_of(plan, 1e-10, "rdp") < math.inf


class ExponentialMechanismDpEvent(dp.DpEvent):
    """An event of later releases of dp_accounting, whose accountant forgets its count."""

    epsilon = 0.1


GAUSSIAN = dp.GaussianDpEvent(1.0)
UNKNOWN = [
    ExponentialMechanismDpEvent(),
    dp.NonPrivateDpEvent(),
    dp.UnsupportedDpEvent(),
    dp.LaplaceDpEvent(1.0),
    dp.dp_event.DiscreteLaplaceDpEvent(1.0, 1),
    dp.RandomizedResponseDpEvent(0.5, 2),
    dp.ZCDpEvent(0.1),
    dp.SampledWithReplacementDpEvent(100, 10, GAUSSIAN),
    dp.SingleEpochTreeAggregationDpEvent(1.0, 10),
    dp.dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 10.0, 1.0),
    dp.dp_event.MixtureOfGaussiansDpEvent(1.0, (1.0, 2.0), (0.5, 0.5)),
    dp.TruncatedSubsampledGaussianDpEvent(1000, 0.01, 20, 1.0),
    dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)),
    dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(GAUSSIAN, 10)),
    dp.PoissonSampledDpEvent(0.1, dp.PoissonSampledDpEvent(0.1, GAUSSIAN)),
]


@pytest.mark.parametrize("event", UNKNOWN, ids=lambda event: type(event).__name__)
def test_an_unknown_event_is_refused_by_name(event):
    with pytest.raises(EventError, match=type(event).__name__):
        epsilon_of({event: 1}, 1e-5)
    with pytest.raises(EventError, match=type(event).__name__):
        events.tally(dp.ComposedDpEvent([GAUSSIAN, dp.SelfComposedDpEvent(event, 3)]))


def test_every_event_of_dp_accounting_is_known_or_refused():
    known = {
        dp.GaussianDpEvent,
        dp.PoissonSampledDpEvent,
        dp.SampledWithoutReplacementDpEvent,
        dp.NoOpDpEvent,
        dp.SelfComposedDpEvent,
        dp.ComposedDpEvent,
        events.Parallel,
        events.Selected,
        events.Failure,
    }
    elsewhere = "tests.contracts.test_event_kinds"  # which has one of its own
    found = {kind for kind in dp.DpEvent.__subclasses__() if kind.__module__ != elsewhere}
    assert found - known == {type(event) for event in UNKNOWN} - known


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("make", [events.gaussian, lambda s: events.poisson(0.1, s)])
def test_a_multiplier_of_zero_costs_infinity(make, accountant):
    assert epsilon_of({make(0.0): 1, events.gaussian(5.0): 3}, 1e-5, accountant) == math.inf


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(
    "event",
    [
        events.gaussian(math.nan),
        events.gaussian(-1.0),
        events.poisson(0.1, math.nan),
        events.poisson(0.1, math.inf),
        events.poisson(math.nan, 1.0),
        events.poisson(1.5, 1.0),
        events.poisson(0.0, 1.0),
        events.fixed_size(10, 11, 1.0),
        events.fixed_size(10, 1, math.nan),
    ],
    ids=repr,
)
def test_an_event_without_a_meaning_is_refused_and_never_free(event, accountant):
    with pytest.raises(EventError, match=type(event).__name__):
        epsilon_of({event: 1}, 1e-5, accountant)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_nothing_costs_nothing(accountant):
    assert epsilon_of({}, 1e-5, accountant) == 0
    assert epsilon_of(Counter({events.gaussian(1.0): 0}), 1e-5, accountant) == 0


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_relations_are_not_mixed(accountant):
    with pytest.raises(EventError, match="one way of sampling"):
        epsilon_of(
            {events.poisson(0.1, 1.0): 1, events.fixed_size(10, 1, 1.0): 1}, 1e-5, accountant
        )


@pytest.mark.parametrize("delta", [1e-12, 1e-8, 1e-5, 1e-2])
@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 30.0])
def test_a_gaussian_costs_its_closed_form(sigma, delta):
    exact = hockey_stick.gaussian_epsilon(sigma, delta)
    found = epsilon_of({events.gaussian(sigma): 1}, delta)
    assert exact <= found <= exact * (1 + 1e-8)


def test_unsampled_releases_add_their_inverse_variances():
    apart = {events.gaussian(3.0): 2, events.gaussian(6.0): 4}
    assert epsilon_of(apart, 1e-5) == pytest.approx(
        epsilon_of({events.gaussian(math.sqrt(3.0)): 1}, 1e-5), rel=1e-12
    )
    beside = epsilon_of({**apart, events.poisson(0.1, 2.0): 10}, 1e-5)
    merged, _ = pld.epsilon({(1.0, math.sqrt(3.0)): 1, (0.1, 2.0): 10}, 1e-5)
    assert beside == pytest.approx(merged, rel=1e-9)


@given(rate=rates, sigma=sigmas, steps=counts, delta=deltas)
@settings(max_examples=25, deadline=None)
def test_the_tight_accountant_is_below_renyi_and_renyi_below_moments(rate, sigma, steps, delta):
    tight, renyi, moments = (
        cost(rate, sigma, steps, delta, name) for name in ("pld", "rdp", "moments")
    )
    assert 0 <= tight <= renyi * (1 + 1e-9)
    assert renyi <= moments * (1 + 1e-9)


# What refining a grid may leave of the discretisation: pld's _STABLE.
ROUGHLY = {"pld": 1e-3, "rdp": 1e-9, "moments": 1e-9}


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@given(rate=rates, sigma=sigmas, steps=counts, delta=deltas, more=st.floats(1.01, 4))
@settings(max_examples=6, deadline=None)
def test_cost_is_monotone(accountant, rate, sigma, steps, delta, more):
    here = cost(rate, sigma, steps, delta, accountant)
    dearer = {
        "steps": cost(rate, sigma, steps + math.ceil(steps * (more - 1)), delta, accountant),
        "rate": cost(min(1, rate * more), sigma, steps, delta, accountant),
        "noise": cost(rate, sigma / more, steps, delta, accountant),
        "delta": cost(rate, sigma, steps, delta / more, accountant),
    }
    for name, value in dearer.items():
        assert value >= here * (1 - ROUGHLY[accountant]), name


ORDER = """
from privada.accounting import ACCOUNTANTS, epsilon_of, events
plan = {events.poisson(0.01 + k / 1e4, 1 + k / 7): k + 1 for k in range(60)}
plan |= {events.gaussian(20 + k / 3): k + 1 for k in range(9)}
print([epsilon_of(plan, 1e-5, name).hex() for name in ACCOUNTANTS])
"""


def test_another_process_with_other_hashes_finds_the_same_to_the_last_bit():
    said = {
        subprocess.run(
            [sys.executable, "-c", ORDER],
            env={"PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
            timeout=PATIENCE,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(said) == 1


EXTREME = {
    "rate": [5e-324, 1e-200, 1e-20, 1e-9, 0.1, 1 - 1e-12, 1 - 1e-16, 1.0],
    "sigma": [5e-324, 1e-200, 1e-9, 0.019, 0.5, 1e4, 1e9, 1.7e308],
    "steps": [1, 1000, 10**9, 2**53],
    "delta": [5e-324, 1e-300, 1e-11, 1e-5, 0.5, 1 - 1e-16],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@given(
    rate=st.sampled_from(EXTREME["rate"]) | st.floats(0, 1, exclude_min=True),
    sigma=st.sampled_from(EXTREME["sigma"]) | st.floats(0, exclude_min=True, allow_infinity=False),
    steps=st.sampled_from(EXTREME["steps"]) | st.integers(1, 10**6),
    delta=st.sampled_from(EXTREME["delta"]) | st.floats(0, 1, exclude_min=True, exclude_max=True),
)
@settings(max_examples=60, deadline=None)
def test_extreme_plans_have_a_cost(sampling, accountant, rate, sigma, steps, delta):
    found = epsilon(
        sampling_rate=rate,
        noise_multiplier=sigma,
        steps=steps,
        delta=delta,
        accountant=accountant,
        sampling=sampling,
    )
    assert found >= 0


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@given(
    rate=st.floats(-20, 0).map(lambda x: 10**x),
    sigma=st.floats(-4, 9).map(lambda x: 10**x),
    delta=st.floats(-40, -0.1).map(lambda x: 10**x),
)
@settings(max_examples=40, deadline=None)
def test_an_extreme_step_costs_no_less_than_its_definition(accountant, rate, sigma, delta):
    found = cost(rate, sigma, 1, delta, accountant)
    for direction in (hockey_stick.REMOVING, hockey_stick.ADDING):
        assert hockey_stick.delta(found, rate, sigma, direction) <= delta * (1 + 1e-12)


@pytest.mark.parametrize("delta", [1e-300, 1e-40, 1e-12, 0.3])
@pytest.mark.parametrize("sigma", [1e-7, 1e-4, 9e-4, 1.1e-3, 1e5, 1e7])
def test_an_extreme_gaussian_is_bounded_closely(sigma, delta):
    found = epsilon_of({events.gaussian(sigma): 1}, delta)
    with mp.workdps(60):
        exact = hockey_stick.gaussian_epsilon(sigma, delta)
        assert exact <= found <= exact * (1 + 1e-5) + mp.mpf(1e-11)


def test_noise_without_end_is_not_free():
    assert epsilon_of({events.gaussian(1e200): 5}, 1e-300) > 0
    beside = {events.gaussian(1e200): 5, events.poisson(0.1, 1.0): 1}
    assert epsilon_of(beside, 1e-5) >= epsilon_of({events.poisson(0.1, 1.0): 1}, 1e-5) * (1 - 1e-3)


def test_noise_that_vanishes_costs_infinity():
    assert epsilon_of({events.gaussian(1e-200): 1}, 1e-5) == math.inf
    assert epsilon_of({events.fixed_size(10, 1, 5e-324): 1}, 1e-5) == math.inf


def test_a_total_variation_within_delta_costs_nothing_and_beyond_it_something():
    event = events.poisson(1e-7, 0.5)
    variation = 1e-7 * math.erf(1 / math.sqrt(2))  # erf(1 / (2 sqrt(2) sigma))
    steps = int(1e-5 / variation)
    assert epsilon_of({event: steps - 1}, 1e-5) == 0
    single = hockey_stick.delta(0.0, 1e-7, 0.5, hockey_stick.REMOVING)
    assert variation == pytest.approx(float(single), rel=1e-9)


def test_a_count_beyond_exact_numbers_is_named():
    with pytest.raises(ArgumentError, match=r"count <= 2\*\*53, got count=9007199254740993"):
        epsilon_of({events.gaussian(1.0): 2**53 + 1}, 1e-5)
