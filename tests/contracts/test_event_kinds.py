"""What every kind of event promises, held to one suite."""

import json
import math
from dataclasses import dataclass

import dp_accounting as dp
import numpy as np
import pytest

from privada.accounting import Ledger, epsilon_of, events
from privada.accounting.events import Failure, Parallel, Selected, items_of, registry
from privada.accounting.orders import ORDERS
from privada.core.errors import EventError

STEPS = items_of({events.poisson(0.01, 2.0): 300})
SCORE = items_of({events.gaussian(20.0): 1})
# one event or more of every kind; a kind that is added has to be added here
EXAMPLES = {
    "gaussian": events.gaussian(1.5),
    "poisson": events.poisson(0.01, 1.1),
    "fixed-size": events.fixed_size(1000, 10, 1.3),
    "parallel": Parallel((STEPS, SCORE)),
    "selected": Selected((STEPS,), 10.0, 1.0),
    "failure": Failure(1e-9),
}
BROKEN = [
    events.gaussian(math.nan),
    events.gaussian(math.inf),
    events.gaussian(-1.0),
    dp.PoissonSampledDpEvent(0.0, events.gaussian(1.0)),
    dp.PoissonSampledDpEvent(math.nan, events.gaussian(1.0)),
    dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)),
    events.fixed_size(10, 11, 1.0),
    dp.SampledWithoutReplacementDpEvent(10, 1, dp.LaplaceDpEvent(1.0)),
    Selected((STEPS,), math.nan, 1.0),
    Selected((STEPS,), 0.5, 1.0),
    Selected((STEPS,), 2.0, -1.0),
    Failure(math.nan),
    Failure(-1e-9),
    Failure(1.5),
]


def test_the_suite_has_an_example_of_every_kind():
    assert set(EXAMPLES) == set(registry._by_name)


@pytest.fixture(params=EXAMPLES)
def event(request):
    return EXAMPLES[request.param]


def test_the_text_is_json_and_gives_the_event_back(event):
    text = events.encode(event)
    assert json.loads(text)["kind"] == events.kind_of(event).name
    assert events.decode(text) == event


def test_the_words_are_plain_text(event):
    said = events.describe(event)
    assert said
    assert said.isprintable()


def test_the_relation_is_a_known_one(event):
    assert events.relation(event) in (events.ADD_OR_REMOVE, events.REPLACE, events.EITHER)


def test_the_divergence_never_falls_with_the_order(event):
    found = events.divergence(event, events.common_relation([event]))
    assert found.shape == ORDERS.shape
    assert not np.isnan(found).any()
    assert (found >= 0).all()
    finite = found[np.isfinite(found)]
    assert (np.diff(finite) >= -1e-9 * finite[:-1]).all()


def test_more_of_it_costs_no_less(event):
    costs = [epsilon_of({event: n}, 1e-6) for n in (1, 2, 4)]
    assert costs == sorted(costs)


def test_a_ledger_keeps_it(event, tmp_path):
    with Ledger(tmp_path / "one.ledger") as ledger:
        ledger.charge({event: 2}, run="first")
    with Ledger(tmp_path / "one.ledger") as ledger:
        assert ledger.totals() == {event: 2}


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
@pytest.mark.parametrize("ask", [events.encode, events.describe, events.tally])
def test_values_that_no_accountant_can_compare_are_refused(broken, ask):
    with pytest.raises(EventError):
        ask(broken)


@dataclass(frozen=True)
class Coin(dp.DpEvent):
    """Tells one bit of a record with the truth at odds of e^epsilon."""

    epsilon: float


class CoinKind(events.EventKind):
    """Randomised response: an example of a kind that a user adds in one class."""

    name, event = "coin", Coin

    def relation(self, event):
        return events.EITHER

    def describe(self, event):
        return f"a coin of epsilon {event.epsilon:g}"

    def fields(self, event):
        return {"epsilon": event.epsilon}

    def make(self, epsilon):
        return Coin(float(epsilon))

    def divergence(self, event, relation):
        truth, lie = (-math.log1p(math.exp(sign * event.epsilon)) for sign in (-1, 1))
        right = ORDERS * truth + (1 - ORDERS) * lie
        wrong = ORDERS * lie + (1 - ORDERS) * truth
        return np.logaddexp(right, wrong) / (ORDERS - 1)


@pytest.fixture
def coin():
    registry.register(CoinKind())
    yield Coin(0.5)
    del registry._by_class[Coin], registry._by_name["coin"]


def test_a_kind_is_added_by_one_class(coin, tmp_path):
    with Ledger(tmp_path / "coins.ledger") as ledger:
        ledger.charge({coin: 3, events.poisson(0.01, 2.0): 10}, run="first")
        cost = ledger.epsilon(1e-6)
    # pure privacy composes to 3 x 0.5; divergences are looser, and here not below the truth
    exact = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    exact.compose(dp.RandomizedResponseDpEvent(1 - math.tanh(0.25), 2), 3)
    assert exact.get_epsilon(1e-6) <= cost <= 4.5
    with pytest.raises(EventError, match="which is known"):
        registry.register(CoinKind())


def test_an_event_of_no_kind_is_refused_by_name():
    with pytest.raises(EventError, match=r"LaplaceDpEvent.*register"):
        events.encode(dp.LaplaceDpEvent(1.0))


def gaussian_delta(epsilon, sigma):
    from mpmath import erfc, exp, mp, sqrt

    with mp.workdps(60):

        def tail(t):
            return erfc(t / sqrt(2)) / 2

        shift = mp.mpf(1) / (2 * sigma)
        return tail(epsilon * sigma - shift) - exp(epsilon) * tail(epsilon * sigma + shift)


@pytest.mark.parametrize("probability", [1e-12, 1e-7, 5e-7, 9.9e-7])
@pytest.mark.parametrize("times", [1, 3])
def test_failures_are_taken_from_delta(probability, times):
    """Oracle: the composition's own curve, p + (1 - p) delta(epsilon), in high precision."""
    delta, sigma = 3e-6, 2.0
    found = epsilon_of({events.gaussian(sigma): 1, Failure(probability): times}, delta)
    lost = 1 - (1 - probability) ** times
    assert lost + (1 - lost) * gaussian_delta(found, sigma) <= delta
    assert lost + (1 - lost) * gaussian_delta(found * 0.9999, sigma) > delta


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_failures_cost_something_under_every_accountant(accountant):
    steps = {events.poisson(0.01, 1.0): 100}
    without, beside, much = (
        epsilon_of(steps | extra, 1e-6, accountant)
        for extra in ({}, {Failure(5e-7): 1}, {Failure(5e-7): 2})
    )
    assert without < beside < much == math.inf


def test_failures_alone_cost_nothing_below_delta_and_everything_from_it():
    assert epsilon_of({Failure(1e-9): 10}, 1e-6) == 0
    assert epsilon_of({Failure(1e-6): 1}, 1e-6) == math.inf
    assert epsilon_of({Failure(0.0): 1}, 1e-6) == 0


def test_failures_within_parts_count_where_a_record_meets_them():
    part = items_of({events.gaussian(2.0): 1, Failure(5e-7): 1})
    divided = {Parallel((part, SCORE)): 1}
    assert epsilon_of(divided, 1e-6) == epsilon_of(dict(part), 1e-6)
    assert epsilon_of({Selected((part,), 5.0, 1.0): 1}, 1e-6) == math.inf
