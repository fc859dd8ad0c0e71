"""Planned ledgers: what was declared before the first look can be charged, and nothing else."""

import math
import pickle
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import Budget, Ledger, epsilon_of, events
from privada.accounting.ledger.counting import DECLARATION_LABEL
from privada.accounting.ledger.sqlite.rows import SQLiteTransaction
from privada.core.errors import ArgumentError, BudgetExceeded, EventError, LedgerError
from tests.accounting.test_filters import missing, random_coin, transcripts
from tests.forks import at_once, in_fork
from tests.ledger_files import content, killed_at

BUDGET = Budget(1.0, 1e-5)
GAUSSIAN, SMALL = events.gaussian(30.0), events.gaussian(60.0)
POISSON = events.poisson(0.01, 4.0)
PLANS = {"a": {GAUSSIAN: 5, SMALL: 8}, "b": {SMALL: 3, POISSON: 100}}
WHOLE = Counter({GAUSSIAN: 5, SMALL: 11, POISSON: 100})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "patients.ledger"


def planned(path: Path | None, budget: Budget | None = BUDGET) -> Ledger:
    return Ledger(path, budget, kind="planned")


@pytest.mark.parametrize(
    ("run", "charged", "said"),
    [
        ("c", {SMALL: 1}, "a run that was declared before the first look"),
        ("a", {SMALL: 9}, "keep to what was declared"),
        ("a", {SMALL: 1, GAUSSIAN: 6}, "keep to what was declared"),
        ("a", {POISSON: 1}, "0 x Gaussian noise, multiplier 4, on a Poisson sample"),
        ("b", {events.gaussian(60.001): 1}, "0 x Gaussian noise"),  # hardly more noise
        ("b", {events.poisson(0.01, 40.0): 1}, "0 x Gaussian noise"),  # much more noise
        ("b", {events.fixed_size(100, 1, 40.0): 1}, "0 x Gaussian noise"),
    ],
)
@pytest.mark.parametrize("started", [False, True])
def test_what_was_not_declared_is_refused_with_the_remedy(
    path: Path, run: str, charged: Any, said: str, started: bool
) -> None:
    ledger = planned(path)
    ledger.declare(PLANS)
    if started:
        ledger.charge({SMALL: 1}, run="a")
    before, epsilon = content(path), ledger.epsilon()
    for opened in (ledger, Ledger(path)):
        with pytest.raises(LedgerError, match=said) as caught:
            opened.charge(charged, run=run)
        for part in ("adaptive ledger", "pv.Ledger(path, budget)", "Ledger.declare", "no data"):
            assert part in str(caught.value)
        assert opened.epsilon() == epsilon
    assert content(path) == before
    if started:
        assert ledger.cost(run, charged) == math.inf
        assert ledger.affordable(SMALL, 5, "c") == 0


def test_a_second_run_of_a_ledger_that_the_first_charge_declared_is_refused(path: Path) -> None:
    ledger = planned(path)
    ledger.charge({SMALL: 1}, run="a", plan={SMALL: 4})
    before = content(path)
    with pytest.raises(LedgerError, match="got run='b' where 'a' was declared"):
        ledger.charge({events.gaussian(1e6): 1}, run="b")
    with pytest.raises(BudgetExceeded, match="4 x Gaussian noise, multiplier 60"):
        ledger.charge({SMALL: 4}, run="a", plan={SMALL: 4})
    assert content(path) == before
    ledger.charge({SMALL: 3}, run="a")
    assert ledger.epsilon() == epsilon_of({SMALL: 4}, 1e-5)


def test_without_a_plan_the_first_charge_is_all(path: Path) -> None:
    ledger = planned(path)
    ledger.charge({SMALL: 2}, run="a")
    with pytest.raises(BudgetExceeded, match="2 x Gaussian noise"):
        ledger.charge({SMALL: 1}, run="a")


def test_the_plan_of_a_later_charge_declares_nothing(path: Path) -> None:
    ledger = planned(path)
    ledger.charge({SMALL: 2}, run="a", plan={SMALL: 3})
    ledger.charge({SMALL: 1}, run="a", plan={SMALL: 100})
    with pytest.raises(BudgetExceeded):
        ledger.charge({SMALL: 1}, run="a", plan={SMALL: 100})
    assert ledger.declared("a") == {SMALL: 3}


def test_of_a_plan_that_does_not_fit_as_much_is_declared_as_does(path: Path) -> None:
    ledger = planned(path)
    ledger.charge({SMALL: 1}, run="a", plan={SMALL: 10**6})
    declared = ledger.declared("a")
    assert declared is not None
    assert 1 < declared[SMALL] < 10**6
    assert BUDGET.epsilon / 3 < ledger.epsilon() <= BUDGET.epsilon
    assert ledger.epsilon() == epsilon_of(declared, 1e-5)


