"""Runs whose noise follows their releases: charged as it is added, within the budget to the end."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.accounting import epsilon_of, events
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError
from tests.taps import interrupt, tap_releases

BUDGET = pv.Budget(2.0, 1e-4)
FOLLOWING = {
    "adp-sgd": lambda: pv.methods.ADPSGD(lr=1.0, alpha="adaptive"),
    "adp-sgd, denoised": lambda: pv.methods.ADPSGD(lr=1.0, alpha="adaptive", denoised=True),
    "dp-adam, moment": lambda: pv.methods.DPAdam(lr=0.1, schedule=pv.noise.follow_moment(0.9)),
    "dp-sgd, descent": lambda: pv.methods.DPSGD(
        lr=0.5, schedule=pv.noise.when_descent_stops(window=10)
    ),
    "adadp": lambda: pv.methods.ADADP(lr=0.1, schedule=pv.noise.follow_norm()),
    "pasan": lambda: pv.methods.PASAN(
        lr=0.5, second_moments=1.0, radius=5.0, schedule=pv.noise.follow_norm()
    ),
}


def problem(n=400, d=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).astype(np.float32)
    return x, (x @ rng.normal(size=(d, classes))).argmax(axis=1)


def trainer(method=None, **changes):
    model = nn.Linear(5, 3)
    for each in model.parameters():
        nn.init.zeros_(each)
    settings = {"batch_size": 20, "steps": 200, "budget": BUDGET, "seed": 3} | changes
    method = pv.methods.ADPSGD(lr=1.0, alpha="adaptive") if method is None else method
    return pv.Trainer(model, nn.CrossEntropyLoss(), problem(), method=method, **settings)


def made(run):
    """Return the multipliers of the releases that were made."""
    return run._run.charges.multipliers


@pytest.fixture(params=[name for name in FOLLOWING if name != "pasan"])
def method(request):
    return FOLLOWING[request.param]()


def test_budget_and_steps_end_together(method):
    run = trainer(method).fit()
    fitted = method.schedule != FOLLOWING["dp-sgd, descent"]().schedule
    assert run.steps_done == 200 if fitted else 100 < run.steps_done <= 200
    assert 0.97 * BUDGET.epsilon < run.epsilon() <= BUDGET.epsilon
    assert run.ledger.adaptive
    assert len(set(made(run))) > 3  # it has followed something


def test_what_is_added_is_what_is_charged(method, monkeypatch):
    seen = []
    tap_releases(monkeypatch, seen=seen.append)
    run = trainer(method, steps=60).fit()
    added = [release.noise_std for release in seen]  # the clip norm is 1
    charged = [events.multiplier(release.receipt.event) for release in seen]
    np.testing.assert_allclose(added, charged, rtol=1e-12)
    assert sorted(charged) == sorted(
        multiplier
        for event, count in run.ledger.totals().items()
        for multiplier in [events.multiplier(event)] * count
    )
    assert made(run) == charged


def test_the_noise_follows_the_releases_before_it_alone(method, monkeypatch):
    """Two runs with the same releases up to some step have the same noise up to the next."""
    budget = pv.Budget(100.0, 1e-4)  # so little noise that gradients show
    run, other = (trainer(method, steps=80, budget=budget) for _ in range(2))
    for _ in range(10):
        run.step()
        other.step()
    assert made(run) == made(other)
    before = len(made(run))
    with torch.no_grad():  # from here on gradients, and so releases, differ
        other.model.weight.mul_(-3)
    for each in (run, other):
        each.step()
    assert made(run)[before] == made(other)[before]
    assert repr(run._state.noise) != repr(other._state.noise)


def test_the_filter_counts_at_least_what_composition_does(method):
    run = trainer(method, steps=60).fit()
    assert run.epsilon() > epsilon_of(run.ledger.totals(), BUDGET.delta)


def test_the_history_has_the_noise_of_each_step_and_its_epsilon_never_falls(method):
    run = trainer(method, steps=60).fit()
    history = run.history
    assert {each.noise_multiplier for each in history} <= set(made(run))
    assert len({each.noise_multiplier for each in history}) > 1
    assert all(a.epsilon <= b.epsilon for a, b in pairwise(history))
    assert history[-1].epsilon == pytest.approx(run.epsilon(), rel=1e-9)


def test_the_statement_says_how_it_was_counted(method):
    statement = trainer(method, steps=40).fit().statement()
    assert (statement.kind, statement.accountant) == ("adaptive", "filter")
    assert "Renyi filter" in str(statement)
    assert statement.run_epsilon <= BUDGET.epsilon


def test_a_planned_ledger_is_refused_before_anything_is_charged():
    ledger = pv.Ledger(None, BUDGET, kind="planned")
    with pytest.raises(LedgerError, match=r"adaptive ledger.*pv\.Ledger\(path, budget\)"):
        trainer(ledger=ledger)
    assert ledger.charges() == ()


def test_a_run_on_a_shared_ledger_keeps_to_its_own_budget_and_to_the_ledgers():
    ledger = pv.Ledger(None, pv.Budget(2.3, 1e-4))
    first = trainer(ledger=ledger).fit()
    assert first.statement().run_epsilon <= BUDGET.epsilon
    second = trainer(ledger=ledger).fit()  # of which the ledger leaves less than its own budget
    assert second.steps_done == 200
    assert made(second)[0] > made(first)[0]
    assert 2.2 < ledger.epsilon() <= 2.3
    with pytest.raises(BudgetExceeded):
        trainer(ledger=ledger, noise_multiplier=0.5, budget=None, delta=1e-4).fit()


def test_without_a_budget_the_noise_follows_and_is_not_fitted():
    run = trainer(budget=None, noise_multiplier=3.0, delta=1e-4, steps=50).fit()
    assert run.steps_done == 50
    assert made(run)[0] == pytest.approx(3.0, rel=0.006)
    assert run.epsilon() > 0


def test_the_steps_that_a_budget_pays_for_are_predicted():
    """With given noise the run ends with the ledger's budget, about where it was expected to."""
    ledger = pv.Ledger(None, BUDGET)
    run = trainer(budget=None, noise_multiplier=2.0, delta=BUDGET.delta, ledger=ledger, steps=9_000)
    first = run.expected_steps  # from public quantities alone
    for _ in range(20):
        run.step()
    later = run.expected_steps  # from what was released, too
    run.fit()
    assert run.steps_done < 9_000
    assert 0.5 < run.steps_done / first < 2
    assert run.steps_done == pytest.approx(later, rel=0.15)
    assert 0.99 * BUDGET.epsilon < ledger.epsilon() <= BUDGET.epsilon


