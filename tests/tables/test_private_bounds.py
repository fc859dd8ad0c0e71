import math

import numpy as np
import pytest

import privada as pv
from privada.accounting import events
from privada.core.errors import ArgumentError, BudgetExceeded, DataError
from privada.tables import (
    Classes,
    Hashed,
    Number,
    Range,
    Schema,
    Table,
    default_bounds,
    encode,
    estimate_bounds,
    infer_schema,
    read,
)
from tests.datasets import data_folder

ASKED = Number(bounds="estimate")
SCHEMA = Schema(Classes("y", ["a", "b"]), {"x": ASKED, "z": ASKED, "h": Hashed()})


def ledger(budget=None, kind=None):
    return pv.Ledger(None, budget, dataset="patients", kind=kind)


def table(x, z):
    n = len(x)
    return Table({"x": x, "z": z, "h": ["h"] * n, "y": ["a"] * n})


class Exploding:
    """A table whose values must not be read."""

    names = ("x", "z", "h", "y")
    has_header = True
    size = 1000

    def numbers(self, *_, **__):
        raise AssertionError("a value was read")


# ---------------------------------------------------------------------- the query


def test_it_is_charged_as_one_gaussian_over_all_records_for_statistics():
    account = ledger(pv.Budget(2.0, 1e-6))
    estimate_bounds(
        table([1.0] * 500, [1.0] * 500), SCHEMA, ledger=account, noise_multiplier=8.0, run="first"
    )
    (charge,) = account.charges()
    assert (charge.run, charge.purpose, charge.count) == ("first", "statistics", 1)
    assert charge.event == events.gaussian(8.0)


def test_a_budget_is_used_up_and_not_exceeded():
    account, budget = ledger(kind="planned"), pv.Budget(0.5, 1e-6)
    estimate_bounds(table([1.0] * 999, [1.0] * 999), SCHEMA, ledger=account, budget=budget)
    assert 0.49 < account.epsilon(1e-6) <= 0.5


def test_nothing_is_read_when_the_budget_is_spent():
    account = ledger(pv.Budget(0.1, 1e-6))
    with pytest.raises(BudgetExceeded, match="no data was read"):
        estimate_bounds(Exploding(), SCHEMA, ledger=account, noise_multiplier=1.0)
    assert account.charges() == ()


def test_the_charge_comes_before_the_first_value():
    account = ledger()
    with pytest.raises(AssertionError, match="a value was read"):
        estimate_bounds(Exploding(), SCHEMA, ledger=account, noise_multiplier=1.0)
    assert len(account.charges()) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "one of noise_multiplier and budget"),
        ({"noise_multiplier": 1.0, "budget": pv.Budget(1, 1e-6)}, "one of noise_multiplier"),
        ({"noise_multiplier": 0}, "noise_multiplier > 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "outside": 1.0}, "outside"),
        ({"noise_multiplier": 1.0, "run": ""}, "run"),
        ({"noise_multiplier": 1.0, "seed": -1}, "seed"),
    ],
)
def test_wrong_arguments_are_refused_and_cost_nothing(settings, words):
    account = ledger()
    with pytest.raises(ArgumentError, match=words):
        estimate_bounds(Exploding(), SCHEMA, ledger=account, **settings)
    assert account.charges() == ()


def test_without_anything_to_estimate_nothing_is_read_or_charged():
    schema, account = Schema(Classes("y", ["a", "b"]), {"x": Number(0, 1)}), ledger()
    assert estimate_bounds(Exploding(), schema, ledger=account, noise_multiplier=1.0) is schema
    assert account.charges() == ()


# ---------------------------------------------------------------------- the bounds


def estimated(x, z, **settings):
    found = estimate_bounds(
        table(x, z), SCHEMA, ledger=ledger(), noise_multiplier=4.0, seed=1, **settings
    )
    return [(found.columns[name].low, found.columns[name].high) for name in "xz"]


def test_bounds_are_powers_of_two_around_the_values():
    ages, losses = np.arange(3000) % 60 + 20.0, -(np.arange(3000) % 7 + 1.0)
    assert estimated(ages, losses) == [(16, 128), (-8, -1)]
    assert estimated(ages - 50, ages * 0) == [(-32, 32), (0, 1)]


def test_a_few_outliers_do_not_move_the_bounds():
    values = np.arange(20_000) % 60 + 20.0
    values[:40] = 1e9
    assert estimated(values, values) == [(16, 128)] * 2
    values[:2000] = 1e9
    assert estimated(values, values) == [(16, 2.0**30)] * 2
    assert estimated(values, values, outside=0.15) == [(16, 128)] * 2


def test_cells_that_are_no_numbers_count_for_nothing_and_raise_nothing():
    cells = ["30"] * 500 + ["?", "x", "inf", "9" * 400]
    assert estimated(cells, cells) == [(16, 32)] * 2


def test_a_column_of_which_nothing_stands_out_has_default_bounds():
    account, missing = ledger(), [math.nan] * 1000
    found = estimate_bounds(
        table([30.0] * 1000, missing), SCHEMA, ledger=account, noise_multiplier=4.0, seed=1
    )
    assert len(account.charges()) == 1
    assert found.defaulted == ("z",)
    assert found.columns["z"] == default_bounds(SCHEMA).columns["z"]
    assert (found.columns["z"].scale, found.columns["z"].high) == ("log", 2.0**20)
    assert (found.columns["x"].low, found.columns["x"].high) == (16, 32)


def test_too_few_records_for_bounds_are_refused_before_the_charge():
    account, few = ledger(), table([1.0] * 16, [1.0] * 16)  # three deviations are 17
    with pytest.raises(DataError, match=r"default_bounds\. Nothing was charged"):
        estimate_bounds(few, SCHEMA, ledger=account, noise_multiplier=4.0)
    assert not account.charges()
    account.charge({events.gaussian(9.0): 1}, run="mine", purpose="statistics")
    with pytest.raises(DataError, match="what run 'mine' was charged before stays charged"):
        estimate_bounds(few, SCHEMA, ledger=account, noise_multiplier=4.0, run="mine")


def test_the_schema_says_that_bounds_were_estimated(tmp_path):
    schema = Schema(Range("y", bounds="estimate"), {"x": ASKED})
    values = np.arange(2000.0) % 100
    private = Table({"x": values, "y": values})
    found = estimate_bounds(private, schema, ledger=ledger(), noise_multiplier=4.0, seed=1)
    assert found.pending == ()
    assert found.target.bounds == found.columns["x"].bounds == "estimated"
    found.write(tmp_path / "schema.toml")
    assert Schema.read(tmp_path / "schema.toml") == found
    assert np.abs(encode(private, found).targets).max() <= 1


def test_adult_s_bounds_are_found_within_a_small_budget():
    private = read(data_folder("adult.csv.gz") / "adult.csv.gz")
    drafted = infer_schema(private, target="income", public=True)
    asked = {
        name: ASKED if isinstance(kind, Number) else kind for name, kind in drafted.columns.items()
    }
    schema = Schema(drafted.target, asked)
    found = estimate_bounds(
        private, schema, ledger=ledger(), budget=pv.Budget(0.1, 1e-6), seed=3, outside=0.001
    )
    assert (found.columns["age"].low, found.columns["age"].high) == (16, 128)
    assert (found.columns["hours_per_week"].low, found.columns["hours_per_week"].high) == (8, 128)
    assert found.columns["capital_gain"].low == 0
    assert found.columns["capital_gain"].high == 2.0**14
