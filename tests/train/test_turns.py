"""Runs in which units take part in turns: what is paid, and when a turn is cut off."""

import copy
import math
import os
import pickle

import numpy as np
import pytest
import torch

import privada as pv
from privada.accounting import epsilon_of, events
from privada.core.errors import ArgumentError, BudgetExceeded
from privada.noise.banded import BandedNoise
from privada.participation.cyclic import DealtSampler
from tests.taps import tap_releases

COUNT, BATCH, PARTS = 240, 12, 4
RATE = BATCH * PARTS / COUNT


def problem(count=COUNT):
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(count, 3, generator=generator)
    return rows, rows.sum(dim=1, keepdim=True)


def trainer(steps=10, *, method=None, bands=PARTS, parts=PARTS, data=None, **given):
    settings = {"noise_multiplier": 1.3, "delta": 1e-4, "seed": 5, **given}
    torch.manual_seed(1)
    return pv.Trainer(
        torch.nn.Linear(3, 1), torch.nn.MSELoss(), problem() if data is None else data,
        method=method or pv.methods.DPSGD(lr=0.1), batch_size=BATCH, steps=steps,
        sampling=pv.participation.CyclicPoisson(parts), noise=pv.noise.Banded(bands), **settings,
    )  # fmt: skip


@pytest.fixture
def watch(monkeypatch):
    """Note which deal and which step of it each draw is of, and who was drawn."""
    seen, restarts, own = [], [], DealtSampler.draw

    def draw(self, step, rng):
        found = own(self, step, rng)
        seen.append((id(self.members), step, found))
        return found

    def restart(self):
        restarts.append(len(seen))
        begin(self)

    begin = BandedNoise.restart
    monkeypatch.setattr(DealtSampler, "draw", draw)
    monkeypatch.setattr(BandedNoise, "restart", restart)
    return seen, restarts


@pytest.mark.parametrize(("steps", "turns"), [(1, 1), (4, 1), (5, 2), (10, 3), (12, 3)])
def test_a_turn_of_all_parts_is_one_charge(steps, turns):
    made = trainer(steps)
    assert made.planned() == {events.poisson(RATE, 1.3): turns}
    made.fit()
    assert made.ledger.totals() == {events.poisson(RATE, 1.3): turns}
    assert made.epsilon() == pytest.approx(epsilon_of({events.poisson(RATE, 1.3): turns}, 1e-4))


def test_the_first_step_pays_for_its_turn_before_anybody_is_drawn(watch):
    seen, _ = watch
    made = trainer(10)
    paid = []
    own = made.gradients.account.pay_in_turns

    def pay(*args):
        paid.append(len(seen))
        return own(*args)

    made.gradients.account.pay_in_turns = pay
    made.fit()
    assert paid == [0, 4, 8]


def test_noise_is_calibrated_to_the_turns():
    budget = pv.Budget(2.0, 1e-4)
    made = trainer(20, noise_multiplier=None, delta=None, budget=budget)
    own = epsilon_of({events.poisson(RATE, made.noise_multiplier): 5}, 1e-4)
    assert 1.98 < own <= 2.0
    assert made.fit().epsilon() == pytest.approx(own)


def test_units_keep_their_part_for_the_whole_run(watch):
    seen, restarts = watch
    trainer(30).fit()
    assert len({deal for deal, _, _ in seen}) == 1
    assert [step for _, step, _ in seen] == list(range(30))
    turns = [[] for _ in range(COUNT)]
    for _, step, drawn in seen:
        for unit in drawn:
            turns[unit].append(step)
    gaps = np.concatenate([np.diff(each) for each in turns])
    assert gaps.size
    assert (gaps % PARTS == 0).all()
    assert restarts[-1] == 0  # the noise begins with the first step


