"""The page that says what was promised."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privada.accounting import Budget, Charge, Statement, events
from privada.accounting.statement import NOT_COVERED
from privada.core.formatting import round_up

CHARGES = (
    Charge("first", "tuning", events.gaussian(7.5), 3, "2025-01-01", "2025-01-02"),
    Charge("second", "training", events.poisson(0.0125, 1.25), 4321, "2025-01-03", "2025-01-04"),
    Charge("second", "statistics", events.poisson(0.5, 31.0), 2, "2025-01-03", "2025-01-03"),
)
ASSUMPTIONS = (
    "Every batch was drawn by Privada's own sampler, which nobody has seen before the release.",
    "One patient gave one record.",
)


def statement(**changes):
    facts = {
        "private": True,
        "dataset": "patients",
        "unit": "patient",
        "relation": events.ADD_OR_REMOVE,
        "epsilon": 1.23411,
        "delta": 1e-5,
        "run": "second",
        "run_epsilon": 0.98761,
        "accountant": "pld",
        "budget": Budget(2.0, 1e-5),
        "ledger": "patients.ledger",
        "method": "DP-SGD",
        "sampling": "Poisson at rate 0.0125",
        "noise": "the operating system's",
        "progress": "4321 of 4321 steps",
        "charges": CHARGES,
        "assumptions": ASSUMPTIONS,
    }
    return Statement(**{**facts, **changes})


def page(**changes):
    """The page without its line breaks."""
    return " ".join(str(statement(**changes)).split())


@given(value=st.floats(0, exclude_min=True, allow_infinity=False), digits=st.integers(1, 8))
def test_a_number_is_never_shown_below_its_value(value, digits):
    assert float(round_up(value, digits)) >= value


@given(value=st.floats(1e-12, 1e12), digits=st.integers(2, 8))
def test_a_number_is_shown_within_one_unit_of_the_last_digit(value, digits):
    assert float(round_up(value, digits)) <= value * (1 + 1.001 * 10 ** (1 - digits))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.2341, "1.235"), (1.234, "1.234"), (9.99941, "10"), (0.0, "0"), (math.inf, "inf")],
)
def test_numbers_are_rounded_up(value, shown):
    assert round_up(value) == shown


def test_the_page_says_what_was_promised():
    said = page()
    assert "The trained model is (1.235, 1e-05)-differentially private." in said
    assert "adding or removing one patient" in said
    assert "0.9877 for this run alone" in said
    assert "epsilon 2 at delta 1e-05" in said
    for fact in ("patients.ledger", "DP-SGD", "Poisson at rate 0.0125", "4321 of 4321 steps"):
        assert fact in said


def test_the_page_names_every_charge_assumption_and_limit():
    said = page()
    for charge in CHARGES:
        assert f"{charge.purpose}, run {charge.run}" in said
        assert f"{charge.count:,} releases; {events.describe(charge.event)}." in said
    for sentence in (*ASSUMPTIONS, *NOT_COVERED):
        assert sentence in said
    assert "run second (this run)" in said
    assert "run first (this run)" not in said


def test_alike_charges_are_counted_together():
    more = Charge("second", "training", events.poisson(0.0125, 1.5), 1000, "a", "b")
    said = page(charges=(*CHARGES, more))
    assert "5,321 releases" in said
    assert "and 1 other setting" in said


def test_a_seeded_run_promises_nothing():
    said = page(private=False, noise="seeded: not a private release", seeded=True)
    assert "seeded: not a private release. The noise follows from a seed" in said
    assert "is (" not in said


def test_a_run_in_a_shape_from_private_records_promises_nothing():
    said = page(private=False)
    assert "not a private release. What gradients were clipped in was computed" in said
    assert "seeded" not in said
    assert "is (" not in said
    assert "seeded" not in page()
    assert "is (" in page()


def test_replacing_a_record_is_said():
    said = page(relation=events.REPLACE, accountant="rdp")
    assert "replacing one patient" in said
    assert "exchange any one patient for another" in said
    assert "adding or removing" not in said
    assert "leave any one" not in said
    assert "Renyi" in said


def test_no_budget_and_no_charges_are_said():
    said = page(budget=None, charges=())
    assert "none was set" in said
    assert "Charged so far: - nothing" in said


@pytest.mark.parametrize("delta", [1 / 30_000, 1.2345e-6, 4e-5])
def test_the_delta_of_the_promise_is_never_below_the_true_one(delta):
    promise = page(delta=delta).split("The trained model is (")[1].split(")")[0]
    assert float(promise.split(",")[1]) >= delta


def test_lines_fit_a_page():
    assert max(map(len, str(statement()).splitlines())) <= 88


@pytest.mark.parametrize("budget", [Budget(2.0, 1e-5), None])
@pytest.mark.parametrize("relation", [events.ADD_OR_REMOVE, events.REPLACE])
def test_plain_values_survive_json(relation, budget):
    made = statement(relation=relation, budget=budget)
    plain = made.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert json.loads(made.to_json()) == plain


def test_plain_values_hold_every_field():
    made = statement()
    plain = made.to_dict()
    names = {field.name for field in dataclasses.fields(Statement)}
    assert set(plain) == names - {"relation"} | {"neighbouring_relation"}
    assert plain["epsilon"] == 1.23411
    assert plain["neighbouring_relation"] == events.ADD_OR_REMOVE
    assert plain["budget"] == {"epsilon": 2.0, "delta": 1e-5}
    assert [events.decode(json.dumps(charge["event"])) for charge in plain["charges"]] == [
        charge.event for charge in CHARGES
    ]
    assert [charge["count"] for charge in plain["charges"]] == [3, 4321, 2]
