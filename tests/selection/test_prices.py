"""The price of a selection, against the papers' figures and against exact toy selections."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

import privada as pv
from privada.accounting import events, rdp
from privada.accounting.repetition import liu_talwar, repeated, stopping_rate
from privada.selection.prices import SHAPES, WAYS, cost_of

MNIST = {"noise_multiplier": 4.0, "sampling_rate": 250 / 60_000, "delta": 1e-6}


def prices(**settings):
    return {each.how: each.epsilon for each in pv.selection.price(**(MNIST | settings))}


# ---------------------------------------------------------------------- published figures


def test_the_price_of_ten_runs_in_each_way():
    found = prices(steps=2500, candidates=10)
    assert found["repeat-geometric"] <= 0.492
    assert found["repeat-logarithmic"] <= 0.408
    assert found["repeat-poisson"] <= 0.501
    assert found["compose-rdp"] == pytest.approx(0.747, abs=5e-4)
    assert found["compose-pld"] == pytest.approx(0.691, abs=5e-4)
    assert prices(steps=2500, candidates=10, conversion="classic")["liu-talwar"] == pytest.approx(
        1.47, abs=5e-3
    )
    assert found["liu-talwar"] < 1.47


def test_table_1_of_001_for_mnist():
    """Liu-Talwar with 40 and 280 candidates, and four runs composed; classic conversion."""
    for candidates, how, published in (
        (40, "liu-talwar", 3.01),
        (280, "liu-talwar", 3.14),
        (4, "compose-rdp", 1.14),
    ):
        found = prices(steps=10_000, candidates=candidates, conversion="classic")
        assert found[how] == pytest.approx(published, abs=5e-3)


def test_theorem_1_is_as_printed():
    """eps_f = 3 eps_1 + 3 sqrt(2 delta_1), delta_f = sqrt(2 delta_1) Upsilon + delta_2."""
    asked = []

    def cost(delta):
        asked.append(delta)
        return 0.7

    delta_2, gamma, delta_f = 1e-12, 1 / 25, 1e-5
    found = liu_talwar(cost, 25, delta_f, hard_stop=delta_2)
    (delta_1,) = asked
    upsilon = math.log(1 / delta_2) / gamma
    assert math.sqrt(2 * delta_1) * upsilon + delta_2 == pytest.approx(delta_f, rel=1e-12)
    assert found == pytest.approx(3 * 0.7 + 3 * math.sqrt(2 * delta_1), rel=1e-12)


# ---------------------------------------------------------------------- another implementation


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("mean", [1.5, 10.0, 1000.0])
def test_repetition_is_that_of_dp_accounting(mean, shape):
    """On the same orders and divergences: those of a Gaussian, which both know exactly."""
    accountant = RdpAccountant(orders=list(rdp.ORDERS))
    gaussian = dp_accounting.GaussianDpEvent(5.0)
    accountant.compose(RepeatAndSelectDpEvent(gaussian, mean, shape))
    mine = repeated(rdp.sampled_gaussian(1.0, 5.0), mean, shape)
    for delta in (1e-3, 1e-6, 1e-10):
        theirs = accountant.get_epsilon(delta)
        assert rdp.to_epsilon(mine, delta) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("shape", [0.0, 0.3, 1.0, 7.0])
@given(st.floats(1.001, 300.0))
def test_the_stopping_rate_gives_the_mean(shape, mean):
    gamma = stopping_rate(mean, shape)
    assert 0 < gamma <= 1
    counts = np.arange(1, 100_000)
    assert _weights(counts, shape, gamma) @ counts == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 0.3, 1.0, 7.0])
def test_the_stopping_rate_of_very_many_runs(shape):
    rates = [stopping_rate(mean, shape) for mean in (1, 1 + 1e-15, 1 + 1e-7, 2, 1e3, 1e6, 1e12)]
    assert rates == sorted(rates, reverse=True)
    assert all(0 < each <= 1 for each in rates)


def _weights(counts, shape, gamma):
    """Return the probabilities of the truncated negative binomial, from its definition."""
    if gamma == 1:
        return (counts == 1).astype(float)
    logs = counts * math.log1p(-gamma)
    if shape == 0:
        weights = np.exp(logs) / counts / -math.log(gamma)
    else:
        from scipy.special import gammaln

        rising = gammaln(counts + shape) - gammaln(shape) - gammaln(counts + 1)
        weights = np.exp(logs + rising) / (gamma**-shape - 1)
    return weights


# ---------------------------------------------------------------------- exact toy selections


def divergence(p, q, order):
    """Return the Renyi divergence of two distributions on a few outcomes."""
    with np.errstate(divide="ignore"):
        logs = np.log(p) * order + np.log(q) * (1 - order)
    top = logs.max()
    return max(0.0, (top + math.log(np.exp(logs - top).sum())) / (order - 1))


def best_of(p, shape, mean):
    """Return the distribution of the best of a random number of draws, outcomes in rising order.

    With the generating function f of that number, P(best <= j) = f(P(one <= j)); "none" has f(0).
    """
    below = np.clip(np.cumsum(p), 0, 1)
    if shape == math.inf:
        total = np.exp(mean * (below - 1))
        return np.diff(np.concatenate([[0.0, math.exp(-mean)], total]))
    gamma = stopping_rate(mean, shape)
    if gamma > 1 - 1e-6:
        return p
    inside = 1 - (1 - gamma) * below
    if shape == 0:
        total = np.log(inside) / math.log(gamma)
    else:
        total = (inside**-shape - 1) / (gamma**-shape - 1)
    return np.diff(np.concatenate([[0.0], total]))


def pair(seed):
    """Return two distributions that differ by a bounded factor."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 7))
    p = rng.dirichlet(np.full(size, rng.uniform(0.2, 3))) + 1e-9
    q = p * np.exp(rng.uniform(-1, 1, size) * rng.uniform(0.01, 1.5))
    return p / p.sum(), q / q.sum()


