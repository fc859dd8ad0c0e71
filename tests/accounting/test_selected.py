"""Events of selections, and of releases on parts of the records."""

import math

import numpy as np
import pytest

import privada as pv
from privada.accounting import epsilon_of, events, rdp
from privada.accounting.events import Parallel, Selected, items_of
from privada.accounting.repetition import repeated

TRAIN = items_of({events.poisson(0.01, 2.0): 300, events.poisson(0.01, 3.0): 200})
SCORE = items_of({events.gaussian(20.0): 1})
CHEAP = items_of({events.poisson(0.01, 4.0): 300})
RUN = items_of({Parallel((TRAIN, SCORE)): 1})
SEARCH = Selected((RUN, CHEAP), 10.0, 1.0)
ONE = events.ADD_OR_REMOVE


def curve(items):
    return events.total_divergence(dict(items), ONE)


def test_the_most_expensive_part_counts_at_each_order():
    found = events.total_divergence({Parallel((TRAIN, SCORE)): 1}, ONE)
    np.testing.assert_array_equal(found, np.maximum(curve(TRAIN), curve(SCORE)))
    wide = items_of({events.gaussian(1.0): 1})
    crossing = events.total_divergence({Parallel((TRAIN, wide)): 3}, ONE)
    np.testing.assert_allclose(crossing, 3 * np.maximum(curve(TRAIN), curve(wide)))


def test_a_selection_costs_what_repeating_its_most_expensive_candidate_does():
    found = events.total_divergence({SEARCH: 1}, ONE)
    np.testing.assert_array_equal(found, repeated(np.maximum(curve(RUN), curve(CHEAP)), 10.0, 1.0))
    alone = Selected((CHEAP,), 10.0, 1.0)
    assert epsilon_of({alone: 1}, 1e-6) < epsilon_of({SEARCH: 1}, 1e-6)


def test_the_epsilon_of_a_selection_is_its_price():
    plan = {"sampling_rate": 250 / 60_000, "steps": 2500}
    prices = {
        each.how: each.epsilon
        for each in pv.selection.price(noise_multiplier=4.0, candidates=10, delta=1e-6, **plan)
    }
    run = items_of({events.poisson(plan["sampling_rate"], 4.0): plan["steps"]})
    for how, shape in (("geometric", 1.0), ("logarithmic", 0.0), ("poisson", math.inf)):
        cost = epsilon_of({Selected((run,), 10.0, shape): 1}, 1e-6)
        assert cost == pytest.approx(prices[f"repeat-{how}"], rel=1e-12)


def test_selections_add_up_with_everything_else():
    step = events.poisson(0.01, 2.0)
    both = epsilon_of({SEARCH: 1, step: 500}, 1e-6)
    assert both > max(epsilon_of({SEARCH: 1}, 1e-6), epsilon_of({step: 500}, 1e-6))
    assert both == rdp.to_epsilon(events.total_divergence({SEARCH: 1, step: 500}, ONE), 1e-6)
    assert epsilon_of({SEARCH: 2}, 1e-6) > epsilon_of({SEARCH: 1}, 1e-6)


def test_many_multipliers_beside_a_selection_are_grouped_and_cost_no_less():
    steps = {events.poisson(0.01, 2 + i / 1000): 1 for i in range(3000)}
    exact = rdp.to_epsilon(events.total_divergence({SEARCH: 1, **steps}, ONE), 1e-6)
    grouped = epsilon_of({SEARCH: 1, **steps}, 1e-6)
    assert exact <= grouped <= 1.01 * exact


@pytest.mark.parametrize("event", [Parallel((TRAIN, SCORE)), SEARCH,
                                   Selected((CHEAP,), 3.5, math.inf)])  # fmt: skip
