"""Ledgers and queries in forked children: what a child owns, uses, closes and waits for."""

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privada.accounting import Budget, Ledger, Reservation, events
from privada.accounting.ledger.sqlite import connections
from privada.core.errors import BudgetExceeded, LedgerError
from tests.forks import PATIENCE, in_fork, limited, together
from tests.query.test_gradients import EVENT, Plan, ask, charged, make_query

BUDGET = Budget(4.0, 1e-5)
GAUSSIAN = events.gaussian(20.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "patients.ledger"


@pytest.fixture
def switching() -> Iterator[None]:
    """Let threads take turns as often as they can, so that a race is lost if it can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Have a thread do some work again and again."""
    leave = threading.Event()

    def repeat() -> None:
        while not leave.is_set():
            began = time.monotonic()
            work()
            # as long as it took, on the slowest disk, or SQLite, whose locks are not fair, would
            # keep the children out
            leave.wait(0.001 + time.monotonic() - began)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread was stuck"


# ---------------------------------------------------------------------- threads of a child


@pytest.mark.usefixtures("switching")
def test_threads_of_a_child_share_one_query_of_its_own(path: Path) -> None:
    plan = Plan(10_000)
    query = make_query(Ledger(path), plan, 16)
    ask(query, plan)
    held = charged(path)

    def child() -> None:
        together(
            lambda _: query.account.pay(EVENT, ahead=query.plan)
        )  # not a whole query: torch has threads of its own
        query.account.refund_unused()

    for number in range(1, 16):
        assert in_fork(child) == 0
        assert charged(path) == held + 8 * number
    ask(query, plan, 15)
    assert charged(path) == held + 8 * 15  # the block was its own all the time


@pytest.mark.usefixtures("switching")
def test_threads_of_a_child_share_one_ledger_of_its_own(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 1}, run="parent")
    parents = ledger._storage.connection()
    used = []

    def use(_: int) -> None:
        with ledger._storage.reading() as transaction:
            used.append(transaction.connection)
        ledger.charge({GAUSSIAN: 1}, run="child")

    def child() -> None:
        together(use)
        assert len(set(map(id, used))) == 1
        assert parents not in used

    for number in range(1, 16):
        assert in_fork(child) == 0
        assert charged(path) == 1 + 8 * number


