"""QueryPlan before training are planned together, from public numbers alone."""

import math

import pytest

import privada as pv
from privada.accounting.accountants import epsilon_of
from privada.core.errors import ArgumentError, DataError
from privada.tables import plan_queries

BUDGET = pv.Budget(1.0, 1e-4)


@pytest.mark.parametrize("records", [100, 500, 3000, 10**5])
@pytest.mark.parametrize("columns", [1, 10, 60])
def test_they_cost_the_share_together(records, columns):
    asked = plan_queries(records, BUDGET, bounds=[f"x{k}" for k in range(columns)])
    if asked.count:
        assert epsilon_of(asked.tally(), 1e-4) <= asked.share * 1.0 * (1 + 1e-6)
        assert 0.1 <= asked.share <= 0.3
        assert records >= 3 * asked.noise_multiplier * math.sqrt(columns)
    else:
        assert len(asked.defaults) == columns
        assert not asked.tally()


def test_few_records_have_a_larger_share():
    shares = [plan_queries(n, BUDGET, bounds=["x"] * 9).share for n in (300, 600, 1200, 90_000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 0.3
    assert shares[-1] == 0.1


def test_one_query_has_less_noise_than_two():
    both = plan_queries(90_000, BUDGET, classes="y", bounds=["x"])
    one = plan_queries(90_000, BUDGET, bounds=["x"])
    assert (both.count, one.count) == (2, 1)
    assert both.noise_multiplier == pytest.approx(math.sqrt(2) * one.noise_multiplier, rel=0.02)


def test_bounds_that_would_not_be_found_are_not_paid_for():
    asked = plan_queries(60, pv.Budget(0.2, 1e-4), bounds=["x", "z"])
    assert (asked.bounds, asked.defaults, asked.count) == ((), ("x", "z"), 0)
    asked = plan_queries(900, BUDGET, classes="y", bounds=[f"x{k}" for k in range(2000)])
    assert (asked.classes, asked.bounds, len(asked.defaults)) == ("y", (), 2000)
    assert asked.noise_multiplier == plan_queries(900, BUDGET, classes="y").noise_multiplier


def test_classes_that_would_not_be_found_are_refused():
    with pytest.raises(DataError, match=r"at least .* records .*'y'.* got 100\. Name the classes"):
        plan_queries(100, BUDGET, classes="y", bounds=["x"])


def test_without_anything_to_ask_nothing_is_charged():
    assert not plan_queries(100, BUDGET).tally()
    with pytest.raises(ArgumentError, match="records"):
        plan_queries(-1, BUDGET)
