"""The ledger in one process: what it keeps, what it refuses, and what it says of a bad file."""

import contextlib
import copy
import enum
import errno
import math
import os
import pickle
import re
import shutil
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import Budget, Ledger, Reservation, epsilon_of, events
from privada.accounting.filters import RenyiFilter
from privada.accounting.ledger import Prepaid, certification
from privada.accounting.ledger.counting import KINDS, ORDERS_LABEL
from privada.accounting.ledger.sqlite import connections, files, formats
from privada.accounting.ledger.sqlite.rows import SQLiteTransaction
from privada.core.errors import ArgumentError, BudgetExceeded, EventError, LedgerError, PrivadaError
from tests.alarms import alarmed
from tests.forks import PATIENCE, in_fork, together
from tests.ledger_files import content, opened_twice

BUDGET = Budget(1.0, 1e-5)
# alone, a Gaussian has a closed form, so that charging it costs next to nothing
GAUSSIAN = events.gaussian(20.0)
POISSON = events.poisson(0.01, 4.0)
FIXED = events.fixed_size(1000, 10, 4.0)


def count(ledger: Ledger) -> int:
    return sum(charge.count for charge in ledger.charges())


def spend(ledger: Ledger, event: DpEvent = GAUSSIAN, run: str = "spender") -> int:
    """Charge all that the ledger allows."""
    most = ledger.affordable(event, 100_000)
    ledger.charge({event: most}, run=run)
    return most


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "patients.ledger"


# ---------------------------------------------------------------------- what it keeps


@pytest.mark.parametrize("kind", KINDS)
def test_charges_are_there_when_the_file_is_opened_again(path: Path, kind: str) -> None:
    with Ledger(path, BUDGET, kind=kind) as ledger:
        ledger.declare({"first": {GAUSSIAN: 3, POISSON: 15}, "second": {POISSON: 3}})
        ledger.charge({GAUSSIAN: 3, POISSON: 10}, run="first")
        ledger.charge({POISSON: 5}, run="first", purpose="tuning")
        ledger.charge({POISSON: 2}, run="second")
        ledger.charge({POISSON: 1}, run="second")
        told, epsilon = ledger.charges(), ledger.epsilon()
    again = Ledger(path)
    assert again.charges() == told
    assert [(c.run, c.purpose, c.count) for c in told] == [
        ("first", "training", 3),
        ("first", "training", 10),
        ("first", "tuning", 5),
        ("second", "training", 3),
    ]
    assert again.totals() == Counter({GAUSSIAN: 3, POISSON: 18})
    exact = epsilon_of({GAUSSIAN: 3, POISSON: 18}, BUDGET.delta)
    assert again.epsilon() == epsilon
    assert epsilon == exact if kind == "planned" else exact < epsilon < 1.5 * exact
    assert (again.budget, again.dataset, again.kind) == (BUDGET, "patients", kind)


def test_a_composed_event_is_charged_by_its_parts(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge(
        ComposedDpEvent([SelfComposedDpEvent(GAUSSIAN, 4), SelfComposedDpEvent(POISSON, 6)]),
        run="a",
    )
    assert ledger.totals() == Counter({GAUSSIAN: 4, POISSON: 6})


@pytest.mark.parametrize("event", [GAUSSIAN, POISSON, FIXED, events.poisson(0.1 + 0.2, 1 / 3)])
def test_events_keep_every_bit(path: Path, event: DpEvent) -> None:
    Ledger(path).charge({event: 7}, run="a")
    assert Ledger(path).totals() == Counter({event: 7})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GaussianDpEvent(4), GaussianDpEvent(4.0)),
        (GaussianDpEvent(np.float64(4.0)), GaussianDpEvent(4)),
        (PoissonSampledDpEvent(1.0, GaussianDpEvent(4.0)), GaussianDpEvent(4.0)),
        (PoissonSampledDpEvent(0.5, GaussianDpEvent(4)), events.poisson(0.5, 4.0)),
    ],
)
def test_one_event_written_in_two_ways_is_counted_twice(
    path: Path, one: DpEvent, other: DpEvent
) -> None:
    Ledger(path).charge({one: 5}, run="a")
    Ledger(path).charge({other: 3}, run="a")
    ledger = Ledger(path)
    assert count(ledger) == 8
    assert sum(ledger.totals().values()) == 8


class Name(enum.StrEnum):
    FIRST = "first"


@pytest.mark.parametrize(
    "name", [Name.FIRST, np.str_("first"), 7, True, 1.5, b"first", None, "a\0b", "\udc80", "é", ""]
)
def test_any_name_is_kept_or_refused_and_the_ledger_stays_whole(path: Path, name: Any) -> None:
    ledger, charges = Ledger(path, BUDGET), 1
    ledger.charge({GAUSSIAN: 1}, run="plain")
    try:
        ledger.charge({GAUSSIAN: 1}, run=name)
        charges += 1
        reservation = ledger.charge({GAUSSIAN: 1}, run=name)
        charges += 1
        ledger.refund(reservation)
        charges -= 1
    except PrivadaError:
        pass
    assert count(Ledger(path)) == count(ledger) == charges
    other = path.with_name("other")
    try:
        Ledger(other, BUDGET, dataset=name).close()
    except PrivadaError:
        assert not other.exists()
    else:
        assert Ledger(other).budget == BUDGET