def both(p, q):
    curves = [[divergence(a, b, order) for order in rdp.ORDERS] for a, b in ((p, q), (q, p))]
    return np.max(curves, axis=0)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 1.0, math.inf]),
       st.floats(1.0, 200.0))  # fmt: skip
def test_no_toy_selection_exceeds_its_price(seed, shape, mean):
    p, q = pair(seed)
    whole = both(best_of(p, shape, mean), best_of(q, shape, mean))
    priced = repeated(both(p, q), mean, shape)
    assert (whole <= priced * (1 + 1e-9) + 1e-9).all()


def test_a_price_for_one_run_alone_would_be_exceeded():
    """So that the test above can fail: a toy whose selection costs more than one of its runs."""
    p, q = np.array([0.98, 0.02]), np.array([0.99, 0.01])
    whole = both(best_of(p, 1.0, 50.0), best_of(q, 1.0, 50.0))
    one = both(p, q)
    assert (whole > 1.5 * one).any()
    assert (whole <= repeated(one, 50.0, 1.0)).all()


# ---------------------------------------------------------------------- behaviour


def test_prices_are_sorted_and_the_cheapest_is_marked():
    found = pv.selection.price(**MNIST, steps=2500, candidates=10)
    assert {each.how for each in found} == set(WAYS)
    assert [each.epsilon for each in found] == sorted(each.epsilon for each in found)
    assert [each.cheapest for each in found] == [True] + [False] * (len(WAYS) - 1)
    assert "the cheapest" in str(found[0])
    assert {each.released for each in found if each.how.startswith("compose")} == {"all models"}


@pytest.mark.parametrize("how", WAYS)
def test_more_candidates_cost_no_less(how):
    found = [prices(steps=500, candidates=k)[how] for k in (1, 2, 5, 20, 100)]
    assert found == sorted(found)


def test_one_run_costs_what_a_run_costs():
    found = prices(steps=2500, candidates=1)
    one = pv.accounting.epsilon(**MNIST, steps=2500)
    assert found["compose-pld"] == one
    assert found["repeat-geometric"] == found["repeat-logarithmic"]
    assert found["repeat-geometric"] <= pv.accounting.epsilon(**MNIST, steps=2500, accountant="rdp")


@pytest.mark.parametrize("how", [*WAYS, "cheapest"])
def test_the_noise_for_a_budget_fits_it_and_uses_it(how):
    plan = {"sampling_rate": 0.01, "steps": 300}
    sigma = pv.selection.noise_multiplier(epsilon=1.5, delta=1e-5, candidates=20, how=how, **plan)
    found = pv.selection.price(noise_multiplier=sigma, delta=1e-5, candidates=20, **plan)
    costs = {each.how: each.epsilon for each in found}
    cost = min(costs.values()) if how == "cheapest" else costs[how]
    assert 1.5 * 0.999 < cost <= 1.5


def test_a_schedule_of_multipliers_is_priced_as_it_is():
    several = {events.poisson(0.01, 2.0): 100, events.poisson(0.01, 3.0): 100}
    by_hand = cost_of(several, 10, 1e-5, "repeat-geometric")
    sigmas = [2.0] * 100 + [3.0] * 100
    found = pv.selection.price(
        noise_multiplier=sigmas, sampling_rate=0.01, candidates=10, delta=1e-5
    )
    assert {each.how: each.epsilon for each in found}["repeat-geometric"] == by_hand


def test_fixed_size_samples_have_a_price_too():
    found = pv.selection.price(
        noise_multiplier=8.0, sampling_rate=0.01, steps=100, candidates=5, delta=1e-5,
        sampling="fixed-size",
    )  # fmt: skip
    assert all(0 < each.epsilon < 20 for each in found)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"candidates": 0}, "mean >= 1"),
        ({"candidates": float("nan")}, "mean"),
        ({"candidates": "many"}, "mean"),
        ({"delta": 0.0}, "delta"),
        ({"conversion": "loose"}, "conversion"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"steps": None}, "steps"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(wrong, words):
    with pytest.raises(pv.ArgumentError, match=words):
        pv.selection.price(**({**MNIST, "steps": 100, "candidates": 4} | wrong))


def test_shapes_are_what_they_are_called():
    assert {
        "repeat-geometric": 1.0,
        "repeat-logarithmic": 0.0,
        "repeat-poisson": math.inf,
    } == SHAPES