@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_a_ledger_keeps_them_as_they_are(event, kind, tmp_path):
    assert events.decode(events.encode(event)) == event
    assert hash(events.decode(events.encode(event))) == hash(event)
    ledger = pv.Ledger(tmp_path / "ledger", pv.Budget(50.0, 1e-6), kind=kind)
    ledger.charge({event: 1}, run="search", purpose="tuning")
    again, planned = pv.Ledger(tmp_path / "ledger"), epsilon_of({event: 1}, 1e-6)
    assert again.totals() == {event: 1}
    assert again.epsilon() == ledger.epsilon() == ledger.price({event: 1})
    if kind == "planned":
        assert again.epsilon() == pytest.approx(planned, rel=1e-12)
    else:
        assert planned < again.epsilon() < 2 * planned
    assert events.describe(event)


def test_a_selection_beyond_the_budget_is_refused(tmp_path):
    ledger = pv.Ledger(tmp_path / "ledger", pv.Budget(0.1, 1e-6))
    with pytest.raises(pv.BudgetExceeded):
        ledger.charge({SEARCH: 1}, run="search", purpose="tuning")
    assert ledger.charges() == ()


def test_a_tally_inside_an_event_has_one_form():
    a, b = events.poisson(0.01, 2.0), events.gaussian(3.0)
    assert items_of({a: 2, b: 1}) == items_of({b: 1, a: 2, events.gaussian(9.0): 0})


@pytest.mark.parametrize(
    "wrong",
    [
        Selected((CHEAP,), 0.5, 1.0),
        Selected((CHEAP,), math.inf, 1.0),
        Selected((CHEAP,), float("nan"), 1.0),
        Selected((CHEAP,), 3.0, -1.0),
        Selected((CHEAP,), 3.0, float("nan")),
        Parallel((CHEAP, items_of({events.fixed_size(100, 10, 1.0): 1}))),
    ],
)
def test_what_has_no_price_is_refused(wrong):
    with pytest.raises(pv.EventError):
        epsilon_of({wrong: 1}, 1e-5)


def test_no_noise_inside_costs_infinity():
    silent = items_of({events.gaussian(0.0): 1})
    assert epsilon_of({Selected((CHEAP, silent), 3.0, 1.0): 1}, 1e-5) == math.inf
    assert epsilon_of({Parallel((CHEAP, silent)): 1}, 1e-5) == math.inf


# ---------------------------------------------------------------------- parts, by PLD

STEPS = {events.poisson(0.02, 2.0): 400}
WIDE = items_of({events.gaussian(8.0): 1})


def test_parts_cost_what_the_most_expensive_costs_together_with_everything_else():
    for delta in (1e-3, 1e-6):
        found = epsilon_of({Parallel((TRAIN, WIDE)): 1, **STEPS}, delta)
        alone = [epsilon_of({**STEPS, **dict(part)}, delta) for part in (TRAIN, WIDE)]
        assert found == max(alone)
        by_rdp = rdp.to_epsilon(
            events.total_divergence({Parallel((TRAIN, WIDE)): 1, **STEPS}, ONE), delta
        )
        assert found < by_rdp


def test_two_divisions_may_put_a_record_with_the_most_expensive_of_both():
    one, other = Parallel((TRAIN, ())), Parallel(((), TRAIN))
    both = epsilon_of({one: 1, other: 1}, 1e-6)
    assert both == epsilon_of({event: 2 * n for event, n in TRAIN}, 1e-6)
    assert epsilon_of({one: 3}, 1e-6) == epsilon_of({event: 3 * n for event, n in TRAIN}, 1e-6)


def test_many_divisions_cost_no_less():
    parts = Parallel((items_of({events.gaussian(30.0): 1}), items_of({events.gaussian(31.0): 1})))
    few, many = (epsilon_of({parts: n}, 1e-6) for n in (60, 70))
    assert few < many  # the second is by divergences
    assert many >= epsilon_of({events.gaussian(30.0): 70}, 1e-6)


def test_an_empty_division_costs_nothing():
    assert epsilon_of({Parallel(((), ())): 1}, 1e-6) == 0.0
