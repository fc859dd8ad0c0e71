"""Early stopping by private scores: each charged, and what is not spent stays."""

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.accounting import epsilon_of, events
from privada.core.errors import ArgumentError, LedgerError

WHOLE, OWN = pv.Budget(5.0, 1e-4), pv.Budget(3.0, 1e-4)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(900, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)


def run_with(stopping, **changes):
    settings = {
        "method": pv.methods.DPSGD(lr=1.0),
        "batch_size": 30,
        "steps": 120,
        "budget": OWN,
        "seed": 1,
        "ledger": pv.Ledger(None, WHOLE),
    } | changes
    model = nn.Linear(4, 2)
    for each in model.parameters():
        nn.init.zeros_(each)
    return pv.Trainer(
        model, nn.CrossEntropyLoss(), (X[:600], Y[:600]), stopping=stopping, **settings
    )


def scores(**given):
    settings = {"noise_multiplier": 12.0, "every": 10} | given
    return pv.EarlyStopping((X[600:], Y[600:]), **settings)


def charged(run, purpose):
    return sum(each.count for each in run.ledger.charges() if each.purpose == purpose)


def test_a_run_that_no_longer_improves_ends_and_the_rest_stays():
    run = run_with(scores(patience=2)).fit()
    assert 30 <= run.steps_done < 120
    assert charged(run, "training") == run.steps_done
    assert charged(run, "validation") == run.steps_done // 10
    assert run.epsilon() < OWN.epsilon
    assert "what was not used is back on the ledger" in run.statement().progress
    with pytest.raises(ArgumentError, match="given up by finish"):
        run.step()
    another = run_with(None, ledger=run.ledger, steps=20).fit()  # which the rest pays for
    assert another.steps_done == 20


def test_scores_of_a_whole_run_fit_its_budget_with_the_steps():
    run = run_with(scores(patience=100)).fit()
    assert (run.steps_done, charged(run, "validation")) == (120, 12)
    own = epsilon_of(run.ledger.totals(), OWN.delta)
    assert 0.99 * OWN.epsilon < own <= OWN.epsilon
    assert run.statement().run_epsilon == pytest.approx(own)
    assert run.noise_multiplier > run_with(None).noise_multiplier


def test_an_early_end_costs_the_run_its_plan_and_the_ledger_what_was_charged():
    run = run_with(scores(patience=2)).fit()
    plan = run.planned()
    assert sum(plan.values()) == 120 + 12
    assert run.statement().run_epsilon == pytest.approx(epsilon_of(plan, OWN.delta))
    assert run.epsilon() == pytest.approx(run.ledger.price(run.ledger.totals()))


@pytest.mark.parametrize("patience", [2, 100])
def test_the_history_counts_the_scores(patience):
    run = run_with(scores(patience=patience)).fit()
    assert run.history[-1].epsilon == pytest.approx(run.epsilon(), rel=1e-9)
    at = [run.history[step - 1].epsilon for step in (9, 10)]
    assert at[1] - at[0] > at[0] - run.history[7].epsilon  # increments fall but for the first score


def test_the_score_is_the_noisy_average():
    run = run_with(scores(every=120, noise_multiplier=0.001), budget=None, noise_multiplier=2.0,
                   delta=1e-4, ledger=pv.Ledger(None)).fit()  # fmt: skip
    with torch.no_grad():
        right = run.model(torch.from_numpy(X[600:])).argmax(1).numpy() == Y[600:]
    (found,) = run._state.stopping["scores"]
    assert found == pytest.approx(right.mean(), abs=1e-4)
    assert events.gaussian(0.001) in run.ledger.totals()


def test_the_best_parameters_can_be_restored(monkeypatch):
    values = iter([0.2, 0.9, 0.5, 0.5, 0.5])
    points = []

    def query(self, model, noise_multiplier):
        points.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        return pv.query.scores.NoisyScore(next(values), 0.01)

    monkeypatch.setattr("privada.query.scores.Scorer.query", query)
    run = run_with(scores(restore_best=True)).fit()
    assert run.steps_done == 50
    final = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    assert torch.equal(final, points[1])
    assert not torch.equal(points[1], points[-1])


@pytest.mark.parametrize(("greater", "ends"), [(True, 120), (False, 40)])
def test_less_is_better_where_the_score_says_so(monkeypatch, greater, ends):
    values = iter(np.linspace(0.1, 0.9, 12))
    monkeypatch.setattr(
        "privada.query.scores.Scorer.query",
        lambda self, model, noise_multiplier: pv.query.scores.NoisyScore(next(values), 0.01),
    )
    score = pv.selection.Score(
        "right", lambda out, y: (out.argmax(1) == y).float(), greater=greater
    )
    assert run_with(scores(score=score)).fit().steps_done == ends


def test_a_resumed_run_knows_its_scores(tmp_path):
    ledger, place = tmp_path / "ledger", tmp_path / "run.pt"
    pv.Ledger(ledger, WHOLE).close()
    first = run_with(scores(patience=100), ledger=ledger)
    for _ in range(35):
        first.step()
    first.save(place)
    again = run_with(scores(patience=100), ledger=ledger, resume=place).fit()
    assert len(again._state.stopping["scores"]) == 12
    assert again.history[-1].epsilon == pytest.approx(again.epsilon(), rel=1e-9)
    assert charged(again, "validation") == 12
    assert again.noise_multiplier == first.noise_multiplier
    with pytest.raises(pv.CheckpointError, match="stopping"):
        run_with(scores(patience=7), ledger=ledger, resume=place)


def test_noise_that_follows_leaves_room_for_the_scores():
    method = pv.methods.ADPSGD(lr=1.0, alpha="adaptive")
    run = run_with(scores(patience=100), method=method, ledger=pv.Ledger(None, OWN)).fit()
    assert (run.steps_done, charged(run, "validation")) == (120, 12)
    assert 0.97 * OWN.epsilon < run.epsilon() <= OWN.epsilon


def test_persons_are_scored_as_persons():
    persons = np.arange(900) // 3
    run = run_with(
        pv.EarlyStopping((X[600:], Y[600:]), 12.0, 10, groups=persons[600:], rows_per_unit=2),
        groups=persons[:600], rows_per_unit=2, batch_size=10,
    ).fit()  # fmt: skip
    assert run.ledger.unit == "person (all their rows)"
    with pytest.raises(ArgumentError, match="groups"):
        run_with(scores(), groups=persons[:600], rows_per_unit=2, batch_size=10)


def test_a_planned_ledger_is_refused():
    with pytest.raises(LedgerError, match="adaptive ledger"):
        run_with(scores(), ledger=pv.Ledger(None, WHOLE, kind="planned"))


def test_without_a_ledger_it_makes_an_adaptive_one():
    run = run_with(scores(), ledger=None)
    assert run.ledger.adaptive
    assert run.fit().epsilon() <= OWN.epsilon


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"every": 0}, "every"),
        ({"patience": 0}, "patience"),
        ({"least": -1.0}, "least"),
        ({"score": "accuracy"}, "score"),
        ({"restore_best": 1}, "restore_best"),
    ],
)
def test_wrong_settings_are_refused(given, words):
    with pytest.raises(ArgumentError, match=words):
        scores(**given)


def test_what_is_no_early_stopping_is_refused():
    with pytest.raises(ArgumentError, match="stopping"):
        run_with("when it is good")
