"""What every storage of a ledger must do: whole writes, one writer, no lost charge, forks.

To add a storage, write one file as dictionary_storage.py is, and add a line to STORAGES.
"""

import contextlib
import copy
import hashlib
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import privada as pv
from privada.accounting import (
    Budget,
    Ledger,
    LedgerStorage,
    PostgresStorage,
    SQLiteStorage,
    epsilon_of,
    events,
)
from privada.accounting.ledger import Busy
from privada.core.errors import BudgetExceeded, LedgerError
from tests.contracts.dictionary_storage import DictionaryStorage
from tests.forks import PATIENCE, in_fork, together
from tests.postgres_server import shared_server

GAUSSIAN, OTHER = events.gaussian(20.0), events.gaussian(30.0)
FACTS = {"dataset": "patients", "epsilon": "1.0", "delta": "1e-05"}


def name_of(folder: Path) -> str:
    """Return a name for a ledger that each folder has of its own."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:20]


STORAGES: dict[str, Callable[[Path], LedgerStorage]] = {
    "SQLite file": lambda folder: SQLiteStorage(folder / "patients.ledger"),
    "PostgreSQL": lambda folder: PostgresStorage(shared_server().url(name_of(folder))),
    "SQLite in memory": lambda _: SQLiteStorage(None),
    "dictionary": lambda _: DictionaryStorage(),
}


@pytest.fixture(params=STORAGES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], LedgerStorage]:
    return lambda: STORAGES[request.param](tmp_path)


@pytest.fixture
def storage(make: Callable[[], LedgerStorage]) -> LedgerStorage:
    """Return one that was opened."""
    made = make()
    made.open(FACTS)
    return made


def counts(storage: LedgerStorage) -> dict[Any, int]:
    with storage.reading() as transaction:
        return {(c.run, c.purpose, c.event): c.count for c in transaction.charges()}


def add(storage: LedgerStorage, count: int = 1, run: str = "a") -> None:
    with storage.writing("charge") as transaction:
        transaction.add(run, "training", {GAUSSIAN: count})


class Stopped(BaseException):
    """What no handler of errors catches by accident, as an interrupt is."""


# ---------------------------------------------------------------------- opening


def test_it_has_what_a_ledger_asks_for(storage: LedgerStorage) -> None:
    assert isinstance(storage, LedgerStorage)
    assert storage.name.isprintable()
    assert storage.path is None or storage.path.is_absolute()
    assert isinstance(storage.durable, bool)
    assert not storage.in_use_here()


def test_making_a_storage_makes_nothing(make: Callable[[], LedgerStorage], tmp_path: Path) -> None:
    make()
    assert list(tmp_path.iterdir()) == []


def test_opening_returns_the_facts_with_a_mark_of_its_own(
    make: Callable[[], LedgerStorage],
) -> None:
    made = make()
    facts = dict(made.open(FACTS))
    assert FACTS.items() < facts.items()
    assert set(facts) == {*FACTS, "id", "created"}
    made.check_facts(facts)
    with pytest.raises(LedgerError):
        made.check_facts({**facts, "id": "another"})


def test_a_storage_serves_one_ledger(storage: LedgerStorage) -> None:
    """Two would not see each other's charges: `version` does not change for its own writes."""
    add(storage, 3)
    with pytest.raises(LedgerError):
        storage.open(FACTS)
    with pytest.raises(LedgerError):
        Ledger(storage)
    assert list(counts(storage).values()) == [3]


def test_none_is_made_where_one_was_expected(
    make: Callable[[], LedgerStorage], tmp_path: Path
) -> None:
    with pytest.raises(LedgerError):
        make().open(None)
    assert list(tmp_path.iterdir()) == []


def test_a_new_one_is_empty(storage: LedgerStorage) -> None:
    with storage.reading() as transaction:
        assert transaction.charges() == []
        assert transaction.published("a") is None
        assert transaction.leaseholder("a") is None


# ---------------------------------------------------------------------- charges


def test_counts_are_added_by_run_purpose_and_event(storage: LedgerStorage) -> None:
    with storage.writing("charge") as transaction:
        transaction.add("a", "training", {GAUSSIAN: 2, OTHER: 1})
        transaction.add("a", "tuning", {GAUSSIAN: 5})
    with storage.writing("charge") as transaction:
        transaction.add("a", "training", {GAUSSIAN: 3})
        transaction.add("b", "training", {GAUSSIAN: 1})
        inside = transaction.charges()  # what it has written itself
    with storage.reading() as transaction:
        found = transaction.charges()
    assert found == inside
    assert [(c.run, c.purpose, c.event, c.count) for c in found] == [
        ("a", "training", GAUSSIAN, 5),
        ("a", "training", OTHER, 1),
        ("a", "tuning", GAUSSIAN, 5),
        ("b", "training", GAUSSIAN, 1),
    ]
    assert all(c.first <= c.last for c in found)


