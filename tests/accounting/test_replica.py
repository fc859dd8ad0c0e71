"""A copy of a ledger: the same figures, and nothing can be charged to it."""

import pickle

import pytest

import privada as pv
from privada.accounting import events
from privada.accounting.ledger.replica import ReplicaStorage, Snapshot
from privada.core.errors import BudgetExceeded, LedgerError

EVENT, OTHER = events.poisson(0.1, 2.0), events.gaussian(20.0)

PERSON = "person (all their rows)"


def filled(kind):
    ledger = pv.Ledger(None, pv.Budget(1.0, 1e-5), dataset="people", kind=kind)
    ledger.declare({"first": {EVENT: 9, OTHER: 1}, "second": EVENT})
    ledger.charge(
        {EVENT: 3}, run="first", unit="person (all their rows)", limit=pv.Budget(0.9, 1e-5)
    )
    return ledger


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_a_copy_has_the_same_figures_before_and_after_it_is_renewed(kind):
    ledger = filled(kind)
    storage = ReplicaStorage(pickle.loads(pickle.dumps(Snapshot.of(ledger))))
    copy = pv.Ledger(storage)
    for _ in range(5):
        for ask in (
            lambda each: each.totals(), lambda each: each.epsilon(), lambda each: each.charges(),
            lambda each: each.unit, lambda each: each.kind, lambda each: each.budget,
            lambda each: each.run_epsilon("first", 1e-5), lambda each: each.declared("first"),
            lambda each: each.cost("first", {EVENT: 2}), lambda each: each.identity,
        ):  # fmt: skip
            assert ask(copy) == ask(ledger)
        ledger.charge({EVENT: 1}, run="first", unit=PERSON)
        storage.renew(Snapshot.of(ledger))


def test_a_copy_can_not_be_charged():
    copy = pv.Ledger(ReplicaStorage(Snapshot.of(filled("adaptive"))))
    with pytest.raises(LedgerError, match="Rank 0 alone") as raised:
        copy.charge(EVENT, run="first")
    assert not isinstance(raised.value, BudgetExceeded)
    with pytest.raises(LedgerError, match="Rank 0 alone"):
        copy.publish("best", "0a1b")


def test_a_copy_is_renewed_from_its_own_ledger_alone():
    storage = ReplicaStorage(Snapshot.of(filled("adaptive")))
    with pytest.raises(LedgerError, match="another ledger"):
        storage.renew(Snapshot.of(filled("adaptive")))
