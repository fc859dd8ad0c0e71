"""What a budget affords, and what is said about arguments that make no sense."""

import contextlib
import math
import re
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import (
    ACCOUNTANTS,
    batch_size,
    calibration,
    epsilon,
    epsilon_of,
    events,
    noise_multiplier,
    pld,
    steps,
)
from privada.accounting.accountants import costs
from privada.accounting.calibration import Estimate, plan
from privada.core.errors import ArgumentError

NAN, INF = math.nan, math.inf


ESTIMATES = {
    "right": lambda sigma: 3 / sigma**2,
    "a tenth off": lambda sigma: 3.3 / sigma**2,
    "far off": lambda sigma: 1e6 / sigma,
    "level": lambda sigma: 1.0,
    "rising": lambda sigma: sigma,
    "nothing": lambda sigma: 0.0,
    "infinite": lambda sigma: INF,
    "a jump": lambda sigma: INF if sigma < 2 else 0.0,
}


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
@pytest.mark.parametrize("target", [1e-8, 1.0, 1e4])
def test_no_estimate_leads_beyond_the_target(estimate, target):
    for about in (Estimate(estimate), Estimate(ESTIMATES["a tenth off"], estimate)):
        sigma = calibration.least_noise(lambda sigma: 3 / sigma**2, target, "a target", about)
        assert 0.9995 * target <= 3 / sigma**2 <= target


def test_a_cost_that_jumps_is_met_with_an_estimate_too():
    def cost(sigma):
        return 2.0 if sigma < 3 else 0.5 / sigma

    sigma = calibration.least_noise(cost, 1.0, "a target", Estimate(lambda sigma: 3 / sigma))
    assert 3 <= sigma <= 3 * (1 + 1e-6)


def test_a_good_estimate_saves_most_of_the_work():
    asked = []

    def cost(sigma):
        asked.append(sigma)
        return 3 / sigma**1.5

    calibration.least_noise(cost, 1e-3, "a target")
    without = len(asked)
    asked.clear()
    rough = Estimate(lambda sigma: 3.3 / sigma**1.6)
    calibration.least_noise(cost, 1e-3, "a target", rough)
    assert len(asked) <= without / 2
    asked.clear()
    calibration.least_noise(
        cost, 1e-3, "a target", Estimate(rough.rough, lambda sigma: 3.0003 / sigma**1.5)
    )
    assert len(asked) == 1


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize(("rate", "count"), [(0.01, 3000), (0.1, 300), (0.5, 10)])
def test_the_close_estimate_is_close_and_is_checked(sampling, rate, count):
    """By the same accountant as without it, which has the last word."""
    plan = {"sampling_rate": rate, "steps": count, "delta": 1e-6, "sampling": sampling}
    about = calibration.estimate(**plan)
    sigma = noise_multiplier(epsilon=1.0, **plan)
    spent = epsilon(noise_multiplier=sigma, **plan)
    assert 0.9995 <= spent <= 1.0
    assert about.close(sigma) == pytest.approx(spent, rel=2e-3)
    assert calibration.estimate(**(plan | {"sampling_rate": 1e-5})).close is None


@pytest.mark.parametrize("rate", [1e-5, 0.01])
@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_a_long_schedule_meets_its_budget_whatever_it_is_estimated_by(rate, sampling):
    schedule = np.geomspace(0.2, 5.0, 40).tolist()
    arguments = {"delta": 1e-6, "sampling_rate": rate, "sampling": sampling}
    sigma = noise_multiplier(epsilon=1.0, steps=40, schedule=schedule, **arguments)
    multipliers = [sigma * factor for factor in schedule]
    assert 0.999 <= epsilon(noise_multiplier=multipliers, **arguments) <= 1.0


@pytest.mark.parametrize(
    ("target", "rate", "count", "delta", "accountant"),
    [
        (1e-6, 0.01, 1000, 1e-5, "pld"),
        (1e-3, 0.2, 1, 1e-3, "pld"),
        (0.1, 0.01, 1000, 1e-5, "rdp"),
        (0.5, 1.0, 100, 1e-6, "pld"),
        (1.0, 0.01, 1000, 1e-5, "pld"),
        (1.0, 0.01, 1000, 1e-5, "moments"),
        (8.0, 0.004, 15_000, 1e-5, "pld"),
        (100.0, 0.01, 1000, 1e-5, "pld"),
        (1000.0, 0.01, 1000, 1e-5, "pld"),
        (1000.0, 1.0, 100, 1e-6, "pld"),
        (1e5, 0.01, 1000, 1e-5, "rdp"),
    ],
)
def test_calibrated_noise_costs_the_budget_and_no_more(target, rate, count, delta, accountant):
    sigma = noise_multiplier(
        epsilon=target, delta=delta, sampling_rate=rate, steps=count, accountant=accountant
    )
    spent = epsilon(
        sampling_rate=rate, noise_multiplier=sigma, steps=count, delta=delta, accountant=accountant
    )
    assert 0.998 * target < spent <= target


