"""The gradient query: no release without its own durable charge, whoever asks."""

import contextlib
import copy
import pickle
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import privada as pv
from privada import data
from privada.accounting import Budget, Ledger, Reservation, epsilon_of, events
from privada.accounting.ledger.sqlite.rows import SQLiteTransaction
from privada.clipping import Batch
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError
from privada.core.hidden_streams import HiddenStreams
from privada.core.randomness import RandomSource, SecureSource
from privada.core.receipts import Receipt
from privada.core.tensors import Parameters
from privada.core.values import ClippedSum
from privada.mechanism import Mechanism, Releases
from privada.noise import GaussianNoise, constant
from privada.preconditioning import FlatScaling, isotropic
from privada.query import account as account_module
from privada.query.gradients import GradientQuery
from privada.query.local import LocalExecutor
from tests.alarms import alarmed
from tests.forks import PATIENCE, in_fork, together

# A full sample: Gaussian events have a closed form, so that charging them costs next to nothing.
SIGMA = 20.0
EVENT = events.gaussian(SIGMA)
BUDGET = Budget(1.0, 1e-5)
PLAIN = isotropic()


class FakeRecords:
    """Three made-up records, and how often they were read after the query was made."""

    size = 3

    def __init__(self) -> None:
        self.reads = 0

    @property
    def example(self) -> Batch:
        return Batch(torch.zeros(1, 2), torch.zeros(1))

    def fetch(self, indices: NDArray[np.int64]) -> Batch:
        raise AssertionError("only public records are fetched")

    def read(
        self, indices: NDArray[np.int64], streams: HiddenStreams, padding: None = None
    ) -> tuple[Batch, NDArray[np.int64]]:
        self.reads += 1
        batch = Batch(torch.zeros(len(indices), 2), torch.zeros(len(indices)))
        return batch, np.arange(len(indices))


class FakeSampler:
    """Takes all records; before it does, looks up what is committed on the ledger's file."""

    units, batch_size = 3, 3.0

    def __init__(self, path: Path | None) -> None:
        self.path, self.draws, self.unpaid = path, 0, 0

    def draw(self, step: int, rng: RandomSource) -> NDArray[np.int64]:
        self.draws += 1
        if self.path is not None and charged(self.path) < self.draws:
            self.unpaid += 1
        return np.arange(3)

    def event(self, noise_multiplier: float) -> DpEvent:
        return events.gaussian(noise_multiplier)

    def describe(self) -> str:
        return "all"


class FakeEngine:
    padding = None

    def __init__(self) -> None:
        self.calls = 0

    def clipped_sum(self, batch: Batch | None, scaling: FlatScaling, clip: float) -> ClippedSum:
        self.calls += 1
        return ClippedSum(torch.zeros(3), clip)


class Plan:
    """A run of `total` queries, as the query sees it: picklable, unlike a trainer's."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def __call__(self, queries: int) -> Mapping[DpEvent, int]:
        left = max(0, self.total - self.done)
        return {EVENT: left if queries < 0 else min(queries, left)}


def charged(path: Path) -> int:
    """Return how many charges a new reader finds on a ledger."""
    with Ledger(path) as ledger:
        return sum(charge.count for charge in ledger.charges())


class Planned(GradientQuery):
    """A query that charges ahead by a plan, as a trainer's steps do."""

    plan: Plan | None = None

    def pay(self, event: DpEvent, ahead: Any = None, number: int = 0) -> Receipt:
        return super().pay(event, self.plan, number)


def make_query(
    ledger: Ledger, plan: Plan | None = None, block: int = 1, **given: Any
) -> GradientQuery:
    parameters = Parameters(torch.nn.Linear(2, 1))
    executor = LocalExecutor(
        records=given.get("records", FakeRecords()),
        engine=given.get("engine", FakeEngine()),
        parameters=parameters,
        model_rng=SecureSource(),
    )
    mechanism = Mechanism(
        given.get("sampler", FakeSampler(None)),
        Releases(1, constant(), lambda step: 1),
        batch_size=3.0,
    )
    query = Planned(
        mechanism=mechanism,
        executor=executor,
        account=account_module.Account(ledger, run="run"),
        noise=GaussianNoise(),
        sampling_rng=SecureSource(),
        parameters=parameters,
    )
    query.plan = plan
    query.account._block = block
    return query


