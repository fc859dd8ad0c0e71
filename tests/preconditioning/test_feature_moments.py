"""Scales of features from a charged look: what is asked, what is charged, what is made of it."""

import math

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import privada as pv
from privada import defaults
from privada.accounting import events
from privada.clipping.features import feature_sum
from privada.core.randomness import SeededSource
from privada.core.tensors import Parameters
from privada.preconditioning.feature_moments import features_of

RECORDS, WIDTH, CLASSES, STEPS, NOISE = 4000, 6, 3, 5, 9.0
STEP = events.poisson(0.1, 2.0)


def features(seed=0):
    """Features of root mean squares 1, 1/2, 1/4, ..., in rows of one norm."""
    signs = np.random.default_rng(seed).choice([-1, 1], size=(RECORDS, WIDTH))
    return (signs * 0.5 ** np.arange(WIDTH)).astype(np.float32)


X, Y = features(), np.random.default_rng(1).integers(CLASSES, size=RECORDS)


def linear():
    model = nn.Linear(WIDTH, CLASSES)
    for each in model.parameters():
        nn.init.zeros_(each)
    return model


def trainer(data=(X, Y), model=None, noise=NOISE, **given):
    known = {"batch_size": RECORDS / 10, "steps": STEPS, "noise_multiplier": 2.0, "delta": 1e-5}
    layer = given.pop("layer", None)
    scales = pv.preconditioning.private_feature_moments(noise, layer=layer)
    method = pv.methods.DPAdamWOSM(lr=0.1, beta1=0.0, clip=0.12, preconditioner=scales)
    model = linear() if model is None else model
    if "budget" in given:
        known = {name: known[name] for name in ("batch_size", "steps")}
    return pv.Trainer(
        model, nn.CrossEntropyLoss(), data, method=method, **known | given
    )  # fmt: skip


def released(rows, noise_multiplier=0.001):
    event = events.gaussian(noise_multiplier)
    receipt = pv.Ledger(None).charge({event: 1}, run="first").use(event)
    rows = torch.as_tensor(rows)
    total = feature_sum(rows.shape[1], [(rows, None)], torch.device("cpu"))
    noise = pv.noise.GaussianNoise(SeededSource(0, "noise"))
    return noise.release(total, receipt, batch_size=len(rows))


# ---------------------------------------------------------------------- what a release says


def test_moments_and_the_norm_of_rows_are_found():
    moments, norm = features_of(released(X))
    truth = np.square(X.astype(np.float64)).mean(axis=0)
    assert moments[-1] == 1
    np.testing.assert_allclose(moments[:-1] / moments[0], truth / truth[0], rtol=1e-3)
    # the size of rows is known to a power of two
    assert norm == pytest.approx(math.sqrt(truth.sum() + 1), rel=0.2)


def test_rows_count_alike_however_large_they_are():
    rows = np.concatenate([np.tile([[2.0, 0.0]], (3000, 1)), np.tile([[0.0, 900.0]], (2000, 1))])
    moments, _ = features_of(released(rows))
    assert moments[1] / moments[0] == pytest.approx(2 / 3, rel=1e-3)


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e4])
def test_the_norm_follows_the_size_of_rows(size):
    rows = np.tile(np.array([[3.0, 4.0]]) * size, (5000, 1))
    _, norm = features_of(released(rows))
    assert norm == pytest.approx(math.hypot(5 * size, 1), rel=0.2)


def test_what_noise_hides_counts_as_large_as_the_noise():
    rows = np.zeros((5000, 4))
    rows[:, 0] = 1.0
    moments, _ = features_of(released(rows, noise_multiplier=20.0))
    std = 20 * math.sqrt(1 + 1 / 16)
    assert moments[0] == pytest.approx(1, rel=0.05)
    assert (moments[1:4] >= std / 5000 * (1 - 1e-6)).all()
    assert (moments[1:4] <= 5 * std / 5000).all()


@pytest.mark.parametrize("rows", [np.zeros((50, 3)), np.ones((20, 3)), np.full((9, 3), np.nan)])
def test_where_noise_hides_everything_the_scales_are_finite_and_rows_of_norm_one(rows):
    moments, norm = features_of(released(rows, noise_multiplier=50.0))
    assert norm == pytest.approx(math.sqrt(2))
    assert torch.isfinite(moments).all()
    assert (moments > 0).all()


def test_a_typical_row_has_a_norm_of_one_in_the_scales():
    model = linear()
    run = trainer(model=model, noise=0.01, seed=0).step()
    state = run._state.preconditioner
    scales = Parameters(model).layout.split(state["scale"])
    assert scales["weight"].shape == (CLASSES, WIDTH)
    assert torch.equal(scales["weight"][0], scales["weight"][1])
    whitened = X / scales["weight"][0].numpy()
    squares = (whitened**2).sum(axis=1) + 1 / float(scales["bias"][0]) ** 2
    assert squares.mean() == pytest.approx(1.0, rel=0.3)
    ratios = scales["weight"][0][:-1] / scales["weight"][0][1:]
    np.testing.assert_allclose(ratios.numpy(), math.sqrt(2), rtol=1e-2)  # (1/4)^(-1/4)