@given(
    target=st.floats(0.05, 20),
    rate=st.floats(0.01, 0.5),
    count=st.integers(10, 2000),
    delta=st.floats(1e-8, 1e-3),
)
@settings(max_examples=5, deadline=None)
def test_any_calibrated_noise_costs_the_budget_and_no_more(target, rate, count, delta):
    sigma = noise_multiplier(epsilon=target, delta=delta, sampling_rate=rate, steps=count)
    spent = epsilon(sampling_rate=rate, noise_multiplier=sigma, steps=count, delta=delta)
    assert 0.998 * target < spent <= target


def test_calibrated_noise_stays_affordable_in_another_process():
    sigma = noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
    for asked_before in ([], [1, 600], [1, 10, 100, 999]):
        pld._settled.cache_clear()
        for count in asked_before:
            pld.epsilon({(0.01, sigma): count}, 1e-5)
        assert pld.epsilon({(0.01, sigma): 1000}, 1e-5)[0] <= 1.0
        costs._epsilon.cache_clear()
        again = noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000)
        assert again == sigma


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_schedule_scales_the_noise_of_each_step(accountant):
    schedule = [(1 + t) ** 0.25 for t in range(60)]
    sigma = noise_multiplier(
        epsilon=1.0,
        delta=1e-5,
        sampling_rate=0.1,
        steps=60,
        accountant=accountant,
        schedule=schedule,
    )
    spent = epsilon(
        sampling_rate=0.1,
        noise_multiplier=[sigma * factor for factor in schedule],
        delta=1e-5,
        accountant=accountant,
    )
    assert 0.998 < spent <= 1.0


def test_a_flat_schedule_is_no_schedule():
    arguments = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.05, "steps": 200}
    flat = noise_multiplier(**arguments, schedule=[2.0] * 200)
    assert 2 * flat == pytest.approx(noise_multiplier(**arguments), rel=1e-3)


def test_a_target_that_no_noise_reaches_is_refused():
    # 32 moments cannot promise less than log(1 / delta) / 32
    with pytest.raises(ArgumentError, match=r"epsilon=0\.3 at delta=1e-05.*no amount of noise"):
        noise_multiplier(
            epsilon=0.3, delta=1e-5, sampling_rate=0.01, steps=10, accountant="moments"
        )


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 4.0), (0.3, 1.0), (1.0, 30.0)])
def test_one_more_step_than_the_most_is_too_many(rate, sigma, accountant):
    most = steps(
        epsilon=1.5,
        delta=1e-5,
        sampling_rate=rate,
        noise_multiplier=sigma,
        accountant=accountant,
    )
    event = events.poisson(rate, sigma)
    assert most > 0 or (rate, sigma) == (0.3, 1.0)
    assert epsilon_of({event: most}, 1e-5, accountant) <= 1.5
    assert epsilon_of({event: most + 1}, 1e-5, accountant) > 1.5


def test_steps_stop_at_the_limit_and_at_nothing():
    cheap = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.01, "noise_multiplier": 100.0}
    assert steps(**cheap, most=50) == 50
    dear = {"epsilon": 0.1, "delta": 1e-5, "sampling_rate": 1.0, "noise_multiplier": 1.0}
    assert steps(**dear) == 0


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("sigma", "count"), [(2.0, 1000), (8.0, 3000)])
def test_one_more_record_than_the_largest_batch_is_too_many(sigma, count, accountant):
    population = 60_000
    most = batch_size(
        epsilon=1.0,
        delta=1e-5,
        population=population,
        noise_multiplier=sigma,
        steps=count,
        accountant=accountant,
    )
    assert 0 < most < population
    here, beyond = (
        epsilon_of({events.poisson(size / population, sigma): count}, 1e-5, accountant)
        for size in (most, most + 1)
    )
    assert here <= 1.0 < beyond


def test_batches_stop_at_everyone_and_at_nobody():
    plenty = {"epsilon": 5.0, "delta": 1e-5, "noise_multiplier": 50.0, "steps": 10}
    assert batch_size(**plenty, population=500) == 500
    scarce = {"epsilon": 1e-3, "delta": 1e-5, "noise_multiplier": 0.5, "steps": 1000}
    assert batch_size(**scarce, population=20) == 0