def ask(
    query: GradientQuery, plan: Plan | None = None, times: int = 1, sigma: float = SIGMA
) -> None:
    for _ in range(times):
        query.release(PLAIN, sigma)
        if plan is not None:
            plan.done += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "patients.ledger"


# ---------------------------------------------------------------------- charge first


@pytest.mark.parametrize("block", [1, 4])
def test_every_draw_is_paid_for_on_the_disk_beforehand(path: Path, block: int) -> None:
    plan, sampler = Plan(9), FakeSampler(path)
    query = make_query(Ledger(path, BUDGET), plan, block, sampler=sampler)
    ask(query, plan, 9)
    query.account.refund_unused()
    assert (sampler.draws, sampler.unpaid) == (9, 0)
    assert charged(path) == 9


def test_a_refused_query_reads_no_data(path: Path) -> None:
    records, sampler, engine = FakeRecords(), FakeSampler(path), FakeEngine()
    query = make_query(Ledger(path, BUDGET), records=records, sampler=sampler, engine=engine)
    with pytest.raises(BudgetExceeded, match="no data was read"):
        ask(query, sigma=0.5)
    assert (records.reads, sampler.draws, engine.calls, charged(path)) == (0, 0, 0, 0)
    ask(query)
    assert (records.reads, sampler.draws, engine.calls, charged(path)) == (1, 1, 1, 1)


def test_a_query_on_a_ledger_in_trouble_reads_no_data(path: Path) -> None:
    records, sampler, engine = FakeRecords(), FakeSampler(None), FakeEngine()
    plan = Plan(10)
    query = make_query(
        Ledger(path, BUDGET), plan, 3, records=records, sampler=sampler, engine=engine
    )
    ask(query, plan, 3)
    path.unlink()
    for _ in range(2):
        with pytest.raises(LedgerError):
            ask(query, plan)
    assert (records.reads, sampler.draws, engine.calls) == (3, 3, 3)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), "1", None])
def test_a_wrong_noise_multiplier_is_refused_before_it_is_charged(path: Path, wrong: Any) -> None:
    sampler = FakeSampler(None)
    query = make_query(Ledger(path, BUDGET), sampler=sampler)
    with pytest.raises(ArgumentError, match="noise_multiplier"):
        ask(query, sigma=wrong)
    assert (sampler.draws, charged(path)) == (0, 0)


def test_a_query_that_fails_after_the_draw_stays_charged(path: Path) -> None:
    class Broken(FakeEngine):
        def clipped_sum(self, *_: Any) -> ClippedSum:
            raise RuntimeError("broken")

    query = make_query(Ledger(path, BUDGET), engine=Broken())
    with pytest.raises(RuntimeError, match="broken"):
        ask(query)
    query.account.refund_unused()
    assert charged(path) == 1


def test_an_unplanned_query_is_paid_for_alone(path: Path) -> None:
    plan, ledger = Plan(8), Ledger(path, BUDGET)
    query = make_query(ledger, plan, 4)
    ask(query, plan, 2)
    ask(query, sigma=30.0)
    assert ledger.totals() == Counter({EVENT: 4, events.gaussian(30.0): 1})
    ask(query, plan, 2)
    query.account.refund_unused()
    assert ledger.totals() == Counter({EVENT: 4, events.gaussian(30.0): 1})


