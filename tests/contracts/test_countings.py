"""What every way of counting must do: bound what was charged, within the budget, for all alike.

To add one, write a class with the members of `Counting`, and add a `Case` to CASES.
"""

import contextlib
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import DpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from privada.accounting import Budget, Ledger, Reservation, epsilon_of, events
from privada.accounting.ledger import Prepaid
from privada.accounting.ledger.counting import KINDS, PLANNED
from privada.core.errors import BudgetExceeded, EventError, LedgerError
from tests.accounting import old_ledgers
from tests.forks import in_fork
from tests.ledger_files import opened_twice

BUDGET = Budget(1.0, 1e-5)
GAUSSIANS = (events.gaussian(30.0), events.gaussian(45.0), events.gaussian(70.0))
SAMPLED = (events.poisson(0.01, 2.0), events.poisson(0.02, 4.0), events.gaussian(40.0))
ALLOWANCE = Counter(dict.fromkeys(GAUSSIANS, 20) | dict.fromkeys(SAMPLED, 250))
RUNS = ("a", "b")


@dataclass(frozen=True)
class Case:
    """A way of counting: how a ledger that counts so is made in a file, or in memory alone."""

    make: Callable[[Path], Ledger]
    in_file: bool = True
    declares: bool = False  # what is charged has to be declared
    refunds: bool = True  # what is given back costs nothing any more


def undecided(path: Path) -> Ledger:
    old_ledgers.all_together(path, (), BUDGET.epsilon)
    return Ledger(path)


CASES = {
    "planned": Case(
        lambda path: Ledger(path, BUDGET, kind="planned"), declares=True, refunds=False
    ),
    "adaptive": Case(lambda path: Ledger(path, BUDGET, kind="adaptive")),
    "undecided": Case(undecided),
    "allowance": Case(lambda path: Prepaid(ALLOWANCE, "patients"), in_file=False),
}
in_files = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.in_file])
every = pytest.mark.parametrize("name", list(CASES))


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("templates")
    for name, case in CASES.items():
        if case.in_file:
            case.make(folder / name).close()
    return {name: folder / name for name in CASES}


@contextlib.contextmanager
def opened(template: Path, case: Case) -> Iterator[list[Ledger]]:
    """Open a new ledger twice, without the wait for the disk; once if it is in memory."""
    if not case.in_file:
        yield [case.make(template)]
        return
    with opened_twice(template) as ledgers:
        yield ledgers


def content(ledger: Ledger) -> Any:
    """Return all that is stored, by a connection of its own if there is a file."""
    if ledger.path is None:
        return ledger.charges()
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection:
        rows = connection.execute("SELECT run, purpose, event, count FROM charges").fetchall()
        return rows, connection.execute("SELECT label, digest FROM given").fetchall()


def gaussian_delta(totals: Counter[DpEvent], epsilon: float) -> float:
    """Return the delta of Gaussian releases, from Balle and Wang (2018), Theorem 8."""
    mu = math.sqrt(sum(n / event.noise_multiplier**2 for event, n in totals.items()))
    if mu == 0:
        return 0.0
    far = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    return float(norm.cdf(mu / 2 - epsilon / mu) - far)


@dataclass(frozen=True)
class Act:
    """One thing that a user of a ledger may do."""

    kind: str
    who: int
    run: str
    counts: dict[int, int]
    plan: dict[int, int] | None = field(default=None)


def acts(most: int) -> st.SearchStrategy[list[Act]]:
    counts = st.dictionaries(st.integers(0, 2), st.integers(0, most), min_size=1, max_size=2)
    plans = st.none() | st.dictionaries(st.integers(0, 2), st.integers(0, 4 * most), max_size=3)
    kinds = st.sampled_from(["charge"] * 5 + ["exchange", "refund", "refund", "declare", "reopen"])
    each = st.builds(Act, kinds, st.integers(0, 1), st.sampled_from(RUNS), counts, plans)
    return st.lists(each, min_size=1, max_size=12)


