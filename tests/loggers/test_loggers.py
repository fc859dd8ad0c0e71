"""Loggers: what they write, read back, and that none of it is of a private record."""

import csv
import json

import numpy as np
import pytest
import torch

import privada as pv
from privada.core.errors import ArgumentError
from privada.core.values import Release
from privada.loggers.by_path import logger_for
from privada.query.gradients import GradientQuery
from tests.train.test_evaluations import PRIVATE, PUBLIC, made

FIGURES = {"train/lr", "train/noise_multiplier", "train/clip_norm", "train/epsilon"}


def run_with(*loggers, steps=7, **changes):
    changes = {"validation": pv.Validation(PUBLIC, every=5), "steps": steps} | changes
    return made(**changes).fit(callbacks=list(loggers))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def expected(run, every):
    """Return what a logger writes of a run, by step and name."""
    found = {}
    for step in run.history:
        if step.step % every == 0 or step.step == run.steps_done:
            found |= {
                (step.step, "train/lr"): step.lr,
                (step.step, "train/noise_multiplier"): step.noise_multiplier,
                (step.step, "train/clip_norm"): 1.0,
                (step.step, "train/epsilon"): step.epsilon,
            }
    for each in run.evaluations:
        found |= {(each.step, f"validation/{n}"): v for n, v in each.values.items()}
        found |= {(each.step, f"baseline/{n}"): v for n, v in each.baselines.items()}
    return found


def test_json_lines(tmp_path):
    run = run_with(pv.loggers.JSONLines(tmp_path / "run.jsonl", every=3))
    first, *rest = lines(tmp_path / "run.jsonl")
    assert first["method"] == run.method.describe()
    found = {(row["step"], n): v for row in rest for n, v in row.items() if n != "step"}
    assert found == pytest.approx(expected(run, 3))


def test_csv(tmp_path):
    run = run_with(pv.loggers.CSV(tmp_path / "run.csv", every=3))
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {(int(row["step"]), row["name"]): float(row["value"]) for row in rows}
    assert len(found) == len(rows)
    assert found == pytest.approx(expected(run, 3))


def events_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return events.Reload()


def test_tensorboard(tmp_path):
    run = run_with(pv.loggers.TensorBoard(tmp_path / "run", every=3))
    events = events_of(tmp_path / "run")
    found = {
        (e.step, tag): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)
    }
    assert found == pytest.approx(expected(run, 3), rel=1e-6)  # which are kept in single precision
    (said,) = events.Tensors("settings/text_summary")
    assert run.method.describe() in said.tensor_proto.string_val[0].decode()