def test_a_first_charge_that_is_refused_declares_nothing(path: Path) -> None:
    """By the budget, by the run's own budget, or by the disk: what comes next is the first."""
    ledger = planned(path)
    before = content(path)
    with pytest.raises(BudgetExceeded, match="budget of ledger"):
        ledger.charge({GAUSSIAN: 10_000}, run="a")
    with pytest.raises(BudgetExceeded, match="own budget"):
        ledger.charge({GAUSSIAN: 5}, run="a", plan={GAUSSIAN: 6}, limit=Budget(0.01, 1e-6))
    with pytest.raises(EventError):
        ledger.charge({POISSON: 1}, run="a", plan={events.fixed_size(100, 1, 9.0): 1})
    with pytest.raises(ArgumentError, match="count"):
        ledger.charge({SMALL: 1}, run="a", plan={SMALL: 2.5})  # type: ignore[dict-item]
    assert content(path) == before
    assert ledger.declared("a") == {}
    assert ledger.epsilon() == 0
    ledger.charge({SMALL: 1}, run="b", plan={SMALL: 7})
    for opened in (ledger, Ledger(path)):
        assert opened.declared("b") == {SMALL: 7}
        assert opened.epsilon() == epsilon_of({SMALL: 7}, 1e-5)


@pytest.mark.parametrize("method", ["_count", "add", "_note"])
def test_a_first_charge_that_cannot_be_written_declares_nothing(
    path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = planned(path)
    before = content(path)

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteTransaction, method, full)
        with pytest.raises(LedgerError, match="full"):
            ledger.charge({SMALL: 1}, run="a", plan={SMALL: 5})
        if method != "add":
            with pytest.raises(LedgerError, match="full"):
                ledger.declare(PLANS)
    assert content(path) == before
    assert ledger.declared("a") == {}
    ledger.declare(PLANS)
    ledger.charge({SMALL: 3}, run="b")
    assert Ledger(path).epsilon() == ledger.epsilon() == epsilon_of(WHOLE, 1e-5)


# ---------------------------------------------------------------------- declarations


def test_a_declaration_is_what_it_costs_whatever_is_used(path: Path) -> None:
    ledger, whole = planned(path), epsilon_of(WHOLE, 1e-5)
    ledger.declare(PLANS)
    assert ledger.epsilon() == 0  # nothing was looked at
    reservation = ledger.charge({SMALL: 2}, run="a")
    for opened in (ledger, Ledger(path)):
        assert opened.epsilon() == whole  # the run may stop here
        assert opened.epsilon(1e-7) == epsilon_of(WHOLE, 1e-7)
        assert opened.run_epsilon("a") == epsilon_of(PLANS["a"], 1e-5)
        assert opened.run_epsilon("b") == opened.run_epsilon("c") == 0
        assert {run: opened.declared(run) for run in PLANS} == PLANS
        assert opened.cost("b", {POISSON: 100}) == whole
    reservation.use(SMALL)
    ledger.refund(reservation)
    assert ledger.totals() == {SMALL: 1}
    assert ledger.epsilon() == whole  # a refund lowers nothing
    ledger.charge({SMALL: 7}, run="a")  # but can be charged again, and no more than that
    with pytest.raises(BudgetExceeded):
        ledger.charge({SMALL: 1}, run="a")
    ledger.refund(ledger.charge({POISSON: 100, SMALL: 3}, run="b"))
    assert ledger.epsilon() == whole
    assert ledger.run_epsilon("b") == epsilon_of(PLANS["b"], 1e-5)


def test_declaring_twice_or_after_the_first_charge_is_refused(path: Path) -> None:
    ledger, other = planned(path), Ledger(path)
    ledger.declare({"a": PLANS["a"]})
    before = content(path)
    for again in (PLANS, {"a": {SMALL: 1}}, {"a": PLANS["a"]}):
        with pytest.raises(LedgerError, match=r"a, which ledger .* holds.*Nothing was declared"):
            other.declare(again)
    assert content(path) == before
    other.declare({"b": PLANS["b"]})  # another run, before anything was looked at
    other.charge({SMALL: 1}, run="b")
    before = content(path)
    with pytest.raises(LedgerError, match="before the first look, got c for ledger") as caught:
        ledger.declare({"c": {SMALL: 1}})
    assert "adaptive ledger" in str(caught.value)
    assert content(path) == before
    assert ledger.epsilon() == other.epsilon() == epsilon_of(WHOLE, 1e-5)


