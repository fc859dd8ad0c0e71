"""What each method is charged: the events, and refusal when the budget ends in the middle."""

from collections import Counter

import numpy as np
import pytest
import torch

import privada as pv
from privada.accounting import events
from tests.methods.problem import CLIP, PUBLIC, RECORDS, SIGMA, SIZE, flat, trainer
from tests.taps import interrupt, tap_releases

STEPS = 6
ONE = events.gaussian(SIGMA)  # every record in every step
MOMENTS = pv.preconditioning.known_moments(torch.arange(1.0, SIZE + 1))
FEATURES = pv.preconditioning.by_feature([1.0, 0.5, 0.2, 0.1])

# every named method, with how often it asks for a release in six steps
METHODS = {
    "dp-sgd": ({"lr": 0.1}, {ONE: 6}),
    "dp-momentum": ({"lr": 0.1}, {ONE: 6}),
    "dp-adam": ({}, {ONE: 6}),
    "dp-adam-wosm": ({}, {ONE: 6}),
    "dp-rmsprop": ({"lr": 0.01}, {ONE: 6}),
    "dp-adagrad": ({"lr": 0.1}, {ONE: 6}),
    "adadps": ({"lr": 0.1, "preconditioner": FEATURES}, {ONE: 6}),
    "dp-r-pub": ({"lr": 0.01, "public": PUBLIC}, {ONE: 6}),
    "dp-adam-pub": ({"lr": 0.01, "public": PUBLIC}, {ONE: 6}),
    "pda-dpmd": ({"lr": 0.1, "public": PUBLIC}, {ONE: 6}),
    "pdp-sgd": ({"lr": 0.1, "public": PUBLIC, "dimensions": 3}, {ONE: 6}),
    "pasan": ({"lr": 0.1, "preconditioner": MOMENTS}, {ONE: 6}),
    "pagan": ({"lr": 0.1, "preconditioner": MOMENTS}, {ONE: 6}),
    "adadp": ({"lr": 0.1}, {ONE: 12}),
    "adp-sgd": (
        {"lr": 1.0},
        {events.gaussian(SIGMA * (20 + t) ** 0.25): 1 for t in range(1, STEPS + 1)},
    ),
    "dp-adam-bc": ({}, {ONE: 6}),
    "scale-then-privatise": ({}, {ONE: 6}),
    "dp2-rmsprop": ({"lr": 0.1, "adaptive_lr": 0.1, "plain": 2, "adaptive": 2}, {ONE: 6}),
    # a seventh of the budget is for the second moments, as much as for each of six steps
    "newton": ({"share": 1 / 7}, {ONE: 7}),
}


def made(name):
    return pv.methods.get(name)(clip=CLIP, **METHODS[name][0])


def test_micro_batches_double_the_noise_for_the_same_charge():
    """24 records in groups of 4: sensitivity 2C, divided by the number of groups."""
    options = {"lr": 0.1, "preconditioner": pv.preconditioning.isotropic(), "clip": CLIP}
    run = trainer(pv.methods.AdaDPS(**options, microbatch=4))
    release = run.gradients.release(pv.preconditioning.isotropic(), SIGMA)
    assert release.noise_std == pytest.approx(SIGMA * 2 * CLIP)
    assert release.batch_size == RECORDS / 4
    assert run.ledger.totals() == {ONE: 1}
    assert "microbatch=4" in run.method.describe()
    with pytest.raises(pv.ArgumentError, match="Expected microbatch"):
        pv.methods.AdaDPS(**options, microbatch=0)