def test_every_connection_writes_durably(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    for _ in range(2):
        connection = ledger._storage.connection()
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        ledger.close()


def test_a_charge_is_committed_when_charge_returns(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    for number in range(1, 4):
        ledger.charge({GAUSSIAN: 1}, run="a")
        assert count(Ledger(path)) == number


def test_a_charge_of_nothing_changes_nothing(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.refund(ledger.charge({}, run="a"))
    ledger.refund(ledger.charge({GAUSSIAN: 0}, run="a"))
    assert ledger.charges() == ()
    assert ledger.epsilon() == 0.0


def test_two_ledgers_on_one_file_see_each_other(path: Path) -> None:
    one, other = Ledger(path, BUDGET), Ledger(path)
    for turn in range(6):
        (one, other)[turn % 2].charge({GAUSSIAN: 1}, run=f"run {turn % 2}")
        assert one.totals() == other.totals() == Counter({GAUSSIAN: turn + 1})


def test_a_closed_ledger_that_is_used_again_knows_what_others_charged(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 1}, run="a")
    ledger.close()
    spend(Ledger(path))
    spent = count(Ledger(path))
    with pytest.raises(LedgerError):  # refused as too much, or as closed
        ledger.charge({GAUSSIAN: 1}, run="a")
    assert count(Ledger(path)) == spent
    assert Ledger(path).epsilon() <= BUDGET.epsilon


# ---------------------------------------------------------------------- the budget


def test_the_budget_is_spent_to_the_last_charge_and_no_further(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    while True:
        try:
            ledger.charge({GAUSSIAN: 1}, run="a")
        except BudgetExceeded:
            break
    number = count(ledger)
    assert epsilon_of({GAUSSIAN: number}, BUDGET.delta) <= ledger.epsilon() <= BUDGET.epsilon
    assert ledger.price({GAUSSIAN: number}) == ledger.epsilon()
    assert ledger.price({GAUSSIAN: number + 1}) > BUDGET.epsilon
    assert epsilon_of({GAUSSIAN: number}, BUDGET.delta) > 0.85 * BUDGET.epsilon  # not far below
    assert ledger.affordable(GAUSSIAN, 10) == 0


def test_a_planned_budget_is_spent_to_the_last_charge_and_no_further(path: Path) -> None:
    most = Ledger(None, BUDGET, kind="planned").affordable(GAUSSIAN, 10_000)
    assert epsilon_of({GAUSSIAN: most}, BUDGET.delta) <= BUDGET.epsilon
    assert epsilon_of({GAUSSIAN: most + 1}, BUDGET.delta) > BUDGET.epsilon
    ledger = Ledger(path, BUDGET, kind="planned")
    for _ in range(most):
        ledger.charge({GAUSSIAN: 1}, run="a", plan={GAUSSIAN: most})
    with pytest.raises(BudgetExceeded):
        ledger.charge({GAUSSIAN: 1}, run="a", plan={GAUSSIAN: most})
    assert count(ledger) == most
    assert ledger.affordable(GAUSSIAN, 10, "a") == 0


def test_affordable_is_the_largest_charge_that_passes(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({POISSON: 100}, run="a")
    most = ledger.affordable(GAUSSIAN, 100)
    assert 0 < most < 100
    with pytest.raises(BudgetExceeded):
        ledger.charge({GAUSSIAN: most + 1}, run="a")
    ledger.charge({GAUSSIAN: most}, run="a")
    assert Ledger(None).affordable(GAUSSIAN, 12) == 12


def test_a_refusal_changes_nothing_in_the_file(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 5}, run="a")
    charges, whole, before = ledger.charges(), content(path), path.read_bytes()
    with pytest.raises(BudgetExceeded, match="Nothing was charged and no data was read"):
        ledger.charge({GAUSSIAN: 100_000}, run="a")
    with pytest.raises(BudgetExceeded):
        ledger.charge({GAUSSIAN: 1, events.gaussian(0.1): 1}, run="b")
    assert ledger.charges() == charges
    assert content(path) == whole
    assert path.read_bytes() == before
    ledger.charge({GAUSSIAN: 1}, run="a")
    assert count(Ledger(path)) == 6


def test_the_refusal_names_budget_and_cost(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.charge({GAUSSIAN: 100_000}, run="a")
    for part in (str(path), "epsilon=1", "delta=1e-05", "0 is spent", "more noise"):
        assert part in str(caught.value)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -50.0, -math.inf])
@pytest.mark.parametrize("sampled", [False, True])
def test_noise_that_is_not_a_positive_number_is_refused(
    path: Path, wrong: float, sampled: bool
) -> None:
    inner = GaussianDpEvent(wrong)
    event = PoissonSampledDpEvent(0.1, inner) if sampled else inner
    ledger = Ledger(path, BUDGET)
    with pytest.raises(PrivadaError):
        ledger.charge({event: 1}, run="a")
    assert count(Ledger(path)) == 0


@pytest.mark.parametrize("wrong", [math.nan, 0.0, -0.1, 1.5])
def test_a_sampling_rate_that_is_not_one_is_refused(path: Path, wrong: float) -> None:
    ledger = Ledger(path, BUDGET)
    with pytest.raises(PrivadaError):
        ledger.charge({PoissonSampledDpEvent(wrong, GaussianDpEvent(4.0)): 1}, run="a")
    assert count(Ledger(path)) == 0


def test_no_noise_costs_more_than_any_budget(path: Path) -> None:
    with pytest.raises(BudgetExceeded):
        Ledger(path, Budget(1e6, 1e-5)).charge({GaussianDpEvent(0.0): 1}, run="a")
    assert count(Ledger(path)) == 0


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1", None])
def test_a_count_that_is_not_one_is_refused(path: Path, wrong: Any) -> None:
    ledger = Ledger(path, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 5}, run="a")
    with pytest.raises(ArgumentError, match="count"):
        ledger.charge({GAUSSIAN: wrong}, run="a")
    with pytest.raises(ArgumentError, match="count"):
        reservation.use(GAUSSIAN, wrong)
    assert reservation.unused == {GAUSSIAN: 5}
    assert count(Ledger(path)) == 5


def test_an_unknown_event_and_an_unknown_purpose_are_refused(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    with pytest.raises(EventError, match="LaplaceDpEvent"):
        ledger.charge({LaplaceDpEvent(1.0): 1}, run="a")
    with pytest.raises(ArgumentError, match="purpose"):
        ledger.charge({GAUSSIAN: 1}, run="a", purpose="curiosity")
    with pytest.raises(PrivadaError):
        ledger.charge({GAUSSIAN: 1}, run=None)  # type: ignore[arg-type]
    assert count(Ledger(path)) == 0


@pytest.mark.parametrize("budget", [BUDGET, None])
@pytest.mark.parametrize(("first", "second"), [(POISSON, FIXED), (FIXED, POISSON)])
def test_two_neighbouring_relations_do_not_mix(
    path: Path, budget: Budget | None, first: DpEvent, second: DpEvent
) -> None:
    ledger = Ledger(path, budget)
    with pytest.raises(EventError, match="one neighbouring relation"):
        ledger.charge({first: 1, second: 1}, run="a")
    assert ledger.charges() == ()
    ledger.charge({first: 1, GAUSSIAN: 1}, run="a")
    whole = content(path)
    with pytest.raises(EventError, match="one neighbouring relation"):
        ledger.charge({second: 1}, run="a")
    assert content(path) == whole
    ledger.charge({first: 1}, run="a")
    assert count(Ledger(path)) == 3


def test_a_refund_gives_back_what_was_not_used_and_no_more(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 5, POISSON: 5}, run="a")
    ledger.charge({GAUSSIAN: 5}, run="b")
    reservation.use(GAUSSIAN, 3)
    for event, number in ((GAUSSIAN, 3), (POISSON, 6), (events.gaussian(21.0), 1)):
        with pytest.raises(LedgerError, match="Charge the ledger first"):
            reservation.use(event, number)
    ledger.refund(reservation)
    assert Ledger(path).totals() == ledger.totals() == Counter({GAUSSIAN: 8})
    assert {(each.run, each.count) for each in ledger.charges()} == {("a", 3), ("b", 5)}
    whole = content(path)
    for act in (lambda: ledger.refund(reservation), lambda: reservation.use(GAUSSIAN)):
        with pytest.raises(LedgerError, match="it was returned"):
            act()
    assert not reservation.covers(GAUSSIAN)
    assert content(path) == whole


@pytest.mark.parametrize("wrong", [{GAUSSIAN: 1}, None, GAUSSIAN, 3, "reservation"])
def test_nothing_but_a_reservation_is_refunded(path: Path, wrong: Any) -> None:
    """Four full runs fitted a budget of one, each charge taken back after its run."""
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 5}, run="a")
    whole = content(path)
    with pytest.raises(ArgumentError, match="Expected reservation to be what"):
        ledger.refund(wrong)
    with pytest.raises(TypeError):
        ledger.refund({GAUSSIAN: 1}, run="a")  # type: ignore[call-arg,arg-type]
    assert content(path) == whole


def test_a_reservation_is_of_one_ledger_and_cannot_be_made_or_copied(path: Path) -> None:
    ledger, other = Ledger(path, BUDGET), Ledger(path)
    reservation = ledger.charge({GAUSSIAN: 5}, run="a")
    for act in (
        lambda: copy.copy(reservation),
        lambda: copy.deepcopy(reservation),
        lambda: pickle.dumps(reservation),
        lambda: Reservation(None, ledger, "a", "training", Counter({GAUSSIAN: 5})),
    ):
        with pytest.raises(LedgerError, match="reservation"):
            act()
    with pytest.raises(LedgerError, match="another ledger gave it"):
        other.refund(reservation)
    assert count(ledger) == 5
    ledger.refund(reservation)
    assert count(Ledger(path)) == 0


def test_a_fork_can_neither_use_nor_return_a_reservation(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 5}, run="a")

    def child() -> None:
        for act in (lambda: reservation.use(GAUSSIAN), lambda: ledger.refund(reservation)):
            with pytest.raises(LedgerError, match="forked process"):
                act()

    assert in_fork(child) == 0
    reservation.use(GAUSSIAN)
    ledger.refund(reservation)
    assert count(Ledger(path)) == 1


def test_threads_use_a_reservation_no_more_often_than_it_pays_for() -> None:
    ledger = Ledger(None)
    reservation = ledger.charge({GAUSSIAN: 500}, run="a")
    used: list[int] = []

    def work(_: int) -> None:
        done = 0
        with contextlib.suppress(LedgerError):
            while True:
                reservation.use(GAUSSIAN)
                done += 1
                if done == 40:
                    ledger.refund(reservation)
        used.append(done)

    together(work)
    assert sum(used) == ledger.totals()[GAUSSIAN] < 500


