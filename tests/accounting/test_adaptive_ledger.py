"""Adaptive ledgers: any charge at any time, counted by a filter that the first charge has fixed."""

import contextlib
import math
import pickle
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import DpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import Budget, Ledger, epsilon_of, events, filters
from privada.accounting.events import Failure, Parallel, Selected, items_of
from privada.accounting.filters import FAILURE_SHARE, FilterTotals, RenyiFilter
from privada.accounting.ledger.counting import ORDERS_LABEL
from privada.accounting.ledger.sqlite.rows import SQLiteTransaction
from privada.accounting.orders import ORDERS
from privada.core.errors import ArgumentError, BudgetExceeded, EventError, LedgerError
from tests.accounting.test_planned import SQLiteTransactionOn
from tests.forks import at_once, in_fork
from tests.ledger_files import content

BUDGET = Budget(3.0, 1e-5)
GAUSSIAN = events.gaussian(30.0)
POISSON = events.poisson(0.01, 4.0)
LITTLE_NOISE = events.poisson(0.001, 0.8)  # for which other orders are the best

TRAIN = items_of({POISSON: 40})
SCORE = items_of({GAUSSIAN: 1})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "patients.ledger"


def kept(ledger: Ledger) -> RenyiFilter:
    """Return the filter that a ledger has fixed."""
    return RenyiFilter.decode(ledger.published(ORDERS_LABEL) or "")


# ---------------------------------------------------------------------- the orders


@pytest.mark.parametrize("budget", [BUDGET, None])
def test_the_first_charge_fixes_the_orders_by_its_plan(path: Path, budget: Budget | None) -> None:
    ledger = Ledger(path, budget)
    assert ledger.published(ORDERS_LABEL) is None
    ledger.charge({POISSON: 1}, run="a", plan={LITTLE_NOISE: 500})
    filter = RenyiFilter.for_budget(budget, {POISSON: 1, LITTLE_NOISE: 500})
    assert kept(ledger) == filter
    assert filter not in (
        RenyiFilter.for_budget(budget),
        RenyiFilter.for_budget(budget, {POISSON: 1}),
    )
    text = ledger.published(ORDERS_LABEL)
    ledger.charge({GAUSSIAN: 1}, run="b", plan={GAUSSIAN: 30})  # which would choose others
    ledger.charge({LITTLE_NOISE: 1}, run="c")
    totals = {POISSON: 1, GAUSSIAN: 1, LITTLE_NOISE: 1}
    for opened in (ledger, Ledger(path), pickle.loads(pickle.dumps(ledger))):
        assert opened.published(ORDERS_LABEL) == text
        assert opened.epsilon(1e-5) == filter.epsilon(totals, 1e-5)
        assert opened.epsilon(1e-7) == filter.epsilon(totals, 1e-7)


def test_charges_that_came_without_orders_are_counted_by_those_of_the_budget(path: Path) -> None:
    """As a storage or a client of somebody else might write them."""
    ledger = Ledger(path, BUDGET)
    with ledger._storage.writing("charge") as transaction:
        transaction.add("other", "training", {GAUSSIAN: 2})
    ledger = Ledger(path)
    usual = RenyiFilter.for_budget(BUDGET)
    both = {GAUSSIAN: 2, POISSON: 1}
    assert ledger.cost("a", {POISSON: 1}) == usual.epsilon(both, BUDGET.delta)
    ledger.charge({POISSON: 1}, run="a", plan={LITTLE_NOISE: 500})
    assert kept(ledger) == usual
    for opened in (ledger, Ledger(path)):
        assert opened.epsilon() == usual.epsilon(both, BUDGET.delta)
    with pytest.raises(BudgetExceeded):
        ledger.charge({events.gaussian(1.0): 1000}, run="a")


def test_the_orders_cannot_be_changed_or_chosen_otherwise(path: Path) -> None:
    other = RenyiFilter((2.0,), (1.0,)).encode()
    ledger = Ledger(path, BUDGET)
    with pytest.raises(ArgumentError, match="keeps what it needs itself"):
        ledger.publish(ORDERS_LABEL, other)
    ledger.charge({POISSON: 1}, run="a")
    text = ledger.published(ORDERS_LABEL)
    with pytest.raises(ArgumentError, match="keeps what it needs itself"):
        ledger.publish(ORDERS_LABEL, other)
    with SQLiteTransactionOn(path) as transaction:
        assert transaction.publish(ORDERS_LABEL, other) == text
    assert Ledger(path).published(ORDERS_LABEL) == ledger.published(ORDERS_LABEL) == text


