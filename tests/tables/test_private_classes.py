import math

import pytest

import privada as pv
from privada.accounting import events
from privada.core.errors import ArgumentError, BudgetExceeded, DataError
from privada.tables import Table, estimate_classes
from privada.tables.private_classes import least_records


def ledger(budget=None):
    return pv.Ledger(None, budget, dataset="patients")


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
        def coded(self, name):
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