def test_a_signal_handler_that_returns_a_reservation_ends_its_use(path: Path) -> None:
    """In the middle of a use, after the count was looked at."""
    ledger = Ledger(path, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 5}, run="a")

    class Interrupted(Counter[DpEvent]):
        def __setitem__(self, event: DpEvent, number: int) -> None:
            ledger.refund(reservation)
            super().__setitem__(event, number)

    reservation._unused = Interrupted({})
    dict.__setitem__(reservation._unused, GAUSSIAN, 5)
    with pytest.raises(LedgerError, match="it was returned"):
        reservation.use(GAUSSIAN)
    assert count(Ledger(path)) == 0


def test_a_signal_handler_cannot_use_a_reservation_in_the_middle_of_its_use() -> None:
    """After the count was looked at: both would find the last one."""
    ledger = Ledger(None, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 1}, run="a")
    used = []

    class Interrupted(Counter[DpEvent]):
        def __setitem__(self, event: DpEvent, number: int) -> None:
            with contextlib.suppress(LedgerError):
                reservation.use(GAUSSIAN)
                used.append("by the handler")
            super().__setitem__(event, number)

    reservation._unused = Interrupted({})
    dict.__setitem__(reservation._unused, GAUSSIAN, 1)
    reservation.use(GAUSSIAN)
    assert not used
    assert not reservation.unused
    with pytest.raises(LedgerError, match="0 of it left"):
        reservation.use(GAUSSIAN)


def test_threads_charge_an_allowance_once(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Prepaid({GAUSSIAN: 1}, "toy")
    both, totals, paid = threading.Barrier(2), Ledger.totals, []

    def slowly(self: Ledger) -> Any:
        found = totals(self)
        with contextlib.suppress(threading.BrokenBarrierError):  # the other waits elsewhere
            both.wait(timeout=0.5)
        return found

    monkeypatch.setattr(Prepaid, "totals", slowly)

    def work() -> None:
        with contextlib.suppress(BudgetExceeded):
            paid.append(account.charge({GAUSSIAN: 1}, run="a"))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paid) == 1


def test_a_ledger_counts_up_to_a_limit(path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge({GAUSSIAN: 2**63 - 1}, run="a")
    with pytest.raises(LedgerError, match="the most that a ledger can count"):
        ledger.charge({GAUSSIAN: 1}, run="a")
    with pytest.raises(LedgerError, match="the most that a ledger can count"):
        ledger.charge({GAUSSIAN: 2**70}, run="b")
    assert count(ledger) == count(Ledger(path)) == 2**63 - 1


def test_what_could_not_be_given_back_stays_charged_and_is_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 5}, run="a")

    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteTransaction, "add", fail)
        with pytest.raises(LedgerError, match="full"):
            ledger.refund(reservation)
    with pytest.raises(LedgerError, match="it was returned"):
        reservation.use(GAUSSIAN)
    assert count(ledger) == count(Ledger(path)) == 5


