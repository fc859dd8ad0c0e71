import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privada as pv
from privada.accounting import events
from privada.clipping.histograms import histogram_sum
from privada.core.errors import ArgumentError, BudgetExceeded, DataError
from privada.tables import (
    Classes,
    Hashed,
    Number,
    Range,
    Schema,
    Table,
    default_bounds,
    draft,
    encode,
    estimate_bounds,
    estimate_classes,
    read,
)
from privada.tables.estimating import least_records, release_histograms
from privada.tables.ranges import BINS, bins_of, edges
from tests.datasets import data_folder

ASKED = Number(bounds="estimate")
SCHEMA = Schema(Classes("y", ["a", "b"]), {"x": ASKED, "z": ASKED, "h": Hashed()})


def ledger(budget=None):
    return pv.Ledger(None, budget, dataset="patients")


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


# ---------------------------------------------------------------------- the histogram


def test_each_record_is_counted_once_in_each_column():
    clipped = histogram_sum([np.array([0, 2, 2, -1]), np.array([1, 1, 3, 0])], bins=3)
    assert clipped.value.tolist() == [1, 0, 2, 1, 2, 0]
    assert clipped.sensitivity == math.sqrt(2)


@given(
    st.lists(st.tuples(st.integers(-2, 9), st.integers(-2, 9)), min_size=1),
    st.integers(min_value=0),
)
def test_a_record_moves_the_histograms_by_at_most_their_sensitivity(records, left_out):
    def total(some):
        columns = np.array(some, dtype=np.int64).reshape(-1, 2)
        return histogram_sum([columns[:, 0], columns[:, 1]], bins=8)

    left_out %= len(records)
    whole, without = total(records), total(records[:left_out] + records[left_out + 1 :])
    assert float((whole.value - without.value).norm()) <= whole.sensitivity + 1e-12


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_within_the_edges_of_its_bin(value):
    (place,) = bins_of(np.array([value]))
    low, high = edges(int(place))
    assert 0 <= place < BINS
    if abs(value) < 2.0**-24:
        assert (low, high) == (0, 0)
    elif abs(value) < 2.0**40:
        assert low <= value <= high
    else:
        assert place == (BINS - 1 if value > 0 else 0)


