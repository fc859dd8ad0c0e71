"""Models of the transformers library, unchanged, through the engine of one pass."""

import pytest
import torch
from torch import nn

from privada.clipping import Batch, make_engine
from privada.clipping.one_pass import OnePassEngine
from privada.core.tensors import Parameters
from tests.contracts.test_engines import GEOMETRIES, TOLERANCE, scaling
from tests.oracles.examples import clipped_sum

transformers = pytest.importorskip("transformers")


class Logits(nn.Module):
    """A model that returns its logits, classes second."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, tokens):
        return self.inner(tokens).logits.movedim(-1, 1)


def gpt2(**more):
    config = transformers.GPT2Config(
        vocab_size=23, n_positions=12, n_embd=8, n_layer=2, n_head=2, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=0, **more,
    )  # fmt: skip
    return Logits(transformers.GPT2LMHeadModel(config))


def bert():
    config = transformers.BertConfig(
        vocab_size=23, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=12, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    return Logits(transformers.BertForSequenceClassification(config))


# name -> (model, number of classes, whether there is one target for each token)
MODELS = {
    "gpt2": (gpt2, 23, True),
    "gpt2, eager attention": (lambda: gpt2(attn_implementation="eager"), 23, True),
    "gpt2, own output layer": (lambda: gpt2(tie_word_embeddings=False), 23, True),
    "bert": (bert, 3, False),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", GEOMETRIES)
@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sum_equals_the_loop_over_examples(name, kind, dtype):
    build, classes, each = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().to(dtype).train()
        tokens = torch.randint(23, (5, 6))
        targets = torch.randint(classes, (5, 6) if each else (5,))
    parameters, loss = Parameters(model), nn.CrossEntropyLoss()
    batch = Batch(tokens, targets)
    engine = make_engine("auto", model, loss, parameters, next(batch.chunks(3)))
    assert isinstance(engine, OnePassEngine)
    assert not engine.whole_modules
    shape = scaling(kind, parameters.size, dtype)
    for clip in (1e-2, 1.0, 1e3):
        found = engine.clipped_sum(batch, shape, clip).value.double()
        expected = clipped_sum(model, loss, tokens, targets, clip, shape.scale, shape.shift)
        assert float((found - expected).norm() / expected.norm()) < TOLERANCE[dtype]