def test_a_refunded_budget_can_be_spent_again(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    most = spend(ledger)
    with pytest.raises(BudgetExceeded):
        ledger.charge({GAUSSIAN: 1}, run="a")
    other = Ledger(path.with_name("other"), BUDGET)
    other.charge({GAUSSIAN: most - 2}, run="a")
    other.refund(other.charge({GAUSSIAN: 2}, run="a"))
    other.charge({GAUSSIAN: 2}, run="b")
    with pytest.raises(BudgetExceeded):
        other.charge({GAUSSIAN: 1}, run="a")
    assert count(Ledger(other.name)) == count(ledger) == most


def test_a_plan_certifies_charges_without_asking_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, asked = Ledger(path, BUDGET, kind="planned"), []

    def counted(totals: Mapping[DpEvent, int], *given: Any) -> float:
        asked.append(dict(totals))
        return epsilon_of(totals, *given)

    monkeypatch.setattr(certification, "epsilon_of", counted)
    for _ in range(20):
        ledger.charge({GAUSSIAN: 1}, run="a", plan={GAUSSIAN: 20})
    assert asked == [{GAUSSIAN: 20}]


def test_a_plan_certified_before_another_process_charged_does_not_count(path: Path) -> None:
    one = Ledger(path, BUDGET)
    most = one.affordable(GAUSSIAN, 10_000)
    one.charge({GAUSSIAN: 1}, run="a", plan={GAUSSIAN: most})
    Ledger(path).charge({GAUSSIAN: most - 1}, run="b")
    with pytest.raises(BudgetExceeded):
        one.charge({GAUSSIAN: 1}, run="a", plan={GAUSSIAN: most - 1})
    assert count(Ledger(path)) == most


def test_a_plan_that_does_not_fit_lets_pass_what_does(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    most = ledger.affordable(GAUSSIAN, 10_000)
    for _ in range(most):
        ledger.charge({GAUSSIAN: 1}, run="a", plan={GAUSSIAN: 10 * most})
    with pytest.raises(BudgetExceeded):
        ledger.charge({GAUSSIAN: 1}, run="a", plan={GAUSSIAN: 10 * most})


# ---------------------------------------------------------------------- a run's own budget

OWN = Budget(0.5, 1e-6)
SMALL = events.gaussian(40.0)


def own_most(adaptive: bool = False) -> int:
    """Return how much a run's own budget allows: by loss distributions, or by a filter."""
    kind = "adaptive" if adaptive else "planned"
    return Ledger(None, OWN, kind=kind).affordable(SMALL, 10_000)


def test_a_filter_allows_a_run_less_than_its_plan() -> None:
    assert 0.7 * own_most() < own_most(adaptive=True) < own_most()


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("budget", [None, Budget(9.0, 1e-5)])
def test_a_run_is_held_to_its_own_budget_too(
    path: Path, budget: Budget | None, adaptive: bool
) -> None:
    ledger, most = Ledger(path, budget), own_most(adaptive)
    own: dict[str, Any] = {"limit": OWN, "adaptive": adaptive}
    ledger.charge({SMALL: most}, run="another", **own)
    ledger.charge({SMALL: most - 1}, run="a", **own)
    whole = content(path)
    with pytest.raises(
        BudgetExceeded, match=r"own budget of run 'a'.*Nothing was charged"
    ) as caught:
        ledger.charge({SMALL: 2}, run="a", **own)
    assert "epsilon=0.5 at delta=1e-06" in str(caught.value)
    assert content(path) == whole
    ledger.charge({SMALL: 1}, run="a", **own)
    with pytest.raises(BudgetExceeded):
        ledger.charge({SMALL: 1}, run="a", **own)
    ledger.charge({SMALL: 1}, run="a")  # a limit holds the charges that are made under it


@pytest.mark.parametrize("adaptive", [False, True])
def test_all_purposes_and_all_processes_count_against_a_runs_own_budget(
    path: Path, adaptive: bool
) -> None:
    one, other, most = Ledger(path), Ledger(path), own_most(adaptive)
    own: dict[str, Any] = {"run": "a", "limit": OWN, "adaptive": adaptive}
    one.charge({SMALL: most - 5}, purpose="statistics", **own)
    one.charge({SMALL: 1}, plan={SMALL: 5}, **own)
    reservation = other.charge({SMALL: 3}, purpose="tuning", **own)
    reservation.use(SMALL, 2)
    one.charge({SMALL: 1}, plan={SMALL: 5}, **own)
    for ledger in (one, other, Ledger(path)):
        with pytest.raises(BudgetExceeded):
            ledger.charge({SMALL: 1}, **own)
    other.refund(reservation)
    one.charge({SMALL: 1}, **own)
    with pytest.raises(BudgetExceeded):
        other.charge({SMALL: 1}, **own)


def test_the_ledgers_budget_stays_the_first(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    most = spend(ledger, SMALL)
    with pytest.raises(BudgetExceeded, match="budget of ledger"):
        ledger.charge({SMALL: 1}, run="a", limit=Budget(100.0, 1e-5))
    assert count(ledger) == most


def test_a_limit_that_is_not_a_budget_is_refused(path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"limit.*pv\.Budget"):
        Ledger(path).charge({SMALL: 1}, run="a", limit=1.0)  # type: ignore[arg-type]


def test_another_limit_is_computed_anew(path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge({SMALL: 1}, run="a", plan={SMALL: 500}, limit=Budget(50.0, 1e-5))
    ledger.charge({SMALL: own_most() - 1}, run="a", limit=OWN)
    with pytest.raises(BudgetExceeded):
        ledger.charge({SMALL: 1}, run="a", limit=OWN)


def test_what_fits_is_computed_once_whoever_else_charges(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, other, asked = Ledger(path, BUDGET), Ledger(path), []

    def counted(totals: Mapping[DpEvent, int], delta: float) -> float:
        asked.append((dict(totals), delta))
        return epsilon_of(totals, delta)

    monkeypatch.setattr(certification, "epsilon_of", counted)  # of what is planned
    reservations = [
        ledger.charge({SMALL: 1}, run="a", plan={SMALL: left}, limit=OWN)
        for left in range(20, 0, -1)
    ]
    assert asked == [({SMALL: 20}, OWN.delta)]
    for reservation in reservations[10:]:
        ledger.refund(reservation)
    other.charge({SMALL: 5}, run="b")
    ledger.charge({SMALL: 10}, run="a", limit=OWN)
    assert asked == [({SMALL: 20}, OWN.delta)]  # the run is still within what was found to fit
    ledger.charge({SMALL: 1}, run="a", limit=OWN)
    assert asked == [({SMALL: 20}, OWN.delta), ({SMALL: 21}, OWN.delta)]


@settings(max_examples=60, deadline=None)
@given(
    done=st.lists(
        st.tuples(
            st.integers(0, 1),  # which ledger
            st.integers(0, 1),  # which run
            st.integers(-15, 25),  # how much, less than 0 to refund
            st.none() | st.integers(0, 200),  # the plan
        ),
        max_size=14,
    )
)
@pytest.mark.parametrize("adaptive", [False, True])
def test_charges_in_any_order_keep_each_runs_own_budget(
    tmp_path_factory: pytest.TempPathFactory,
    adaptive: bool,
    done: list[tuple[int, int, int, int | None]],
) -> None:
    path = tmp_path_factory.mktemp("own") / "patients.ledger"
    ledgers, held = [Ledger(path, Budget(0.7, 1e-6)), Ledger(path)], [0, 0]
    own: dict[str, Any] = {"limit": OWN, "adaptive": adaptive}
    most = own_most(adaptive)
    reservations: dict[tuple[int, int], list[Reservation]] = {}
    all_most = ledgers[0].affordable(SMALL, 10_000)
    assert most < all_most < 2 * most
    for who, run, number, plan in done:
        ledger, name = ledgers[who], f"run {run}"
        mine = reservations.setdefault((who, run), [])
        if number < 0:
            if mine:
                reservation = mine.pop()
                left = reservation.unused[SMALL]
                if used := max(0, left + number):
                    reservation.use(SMALL, used)
                ledger.refund(reservation)
                held[run] -= left - used
            continue
        fits = held[run] + number <= most and sum(held) + number <= all_most
        planned = None if plan is None else {SMALL: plan}
        if fits or number == 0:
            mine.append(ledger.charge({SMALL: number}, run=name, plan=planned, **own))
            held[run] += number
        else:
            with pytest.raises(BudgetExceeded):
                ledger.charge({SMALL: number}, run=name, plan=planned, **own)
    assert count(Ledger(path)) == sum(held)
    for ledger in ledgers:
        ledger.close()


# ---------------------------------------------------------------------- any order of events


class Operation:
    """One thing that a user of a ledger may do."""

    def __init__(self, kind: str, who: int, counts: dict[int, int], plan: dict[int, int] | None):
        self.kind, self.who, self.counts, self.plan = kind, who, counts, plan

    def __repr__(self) -> str:
        return f"{self.kind}(ledger {self.who}, {self.counts}, plan={self.plan})"


def operations(most: int) -> st.SearchStrategy[list[Operation]]:
    events_of = st.integers(0, 2)
    counts = st.dictionaries(events_of, st.integers(0, most), min_size=1, max_size=2)
    plans = st.none() | st.dictionaries(events_of, st.integers(0, 8 * most), max_size=3)
    kinds = st.sampled_from(["charge", "charge", "charge", "charge by function", "refund"])
    one = st.builds(Operation, kinds, st.integers(0, 1), counts, plans)
    return st.lists(one, min_size=1, max_size=12)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "empty.ledger"
    Ledger(path, BUDGET).close()
    return path


def gaussian_delta(totals: Counter[DpEvent], epsilon: float) -> float:
    """Return the delta of Gaussian releases, from Balle and Wang (2018), Theorem 8."""
    mu = math.sqrt(sum(n / event.noise_multiplier**2 for event, n in totals.items()))
    if mu == 0:
        return 0.0

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


def truth(totals: Counter[DpEvent]) -> float:
    """Return the epsilon of what was planned, which no ledger may be below."""
    return epsilon_of(+totals, BUDGET.delta)


# of a ledger after a charge: what it held, and what it was asked for as well if that was refused
Check = Callable[[Ledger, Counter[DpEvent], Counter[DpEvent], bool], None]


def check_operations(
    empty: Path, kinds: list[DpEvent], done: list[Operation], check: Check
) -> None:
    """Do the operations on two ledgers of one file beside a model of them."""
    with opened_twice(empty) as ledgers:
        own = [Counter[DpEvent](), Counter[DpEvent]()]
        reservations: list[list[Reservation]] = [[], []]
        for operation in done:
            ledger, mine = ledgers[operation.who], own[operation.who]
            counts = Counter({kinds[i]: n for i, n in operation.counts.items() if n})
            plan: Any = operation.plan and {kinds[i]: n for i, n in operation.plan.items()}
            run = f"run {operation.who}"
            if operation.kind == "refund":
                if reservations[operation.who]:
                    reservation = reservations[operation.who].pop()
                    for event, n in (reservation.unused & counts).items():
                        reservation.use(event, n)
                    mine.subtract(reservation.unused)
                    ledger.refund(reservation)
            else:
                expected = Counter(plan or {}) | counts
                if operation.kind == "charge by function":
                    plan = lambda plan=plan: plan or {}  # noqa: E731
                try:
                    reservations[operation.who].append(ledger.charge(counts, run=run, plan=plan))
                except BudgetExceeded:
                    check(ledger, own[0] + own[1] + counts, expected, False)
                else:
                    mine.update(counts)
                    check(ledger, own[0] + own[1], expected, True)
            totals = +(own[0] + own[1])
            assert all(+each.totals() == totals for each in ledgers)
            assert ledgers[0].epsilon() == ledgers[1].epsilon() <= BUDGET.epsilon


def check_by_filter(
    ledger: Ledger, totals: Counter[DpEvent], expected: Counter[DpEvent], passed: bool
) -> None:
    """What passed fits by the filter, and so in truth; what was refused did not fit it."""
    kept = ledger.published(ORDERS_LABEL)
    # a first charge that was refused has fixed nothing
    filter = RenyiFilter.for_budget(BUDGET, expected) if kept is None else RenyiFilter.decode(kept)
    found = filter.epsilon(totals, BUDGET.delta)
    assert (found <= BUDGET.epsilon) == passed
    assert truth(totals) <= found
    if passed:
        assert ledger.epsilon() == found


def check_by_closed_form(
    ledger: Ledger, totals: Counter[DpEvent], expected: Counter[DpEvent], passed: bool
) -> None:
    if passed:
        assert gaussian_delta(totals, ledger.epsilon()) <= BUDGET.delta
    check_by_filter(ledger, totals, expected, passed)


@settings(max_examples=150, deadline=None)
@given(operations(20))
def test_gaussians_in_any_order_keep_the_budget(empty: Path, done: list[Operation]) -> None:
    kinds = [events.gaussian(30.0), events.gaussian(45.0), events.gaussian(70.0)]
    check_operations(empty, kinds, done, check_by_closed_form)


@settings(max_examples=8, deadline=None)
@given(operations(400))
def test_poisson_samples_in_any_order_keep_the_budget(empty: Path, done: list[Operation]) -> None:
    kinds = [events.poisson(0.01, 2.0), events.poisson(0.02, 4.0), events.gaussian(40.0)]
    check_operations(empty, kinds, done, check_by_filter)


@settings(max_examples=12, deadline=None)
@given(operations(200))
def test_fixed_size_samples_in_any_order_keep_the_budget(
    empty: Path, done: list[Operation]
) -> None:
    kinds = [events.fixed_size(1000, 10, 4.0), events.fixed_size(1000, 20, 6.0), GAUSSIAN]
    check_operations(empty, kinds, done, check_by_filter)


# ---------------------------------------------------------------------- threads, copies, memory


@pytest.mark.parametrize("in_memory", [True, False])
def test_threads_share_a_ledger(path: Path, in_memory: bool) -> None:
    ledger = Ledger(None if in_memory else path, Budget(4.0, 1e-5))
    acknowledged: list[int] = []

    def work(number: int) -> None:
        done = 0
        for turn in range(10):
            planned = {GAUSSIAN: 20 - 2 * turn}
            reservation = ledger.charge({GAUSSIAN: 2}, run=f"thread {number}", plan=planned)
            reservation.use(GAUSSIAN)
            ledger.refund(reservation)
            ledger.epsilon()
            done += 1
        acknowledged.append(done)

    together(work)
    assert acknowledged == [10] * 8
    assert ledger.totals() == Counter({GAUSSIAN: 80})
    assert {(c.run, c.count) for c in ledger.charges()} == {(f"thread {n}", 10) for n in range(8)}


def test_threads_do_not_overspend_together(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    acknowledged: list[int] = []

    def work(number: int) -> None:
        done = 0
        with contextlib.suppress(BudgetExceeded):
            while True:
                ledger.charge({GAUSSIAN: 1}, run=f"thread {number}")
                done += 1
        acknowledged.append(done)

    together(work)
    assert len(acknowledged) == 8
    assert sum(acknowledged) == count(Ledger(path))
    assert Ledger(path).epsilon() <= BUDGET.epsilon
    assert Ledger(path).affordable(GAUSSIAN, 1) == 0


def test_a_copy_of_a_ledger_is_the_same_account(path: Path) -> None:
    ledger = Ledger(path, BUDGET, dataset="patients")
    ledger.charge({GAUSSIAN: 1}, run="a")
    copies = [copy.copy(ledger), copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger))]
    for number, other in enumerate(copies, start=2):
        other.charge({GAUSSIAN: 1}, run="a")
        assert ledger.totals() == other.totals() == Counter({GAUSSIAN: number})
        assert (other.budget, other.dataset) == (BUDGET, "patients")


def test_a_pickle_never_starts_a_new_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ledger = Ledger("patients.ledger", BUDGET)
    spend(ledger)
    text = pickle.dumps(ledger)
    monkeypatch.chdir(tmp_path / "there")
    try:
        other = pickle.loads(text)
    except LedgerError:
        pass
    else:
        assert other.totals() == ledger.totals()
    assert list((tmp_path / "there").iterdir()) == []


def test_a_pickle_of_a_deleted_ledger_is_an_error(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    spend(ledger)
    text = pickle.dumps(ledger)
    ledger.close()
    path.unlink()
    with pytest.raises(LedgerError):
        pickle.loads(text)
    assert not path.exists()


def test_a_ledger_in_memory_stays_in_its_process() -> None:
    ledger = Ledger(None, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 1}, run="a")
    for send in (pickle.dumps, copy.copy):
        with pytest.raises(LedgerError, match="Give the ledger a path"):
            send(ledger)
    assert copy.deepcopy(ledger) is ledger

    def use() -> None:
        for act in (
            lambda: ledger.charge({GAUSSIAN: 1}, run="a"),
            lambda: ledger.refund(reservation),
            ledger.totals,
            ledger.charges,
            ledger.epsilon,
            lambda: ledger.affordable(GAUSSIAN, 1),
        ):
            with pytest.raises(LedgerError, match="forked process"):
                act()

    assert in_fork(use) == 0
    ledger.charge({GAUSSIAN: 1}, run="a")
    assert count(ledger) == 2
    ledger.close()
    with pytest.raises(LedgerError, match="closed or gone"):
        ledger.charge({GAUSSIAN: 1}, run="a")


def test_a_forked_child_charges_the_same_account(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    most = ledger.affordable(GAUSSIAN, 10_000)
    ledger.charge({GAUSSIAN: 1}, run="parent", plan={GAUSSIAN: most})

    def use() -> None:
        # what the parent was certified for is not the child's
        ledger.charge({GAUSSIAN: most - 3}, run="child")
        ledger.close()
        assert count(ledger) == most - 2

    assert in_fork(use) == 0
    assert ledger.totals() == Counter({GAUSSIAN: most - 2})
    ledger.charge({GAUSSIAN: 2}, run="parent")
    with pytest.raises(BudgetExceeded):
        ledger.charge({GAUSSIAN: 1}, run="parent")
    assert in_fork(lambda: None) == 0
    assert count(Ledger(path)) == most


@pytest.mark.parametrize("use", ["totals", "charges", "epsilon", "close"])
def test_a_fork_beside_a_busy_thread_does_not_hang(path: Path, use: str) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 1}, run="a")
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger._storage._lock:
            inside.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert inside.wait(PATIENCE)
    release = threading.Timer(1, leave.set)  # a fork may wait until the thread is done
    release.start()
    try:
        assert in_fork(lambda: getattr(ledger, use)()) == 0
    finally:
        release.cancel()
        leave.set()
        thread.join(PATIENCE)


def test_an_interrupt_while_waiting_for_the_lock_leaves_the_ledger_usable(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    release = threading.Timer(0.6, lambda: holder.execute("COMMIT"))

    def charge() -> None:
        """Wherever the interrupt comes on a slow machine: one too early would end all tests."""
        with alarmed(interrupt, 0.2):
            release.start()
            ledger.charge({GAUSSIAN: 1}, run="a")

    try:
        with pytest.raises(KeyboardInterrupt):
            charge()
    finally:
        release.cancel()
        if release.ident is not None:
            release.join(PATIENCE)
        holder.close()
    ledger.charge({GAUSSIAN: 1}, run="a")
    Ledger(path).charge({GAUSSIAN: 1}, run="b")
    assert count(ledger) >= 2


def test_a_signal_handler_that_reads_is_never_told_of_damage() -> None:
    """In the middle of a charge it may be refused, or see the charge or not."""
    ledger, said, handled = Ledger(None), set(), [0]

    def handle(*_: object) -> None:
        handled[0] += 1
        try:
            ledger.charges()
        except LedgerError as error:
            said.add(str(error))
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + handled[0] % 97 * 1e-5)

    charged = 0
    with alarmed(handle, 0.0005):
        while handled[0] < 500:
            ledger.charge({GAUSSIAN: 1}, run="a")
            charged += 1
    assert count(ledger) == charged
    assert not [words for words in said if "damaged" in words]


@pytest.mark.parametrize("use", ["totals", "charges", "charge", "refund", "epsilon"])
def test_a_signal_handler_in_the_middle_of_anything_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """Between reading the rows and keeping their sum, a charge would be forgotten."""
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 4}, run="a")
    reservation = ledger.charge({GAUSSIAN: 1}, run="a")
    Ledger(path).charge({GAUSSIAN: 1}, run="b")  # so that the rows have to be read again
    true, refused = SQLiteTransaction.charges, []

    def interrupted(transaction: SQLiteTransaction) -> Any:
        found = true(transaction)
        assert ledger.in_use_here()
        for act in (
            lambda: ledger.charge({GAUSSIAN: 1}, run="handler"),
            lambda: ledger.refund(reservation),
            ledger.totals,
            ledger.close,
        ):
            with pytest.raises(LedgerError, match="signal handler"):
                act()
            refused.append(act)
        return found

    monkeypatch.setattr(SQLiteTransaction, "charges", interrupted)
    given: dict[str, Any] = {"charge": ({GAUSSIAN: 1},), "refund": (reservation,)}
    named = {"run": "a"} if use == "charge" else {}
    assert not ledger.in_use_here()
    getattr(ledger, use)(*given.get(use, ()), **named)
    assert len(refused) == 4
    assert not ledger.in_use_here()
    expected = 6 + {"charge": 1, "refund": -1}.get(use, 0)
    monkeypatch.undo()
    assert sum(ledger.totals().values()) == count(Ledger(path)) == expected


# ---------------------------------------------------------------------- bad files


def test_another_data_set_is_refused(path: Path) -> None:
    Ledger(path, BUDGET, dataset="patients").close()
    with pytest.raises(LedgerError, match=r"'customers'.*'patients'.*own ledger"):
        Ledger(path, dataset="customers")
    assert Ledger(path, dataset="patients").dataset == "patients"


def test_another_budget_is_refused(path: Path) -> None:
    Ledger(path, BUDGET).close()
    with pytest.raises(LedgerError, match="Open it without a budget") as caught:
        Ledger(path, Budget(2.0, 1e-5))
    assert "epsilon=1.0" in str(caught.value)
    assert "epsilon=2.0" in str(caught.value)
    assert Ledger(path, BUDGET).budget == Ledger(path).budget == BUDGET


def test_a_budget_for_a_ledger_without_one_is_refused(path: Path) -> None:
    Ledger(path).close()
    with pytest.raises(LedgerError, match="no limit"):
        Ledger(path, BUDGET)
    with pytest.raises(ArgumentError, match="no budget"):
        Ledger(path).epsilon()
    with pytest.raises(ArgumentError, match=r"pv\.Budget"):
        Ledger(path, 1.0)  # type: ignore[arg-type]


def make_ledger(path: Path) -> bytes:
    with Ledger(path, BUDGET, dataset="patients") as ledger:
        ledger.charge({GAUSSIAN: 3, POISSON: 77}, run="first")
        ledger.charge({POISSON: 300}, run="second", purpose="tuning")
    return path.read_bytes()


def text(path: Path) -> None:
    path.write_text("epsilon = 1\n" * 100)


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path) -> None:
    whole = make_ledger(path)
    path.write_bytes(whole[: len(whole) // 2])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(make_ledger(path)[:60])


def overwritten(path: Path) -> None:
    whole = bytearray(make_ledger(path))
    row = whole.index(b"training")  # of the first page that has one; between rows there is nothing
    middle = slice(row - 400, row + 400)
    whole[middle] = bytes(byte ^ 0xFF for byte in whole[middle])
    path.write_bytes(whole)


def zeroed(path: Path) -> None:
    whole = make_ledger(path)
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))


def foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE charges (id INTEGER, amount REAL)")


def newer(path: Path) -> None:
    make_ledger(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {formats.NEWEST_VERSION + 1}")


def without_tables(path: Path) -> None:
    make_ledger(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE charges")


def without_its_budget(path: Path) -> None:
    make_ledger(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM meta")


def with_an_unknown_event(path: Path) -> None:
    make_ledger(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute('UPDATE charges SET event = \'{"kind": "laplace"}\' WHERE id = 1')


def folder(path: Path) -> None:
    path.mkdir()


def in_no_folder(path: Path) -> None:
    path.symlink_to(path.parent / "missing" / "patients.ledger")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (text, "another kind of file"),
        (empty_file, "the file is empty"),
        (cut_short, "restore it from a copy"),
        (cut_in_the_header, "restore it from a copy"),
        (overwritten, "restore it from a copy"),
        (zeroed, "restore it from a copy"),
        (foreign, "not a Privada ledger"),
        (newer, "Upgrade Privada"),
        (without_tables, "Cannot open"),
        (without_its_budget, "Cannot open"),
        (with_an_unknown_event, "does not match its seal"),
        (folder, "unable to open"),
        (in_no_folder, "Cannot open"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_bad_file_is_a_clear_error_and_stays_as_it_is(
    path: Path, make: Callable[[Path], None], words: str
) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else None
    for given_budget in (None, BUDGET):
        with pytest.raises(LedgerError, match=words) as caught:
            Ledger(path, given_budget)
        assert str(path) in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="Check that the folder exists"):
        Ledger(tmp_path / "missing" / "patients.ledger", BUDGET)
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="Check that the folder exists"):
        Ledger(tmp_path / "file" / "patients.ledger", BUDGET)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_path_that_cannot_be_is_a_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(PrivadaError):
        Ledger(tmp_path / name, BUDGET)


def test_the_sqlite_name_of_memory_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(PrivadaError), Ledger(":memory:", BUDGET) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="a")
        assert count(Ledger(":memory:")) == 1  # if it is taken, it is a file like any other
        return
    assert list(tmp_path.iterdir()) == []


def small_ledger(path: Path) -> bytes:
    """Make a ledger with all that one may hold, in pages so small that every byte can be tried."""
    with Ledger(path, BUDGET) as ledger:
        ledger.charge({POISSON: 300}, run="first")
        ledger.charge({GAUSSIAN: 3, POISSON: 70}, run="second", purpose="tuning")
        ledger.lease("search")
        ledger.publish("search", "1")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript("PRAGMA page_size = 512; VACUUM")
    return path.read_bytes()


def flipped(whole: bytes, place: int, every_bit: bool) -> bytes:
    """Return a file with a byte turned round, or one bit of it."""
    changed = bytearray(whole)
    changed[place] ^= 0xFF if every_bit else 1 << (place * 5 % 8)
    return bytes(changed)


def seen(ledger: Ledger) -> tuple[Any, ...]:
    """Return all that a price and a refusal depend on."""
    counts = sorted((repr(each.event), each.count) for each in ledger.charges())
    return counts, ledger.budget, ledger.dataset, ledger.published("search")


def outcome(act: Callable[[], Any]) -> Any:
    """Return what an act returns, or that it was refused with a remedy."""
    try:
        return act()
    except LedgerError as error:
        return "refused" if re.search(r"\. [A-Z].*\.$", str(error)) else f"no remedy in: {error}"


@pytest.fixture
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk."""
    true = connections.connect

    def connect(path: str | None) -> sqlite3.Connection:
        connection = true(path)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    monkeypatch.setattr(connections, "connect", connect)


@pytest.mark.parametrize("every_bit", [False, True])
@pytest.mark.usefixtures("in_haste")
def test_no_byte_of_the_file_can_change_what_is_read_unnoticed(path: Path, every_bit: bool) -> None:
    """Opened with any byte flipped, a ledger is refused or has the same charges; then it charges,
    and whoever opens it next finds that charge beside the others, or refuses it.
    """
    whole = small_ledger(path)
    with Ledger(path) as ledger:
        true = seen(ledger)
        ledger.charge({GAUSSIAN: 1}, run="third")
        after = seen(ledger)
    found: Counter[str] = Counter()
    for place in range(len(whole)):
        path.write_bytes(flipped(whole, place, every_bit))

        def use() -> Any:
            with Ledger(path) as ledger:
                assert seen(ledger) == true
                ledger.charge({GAUSSIAN: 1}, run="third")
                assert seen(ledger) == after
            return "opened"

        said = outcome(use)
        found[said] += 1
        if said == "opened":
            read = outcome(lambda: seen(Ledger(path)))
            assert read in (after, "refused"), place
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
    assert set(found) == {"opened", "refused"}
    assert found["refused"] > 0.8 * sum(byte != 0 for byte in whole)


@pytest.mark.usefixtures("in_haste")
def test_no_byte_that_is_flipped_under_an_open_ledger_loses_a_charge(path: Path) -> None:
    """What is in memory is right. What is written over it is refused, or right when read again."""
    whole = small_ledger(path)
    with Ledger(path) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="third")
        after = seen(ledger)
    for place in range(0, len(whole), 3):
        path.write_bytes(whole)
        ledger = Ledger(path)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(flipped(whole, place, False)[place : place + 1])
        charged = outcome(lambda ledger=ledger: ledger.charge({GAUSSIAN: 1}, run="third"))
        ledger.close()
        read = outcome(lambda: seen(Ledger(path)))
        expected = [after, "refused"] if charged != "refused" else [read]
        assert read in expected, place
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)


@pytest.mark.parametrize("table", ["charges", "given"])
@pytest.mark.parametrize("what", ["lost", "older", "doubled"])
def test_a_row_that_is_lost_older_or_doubled_is_noticed(path: Path, table: str, what: str) -> None:
    """Each with a seal of its own that is right, and with the numbers of rows and releases."""
    make_ledger(path)
    with Ledger(path) as ledger:
        ledger.publish("one", "1")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
    with Ledger(path) as ledger:
        ledger.charge({GAUSSIAN: 5}, run="first")
        ledger.lease("two")
        ledger.publish("two", "2")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if what == "lost":
            connection.execute(f"DELETE FROM {table} WHERE rowid = 1" if table == "charges" else
                               "DELETE FROM given WHERE label = 'two'")  # fmt: skip
        elif what == "older":
            connection.execute(f"DELETE FROM {table}")
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        elif table == "charges":
            fields = ("copy", "training", *rows[0][3:-1])
            connection.execute(
                "INSERT INTO charges (run, purpose, event, count, first, last, seal) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)", (*fields, formats.seal(*fields)),
            )  # fmt: skip
        else:
            connection.execute(
                "INSERT INTO given VALUES ('three', '1', ?)", (formats.seal("three", "1"),)
            )
    with pytest.raises(LedgerError, match="rows are missing, or are older"):
        Ledger(path)


def test_a_row_that_was_changed_is_not_charged_on(path: Path) -> None:
    """Without a full look at the file, which is for when it is opened: the row itself tells."""
    make_ledger(path)
    ledger = Ledger(path)
    ledger.totals()
    connection = ledger._storage.connection()  # the same, so that nothing tells of the change
    connection.execute("UPDATE charges SET count = 1 WHERE id = 1")
    (run, purpose, event) = connection.execute(
        "SELECT run, purpose, event FROM charges WHERE id = 1"
    ).fetchone()
    with pytest.raises(LedgerError, match="does not match its seal"):
        ledger.charge({events.decode(event): 1}, run=run, purpose=purpose)


# ---------------------------------------------------------------------- files in trouble


def test_a_locked_file_is_a_clear_error_and_charges_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_FOR_A_LOCK", 0.2)
    ledger = Ledger(path, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 1}, run="a")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        for act in (
            lambda: ledger.charge({GAUSSIAN: 1}, run="a"),
            lambda: ledger.refund(reservation),
            ledger.totals,
            ledger.charges,
            lambda: Ledger(path),
        ):
            with pytest.raises(LedgerError, match="Another process holds it"):
                act()
    assert count(ledger) == 1
    ledger.charge({GAUSSIAN: 1}, run="a")
    assert count(Ledger(path)) == 2


def test_a_reader_that_stays_is_a_clear_error_and_charges_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_FOR_A_LOCK", 0.2)
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 1}, run="a")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM charges").fetchall()
        with pytest.raises(LedgerError, match="Another process holds it"):  # only the commit fails
            ledger.charge({GAUSSIAN: 1}, run="a")
    assert ledger.totals() == Ledger(path).totals() == Counter({GAUSSIAN: 1})


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_deleted_while_open_takes_no_charge(path: Path, replaced: bool) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 1}, run="a")
    path.unlink()
    if replaced:
        Ledger(path, BUDGET).close()
    with pytest.raises(LedgerError, match=str(path)):
        ledger.charge({GAUSSIAN: 1}, run="a")
    ledger.close()
    if replaced:
        assert count(Ledger(path)) == 0
    else:
        with pytest.raises(LedgerError, match="closed or gone"):
            ledger.totals()
        assert not path.exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_or_replaced_is_told_in_words(path: Path, replaced: bool) -> None:
    ledger = Ledger(path, BUDGET)
    path.rename(path.with_name("moved"))
    if replaced:
        Ledger(path, BUDGET).close()
    with pytest.raises(LedgerError, match="deleted or replaced while it was open: put it back"):
        ledger.charge({GAUSSIAN: 1}, run="a")
    path.with_name("moved").rename(path)
    ledger.charge({GAUSSIAN: 1}, run="a")
    assert count(Ledger(path)) == 1


@pytest.mark.parametrize(
    "turned",
    ["copied", "copied and closed", "link", "link to a copy", "folder", "folder link", "renamed"],
)
def test_a_path_that_leads_to_another_file_is_noticed_before_the_next_charge(
    tmp_path: Path, turned: str
) -> None:
    """Another file that is as good a ledger as the first, and the first is still there."""
    first, other = tmp_path / "first", tmp_path / "other"
    for each in (first, other):
        each.mkdir()
    make_ledger(first / "real.ledger")
    if turned == "link":
        make_ledger(other / "real.ledger")
    else:
        shutil.copy(first / "real.ledger", other / "real.ledger")
    path = first / "real.ledger"
    if "link" in turned:
        path = tmp_path / "linked"
        path.symlink_to(first if turned == "folder link" else first / "real.ledger")
        path = path / "real.ledger" if turned == "folder link" else path
    ledger = Ledger(path)
    ledger.charge({GAUSSIAN: 1}, run="a")
    reservation = ledger.charge({GAUSSIAN: 1}, run="a")
    if turned.endswith("closed"):
        ledger.close()
    if "link" in turned:
        link = tmp_path / "linked"
        link.unlink()
        link.symlink_to(other if turned == "folder link" else other / "real.ledger")
    elif turned == "folder":
        first.rename(tmp_path / "elsewhere")
        other.rename(first)
    elif turned == "renamed":
        path.rename(first / "elsewhere.ledger")
    else:
        (other / "real.ledger").replace(path)
    held = {each: content(each) for each in tmp_path.rglob("*.ledger")}
    for act in (
        lambda: ledger.charge({GAUSSIAN: 1}, run="a"),
        lambda: ledger.refund(reservation),
        lambda: ledger.lease("search"),
        lambda: ledger.publish("search", "1"),
    ):
        with pytest.raises(LedgerError, match=r"deleted or replaced|another ledger|closed or gone"):
            act()
    assert {each: content(each) for each in tmp_path.rglob("*.ledger")} == held


@pytest.mark.parametrize("how", ["closed", "forked", "pickled"])
def test_another_ledger_at_the_same_path_is_not_taken_for_it(path: Path, how: str) -> None:
    ledger = Ledger(path, BUDGET)
    spend(ledger)
    sent = pickle.dumps(ledger)
    if how == "closed":
        ledger.close()
    path.unlink()
    Ledger(path, BUDGET).close()

    def use() -> None:
        charge = lambda: ledger.charge({GAUSSIAN: 1}, run="a")  # noqa: E731
        act = (lambda: pickle.loads(sent)) if how == "pickled" else charge
        with pytest.raises(LedgerError, match="another ledger has taken its place"):
            act()

    if how == "forked":
        assert in_fork(use) == 0
    else:
        use()
    assert count(Ledger(path)) == 0


def test_a_file_that_was_switched_to_another_journal_is_switched_back(path: Path) -> None:
    Ledger(path, BUDGET).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    with Ledger(path) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="a")
        found = ledger._storage.connection().execute("PRAGMA journal_mode").fetchone()
    assert found == ("delete",)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert count(Ledger(path)) == 1


def test_a_file_that_is_switched_to_another_journal_while_it_is_open_is_refused(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({GAUSSIAN: 1}, run="a")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        with pytest.raises(LedgerError, match="write-ahead"):
            ledger.charge({GAUSSIAN: 1}, run="a")
    ledger.close()
    ledger.charge({GAUSSIAN: 1}, run="a")
    assert count(Ledger(path)) == 2


def test_an_older_copy_that_is_written_over_an_open_ledger_is_noticed(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    receipt = ledger.charge({GAUSSIAN: 3}, run="a")
    copied = path.read_bytes()
    receipt.use(GAUSSIAN)
    ledger.refund(receipt)
    assert count(ledger) == 1
    with path.open("r+b") as file:  # what was given back may be there again
        file.write(copied)
    later = ledger.charge({GAUSSIAN: 2}, run="b")
    assert count(ledger) == 5
    with path.open("r+b") as file:
        file.write(copied)
    for act in (lambda: ledger.charge({GAUSSIAN: 1}, run="c"), ledger.totals, ledger.epsilon):
        with pytest.raises(LedgerError, match="lost charges"):
            act()
    with pytest.raises(LedgerError, match="lost charges"):
        ledger.refund(later)


def test_a_fork_does_not_miss_what_its_parent_gives_back(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    receipt = ledger.charge({GAUSSIAN: 3}, run="a")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(reader, 1)
            os._exit(0 if count(ledger) == 0 else 1)
        finally:
            os._exit(2)
    ledger.refund(receipt)
    os.write(writer, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reader)
    os.close(writer)


def as_format_1(path: Path, *, given: bool = True, without: str = "") -> None:
    """Turn a ledger into what the first versions wrote."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        for key in (str(formats.CURRENT.seal), "kind", "content", without):
            meta.pop(key, None)
        noted = connection.execute("SELECT label, digest FROM given").fetchall()
        connection.executescript("DROP TABLE given; DELETE FROM meta; PRAGMA user_version = 1")
        if given:
            connection.executescript(formats._GIVEN_UNSEALED)
            connection.executemany("INSERT INTO given VALUES (?, ?)", noted)
        meta["seal"] = formats.seal(*sorted(meta.items()))
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())


def test_a_ledger_of_an_earlier_version_has_no_number_of_its_own(path: Path) -> None:
    make_ledger(path)
    as_format_1(path, without="id")
    ledger = Ledger(path, BUDGET, dataset="patients")
    ledger.charge({GAUSSIAN: 1}, run="a")
    ledger.close()
    assert count(ledger) == count(pickle.loads(pickle.dumps(ledger))) == 381


@pytest.mark.parametrize("given", [False, True])
def test_a_ledger_of_format_1_is_read_as_it_is_and_upgraded_by_the_first_write(
    path: Path, given: bool
) -> None:
    make_ledger(path)
    Ledger(path).publish("search", "1")
    as_format_1(path, given=given)
    before = path.read_bytes()
    with Ledger(path) as ledger:
        charges, spent = ledger.charges(), ledger.epsilon()
        assert ledger.published("search") == ("1" if given else None)
    assert path.read_bytes() == before
    with Ledger(path) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="new")
        assert ledger.charges()[: len(charges)] == charges
        assert ledger.epsilon() > spent
        ledger.publish("search", "1" if given else "2")
    assert count(Ledger(path)) == 381
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (formats.SCHEMA_VERSION,)
        meta = dict(connection.execute("SELECT key, value FROM meta"))
    assert "seal" not in meta  # so that an earlier version that has it open charges nothing more
    with pytest.raises(LedgerError, match="another result"):
        Ledger(path).publish("search", "3")


