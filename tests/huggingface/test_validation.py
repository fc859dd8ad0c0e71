"""Public rows of a trainer of transformers: its figures, and the baselines beside them."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

import privada as pv
from privada.huggingface import ModelLoss
from tests.huggingface.test_trainer import METHOD, SIZES, bert, gpt2, labelled, rows, trainer

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")


def public_rows(labels, lengths=(5, 3)):
    count = len(labels)
    found = labelled(lengths, count, first=9).remove_columns("labels")
    return found.add_column("labels", labels)


def entropy(values):
    shares = np.array(list(Counter(values).values())) / len(values)
    return float(-(shares * np.log(shares)).sum())


def test_a_classifier_is_shown_beside_the_most_frequent_class_and_the_entropy_of_classes():
    labels = [1, 1, 0, 1, 1, 0, 1]
    made = trainer(eval_dataset=public_rows(labels), steps=4, eval_steps=2).train()
    assert [each.step for each in made.trainer.evaluations] == [2, 4]
    found = made.evaluate()
    assert found["eval_accuracy_baseline"] == pytest.approx(5 / 7)
    assert found["eval_loss_baseline"] == pytest.approx(entropy(labels), rel=1e-5)
    assert made.log_history[-1] == found | {"step": 4}
    assert made.trainer.ledger.charges()[0].count == 4  # nothing but the steps


def test_a_language_model_is_shown_beside_the_frequencies_of_words():
    public = rows((6, 4), 9, first=7)
    made = trainer(gpt2(), rows((6, 4)), eval_dataset=public, steps=1)
    learnt = [token for row in public["input_ids"] for token in row[1:]]
    found = made.evaluate()
    assert found["eval_loss_baseline"] == pytest.approx(entropy(learnt), rel=1e-5)
    assert found["eval_perplexity_baseline"] == pytest.approx(math.exp(entropy(learnt)), rel=1e-5)
    assert found["eval_perplexity"] == pytest.approx(math.exp(found["eval_loss"]))
    model, losses = made.model.eval(), []
    with torch.no_grad():
        for row in public["input_ids"]:
            tokens = torch.tensor([row])
            losses += [float(model(tokens, labels=tokens).loss)] * (len(row) - 1)
    assert found["eval_loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_labels_of_tokens_count_each():
    config = transformers.BertConfig(**SIZES, num_attention_heads=2, num_labels=3)
    torch.manual_seed(1)
    model = transformers.BertForTokenClassification(config)
    tokens = [[3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4]] * 5
    kinds = [[0, 1, -100, 1, 2, 1], [1, 1, 1, 0, -100, 2]] * 5
    private = datasets.Dataset.from_dict({"input_ids": tokens[::-1], "labels": kinds[::-1]})
    public = datasets.Dataset.from_dict({"input_ids": tokens[:7], "labels": kinds[:7]})
    made = trainer(model, private, batch_size=10, eval_dataset=public)
    found = made.evaluate()
    with torch.no_grad():
        chosen = model.eval()(torch.tensor(tokens[:7])).logits.argmax(2).numpy()
    counted = np.array(kinds[:7]) != -100
    assert found["eval_accuracy"] == pytest.approx((chosen == np.array(kinds[:7]))[counted].mean())
    wanted = np.array(kinds[:7])[counted].tolist()
    assert found["eval_accuracy_baseline"] == pytest.approx(wanted.count(1) / len(wanted))
    assert found["eval_loss_baseline"] == pytest.approx(entropy(wanted), rel=1e-5)


def test_numbers_have_their_mean_beside_them():
    config = transformers.BertConfig(**SIZES, num_attention_heads=2, num_labels=1)
    torch.manual_seed(1)
    private = rows(labels=[float(i % 3) for i in range(80)])
    public = rows((5,), 6, first=9, labels=[0.0, 1.0, 2.0, 5.0, 1.0, 3.0])
    made = trainer(transformers.BertForSequenceClassification(config), private, eval_dataset=public)
    found = made.evaluate()
    assert found["eval_R^2_baseline"] == pytest.approx(0.0)
    assert found["eval_loss_baseline"] == pytest.approx(np.var(public["labels"]))


def test_compute_metrics_gets_logits_and_labels_of_public_rows():
    labels = [1, 1, 0, 1, 1, 0, 1]
    public, seen = public_rows(labels), []

    def compute(given):
        logits, wanted = given
        assert given.predictions is logits
        seen.append(len(wanted))
        right = logits.argmax(-1) == wanted
        return {"right": right.mean(), "eval_wrong_loss": 1 - right.mean()}

    made = trainer(
        eval_dataset=public, compute_metrics=compute, metric_for_best_model="eval_wrong_loss"
    )
    first = made.trainer.validation.metrics[0]
    assert (first.name, first.greater) == ("wrong_loss", False)
    found = made.evaluate()
    logits = made.predict(public).predictions
    assert found["eval_right"] == pytest.approx((logits.argmax(1) == np.array(labels)).mean())
    assert found["eval_right"] + found["eval_wrong_loss"] == pytest.approx(1.0)
    assert found["eval_right_baseline"] == pytest.approx(5 / 7)
    assert set(found) == {
        "eval_right", "eval_wrong_loss", "eval_loss", "eval_right_baseline",
        "eval_wrong_loss_baseline", "eval_loss_baseline",
    }  # fmt: skip
    assert set(seen) == {7}
    turned = trainer(
        eval_dataset=public, compute_metrics=compute, metric_for_best_model="wrong_loss",
        greater_is_better=True,
    )  # fmt: skip
    assert turned.trainer.validation.metrics[0].greater


@pytest.mark.parametrize("wrong", [None, {}, {"f1": "good"}, [1.0]])
def test_compute_metrics_must_return_numbers_by_name(wrong):
    with pytest.raises(pv.ArgumentError, match="compute_metrics to return"):
        trainer(eval_dataset=public_rows([0, 1]), compute_metrics=lambda given: wrong)


def test_a_plain_trainer_evaluates_rows_of_several_lengths_by_its_collate():
    one = bert()
    made = pv.Trainer(
        one, ModelLoss(one), labelled((6, 4)), collate=pv.pad_to(6), method=METHOD, batch_size=20,
        steps=2, noise_multiplier=1.0, delta=1e-3,
        validation=pv.Validation(public_rows([0, 1, 1, 1, 0])),
    ).fit()  # fmt: skip
    found = made.evaluate()
    assert found.baselines["accuracy"] == pytest.approx(3 / 5)
    assert set(found.values) == {"accuracy", "loss"}