def test_a_plan_counts_each_pair_of_rate_and_noise():
    tally = plan(sampling_rate=[0.1, 0.2, 0.1], noise_multiplier=np.array([1.0, 2.0, 1.0]))
    assert tally == {events.poisson(0.1, 1.0): 2, events.poisson(0.2, 2.0): 1}
    assert plan(sampling_rate=1, noise_multiplier=2, steps=7) == {events.gaussian(2.0): 7}
    assert plan(sampling_rate=(0.5, 0.5), noise_multiplier=3.0) == {events.poisson(0.5, 3.0): 2}


@pytest.mark.parametrize("kind", [float, np.float64, np.float32, np.array])
def test_numpy_scalars_are_numbers(kind):
    if kind is np.array:
        kind = lambda x: np.array([x])[0]  # noqa: E731
    found = epsilon(
        sampling_rate=kind(0.5), noise_multiplier=kind(2.0), steps=np.int64(10), delta=kind(2**-17)
    )
    expected = epsilon(sampling_rate=0.5, noise_multiplier=2.0, steps=10, delta=2**-17)
    assert found == expected


CALLS = {
    epsilon: {"sampling_rate": 0.1, "noise_multiplier": 1.0, "steps": 10, "delta": 1e-5},
    noise_multiplier: {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 10},
    steps: {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "noise_multiplier": 1.0},
    batch_size: {
        "epsilon": 1.0,
        "delta": 1e-5,
        "population": 100,
        "noise_multiplier": 1.0,
        "steps": 10,
    },
}
BAD = {
    "epsilon": [0, -1.0, NAN, INF, True, "1", None],
    "delta": [0, 1, -1e-5, 2.0, NAN, INF, True, "1e-5", None],
    "sampling_rate": [0, -0.1, 1.5, NAN, INF, True, "0.1", b"0.1", None],
    "noise_multiplier": [0, -1.0, NAN, INF, True, "1", b"1", None],
    "steps": [0, -3, 1.5, 10.0, NAN, True, "10"],
    "population": [0, -1, 1.5, True, "100", None],
    "accountant": ["gdp", "PLD", None, 3],
}
CASES = [
    (call, name, value)
    for call, good in CALLS.items()
    for name, values in BAD.items()
    if name in good or name == "accountant"
    for value in values
]


@pytest.mark.parametrize(
    ("call", "name", "value"), CASES, ids=[f"{c.__name__}-{n}-{v!r}" for c, n, v in CASES]
)
def test_a_bad_argument_is_named_with_its_value(call, name, value):
    with pytest.raises(ArgumentError) as error:
        call(**{**CALLS[call], name: value})
    assert name in str(error.value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("name", ["sampling_rate", "noise_multiplier"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([0.5] * 9, "9 entries for steps=10"),
        ([0.5] * 11, "11 entries for steps=10"),
        ([], "(0,)"),
        (np.full((5, 2), 0.5), "(5, 2)"),
        ([[0.5], [0.5, 0.5]], ""),
        ([0.5] * 4 + [0.0] + [0.5] * 5, "[4]=0.0"),
        ([0.5] * 9 + [NAN], "[9]=nan"),
        ([0.5] * 9 + [-1.0], "[9]=-1.0"),
        ([0.5] * 9 + [None], "[9]=None"),
    ],
    ids=["short", "long", "empty", "matrix", "ragged", "zero", "nan", "negative", "none"],
)
def test_a_bad_sequence_is_named_with_its_place(name, value, said):
    with pytest.raises(ArgumentError) as error:
        epsilon(**{**CALLS[epsilon], name: value})
    assert name in str(error.value)
    assert said in str(error.value)


def test_sequences_of_two_lengths_are_refused():
    with pytest.raises(ArgumentError, match="sampling_rate to have one entry per step"):
        epsilon(sampling_rate=[0.1] * 2, noise_multiplier=[1.0] * 3, delta=1e-5)


def test_steps_are_asked_for_when_nothing_tells_them():
    with pytest.raises(ArgumentError, match="steps=None"):
        epsilon(sampling_rate=0.1, noise_multiplier=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ([1.0] * 9, "(9,)"),
        ([], "(0,)"),
        ([[1.0]] * 10, "(10, 1)"),
        ([1.0] * 9 + [0.0], "0.0"),
        ([1.0] * 9 + [-2.0], "-2.0"),
        ([1.0] * 9 + [NAN], "nan"),
        ("abc", "abc"),
    ],
    ids=["short", "empty", "matrix", "zero", "negative", "nan", "text"],
)
def test_a_bad_schedule_is_named(schedule, said):
    with pytest.raises(ArgumentError) as error:
        noise_multiplier(**CALLS[noise_multiplier], schedule=schedule)
    assert "schedule" in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize("most", [0, 1.5, True])