def test_a_block_that_the_budget_does_not_allow_becomes_a_smaller_one(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    most = ledger.affordable(EVENT, 10_000)
    ledger.charge({EVENT: most - 10}, run="another")
    plan = Plan(100)
    query = make_query(ledger, plan, 64)
    asked = 0
    with contextlib.suppress(BudgetExceeded):
        while True:
            ask(query, plan)
            asked += 1
    query.account.refund_unused()
    assert asked == 10
    assert charged(path) == most


# ---------------------------------------------------------------------- blocks


def test_settle_returns_what_was_not_used(path: Path) -> None:
    plan = Plan(20)
    query = make_query(Ledger(path, BUDGET), plan, 8)
    ask(query, plan, 3)
    assert charged(path) == 8
    query.account.refund_unused()
    assert charged(path) == 3
    query.account.refund_unused()
    assert charged(path) == 3
    query.account._block = 5
    ask(query, plan)
    assert charged(path) == 8
    query.account.refund_unused()
    assert charged(path) == 4


def test_settle_before_any_query_touches_nothing(path: Path) -> None:
    ledger = Ledger(path, BUDGET)
    query = make_query(ledger)
    path.unlink()
    query.account.refund_unused()


def test_what_could_not_be_refunded_is_not_used_either(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, plan = Ledger(path, BUDGET), Plan(20)
    query = make_query(ledger, plan, 8)
    ask(query, plan, 3)

    def fail(*_: Any, **__: Any) -> None:
        raise LedgerError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "refund", fail)
        with pytest.raises(LedgerError, match="gone"):
            query.account.refund_unused()
    assert charged(path) == 8
    ask(query, plan)
    assert charged(path) > 8
    query.account.refund_unused()
    assert charged(path) == 8 + 1


def test_what_was_used_is_not_given_back_by_any_name(path: Path) -> None:
    """A full run, its charges taken back, and another: each was within budget."""
    ledger, plan = Ledger(path, BUDGET), Plan(20)
    query = make_query(ledger, plan, 8)
    ask(query, plan, 20)
    query.account.refund_unused()
    used = ledger.totals()
    with pytest.raises(ArgumentError, match="reservation"):
        ledger.refund(used)  # type: ignore[arg-type]
    query.account.refund_unused()
    assert ledger.totals() == used == Counter({EVENT: 20})


@settings(max_examples=25, deadline=None)
@given(
    total=st.integers(1, 200),
    seconds=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20),
    stops=st.sets(st.integers(0, 200), max_size=4),
)
def test_blocks_stay_within_the_plan(total: int, seconds: list[float], stops: set[int]) -> None:
    """Whatever commits and steps cost, and whenever it is settled."""
    clock, ticks = [0.0], [0]

    def now() -> float:
        clock[0] += seconds[ticks[0] % len(seconds)]
        ticks[0] += 1
        return clock[0]

    plan, ledger = Plan(total), Ledger(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account_module, "time", SimpleNamespace(perf_counter=now))
        query = make_query(ledger, plan)
        for number in range(1, total + 1):
            ask(query, plan)
            held = ledger.totals()[EVENT]
            assert number <= held <= min(total, number + account_module.LARGEST_BLOCK)
            if number in stops:
                query.account.refund_unused()
                assert ledger.totals()[EVENT] == number
    assert ledger.totals()[EVENT] == total