def test_an_upgrade_that_is_cut_short_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_ledger(path)
    as_format_1(path)
    whole = content(path)
    ledger = Ledger(path)
    for name in ("_count", "add"):
        with monkeypatch.context() as patch:
            patch.setattr(SQLiteTransaction, name, lambda *_: (_ for _ in ()).throw(OSError))
            with pytest.raises(OSError):
                ledger.charge({GAUSSIAN: 1}, run="new")
        assert content(path) == whole
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    ledger.charge({GAUSSIAN: 1}, run="new")
    assert count(Ledger(path)) == 381


def test_a_damaged_ledger_of_format_1_is_not_sealed_anew(path: Path) -> None:
    make_ledger(path)
    as_format_1(path)
    ledger = Ledger(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE charges SET count = count - 1 WHERE id = 1")
    with pytest.raises(LedgerError, match="does not match its seal"):
        ledger.charge({GAUSSIAN: 1}, run="new")
    with pytest.raises(LedgerError, match="does not match its seal"):
        Ledger(path)


def test_a_full_file_takes_no_charge(path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge({GAUSSIAN: 1}, run="the first, which fixes the orders")
    connection = ledger._storage.connection()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    acknowledged = 1
    with contextlib.suppress(LedgerError):
        for number in range(1000):
            ledger.charge({GAUSSIAN: 1}, run=f"run {number}")
            acknowledged += 1
    assert count(ledger) == count(Ledger(path)) == acknowledged > 1
    assert ledger.totals() == Counter({GAUSSIAN: acknowledged})
    with pytest.raises(LedgerError, match=r"full.*nothing was released"):
        ledger.charge({GAUSSIAN: 1}, run=f"run {acknowledged}")
    ledger.charge({GAUSSIAN: 1}, run="run 0")  # this one needs no room
    assert count(Ledger(path)) == acknowledged + 1


def test_creation_leaves_one_file_whatever_happens(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(formats, "write_schema", fail)
        with pytest.raises(LedgerError, match="full"):
            Ledger(path, BUDGET)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_told_in_words(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def cannot_link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", cannot_link)
        with pytest.raises(LedgerError, match=r"no hard links .* Keep the ledger on a local disk"):
            Ledger(path, BUDGET)
    assert list(path.parent.iterdir()) == []
    Ledger(path, BUDGET).close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def leftovers(path: Path, age: float) -> set[str]:
    """Make what killed creations leave beside a ledger, so many seconds ago."""
    made = set()
    for number in range(2):
        for end in ("", "-journal"):
            each = path.with_name(f".{path.name}.abcdef_{number}.new{end}")
            each.write_bytes(b"half")
            os.utime(each, (time.time() - age,) * 2)
            made.add(each.name)
    return made


def test_what_killed_creations_left_is_removed_when_it_is_old(path: Path) -> None:
    leftovers(path, 2 * files.SECONDS_FOR_A_DRAFT)
    others = {f".{path.name}.pt.abcdefgh.new", ".other.ledger.abcdefgh.new", f"{path.name}.new"}
    for name in others:  # a checkpoint's draft, another ledger's, somebody's file
        path.with_name(name).write_bytes(b"")
        os.utime(path.with_name(name), (0, 0))
    Ledger(path, BUDGET).close()
    assert {each.name for each in path.parent.iterdir()} == {path.name} | others


def test_what_may_be_under_way_is_left_alone(path: Path) -> None:
    made = leftovers(path, files.SECONDS_FOR_A_DRAFT / 2)
    Ledger(path, BUDGET).close()
    assert {each.name for each in path.parent.iterdir()} == {path.name} | made


def test_a_creation_whose_draft_was_removed_makes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = formats.write_schema

    def slow(*given: Any) -> None:
        true(*given)
        for draft in path.parent.glob(".*.new"):
            draft.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(formats, "write_schema", slow)
        with pytest.raises(LedgerError, match="Cannot create"):
            Ledger(path, BUDGET)
    assert list(path.parent.iterdir()) == []


def test_the_name_of_a_draft_that_became_the_ledger_is_removed(path: Path) -> None:
    """A creation that was killed between giving the new name and taking the old one away."""
    Ledger(path, BUDGET).close()
    draft = path.with_name(f".{path.name}.abcdefgh.new")
    os.link(path, draft)
    kept = path.with_name("hard link of somebody's")
    os.link(path, kept)
    under_way = path.with_name(f".{path.name}.12345678.new")
    under_way.write_bytes(b"half")
    with Ledger(path) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="a")
    assert {each.name for each in path.parent.iterdir()} == {path.name, kept.name, under_way.name}
    assert count(Ledger(path)) == 1


# ---------------------------------------------------------------------- what was published


def test_one_result_is_published_under_a_label(tmp_path):
    ledger = Ledger(tmp_path / "l.db")
    assert ledger.published("a") is None
    ledger.publish("a", "1")
    ledger.publish("a", "1")
    ledger.publish("b", "2")
    again = Ledger(tmp_path / "l.db")
    assert again.published("a") == "1"
    with pytest.raises(LedgerError, match="published once"):
        again.publish("a", "2")
    assert again.published("a") == "1"
    assert again.totals() == {}


def test_a_ledger_that_has_no_such_table_gets_one(tmp_path):
    path = tmp_path / "l.db"
    Ledger(path).publish("a", "1")
    as_format_1(path, given=False)
    old = Ledger(path)
    assert old.published("a") is None
    old.publish("a", "3")
    assert old.published("a") == "3"