def test_a_bad_limit_of_steps_is_named(most):
    with pytest.raises(ArgumentError, match=rf"most={most!r}"):
        steps(**CALLS[steps], most=most)


def test_an_unknown_way_of_sampling_is_named():
    with pytest.raises(ArgumentError, match="sampling='shuffle'"):
        epsilon(**CALLS[epsilon], sampling="shuffle")


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@given(
    target=st.sampled_from([5e-324, 1e-12, 1e-3, 3.0, 1e6, 1.7e308]),
    rate=st.sampled_from([5e-324, 1e-12, 1e-4, 0.1, 1 - 1e-16, 1.0]),
    count=st.sampled_from([1, 1000, 10**8, 2**53]),
    delta=st.sampled_from([5e-324, 1e-300, 1e-11, 1e-5, 0.5, 1 - 1e-16]),
)
@settings(max_examples=4, deadline=None)
def test_extreme_budgets_are_kept_or_refused(sampling, accountant, target, rate, count, delta):
    plan = {"sampling_rate": rate, "steps": count, "delta": delta}
    plan |= {"accountant": accountant, "sampling": sampling}
    refused = pytest.raises(ArgumentError, match=re.escape(f"epsilon={target} at delta={delta}"))
    with contextlib.suppress(ArgumentError):
        sigma = noise_multiplier(epsilon=target, **plan)
        assert epsilon(noise_multiplier=sigma, **plan) <= target
        return
    with refused:
        noise_multiplier(epsilon=target, **plan)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@given(
    target=st.sampled_from([5e-324, 1e-3, 3.0, 1.7e308]),
    share=st.sampled_from([5e-324, 1e-9, 0.1, 1 - 1e-16, 1.0]),
    sigma=st.sampled_from([5e-324, 1e-9, 0.5, 1e9, 1.7e308]),
    delta=st.sampled_from([5e-324, 1e-11, 1e-5, 1 - 1e-16]),
)
@settings(max_examples=8, deadline=None)
def test_extreme_budgets_afford_what_fits(accountant, target, share, sigma, delta):
    budget = {"epsilon": target, "delta": delta, "noise_multiplier": sigma}
    budget |= {"accountant": accountant}
    most = steps(**budget, sampling_rate=share, most=10_000)
    assert epsilon_of({events.poisson(share, sigma): most}, delta, accountant) <= target
    batch = batch_size(**budget, population=10**5, steps=100)
    if batch:
        event = events.poisson(batch / 10**5, sigma)
        assert epsilon_of({event: 100}, delta, accountant) <= target


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (epsilon, "steps"),
        (noise_multiplier, "steps"),
        (steps, "most"),
        (batch_size, "steps"),
        (batch_size, "population"),
    ],
)
def test_a_count_beyond_exact_numbers_is_named(call, name):
    with pytest.raises(ArgumentError, match=rf"{name} <= 2\*\*53, got {name}=1000000"):
        call(**{**CALLS[call], name: 10**400})


@pytest.mark.parametrize("factor", [5e-324, 1e-310, 1e305])
def test_a_schedule_that_leaves_the_range_of_numbers_is_named(factor):
    with pytest.raises(ArgumentError, match=r"schedule\[1\]="):
        noise_multiplier(**{**CALLS[noise_multiplier], "steps": 2}, schedule=[1.0, factor])


def test_a_schedule_is_counted_and_a_wrong_entry_named_where_it_comes_first():
    entries = [1.0, 2.0, 1.0, 1.0, 2.0]
    tally = plan(sampling_rate=0.1, noise_multiplier=entries)
    assert tally == {events.poisson(0.1, 1.0): 3, events.poisson(0.1, 2.0): 2}
    by_both = plan(sampling_rate=[0.1, 0.2, 0.1, 0.1, 0.1], noise_multiplier=entries)
    assert by_both[events.poisson(0.1, 1.0)] == 3
    assert by_both[events.poisson(0.2, 2.0)] == 1
    with pytest.raises(ArgumentError, match=r"noise_multiplier\[2\]"):
        plan(sampling_rate=0.1, noise_multiplier=[1.0, 1.0, -1.0, 2.0, -1.0])
    with pytest.raises(ArgumentError, match=r"noise_multiplier\[1\]"):
        plan(sampling_rate=0.1, noise_multiplier=[1.0, {}])


def test_each_different_entry_of_a_schedule_is_looked_at_once():
    entries = [1.0, 2.0] * 500
    with mock.patch.object(calibration, "positive", wraps=calibration.positive) as checked:
        plan(sampling_rate=0.1, noise_multiplier=entries)
    assert checked.call_count == 2
