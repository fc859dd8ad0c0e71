import warnings

import pytest
import torch
from torch import nn

import privada as pv
from privada.clipping.engine import make_engine
from privada.clipping.probes import refuse_mixing_models
from privada.core.errors import ModelError
from privada.core.tensors import Parameters
from privada.data.batch import Batch


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


class Switched(nn.Module):
    """Mixes examples where the parameters, which training moves, say so."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        far = self.layer.bias.detach().abs().sum() > 5
        return self.layer(torch.where(far, x - 100 * x.mean(dim=0), x))


class SwitchedInPlain(Switched):
    def forward(self, x):
        moved = bool(self.layer.bias.detach().abs().sum() > 5)
        return self.layer(x - 100 * x.mean(dim=0) if moved else x)


def trainer_of(model, **more):
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(60, 4, generator=generator), torch.arange(60) % 2
    return pv.Trainer(
        model, nn.CrossEntropyLoss(), data, method=pv.methods.DPSGD(lr=200.0), batch_size=30,
        steps=40, noise_multiplier=1.0, delta=1e-3, engine="loop", **more,
    )  # fmt: skip


def test_a_model_is_looked_at_again_while_it_trains():
    trainer = trainer_of(SwitchedInPlain(), seed=0)
    with pytest.raises(ModelError, match="neighbours in the batch"):
        trainer.fit()
    assert 0 < trainer.steps_done < 40


def test_what_follows_from_parameters_alone_is_seen_at_once():
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = Switched()
        example = batch(4)
        make_engine(
            "auto", model, nn.MSELoss(), Parameters(model), Batch(example.inputs, torch.zeros(3, 2))
        )
    assert any("depends on its neighbours" in str(w.message) for w in caught)


def test_public_examples_are_tried_too():
    """Only values that made-up examples do not have show that examples are mixed."""

    class Rare(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            rare = bool((x == 7.5).any())
            return self.layer(x - x.mean(dim=0) if rare else x)

    generator = torch.Generator().manual_seed(0)
    public = torch.randn(30, 4, generator=generator), torch.arange(30) % 2
    public[0][:, 0] = 7.5
    data = torch.randn(60, 4, generator=generator), torch.arange(60) % 2
    with pytest.raises(ModelError, match="neighbours in the batch"):
        pv.Trainer(
            Rare(), nn.CrossEntropyLoss(), data,
            method=pv.methods.DPRPub(public=pv.Public(public), lr=0.1), batch_size=30, steps=4,
            noise_multiplier=1.0, delta=1e-3, engine="loop",
        )  # fmt: skip
