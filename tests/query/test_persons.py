"""Histograms of persons: one whole person, with any number of rows, moves them as declared."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privada as pv
from privada.accounting.ledger import all_rows_of
from privada.core.errors import ArgumentError, BudgetExceeded, DataError, LedgerError
from privada.query import histograms
from privada.query.bounds import release_bounds
from privada.query.classes import release_classes
from privada.query.histograms import HistogramQuery, statistics_units
from privada.query.medians import release_medians
from privada.tables import (
    AnswerCache,
    Classes,
    Number,
    Schema,
    Table,
    estimate_bounds,
    estimate_classes,
)

COLUMNS = 3


def query(groups, seed=0, ledger=None, noise_multiplier=1.0):
    units = statistics_units(len(groups), groups)
    return HistogramQuery(
        units, ledger or pv.Ledger(None), noise_multiplier, run="r", stream="test", seed=seed
    )


@pytest.fixture
def sums(monkeypatch):
    """Return the sums that queries make before noise is added, as they are made."""
    made, real = [], histograms.histogram_sum

    def seen(columns, bins):
        clipped = real(columns, bins)
        made.append((clipped.value.numpy().copy(), clipped.sensitivity))
        return clipped

    monkeypatch.setattr(histograms, "histogram_sum", seen)
    return made


def look_for_bounds(values, groups, seed):
    release_bounds(query(groups, seed), lambda: [list(values.T)])


def look_for_medians(values, groups, seed):
    release_medians(query(groups, seed), values, np.full(COLUMNS, -8.0), np.full(COLUMNS, 8.0))


LOOKS = [look_for_bounds, look_for_medians]


def moved(look, sums, values, groups, person, seed):
    """Return how far the sum moves when a person is left out, and how far it may."""
    kept = np.array([group != person for group in groups])
    look(values, groups, seed)
    look(values[kept], [group for group in groups if group != person], seed)
    (whole, most), (without, _) = sums[-2:]
    return float(np.linalg.norm(whole - without)), most


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("rows", [1, 2, 7, 100, 10_000])
@pytest.mark.parametrize("seed", range(3))
def test_a_whole_person_moves_the_sum_by_no_more_than_declared(look, rows, seed, sums):
    rng = np.random.default_rng(seed)
    others = rng.integers(0, 40, 200).tolist()
    values = rng.normal(0, 3, (len(others) + rows, COLUMNS)) * 2.0 ** rng.integers(-9, 9, COLUMNS)
    # who comes last leaves the choices of the others as they are, for one seed
    distance, most = moved(look, sums, values, [*others, *["new"] * rows], "new", seed)
    assert most == math.sqrt(COLUMNS)
    assert 0 < distance <= most + 1e-9


@pytest.mark.parametrize("look", LOOKS)
@given(
    groups=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    person=st.integers(0, 5),
    seed=st.integers(0, 2**20),
)
def test_wherever_the_rows_of_the_person_are(look, groups, person, seed):
    """The others' rows are alike for each of them, so that it does not matter which is chosen."""
    rng = np.random.default_rng(seed)
    of_person = rng.normal(0, 3, (6, COLUMNS))
    values = of_person[groups]
    own = np.array(groups) == person
    values[own] = rng.normal(0, 100, (int(own.sum()), COLUMNS))
    if own.all():
        return
    made, real = [], histograms.histogram_sum

    def seen(columns, bins):
        clipped = real(columns, bins)
        made.append((clipped.value.numpy().copy(), clipped.sensitivity))
        return clipped

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(histograms, "histogram_sum", seen)
        distance, most = moved(look, made, values, groups, person, seed)
    assert distance <= most + 1e-9


@pytest.mark.parametrize("rows", [1, 2, 100, 10_000])
def test_a_person_with_a_class_in_every_row_adds_one_class_at_most(rows, sums):
    others = [f"person {place}" for place in range(50)]
    texts = ["common"] * 50

    def counts(texts, groups):
        release_classes(query(groups), lambda: [Table({"y": texts}).coded("y")], failure=1e-6)
        return sums[-1]

    before, most = counts(texts, others)
    after, _ = counts(texts + [f"class {place}" for place in range(rows)], others + ["new"] * rows)
    assert most == 1
    assert len(after) == len(before) + 1
    assert (Counter(after.tolist()) - Counter(before.tolist())) == Counter([1.0])


def test_a_class_of_one_person_with_many_rows_is_not_told_of():
    people = [*range(400), *["one"] * 10_000]
    texts = [*["common"] * 400, *["rare disease"] * 10_000]
    found = estimate_classes(
        Table({"y": texts}), "y", ledger=pv.Ledger(None), noise_multiplier=1.0, groups=people
    )
    assert found == ("common",)


