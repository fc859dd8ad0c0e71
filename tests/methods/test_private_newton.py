"""PrivateNewton: held to NumPy with the same noise, to optima without noise, and to its charges."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import privada as pv
from privada.accounting import epsilon_of, events
from privada.core.symmetric import unfolded
from privada.noise import gaussian
from privada.preconditioning.feature_matrix import SIZE_WEIGHT
from tests.methods.problem import CLASSES, FEATURES, RECORDS, X, Y, flat, rows, trainer

STEPS, SHARE, FLOOR, CLIP, SIGMA = 6, 0.2, 0.1, 0.8, 0.7
WIDTH = FEATURES + 1
PRODUCTS = WIDTH * (WIDTH + 1) // 2 + 1
EVERYONE = {"sampling": "everyone"}


def newton(**settings):
    return pv.methods.PrivateNewton(**{"share": SHARE, "floor": FLOOR, "clip": CLIP} | settings)


def by_hand(theta, noise):
    """Return the points of a run, in NumPy, from the method's definition."""
    constant = np.c_[X, np.ones(RECORDS)]
    sizes = (constant**2).sum(axis=1)
    first = math.sqrt((1 - SHARE) / (SHARE * STEPS)) * SIGMA  # over that of a step
    std = first * math.sqrt(1 + SIZE_WEIGHT**2) / RECORDS
    products = sum(np.outer(x, x) / size for x, size in zip(constant, sizes, strict=True))
    errors = unfolded(torch.from_numpy(noise[0][:-1]), WIDTH).numpy() * std
    values, vectors = np.linalg.eigh(products / RECORDS + errors)
    size = np.minimum(sizes, WIDTH).mean() / WIDTH * SIZE_WEIGHT + noise[0][-1] * std
    size = min(max(size / SIZE_WEIGHT * WIDTH, std / SIZE_WEIGHT * WIDTH), WIDTH)
    bound = size * (np.maximum(values, 0) + FLOOR * math.sqrt(2 * WIDTH) * std) / 2
    root = vectors / np.sqrt(bound)
    points = []
    for step in range(STEPS):
        each = rows(theta, step)
        matrices = np.concatenate(
            [each[:, :-CLASSES].reshape(RECORDS, CLASSES, -1), each[:, -CLASSES:, None]], axis=2
        )
        mapped = matrices @ root
        norms = np.linalg.norm(mapped, axis=(1, 2), keepdims=True)
        total = (mapped * np.minimum(1, CLIP / norms)).sum(axis=0)
        added = noise[1 + step]
        added = np.c_[added[:-CLASSES].reshape(CLASSES, -1), added[-CLASSES:]]
        move = (total + SIGMA * CLIP * added) / RECORDS @ root.T
        theta = theta - np.concatenate([move[:, :-1].reshape(-1), move[:, -1]])
        points.append(theta)
    return points


