"""Metrics of public records, against scikit-learn, and the baselines beside them."""

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import nn
from torch.nn import functional

import privada as pv
from privada.metrics.baselines import best_of_constants, constant_outputs
from privada.metrics.losses import metrics_of
from privada.metrics.metric import metric

RNG = np.random.default_rng(3)
OUTPUTS = torch.from_numpy(RNG.normal(size=(301, 4)))
CLASSES = torch.from_numpy(RNG.choice(4, size=301, p=[0.5, 0.2, 0.2, 0.1]))
NUMBERS = torch.from_numpy(RNG.gamma(2.0, size=(301, 1)))
BINARY = (CLASSES > 0).double()
TIED = OUTPUTS[:, :1].round()


def value(chosen, outputs, targets, chunk=64):
    parts = [
        chosen.each(outputs[at : at + chunk], targets[at : at + chunk])
        for at in range(0, len(outputs), chunk)
    ]
    return chosen.of(parts)


@pytest.mark.parametrize(
    ("chosen", "outputs", "targets", "expected"),
    [
        (pv.metrics.accuracy(), OUTPUTS, CLASSES,
         reference.accuracy_score(CLASSES, OUTPUTS.argmax(1))),
        (pv.metrics.accuracy(), TIED, BINARY[:, None],
         reference.accuracy_score(BINARY, TIED[:, 0] > 0)),
        (pv.metrics.auc(), TIED, BINARY, reference.roc_auc_score(BINARY, TIED[:, 0])),
        (pv.metrics.auc(), OUTPUTS[:, :2], BINARY.long(),
         reference.roc_auc_score(BINARY, OUTPUTS[:, 1] - OUTPUTS[:, 0])),
        (pv.metrics.r2(), OUTPUTS[:, :1], NUMBERS, reference.r2_score(NUMBERS, OUTPUTS[:, :1])),
        (pv.metrics.mean_absolute_error(), OUTPUTS[:, 0], NUMBERS[:, 0],
         reference.mean_absolute_error(NUMBERS, OUTPUTS[:, :1])),
        (pv.metrics.loss(nn.CrossEntropyLoss()), OUTPUTS, CLASSES,
         reference.log_loss(CLASSES, OUTPUTS.softmax(1))),
        (pv.metrics.loss(nn.MSELoss()), OUTPUTS[:, :1], NUMBERS,
         reference.mean_squared_error(NUMBERS, OUTPUTS[:, :1])),
        (pv.metrics.whole("f1", lambda o, t: reference.f1_score(t, o.argmax(1), average="macro")),
         OUTPUTS, CLASSES, reference.f1_score(CLASSES, OUTPUTS.argmax(1), average="macro")),
    ],
)  # fmt: skip
def test_they_are_those_of_scikit_learn(chosen, outputs, targets, expected):
    assert value(chosen, outputs, targets) == pytest.approx(expected, rel=1e-9)


def test_tokens_count_each_unless_they_are_ignored():
    outputs = torch.zeros(2, 3, 4)
    outputs[:, 1] = 1.0
    targets = torch.tensor([[1, 1, -100, -100], [1, 0, 0, 0]])
    assert value(pv.metrics.accuracy(), outputs, targets) == 3 / 6


def test_questions_with_yes_or_no_and_shares_of_classes():
    outputs = torch.tensor([[2.0, 1.0], [-1.0, 3.0]])
    yes_or_no = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    assert value(pv.metrics.accuracy(), outputs, yes_or_no) == 0.75
    shares = torch.tensor([[0.8, 0.2], [0.7, 0.3]])
    assert value(pv.metrics.accuracy(), outputs, shares) == 0.5


def test_figures_that_do_not_exist_are_not_numbers():
    assert np.isnan(value(pv.metrics.auc(), TIED, torch.zeros(301)))
    assert np.isnan(value(pv.metrics.r2(), TIED, torch.ones(301, 1)))
    with pytest.raises(pv.ArgumentError, match="two classes"):
        pv.metrics.auc().each(OUTPUTS, CLASSES)


def test_a_score_of_private_records_is_brought_into_its_bounds():
    score = pv.selection.bounded_loss(nn.MSELoss(), bound=1.0)
    made = metric(score)
    assert (made.name, made.greater) == ("loss", False)
    assert value(made, torch.tensor([[0.5], [9.0]]), torch.zeros(2, 1)) == 0.625


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (nn.CrossEntropyLoss(), ["accuracy", "loss"]),
        (functional.binary_cross_entropy_with_logits, ["accuracy", "loss"]),
        (nn.MSELoss(), ["R^2", "loss"]),
        (lambda out, y: (out - y).abs().mean(), ["loss"]),
    ],
)
def test_metrics_follow_from_the_loss(loss, names):
    assert [each.name for each in metrics_of(loss)] == names


