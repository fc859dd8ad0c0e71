"""Random strategies on real ledgers, replayed exactly: none spends more than the ledger says.

A strategy sees the outcome of a first Gaussian release and chooses by it what to ask for next,
among releases that its ledger may refuse. What it spends in truth is an integral over the first
outcome of closed forms for the second.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from privada.accounting import Budget, Ledger, epsilon_of, events
from privada.core.errors import BudgetExceeded

DELTA = 1e-3


def gaussian_delta(sigma, epsilon):
    """Return the hockey-stick divergence of N(1 / sigma, 1) from N(0, 1)."""
    mu = 1 / sigma
    if epsilon > 700:
        return 0.0
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


def removal_delta(rate, sigma, epsilon):
    """Return that of the mixture with the record from the release without it."""
    scale = math.exp(min(epsilon, 700.0)) - (1 - rate)
    if scale <= 0:  # every outcome counts
        return -math.expm1(epsilon)
    return rate * gaussian_delta(sigma, math.log(scale / rate))


def addition_delta(rate, sigma, epsilon):
    """Return that of the release without the record from the mixture with it."""
    left = 1 - math.exp(min(epsilon, 700.0)) * (1 - rate)
    if left <= 0:
        return 0.0
    return left * gaussian_delta(sigma, epsilon + math.log(rate / left))


def curve_of(event, direction):
    """Return delta(epsilon) of an event in one direction; of nothing, that of no release."""
    if event is None:
        return lambda epsilon: max(0.0, -math.expm1(min(epsilon, 0.0)))
    release = events.release_of(event)
    rate, sigma = release.sampling_rate, release.noise_multiplier
    if rate == 1:
        return lambda epsilon: gaussian_delta(sigma, epsilon)
    each = removal_delta if direction == "remove" else addition_delta
    return lambda epsilon: each(rate, sigma, epsilon)


def spent(first, regions):
    """Return the delta that is spent: for each region of the first outcome, by its own epsilon.

    It is the larger of both directions of E_P[(1 - e^(epsilon - L))_+], epsilon and what follows
    being those of the region. In standard deviations of the noise, the loss of an outcome z is
    z / sigma - 1 / (2 sigma^2) where z has mean 1 / sigma under P.
    """
    mu, found = 1 / first, []
    for direction, mean, sign in (("remove", mu, 1.0), ("add", 0.0, -1.0)):
        total = 0.0
        for low, high, epsilon, event in regions:
            curve = curve_of(event, direction)

            def height(z, curve=curve, epsilon=epsilon, mean=mean, sign=sign):
                loss = sign * (mu * z - mu * mu / 2)
                return norm.pdf(z - mean) * curve(epsilon - loss)

            bounds = max(low, mean - 9.0), min(high, mean + 9.0)
            if bounds[0] < bounds[1]:
                total += quad(height, *bounds, limit=300)[0]
        found.append(total)
    return max(found)


def replayed(rng, price, allowed):
    """Return a first release and what a random strategy does in four regions of its outcome."""
    first = float(rng.uniform(0.6, 2.0))
    edges = [-np.inf, *sorted(rng.uniform(-1.5, 3.0, size=3).tolist()), np.inf]
    regions = []
    for low, high in pairwise(edges):
        event = events.gaussian(float(rng.uniform(0.6, 6.0)))
        if rng.uniform() < 0.6:
            event = events.poisson(float(rng.uniform(0.01, 0.6)), float(rng.uniform(0.3, 2.0)))
        chosen = event if allowed(events.gaussian(first), event) else None
        tally = {events.gaussian(first): 1}
        if chosen is not None:
            tally[chosen] = tally.get(chosen, 0) + 1
        regions.append((low, high, price(tally), chosen))
    return first, regions


@pytest.mark.parametrize("seed", range(40))
def test_no_strategy_on_an_adaptive_ledger_spends_more_than_it_says(seed):
    """At any time: P(S) <= E_Q[e^epsilon 1_S] + delta, with the epsilon that the ledger shows."""
    rng = np.random.default_rng(seed)
    budget = Budget(float(rng.uniform(3.0, 8.0)), DELTA)

    def charged(tally):
        ledger = Ledger(None, budget)
        for event, count in tally.items():
            ledger.charge({event: count}, run="a strategy")
        return ledger

    def allowed(first, event):
        try:
            charged({first: 1}).charge(event, run="a strategy")
        except BudgetExceeded:
            return False
        return True

    try:
        first, regions = replayed(rng, lambda tally: charged(tally).epsilon(), allowed)
    except BudgetExceeded:  # not even the first release fits
        return
    assert all(epsilon <= budget.epsilon for _, _, epsilon, _ in regions)
    assert spent(first, regions) <= DELTA
    # and with the whole budget as the price of each path, which is what a filter promises
    assert spent(first, [(a, b, budget.epsilon, e) for a, b, _, e in regions]) <= DELTA


def test_the_same_replay_finds_a_strategy_that_composition_underprices():
    """So that the test above can fail: priced along the path, some strategies overspend."""
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        first, regions = replayed(rng, lambda tally: epsilon_of(tally, DELTA), lambda *_: True)
        worst = max(worst, spent(first, regions))
    assert worst > 1.2 * DELTA


def test_the_exact_figures_are_those_of_the_accountant():
    """One release, or two that are planned: the integral agrees with loss distributions."""
    for second in (events.gaussian(2.0), events.poisson(0.2, 0.9)):
        tally = {events.gaussian(1.1): 1, second: 1}
        epsilon = epsilon_of(tally, DELTA)
        found = spent(1.1, [(-np.inf, np.inf, epsilon, second)])
        assert 0.98 * DELTA < found <= DELTA * (1 + 1e-6)
