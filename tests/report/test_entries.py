"""Runs as entries: from a trainer, a search or a folder, and what is refused."""

import json

import pytest
import torch

import privada as pv
from privada.core.errors import ArgumentError
from privada.report import Entry
from privada.report.entries import figures_of, with_baselines
from privada.report.statements import statement_of
from tests.report.conftest import results, searched, trained


def test_a_statement_survives_being_written():
    made = trained().statement()
    again = statement_of(json.loads(made.to_json()))
    assert again == made
    assert str(again) == str(made)


def test_a_search_survives_being_written(world):
    assert statement_of(json.loads(json.dumps(world.search.statement))).to_dict() == (
        world.search.statement
    )


def test_of_a_trainer():
    trainer = trained()
    entry = Entry.of_trainer(trainer)
    assert entry.name == "dp-sgd"
    assert [step["step"] for step in entry.history] == list(range(1, 13))
    assert entry.history[-1]["epsilon"] == trainer.epsilon()
    assert entry.configuration["steps"] == 12


def test_of_a_search_whose_best_run_alone_is_released():
    entry = Entry.of_selection(searched(None, how="repeat-geometric"), name="best")
    assert entry.tried is None
    assert entry.chosen == "repeat-geometric"
    assert list(entry.metrics) == ["score on records set apart, with noise"]


def test_of_a_folder(world, tmp_path):
    assert Entry.of_folder(world.folder / "plain") == world.first
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "statement.json").write_text(json.dumps(dict(world.first.statement)))
    entry = Entry.of_folder(bare)
    assert (entry.name, list(entry.history), dict(entry.metrics)) == ("bare", [], {})


def test_of_a_folder_of_tuning(world, tmp_path):
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "statement.json").write_text(json.dumps(dict(world.search.statement)))
    tuning = {
        "settings": {"lr": 0.1},
        "score": 0.5,
        "how": "compose-pld",
        "candidates": 2,
        "prices": dict(world.search.prices),
        "tried": list(world.search.tried),
        "grid": {"lr": [0.1, 0.01]},
    }
    (folder / "tuning.json").write_text(json.dumps(tuning))
    entry = Entry.of_folder(folder)
    assert entry.prices == world.search.prices
    assert entry.chosen == "compose-pld"
    assert len(entry.tried) == 2
    assert entry.configuration["lr"] == 0.1
    assert entry.metrics == {"score on records set apart, with noise": 0.5}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": " "}, "name"),
        ({"statement": {}}, "no 'dataset'"),
        ({"statement": []}, "statement to map names"),
        ({"history": [{"step": 1}]}, "each step of the history"),
        ({"history": "all"}, "list of steps"),
        ({"metrics": {"accuracy": "high"}}, "metrics to be numbers"),
        ({"metrics": {"accuracy": True}}, "metrics to be numbers"),
        ({"configuration": {1: 2}}, "configuration to map names"),
        ({"prices": {"way": None}}, "prices to be numbers"),
        ({"tried": [{"score": 1}]}, "settings and a score"),
        ({"membership": {"attacks": "all", "records": 1, "runs": 8}}, "a list of attacks"),
        ({"membership": {"attacks": [], "records": "many", "runs": 8}}, "records"),
        ({"membership": {"attacks": [{"name": "one"}], "records": 1, "runs": 8}}, "each attack"),
    ],
)
def test_what_is_refused(world, change, says):
    fields = {"name": "run", "statement": world.first.statement}
    with pytest.raises(ArgumentError, match=says):
        Entry(**(fields | change))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", "1"),
        ("private", "yes"),
        ("accountant", "abacus"),
        ("neighbouring_relation", "cousins"),
        ("budget", {"epsilon": 1.0}),
        ("budget", {"epsilon": -1.0, "delta": 1e-5}),
        ("charges", [{"run": "one"}]),
        ("charges", None),
        ("method", None),
    ],
)
def test_statements_that_are_refused(world, name, value):
    with pytest.raises(ArgumentError, match="Expected a statement"):
        statement_of({**world.first.statement, name: value})