class Model:
    """Does acts on one or two handles of a ledger, and holds it to the contract after each."""

    def __init__(self, case: Case, ledgers: list[Ledger], known: tuple[DpEvent, ...]) -> None:
        self.case, self.ledgers, self.known = case, ledgers, known
        self.totals: Counter[DpEvent] = Counter()
        self.charged = False
        self.held: list[list[Reservation]] = [[] for _ in ledgers]

    def do(self, act: Act) -> None:
        who = act.who % len(self.ledgers)
        ledger, before = self.ledgers[who], self.ledgers[0].epsilon(BUDGET.delta)
        getattr(self, act.kind)(who, ledger, act)
        after = [each.epsilon(BUDGET.delta) for each in self.ledgers]
        assert len(set(after)) == 1  # to the last bit
        assert all(each.totals() == +self.totals for each in self.ledgers)
        if act.kind in ("charge", "declare", "reopen"):
            assert after[0] >= before
        if act.kind == "refund":
            assert after[0] <= before if self.case.refunds else after[0] == before
        if ledger.budget is not None:
            assert after[0] <= ledger.budget.epsilon
        self.check_bound(after[0])

    def check_bound(self, epsilon: float) -> None:
        if self.known is GAUSSIANS:
            # a cost that is not below the true one; epsilon 0 has all of delta to cover nothing
            assert gaussian_delta(+self.totals, epsilon) <= BUDGET.delta * (1 + 1e-9)
        else:
            assert epsilon >= epsilon_of(+self.totals, BUDGET.delta) * (1 - 1e-4)

    def tally(self, counts: dict[int, int] | None) -> Counter[DpEvent]:
        return Counter({self.known[place]: n for place, n in (counts or {}).items() if n})

    def charge(self, who: int, ledger: Ledger, act: Act, returning: Any = ()) -> None:
        counts, plan = self.tally(act.counts), self.tally(act.plan)
        expected = ledger.cost(act.run, counts, BUDGET.delta)
        stored, spent = content(ledger), ledger.epsilon(BUDGET.delta)
        refusal = None
        try:
            paid = ledger.charge(counts, run=act.run, plan=act.plan and plan, returning=returning)
        except LedgerError as error:
            refusal = str(error)
        if refusal is None:
            self.held[who].append(paid)
            self.totals.update(counts)
            self.charged = self.charged or bool(counts)
        else:
            assert "Nothing was charged" in refusal
        if refusal is not None and not returning:
            assert content(ledger) == stored
            assert ledger.epsilon(BUDGET.delta) == spent
        said = not returning and (self.charged if self.case.declares else not act.plan)
        if said and counts:  # what it costs is known beforehand, and decides
            most = math.inf if ledger.budget is None else ledger.budget.epsilon
            assert (refusal is None) == (expected <= most and expected < math.inf)
            if refusal is None and not self.case.declares:
                assert ledger.epsilon(BUDGET.delta) == expected

    def exchange(self, who: int, ledger: Ledger, act: Act) -> None:
        """Charge, and give something back in the same moment, whether it is refused or not."""
        if not self.held[who]:
            return
        old = self.held[who].pop()
        unused = Counter(old.unused)
        self.charge(who, ledger, act, returning=[old])
        assert not old.unused
        # what is not declared is an error that undoes the return as well: all of it stays charged
        if not (self.case.declares and ledger.totals() == +self.totals):
            self.totals.subtract(unused)

    def refund(self, who: int, ledger: Ledger, act: Act) -> None:
        if self.held[who]:
            reservation = self.held[who].pop()
            for event, n in (reservation.unused & self.tally(act.counts)).items():
                reservation.use(event, n)
            self.totals.subtract(reservation.unused)
            ledger.refund(reservation)

    def declare(self, who: int, ledger: Ledger, act: Act) -> None:
        stored = content(ledger)
        try:
            ledger.declare({act.run: self.tally(act.plan or act.counts)})
        except LedgerError:
            assert content(ledger) == stored
            assert self.case.declares
        else:
            assert not self.charged or not self.case.declares

    def reopen(self, who: int, ledger: Ledger, act: Act) -> None:
        if ledger.path is not None:
            ledger.close()
            self.ledgers[who] = Ledger(ledger.path)
            self.held[who].clear()  # which are gone with the handle: all of it stays charged


@every
@settings(max_examples=60, deadline=None)
@given(done=acts(12))
def test_gaussians_in_any_order(name: str, templates: dict[str, Path], done: list[Act]) -> None:
    case = CASES[name]
    with opened(templates[name], case) as ledgers:
        model = Model(case, ledgers, GAUSSIANS)
        for act in done:
            model.do(act)


@every
@settings(max_examples=8, deadline=None)
@given(done=acts(150))
def test_sampled_releases_in_any_order(
    name: str, templates: dict[str, Path], done: list[Act]
) -> None:
    case = CASES[name]
    with opened(templates[name], case) as ledgers:
        model = Model(case, ledgers, SAMPLED)
        for act in done:
            model.do(act)


def charge_some(ledger: Ledger) -> None:
    ledger.declare({"a": {GAUSSIANS[0]: 9, GAUSSIANS[1]: 7}, "b": {GAUSSIANS[2]: 11}})
    ledger.charge({GAUSSIANS[0]: 2}, run="a")
    ledger.charge({GAUSSIANS[2]: 11}, run="b")
    ledger.refund(ledger.charge({GAUSSIANS[1]: 3}, run="a"))
    ledger.charge({GAUSSIANS[1]: 7, GAUSSIANS[0]: 7}, run="a")


@every
def test_it_says_what_it_is(name: str, tmp_path: Path) -> None:
    ledger = CASES[name].make(tmp_path / "patients.ledger")

    def check() -> None:
        assert ledger.kind in KINDS
        assert ledger.describe().startswith(ledger.kind)
        assert ledger.accountant in ("pld", "filter")
        assert (ledger.accountant == "pld") == (ledger.kind == PLANNED)
        assert ledger.adaptive == (ledger.kind != PLANNED)

    check()
    charge_some(ledger)
    check()