def test_blocks_grow_when_commits_are_slow_and_shrink_when_they_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(account_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    ledger, plan = Ledger(None), Plan(10_000)
    true, cost = ledger.charge, [0.01]

    def slow(*given: Any, **named: Any) -> Reservation:
        clock[0] += cost[0]
        return true(*given, **named)

    monkeypatch.setattr(ledger, "charge", slow)
    query = make_query(ledger, plan)
    sizes = []
    for _ in range(1000):
        ask(query, plan)
        clock[0] += 0.001
        sizes.append(query.account._block)
    assert max(sizes) == account_module.LARGEST_BLOCK
    cost[0] = 1e-9
    for _ in range(1000):
        ask(query, plan)
        clock[0] += 0.001
    assert query.account._block == 1


def test_threads_share_a_query(path: Path) -> None:
    query = make_query(Ledger(path), Plan(10_000), 4)

    def work(_: int) -> None:
        for turn in range(20):
            ask(query)
            if turn % 7 == 3:
                query.account.refund_unused()

    together(work)
    query.account.refund_unused()
    assert charged(path) == 160


def test_a_signal_handler_that_settles_takes_back_nothing_that_is_used() -> None:
    """It finds the query in the middle of whatever it was doing."""
    ledger, plan = Ledger(None), Plan(10**9)
    query = make_query(ledger, plan, account_module.LARGEST_BLOCK)
    asked, handled = 0, [0]

    def handle(*_: object) -> None:
        handled[0] += 1
        query.account.refund_unused()
        signal.setitimer(signal.ITIMER_REAL, 2e-4)

    with alarmed(handle, 2e-4):
        while handled[0] < 2000:
            query.account.pay(EVENT, ahead=plan)
            asked += 1
    query.account.refund_unused()
    assert ledger.totals()[EVENT] == asked


@pytest.mark.parametrize("when", ["before", "after"])
def test_settling_in_the_middle_of_a_charge_is_left_for_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    ledger, plan = Ledger(path, BUDGET), Plan(100)
    query = make_query(ledger, plan, 8)
    true = ledger.charge

    def charge(*given: Any, **named: Any) -> Reservation:
        if when == "before":
            query.account.refund_unused()
        reservation = true(*given, **named)
        if when == "after":
            query.account.refund_unused()
            with pytest.raises(LedgerError, match="do it after the step"):
                ask(query)  # a release is refused, though
        return reservation

    monkeypatch.setattr(ledger, "charge", charge)
    ask(query, plan)
    assert charged(path) == 8
    query.account.refund_unused()
    assert charged(path) == 1


def test_settling_in_the_middle_of_reading_the_ledger_is_left_for_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, plan = Ledger(path, BUDGET), Plan(100)
    query = make_query(ledger, plan, 8)
    ask(query, plan, 3)
    true = SQLiteTransaction.charges

    def interrupted(transaction: SQLiteTransaction) -> Any:
        query.account.refund_unused()
        return true(transaction)

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteTransaction, "charges", interrupted)
        assert sum(charge.count for charge in ledger.charges()) == 8
    ask(query, plan, 5)
    assert charged(path) == 8  # the block was still its own
    query.account.refund_unused()
    assert charged(path) == 8


def test_a_signal_handler_that_settles_waits_for_no_thread_that_waits_for_it(path: Path) -> None:
    """It has interrupted the owner of the ledger; the owner of the query waits for the ledger."""
    ledger, plan = Ledger(path, BUDGET), Plan(100)
    query = make_query(ledger, plan)
    paying = threading.Thread(target=lambda: query.account.pay(EVENT, ahead=plan), daemon=True)

    def stuck(*_: object) -> None:
        raise TimeoutError("the handler waits for the thread")

    with ledger._storage.reading(), alarmed(stuck, PATIENCE):
        paying.start()
        while not query.account._busy:
            time.sleep(0.001)
        query.account.refund_unused()
    paying.join(PATIENCE)
    assert charged(path) == 1


def test_a_trainer_settled_by_a_signal_handler_trains_on(path: Path) -> None:
    trainer, times = make_trainer(steps=300, ledger=path), [0]

    def handle(*_: object) -> None:
        times[0] += 1
        trainer.gradients.account.refund_unused()
        signal.setitimer(signal.ITIMER_REAL, 1e-3)  # once more, however long this took

    with alarmed(handle, 1e-3):
        trainer.fit()
    trainer.gradients.account.refund_unused()
    assert times[0] > 10
    assert (trainer.steps_done, charged(path)) == (300, 300)


# ---------------------------------------------------------------------- copies and forks