def test_every_method_is_here():
    assert set(METHODS) == set(pv.methods.names())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_charged_for_every_release_and_for_nothing_else(name):
    run = trainer(made(name), STEPS).fit()
    charged = {events.encode(event): n for event, n in run.ledger.totals().items()}
    expected = {events.encode(event): n for event, n in METHODS[name][1].items()}
    if name in ("adp-sgd", "newton"):  # roots may differ in the last bit
        assert sum(charged.values()) == sum(expected.values())
        found, wanted = (
            sorted(events.multiplier(each) for each in Counter(tally).elements())
            for tally in (run.ledger.totals(), METHODS[name][1])
        )
        assert found == pytest.approx(wanted, rel=1e-12)
    else:
        assert charged == expected
    assert np.isfinite(flat(run.model)).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_budget_is_kept_by_every_method(name):
    budget = pv.Budget(3.0, 1e-3)
    run = trainer(made(name), STEPS, noise_multiplier=None, delta=None, budget=budget).fit()
    assert 2.9 < run.epsilon() <= 3.0


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_method_goes_on_as_if_it_had_not_stopped(name, tmp_path):
    whole = trainer(made(name), STEPS, seed=3).fit()
    settings = {"seed": 3, "ledger": tmp_path / "ledger"}
    first = trainer(made(name), STEPS, **settings)
    for _ in range(3):
        first.step()
    first.save(tmp_path / "run.pt")
    again = trainer(made(name), STEPS, resume=tmp_path / "run.pt", **settings).fit()
    np.testing.assert_allclose(flat(again.model), flat(whole.model), rtol=1e-12)
    assert again.ledger.totals() == whole.ledger.totals()
    assert [h.lr for h in again.history] == [h.lr for h in whole.history]


# ---------------------------------------------------------------------- ADADP's two releases


def test_adadp_is_refused_in_the_middle_of_an_iteration_and_moves_nothing(tmp_path):
    """The ledger has room for five releases: two iterations and the first half of a third."""
    events_of = {events.gaussian(SIGMA): 5}
    room = pv.accounting.epsilon_of(events_of, 1e-3) * (1 + 1e-9)
    ledger = pv.Ledger(tmp_path / "ledger", pv.Budget(room, 1e-3), kind="planned")
    method = pv.methods.ADADP(lr=0.1, tolerance=1.0, clip=CLIP)
    run = trainer(method, STEPS)
    ledger.declare({run.gradients.account.run: events_of})
    run.gradients.account.ledger = (
        ledger  # a run that starts on it is refused for the whole of its plan
    )
    for _ in range(2):
        run.step()
    before, rates = flat(run.model), len(run.history)
    with pytest.raises(pv.BudgetExceeded):
        run.step()
    np.testing.assert_array_equal(flat(run.model), before)
    assert len(run.history) == rates
    assert sum(ledger.totals().values()) == 5  # the first release of the third was made and paid


def test_a_run_that_cannot_pay_for_both_releases_is_refused_before_it_starts(tmp_path):
    one = pv.accounting.epsilon_of({events.gaussian(SIGMA): STEPS}, 1e-3) * (1 + 1e-9)
    ledger = pv.Ledger(tmp_path / "ledger", pv.Budget(one, 1e-3), kind="planned")
    trainer(pv.methods.DPSGD(lr=0.1, clip=CLIP), STEPS, ledger=ledger)
    with pytest.raises(pv.BudgetExceeded, match="12 releases"):
        trainer(pv.methods.ADADP(lr=0.1, clip=CLIP), STEPS, ledger=ledger)
    assert ledger.charges() == ()


def test_an_exception_between_the_releases_leaves_the_model_as_it_was(monkeypatch):
    run = trainer(pv.methods.ADADP(lr=0.1, tolerance=1.0, clip=CLIP), STEPS).step()
    before = flat(run.model)
    tap_releases(monkeypatch, before=interrupt(2))
    with pytest.raises(KeyboardInterrupt):
        run.step()
    np.testing.assert_array_equal(flat(run.model), before)
    # what was released in vain is in the history's epsilon, and the run takes all its steps
    run.fit()
    assert run.steps_done == STEPS
    assert sum(run.ledger.totals().values()) == 2 * STEPS + 1
    assert run.history[-1].epsilon == pytest.approx(run.epsilon(), rel=1e-12)