def test_a_refund_of_everything_does_not_reopen_declarations(path: Path) -> None:
    ledger = planned(path)
    ledger.refund(ledger.charge({SMALL: 2}, run="a", plan={SMALL: 3}))
    with pytest.raises(LedgerError, match="before the first look"):
        ledger.declare({"b": {SMALL: 1}})
    for opened in (ledger, Ledger(path)):
        assert opened.epsilon() == epsilon_of({SMALL: 3}, 1e-5)


def test_declaring_beyond_the_budget_is_refused(path: Path) -> None:
    ledger = planned(path)
    most = ledger.affordable(SMALL, 10_000)
    ledger.declare({"a": {SMALL: most - 1}})
    before = content(path)
    with pytest.raises(BudgetExceeded, match="fit the budget of ledger"):
        ledger.declare({"b": {SMALL: 2}})
    with pytest.raises(BudgetExceeded):
        ledger.declare({"b": {SMALL: 1}, "c": {SMALL: 1}})  # each would fit
    with pytest.raises(EventError, match="one neighbouring relation"):
        ledger.declare({"b": {POISSON: 1}, "c": {events.fixed_size(100, 1, 1e4): 1}})
    assert content(path) == before
    ledger.declare({"b": {SMALL: 1}})
    ledger.charge({SMALL: most - 1}, run="a")
    ledger.charge({SMALL: 1}, run="b")
    assert ledger.epsilon() <= BUDGET.epsilon < epsilon_of({SMALL: most + 1}, 1e-5)


def test_without_a_limit_a_declaration_still_binds(path: Path) -> None:
    ledger = planned(path, None)
    ledger.declare({"a": {SMALL: 1000}})
    ledger.charge({SMALL: 1}, run="a")
    with pytest.raises(LedgerError):
        ledger.charge({SMALL: 1}, run="b")
    assert ledger.epsilon(1e-6) == epsilon_of({SMALL: 1000}, 1e-6)


def test_a_declaration_survives_reopening_pickling_and_closing(path: Path) -> None:
    ledger = planned(path)
    ledger.declare(PLANS)
    text = pickle.dumps(ledger)
    ledger.close()
    for opened in (ledger, Ledger(path), pickle.loads(text)):
        assert opened.kind == "planned"
        assert {run: opened.declared(run) for run in PLANS} == PLANS
        with pytest.raises(LedgerError, match="declared before the first look"):
            opened.charge({SMALL: 1}, run="c")
    with pytest.raises(LedgerError, match="to be adaptive, but it is planned"):
        Ledger(path, kind="adaptive")
    pickle.loads(text).charge({SMALL: 1}, run="b")
    assert ledger.epsilon() == epsilon_of(WHOLE, 1e-5)


def test_a_declaration_in_memory_is_the_same() -> None:
    ledger = planned(None)
    ledger.declare(PLANS)
    ledger.charge({SMALL: 1}, run="b")
    assert ledger.epsilon() == epsilon_of(WHOLE, 1e-5)


# ---------------------------------------------------------------------- planned anew


def test_an_interrupted_run_is_planned_anew_and_never_smaller(path: Path) -> None:
    ledger = planned(path)
    ledger.declare({"a": {SMALL: 10}})
    ledger.charge({SMALL: 6}, run="a")
    assert not ledger.interrupted("a")
    ledger.replan("a", {SMALL: 2})  # fewer than there are: what was declared stays
    assert ledger.declared("a") == {SMALL: 10}
    ledger.replan("a", {SMALL: 9})
    for opened in (ledger, Ledger(path)):
        assert opened.interrupted("a")
        assert opened.declared("a") == {SMALL: 15}
        assert opened.epsilon() == epsilon_of({SMALL: 15}, 1e-5)
    ledger.charge({SMALL: 9}, run="a")
    before = content(path)
    with pytest.raises(BudgetExceeded):
        ledger.replan("a", {SMALL: 10_000})
    assert content(path) == before


def test_what_is_planned_anew_may_leave_out_what_is_no_longer_needed(path: Path) -> None:
    """What was lost is taken again instead of the end; the dearer plan counts."""
    first, lost, last = (events.poisson(0.1, sigma) for sigma in (2.0, 3.0, 2.5))
    plan = {first: 3, lost: 5, last: 5}
    ledger = Ledger(path, Budget(epsilon_of(plan, 1e-5) * 1.0001, 1e-5), kind="planned")
    ledger.declare({"a": plan})
    ledger.charge({first: 3, lost: 5}, run="a")
    with pytest.raises(BudgetExceeded):
        ledger.replan("a", {lost: 5, last: 5})
    ledger.replan("a", {lost: 5, last: 1})
    for opened in (ledger, Ledger(path)):
        assert opened.epsilon() == pytest.approx(epsilon_of(plan, 1e-5))
        assert opened.run_epsilon("a") == pytest.approx(epsilon_of(plan, 1e-5))
    ledger.charge({lost: 5, last: 1}, run="a")
    with pytest.raises(BudgetExceeded, match="declared before the first look"):
        ledger.charge({last: 1}, run="a")
    assert epsilon_of(ledger.totals(), 1e-5) <= ledger.epsilon()