@pytest.mark.parametrize(
    "make_copy",
    [copy.copy, copy.deepcopy, lambda query: pickle.loads(pickle.dumps(query))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_pays_for_itself(
    path: Path, make_copy: Callable[[GradientQuery], GradientQuery]
) -> None:
    plan = Plan(1000)
    query = make_query(Ledger(path, Budget(4.0, 1e-5)), plan, 16)
    ask(query, plan, 3)
    assert charged(path) == 16
    other = make_copy(query)
    assert charged(path) == 16
    other.account.refund_unused()  # it holds nothing, and returns nothing
    assert charged(path) == 16
    ask(other, None, 5)
    assert charged(path) >= 16 + 5
    ask(query, plan, 4)
    other.account.refund_unused()
    query.account.refund_unused()
    assert charged(path) == 3 + 5 + 4
    again = make_copy(other)
    ask(again, None, 2)
    again.account.refund_unused()
    assert charged(path) == 3 + 5 + 4 + 2


def test_a_forked_child_does_not_use_its_parents_block(path: Path) -> None:
    plan = Plan(1000)
    query = make_query(Ledger(path, Budget(4.0, 1e-5)), plan, 16)
    ask(query, plan, 3)

    def child() -> None:
        ask(query, plan, 5)
        assert charged(path) >= 16 + 5
        query.account.refund_unused()

    def settles_only() -> None:
        query.account.refund_unused()

    def forks_again() -> None:
        ask(query, plan, 1)
        query.account._block = 16
        query.account.refund_unused()
        ask(query, plan, 1)
        held = charged(path)
        assert in_fork(lambda: ask(query, plan, 2)) == 0
        assert charged(path) >= held + 2
        query.account.refund_unused()

    assert in_fork(settles_only) == 0
    assert charged(path) == 16
    assert in_fork(child) == 0
    assert charged(path) == 16 + 5
    assert in_fork(forks_again) == 0
    held = charged(path)
    assert held >= 16 + 5 + 4
    ask(query, plan, 13)
    assert charged(path) == held  # what was the parent's before the forks still is
    ask(query, plan, 1)
    assert charged(path) > held


def test_a_forked_child_that_is_refused_reads_no_data(path: Path) -> None:
    ledger, plan, sampler = Ledger(path, BUDGET), Plan(1000), FakeSampler(None)
    query = make_query(ledger, plan, 16, sampler=sampler)
    ask(query, plan, 1)
    ledger.charge({EVENT: ledger.affordable(EVENT, 10_000)}, run="another")

    def child() -> None:
        with pytest.raises(BudgetExceeded):
            ask(query, plan)
        assert sampler.draws == 1

    assert in_fork(child) == 0
    ask(query, plan, 15)  # these were paid for


def test_a_forked_gate_on_a_ledger_in_memory_is_refused() -> None:
    ledger, plan, sampler = Ledger(None, BUDGET), Plan(1000), FakeSampler(None)
    query = make_query(ledger, plan, 16, sampler=sampler)
    ask(query, plan, 1)

    def child() -> None:
        with pytest.raises(LedgerError, match="forked process"):
            ask(query, plan)
        assert sampler.draws == 1
        query.account.refund_unused()

    assert in_fork(child) == 0
    with pytest.raises(LedgerError, match="Give the ledger a path"):
        pickle.dumps(query)
    other = copy.deepcopy(query)
    ask(other, None, 2)
    ask(query, plan, 1)
    other.account.refund_unused()
    query.account.refund_unused()
    assert ledger.totals()[EVENT] == 4


# ---------------------------------------------------------------------- a whole run


def make_trainer(steps: int = 12, lr: Any = 0.1, **given: Any) -> pv.Trainer:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=generator)
    model = torch.nn.Linear(3, 2)
    if not {"budget", "noise_multiplier"} & set(given):
        given |= {"noise_multiplier": 4.0, "delta": 1e-5}
    return pv.Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        (x, (x.sum(dim=1) > 0).long()),
        method=pv.methods.DPSGD(lr=lr, clip=1.0),
        batch_size=6,
        steps=steps,
        **given,
    )