def test_tensorboard_goes_on_where_a_resumed_run_does(tmp_path):
    ledger, place = tmp_path / "ledger", tmp_path / "run.pt"
    run = made(steps=6, ledger=ledger, validation=None)
    run.save(place)

    class Crash(pv.Callback):
        def on_step(self, event):
            if event.step == 4:
                raise KeyboardInterrupt

    def logger():
        return pv.loggers.TensorBoard(tmp_path / "run", every=1)

    with pytest.raises(KeyboardInterrupt):
        run.fit(callbacks=[logger(), Crash()], checkpoint=place)
    run.ledger.close()
    made(steps=6, ledger=ledger, validation=None, resume=place).fit(callbacks=[logger()])
    steps = [event.step for event in events_of(tmp_path / "run").Scalars("train/lr")]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def mlflow_uri(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes half a minute to make
    return (tmp_path / "runs").as_uri()


def test_mlflow(mlflow_uri):
    from mlflow.tracking import MlflowClient

    metrics = [pv.metrics.r2(), pv.metrics.accuracy()]
    logger = pv.loggers.MLflow("patients", tracking_uri=mlflow_uri, every=3)
    run = run_with(logger, validation=pv.Validation(PUBLIC, every=5, metrics=metrics[1:]))
    client = MlflowClient(tracking_uri=mlflow_uri)
    kept = client.get_run(logger.run_id)
    assert kept.info.status == "FINISHED"
    assert kept.info.run_name == run.statement().run
    assert client.get_experiment(kept.info.experiment_id).name == "patients"
    assert kept.data.params["method"] == run.method.describe()
    found = {
        (each.step, name): each.value
        for name in kept.data.metrics
        for each in client.get_metric_history(logger.run_id, name)
    }
    assert found == pytest.approx(expected(run, 3))

    another = pv.loggers.MLflow("patients", tracking_uri=mlflow_uri)
    with pytest.raises(KeyboardInterrupt):
        run_with(another, Interrupted())
    assert client.get_run(another.run_id).info.status == "FAILED"
    given = client.create_run(kept.info.experiment_id).info.run_id
    run_with(pv.loggers.MLflow(tracking_uri=mlflow_uri, run_id=given))
    assert client.get_run(given).info.status == "RUNNING"  # which is for whoever began it to end
    assert "train/lr" in client.get_run(given).data.metrics


class Interrupted(pv.Callback):
    def on_step(self, event):
        raise KeyboardInterrupt


def test_names_that_mlflow_does_not_take_are_changed():
    written = []

    class Client:
        def log_metric(self, run_id, key, value, timestamp, step):
            written.append(key)

    logger = pv.loggers.MLflow()
    logger._client = Client()
    logger.write(1, {"validation/R^2": 0.5, "validation/area under the ROC curve": 0.5})
    assert written == ["validation/R_2", "validation/area under the ROC curve"]


@pytest.mark.parametrize(
    ("package", "make"),
    [("tensorboard", lambda: pv.loggers.TensorBoard("x")), ("mlflow", pv.loggers.MLflow)],
)
def test_a_missing_package_is_named_with_the_remedy(monkeypatch, package, make):
    monkeypatch.setattr("privada.loggers.logger.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=rf"{package}.*privada\[loggers\].*JSONLines"):
        make()


def test_a_path_says_which_logger_is_meant(tmp_path):
    kinds = {"a.jsonl": "JSONLines", "a.CSV": "CSV", "runs/first": "TensorBoard"}
    for name, kind in kinds.items():
        assert type(logger_for(tmp_path / name)).__name__ == kind
    (tmp_path / "b.csv").mkdir()
    for name in ("none/a.jsonl", "b.csv"):
        with pytest.raises(ArgumentError, match="Cannot write to"):
            logger_for(tmp_path / name)


def test_private_scores_are_called_charged(tmp_path):
    run_with(
        pv.loggers.JSONLines(tmp_path / "a"), noise_multiplier=None, delta=None, steps=4,
        budget=pv.Budget(3.0, 1e-4), ledger=pv.Ledger(None, pv.Budget(5.0, 1e-4)),
        validation=None,
        stopping=pv.EarlyStopping(PUBLIC, noise_multiplier=10.0, every=4),
    )  # fmt: skip
    assert any("charged/accuracy" in row for row in lines(tmp_path / "a"))


def test_importing_loggers_needs_none_of_them():
    from tests.test_imports import modules_after

    loaded = modules_after("import privada; privada.loggers.MLflow()")
    assert not {name.split(".")[0] for name in loaded} & {"tensorboard", "mlflow", "rich"}


def test_there_are_fifty_steps_unless_something_else_is_said(tmp_path):
    run_with(pv.loggers.JSONLines(tmp_path / "a"), steps=120, validation=None)
    assert [row["step"] for row in lines(tmp_path / "a")[1:]] == list(range(3, 121, 3))


def test_lines_are_added_and_a_crash_loses_none(tmp_path):
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_with(pv.loggers.JSONLines(path, every=1), Interrupted())
    assert [row.get("step") for row in lines(path)] == [None, 1]
    run_with(pv.loggers.JSONLines(path, every=7), validation=None)
    assert [row.get("step") for row in lines(path)] == [None, 1, None, 7]


def test_what_is_not_finite_is_null_in_json(tmp_path):
    logger = pv.loggers.JSONLines(tmp_path / "a")
    logger._open()
    logger.write(1, {"x": float("nan"), "y": float("inf"), "z": 1.0})
    assert lines(tmp_path / "a") == [{"step": 1, "x": None, "y": None, "z": 1.0}]
    logger._file.close()


@pytest.mark.parametrize("kind", [pv.loggers.JSONLines, pv.loggers.CSV, pv.loggers.TensorBoard])
def test_what_cannot_be_written_to_is_named(tmp_path, kind):
    (tmp_path / "file").write_text("")
    run = made(validation=None)
    with pytest.raises(ArgumentError, match="Cannot write to"):
        run.fit(callbacks=[kind(tmp_path / "file" / "inside")])
    assert run.steps_done == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pv.loggers.JSONLines(3), "path"),
        (lambda: pv.loggers.CSV("a", every=0), "every"),
        (lambda: pv.loggers.TensorBoard(None), "folder"),
        (lambda: pv.loggers.MLflow(3), "experiment"),
        (lambda: pv.loggers.MLflow(run_id=3), "run_id"),
    ],
)
def test_wrong_arguments_are_named(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


# ---------------------------------------------------------------------- nothing private


def everything(folder, monkeypatch, data, leak=None):
    """Return all that is logged of a run whose releases are the same for whatever records."""
    clipped = []

    def add_noise(self, total, receipt):
        clipped.append(total.value.clone())
        value = torch.full_like(total.value, 0.1 * len(clipped))
        return Release(value, 1.0, 30.0, receipt)

    folder.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(GradientQuery, "add_noise", add_noise)
        patched.setattr("time.time", lambda: 1e9)
        loggers = [
            pv.loggers.JSONLines(folder / "a.jsonl", every=1),
            pv.loggers.CSV(folder / "a.csv", every=1),
            pv.loggers.TensorBoard(folder / "events", every=1),
        ]
        if leak is not None:
            loggers.append(leak(clipped, folder / "leak"))
        model = torch.nn.Linear(4, 2)
        for each in model.parameters():
            torch.nn.init.ones_(each)
        run = pv.Trainer(
            model, torch.nn.CrossEntropyLoss(), data, method=pv.methods.DPSGD(lr=1.0),
            batch_size=30, steps=6, noise_multiplier=2.0, delta=1e-4, population=300, run="one",
            validation=pv.Validation(PUBLIC, every=2),
        ).fit(callbacks=loggers)  # fmt: skip
    events = events_of(folder / "events")
    scalars = [
        (tag, event.step, event.value, event.wall_time)
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    ]
    texts = {path.name: path.read_text() for path in sorted(folder.glob("*")) if path.is_file()}
    return clipped, (texts, scalars, run.evaluations, list(run.history))


def test_nothing_that_is_logged_depends_on_a_record_but_through_releases(tmp_path, monkeypatch):
    inputs, targets = PRIVATE
    more = np.concatenate([inputs, 100 + inputs[:1]]), np.append(targets, targets[0])
    ours, one = everything(tmp_path / "one", monkeypatch, PRIVATE)
    theirs, other = everything(tmp_path / "other", monkeypatch, more)
    assert any(not torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert one == other


def test_the_test_above_can_fail(tmp_path, monkeypatch):
    class Leak(pv.loggers.JSONLines):
        def __init__(self, clipped, path):
            super().__init__(path, every=1)
            self.clipped = clipped

        def write(self, step, figures):
            super().write(step, {**figures, "sum": float(self.clipped[-1].norm())})

    _, one = everything(tmp_path / "one", monkeypatch, PRIVATE, Leak)
    _, other = everything(tmp_path / "other", monkeypatch, PRIVATE, Leak)  # another draw
    assert one != other


def test_times_say_nothing_of_steps(tmp_path):
    run_with(pv.loggers.TensorBoard(tmp_path / "run", every=1))
    events = events_of(tmp_path / "run")
    times = {e.wall_time for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    assert len(times) == 1
