import pytest
import torch
from torch import nn

from privada.clipping.batch import Batch
from privada.clipping.probes import refuse_mixing_models
from privada.core.errors import ModelError


def batch(*shape):
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.randn(3, *shape, generator=generator), torch.zeros(3))


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += x.sum(dim=0)
        return x


class Softmaxed(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=0)


@pytest.mark.parametrize("module", [Centred(), Softmaxed()], ids=["centred", "softmax over batch"])
def test_a_model_in_which_examples_touch_each_other_is_refused(module):
    with pytest.raises(ModelError, match="neighbours in the batch"):
        refuse_mixing_models(nn.Sequential(nn.Linear(4, 4), module), batch(4))


def test_a_model_that_keeps_statistics_is_refused_and_restored():
    model = Counting()
    with pytest.raises(ModelError, match="seen"):
        refuse_mixing_models(model, batch(4))
    assert torch.equal(model.seen, torch.zeros(4))


def test_a_model_that_gives_one_output_for_the_batch_is_refused():
    with pytest.raises(ModelError, match="one output per example"):
        refuse_mixing_models(nn.Sequential(nn.Flatten(0), nn.Linear(12, 1)), batch(4))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    ],
    ids=["dropout", "layer norm"],
)
def test_ordinary_models_pass_and_the_global_generator_is_untouched(model):
    state = torch.get_rng_state()
    refuse_mixing_models(model.train(), batch(4))
    assert torch.equal(state, torch.get_rng_state())


class Shortened(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.full((4, 4), 9.0), requires_grad=False)

    def forward(self, x):
        tokens = (x > 0).long()
        return x + nn.functional.embedding(tokens, self.table, max_norm=1.0).sum(dim=1)


def test_a_model_that_writes_to_its_parameters_is_refused():
    with pytest.raises(ModelError, match=r"parameters \['table'\] are written to.*max_norm"):
        refuse_mixing_models(Shortened(), batch(4))