def test_no_other_run_is_declared_by_planning_anew(path: Path) -> None:
    ledger = planned(path)
    ledger.replan("a", {SMALL: 3})  # nothing was looked at: a declaration like others
    assert not ledger.interrupted("a")
    ledger.charge({SMALL: 1}, run="a")
    before = content(path)
    with pytest.raises(LedgerError, match="before the first look"):
        ledger.replan("b", {SMALL: 1})
    assert content(path) == before
    assert ledger.epsilon() == epsilon_of({SMALL: 3}, 1e-5)


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        "{}",
        '{"run": "a"}',
        '{"run": "a", "counts": 3}',
        '{"run": "a", "counts": [["{}", 1]]}',
        '{"run": "a", "counts": [["x", 1]]}',
        '{"run": "a", "counts": [[1]]}',
        '{"run": "a", "counts": ' + "[" * 100_000,
    ],
)
def test_a_damaged_declaration_is_refused_in_words(path: Path, text: str) -> None:
    planned(path).close()
    with SQLiteTransactionOn(path) as transaction:
        transaction.publish(DECLARATION_LABEL.format(1), text)
    with pytest.raises(LedgerError, match="a declaration of its runs is damaged"):
        Ledger(path)


class SQLiteTransactionOn:
    """Writes to a ledger's file as the ledger itself does, with its seals."""

    def __init__(self, path: Path) -> None:
        self._ledger = Ledger(path)

    def __enter__(self) -> Any:
        self._writing = self._ledger._storage.writing("damage")
        return self._writing.__enter__()

    def __exit__(self, *given: Any) -> None:
        self._writing.__exit__(*given)
        self._ledger._storage.close()


@pytest.mark.parametrize("label", ["declaration 1", "declaration 17", "the unit of privacy"])
def test_nobody_publishes_a_result_as_a_declaration(path: Path, label: str) -> None:
    with pytest.raises(ArgumentError, match="keeps what it needs itself"):
        planned(path).publish(label, "1")
    assert Ledger(path).published(label) is None


# ---------------------------------------------------------------------- processes


@pytest.mark.parametrize("first", ["declare", "charge"])
def test_a_declaration_that_is_killed_at_any_statement_is_whole_or_not_there(
    path: Path, first: str
) -> None:
    acts: dict[str, Callable[[Ledger], Any]] = {
        "declare": lambda ledger: ledger.declare(PLANS),
        "charge": lambda ledger: ledger.charge({SMALL: 1}, run="a", plan=PLANS["a"]),
    }
    planned(path).close()
    statement, before = 1, content(path)
    while killed_at(path, statement, acts[first]):
        assert content(path) == before  # a kill is before the commit
        assert Ledger(path).declared("a") == {}
        statement += 1
    assert statement > 8
    for run in PLANS if first == "declare" else ("a",):
        assert Ledger(path).declared(run) == PLANS[run]


def test_of_processes_that_declare_at_once_one_wins(path: Path) -> None:
    """All declare the same run, each with another plan, and the winner charges it."""
    planned(path).close()

    def work(place: int) -> int:
        ledger, plan = Ledger(path), {SMALL: place + 2}
        try:
            ledger.declare({"a": plan})
        except LedgerError:
            return 3 if ledger.declared("a") != plan else 4
        ledger.charge(plan, run="a")
        return 0

    codes = at_once(work)
    assert sorted(codes) == [0] + [3] * 5
    size = codes.index(0) + 2
    ledger = Ledger(path)
    assert ledger.totals() == ledger.declared("a") == {SMALL: size}
    assert ledger.epsilon() == epsilon_of({SMALL: size}, 1e-5)


def test_of_processes_whose_first_charges_declare_at_once_one_wins(path: Path) -> None:
    planned(path).close()

    def work(place: int) -> int:
        try:
            Ledger(path).charge({SMALL: 1}, run=f"run {place}", plan={SMALL: place + 2})
        except LedgerError:
            return 3
        return 0

    codes = at_once(work)
    assert sorted(codes) == [0] + [3] * 5
    winner = codes.index(0)
    ledger = Ledger(path)
    assert ledger.runs() == (f"run {winner}",)
    assert ledger.epsilon() == epsilon_of({SMALL: winner + 2}, 1e-5)


