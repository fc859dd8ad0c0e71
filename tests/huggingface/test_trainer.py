"""Models and data sets of Hugging Face: the trainer, and a loop as their users write it."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.clipping.one_pass import OnePassEngine
from privada.huggingface import ModelLoss, PrivateTrainer

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
ROWS, LENGTH = 80, 6
SIZES = {"vocab_size": 23, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
METHOD = pv.methods.DPSGD(lr=0.1, clip=1.0)


def bert(**more):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, num_attention_heads=2, **more)
    return transformers.BertForSequenceClassification(config)


def gpt2():
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    drops = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=23, n_positions=LENGTH, **sizes, **drops)
    return transformers.GPT2LMHeadModel(config)


def rows(lengths=(LENGTH,), count=ROWS, first=3, **more):
    """Return rows of tokens, whose lengths take turns."""
    tokens = [
        [first + (i + j) % 20 for j in range(lengths[i % len(lengths)])] for i in range(count)
    ]
    return datasets.Dataset.from_dict({"input_ids": tokens} | more)


def labelled(lengths=(LENGTH,), count=ROWS, first=3):
    masks = [[1] * lengths[i % len(lengths)] for i in range(count)]
    labels = [i % 2 for i in range(count)]
    return rows(lengths, count, first, attention_mask=masks, labels=labels)


def trainer(model=None, data=None, **given):
    settings = {
        "method": METHOD, "batch_size": ROWS, "sampling": "everyone", "steps": 1, "seed": 3,
        "max_length": LENGTH, "noise_multiplier": 1.0, "delta": 1e-3,
    } | given  # fmt: skip
    return PrivateTrainer(
        bert() if model is None else model,
        train_dataset=labelled() if data is None else data,
        **settings,
    )


def parameters(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_a_data_set_of_rows_trains_as_tensors_do():
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, by_rows, by_trainer = bert(**quiet), bert(**quiet), bert(**quiet)
    data = labelled()

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, tokens):
            return self.inner(tokens).logits

    settings = {
        "method": METHOD, "batch_size": ROWS, "sampling": "everyone", "steps": 2, "seed": 3,
        "noise_multiplier": 1.0, "delta": 1e-3,
    }  # fmt: skip
    pairs = torch.tensor(data["input_ids"]), torch.tensor(data["labels"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pv.Trainer(Logits(), nn.CrossEntropyLoss(), pairs, **settings).fit()
        made = pv.Trainer(by_rows, ModelLoss(by_rows), data, example=data[0], **settings).fit()
        trainer(by_trainer, data, steps=2).train()
    assert isinstance(made._run.tried.engine, OnePassEngine)
    torch.testing.assert_close(parameters(by_rows), parameters(model))
    torch.testing.assert_close(parameters(by_trainer), parameters(model))


def test_a_loop_as_users_of_transformers_write_it():
    one, other, data = bert(), bert(), labelled()

    def loop_of(model):
        return pv.PrivateLoop(
            model, torch.optim.SGD(model.parameters(), lr=0.1), ModelLoss(model), data, clip=1.0,
            collate=pv.pad_to(LENGTH), batch_size=20, steps=3, noise_multiplier=1.0, delta=1e-3,
            seed=5,
        )  # fmt: skip

    model, optimizer, _, loader = loop_of(one)
    for batch in loader:
        batch = {name: value.to("cpu") for name, value in batch.items()}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model, optimizer, criterion, loader = loop = loop_of(other)
    for batch in loader:
        labels = batch.pop("labels")
        criterion(model(**batch), labels).backward()
        optimizer.step()
    assert loop.steps_done == 3
    assert torch.equal(parameters(one), parameters(other))


def test_a_loop_says_what_its_model_is_to_be_given():
    one = bert()
    loss = ModelLoss(one)
    loop = pv.PrivateLoop(
        one, torch.optim.SGD(one.parameters(), lr=0.1), lambda out, y: loss(out, y), labelled(),
        example=labelled()[0], clip=1.0, batch_size=20, steps=3, noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip
    batch = next(iter(loop.loader))
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    for wrong in (
        lambda: loop.model(input_ids=batch["input_ids"]),
        lambda: loop.model(batch["input_ids"], attention_mask=batch["attention_mask"]),
        lambda: loop.model(**batch, output_attentions=True),
    ):
        with pytest.raises(pv.ArgumentError, match=r"Call model\(\*\*batch\)"):
            wrong()
    with pytest.raises(pv.ArgumentError, match="the loss that the loop was made with"):
        loop.model(**batch).loss  # noqa: B018
    labels = batch.pop("labels")
    with pytest.raises(pv.ArgumentError, match="given its labels"):
        loop.model(**batch).loss  # noqa: B018
    with pytest.raises(pv.PrivateValueError, match="the criterion that the loop gives"):
        loop.model(**batch).logits  # noqa: B018
    loop.criterion(loop.model(**batch), labels).backward()


def test_rows_are_cut_and_padded_one_by_one():
    long, short = labelled((LENGTH,)), labelled((LENGTH, 4, 9))
    made = trainer(data=short)
    inputs, labels = made._rows([short[1]])
    assert inputs["input_ids"].tolist() == [[4, 5, 6, 7, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert labels.tolist() == [1]
    assert made._rows([short[2]])[0]["input_ids"].shape == (1, LENGTH)
    assert made._rows([long[0]])[0]["input_ids"].tolist() == [long[0]["input_ids"]]


def test_other_columns_are_left_out_and_masks_are_made():
    data = rows((LENGTH, 4), text=["a text"] * ROWS, idx=[*range(ROWS)], label=[0, 1] * 40)
    made = trainer(data=data).train()
    inputs, _ = made._rows([data[1]])
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]


def test_a_language_model_learns_the_tokens_and_not_the_padding():
    data = rows((LENGTH, 4), attention_mask=[[1] * LENGTH, [1] * 4] * 40)
    made = trainer(gpt2(), data)
    _, labels = made._rows([data[1]])
    assert labels.tolist() == [[4, 5, 6, 7, -100, -100]]
    found = made.train().evaluate(rows((5,), 9, first=7))
    assert found["eval_perplexity"] == pytest.approx(torch.tensor(found["eval_loss"]).exp().item())
    assert "eval_accuracy" not in found


def test_the_loss_of_public_rows_is_that_of_the_model():
    public = labelled((5, 3), 9, first=8)
    made = trainer(eval_dataset=public, steps=1)
    with torch.no_grad():
        own = [
            made.model.eval()(
                input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])
            )
            for row in public
        ]
    right = sum(
        int(out.logits.argmax() == row["labels"]) for out, row in zip(own, public, strict=True)
    )
    found = made.evaluate(batch_size=4)
    assert found["eval_loss"] == pytest.approx(float(sum(o.loss for o in own)) / 9, rel=1e-5)
    assert found["eval_accuracy"] == pytest.approx(right / 9)
    logits, labels, figures = made.predict(public.remove_columns("labels"), batch_size=2)
    np.testing.assert_allclose(logits, torch.cat([o.logits for o in own]), rtol=1e-4, atol=1e-6)
    assert labels is None
    assert figures == {}
    assert made.predict(public).label_ids.tolist() == public["labels"]
    assert made.trainer.ledger.charges() == ()


def test_private_rows_are_refused_where_public_ones_are_wanted():
    data = labelled()
    made = trainer(data=data)
    with pytest.raises(pv.DataError, match="other records than the private ones"):
        made.evaluate(data)
    with pytest.raises(pv.DataError, match="other records than the private ones"):
        trainer(data=data, eval_dataset=data)
    with pytest.raises(pv.ArgumentError, match="eval_dataset"):
        made.evaluate()
    for ask in (made.evaluate, made.predict):
        with pytest.raises(pv.DataError, match="at least one row"):
            ask(rows(count=0))


def test_what_is_saved_is_a_model_and_its_statement(tmp_path):
    made = trainer().train()
    folder = made.save_model(tmp_path / "model")
    again = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert torch.equal(parameters(again), parameters(made.model))
    statement = json.loads((folder / "privacy_statement.json").read_text())
    assert statement == json.loads(made.statement().to_json())


def test_a_person_moves_the_model_as_one():
    people = [i // 8 for i in range(ROWS)]
    made = trainer(gpt2(), rows(), groups=people, rows_per_unit=4, batch_size=10, unit="role")
    made.train()
    assert "all their rows" in str(made.statement())
    assert made.trainer.ledger.charges()[0].count == 1


def test_low_rank_adapters_are_trained_alone_in_one_pass():
    peft = pytest.importorskip("peft")
    base = gpt2()
    before = parameters(base)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True
    )
    made = trainer(peft.get_peft_model(base, config), rows(), steps=3).train()
    assert isinstance(made.trainer._run.tried.engine, OnePassEngine)
    assert not made.trainer._run.tried.engine.whole_modules
    moved = {n: bool(p.abs().sum() > 0) for n, p in made.model.named_parameters() if "lora_B" in n}
    assert moved
    assert all(moved.values())
    frozen = [p.detach().reshape(-1) for n, p in made.model.named_parameters() if "lora" not in n]
    assert torch.equal(torch.cat(frozen), before)


# ---------------------------------------------------------------------- what is refused


class ByLongest:
    """Pads to the longest row of a list, as DataCollatorWithPadding does."""

    def __init__(self, **options):
        self.options = options

    def __call__(self, rows):
        longest = max(len(row["input_ids"]) for row in rows)
        for row in rows:
            row["input_ids"] = row["input_ids"] + [0] * (longest - len(row["input_ids"]))
            row.pop("attention_mask")
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def test_a_collator_that_pads_to_the_longest_row_is_refused():
    with pytest.raises(pv.ArgumentError, match="longer for a longer record"):
        trainer(data=labelled((LENGTH, 4)), max_length=None, data_collator=ByLongest())
    with pytest.raises(pv.ArgumentError, match="longer for a longer record"):
        pv.Trainer(
            bert(), lambda out, y: nn.functional.cross_entropy(out.logits, y), labelled(),
            collate=ByLongest(), method=METHOD, batch_size=10, steps=1, noise_multiplier=1.0,
            delta=1e-3,
        )  # fmt: skip


def test_the_collators_of_transformers_pad_to_a_public_length():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab={"[PAD]": 0}))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    longest = transformers.DataCollatorWithPadding(tokenizer)
    with pytest.raises(pv.ArgumentError, match="longer for a longer record"):
        trainer(data=labelled((LENGTH, 4)), max_length=None, data_collator=longest)
    fixed = transformers.DataCollatorWithPadding(tokenizer, padding="max_length", max_length=LENGTH)
    made = trainer(data=labelled((LENGTH, 4)), max_length=None, data_collator=fixed).train()
    assert made._rows([labelled((LENGTH, 4))[1]])[0]["input_ids"].shape == (1, LENGTH)


def test_a_collator_that_pads_to_a_public_length_is_used_on_each_row_alone():
    seen = []

    def collator(given):
        seen.append(len(given))
        (row,) = given
        tokens = (row["input_ids"] + [0] * LENGTH)[:LENGTH]
        return {"input_ids": torch.tensor([tokens]), "labels": torch.tensor([row["labels"]])}

    trainer(data=labelled((LENGTH, 4)), max_length=None, data_collator=collator).train()
    assert set(seen) == {1}


WRONG = {
    "no length": ({"max_length": None}, "Expected max_length"),
    "both": ({"data_collator": ByLongest()}, "got both"),
    "accumulation": ({"gradient_accumulation_steps": 4}, "Raise batch_size"),
    "arguments": (
        {
            "args": SimpleNamespace(
                per_device_train_batch_size=4,
                gradient_accumulation_steps=8,
                num_train_epochs=2,
                learning_rate=1e-4,
            )
        },
        r"DPAdam\(lr=0.0001, clip=1.0\), batch_size=32, epochs=2, budget",
    ),
    "a checkpoint's folder": ({"output_dir": "here"}, "save_model"),
    "several public data sets": (
        {"eval_dataset": datasets.DatasetDict({"validation": labelled(first=9)})},
        r"such as rows\['validation'\]",
    ),
    "another logger": ({"report_to": "wandb"}, "pv.loggers.Logger"),
    "no folder for logs": ({"report_to": ["tensorboard"]}, "logging_dir"),
    "no such figure": (
        {"eval_dataset": labelled(first=9), "metric_for_best_model": "f1"},
        "one of the figures accuracy, loss",
    ),
    "optimisers": ({"optimizers": (None, None)}, "The method is the optimiser"),
    "no rows": ({"train_dataset": datasets.Dataset.from_dict({"input_ids": []})}, "empty"),
    "a stream": ({"train_dataset": iter([])}, "without streaming"),
    "no method": ({"method": None}, "Expected method and batch_size"),
    "a collator of tokens": (
        {
            "max_length": None,
            "data_collator": type(
                "DataCollatorForLanguageModeling",
                (),
                {"mlm": False, "__call__": lambda self, rows: {}},
            )(),
        },
        "Give max_length=64 in its place",
    ),
    "no length of zero": ({"max_length": 0}, "max_length"),
    "several data sets": (
        {"train_dataset": datasets.DatasetDict({"train": labelled(), "test": labelled()})},
        r"such as rows\['train'\]",
    ),
    "no labels": ({"train_dataset": rows()}, 'a column "labels" or "label", got input_ids'),
    "a learning rate": ({"learning_rate": 0.1}, "It is the method's"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_is_refused_with_the_remedy(wrong):
    given, words = WRONG[wrong]
    data = given.get("train_dataset", labelled())
    with pytest.raises((pv.ArgumentError, pv.DataError), match=words):
        trainer(data=data, **{n: v for n, v in given.items() if n != "train_dataset"})


def test_labels_among_the_inputs_are_refused_in_words():
    class Mean(nn.Module):
        """Averages its loss over the batch, as models do that are given labels."""

        def __init__(self):
            super().__init__()
            self.inner = bert()

        def forward(self, input_ids, goals):
            return self.inner(input_ids=input_ids, labels=goals)

    data = rows(goals=[0, 1] * 40, labels=[0, 1] * 40)
    with pytest.raises(pv.ModelError, match="keep them out of the inputs"):
        pv.Trainer(
            Mean(), lambda out, y: out.loss, data, example=data[0], method=METHOD, batch_size=10,
            steps=1, noise_multiplier=1.0, delta=1e-3,
        )  # fmt: skip


def test_a_row_that_does_not_fit_counts_as_zero():
    def trained(data):
        model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        pv.Trainer(
            model, ModelLoss(model), data, method=METHOD, batch_size=ROWS, population=ROWS,
            example=data[0],
            sampling="everyone", steps=1, noise_multiplier=1.0, delta=1e-3, seed=2,
        ).fit()  # fmt: skip
        return parameters(model)

    whole, fewer = [labelled()[i] for i in range(ROWS)], [labelled()[i] for i in range(ROWS - 3)]
    whole[-1] = whole[-1] | {"input_ids": [1, 2]}
    whole[-2] = whole[-2] | {"labels": None}
    whole[-3] = {"input_ids": "a text"}
    torch.testing.assert_close(trained(whole), trained(fewer))
