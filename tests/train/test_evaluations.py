"""Public records that a model is evaluated on while it trains."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.core.errors import ArgumentError, CheckpointError, DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0.5).astype(np.int64)
PRIVATE, PUBLIC = (X[:300], Y[:300]), (X[300:], Y[300:])


def zeroed(model):
    for each in model.parameters():
        nn.init.zeros_(each)
    return model


def made(**changes):
    settings = {
        "method": pv.methods.DPSGD(lr=1.0),
        "batch_size": 30,
        "steps": 20,
        "noise_multiplier": 2.0,
        "delta": 1e-4,
        "seed": 1,
        "validation": pv.Validation(PUBLIC, every=6),
    } | changes
    model = settings.pop("model", None) or zeroed(nn.Linear(4, 2))
    return pv.Trainer(model, nn.CrossEntropyLoss(), PRIVATE, **settings)


def right(model):
    with torch.no_grad():
        return float((model(torch.from_numpy(PUBLIC[0])).argmax(1).numpy() == PUBLIC[1]).mean())


def test_evaluations_are_of_the_model_at_their_steps_and_at_the_end():
    run, expected = made(), {}
    while run.steps_done < 20:
        run.step()
        expected[run.steps_done] = right(run.model)
    assert [each.step for each in run.evaluations] == [6, 12, 18, 20]
    for each in run.evaluations:
        assert each.values["accuracy"] == pytest.approx(expected[each.step])
        assert each.baselines["accuracy"] == pytest.approx(
            max(PUBLIC[1].mean(), 1 - Y[300:].mean())
        )
    assert run.evaluate() == run.evaluations[-1]


def test_there_are_ten_unless_something_else_is_said():
    run = made(validation=pv.Validation(PUBLIC), steps=25).fit()
    assert [each.step for each in run.evaluations] == [3, 6, 9, 12, 15, 18, 21, 24, 25]
    assert len(made(validation=pv.Validation(PUBLIC), steps=3).fit().evaluations) == 3


def test_evaluating_changes_neither_the_model_nor_the_draws():
    plain, looked = made(validation=None).fit(), made().fit()
    state = torch.get_rng_state()
    looked.evaluate()
    assert torch.equal(state, torch.get_rng_state())
    for one, other in zip(plain.model.parameters(), looked.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert plain.epsilon() == looked.epsilon()
    assert list(plain.history) == list(looked.history)


def test_what_is_scored_is_what_the_run_would_leave():
    data = (X[:300], X[:300, :1])
    run = pv.Trainer(
        zeroed(nn.Linear(4, 1)), nn.MSELoss(), data,
        method=pv.methods.PASAN(lr=1.0, preconditioner=pv.preconditioning.isotropic()),
        batch_size=30, steps=9, noise_multiplier=2.0, delta=1e-4, seed=1,
        validation=pv.Validation((X[300:], X[300:, :1]), every=4),
    )  # fmt: skip
    for _ in range(4):
        run.step()
    at = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    (found,) = run.evaluations
    assert torch.equal(at, torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    run.finish()
    final = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    assert not torch.equal(at, final)
    assert run.evaluate().values == found.values
    assert [each.step for each in run.evaluations] == [4]


def test_the_statement_says_that_they_were_declared_public():
    said = "declared public: they tell nothing of a protected record"
    assert any(said in each for each in made().statement().assumptions)
    assert not any(said in each for each in made(validation=None).statement().assumptions)


@pytest.mark.parametrize(
    "records",
    [
        PRIVATE,
        (X[100:300], Y[100:300]),
        (X[:300].copy(), Y[:300].copy()),
        pv.Public(PRIVATE),
    ],
    ids=["the same", "the same memory", "copies", "as pv.Public"],
)
def test_private_records_are_refused(records):
    with pytest.raises(DataError, match="other records than the private ones"):
        made(validation=pv.Validation(records))


def test_records_of_charged_scores_are_refused():
    with pytest.raises(DataError, match="other records than the private ones"):
        made(
            noise_multiplier=None, delta=None, budget=pv.Budget(3.0, 1e-4),
            ledger=pv.Ledger(None, pv.Budget(5.0, 1e-4)),
            stopping=pv.EarlyStopping(PUBLIC, noise_multiplier=10.0, every=5),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("validation", "kind", "words"),
    [
        (PUBLIC, ArgumentError, "pv.Validation"),
        (pv.Validation, ArgumentError, "the class Validation"),
        (pv.Validation(X[300:]), DataError, "pair"),
        (pv.Validation((X[300:, :3], Y[300:])), DataError, "fail with"),
        (pv.Validation((X[:0], Y[:0])), DataError, "empty"),
        (pv.Validation((X[300:], np.r_[Y[300:499], 2])), DataError, "labels from 0 to 1"),
        (pv.Validation(PUBLIC, baseline=[0.1, 0.2, 0.7]), ArgumentError, "baseline"),
        (pv.Validation(PUBLIC, metrics=[pv.metrics.whole("own", lambda o, t: 1 / 0)]), DataError,
         "division by zero"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused_before_a_charge(validation, kind, words):
    ledger = pv.Ledger(None)
    with pytest.raises(kind, match=words):
        made(validation=validation, ledger=ledger)
    assert not ledger.charges()


def test_a_baseline_may_be_given():
    share = torch.tensor([0.9, 0.1]).log()
    run = made(validation=pv.Validation(PUBLIC, baseline=share)).fit()
    zeros = 1 - PUBLIC[1].mean()
    found = run.evaluate().baselines
    assert found["accuracy"] == pytest.approx(zeros)
    assert found["loss"] == pytest.approx(-zeros * np.log(0.9) - (1 - zeros) * np.log(0.1))


def test_a_trainer_without_public_records_has_none_to_evaluate_on():
    run = made(validation=None).fit()
    assert run.evaluations == ()
    with pytest.raises(ArgumentError, match=r"validation=pv\.Validation"):
        run.evaluate()


def test_they_survive_a_checkpoint(tmp_path):
    ledger = tmp_path / "ledger"
    first = made(ledger=ledger)
    for _ in range(13):
        first.step()
    first.save(tmp_path / "run.pt")
    first.ledger.close()
    again = made(ledger=ledger, resume=tmp_path / "run.pt")
    assert again.evaluations == first.evaluations
    assert [each.step for each in again.fit().evaluations] == [6, 12, 18, 20]
    json.dumps([asdict(each) for each in again.evaluations])


def test_a_failing_last_evaluation_leaves_a_run_that_can_be_ended():
    failed = []

    def fails(outputs, targets):
        if run is not None and run.steps_done == 20 and not failed:
            failed.append(True)
            raise OSError("disk full")
        return 0.0

    run = None
    run = made(validation=pv.Validation(PUBLIC, every=10, metrics=[pv.metrics.whole("own", fails)]))
    with pytest.raises(OSError, match="disk full"):
        run.fit()
    assert run.steps_done == 20
    run.fit()
    assert run.steps_done == 20
    assert run.statement().progress == "20 of 20 steps"
    assert [each.step for each in run.evaluations] == [10, 20]


# ---------------------------------------------------------------------- early stopping


def worse_after(step, monkeypatch):
    """Make public scores fall after a step, and return the parameters at each evaluation."""
    points = []

    def values(self):
        points.append(torch.cat([p.detach().flatten() for p in self._model.parameters()]))
        return {"accuracy": 1.0 - abs(len(points) - step) / 100}

    monkeypatch.setattr("privada.metrics.validation.PublicEvaluator.values", values)
    return points


def stopped(**changes):
    public = pv.Validation(PUBLIC, every=4)
    stopping = pv.EarlyStopping(public, **({"patience": 2} | changes.pop("stopping", {})))
    budget = {"budget": pv.Budget(2.0, 1e-4), "noise_multiplier": None, "delta": None}
    return made(validation=None, stopping=stopping, steps=40, **(budget | changes))


@pytest.mark.parametrize("restore", [False, True])
def test_a_run_ends_by_public_scores_and_costs_its_plan(monkeypatch, restore):
    points = worse_after(2, monkeypatch)
    run = stopped(stopping={"restore_best": restore}).fit()
    assert run.steps_done == 16
    assert [each.step for each in run.evaluations] == [4, 8, 12, 16]
    final = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    assert torch.equal(final, points[1 if restore else 3])
    whole = stopped().planned()
    assert run.epsilon() == pytest.approx(run.ledger.price(whole))
    assert "epsilon is that of all that was planned" in run.statement().progress
    assert {each.purpose for each in run.ledger.charges()} == {"training"}


def test_on_an_adaptive_ledger_it_costs_what_was_charged(monkeypatch):
    worse_after(1, monkeypatch)
    ledger = pv.Ledger(None, pv.Budget(4.0, 1e-4))
    run = stopped(ledger=ledger).fit()
    assert run.steps_done == 12
    assert sum(ledger.totals().values()) == 12
    assert "back on the ledger" in run.statement().progress


def test_the_noise_is_that_of_a_run_without_scores():
    assert stopped().noise_multiplier == made(
        validation=None, steps=40, budget=pv.Budget(2.0, 1e-4), noise_multiplier=None, delta=None
    ).noise_multiplier  # fmt: skip


def test_a_resumed_run_knows_its_best_score(tmp_path, monkeypatch):
    worse_after(2, monkeypatch)
    ledger = tmp_path / "ledger"
    first = stopped(ledger=ledger)
    for _ in range(13):
        first.step()
    first.save(tmp_path / "run.pt")
    first.ledger.close()
    assert stopped(ledger=ledger, resume=tmp_path / "run.pt").fit().steps_done == 16
    with pytest.raises(CheckpointError, match="stopping"):
        stopped(stopping={"patience": 7}, ledger=ledger, resume=tmp_path / "run.pt")


@pytest.mark.parametrize(
    "given",
    [{"noise_multiplier": 1.0}, {"every": 3}, {"score": pv.selection.accuracy()},
     {"groups": [1]}, {"rows_per_unit": 2}],
)  # fmt: skip
def test_settings_of_private_scores_are_refused_beside_public_records(given):
    with pytest.raises(ArgumentError, match=next(iter(given))):
        pv.EarlyStopping(pv.Validation(PUBLIC), **given)


def test_private_scores_need_their_noise():
    with pytest.raises(ArgumentError, match=r"noise_multiplier.*pv\.Validation"):
        pv.EarlyStopping(PUBLIC)
    with pytest.raises(ArgumentError, match="every"):
        pv.EarlyStopping(PUBLIC, noise_multiplier=1.0)


def test_two_validations_are_refused():
    one, other = pv.Validation(PUBLIC), pv.Validation(PUBLIC)
    with pytest.raises(ArgumentError, match=r"one pv\.Validation"):
        made(validation=one, stopping=pv.EarlyStopping(other))
    assert made(validation=one, stopping=pv.EarlyStopping(one)).fit().evaluations


def test_scores_that_are_not_numbers_are_never_the_best(monkeypatch):
    monkeypatch.setattr(
        "privada.metrics.validation.PublicEvaluator.values", lambda self: {"accuracy": np.nan}
    )
    assert stopped(stopping={"restore_best": True}).fit().steps_done == 8


def test_charged_scores_are_among_the_evaluations():
    run = made(
        noise_multiplier=None, delta=None, budget=pv.Budget(3.0, 1e-4), steps=12,
        ledger=pv.Ledger(None, pv.Budget(5.0, 1e-4)),
        validation=pv.Validation(PUBLIC, every=6),
        stopping=pv.EarlyStopping(
            (X[300:] + 9, Y[300:]), noise_multiplier=10.0, every=4, patience=9
        ),
    ).fit()  # fmt: skip
    found = [(each.step, each.charged) for each in run.evaluations]
    assert found == [(4, True), (6, False), (8, True), (12, True), (12, False)]
    assert [each.values for each in run.evaluations if each.charged] == [
        {"accuracy": score} for score in run._state.stopping["scores"]
    ]
