"""Replays of whole selections on a toy mechanism: what they tell stays within what they cost.

A run releases one number, its own score: a Gaussian around 0, or around 1 if a record is there.
Selections are replayed with the code of the search itself, which draws the number of runs, the
candidates and the winner. From how often an event happens with and without the record follows a
lower bound on epsilon, whatever it was charged, but for a chance of 2e-4 for each event looked at.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from privada.accounting import epsilon_of, events
from privada.accounting.events import items_of
from privada.core.randomness import SeededSource
from privada.mechanism import Mechanism, Releases
from privada.noise import constant
from privada.participation import Everyone
from privada.selection import search_loop
from privada.selection.search_plan import plan_search
from privada.selection.state import RunOutcome

DELTA, SIGMA, MEAN = 1e-2, 1.0, 20.0
REPLAYS = 30_000
ONE_RELEASE = Mechanism(Everyone().among(10, 10), Releases(1, constant(), lambda _: 1), 10)
ONE_RUN = epsilon_of({events.gaussian(SIGMA): 1}, DELTA)


class Toy:
    """A search whose runs are the toy mechanism."""

    parts = SimpleNamespace(mask=None)

    def __init__(self, how, candidates, seed, record):
        self.plan = plan_search(
            [ONE_RELEASE] * candidates,
            how=how, expected_runs=None if how.startswith("compose") else MEAN, shape=None,
            budget=None, noise_multiplier=SIGMA, delta=DELTA, score_noise=None, scored=False,
        )  # fmt: skip
        self.candidates = tuple({"number": i} for i in range(candidates))
        self._streams = {}
        self._seed, self._record = seed, record
        self._noise = np.random.default_rng((seed, record))

    def rng(self, stream):
        if stream not in self._streams:
            self._streams[stream] = SeededSource(self._seed + 100 * self._record, stream)
        return self._streams[stream]

    def better(self, one, other):
        return other if other.score > one.score else one

    def replay(self):
        """Return what one search gives out."""
        now = search_loop.begin_state(self, "toy")
        for number, index in enumerate(now.draws):
            score = self._record + SIGMA * self._noise.standard_normal()
            search_loop.note(self, now, number, RunOutcome(index, score, 0.0, {}))
        if not now.outcomes:
            return (-math.inf,)
        if self.plan.all_released:
            return tuple(now.outcomes[n].score for n in sorted(now.outcomes))
        return (now.outcomes[search_loop.best_run(self, now)].score,)


def told(without, with_it, delta=DELTA, doubt=1e-4):
    """Return the largest epsilon that the counts prove, over thresholds of a statistic."""
    found = 0.0
    n = len(without)
    finite = np.concatenate([without, with_it])
    finite = finite[np.isfinite(finite)]
    for t in np.linspace(finite.min(), finite.max(), 60):
        for one, other in ((with_it > t, without > t), (without <= t, with_it <= t)):
            least = stats.beta.ppf(doubt, one.sum(), n - one.sum() + 1)
            most = stats.beta.ppf(1 - doubt, other.sum() + 1, n - other.sum())
            if least > delta:
                found = max(found, math.log((least - delta) / most))
    return found


def replayed(how, candidates, seed=1):
    toys = [Toy(how, candidates, seed, record) for record in (0, 1)]
    totals = [np.array([sum(toy.replay()) for _ in range(REPLAYS)]) for toy in toys]
    return told(*totals), toys[0].plan


@pytest.mark.parametrize("how", ["repeat-geometric", "repeat-logarithmic"])
def test_a_selection_tells_no_more_than_its_price(how):
    found, terms = replayed(how, candidates=3)
    assert found <= terms.price.epsilon
    # the price of one run, all others left uncharged, is too little
    assert found > ONE_RUN


def test_composition_tells_no_more_than_its_price():
    found, terms = replayed("compose-pld", candidates=3)
    assert found <= terms.price.epsilon
    # charged for one run less, it would have told more than it paid for
    one_less = epsilon_of({events.gaussian(SIGMA): 2}, DELTA)
    assert found > one_less
    assert dict(terms.event.parts[0]) == {events.gaussian(SIGMA): 3}


def test_one_run_tells_no_more_than_its_price():
    """So that the bound above is known not to cry wolf."""
    found, terms = replayed("compose-pld", candidates=1)
    assert 0.8 * ONE_RUN < found <= terms.price.epsilon
    assert items_of({events.gaussian(SIGMA): 1}) == terms.tallies[0]


def test_giving_out_the_number_of_runs_as_well_would_cost_more():
    """Why it stays secret: the best of forty runs tells more than the best of a random few."""
    rng = np.random.default_rng(0)
    best = [
        record + SIGMA * stats.norm.ppf(rng.random(200_000) ** (1 / 40)) for record in (0.0, 1.0)
    ]
    of_many = told(*best)
    assert of_many > ONE_RUN
