"""The losses of models of transformers, held to what the models compute themselves."""

import pytest
import torch

from privada.clipping.model_losses import IGNORED, ModelLoss
from privada.core.errors import ModelError

transformers = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 23, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 8, "max_position_embeddings": 12,
}  # fmt: skip


def bert(kind, **more):
    return getattr(transformers, f"BertFor{kind}")(transformers.BertConfig(**SIZES, **more)).eval()


def gpt2():
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=23, n_positions=12, **sizes)
    return transformers.GPT2LMHeadModel(config).eval()


CLASSES, TOKENS = torch.tensor([0, 2, 1]), torch.tensor([[1, 2, 0, 1], [2, 2, 1, 0], [0, 1, 1, 2]])
MASKED = TOKENS.clone()
MASKED[0, 2:], MASKED[1, 0] = IGNORED, IGNORED
# name -> (model, labels)
HEADS = {
    "classes": (lambda: bert("SequenceClassification", num_labels=3), CLASSES),
    "regression": (lambda: bert("SequenceClassification", num_labels=1), CLASSES / 2),
    "several numbers": (
        lambda: bert("SequenceClassification", num_labels=3, problem_type="regression"),
        TOKENS[:, :3] / 2,
    ),
    "several labels": (
        lambda: bert(
            "SequenceClassification", num_labels=3, problem_type="multi_label_classification"
        ),
        (TOKENS[:, :3] > 0).float(),
    ),
    "token classes": (lambda: bert("TokenClassification", num_labels=3), MASKED),
    "masked words": (lambda: bert("MaskedLM"), MASKED),
    "next words": (gpt2, MASKED),
    "next words, Llama": (
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval(),
        MASKED,
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_each_example_has_the_loss_that_the_model_gives_it_alone(head):
    build, labels = HEADS[head]
    model = build()
    loss, tokens = ModelLoss(model), torch.arange(12).view(3, 4)
    with torch.no_grad():
        found = loss.example_losses(model(input_ids=tokens), labels)
        own = [model(input_ids=tokens[i : i + 1], labels=labels[i : i + 1]).loss for i in range(3)]
        torch.testing.assert_close(found, torch.stack(own))
        torch.testing.assert_close(loss(model(input_ids=tokens), labels), torch.stack(own).mean())


def test_looking_for_the_loss_leaves_the_model_as_it_was():
    model = bert("SequenceClassification", num_labels=3).train()
    before = torch.get_rng_state()
    ModelLoss(model)
    assert model.training
    assert model.config.problem_type is None
    assert torch.equal(before, torch.get_rng_state())


def test_models_with_another_loss_or_with_a_decoder_are_refused():
    config = transformers.BertConfig(**SIZES)
    with pytest.raises(ModelError, match="another one"):
        ModelLoss(_Doubled(config))
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=23, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    with pytest.raises(ModelError, match="decoder reads the labels"):
        ModelLoss(t5)
    with pytest.raises(ModelError, match="model of transformers"):
        ModelLoss(torch.nn.Linear(2, 2))


class _Doubled(transformers.BertForSequenceClassification):
    """Has a loss of its own."""

    def forward(self, labels=None, **inputs):
        found = super().forward(labels=labels, **inputs)
        if labels is not None:
            found.loss = 2 * found.loss
        return found


def test_labels_of_another_shape_are_refused():
    loss = ModelLoss(bert("SequenceClassification"))
    with pytest.raises(ModelError, match=r"labels of shape \(2, 3, 4\)"):
        loss.example_losses(torch.zeros(2, 2), torch.zeros(2, 3, 4))