def test_a_child_owns_nothing_whatever_its_process_number(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers come back: a grandchild may have that of the process that reserved a block."""
    number = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: number)
    ledger, plan = Ledger(path, BUDGET), Plan(1000)
    query = make_query(ledger, plan, 16)
    ask(query, plan)
    connection = ledger._storage.connection()

    def child() -> None:
        query.account.refund_unused()
        assert ledger._storage.connection() is not connection
        assert charged(path) == 16
        ask(query, plan)
        assert charged(path) > 16
        query.account.refund_unused()

    assert in_fork(child) == 0
    assert charged(path) == 17


# ---------------------------------------------------------------------- threads of the parent


def test_forks_beside_a_thread_that_charges(path: Path) -> None:
    ledger, done = Ledger(path), [0]

    def charge() -> None:
        ledger.charge({GAUSSIAN: 1}, run="parent")
        done[0] += 1

    def child() -> None:
        ledger.charge({GAUSSIAN: 1}, run="child")
        Ledger(path).charge({GAUSSIAN: 1}, run="child")

    with beside(charge):
        assert all(in_fork(child) == 0 for _ in range(30))
    counts = {charge.run: charge.count for charge in Ledger(path).charges()}
    assert counts == {"parent": done[0], "child": 60}


def test_forks_beside_threads_that_ask_settle_and_open(path: Path) -> None:
    query = make_query(Ledger(path), Plan(1_000_000), 4)
    asked = [0]

    def work() -> None:
        query.account.pay(EVENT, ahead=query.plan)  # not a whole query: torch has locks of its own
        asked[0] += 1
        if asked[0] % 5 == 0:
            query.account.refund_unused()

    def child() -> None:
        for _ in range(3):
            query.account.pay(EVENT, ahead=query.plan)
        query.account.refund_unused()

    with beside(work), beside(lambda: Ledger(path).close()):
        assert all(in_fork(child) == 0 for _ in range(20))
    query.account.refund_unused()
    assert charged(path) == asked[0] + 60


def test_two_threads_fork_at_once(path: Path) -> None:
    ledgers = [Ledger(path), Ledger(path), Ledger(path.with_name("other"))]

    def child() -> None:
        for ledger in ledgers:
            ledger.charge({GAUSSIAN: 1}, run="child")

    def fork(_: int) -> None:
        for _ in range(5):
            assert in_fork(child) == 0

    with beside(lambda: ledgers[0].charge({GAUSSIAN: 1}, run="parent")):
        together(fork, 4)
    assert charged(path.with_name("other")) == 20
    assert {c.run: c.count for c in ledgers[0].charges()}["child"] == 40


def test_a_child_forked_in_the_middle_of_anothers_charge_may_use_no_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own locks may be held in it for ever; the fork has waited as long as it does."""
    monkeypatch.setattr(connections, "SECONDS_FOR_A_LOCK", 0.2)
    ledger = Ledger(path, BUDGET)
    query = make_query(ledger)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger._storage.writing("charge") as transaction:
            transaction.add("parent", "training", {GAUSSIAN: 1})
            inside.set()
            leave.wait(PATIENCE)

    def child() -> None:
        for act in (
            lambda: ledger.charge({GAUSSIAN: 1}, run="child"),
            ledger.totals,
            lambda: ask(query),
            lambda: Ledger(path),
        ):
            with pytest.raises(LedgerError, match="forked in the middle"):
                act()
        ledger.close()
        query.account.refund_unused()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert inside.wait(PATIENCE)
    try:
        assert in_fork(child) == 0
    finally:
        leave.set()
        thread.join(PATIENCE)
    assert charged(path) == 1
    ledger.charge({GAUSSIAN: 1}, run="parent")
    assert charged(path) == 2


# ---------------------------------------------------------------------- the parent's connection

PROGRAM = """
import os, sys
from privada.accounting import Ledger, events
path, how = sys.argv[1:]
ledger, event = Ledger(path), events.gaussian(20.0)
storage = ledger._storage
with storage.writing("charge") as transaction:
    transaction.add("parent", "training", {event: 1})
    child = os.fork()
    if child == 0 and how == "leaves":
        sys.exit(7)
    if child == 0 and how == "uses":
        transaction.connection.execute("UPDATE charges SET count = 1000")
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == {"leaves": 7, "uses": 1, "commits": 1}[how], code
        print(*sorted(name for name in os.listdir(os.path.dirname(path))))
"""


@pytest.mark.parametrize("how", ["leaves", "uses", "commits"])
def test_a_child_cannot_end_or_join_its_parents_transaction(path: Path, how: str) -> None:
    """A signal handler may fork in the middle of a charge, and its child may end in any way."""
    Ledger(path, BUDGET).close()
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), how],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == [path.name, f"{path.name}-journal"]  # as the parent left it
    if how != "leaves":
        assert "forked in the middle" in told.stderr
    assert charged(path) == 1
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_child_that_drops_a_ledger_leaves_its_parents_open(path: Path) -> None:
    ledgers = [Ledger(path, BUDGET)]
    ledgers[0].charge({GAUSSIAN: 1}, run="parent")

    def child() -> None:
        ledgers.clear()
        gc.collect()
        Ledger(path).charge({GAUSSIAN: 1}, run="child")

    with ledgers[0]._storage.reading() as transaction:
        transaction.connection.execute("SELECT * FROM charges").fetchall()
    assert in_fork(child) == 0
    ledgers[0].charge({GAUSSIAN: 1}, run="parent")
    assert charged(path) == 3


def test_a_child_forked_within_a_payment_pays_for_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler forks between a block's charge and its use; parent and child go on."""
    ledger, plan = Ledger(path, BUDGET), Plan(1000)
    query = make_query(ledger, plan, 16)
    true, children = ledger.charge, []

    def charge(*given: Any, **named: Any) -> Reservation:
        reservation = true(*given, **named)
        if not children:
            children.append(os.fork())
            if children == [0]:
                limited()
        return reservation

    monkeypatch.setattr(ledger, "charge", charge)
    code = 1
    try:
        refused = False
        try:
            ask(query, plan)
        except LedgerError as error:
            refused = "forked" in str(error)
        if children == [0]:
            assert refused
            assert charged(path) == 16
            ask(query)
            assert charged(path) == 17
            code = 0
    finally:
        if children == [0]:
            os._exit(code)
    assert not refused
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    query.account.refund_unused()
    assert charged(path) == 2


def test_a_child_is_held_to_what_is_charged_and_not_to_what_was(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0, 1e-5))
    most = ledger.affordable(EVENT, 10_000)
    query = make_query(ledger, Plan(most))
    ask(query)
    Ledger(path).charge({EVENT: most - 2}, run="another")

    def child() -> None:
        ask(query)
        with pytest.raises(BudgetExceeded):
            ask(query)

    assert in_fork(child) == 0
    with pytest.raises(BudgetExceeded):
        ask(query)
    assert charged(path) == most


# ---------------------------------------------------------------------- lives


def test_the_care_for_forks_keeps_nothing_alive(path: Path) -> None:
    ledger = Ledger(path)
    query = make_query(ledger)
    gone = [weakref.ref(each) for each in (query, ledger, ledger._storage)]
    assert in_fork(lambda: None) == 0
    del query, ledger
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    assert in_fork(lambda: None) == 0
