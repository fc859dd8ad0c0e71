"""One step: in which order it acts, what it changes, and what a failure leaves behind."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import nn

import privada as pv
from privada.accounting import epsilon_of
from privada.train.state import TrainState
from privada.train.step import first_state, prepare, release_gradient, take_step

ROWS = 40


def made(method=None, **given):
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(ROWS, 3, generator=generator), torch.zeros(ROWS, 1)
    settings = {"batch_size": 10, "steps": 4, "noise_multiplier": 1.0, "delta": 1e-3} | given
    torch.manual_seed(1)
    method = method or pv.methods.DPAdam(lr=0.1)
    return pv.Trainer(nn.Linear(3, 1), nn.MSELoss(), data, method=method, **settings)._run


def taps(run, monkeypatch):
    """Return a list of the acts of a query, in the order in which they are done."""
    acts = []
    for name in ("pay", "draw", "clipped_sum", "add_noise"):
        true = getattr(run.gradients, name)

        def tapped(*args, name=name, true=true):
            acts.append(name)
            return true(*args)

        monkeypatch.setattr(run.gradients, name, tapped)
    return acts


def test_a_release_is_paid_then_drawn_then_clipped_then_noised(monkeypatch):
    run = made()
    acts = taps(run, monkeypatch)
    take_step(run, first_state(run))
    assert acts == ["pay", "draw", "clipped_sum", "add_noise"]


def test_a_step_returns_a_new_state_and_leaves_the_old_one(monkeypatch):
    run = made()
    before = first_state(run)
    after, lr = take_step(run, before)
    assert (before.step, before.releases) == (0, 0)
    assert (after.step, after.releases, lr) == (1, 1, 0.1)
    assert after.rule is not before.rule
    with pytest.raises(FrozenInstanceError):
        after.step = 7


def test_the_same_state_and_bits_give_the_same_step():
    found = []
    for _ in range(2):
        run = made(seed=3)
        state = first_state(run)
        for _ in range(3):
            state, _ = take_step(run, state)
        found.append((run.parameters.read(), state.rule["first"]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_method_with_two_releases_a_step_makes_two(monkeypatch):
    run = made(pv.methods.ADADP(lr=0.1, tolerance=1.0))
    acts = taps(run, monkeypatch)
    state, _ = take_step(run, first_state(run))
    assert state.releases == 2
    assert acts.count("pay") == acts.count("add_noise") == 2


@pytest.mark.parametrize("act", ["pay", "draw", "clipped_sum", "add_noise"])
def test_a_step_that_fails_changes_nothing_and_what_was_paid_is_kept(monkeypatch, act):
    run = made()
    before, parameters = first_state(run), run.parameters.read()

    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run.gradients, act, fail)
        with pytest.raises(KeyboardInterrupt):
            take_step(run, before)
    assert torch.equal(run.parameters.read(), parameters)
    run.gradients.account.refund_unused()
    paid = sum(run.ledger.totals().values())
    assert paid == (0 if act == "pay" else 1)
    state, _ = take_step(run, before)
    assert state.step == 1
    run.gradients.account.refund_unused()
    spent = epsilon_of(run.ledger.totals(), run.charges.delta)
    assert run.charges.epsilon_after(1, exactly=True) == pytest.approx(spent)


def test_preparing_is_done_once_and_its_releases_are_numbered_first():
    moments = pv.preconditioning.private_second_moments(3.0, rounds=2)
    run = made(pv.methods.PASAN(lr=0.1, preconditioner=moments))
    state = prepare(run, first_state(run))
    assert state.prepared
    assert state.releases == run.mechanism.releases.before(0) > 0
    assert prepare(run, state) is state
    after, _ = take_step(run, state)
    assert after.releases == state.releases + 1


def test_a_public_term_that_fails_is_found_before_anything_is_paid(monkeypatch):
    run = made(public_term=lambda model: model.weight.square().sum())
    acts = taps(run, monkeypatch)

    def fail(*args):
        raise pv.ModelError("a term that fails")

    monkeypatch.setattr(type(run.settings.objective), "gradient", fail)
    with pytest.raises(pv.ModelError, match="a term that fails"):
        release_gradient(run, first_state(run))
    assert acts == []
    assert run.ledger.charges() == ()


def test_a_preconditioner_that_fails_after_the_release_leaves_it_on_the_bill(monkeypatch):
    run = made(pv.methods.ScaleThenPrivatise(lr=0.1))
    state = first_state(run)
    true = type(run.parts.preconditioner).seen

    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(run.parts.preconditioner), "seen", fail)
        with pytest.raises(KeyboardInterrupt):
            take_step(run, state)
    assert type(run.parts.preconditioner).seen is true
    for _ in range(4):
        state, _ = take_step(run, state)
    assert run.charges.epsilon_after(4, exactly=True) == pytest.approx(run.charges.epsilon())


def test_a_state_is_of_plain_values():
    state = replace(TrainState(), step=3)
    assert (state.step, state.releases, state.prepared, state.finished) == (3, 0, False, False)
    assert state.rule == state.controller == state.clip == state.preconditioner == {}
