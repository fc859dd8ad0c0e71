"""The papers' own experiments, as the scripts in papers/ run them."""

import importlib
import json
import os
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from papers.adadp import federated as unequal
from papers.adadps import federated as by_user
from papers.adadps import federated_shakespeare as by_role
from papers.adp_sgd import on_the_fly, quadratic

from papers import rounds, study
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


FEDERATED = [by_user, by_role, unequal]


@pytest.mark.parametrize("study", FEDERATED, ids=lambda each: each.__name__)
def test_federated_pages_and_charts_have_the_figures_beside_them(study):
    folder, name = Path(study.__file__).parent, study.__name__.rpartition(".")[2]
    found = rounds.read(folder / f"{name}.json")
    assert study.page(found) == (folder / f"{name}.md").read_text()
    assert study.drawing(found) == (folder / f"{name}.svg").read_text()
    assert f"({name}.svg)" in study.page(found)
    points = study.ROUNDS // study.EVERY + 1
    for line in (each for group in found.values() for each in group):
        assert [len(curve) for curve in line.curves] == [points] * len(study.SEEDS)


USERS = by_user.PRIVATE | by_user.TAKEN_BACK | by_user.WITHOUT


@pytest.mark.parametrize("method", USERS)
def test_methods_run_on_users(method):
    data_folder("stackexchange_users.npz")
    search = USERS[method]
    _reaches(by_user.trial(4.0, method, search.start, 0, rounds=2 * by_user.EVERY))


@pytest.mark.parametrize("method", [*by_role.PRIVATE, *by_role.WITHOUT])
def test_methods_run_on_roles(method):
    data_folder("shakespeare_roles.jsonl.gz")
    search = {**by_role.PRIVATE, **by_role.WITHOUT}[method]
    _reaches(by_role.trial(method, search.start, 0, rounds=by_role.EVERY))


@pytest.mark.parametrize("method", unequal.SEARCHES)
def test_methods_run_on_unequal_clients(method):
    data_folder("mnist.npz")
    start = unequal.SEARCHES[method].start
    _reaches(unequal.trial(unequal.CLASSES, method, start, 0, rounds=unequal.EVERY))


def _reaches(curve):
    """A curve that moves: the trial itself holds the run to its epsilon."""
    assert len(curve) in (2, 3)
    assert all(0 <= each <= 100 for each in curve)
    assert len(set(curve)) > 1


def test_unequal_clients_share_all_images_and_have_few_classes():
    data_folder("mnist.npz")
    labels = unequal.mnist()[0][1].numpy()
    for kind, most in ((unequal.EQUAL, 10), (unequal.SIZES, 10), (unequal.CLASSES, 4)):
        parts = unequal.partition(kind)
        assert len(parts) == unequal.CLIENTS
        assert sorted(np.concatenate(parts)) == list(range(len(labels)))
        assert max(len(set(labels[each])) for each in parts) <= most
        sizes = {len(each) for each in parts}
        assert (sizes == {60}) if kind == unequal.EQUAL else max(sizes) > 10 * min(sizes)


def test_a_climb_ends_on_a_place_that_is_better_than_its_neighbours():
    tried = []

    def worth(settings):
        tried.append(settings)
        return -(np.log10(settings["a"]) ** 2) - (np.log10(settings["b"]) + 1) ** 2

    search = rounds.Search({"a": 100.0, "b": 1.0, "kept": 7.0}, {"a": 10.0, "b": 10.0})
    settings, number, inside = rounds.climb(worth, search)
    assert settings == {"a": 1.0, "b": 0.1, "kept": 7.0}
    assert (number, inside) == (len(tried), True)
    assert len({tuple(each.items()) for each in tried}) == number
    assert all({"a": 1.0, "b": b, "kept": 7.0} in tried for b in (0.01, 1.0))
    assert all({"a": a, "b": 0.1, "kept": 7.0} in tried for a in (0.1, 10.0))


def test_a_climb_says_when_it_was_cut_off_and_leaves_small_gains():
    search = rounds.Search({"a": 1.0}, {"a": 2.0})
    settings, number, inside = rounds.climb(lambda found: found["a"], search, most=5)
    assert settings["a"] == 2.0 ** (number - 2)
    assert not inside
    assert rounds.climb(lambda found: found["a"], search, gain=1.0) == ({"a": 1.0}, 3, True)
    assert rounds.climb(pytest.fail, rounds.Search({"a": 1.0}, {})) == ({"a": 1.0}, 1, True)


def test_a_comparison_against_rounds_tunes_on_one_seed_and_reports_others():
    def trial(method, settings, seed):
        return [0.0, 50.0, 90.0 - abs(settings["x"] - 4) + seed]

    (line,) = rounds.compare(trial, {"m": rounds.Search({"x": 1.0}, {"x": 2.0})}, 5, (0, 1, 2))
    assert line.settings == {"x": 4.0}
    assert line.finals == [90.0, 91.0, 92.0]
    assert line.median_curve() == [0.0, 50.0, 91.0]
    assert "| m | 50.0 | 91.0 | 90.0 to 92.0 | x 4 | 5 |" in rounds.table([line], 10)
    assert rounds.over(line, [replace(line, method="n", curves=((1.0,), (3.0,), (8.0,)))]) == (
        "+88.0 points over n in the median (+84.0 to +89.0 by seed)"
    )


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