def baselines(metrics, output, targets):
    constants = list(constant_outputs(output[:1], targets))
    return best_of_constants(metrics, constants, list(targets.split(100)))


def test_the_baseline_of_classes_is_the_most_frequent_one_and_their_entropy():
    metrics = (pv.metrics.accuracy(), pv.metrics.loss(nn.CrossEntropyLoss()))
    found = baselines(metrics, OUTPUTS, CLASSES)
    share = np.bincount(CLASSES) / 301
    assert found["accuracy"] == pytest.approx(share.max())
    assert found["loss"] == pytest.approx(-(share * np.log(share)).sum())


def test_the_baseline_of_two_classes_with_one_output():
    metrics = (
        pv.metrics.accuracy(), pv.metrics.auc(), pv.metrics.loss(nn.BCEWithLogitsLoss())
    )  # fmt: skip
    for targets in (BINARY, 1 - BINARY):
        found = baselines(metrics, OUTPUTS[:, 0], targets)
        p = float(targets.mean())
        assert found["accuracy"] == pytest.approx(max(p, 1 - p))
        assert found["area under the ROC curve"] == 0.5
        assert found["loss"] == pytest.approx(-(p * np.log(p) + (1 - p) * np.log(1 - p)))


def test_the_baseline_of_numbers_is_the_mean_or_the_median():
    metrics = (
        pv.metrics.r2(), pv.metrics.mean_absolute_error(), pv.metrics.loss(nn.MSELoss())
    )  # fmt: skip
    found = baselines(metrics, OUTPUTS[:, :1], NUMBERS)
    numbers = NUMBERS.numpy()
    assert found["R^2"] == pytest.approx(0.0, abs=1e-12)
    assert found["mean absolute error"] == pytest.approx(
        np.abs(numbers - np.median(numbers)).mean()
    )
    assert found["loss"] == pytest.approx(numbers.var())


def test_classes_that_do_not_occur_and_ignored_targets():
    outputs, targets = torch.zeros(6, 5, 2), torch.tensor([[1, 1], [1, 2], [2, 1]] * 2)
    targets[0, 0] = -100
    metrics = (pv.metrics.accuracy(), pv.metrics.loss(nn.CrossEntropyLoss()))
    found = baselines(metrics, outputs, targets)
    assert found["accuracy"] == pytest.approx(7 / 11)
    assert np.isfinite(found["loss"])


def test_outputs_of_several_parts_count_by_their_logits():
    outputs = {"loss": None, "logits": OUTPUTS}
    accuracy = pv.metrics.accuracy()
    right = accuracy.of([accuracy.each(outputs, CLASSES)])
    assert right == value(accuracy, OUTPUTS, CLASSES)
    (constant,) = constant_outputs({"logits": OUTPUTS[:1]}, CLASSES)
    found = best_of_constants((accuracy,), [constant], [CLASSES])
    assert found["accuracy"] == pytest.approx(np.bincount(CLASSES).max() / 301)


def test_what_no_constant_has_a_figure_for_is_left_out():
    def fails(outputs, targets):
        raise RuntimeError("no")

    metrics = (pv.metrics.Metric("own", fails), pv.metrics.accuracy())
    assert set(baselines(metrics, OUTPUTS, CLASSES)) == {"accuracy"}
    assert list(constant_outputs({"other": OUTPUTS}, CLASSES)) == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: pv.metrics.Metric("x", 3), "each=3"),
        (lambda: pv.metrics.Metric("x", print, 3), "reduce=3"),
        (lambda: pv.metrics.Metric("", print), "name"),
        (lambda: pv.metrics.Metric("x", print, greater=1), "greater"),
        (lambda: pv.Validation(None, every=0), "every"),
        (lambda: pv.Validation(None, batch_size=0), "batch_size"),
        (lambda: pv.Validation(None, metrics=["accuracy"]), "pv.metrics"),
        (lambda: pv.Validation(None, metrics=[]), "none"),
        (lambda: pv.Validation(None, metrics=[pv.metrics.auc(), pv.metrics.auc()]), "different"),
    ],
)
def test_wrong_arguments_are_named(made, words):
    with pytest.raises(pv.ArgumentError, match=words):
        made()