def test_a_budget_of_its_own_is_expected_to_last_for_all_steps(method):
    assert trainer(method, steps=60).expected_steps == 60
    assert trainer(pv.methods.DPSGD(lr=0.1), steps=60).expected_steps == 60


class FallsUnforeseen(pv.noise.FollowNorm):
    """A schedule whose noise falls after 40 releases, which it does not foresee."""

    def factor(self, state):
        return 1.0 if state["count"] < 40 else 0.7

    def init(self):
        return {"count": 0}

    def seen(self, release, state):
        return {"count": state["count"] + 1}

    def forecast(self, state, count, outlook):
        return [(count, self.factor(state))][:count]

    def paced(self, level, fitted):
        return level


def test_a_run_ends_with_its_budget_where_the_forecast_is_wrong():
    """Much less noise than forecast: the budget ends first, and what there is counts."""
    run = trainer(pv.methods.DPSGD(lr=0.1, schedule=FallsUnforeseen())).fit()
    assert 40 < run.steps_done < 150
    assert 0.9 * BUDGET.epsilon < run.epsilon() <= BUDGET.epsilon
    assert "then ended" in run.statement().progress
    with pytest.raises(ArgumentError, match="given up by finish"):
        run.step()


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(method, tmp_path):
    ledger, place = tmp_path / "ledger", tmp_path / "run.pt"
    whole = trainer(method, steps=60).fit()
    first = trainer(method, steps=60, ledger=ledger)
    for _ in range(25):
        first.step()
    first.save(place)
    again = trainer(method, steps=60, ledger=ledger, resume=place).fit()
    assert made(again) == made(whole)
    assert again.epsilon() == pytest.approx(whole.epsilon(), rel=1e-9)
    assert again.ledger.totals() == whole.ledger.totals()
    for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_steps_that_are_taken_again_are_paid_again_within_the_budget(tmp_path):
    ledger, place = tmp_path / "ledger", tmp_path / "run.pt"
    first = trainer(ledger=ledger)
    for _ in range(5):
        first.step()
    first.save(place)
    for _ in range(60):
        first.step()
    first.statement()
    lost = pv.Ledger(ledger).epsilon()
    again = trainer(ledger=ledger, resume=place).fit()
    assert again.epsilon() <= BUDGET.epsilon
    assert sum(again.ledger.totals().values()) == 60 + again.steps_done
    assert again.steps_done == 200  # with more noise than the first would have had
    assert lost < again.epsilon()


def test_an_interrupted_step_is_counted_and_taken_again(monkeypatch):
    run = trainer(FOLLOWING["adadp"](), steps=40)
    for _ in range(3):
        run.step()
    with monkeypatch.context() as patch:
        tap_releases(patch, before=interrupt(2))
        with pytest.raises(KeyboardInterrupt):
            run.step()
    assert len(made(run)) == 6
    run.fit()
    assert run.steps_done == 40
    assert sum(run.ledger.totals().values()) == 81
    assert run.history[-1].epsilon == pytest.approx(run.epsilon(), rel=1e-9)


def test_a_copy_pays_for_itself_within_the_budget_of_both():
    run = trainer(steps=60)
    for _ in range(10):
        run.step()
    other = copy.deepcopy(run)
    for each in (run, other):
        each.fit()
    assert run.epsilon() <= BUDGET.epsilon


def test_a_search_refuses_candidates_whose_charges_are_not_known():
    def recipe(lr):
        return pv.selection.Candidate(
            nn.Linear(5, 3), nn.CrossEntropyLoss(), FOLLOWING["adp-sgd"](), batch_size=20, steps=10
        )

    with pytest.raises(ArgumentError, match="noise follows the releases"):
        pv.selection.select(recipe, problem(), space=[{"lr": 0.1}, {"lr": 0.2}], budget=BUDGET)


def test_a_fixed_schedule_can_be_given_to_any_method():
    factors = tuple(1 + k / 10 for k in range(20))
    method = pv.methods.DPAdam(lr=0.1, schedule=pv.noise.Schedule(factors))
    run = trainer(method, steps=20).fit()
    found = [each.noise_multiplier / run.noise_multiplier for each in run.history]
    np.testing.assert_allclose(found, factors)
    assert not run.ledger.adaptive


@pytest.mark.parametrize("wrong", ["adaptive", 3, pv.noise.FollowNorm])
def test_other_schedules_are_refused(wrong):
    with pytest.raises(ArgumentError, match="schedule"):
        pv.methods.DPSGD(lr=0.1, schedule=wrong)


def test_alpha_is_a_function_or_adaptive():
    with pytest.raises(ArgumentError, match="alpha"):
        pv.methods.ADPSGD(alpha="adam")
    with pytest.raises(ArgumentError, match="divisor"):
        pv.methods.ADPSGD(alpha="adaptive", divisor=lambda t: 1.0)