def test_a_first_charge_that_is_refused_or_fails_fixes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path, BUDGET)
    before = content(path)

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(BudgetExceeded):
        ledger.charge({LITTLE_NOISE: 10**6}, run="a")
    with pytest.raises(BudgetExceeded, match="own budget"):
        ledger.charge({LITTLE_NOISE: 10}, run="a", limit=Budget(1e-3, 1e-6))
    with pytest.raises(EventError):
        ledger.charge({events.fixed_size(100, 10, 9.0): 1, LITTLE_NOISE: 1}, run="a")
    for method in ("add", "_note", "_count"):
        with monkeypatch.context() as patch:
            patch.setattr(SQLiteTransaction, method, full)
            with pytest.raises(LedgerError, match="full"):
                ledger.charge({LITTLE_NOISE: 1}, run="a")
    assert content(path) == before
    assert ledger.epsilon() == 0
    ledger.charge({POISSON: 7}, run="b")
    filter = RenyiFilter.for_budget(BUDGET, {POISSON: 7})
    for opened in (ledger, Ledger(path)):
        assert kept(opened) == filter
        assert opened.epsilon() == filter.epsilon({POISSON: 7}, 1e-5)


def test_nothing_is_left_of_a_charge_that_was_interrupted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the interrupt comes: what was counted is forgotten with it."""
    true = FilterTotals._sum
    for place in range(1, 6):
        ledger, calls = Ledger(path.with_name(f"{place}"), BUDGET), []
        ledger.charge({POISSON: 3, GAUSSIAN: 1}, run="a")
        epsilon = ledger.epsilon()

        def interrupted(*given: Any, at: int = place, calls: Any = calls, **named: Any) -> Any:
            calls.append(at)
            found = true(*given, **named)
            if len(calls) == at:
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patch:
            patch.setattr(FilterTotals, "_sum", interrupted)
            with contextlib.suppress(KeyboardInterrupt):
                for _ in range(3):
                    ledger.charge({events.poisson(0.02, 5.0): 2}, run="a")
        assert len(calls) == place
        assert ledger.epsilon() == Ledger(ledger.name).epsilon() >= epsilon
        assert ledger.epsilon() == ledger.price(ledger.totals())


def test_processes_whose_first_charges_come_at_once_have_one_filter(path: Path) -> None:
    Ledger(path, BUDGET).close()
    choices = [{POISSON: 5}, {LITTLE_NOISE: 5}, {GAUSSIAN: 1}, {events.poisson(0.1, 9.0): 3}] * 2

    def work(place: int) -> int:
        ledger = Ledger(path)
        ledger.charge(choices[place], run=f"run {place}")
        (path.parent / f"filter {place}").write_text(ledger.published(ORDERS_LABEL) or "")
        return 0

    assert at_once(work, 8) == [0] * 8
    texts = {(path.parent / f"filter {place}").read_text() for place in range(8)}
    ledger = Ledger(path)
    assert texts == {ledger.published(ORDERS_LABEL)}
    assert kept(ledger) in [RenyiFilter.for_budget(BUDGET, choice) for choice in choices]
    totals = sum((Counter(choice) for choice in choices), Counter())
    assert ledger.totals() == totals
    assert ledger.epsilon() == kept(ledger).epsilon(totals, 1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "{",
        "{}",
        "[]",
        "null",
        '{"orders": [2.0], "weights": [0.5]}',
        '{"orders": [2.0], "weights": [NaN]}',
        '{"orders": [1e999], "weights": [1.0]}',
        '{"orders": [2.0], "weights": [-1.0]}',
        '{"orders": [2.03], "weights": [1.0]}',
        '{"orders": "2.0", "weights": [1.0]}',
        '{"orders": [' + "9" * 400 + '], "weights": [1.0]}',
        '{"orders": ' + "[" * 100_000,
    ],
)
def test_a_damaged_filter_is_refused_in_words(path: Path, text: str) -> None:
    Ledger(path, BUDGET).close()
    with SQLiteTransactionOn(path) as transaction:
        transaction.publish(ORDERS_LABEL, text)
    with pytest.raises(LedgerError, match="the orders of a filter that it keeps are damaged"):
        Ledger(path)


def test_a_filter_that_was_changed_in_the_file_does_not_match_its_seal(path: Path) -> None:
    Ledger(path, BUDGET).charge({POISSON: 1}, run="a")
    other = RenyiFilter((2.0,), (1.0,)).encode()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE given SET digest = ? WHERE label = ?", (other, ORDERS_LABEL))
    with pytest.raises(LedgerError, match="does not match its seal"):
        Ledger(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM given")
    with pytest.raises(LedgerError, match="rows are missing"):
        Ledger(path)


# ---------------------------------------------------------------------- charges and refunds


def test_a_refund_gives_back_to_the_last_bit(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({POISSON: 100, GAUSSIAN: 2}, run="a")
    spent = ledger.epsilon()
    reservation = ledger.charge({POISSON: 50, LITTLE_NOISE: 3}, run="b")
    more = ledger.epsilon()
    assert more > spent
    reservation.use(POISSON, 10)
    ledger.refund(reservation)
    assert spent < ledger.epsilon() < more
    assert ledger.epsilon() == ledger.price({POISSON: 110, GAUSSIAN: 2}) == Ledger(path).epsilon()


def test_the_relation_of_what_was_given_back_does_not_matter(path: Path) -> None:
    """A replaced record moves a sum twice as far: as long as nothing replaces one, it does not."""
    ledger, other = Ledger(path, BUDGET), Ledger(path)
    ledger.charge({GAUSSIAN: 2}, run="a")
    alone = ledger.epsilon()
    reservation = ledger.charge({events.fixed_size(1000, 10, 9.0): 3}, run="b")
    assert ledger.epsilon() == other.epsilon() > 1.5 * alone
    with pytest.raises(EventError, match="one neighbouring relation"):
        other.charge({POISSON: 1}, run="c")
    ledger.refund(reservation)
    assert ledger.epsilon() == other.epsilon() == Ledger(path).epsilon() == alone
    other.charge({POISSON: 1}, run="c")
    assert ledger.epsilon() == other.epsilon() == Ledger(path).epsilon()


def test_what_others_gave_back_and_charged_between_two_looks_is_no_mixture(path: Path) -> None:
    """Two relations, though never at the same time."""
    one, other = Ledger(path, BUDGET), Ledger(path)
    reservation = one.charge({events.fixed_size(1000, 10, 9.0): 3}, run="a")
    assert other.epsilon() > 0
    one.refund(reservation)
    one.charge({POISSON: 1}, run="a")
    assert other.epsilon() == one.epsilon() == one.price({POISSON: 1})


def test_a_charge_gives_back_in_the_same_moment(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    most = ledger.affordable(GAUSSIAN, 1000)
    first = ledger.charge({GAUSSIAN: most}, run="a")
    with pytest.raises(BudgetExceeded):
        ledger.charge({GAUSSIAN: 1}, run="a")
    first.use(GAUSSIAN, 3)
    second = ledger.charge({GAUSSIAN: most - 3}, run="b", returning=[first])
    assert Ledger(path).totals() == ledger.totals() == {GAUSSIAN: most}
    with pytest.raises(LedgerError, match="it was returned"):
        first.use(GAUSSIAN)
    second.use(GAUSSIAN)
    with pytest.raises(BudgetExceeded):  # and it gives back though it is refused
        ledger.charge({GAUSSIAN: most}, run="c", returning=[second])
    for opened in (ledger, Ledger(path)):
        assert opened.totals() == {GAUSSIAN: 4}
        assert opened.epsilon() == opened.price({GAUSSIAN: 4})
    with pytest.raises(LedgerError, match="it was returned"):
        ledger.refund(second)
    third, fourth = (ledger.charge({GAUSSIAN: 2}, run="d") for _ in range(2))
    ledger.charge({GAUSSIAN: 1}, run="d", returning=[third, fourth])
    assert ledger.totals() == {GAUSSIAN: 5}


def test_a_charge_that_cannot_be_written_gives_nothing_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path, BUDGET)
    reservation = ledger.charge({GAUSSIAN: 5}, run="a")

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteTransaction, "_count", full)
        with pytest.raises(LedgerError, match="full"):
            ledger.charge({GAUSSIAN: 1}, run="a", returning=[reservation])
    assert Ledger(path).totals() == ledger.totals() == {GAUSSIAN: 5}
    assert ledger.epsilon() == Ledger(path).epsilon() == ledger.price({GAUSSIAN: 5})


def test_counts_that_floats_cannot_tell_apart_are_counted(path: Path) -> None:
    """2^60 + 1 less 2^60 is 1."""
    ledger = Ledger(path)
    reservation = ledger.charge({POISSON: 2**60}, run="a")
    ledger.charge({POISSON: 1}, run="a")
    ledger.refund(reservation)
    assert ledger.totals() == {POISSON: 1}
    assert ledger.epsilon(1e-5) == Ledger(path).epsilon(1e-5) == ledger.price({POISSON: 1}, 1e-5)
    assert ledger.epsilon(1e-5) > 0


@pytest.mark.parametrize("event", [POISSON, GAUSSIAN, Failure(1e-300), Parallel((SCORE,))])
@pytest.mark.parametrize("budget", [BUDGET, None])
def test_a_count_beyond_all_numbers_is_refused_in_words(
    path: Path, event: DpEvent, budget: Budget | None
) -> None:
    ledger = Ledger(path, budget)
    with pytest.raises(LedgerError, match=r"fit the budget|the most that a ledger can count"):
        ledger.charge({event: 10**400}, run="a")
    assert ledger.cost("a", {event: 10**400}, 1e-5) == math.inf
    ledger.charge({POISSON: 1}, run="a", plan={POISSON: 10**400})  # a plan alone binds nobody
    assert ledger.totals() == {POISSON: 1}


def test_what_tells_nothing_costs_nothing() -> None:
    ledger = Ledger(None, BUDGET)
    ledger.charge({Failure(0.0): 5}, run="a")
    assert ledger.epsilon() == 0


@pytest.mark.parametrize("empty", [Parallel(()), Selected((), 2.0, 1.0)])
@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_an_event_that_is_made_of_nothing_is_refused(empty: DpEvent, kind: str) -> None:
    ledger = Ledger(None, BUDGET, kind=kind)
    with pytest.raises(EventError, match="at least one tally"):
        ledger.charge({empty: 1}, run="a")
    assert ledger.charges() == ()


# ---------------------------------------------------------------------- what it costs


def test_another_delta_than_the_budgets(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({POISSON: 500}, run="a")
    costs = [ledger.epsilon(delta) for delta in (0.1, 1e-3, 1e-5, 1e-8, 1e-30, 1e-300)]
    assert costs == sorted(costs)
    assert costs[2] == ledger.epsilon()
    for delta, cost in zip((1e-3, 1e-5, 1e-8), costs[1:], strict=False):
        assert cost > epsilon_of({POISSON: 500}, delta)
    with pytest.raises(ArgumentError, match="delta"):
        ledger.epsilon(0.0)


def test_without_a_limit_everything_passes_and_is_counted(path: Path) -> None:
    ledger = Ledger(path)
    for _ in range(3):
        ledger.charge({events.gaussian(0.01): 1000}, run="a")
    assert ledger.epsilon(1e-5) == kept(ledger).epsilon({events.gaussian(0.01): 3000}, 1e-5) > 1e7
    assert ledger.affordable(GAUSSIAN, 17) == 17
    with pytest.raises(ArgumentError, match="no budget"):
        ledger.epsilon()
    ledger.charge({events.gaussian(0.0): 1}, run="a")  # no noise: nothing is promised
    assert ledger.epsilon(1e-5) == math.inf


def test_cost_is_what_the_charge_makes_of_it_and_affordable_the_most(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    for event in (POISSON, GAUSSIAN, LITTLE_NOISE):
        spent = ledger.epsilon()
        expected = ledger.cost("a", {event: 3})
        assert ledger.epsilon() == spent  # nothing was charged
        ledger.charge({event: 3}, run="a")
        assert ledger.epsilon() == expected > spent
    most = ledger.affordable(POISSON, 10**6)
    assert (
        ledger.cost("a", {POISSON: most}) <= BUDGET.epsilon < ledger.cost("b", {POISSON: most + 1})
    )
    with pytest.raises(BudgetExceeded):
        ledger.charge({POISSON: most + 1}, run="a")
    ledger.charge({POISSON: most}, run="a")
    assert ledger.affordable(POISSON, 5) == 0


def test_what_the_first_charge_can_be_is_what_affordable_says() -> None:
    for event in (POISSON, GAUSSIAN, LITTLE_NOISE, events.fixed_size(1000, 10, 4.0)):
        most = Ledger(None, BUDGET).affordable(event, 10**6)
        Ledger(None, BUDGET).charge({event: most}, run="a")
        with pytest.raises(BudgetExceeded):
            Ledger(None, BUDGET).charge({event: most + 1}, run="a")


def test_price_and_run_epsilon_are_of_a_part_alone(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    ledger.charge({POISSON: 100}, run="a")
    ledger.charge({POISSON: 50, GAUSSIAN: 1}, run="b")
    ledger.refund(ledger.charge({POISSON: 5}, run="c"))
    filter = kept(ledger)
    assert ledger.price({GAUSSIAN: 3}) == filter.epsilon({GAUSSIAN: 3}, 1e-5)
    assert ledger.run_epsilon("a") == filter.epsilon({POISSON: 100}, 1e-5)
    assert ledger.run_epsilon("b", 1e-7) == filter.epsilon({POISSON: 50, GAUSSIAN: 1}, 1e-7)
    assert ledger.run_epsilon("c") == ledger.run_epsilon("nobody") == 0
    assert ledger.epsilon() == filter.epsilon({POISSON: 150, GAUSSIAN: 1}, 1e-5)


KINDS: dict[str, DpEvent] = {
    "gaussian": GAUSSIAN,
    "poisson": POISSON,
    "fixed size": events.fixed_size(1000, 10, 9.0),
    "parallel": Parallel((TRAIN, SCORE)),
    "selected": Selected((TRAIN, SCORE), 2.5, 1.0),
    "selected, poisson": Selected((SCORE,), 3.5, math.inf),
    "failure": Failure(1e-9),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_event_is_priced(path: Path, name: str) -> None:
    event = KINDS[name]
    ledger = Ledger(path, Budget(3.0, 1e-5))
    ledger.charge({GAUSSIAN: 1}, run="before")
    spent = ledger.epsilon()
    expected = ledger.cost("a", {event: 2})
    ledger.charge({event: 2}, run="a")
    for opened in (ledger, Ledger(path)):
        assert opened.epsilon() == expected
        assert opened.totals() == Counter({GAUSSIAN: 1}) + Counter({event: 2})
    if name != "failure":
        assert expected > spent
        assert expected >= epsilon_of(ledger.totals(), 1e-5)
    with pytest.raises(BudgetExceeded):
        ledger.charge({event: 10**7}, run="a")
    assert ledger.epsilon() == expected


def test_failures_take_their_share_of_delta_and_no_more(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    failure = Failure(FAILURE_SHARE * BUDGET.delta / 4)
    ledger.charge({POISSON: 10, failure: 3}, run="a")
    assert ledger.epsilon() == ledger.price({POISSON: 10})
    assert ledger.cost("a", {failure: 2}) == math.inf
    with pytest.raises(BudgetExceeded, match="inf"):
        ledger.charge({failure: 2}, run="a")
    assert ledger.epsilon(BUDGET.delta / 2) == math.inf  # of which the share is smaller
    assert ledger.affordable(failure, 5) == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("orders", ["all", "best"])
def test_a_divergence_that_is_not_a_number_is_never_affordable(
    monkeypatch: pytest.MonkeyPatch, wrong: float, orders: str
) -> None:
    """An order at which it is not known does not count; where none does, it costs infinity."""
    strange = events.poisson(0.003, 3.0)
    kind = type(events.kind_of(strange))
    true = kind.divergence_at

    def broken(self: Any, event: DpEvent, relation: str, places: Any) -> Any:
        found = np.array(true(self, event, relation, places))
        if events.sampling_rate(event) != events.sampling_rate(strange):
            return found
        found[slice(None) if orders == "all" else found.argmin()] = wrong
        return found

    ledger = Ledger(None, BUDGET)
    ledger.charge({POISSON: 1}, run="a")
    spent = ledger.epsilon()
    honest = ledger.cost("a", {strange: 10})
    filters._whole_divergence.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(kind, "divergence_at", broken)
            if orders == "all":
                assert ledger.cost("a", {strange: 1}) == math.inf
                assert ledger.affordable(strange, 10) == 0
                with pytest.raises(BudgetExceeded):
                    ledger.charge({strange: 1}, run="a")
                assert ledger.epsilon() == spent
            else:
                assert honest <= ledger.cost("a", {strange: 10}) < math.inf
    finally:
        filters._whole_divergence.cache_clear()


# ---------------------------------------------------------------------- the largest loss, exactly


def exact_maximum(filter: RenyiFilter, divergences: np.ndarray, delta: float) -> mp.mpf:
    """Return max(0, max over L of L + log(1 - delta Phi)) to 60 digits, by bisection."""
    with mp.workdps(60):
        lines = [
            (mp.mpf(a) - 1, mp.log(mp.mpf(w)) - (mp.mpf(a) - 1) * mp.mpf(float(r)))
            for a, w, r in zip(filter.orders, filter.weights, divergences, strict=True)
            if math.isfinite(r)
        ]
        if not lines:
            return mp.inf
        log_delta = mp.log(mp.mpf(delta))

        def terms(loss: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
            exponents = [intercept + slope * loss for slope, intercept in lines]
            top = max(exponents)
            shares = [mp.e ** (each - top) for each in exponents]
            mean = mp.fsum(s * slope for s, (slope, _) in zip(shares, lines, strict=True))
            return log_delta + top + mp.log(mp.fsum(shares)), mean / mp.fsum(shares)

        def falls(loss: mp.mpf) -> bool:
            log_sum, mean = terms(loss)
            return bool(log_sum + mp.log1p(mean) > 0)

        low, high = mp.mpf(-1), mp.mpf(1)
        while falls(low):
            low *= 4
        while not falls(high):
            high *= 4
        # at a distance d of its top, a concave function is below it by d^2
        while high - low > mp.mpf(10) ** -20 * (1 + abs(high)):
            middle = (low + high) / 2
            low, high = (low, middle) if falls(middle) else (middle, high)
        return max(mp.mpf(0), low + mp.log(-mp.expm1(terms(low)[0])))


@st.composite
def wild(draw: st.DrawFn) -> tuple[RenyiFilter, np.ndarray, float]:
    number = draw(st.sampled_from([1, 2, 7, 60]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    places = np.sort(rng.choice(len(ORDERS), number, replace=False))
    weights = rng.dirichlet(np.full(number, draw(st.sampled_from([0.05, 1.0, 20.0])))) + 1e-12
    filter = RenyiFilter(tuple(ORDERS[places]), tuple(weights / weights.sum()))
    size = draw(st.floats(-12, 12))
    shapes = {
        "nothing": np.zeros(number),
        "a power of the order": 10**size * ORDERS[places] ** rng.uniform(0, 2),
        "any": 10 ** rng.uniform(-12, 12, size=number),
        "huge": 10 ** rng.uniform(12, 199, size=number),
    }
    divergences = shapes[draw(st.sampled_from(sorted(shapes)))]
    divergences[rng.random(number) < draw(st.sampled_from([0, 0.5]))] = draw(
        st.sampled_from([0.0, np.inf])
    )
    delta = draw(st.sampled_from([0.5, 0.1, 1e-300]) | st.floats(-300, -0.31).map(lambda e: 10**e))
    return filter, divergences, delta


@given(wild())
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("error")
def test_the_filters_epsilon_is_never_below_the_exact_maximum(
    given_: tuple[RenyiFilter, np.ndarray, float],
) -> None:
    filter, divergences, delta = given_
    found, true = filter.epsilon_at(divergences, delta), exact_maximum(filter, divergences, delta)
    assert mp.mpf(found) >= true
    assert found == math.inf if true == mp.inf else mp.mpf(found) <= true + 3e-9 * (1 + true)


# ---------------------------------------------------------------------- sums


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 10**6)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_sums_depend_on_what_is_there_alone(done: list[tuple[int, int]]) -> None:
    """Not on the order of charges, nor on what was given back between them."""
    known = [events.poisson(0.01, 1 + place / 3) for place in range(6)]
    known += [events.gaussian(2.0 + place) for place in range(3)] + [Failure(1e-12)]
    filter = RenyiFilter.for_budget(BUDGET)
    there, back = FilterTotals(filter), FilterTotals(filter)
    for place, count in done:
        there.add({known[place]: count})
    for place, count in reversed(done):
        back.add({known[(place + 1) % 10]: 2 * count})
        back.add({known[place]: count})
        back.add({known[(place + 1) % 10]: -2 * count})
    tally: Counter[DpEvent] = Counter()
    for place, count in done:
        tally[known[place]] += count
    for delta in (1e-2, 1e-5, 1e-12):
        assert there.epsilon(delta) == back.epsilon(delta) == filter.epsilon(tally, delta)


@pytest.mark.parametrize(("multiplier", "count"), [(1e5, 10**9), (1e9, 10**17), (3e3, 777_777)])
def test_nothing_is_lost_where_many_small_divergences_are_added(
    multiplier: float, count: int
) -> None:
    """That of a Gaussian release at order a is a / (2 multiplier^2)."""
    filter = RenyiFilter.for_budget(BUDGET)
    found = filter.epsilon({events.gaussian(multiplier): count}, 1e-5)
    sums = np.asarray(filter.orders) * count / (2 * multiplier**2)
    exact = filter.epsilon_at(sums, 1e-5 * (1 - FAILURE_SHARE))
    assert exact * (1 - 1e-13) <= found <= exact * (1 + 1e-12)


def test_a_fork_adds_up_the_same(path: Path) -> None:
    ledger = Ledger(path, Budget(20.0, 1e-5))
    rng = np.random.default_rng(5)
    for _ in range(30):
        event = events.poisson(0.02, float(rng.uniform(1, 3)))
        ledger.charge({event: int(rng.integers(1, 9))}, run=f"run {rng.integers(3)}")
    here = ledger.epsilon().hex()

    def child() -> None:
        assert Ledger(path).epsilon().hex() == ledger.epsilon().hex() == here

    assert in_fork(child) == 0


# ---------------------------------------------------------------------- a run's own filter


def test_a_runs_own_orders_are_fixed_by_its_first_charge_for_every_process(path: Path) -> None:
    own = Budget(1.0, 1e-6)
    ledger, other = Ledger(path, Budget(30.0, 1e-5)), Ledger(path)
    ledger.charge({GAUSSIAN: 1}, run="another")
    with pytest.raises(BudgetExceeded, match="own budget"):  # which fixes nothing
        ledger.charge({LITTLE_NOISE: 10_000}, run="a", limit=own, adaptive=True)
    ledger.charge({GAUSSIAN: 3}, run="a", limit=own, adaptive=True, plan={GAUSSIAN: 30})
    filter = RenyiFilter.for_budget(own, {GAUSSIAN: 30})
    other.charge({POISSON: 2}, run="a", limit=own, adaptive=True, plan={LITTLE_NOISE: 100})
    expected = filter.epsilon({GAUSSIAN: 4, POISSON: 2}, own.delta)
    for opened in (ledger, other, Ledger(path)):
        assert opened.run_cost("a", {GAUSSIAN: 1}, own) == expected
    with pytest.raises(ArgumentError, match="keeps what it needs itself"):
        ledger.publish("the orders of run a", "1")


def test_a_run_gets_its_own_budget_back_too(path: Path) -> None:
    own = Budget(1.0, 1e-6)
    ledger = Ledger(path, Budget(30.0, 1e-5))
    reservation = ledger.charge({GAUSSIAN: 9}, run="a", limit=own, adaptive=True)
    ledger.charge({GAUSSIAN: 1}, run="a", limit=own, adaptive=True)
    reservation.use(GAUSSIAN, 2)
    ledger.refund(reservation)
    for opened in (ledger, Ledger(path)):
        found = opened.run_cost("a", {GAUSSIAN: 1}, own)
        assert found == RenyiFilter.for_budget(own, {GAUSSIAN: 9}).epsilon({GAUSSIAN: 4}, own.delta)