@every
def test_nothing_costs_nothing(name: str, tmp_path: Path) -> None:
    ledger = CASES[name].make(tmp_path / "patients.ledger")
    before = content(ledger)
    for reservation in (ledger.charge({}, run="a"), ledger.charge({GAUSSIANS[0]: 0}, run="b")):
        ledger.refund(reservation)
    assert ledger.epsilon(1e-5) == ledger.run_epsilon("a", 1e-5) == ledger.price({}, 1e-5) == 0
    assert ledger.cost("a", {}, 1e-5) == 0
    assert content(ledger) == before
    charge_some(ledger)  # nor has it chosen anything


@every
def test_a_run_costs_no_more_than_all_and_smaller_deltas_cost_more(
    name: str, tmp_path: Path
) -> None:
    ledger = CASES[name].make(tmp_path / "patients.ledger")
    charge_some(ledger)
    whole = ledger.epsilon(1e-5)
    for run in RUNS:
        own = Counter({c.event: c.count for c in ledger.charges() if c.run == run})
        assert gaussian_delta(own, ledger.run_epsilon(run, 1e-5)) <= 1e-5 * (1 + 1e-9)
        assert 0 < ledger.run_epsilon(run, 1e-5) < whole
    assert ledger.run_epsilon("nobody", 1e-5) == 0
    costs = [ledger.epsilon(delta) for delta in (1e-2, 1e-4, 1e-6, 1e-9, 1e-50)]
    assert costs == sorted(costs)
    for delta, cost in zip((1e-2, 1e-4, 1e-6, 1e-9), costs, strict=False):
        assert gaussian_delta(ledger.totals(), cost) <= delta * (1 + 1e-9)


@in_files
def test_relations_do_not_mix_and_no_noise_costs_too_much(name: str, tmp_path: Path) -> None:
    ledger = CASES[name].make(tmp_path / "patients.ledger")
    before = content(ledger)
    with pytest.raises(EventError, match="one neighbouring relation"):
        ledger.charge({events.poisson(0.01, 4.0): 2, events.fixed_size(100, 10, 9.0): 2}, run="a")
    with pytest.raises(BudgetExceeded):
        ledger.charge({events.gaussian(0.0): 1}, run="a")
    assert content(ledger) == before
    assert ledger.epsilon() == 0
    charge_some(ledger)  # nothing is left of either


@in_files
def test_another_process_agrees_to_the_last_bit(name: str, tmp_path: Path) -> None:
    path = tmp_path / "patients.ledger"
    ledger = CASES[name].make(path)
    ledger.declare({"a": {SAMPLED[0]: 60}, "b": {SAMPLED[1]: 40, GAUSSIANS[0]: 2}})
    ledger.charge({SAMPLED[0]: 50}, run="a")
    here = ledger.epsilon(), ledger.epsilon(1e-7), ledger.cost("b", {SAMPLED[1]: 30})

    def child() -> None:
        for there in (ledger, Ledger(path)):
            found = there.epsilon(), there.epsilon(1e-7), there.cost("b", {SAMPLED[1]: 30})
            assert found == here
        ledger.charge({SAMPLED[1]: 30}, run="b")
        (tmp_path / "report").write_text(ledger.epsilon().hex())

    assert in_fork(child) == 0
    assert ledger.totals() == {SAMPLED[0]: 50, SAMPLED[1]: 30}  # seen here too
    assert ledger.epsilon() == float.fromhex((tmp_path / "report").read_text())
    assert ledger.epsilon() == Ledger(path).epsilon() >= here[0]


@in_files
@pytest.mark.parametrize("at", range(1, 40, 3))
def test_killed_in_a_charge_it_is_as_before_or_as_after(name: str, at: int, tmp_path: Path) -> None:
    """Before any statement of the first charge, which may fix orders or declare a plan."""
    path = tmp_path / "patients.ledger"
    CASES[name].make(path).close()
    child = os.fork()
    if child == 0:
        try:
            ledger, seen = Ledger(path), [0]

            def trace(_: str) -> None:
                seen[0] += 1
                if seen[0] == at:
                    os.kill(os.getpid(), 9)

            ledger._storage.connection().set_trace_callback(trace)
            ledger.charge({GAUSSIANS[0]: 2}, run="a", plan={GAUSSIANS[0]: 5})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    ledger = Ledger(path)
    if ledger.totals():
        assert ledger.totals() == {GAUSSIANS[0]: 2}
        assert gaussian_delta(ledger.totals(), ledger.epsilon()) <= 1e-5
        ledger.charge({GAUSSIANS[0]: 3}, run="a")
    else:
        assert ledger.epsilon() == 0
        assert not [label for label, _ in content(ledger)[1] if not label.startswith("search")]
        charge_some(ledger)
