"""Masks of padded sequences in models of the transformers library, which looks at their values."""

import warnings

import pytest
import torch
from torch import nn

from privada.clipping import Batch, make_engine
from privada.clipping.one_pass import OnePassEngine
from privada.core.tensors import Parameters
from privada.preconditioning import FlatScaling
from tests.oracles.examples import clipped_sum

transformers = pytest.importorskip("transformers")


class Logits(nn.Module):
    """A model that returns its logits, classes second."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **inputs):
        return self.inner(**inputs, use_cache=False).logits.movedim(-1, 1)


class Scores(Logits):
    """A model that returns one score for each class."""

    def forward(self, **inputs):
        return self.inner(**inputs).logits


SIZES = {
    "vocab_size": 23, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 12,
}  # fmt: skip


def llama(**more):
    return Logits(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **more)))


def bert(**more):
    config = transformers.BertConfig(
        **SIZES, **more, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3
    )
    return Scores(transformers.BertForSequenceClassification(config))


# name -> (model, number of classes, whether there is one target for each token)
MODELS = {
    "llama": (llama, 23, True),
    "llama, eager attention": (lambda: llama(attn_implementation="eager"), 23, True),
    "bert": (bert, 3, False),
    "bert, eager attention": (lambda: bert(attn_implementation="eager"), 3, False),
}


@pytest.mark.parametrize("masks", ["none", "of ones", "some", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_padded_sequences_go_through_the_engine_of_one_pass(name, masks):
    build, classes, each = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double().train()
        inputs = {"input_ids": torch.randint(23, (5, 6))}
        targets = torch.randint(classes, (5, 6) if each else (5,))
    example = {"input_ids": inputs["input_ids"][:3]}
    if masks != "none":
        lengths = {"of ones": [6] * 5, "some": [6, 2, 6, 5, 1], "all": [1, 2, 3, 4, 5]}[masks]
        ends = torch.tensor(lengths)[:, None]
        inputs["attention_mask"] = (torch.arange(6) < ends).long()
        example["attention_mask"] = torch.ones(3, 6, dtype=torch.int64)
    parameters, loss = Parameters(model), nn.CrossEntropyLoss()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = make_engine("auto", model, loss, parameters, Batch(example, targets[:3]))
    assert isinstance(engine, OnePassEngine)
    found = engine.clipped_sum(Batch(inputs, targets), FlatScaling(None, None), 0.1).value
    expected = clipped_sum(model, loss, inputs, targets, 0.1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