def test_an_event_that_is_not_known_is_refused(world):
    said = json.loads(json.dumps(dict(world.first.statement)))
    said["charges"][0]["event"]["kind"] = "wish"
    with pytest.raises(ArgumentError, match="Expected a statement"):
        statement_of(said)


def test_folders_that_are_refused(world, tmp_path):
    with pytest.raises(ArgumentError, match="not there"):
        Entry.of_folder(tmp_path / "none")
    with pytest.raises(ArgumentError, match=r"no statement\.json"):
        Entry.of_folder(tmp_path)
    folder = results(tmp_path / "damaged", world.first)
    (folder / "history.json").write_text("[{")
    with pytest.raises(ArgumentError, match="Expected JSON"):
        Entry.of_folder(folder)
    (folder / "history.json").write_text("{}")
    with pytest.raises(ArgumentError, match="damaged"):
        Entry.of_folder(folder)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            {"model": "linear", "hidden": [64], "run": "r", "when_lost": "refuse", "lr": 0.5},
            {"model": "linear", "lr": 0.5},
        ),
        ({"model": "mlp", "hidden": [64], "when_lost": "pay-again"}, None),
    ],
)
def test_settings_that_a_run_did_not_use_are_left_out(tmp_path, world, given, shown):
    folder = results(tmp_path / "run", world.first)
    (folder / "config.json").write_text(json.dumps(given))
    assert Entry.of_folder(folder).configuration == (given if shown is None else shown)


def test_a_folder_may_have_a_membership_audit(tmp_path, world):
    folder = results(tmp_path / "run", world.first)
    attack = {"name": "plain", "auc": 0.5, "limits": None}
    attack |= {"false_positives": [0.0, 1.0], "true_positives": [0.0, 1.0]}
    found = {"attacks": [attack], "records": 10, "runs": 8}
    (folder / "membership.json").write_text(json.dumps(found))
    assert Entry.of_folder(folder).membership == found
    attack["true_positives"] = [0.0]  # a curve that is cut off
    (folder / "membership.json").write_text(json.dumps(found))
    with pytest.raises(ArgumentError, match="each attack of membership"):
        Entry.of_folder(folder)


def evaluated():
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
    public = pv.Validation((x, (x.sum(dim=1) > 1.4).long()), every=4)
    return trained(validation=public)


def test_a_trainer_with_public_records_has_metrics_baselines_and_evaluations():
    run = evaluated()
    entry = Entry.of_trainer(run)
    name = "accuracy on public records"
    assert entry.metrics[name] == run.evaluate().values["accuracy"]
    assert entry.baselines[name] == run.evaluate().baselines["accuracy"]
    assert [each["step"] for each in entry.evaluations] == [4, 8, 12]
    assert entry.evaluations[0][name] == run.evaluations[0].values["accuracy"]
    given = Entry.of_trainer(run, metrics={"own": 1.0})
    assert (dict(given.metrics), dict(given.baselines)) == ({"own": 1.0}, {})


def test_what_is_not_a_number_is_left_out():
    evaluation = pv.Evaluation(3, {"auc": float("nan"), "loss": 0.5}, {"auc": 0.5}, charged=True)
    assert figures_of(evaluation) == {
        "metrics": {"loss on records set apart, with noise": 0.5},
        "baselines": {"auc on records set apart, with noise": 0.5},
    }


def test_a_folder_has_baselines_and_evaluations(tmp_path):
    entry = Entry.of_trainer(evaluated())
    folder = results(tmp_path / "run", entry)
    (folder / "metrics.json").write_text(json.dumps(with_baselines(entry.metrics, entry.baselines)))
    (folder / "evaluations.json").write_text(json.dumps(list(entry.evaluations)))
    found = Entry.of_folder(folder)
    assert found.metrics == entry.metrics
    assert found.baselines == entry.baselines
    assert found.evaluations == entry.evaluations


@pytest.mark.parametrize(
    "evaluations",
    ["many", 3, [{"accuracy": 0.5}], [{"step": 1, "accuracy": "high"}], [3]],
)
def test_wrong_evaluations_are_refused(evaluations):
    statement = trained().statement().to_dict()
    with pytest.raises(ArgumentError, match="evaluation"):
        Entry("run", statement, evaluations=evaluations)