def test_persons_take_turns_with_all_their_rows(watch):
    seen, _ = watch
    groups = np.arange(COUNT) // 3
    made = trainer(12, groups=groups, rows_per_unit=3).fit()
    assert {len(each) <= COUNT // 3 for _, _, each in seen} == {True}
    assert made.ledger.unit == "person (all their rows)"
    assert max(unit for _, _, drawn in seen for unit in drawn) < COUNT // 3


def interrupt_a_step(made, monkeypatch):
    """Take a step whose sum is interrupted, after it was paid for and drawn."""
    own = made.gradients.clipped_sum

    def interrupted(*args):
        monkeypatch.setattr(made.gradients, "clipped_sum", own)
        raise KeyboardInterrupt

    monkeypatch.setattr(made.gradients, "clipped_sum", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.step()


def test_a_step_that_is_taken_again_is_a_turn_of_its_own(watch, monkeypatch):
    seen, restarts = watch
    made = trainer(10)
    for _ in range(6):
        made.step()
    before = made._state
    interrupt_a_step(made, monkeypatch)
    assert made._state == before
    made.step()
    deals = [deal for deal, _, _ in seen]
    assert len(set(deals[:7])) == 1
    assert deals[7] != deals[0]
    assert seen[7][1] == 0  # the first step of its deal
    assert restarts[-1] == 7
    while made.steps_done < 10:
        made.step()
    # 6 steps are 2 turns, of which one was cut off; the 4 steps that were left are a third
    assert sum(made.ledger.totals().values()) == 3
    assert made.history[-1].epsilon >= made.epsilon() - 1e-9


def test_a_budget_is_kept_when_a_turn_is_cut_off(monkeypatch):
    made = trainer(12, noise_multiplier=None, delta=None, budget=pv.Budget(2.0, 1e-4))
    for _ in range(5):
        made.step()
    interrupt_a_step(made, monkeypatch)
    for _ in range(PARTS):  # two turns are gone, one is left
        made.step()
    with pytest.raises(BudgetExceeded):
        made.step()
    assert made.epsilon() <= 2.0


@pytest.mark.parametrize(("saved", "turns"), [(4, 3), (8, 3), (6, 4), (1, 4), (11, 4)])
def test_a_run_that_is_resumed_begins_a_new_turn(saved, turns, tmp_path, watch):
    _, restarts = watch
    path = tmp_path / "run.pt"
    first = trainer(12, ledger=tmp_path / "l", seed=None)
    for _ in range(saved):
        first.step()
    first.save(path)
    restarts.clear()
    second = trainer(12, ledger=tmp_path / "l", seed=None, resume=path).fit()
    assert restarts
    assert second.steps_done == 12
    assert sum(second.ledger.totals().values()) == turns
    assert second.history[-1].epsilon >= second.epsilon() - 1e-9
    assert second.epsilon() == pytest.approx(epsilon_of({events.poisson(RATE, 1.3): turns}, 1e-4))


def test_a_schedule_in_turns_is_counted_as_paid_however_often_a_run_is_resumed(tmp_path):
    """Turns begin anew at 6 and at 11: other steps share one, at the least of their noise."""
    ends, path = [6, 11, 16], tmp_path / "run.pt"
    settings = {"method": pv.methods.ADPSGD(lr=0.5), "noise_multiplier": 2.0}
    for end in ends:
        resumed = {"resume": path} if path.exists() else {}
        made = trainer(16, ledger=tmp_path / "l", seed=None, **settings, **resumed)
        while made.steps_done < end:
            made.step()
        made.save(path)  # which gives back what was reserved
        spent = epsilon_of(made.ledger.totals(), 1e-4)
        assert made.history[-1].epsilon == pytest.approx(spent)
        assert all(np.diff([each.epsilon for each in made.history]) >= 0)
    factors = settings["method"].parts_of(16).schedule.factors
    starts = [0, 4, 6, 10, 11, 15]
    expected = sorted(2.0 * min(factors[k : k + PARTS]) for k in starts)
    paid = sorted(events.multiplier(event) for event in made.ledger.totals().elements())
    assert paid == pytest.approx(expected)


def test_in_the_middle_of_a_turn_the_run_costs_what_its_own_turns_do():
    """With other noise in each step, turns that began elsewhere would cost something else."""
    method = pv.methods.ADPSGD(lr=0.5)
    ledger = pv.Ledger(None, pv.Budget(50.0, 1e-4))  # adaptive: no plan is declared
    made = trainer(12, method=method, noise_multiplier=2.0, delta=None, ledger=ledger)
    whole = epsilon_of(made.planned(), 1e-4)
    for _ in range(12):
        made.step()
        assert made.statement().run_epsilon == pytest.approx(whole)


@pytest.mark.parametrize(("saved", "steps"), [(4, 12), (6, 10), (7, 11)])
def test_a_resumed_run_keeps_to_its_budget(saved, steps, tmp_path):
    path = tmp_path / "run.pt"
    settings = {"noise_multiplier": None, "delta": None, "budget": pv.Budget(2.0, 1e-4)}
    first = trainer(12, ledger=tmp_path / "l", seed=None, **settings)
    for _ in range(saved):
        first.step()
    first.save(path)
    second = trainer(12, ledger=tmp_path / "l", seed=None, resume=path, **settings)
    assert second.expected_steps == steps  # a turn that was cut off is not gone on with
    for _ in range(steps - saved):
        second.step()
    assert sum(second.ledger.totals().values()) == 3
    assert second.epsilon() <= 2.0


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda query: pickle.loads(pickle.dumps(query))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_has_turns_and_noise_of_its_own(duplicate, tmp_path):
    made = trainer(12, ledger=tmp_path / "l")
    made.step()
    query = made.gradients
    other = duplicate(query)
    assert other._turns is not query._turns
    assert other._noise is not query._noise
    assert not other._turns._receipts
    assert len(query._turns._receipts) == PARTS - 1
    assert other._noise._past is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_pays_for_a_turn_of_its_own(tmp_path):
    ledger = pv.Ledger(tmp_path / "l", pv.Budget(50.0, 1e-4))  # adaptive: nothing is planned
    made = trainer(12, ledger=ledger, seed=None)
    made.step()
    child = os.fork()
    if child == 0:
        try:
            made.step()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert sum(ledger.totals().values()) == 2
    made.fit()
    assert sum(ledger.totals().values()) == 4


def test_the_schedule_has_one_noise_for_each_turn(monkeypatch):
    method = pv.methods.ADPSGD(lr=0.5)
    made = trainer(10, method=method, noise_multiplier=2.0)
    releases = []
    tap_releases(monkeypatch, releases.append)
    made.fit()
    factors = method.parts_of(10).schedule.factors
    expected = [2.0 * min(factors[k : k + PARTS]) for k in (0, 4, 8)]
    multipliers = sorted(events.multiplier(event) for event in made.ledger.totals().elements())
    assert multipliers == pytest.approx(sorted(expected))
    paid = [events.multiplier(each.receipt.event) for each in releases]
    assert paid == pytest.approx([expected[k // PARTS] for k in range(10)])


def test_two_releases_a_step_are_two_places_in_the_turn(watch):
    seen, _ = watch
    made = trainer(6, method=pv.methods.ADADP(lr=0.1))
    made.fit()
    assert [step for _, step, _ in seen] == list(range(12))
    assert sum(made.ledger.totals().values()) == 3


def test_second_moments_have_noise_of_their_own():
    made = trainer(6)
    assert not isinstance(made._run.second_moments._noise, BandedNoise)
    query = made.gradients
    with pytest.warns(DeprecationWarning, match="SecondMomentQuery"):
        query.squares(1.0, 5.0, COUNT)
    assert query._noise._made == 0


def test_releases_by_hand_pay_for_a_turn_each():
    made = trainer(6, ledger=pv.Ledger(None))
    for number in (0, 1):
        made.gradients.release(pv.preconditioning.isotropic(), 1.3, number)
    assert sum(made.ledger.totals().values()) == 2


def test_noise_that_follows_the_releases_is_refused():
    with pytest.raises(ArgumentError, match="fixed beforehand"):
        trainer(6, method=pv.methods.ADPSGD(lr=0.5, alpha="adaptive"),
                noise_multiplier=None, delta=None, budget=pv.Budget(2.0, 1e-4))  # fmt: skip


def test_turns_that_are_too_close_are_refused_with_the_remedy():
    with pytest.raises(ArgumentError, match=r"CyclicPoisson\(8\)"):
        trainer(6, bands=8)


def test_a_loop_of_ones_own_takes_turns():
    net = torch.nn.Linear(3, 1)
    loop = pv.PrivateLoop(
        net, torch.optim.SGD(net.parameters(), lr=0.1), torch.nn.MSELoss(), problem(),
        batch_size=BATCH, steps=6, noise_multiplier=1.3, delta=1e-4, clip=1.0,
        sampling=pv.participation.CyclicPoisson(3), noise=pv.noise.Banded(3),
    )  # fmt: skip
    model, optimizer, criterion, loader = loop
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
    assert sum(loop.ledger.totals().values()) == 2


def test_the_statement_says_how_units_and_noise_hang_together():
    said = " ".join(str(trainer(6, seed=None).fit().statement()).split())
    assert "dealt to one of 4 parts" in said
    assert "4 steps, a turn of all parts, are charged as one release" in said
    assert "correlated over 4 steps" in said


def test_correlated_noise_leaves_less_in_the_model():
    """With gradients of zero the model is the sum of the noise: 40 runs, ratio of variances."""

    def moved(**given):
        data = torch.zeros(COUNT, 3), torch.zeros(COUNT, 1)
        made = pv.Trainer(
            torch.nn.Linear(3, 1, bias=False), torch.nn.MSELoss(), data,
            method=pv.methods.DPSGD(lr=1.0), batch_size=BATCH, steps=24, noise_multiplier=1.0,
            delta=1e-4, **given,
        )  # fmt: skip
        start = made.model.weight.detach().clone()
        return (made.fit().model.weight - start).detach().numpy() * BATCH

    parts = 6
    turns = {"sampling": pv.participation.CyclicPoisson(parts)}
    own = np.concatenate([moved(**turns, noise=pv.noise.Banded(parts)) for _ in range(40)])
    std = pv.noise.Banded(parts).relative_stds(24)[-1]
    # 120 normals: the interval has a false alarm in a million
    assert 0.5 < (own**2).mean() / std**2 < 1.75
    assert std < 0.6 * math.sqrt(24)