def test_a_run_is_its_definition_with_the_same_noise(monkeypatch):
    rng = np.random.default_rng(5)
    noise = [rng.normal(size=PRODUCTS), *rng.normal(size=(STEPS, CLASSES * WIDTH))]
    left = list(noise)
    run = trainer(newton(), STEPS, noise_multiplier=SIGMA)
    start = flat(run.model)
    monkeypatch.setattr(
        gaussian,
        "add_noise_",
        lambda value, std, rng: value.add_(torch.from_numpy(std * left.pop(0))),
    )
    run.fit()
    # the end is the mean of the last half of the points
    points = by_hand(start, noise)
    np.testing.assert_allclose(flat(run.model), np.mean(points[3:], axis=0), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- without noise


def fitted(model, loss, data, steps, **settings):
    count = len(data[0])
    method = pv.methods.PrivateNewton(**{"clip": 1e4} | settings)
    return pv.Trainer(
        model, loss, data, method=method, sampling="everyone", batch_size=count, steps=steps,
        noise_multiplier=1e-9, delta=1e-6,
    ).fit()  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_without_noise_it_solves_least_squares_of_ill_conditioned_features():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5)) * np.array([1, 1e-2, 1, 1e-3, 1])
    x[:, 4] = x[:, 0] + 0.01 * x[:, 4]
    y = x @ rng.normal(size=5) + 0.5 + 0.1 * rng.normal(size=400)
    x /= np.linalg.norm(np.c_[x, np.ones(400)], axis=1).max()
    model = nn.Linear(5, 1).double()
    fitted(model, nn.MSELoss(), (x, y[:, None]), steps=60)
    best, *_ = np.linalg.lstsq(np.c_[x, np.ones(400)], y, rcond=None)
    np.testing.assert_allclose(flat(model), best, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_without_noise_it_reaches_the_logistic_optimum():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (600, 3)) * np.array([1, 0.05, 1])
    y = (rng.uniform(size=600) < 1 / (1 + np.exp(-(x @ [2.0, 20.0, -1.0] + 0.3)))).astype(int)
    model = nn.Linear(3, 2).double()
    for each in model.parameters():
        nn.init.zeros_(each)
    fitted(model, nn.CrossEntropyLoss(), (x, y), steps=150)
    best = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, y)
    weight, bias = (part.detach().numpy() for part in model.parameters())
    np.testing.assert_allclose(weight[1] - weight[0], best.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(bias[1] - bias[0], best.intercept_[0], rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- charges


def test_a_budget_is_for_the_second_moments_and_the_steps_together():
    budget = pv.Budget(2.0, 1e-3)
    options = {"noise_multiplier": None, "delta": None, "budget": budget}
    run = trainer(newton(), STEPS, **options).fit()
    assert 1.99 < run.epsilon() <= 2.0
    first, *others = sorted(events.multiplier(e) for e in run.ledger.totals())
    found = run.noise_multiplier
    assert sorted([first, *others]) == pytest.approx(
        sorted([found, found * math.sqrt((1 - SHARE) / (SHARE * STEPS))])
    )
    # Gaussian releases of all records add up as one does
    together = 1 / math.sqrt(
        sum(n / events.multiplier(e) ** 2 for e, n in run.ledger.totals().items())
    )
    assert epsilon_of({events.gaussian(together): 1}, 1e-3) == pytest.approx(
        run.epsilon(), rel=1e-3
    )


def test_the_matrix_is_charged_before_it_is_looked_at(monkeypatch):
    run = trainer(newton(), STEPS)
    executor, charged = run._run.executor, []
    look = executor.feature_products

    def seen(*args):
        charged.append(sum(run.ledger.totals().values()))
        return look(*args)

    monkeypatch.setattr(executor, "feature_products", seen)
    run.step()
    assert charged == [1]


def test_a_ledger_that_cannot_pay_refuses_before_a_look():
    ledger = pv.Ledger(None, pv.Budget(0.1, 1e-3))
    with pytest.raises(pv.BudgetExceeded, match="Nothing was charged"):
        trainer(newton(), STEPS, ledger=ledger)
    assert not ledger.totals()


def test_a_resumed_run_keeps_the_matrix_and_ends_as_one_that_was_not_stopped(tmp_path):
    settings = {"seed": 3, "ledger": tmp_path / "ledger"}
    trainer(newton(), STEPS, **settings).step().save(tmp_path / "run.pt")
    again = trainer(newton(), STEPS, resume=tmp_path / "run.pt", **settings).fit()
    assert sum(again.ledger.totals().values()) == STEPS + 1
    whole = trainer(newton(), STEPS, seed=3).fit()
    np.testing.assert_array_equal(flat(again.model), flat(whole.model))


# ---------------------------------------------------------------------- persons


def test_a_person_moves_the_products_by_no_more_than_declared():
    groups = np.arange(RECORDS) // 4

    def products(kept):
        model = nn.Linear(FEATURES, CLASSES).double()
        run = pv.Trainer(
            model, nn.CrossEntropyLoss(), (X[kept], Y[kept]), method=newton(), seed=0,
            groups=groups[kept], rows_per_unit=3, batch_size=len(set(groups[kept])), steps=STEPS,
            noise_multiplier=1.0, delta=1e-3, **EVERYONE,
        )  # fmt: skip
        return run._run.executor.feature_products(SIZE_WEIGHT, run._run.sources["sampling"])

    last = groups.max()  # who comes last leaves the rows that are chosen of others as they are
    with_it, without = products(groups >= 0), products(groups < last)
    moved = float((with_it.value - without.value).norm())
    assert 0 < moved <= with_it.sensitivity == math.sqrt(1 + SIZE_WEIGHT**2)


# ---------------------------------------------------------------------- what it does not fit

DATA = (X, Y)


@pytest.mark.parametrize(
    ("model", "loss", "settings", "words"),
    [
        (nn.Sequential(nn.Linear(FEATURES, CLASSES)), nn.CrossEntropyLoss(), {}, "torch.nn.Linear"),
        (nn.Linear(FEATURES, CLASSES), nn.NLLLoss(), {}, "curvature"),
        (nn.Linear(FEATURES, CLASSES), nn.CrossEntropyLoss(), {"sampling": "poisson"}, "everyone"),
        (
            nn.Linear(FEATURES, CLASSES),
            nn.CrossEntropyLoss(),
            {"executor": pv.execute.InParts(2)},
            "in this process",
        ),
        (
            nn.Linear(FEATURES, CLASSES),
            nn.CrossEntropyLoss(),
            {"weight_decay": 0.1},
            "no weight_decay",
        ),
    ],
)
def test_what_it_does_not_fit_is_refused_before_a_charge(model, loss, settings, words):
    ledger = pv.Ledger(None)
    with pytest.raises(pv.PrivadaError, match=words):
        pv.Trainer(
            model, loss, DATA, method=newton(), batch_size=RECORDS, steps=3, noise_multiplier=1.0,
            delta=1e-3, ledger=ledger, **EVERYONE | settings,
        )  # fmt: skip
    assert not ledger.totals()


@pytest.mark.parametrize("settings", [{"share": 0.0}, {"share": 1.0}, {"floor": 0.0}, {"lr": -1.0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(pv.ArgumentError, match=next(iter(settings))):
        newton(**settings)


def test_noise_that_follows_releases_is_refused():
    with pytest.raises(pv.ArgumentError, match="fixed beforehand"):
        newton(schedule=pv.noise.follow_norm())
