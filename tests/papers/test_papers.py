"""The papers' own experiments, as the scripts in papers/ run them."""

import importlib
import json
import os
import statistics
from pathlib import Path

import numpy as np
import pytest
from papers.adp_sgd import on_the_fly, quadratic

from papers import study
from tests.datasets import data_folder
from tests.oracles import adp_sgd

DATA = os.environ.get("PRIVADA_DATA", "")


def test_the_predicted_gain_of_the_schedule_is_the_closed_form():
    assert quadratic.predicted() == pytest.approx(1.8675, abs=5e-5)
    assert quadratic.predicted() == pytest.approx(adp_sgd.improvement(adp_sgd.decaying(23_400)))


def test_the_schedule_saves_noise_in_a_quadratic():
    """At 300 steps: the ratio of variances over 400 coordinates and five pairs of runs."""
    pairs = [[quadratic.variance(kind, 1.0, 300, 1.0, seed) for kind in (False, True)]
             for seed in range(5)]  # fmt: skip
    ratio = np.mean([dp for dp, _ in pairs]) / np.mean([adp for _, adp in pairs])
    # each variance has a relative error of sqrt(2 / 2000), their ratio one of 4.5 %
    assert ratio == pytest.approx(quadratic.predicted(300), rel=0.15)
    assert ratio > 1.05


def test_the_page_on_noise_that_follows_has_the_figures_beside_it():
    folder = Path(on_the_fly.__file__).parent
    kept = json.loads((folder / "on_the_fly.json").read_text())
    found = {
        title: [study.Outcome(o["method"], o["settings"], tuple(o["figures"]), 0) for o in group]
        for title, group in kept.items()
    }
    assert on_the_fly.page(found) == (folder / "on_the_fly.md").read_text()
    assert all(len(o.figures) == len(on_the_fly.SEEDS) for group in found.values() for o in group)
    assert {o.method for group in found.values() for o in group} == set(on_the_fly.GRIDS)


@pytest.mark.parametrize("name", on_the_fly.GRIDS)
def test_noise_that_follows_is_compared_at_one_epsilon(name):
    """A short run of each method, which the trial itself holds to the budget."""
    data_folder("mnist.npz")
    error = on_the_fly.trial("MNIST", 150, name, on_the_fly.GRIDS[name][-1], seed=0)
    assert 5 < error < 40


def test_a_study_tunes_on_some_seeds_and_reports_others():
    outcomes = study.compare(_toy, {"a": study.grid(x=(1, 2, 3))}, (10, 11, 12), range(5))
    (outcome,) = outcomes
    assert outcome.settings == {"x": 2}
    assert outcome.figures == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert outcome.median == 2.0
    assert "| a | 2 | 0.5 to 3.5 | x 2 of 3 |" in study.table(outcomes, "loss")


def _toy(method, settings, seed):
    return abs(settings["x"] - 2) * 100.0 + seed % 10


def medians(trial, settings, seeds=range(10)):
    """Return the median of each method over seeds."""
    grids = {method: [each] for method, each in settings.items()}
    return {o.method: o.median for o in study.compare(trial, grids, (seeds[0],), seeds)}


@pytest.mark.slow
def test_adadps_in_the_sparse_regression():
    from papers.adadps.sparse_regression import loss

    found = medians(loss, {"dp-sgd": {"lr": 0.1}, "adadps": {"lr": 0.2}})
    assert found["adadps"] <= 0.6 * found["dp-sgd"]


@pytest.mark.slow
def test_pagan_in_the_absolute_regression_at_epsilon_1():
    from papers.pagan.absolute_regression import loss, noise_for

    noise = noise_for(1.0)
    chosen = {
        "private SGD": {"lr": 2.0, "clip": 0.1, "noise": noise},
        "private AdaGrad": {"lr": 0.5, "clip": 0.1, "noise": noise},
        "PAGAN": {"lr": 0.2, "clip": 1.0, "noise": noise},
    }
    found = medians(loss, chosen)
    assert found["PAGAN"] <= 0.6 * found["private AdaGrad"]
    assert found["PAGAN"] <= 0.5 * found["private SGD"]


@pytest.mark.slow
@pytest.mark.skipif(not (Path(DATA) / "imdb.npz").is_file(), reason="PRIVADA_DATA has no imdb.npz")
def test_adadps_on_film_reviews():
    from papers.adadps import imdb

    settings = {"lr": 3.0, "clip": 3.0}  # as chosen on Amazon reviews
    errors = [imdb.imdb_error("adadps", settings, seed) for seed in range(3)]
    assert 1 - statistics.median(errors) >= 0.855


@pytest.mark.slow
@pytest.mark.skipif(not (Path(DATA) / "adult.csv.gz").is_file(), reason="PRIVADA_DATA has no Adult")
def test_an_honest_search_on_adult():
    tuning = importlib.import_module("papers.honest-selection.tuning")
    train, test = tuning.adult()
    found = tuning.search(
        "DPAdamWOSM, own rate", train, 0, how="compose-pld", n_jobs=1,
        grid={"lr": [0.006], "clip": [0.5]},
    )  # fmt: skip
    assert found.epsilon() <= tuning.BUDGET.epsilon
    assert tuning.accuracy(found.model, test) >= 0.84