def test_a_fork_sees_what_its_parent_declares(path: Path) -> None:
    ledger = planned(path)
    Ledger(path).declare(PLANS)
    assert in_fork(lambda: ledger.charge({SMALL: 2}, run="a") and None) == 0
    assert ledger.totals() == {SMALL: 2}
    assert ledger.epsilon() == epsilon_of(WHOLE, 1e-5)


# ---------------------------------------------------------------------- in any order


@settings(max_examples=40, deadline=None)
@given(st.permutations([("a", GAUSSIAN)] * 3 + [("a", SMALL)] * 4 + [("b", SMALL)] * 2))
def test_what_was_declared_is_charged_in_any_order_at_one_cost(order: list[Any]) -> None:
    ledger = planned(None)
    ledger.declare({"a": {GAUSSIAN: 3, SMALL: 4}, "b": {SMALL: 2}})
    whole = epsilon_of({GAUSSIAN: 3, SMALL: 6}, 1e-5)
    for run, event in order:
        ledger.charge(event, run=run)
        assert ledger.epsilon() == whole
    for run in ("a", "b"):
        with pytest.raises(BudgetExceeded):
            ledger.charge(SMALL, run=run)


def spent(ends: Any, epsilon: float) -> float:
    """Return the delta at an epsilon of all that may be seen, in the larger direction."""
    return missing(ends, lambda _: epsilon)


def chooses_the_order(rng: np.random.Generator, coins: list[Any], stops: bool) -> Any:
    """Return a strategy that tosses each coin once, which next being a matter of what was seen."""
    taste = rng.permuted(np.tile(np.arange(len(coins)), (7, 1)), axis=1)
    end = rng.integers(0, 2, size=(7, len(coins))) if stops else np.zeros((7, len(coins)))

    def strategy(seen: Any) -> Any:
        loss = sum(math.log(coin.p[face] / coin.q[face]) for coin, face in seen)
        mood = max(-3, min(3, round(2 * loss))) + 3
        left = [place for place in taste[mood] if not any(coins[place] is c for c, _ in seen)]
        if not left or (seen and end[mood][len(seen) - 1]):
            return None
        return coins[left[0]]

    return strategy


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_declared_mechanisms_may_be_chosen_on_the_way(seed: int) -> None:
    """Whatever the order, each is used once, and the loss is the sum of all: exactly the plan's."""
    rng = np.random.default_rng(seed)
    coins = [random_coin(rng, strength) for strength in (0.3, 0.8, 1.5, 2.5)]
    plan = transcripts(lambda seen: coins[len(seen)] if len(seen) < 4 else None, 5)
    chosen = transcripts(chooses_the_order(rng, coins, stops=False), 5)
    stopped = transcripts(chooses_the_order(rng, coins, stops=True), 5)
    assert sum(p for p, _, _ in chosen) == pytest.approx(1, abs=1e-12)
    orders = {tuple(map(id, tossed)) for _, _, tossed in chosen}
    for epsilon in np.linspace(0, 6, 25):
        assert spent(chosen, epsilon) == pytest.approx(spent(plan, epsilon), abs=1e-12)
        assert spent(stopped, epsilon) <= spent(plan, epsilon) + 1e-12
    assert all(len(order) == 4 for order in orders)


def test_some_of_these_strategies_do_choose() -> None:
    """Else the test above would see one order alone."""
    several = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        coins = [random_coin(rng, strength) for strength in (0.3, 0.8, 1.5, 2.5)]
        chosen = transcripts(chooses_the_order(rng, coins, stops=False), 5)
        several += len({tuple(map(id, tossed)) for _, _, tossed in chosen}) > 1
    assert several > 30


def then(first: Any, after: tuple[Any, Any]) -> Any:
    """Return all that may be seen of a coin, and of another that follows some of its faces."""
    return transcripts(lambda seen: after[seen[0][1] % 2] if seen else first, 2)


def test_to_choose_which_mechanisms_and_not_their_order_would_cost_more() -> None:
    """So a planned ledger takes no coin that was not declared in the place of one that was."""
    worst = 0.0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        first, one, other = (random_coin(rng, strength) for strength in (1.0, 0.6, 2.0))
        plans, chosen = (then(first, (one, one)), then(first, (other, other))), (one, other)
        for epsilon in np.linspace(0, 3, 13):
            planned_for = max(spent(plan, epsilon) for plan in plans)
            worst = max(worst, spent(then(first, chosen), epsilon) - planned_for)
    assert worst > 1e-3
