"""AnswerCache are kept, and what was paid for is not paid for again without being asked."""

import numpy as np
import pytest

import privada as pv
from privada.accounting import events
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError
from privada.tables import (
    AnswerCache,
    Classes,
    Number,
    Schema,
    Table,
    estimate_bounds,
    estimate_classes,
)
from privada.tables.private_bounds import bounds_question

SCHEMA = Schema(Classes("y", ["a", "b"]), {"x": Number(bounds="estimate")})
TABLE = Table({"x": np.arange(500) % 60 + 20.0, "y": ["a", "b"] * 250})


class Killed(BaseException):
    """Ends a process between a charge and its answer."""


class Mortal(Table):
    """A table at whose first value the process ends."""

    def numbers(self, *_, **__):
        raise Killed

    def coded(self, name):
        raise Killed


MORTAL = Mortal(TABLE.columns)


@pytest.fixture
def ledger():
    return pv.Ledger(None, pv.Budget(20.0, 1e-6), dataset="patients")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.json"


def bounds(table, ledger, answers, **settings):
    return estimate_bounds(
        table, SCHEMA, ledger=ledger, run="r", answers=answers, noise_multiplier=4.0, **settings
    )


def classes(table, ledger, answers):
    return estimate_classes(
        table, "y", ledger=ledger, run="r", answers=answers, noise_multiplier=4.0
    )


def count(ledger):
    totals = ledger.totals()
    return sum(n for event, n in totals.items() if events.release_of(event) is not None)


def test_an_answer_is_given_again_and_neither_read_nor_charged(ledger, path):
    first = bounds(TABLE, ledger, AnswerCache(path)), classes(TABLE, ledger, AnswerCache(path))
    assert count(ledger) == 2
    again = bounds(MORTAL, ledger, AnswerCache(path)), classes(MORTAL, ledger, AnswerCache(path))
    assert again == first
    assert count(ledger) == 2


def test_an_answer_without_a_result_is_an_answer(ledger, path):
    empty = Table({"x": [None] * 500, "y": [None] * 500})
    for _ in range(2):
        assert bounds(empty, ledger, AnswerCache(path), seed=1).defaulted == ("x",)
        assert classes(empty, ledger, AnswerCache(path)) == ()
    assert count(ledger) == 2


def test_another_question_is_another_charge(ledger, path):
    bounds(TABLE, ledger, AnswerCache(path))
    bounds(TABLE, ledger, AnswerCache(path), outside=0.1)
    assert count(ledger) == 2


def test_a_lost_answer_is_refused_paid_for_again_or_replaced_by_defaults(ledger, path):
    with pytest.raises(Killed):
        bounds(MORTAL, ledger, AnswerCache(path))
    assert count(ledger) == 1
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"bounds.*pay-again.*defaults.*Nothing more"):
            bounds(TABLE, ledger, AnswerCache(path))
    assert count(ledger) == 1
    found = bounds(TABLE, ledger, AnswerCache(path, when_lost="pay-again"))
    assert not found.defaulted
    assert count(ledger) == 2
    # and what was lost is settled: the next question is asked as if nothing had been
    assert classes(TABLE, ledger, AnswerCache(path)) == ("a", "b")
    assert count(ledger) == 3


def test_defaults_stand_for_a_lost_answer_for_good(ledger, path):
    with pytest.raises(Killed):
        bounds(MORTAL, ledger, AnswerCache(path))
    for when_lost in ("defaults", "refuse"):
        assert bounds(TABLE, ledger, AnswerCache(path, when_lost=when_lost)).defaulted == ("x",)
    assert count(ledger) == 1


def test_classes_have_no_default(ledger, path):
    with pytest.raises(Killed):
        classes(MORTAL, ledger, AnswerCache(path))
    with pytest.raises(LedgerError, match="name the classes"):
        classes(TABLE, ledger, AnswerCache(path, when_lost="defaults"))
    # named by hand, they are no obstacle to another question
    assert not bounds(TABLE, ledger, AnswerCache(path)).defaulted
    assert count(ledger) == 2


def test_what_was_lost_twice_is_known_as_such(ledger, path):
    for when_lost in ("refuse", "pay-again"):
        with pytest.raises(Killed):
            bounds(MORTAL, ledger, AnswerCache(path, when_lost=when_lost))
    with pytest.raises(LedgerError, match="bounds"):
        bounds(TABLE, ledger, AnswerCache(path))
    assert count(ledger) == 2


def test_a_question_that_was_refused_is_not_lost(path):
    poor = pv.Ledger(None, pv.Budget(0.1, 1e-6), dataset="patients")
    with pytest.raises(BudgetExceeded):
        bounds(MORTAL, poor, AnswerCache(path))
    rich = pv.Ledger(None, pv.Budget(9.0, 1e-6), dataset="patients")
    assert not bounds(TABLE, rich, AnswerCache(path)).defaulted


def test_charges_of_others_are_not_lost_answers(ledger, path):
    ledger.charge({events.gaussian(9.0): 1}, run="other", purpose="statistics")
    ledger.charge({events.gaussian(9.0): 1}, run="r", purpose="training")
    assert not bounds(TABLE, ledger, AnswerCache(path)).defaulted


def test_a_file_that_is_gone_or_damaged_is_refused_once_there_are_charges(ledger, path):
    bounds(TABLE, ledger, AnswerCache(path))
    kept = path.read_text()
    path.write_text(kept[:-20])
    with pytest.raises(LedgerError, match="Cannot read the answers"):
        bounds(TABLE, ledger, AnswerCache(path))
    path.unlink()
    with pytest.raises(LedgerError, match="was charged for"):
        bounds(TABLE, ledger, AnswerCache(path))
    assert count(ledger) == 1


def test_answers_of_another_ledger_or_run_are_not_free_on_this_one(ledger, path):
    bounds(TABLE, ledger, AnswerCache(path))
    other = pv.Ledger(None, pv.Budget(20.0, 1e-6), dataset="patients")
    words = r"hold 1 charges for statistics of run 'r'.*got 0"
    with pytest.raises(LedgerError, match=words):
        bounds(MORTAL, other, AnswerCache(path))
    with pytest.raises(LedgerError, match=words):
        classes(MORTAL, other, AnswerCache(path))
    with pytest.raises(LedgerError, match="run 's'"):
        estimate_bounds(
            MORTAL, SCHEMA, ledger=ledger, run="s", answers=AnswerCache(path), noise_multiplier=4.0
        )
    question = bounds_question(SCHEMA)
    with pytest.raises(LedgerError, match=words):
        AnswerCache(path).will_charge(question, ledger=other, run="r")
    assert not AnswerCache(path).will_charge(question, ledger=ledger, run="r")
    assert count(other) == 0
    assert count(ledger) == 1


@pytest.mark.parametrize(
    "wrong", ['[{"question": 3, "lost": 0}]', '[{"question": {}, "lost": "x"}]']
)
def test_a_file_of_another_form_is_refused(ledger, path, wrong):
    path.write_text(wrong)
    with pytest.raises(LedgerError, match="Cannot read the answers"):
        bounds(MORTAL, ledger, AnswerCache(path))


def test_a_charge_comes_only_after_the_question_can_be_kept(ledger, tmp_path):
    with pytest.raises(ArgumentError, match="Cannot write"):
        bounds(MORTAL, ledger, AnswerCache(tmp_path / "no" / "answers.json"))
    assert count(ledger) == 0


def test_wrong_arguments(path):
    with pytest.raises(ArgumentError, match="when_lost"):
        AnswerCache(path, when_lost="ask")
    with pytest.raises(ArgumentError, match="path"):
        AnswerCache(3)