def test_moments_that_are_interrupted_are_counted_and_asked_for_again(monkeypatch):
    run, stop = with_private_moments(), interrupt(3)
    ask = run._run.second_moments.release

    def release(*args):
        stop()
        return ask(*args)

    monkeypatch.setattr(run._run.second_moments, "release", release)
    with pytest.raises(KeyboardInterrupt):
        run.step()
    run.fit()
    assert run.ledger.totals() == {events.gaussian(8.0): 2 + 4, ONE: STEPS}
    assert run.history[-1].epsilon == pytest.approx(run.epsilon(), rel=1e-12)


# ---------------------------------------------------------------------- Algorithm 3's rounds


def with_private_moments(noise=8.0, **settings):
    moments = pv.preconditioning.private_second_moments(noise_multiplier=noise, rounds=4)
    method = pv.methods.PAGAN(lr=0.1, preconditioner=moments, clip=CLIP)
    return trainer(method, STEPS, **settings)


def test_private_moments_are_charged_before_the_steps():
    run = with_private_moments().fit()
    assert run.ledger.totals() == {events.gaussian(8.0): 4, ONE: STEPS}
    first = run.ledger.charges()[0]
    assert events.multiplier(first.event) == 8.0
    assert any("releases that were charged" in each for each in run.statement().assumptions)


def test_the_noise_of_the_steps_makes_room_for_private_moments():
    budget = pv.Budget(2.0, 1e-3)
    options = {"noise_multiplier": None, "delta": None, "budget": budget}
    run = with_private_moments(**options).fit()
    assert 1.95 < run.epsilon() <= 2.0
    known = trainer(pv.methods.PAGAN(lr=0.1, preconditioner=MOMENTS, clip=CLIP), STEPS, **options)
    assert run.noise_multiplier > known.noise_multiplier


def test_moments_that_use_up_the_budget_are_refused_with_words():
    with pytest.raises(pv.BudgetExceeded, match="more noise, or make fewer"):
        with_private_moments(noise=0.1, noise_multiplier=None, delta=None,
                             budget=pv.Budget(1.0, 1e-3))  # fmt: skip


def test_private_moments_are_not_asked_for_again_after_a_stop(tmp_path):
    settings = {"seed": 3, "ledger": tmp_path / "ledger"}
    first = with_private_moments(**settings).step()
    first.save(tmp_path / "run.pt")
    again = with_private_moments(resume=tmp_path / "run.pt", **settings).fit()
    assert again.ledger.totals() == {events.gaussian(8.0): 4, ONE: STEPS}
    whole = with_private_moments(seed=3).fit()
    np.testing.assert_array_equal(flat(again.model), flat(whole.model))


def test_the_release_of_squares_is_noised_to_its_sensitivity():
    run = with_private_moments()
    release = run._run.second_moments.release(bound=0.25, noise_multiplier=3.0)
    assert release.noise_std == pytest.approx(3.0 * 0.25 * np.sqrt(SIZE))
    assert release.value.dtype == torch.float64
    assert run.ledger.totals() == {events.gaussian(3.0): 1}


def test_one_record_moves_the_sum_of_squares_by_no_more_than_its_sensitivity():
    from privada.clipping.squares import squared_sum
    from privada.core.tensors import Parameters

    parameters = Parameters(torch.nn.Linear(4, 2))
    rows = torch.randn(20, 10) * torch.logspace(-3, 6, 20)[:, None]
    rows[3, 2], rows[5] = float("nan"), float("inf")
    whole = squared_sum(parameters, [rows[:7], rows[7:]], bound=0.7)
    for left_out in range(20):
        others = torch.cat([rows[:left_out], rows[left_out + 1 :]])
        gap = whole.value - squared_sum(parameters, [others], bound=0.7).value
        assert float(gap.norm()) <= whole.sensitivity * (1 + 1e-12)
    finite = [i for i in range(20) if i not in (3, 5)]
    expected = np.minimum(rows[finite].double().numpy() ** 2, 0.7).sum(axis=0)
    np.testing.assert_allclose(whole.value.numpy(), expected, rtol=1e-12)