def test_rows_of_a_person_are_chosen_afresh_and_evenly(sums):
    values, groups = np.array([[1.0], [1000.0]]), ["ann", "ann"]
    for seed in range(400):
        release_bounds(query(groups, seed), lambda: [list(values.T)])
    places = Counter(int(total.argmax()) for total, _ in sums)
    assert sorted(total.sum() for total, _ in sums) == [1.0] * 400
    # a fair coin, 400 times: five standard deviations are 50
    assert len(places) == 2
    assert all(150 <= count <= 250 for count in places.values())


# ---------------------------------------------------------------------- what is charged

SCHEMA = Schema(Classes("y", ["a", "b"]), {"x": Number(bounds="estimate")})


def table(people, rows):
    n = people * rows
    return Table({"x": np.arange(n) % 50 + 20.0, "y": ["a", "b"] * (n // 2)})


def asked(ledger, people=2000, rows=4, **settings):
    groups = np.repeat(np.arange(people), rows)
    return estimate_bounds(
        table(people, rows), SCHEMA, ledger=ledger, noise_multiplier=10.0, groups=groups, **settings
    )


def test_bounds_of_persons_are_found_and_charged_for_all_their_rows():
    ledger = pv.Ledger(None)
    found = asked(ledger)
    assert (found.columns["x"].low, found.columns["x"].high) == (16, 128)
    assert ledger.unit == all_rows_of("person")
    assert sum(ledger.totals().values()) == 1


def test_the_unit_s_name_is_the_trainer_s():
    ledger = pv.Ledger(None)
    asked(ledger, unit="record")
    assert ledger.unit == all_rows_of("person")
    named = pv.Ledger(None)
    asked(named, unit="patient")
    assert named.unit == all_rows_of("patient")


def test_a_ledger_for_rows_is_refused_and_so_is_the_reverse():
    ledger = pv.Ledger(None)
    estimate_bounds(table(2000, 2), SCHEMA, ledger=ledger, noise_multiplier=10.0)
    with pytest.raises(LedgerError, match="different units"):
        asked(ledger)
    assert sum(ledger.totals().values()) == 1
    persons = pv.Ledger(None)
    asked(persons)
    with pytest.raises(LedgerError, match="different units"):
        estimate_bounds(table(2000, 2), SCHEMA, ledger=persons, noise_multiplier=10.0)
    assert sum(persons.totals().values()) == 1


def test_few_persons_with_many_rows_are_few():
    ledger = pv.Ledger(None)
    with pytest.raises(DataError, match=r"at least 30 persons .* got 10\b"):
        asked(ledger, people=10, rows=1000)
    with pytest.raises(DataError, match="at least 206 persons"):
        estimate_classes(
            table(10, 1000),
            "y",
            ledger=ledger,
            noise_multiplier=10.0,
            groups=np.arange(10_000) % 10,
        )
    assert not ledger.totals()


def test_nothing_is_chosen_or_read_when_the_budget_is_spent():
    def unread():
        raise AssertionError("a value was read")

    ledger = pv.Ledger(None, pv.Budget(0.1, 1e-6))
    with pytest.raises(BudgetExceeded):
        release_bounds(query(["ann", "bob"], ledger=ledger), unread)
    assert not ledger.totals()


@pytest.mark.parametrize("missing", [None, math.nan])
def test_missing_identifiers_are_refused_without_quoting_one(missing):
    ledger, groups = pv.Ledger(None), ["secret"] * 3999 + [missing]
    with pytest.raises(ArgumentError, match="missing") as raised:
        estimate_bounds(table(2000, 2), SCHEMA, ledger=ledger, noise_multiplier=10.0, groups=groups)
    assert "secret" not in str(raised.value)
    assert not ledger.totals()


def test_there_is_one_identifier_for_each_row():
    with pytest.raises(ArgumentError, match="one identifier for each of 4,000 rows"):
        estimate_bounds(
            table(2000, 2), SCHEMA, ledger=pv.Ledger(None), noise_multiplier=10.0, groups=[1, 2]
        )


def test_several_rows_of_a_unit_are_refused():
    from privada.data import GroupedUnits

    with pytest.raises(ArgumentError, match="rows_per_unit=2"):
        HistogramQuery(
            GroupedUnits(["ann"], rows_per_unit=2), pv.Ledger(None), 1.0, run="r", stream="test"
        )


def test_an_answer_for_rows_is_none_for_persons(tmp_path):
    answers, ledger = AnswerCache(tmp_path / "answers.json"), pv.Ledger(None)
    asked(ledger, answers=answers)
    asked(ledger, answers=answers)
    assert sum(ledger.totals().values()) == 1
    with pytest.raises(LedgerError, match="different units"):
        estimate_bounds(
            table(2000, 2), SCHEMA, ledger=ledger, noise_multiplier=10.0, answers=answers
        )