def test_refunds_leave_what_is_left(storage: LedgerStorage) -> None:
    add(storage, 5)
    add(storage, -3)
    assert list(counts(storage).values()) == [2]


@pytest.mark.parametrize("change", [-6, 2**63])
def test_a_count_that_is_negative_or_too_large_is_refused(
    storage: LedgerStorage, change: int
) -> None:
    add(storage, 5)
    with pytest.raises(LedgerError):
        add(storage, change)

    def both() -> None:
        with storage.writing("charge") as transaction:
            transaction.add("b", "training", {OTHER: 1})
            transaction.add("a", "training", {GAUSSIAN: change})

    with pytest.raises(LedgerError):
        both()
    assert list(counts(storage).values()) == [5]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Stopped])
def test_a_write_that_fails_writes_nothing(
    storage: LedgerStorage, error: type[BaseException]
) -> None:
    add(storage, 2)
    with storage.reading() as transaction:
        before = transaction.version()

    def fail() -> None:
        with storage.writing("charge") as transaction:
            transaction.add("a", "training", {GAUSSIAN: 1, OTHER: 1})
            transaction.publish("search", "1")
            transaction.lease("search", "me")
            raise error

    with pytest.raises(error):
        fail()
    assert list(counts(storage).values()) == [2]
    with storage.reading() as transaction:
        assert transaction.published("search") is None
        assert transaction.leaseholder("search") is None
        assert transaction.version() != before  # whoever counted on it reads again
    add(storage)
    assert list(counts(storage).values()) == [3]


def test_the_version_stays_while_nobody_else_writes(storage: LedgerStorage) -> None:
    add(storage)
    with storage.reading() as transaction:
        before = transaction.version()
        assert hash(before) == hash(transaction.version())
    add(storage)
    with storage.reading() as transaction:
        assert transaction.version() == before


# ---------------------------------------------------------------------- published and leased


def test_what_is_published_first_stays(storage: LedgerStorage) -> None:
    with storage.writing("write to") as transaction:
        assert transaction.publish("search", "1") == "1"
        assert transaction.publish("search", "2") == "1"
    with storage.writing("write to") as transaction:
        assert transaction.publish("search", "3") == "1"
        assert transaction.publish("other", "3") == "3"
    with storage.reading() as transaction:
        assert transaction.published("search") == "1"
        assert transaction.leaseholder("search") is None


def test_the_last_lease_counts(storage: LedgerStorage) -> None:
    with storage.writing("write to") as transaction:
        transaction.lease("search", "first")
    with storage.writing("write to") as transaction:
        transaction.lease("search", "second")
        assert transaction.leaseholder("search") == "second"
    with storage.reading() as transaction:
        assert transaction.leaseholder("search") == "second"
        assert transaction.leaseholder("other") is None
        assert transaction.published("search") is None


# ---------------------------------------------------------------------- one at a time


def test_in_the_middle_all_else_of_the_thread_is_refused(storage: LedgerStorage) -> None:
    asked = (
        lambda: add(storage),
        lambda: counts(storage),
        storage.close,
    )
    for begin in (storage.reading, lambda: storage.writing("charge")):
        with begin():
            assert storage.in_use_here()
            for act in asked:
                with pytest.raises(Busy):
                    act()
            elsewhere: list[bool] = []
            ask = partial(lambda found: found.append(storage.in_use_here()), elsewhere)
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join(PATIENCE)
            assert elsewhere == [False]
        assert not storage.in_use_here()
    assert counts(storage) == {}


def test_threads_lose_no_charge(storage: LedgerStorage) -> None:
    def charge(place: int) -> None:
        for _ in range(10):
            add(storage, run=f"run {place % 2}")

    together(charge)
    assert sorted(counts(storage).values()) == [40, 40]