def test_fit_ends_with_exactly_its_steps_charged(path: Path) -> None:
    trainer = make_trainer(steps=37, ledger=path).fit()
    assert charged(path) == 37
    assert trainer.statement().epsilon == epsilon_of({events.poisson(0.1, 4.0): 37}, 1e-5)
    other = path.with_name("several.ledger")
    Ledger(other).close()
    for steps in (37, 5):
        make_trainer(steps=steps, ledger=other).fit()
    assert charged(other) == 42


def test_a_second_run_on_a_ledger_that_a_trainer_made_is_refused(path: Path) -> None:
    """Nobody can know why it is asked for; the first trainer's epsilon is that of its plan."""
    make_trainer(steps=37, ledger=path).fit()
    for other in ({}, {"budget": Budget(1.0, 1e-5)}):
        with pytest.raises(LedgerError, match=r"declared before the first look.*pv\.Ledger\(path"):
            make_trainer(steps=5, ledger=path, **other)
    assert charged(path) == 37


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_fit_is_charged_for_the_steps_it_took(
    path: Path, error: type[BaseException]
) -> None:
    def lr(step: int) -> float:
        if step == 7:
            raise error
        return 0.1

    trainer = make_trainer(steps=37, lr=lr, ledger=path)
    with pytest.raises(error):
        trainer.fit()
    assert trainer.steps_done == 7
    assert charged(path) == 7


def test_steps_by_hand_are_charged_before_they_are_taken(path: Path) -> None:
    trainer = make_trainer(steps=12, ledger=path)
    assert charged(path) == 0
    for number in range(1, 13):
        trainer.step()
        assert number <= charged(path) <= 12
    with pytest.raises(ArgumentError, match="planned 12 steps"):
        trainer.step()
    assert charged(path) == 12


def test_a_run_that_the_budget_cannot_pay_for_is_refused_at_once(path: Path) -> None:
    Ledger(path, Budget(0.5, 1e-5)).close()
    with pytest.raises(BudgetExceeded, match="Nothing was charged"):
        make_trainer(steps=10_000, ledger=path)
    assert charged(path) == 0


def test_a_run_whose_budget_others_spend_stops_with_its_model_as_it_was(path: Path) -> None:
    other = Ledger(path, Budget(1.0, 1e-5))
    trainer = make_trainer(steps=40, ledger=path)
    for _ in range(3):
        trainer.step()
    trainer.statement()  # settles
    event = events.poisson(0.1, 4.0)
    other.charge({event: other.affordable(event, 100_000)}, run="another")
    before, held = copy.deepcopy(trainer.model.state_dict()), charged(path)
    with pytest.raises(BudgetExceeded):
        trainer.step()
    assert all(torch.equal(before[k], v) for k, v in trainer.model.state_dict().items())
    assert (trainer.steps_done, charged(path)) == (3, held)
    assert other.epsilon() <= 1.0


def test_a_run_calibrated_to_its_budget_spends_it_and_no_more(path: Path) -> None:
    trainer = make_trainer(steps=30, budget=Budget(1.0, 1e-5), ledger=path).fit()
    assert 0.98 < trainer.epsilon() <= 1.0
    assert Ledger(path).epsilon() == trainer.epsilon()
    with pytest.raises(LedgerError, match="declared before the first look"):
        make_trainer(steps=30, budget=Budget(1.0, 1e-5), ledger=path)


def test_a_deep_copy_of_a_trainer_pays_for_itself(path: Path) -> None:
    trainer = make_trainer(steps=100, ledger=path)
    trainer.gradients.account._block = 16
    for _ in range(3):
        trainer.step()
    held = charged(path)
    assert held == 16
    other = copy.deepcopy(trainer)
    for _ in range(5):
        other.step()
    assert charged(path) >= held + 5
    assert not torch.equal(other.model.weight, trainer.model.weight)
    for _ in range(4):
        trainer.step()
    other.statement()
    trainer.statement()
    assert charged(path) == 3 + 5 + 4