def test_bins_of_what_is_not_a_number():
    assert bins_of(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])).tolist() == [
        *(-1, BINS - 1, 0, BINS // 2, BINS // 2)
    ]


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
    account, budget = ledger(), pv.Budget(0.5, 1e-6)
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


def test_the_noise_has_the_standard_deviation_that_is_charged_for():
    # no value is a number, so that the release is noise alone
    draws = [
        release_histograms(
            table(["?"], ["?"]), SCHEMA, ledger=ledger(), noise_multiplier=3.0, run="r", seed=seed
        )
        for seed in range(40)
    ]
    expected = 3.0 * math.sqrt(2)
    assert draws[0].noise_std == pytest.approx(expected)
    values = np.concatenate([draw.value.numpy() for draw in draws])
    # 10,320 normals: the relative error of their deviation is 0.007; five of these
    assert values.std() == pytest.approx(expected, rel=0.035)
    assert abs(values.mean()) < 5 * expected / math.sqrt(len(values))


def test_noise_is_added_to_the_right_counts_and_is_fresh():
    def counts():
        return release_histograms(
            table([3.0] * 90, [-0.3] * 90), SCHEMA, ledger=ledger(), noise_multiplier=0.5, run="r"
        ).value.numpy()

    first, second = counts().reshape(2, BINS), counts().reshape(2, BINS)
    assert first[0].argmax() == bins_of(np.array([3.0]))[0]
    assert first[1].argmax() == bins_of(np.array([-0.3]))[0]
    assert not np.array_equal(first, second)


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
    drafted = draft(private, target="income", public=True)
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


# ---------------------------------------------------------------------- classes


def classes(*counts, n=0):
    """Return a table with so many records of each class, and `n` of which no two are alike."""
    listed = [f"class {k}" for k, count in enumerate(counts) for _ in range(count)]
    return Table({"y": listed + [f"person {k}" for k in range(n)]})


def test_classes_stand_out_and_what_few_records_have_does_not():
    account = ledger()
    found = estimate_classes(
        classes(2000, 300, 5, n=3000), "y", ledger=account, noise_multiplier=10.0
    )
    assert found == ("class 0", "class 1")
    charges = [(charge.event, charge.count, charge.purpose) for charge in account.charges()]
    assert charges == [
        (events.gaussian(10.0), 1, "statistics"),
        (events.Failure(1e-12), 1, "statistics"),
    ]


@pytest.mark.parametrize(
    ("account", "settings", "failure"),
    [
        (pv.Budget(5.0, 1e-5), {"noise_multiplier": 10.0}, 1e-8),
        (None, {"noise_multiplier": 10.0}, 1e-12),
        (None, {"budget": pv.Budget(1.0, 1e-6)}, 1e-9),
        (None, {"noise_multiplier": 10.0, "failure": 1e-3}, 1e-3),
    ],
)
def test_the_chance_of_telling_of_one_record_is_charged(account, settings, failure):
    charged = ledger(account)
    estimate_classes(classes(2000, 2000), "y", ledger=charged, **settings)
    (found,) = (event for event in charged.totals() if events.release_of(event) is None)
    assert found.probability == pytest.approx(failure)


@pytest.mark.parametrize("failure", [0.02, 0.2])
def test_a_record_is_told_of_no_more_often_than_is_charged(failure):
    """Half of the failure is the chance for one class; three tests in a billion fail by chance."""
    trials, told = 3000, 0
    for seed in range(trials):
        found = estimate_classes(
            classes(500, 1), "y", ledger=ledger(), noise_multiplier=1.0, failure=failure, seed=seed
        )
        told += "class 1" in found
    expected = trials * failure / 2
    assert 0.3 * expected < told < expected + 6 * math.sqrt(expected)


@pytest.mark.parametrize("wrong", [0, 1, -0.1, float("nan"), "never"])
def test_a_failure_is_a_probability(wrong):
    with pytest.raises(ArgumentError, match="failure"):
        estimate_classes(classes(500), "y", ledger=ledger(), noise_multiplier=1.0, failure=wrong)


@pytest.mark.parametrize("seed", range(20))
def test_no_single_record_is_told_of(seed):
    """The chance is one in a trillion, and the seeds are fixed."""
    found = estimate_classes(
        classes(400, n=5000), "y", ledger=ledger(), noise_multiplier=1.0, seed=seed
    )
    assert found == ("class 0",)


@pytest.mark.parametrize(("margin", "shown"), [(6.0, True), (-6.0, False)])
def test_the_threshold_is_where_it_is_said_to_be(margin, shown):
    count = round(least_records(10.0) + margin * 10.0)
    for seed in range(50):
        found = estimate_classes(
            classes(5000, count), "y", ledger=ledger(), noise_multiplier=10.0, seed=seed
        )
        assert ("class 1" in found) == shown


def test_classes_are_paid_for_before_a_value_is_read():
    class Unread(Table):
        def texts(self, name):
            raise AssertionError("a value was read")

    unread = Unread({"y": ["a"] * 5000})
    with pytest.raises(BudgetExceeded):
        estimate_classes(unread, "y", ledger=ledger(pv.Budget(0.01, 1e-6)), noise_multiplier=1.0)
    account = ledger()
    with pytest.raises(AssertionError):
        estimate_classes(unread, "y", ledger=account, noise_multiplier=1.0)
    assert account.totals()


def test_too_few_records_for_classes_are_refused_before_the_charge():
    account = ledger()
    with pytest.raises(DataError, match="Nothing was charged"):
        estimate_classes(classes(100, 100), "y", ledger=account, noise_multiplier=10.0)
    with pytest.raises(ArgumentError, match="one of"):
        estimate_classes(classes(1000), "x", ledger=account, noise_multiplier=1.0)
    assert not account.totals()


def test_missing_values_are_no_class():
    table = Table({"y": [None, "", "?", "NA"] * 1000 + ["a"] * 1000})
    assert estimate_classes(table, "y", ledger=ledger(), noise_multiplier=5.0) == ("a",)
    absent = Table({"y": [None] * 1000})
    assert estimate_classes(absent, "y", ledger=ledger(), noise_multiplier=5.0) == ()