def test_a_ledger_on_it_keeps_to_the_budget_whatever_threads_do(
    make: Callable[[], LedgerStorage],
) -> None:
    ledger = Ledger(make(), Budget(1.0, 1e-5), dataset="patients")
    most, refused = ledger.affordable(GAUSSIAN, 10_000), []

    def charge(place: int) -> None:
        while True:
            try:
                ledger.charge({GAUSSIAN: max(1, most // 20)}, run=f"run {place}")
            except BudgetExceeded:
                refused.append(place)
                return

    together(charge, 4)
    assert len(refused) == 4
    spent = ledger.totals()
    assert epsilon_of(spent, 1e-5) <= 1.0
    assert most - most // 20 - 1 < spent[GAUSSIAN] <= most


# ---------------------------------------------------------------------- a ledger on it


def test_a_ledger_takes_a_storage_for_its_path(make: Callable[[], LedgerStorage]) -> None:
    made = make()
    with pv.Ledger(made, Budget(1.0, 1e-5), dataset="patients") as ledger:
        assert (ledger.name, ledger.path, ledger.durable) == (made.name, made.path, made.durable)
        reservation = ledger.charge({GAUSSIAN: 3}, run="first")
        reservation.use(GAUSSIAN)
        ledger.refund(reservation)
        token = ledger.lease("search")
        ledger.publish("search", "1", lease=("search", token))
        assert ledger.totals() == Counter({GAUSSIAN: 1})
        assert ledger.published("search") == "1"
        with pytest.raises(LedgerError, match="another result"):
            ledger.publish("search", "2")
        with pytest.raises(BudgetExceeded):
            ledger.charge({events.gaussian(0.1): 1}, run="second")
        assert ledger.totals() == Counter({GAUSSIAN: 1})


def test_charges_for_another_unit_are_refused(make: Callable[[], LedgerStorage]) -> None:
    ledger = Ledger(make())
    ledger.charge({GAUSSIAN: 1}, run="a", unit="person (all their rows)")
    assert ledger.unit == "person (all their rows)"
    with pytest.raises(LedgerError, match="different units"):
        ledger.charge({GAUSSIAN: 1}, run="a")


def test_another_process_gets_a_storage_of_the_same_ledger_or_a_refusal(
    make: Callable[[], LedgerStorage],
) -> None:
    ledger = Ledger(make(), dataset="patients")
    ledger.charge({GAUSSIAN: 3}, run="a")
    if not ledger.durable:
        for act in (lambda: pickle.dumps(ledger), lambda: copy.copy(ledger)):
            with pytest.raises(LedgerError, match="another process"):
                act()
        return
    sent = pickle.dumps(ledger)
    for other in (pickle.loads(sent), copy.copy(ledger)):
        assert other.identity == ledger.identity
        other.charge({GAUSSIAN: 1}, run="b")
        assert other.totals() == ledger.totals()


def test_a_durable_one_is_opened_anew_and_another_is_gone(
    make: Callable[[], LedgerStorage],
) -> None:
    ledger = Ledger(make(), dataset="patients")
    ledger.charge({GAUSSIAN: 3}, run="a")
    ledger.close()
    if ledger.durable:
        assert ledger.totals() == Ledger(make()).totals() == Counter({GAUSSIAN: 3})
        with pytest.raises(LedgerError, match="customers"):
            Ledger(make(), dataset="customers")
    else:
        with pytest.raises(LedgerError):
            ledger.totals()


def test_two_storages_of_one_place_see_each_others_charges(
    make: Callable[[], LedgerStorage],
) -> None:
    first = make()
    facts = first.open(FACTS)
    if not first.durable:
        return
    second = make()
    assert second.open(None) == facts
    with second.reading() as transaction:
        before = transaction.version()
    add(first, 2)
    with second.reading() as transaction:
        assert transaction.version() != before
        assert [c.count for c in transaction.charges()] == [2]
    with first.writing("charge") as transaction:
        transaction.add("a", "training", {GAUSSIAN: 5})
        # a reader sees what is committed, or is refused after a while
        with contextlib.suppress(LedgerError):
            assert list(counts(second).values()) == [2]
    assert list(counts(second).values()) == [7]


# ---------------------------------------------------------------------- forks


def test_a_fork_charges_for_itself_or_is_refused(make: Callable[[], LedgerStorage]) -> None:
    ledger = Ledger(make(), dataset="patients")
    ledger.charge({GAUSSIAN: 1}, run="parent")

    def child() -> None:
        if ledger.durable:
            ledger.charge({GAUSSIAN: 2}, run="child")
            assert ledger.totals() == Counter({GAUSSIAN: 3})
            return
        for act in (lambda: ledger.charge({GAUSSIAN: 2}, run="child"), ledger.totals):
            with pytest.raises(LedgerError, match="forked"):
                act()

    assert in_fork(child) == 0
    assert ledger.totals() == Counter({GAUSSIAN: 3 if ledger.durable else 1})
    ledger.charge({GAUSSIAN: 1}, run="parent")


def test_a_fork_in_the_middle_leaves_the_transaction_to_its_parent(
    storage: LedgerStorage,
) -> None:
    add(storage)
    with storage.writing("charge") as transaction:
        transaction.add("a", "training", {GAUSSIAN: 1})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                add(storage, 100)
            except LedgerError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(counts(storage).values()) == [2]