@pytest.mark.parametrize("limit", [None, Budget(9.0, 1e-5)])
def test_a_run_and_its_copies_keep_to_the_runs_budget_together(
    path: Path, limit: Budget | None
) -> None:
    Ledger(path, limit).close()
    own = Budget(1.0, 1e-5)
    trainer = make_trainer(steps=30, budget=own, ledger=path)
    others = [copy.deepcopy(trainer) for _ in range(2)]
    for each in (trainer, *others):
        with contextlib.suppress(BudgetExceeded):
            for _ in range(20):
                each.step()
        each.gradients.account.refund_unused()
    assert charged(path) == 30
    assert epsilon_of(Ledger(path).totals(), own.delta) <= own.epsilon
    with pytest.raises(BudgetExceeded, match="own budget of run"):
        others[1].step()


def test_an_own_loop_is_charged_for_its_steps(path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=generator)
    net = torch.nn.Linear(3, 2)
    loop = pv.PrivateLoop(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        torch.nn.CrossEntropyLoss(),
        (x, (x.sum(dim=1) > 0).long()),
        clip=1.0,
        batch_size=6,
        steps=10,
        noise_multiplier=4.0,
        delta=1e-5,
        ledger=path,
    )
    model, optimizer, criterion, loader = loop
    for number, (inputs, targets) in enumerate(loader, start=1):
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
        assert charged(path) >= number
        if number == 6:
            break
    loop.detach()
    assert charged(path) == 6


def test_records_are_read_only_through_paid_queries(path: Path) -> None:
    """Construction reads the first record's shape and the ranges; each step reads after paying."""

    class Watched(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.armed = False
            self.unpaid = 0

        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> Any:
            if self.armed and charged(path) == 0:
                self.unpaid += 1
            return torch.randn(3), 1

    watched = Watched()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pv.Trainer(
            torch.nn.Linear(3, 2),
            torch.nn.CrossEntropyLoss(),
            watched,
            method=pv.methods.DPSGD(lr=0.1, clip=1.0),
            batch_size=30,
            steps=4,
            noise_multiplier=4.0,
            delta=1e-5,
            ledger=path,
        )
    watched.armed = True
    trainer.fit()
    assert watched.unpaid == 0
    assert charged(path) == 4


class Interrupting(torch.utils.data.Dataset[Any]):
    """Records in the middle of which Ctrl-C is pressed, and which catch what they can."""

    def __init__(self, catching: bool) -> None:
        self.armed, self.catching = False, catching

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        if self.armed and index == 30:
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                if not self.catching:
                    raise
        return torch.ones(3), 1


@pytest.mark.parametrize("catching", [False, True])
def test_an_interrupt_ends_a_query_and_nothing_is_released(path: Path, catching: bool) -> None:
    records, model = Interrupting(catching), torch.nn.Linear(3, 2)
    trainer = pv.Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        records,
        method=pv.methods.DPSGD(lr=0.1, clip=1.0),
        batch_size=60,
        steps=4,
        noise_multiplier=4.0,
        delta=1e-5,
        ledger=path,
    )
    trainer.step()
    before, records.armed = model.weight.detach().clone(), True
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit()
    assert caught.value.__context__ is None
    assert torch.equal(model.weight, before)
    assert (trainer.steps_done, charged(path)) == (1, 2)
    records.armed = False
    assert trainer.fit().steps_done == 4


def test_made_up_examples_hold_nothing_of_the_records() -> None:
    records = data.load(
        (torch.full((5, 3), 7.25), torch.full((5,), 3)), torch.float32, torch.device("cpu")
    )
    example = data.dummy_batch(records)
    assert not bool((example.inputs == 7.25).any())
    assert not bool((example.targets == 3).any())