def test_a_scaling_says_how_long_steps_in_units_of_the_noise_are():
    lengths = []
    rule = pv.updates.adam_without_second_moment(0.0)
    parameters = Parameters(nn.Linear(WIDTH, CLASSES))
    release = released(X)
    for step in (1.0, 0.25):
        scaling = pv.preconditioning.DiagonalScaling(2.0, source="a constant", step=step)
        given = scaling.restore(release, scaling.on(parameters))
        first = torch.zeros(WIDTH, dtype=torch.float64)
        move, _ = rule.update(given, {"step": 0, "first": first}, parameters, 0.1)
        lengths.append(move.direction * move.length)
    torch.testing.assert_close(lengths[0] * 0.25, lengths[1])


# ---------------------------------------------------------------------- what is charged


def test_one_look_is_charged_before_the_steps_and_said():
    run = trainer().fit()
    assert run.ledger.totals() == {events.gaussian(NOISE): 1, STEP: STEPS}
    assert events.multiplier(run.ledger.charges()[0].event) == NOISE
    assert any("second moments of the features" in each for each in run.statement().assumptions)


def test_the_noise_of_the_steps_makes_room_for_the_look():
    budget = pv.Budget(1.0, 1e-5)
    looked = trainer(noise=defaults.look(budget), budget=budget).fit()
    assert 0.99 < looked.epsilon() <= 1.0
    plain = pv.Trainer(
        nn.Linear(WIDTH, CLASSES), nn.CrossEntropyLoss(), (X, Y), batch_size=RECORDS / 10,
        method=pv.methods.DPAdamWOSM(), steps=STEPS, budget=budget,
    )  # fmt: skip
    assert 1.0 < looked.noise_multiplier / plain.noise_multiplier < 1.05


def test_the_look_is_not_repeated_after_a_stop(tmp_path):
    kept = {"seed": 3, "ledger": tmp_path / "ledger"}
    trainer(**kept).step().save(tmp_path / "run.pt")
    again = trainer(resume=tmp_path / "run.pt", **kept).fit()
    assert again.ledger.totals() == {events.gaussian(NOISE): 1, STEP: STEPS}
    whole = trainer(seed=3).fit()
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


class _Images(torch.utils.data.Dataset):
    def __len__(self):
        return RECORDS

    def __getitem__(self, place):
        return torch.from_numpy(X[place]).reshape(1, 2, 3), int(Y[place])


@pytest.mark.parametrize(
    ("data", "model", "words"),
    [
        (_Images(), nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, CLASSES)), "one row of numbers"),
        (
            (np.tile(np.arange(4), (RECORDS, 1)), Y),
            nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(8, CLASSES)),
            "one row of numbers",
        ),
        (
            (X, Y),
            nn.Sequential(nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 2, 3), nn.Flatten(),
                          nn.Linear(8, CLASSES)),
            "linear layer with 6 inputs",
        ),
    ],
    ids=["images", "tokens", "no such layer"],
)  # fmt: skip
def test_what_has_no_features_is_refused_before_anything_is_charged(data, model, words):
    run = trainer(data, model)
    with pytest.raises(pv.ArgumentError, match=words):
        run.fit()
    assert run.ledger.totals() == {}


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, "x"])
@pytest.mark.parametrize("name", ["noise_multiplier", "power"])
def test_rubbish_is_refused_by_name(name, value):
    with pytest.raises(pv.ArgumentError, match=name):
        pv.preconditioning.private_feature_moments(**{"noise_multiplier": 5.0} | {name: value})


# ---------------------------------------------------------------------- which records are seen


def summed(data, **given):
    run = trainer(data, **given)._run
    return run.executor.feature_sum(run.sources["sampling"])


def test_sparse_records_give_the_same_sum():
    rows = np.where(np.random.default_rng(0).random(X.shape) < 0.3, X, 0)
    dense, sparse = summed((rows, Y)), summed((scipy.sparse.csr_matrix(rows), Y))
    torch.testing.assert_close(dense.value, sparse.value, rtol=1e-9, atol=1e-9)


def test_a_person_counts_once_however_many_rows_they_have():
    groups = np.repeat(np.arange(RECORDS // 8), 8)
    groups[: RECORDS // 2] = 0
    persons = len(np.unique(groups))
    found = summed((X, Y), groups=groups, rows_per_unit=4, batch_size=20)
    assert float(found.value[WIDTH:].sum()) == pytest.approx(0.25 * persons)
    others = groups != 0
    without = summed((X[others], Y[others]), groups=groups[others], rows_per_unit=4, batch_size=20)
    assert without.sensitivity == found.sensitivity


class _Failing(torch.utils.data.Dataset):
    def __len__(self):
        return RECORDS

    def __getitem__(self, place):
        if place % 10 == 3:
            raise OSError("no such record")
        return torch.from_numpy(X[place]), int(Y[place])


def test_records_that_fail_count_as_zero():
    fine = np.arange(RECORDS) % 10 != 3
    found = summed(_Failing())
    expected = summed((X[fine], Y[fine]))
    torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=0)
