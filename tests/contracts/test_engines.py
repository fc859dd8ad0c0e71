"""What every clipping engine must do, for any model and in every diagonal geometry."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from privada.clipping.engine import make_engine
from privada.clipping.reference import PerExampleEngine
from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.preconditioning import FlatScaling
from tests.oracles.examples import clipped_sum

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


class Tied(nn.Module):
    """An embedding whose weights are also the output layer's."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 5)
        self.out = nn.Linear(5, 9, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(self.embedding(tokens).mean(dim=1))


class Recurrent(nn.Module):
    """An LSTM, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


class Branching(nn.Module):
    """A model whose path depends on its input."""

    def __init__(self):
        super().__init__()
        self.positive, self.negative = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.positive(x) if float(x.sum()) > 0 else self.negative(x)


class PartlyFrozen(nn.Sequential):
    """A linear model of which the first layer is not trained."""

    def __init__(self):
        super().__init__(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        self[0].requires_grad_(False)


class Unused(nn.Module):
    """A model with a parameter that its output does not depend on."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(6, 3), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.used(x)


def attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3))


# name -> (model, shape of one input, number of tokens or None)
MODELS = {
    "linear": (lambda: nn.Linear(6, 3), (6,), None),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (6,), None),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
        (2, 6, 6),
        None,
    ),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), (6,), None),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3)),
        (3,),
        7,
    ),
    "sparse-embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3)),
        (3,),
        7,
    ),
    "tied": (Tied, (4,), 9),
    "recurrent": (Recurrent, (4, 3), None),
    "attention": (attention, (4, 8), None),
    "partly-frozen": (PartlyFrozen, (6,), None),
    "unused": (Unused, (6,), None),
    "branching": (Branching, (6,), None),
}
GEOMETRIES = ("isotropic", "constant", "diagonal", "shifted")


def scaling(kind, size, dtype):
    pattern = torch.arange(size, dtype=dtype)
    scale = {
        "isotropic": None,
        "constant": torch.full((size,), 0.3, dtype=dtype),
        "diagonal": 0.1 + 2 * (pattern * 0.618).frac(),
        "shifted": 0.1 + 2 * (pattern * 0.618).frac(),
    }[kind]
    shift = 0.2 * torch.sin(pattern) if kind == "shifted" else None
    return FlatScaling(scale, shift)


def make(name, dtype, size, seed=0):
    build, shape, tokens = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build().to(dtype)
    if tokens is None:
        inputs = 3 * torch.randn((size, *shape), generator=generator, dtype=dtype)
    else:
        inputs = torch.randint(tokens, (size, *shape), generator=generator)
    targets = torch.randint(3, (size,), generator=generator)
    return model, Batch(inputs, targets)


def engine_for(model, batch, how="auto"):
    return make_engine(how, model, functional.cross_entropy, Parameters(model), batch)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", GEOMETRIES)
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sum_equals_the_loop_over_examples(name, kind, dtype):
    model, batch = make(name, dtype, size=7)
    shape = scaling(kind, Parameters(model).size, dtype)
    engine = engine_for(model, batch)
    for clip in (1e-3, 0.8, 1e3):
        found = engine.clipped_sum(batch, shape, clip)
        expected = clipped_sum(
            model,
            functional.cross_entropy,
            batch.inputs,
            batch.targets,
            clip,
            shape.scale,
            shape.shift,
        )
        assert found.sensitivity == clip
        error = (found.value.double() - expected).norm() / expected.norm()
        assert float(error) < TOLERANCE[dtype]


@pytest.mark.parametrize("how", ["vmap", "loop"])
@given(size=st.integers(1, 9), chunk=st.integers(1, 9), kind=st.sampled_from(GEOMETRIES))
@settings(max_examples=25, deadline=None)
def test_chunks_do_not_change_the_sum(how, size, chunk, kind):
    model, batch = make("mlp", torch.float64, size=size)
    parameters = Parameters(model)
    shape = scaling(kind, parameters.size, torch.float64)
    whole = PerExampleEngine(model, functional.cross_entropy, parameters, how)
    parts = PerExampleEngine(
        model, functional.cross_entropy, parameters, how, chunk_bytes=32 * parameters.size * chunk
    )
    assert parts._chunk == chunk
    a, b = (e.clipped_sum(batch, shape, 0.5).value for e in (whole, parts))
    assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_batch_gives_zero(name):
    model, batch = make(name, torch.float32, size=3)
    shape = scaling("shifted", Parameters(model).size, torch.float32)
    found = engine_for(model, batch).clipped_sum(None, shape, 1.0)
    assert torch.equal(found.value, torch.zeros(Parameters(model).size))


@given(
    seed=st.integers(0, 10_000),
    clip=st.floats(1e-4, 10),
    kind=st.sampled_from(GEOMETRIES),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
@settings(max_examples=60, deadline=None)
def test_no_example_counts_for_more_than_the_clip_norm(seed, clip, kind, scale):
    model, batch = make("mlp", torch.float32, size=1, seed=seed)
    batch = Batch(batch.inputs * scale, batch.targets)
    shape = scaling(kind, Parameters(model).size, torch.float32)
    found = engine_for(model, batch, "vmap").clipped_sum(batch, shape, clip)
    assert float(found.value.double().norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_example_that_is_not_finite_counts_as_zero(how, bad):
    model, batch = make("mlp", torch.float32, size=5)
    shape = scaling("isotropic", Parameters(model).size, torch.float32)
    engine = engine_for(model, batch, how)
    rest = torch.tensor([0, 1, 3, 4])
    expected = engine.clipped_sum(Batch(batch.inputs[rest], batch.targets[rest]), shape, 0.7).value
    spoilt = batch.inputs.clone()
    spoilt[2] = bad
    found = engine.clipped_sum(Batch(spoilt, batch.targets), shape, 0.7).value
    assert torch.isfinite(found).all()
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_huge_example_is_clipped_like_any_other():
    model, batch = make("linear", torch.float32, size=2)
    shape = scaling("isotropic", Parameters(model).size, torch.float32)
    huge = Batch(batch.inputs * 1e30, batch.targets)
    found = engine_for(model, batch).clipped_sum(huge, shape, 0.7).value
    assert 0.69 < float(found.double().norm()) <= 1.4 * (1 + 1e-6)


def test_removing_an_example_moves_the_sum_by_at_most_the_sensitivity():
    model, batch = make("mlp", torch.float32, size=9)
    shape = scaling("diagonal", Parameters(model).size, torch.float32)
    engine = engine_for(model, batch)
    whole = engine.clipped_sum(batch, shape, 0.4)
    for i in range(9):
        rest = torch.arange(9) != i
        part = engine.clipped_sum(Batch(batch.inputs[rest], batch.targets[rest]), shape, 0.4)
        assert float((whole.value - part.value).norm()) <= whole.sensitivity * (1 + 1e-5)


def test_the_model_is_left_as_it_was():
    model, batch = make("mlp", torch.float32, size=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_for(model, batch)
    engine.clipped_sum(batch, scaling("isotropic", Parameters(model).size, torch.float32), 1.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_sum_is_taken_at_the_current_parameters():
    model, batch = make("linear", torch.float64, size=4)
    shape = scaling("isotropic", Parameters(model).size, torch.float64)
    engine = engine_for(model, batch)
    engine.clipped_sum(batch, shape, 1.0)
    with torch.no_grad():
        model.weight.add_(1.0)
    found = engine.clipped_sum(batch, shape, 1.0).value
    expected = clipped_sum(model, functional.cross_entropy, batch.inputs, batch.targets, 1.0)
    assert torch.allclose(found, expected)


def test_dropout_draws_a_mask_for_each_example():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 1, bias=False)).train()
    batch = Batch(torch.ones(2, 50), torch.zeros(2, 1))
    engine = make_engine("vmap", model, lambda out, y: out.sum(), Parameters(model), batch)
    masks = engine._gradients(batch)
    assert not torch.equal(masks[0], masks[1])


def test_several_inputs_go_in_as_a_tuple_or_a_dict():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a, b):
            return self.layer(a * b)

    model = Two()
    a, b, y = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    shape = FlatScaling(None, None)
    sums = [
        make_engine("auto", model, functional.cross_entropy, Parameters(model), batch)
        .clipped_sum(batch, shape, 1.0)
        .value
        for batch in (Batch((a, b), y), Batch({"a": a, "b": b}, y))
    ]
    assert torch.equal(*sums)


def test_a_model_that_cannot_take_the_data_is_refused_with_the_shapes():
    model = nn.Linear(5, 2)
    batch = Batch(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"\(3, 4\) torch.float32"):
        engine_for(model, batch)


def test_a_loss_that_does_not_reduce_is_refused():
    model = nn.Linear(4, 2)
    batch = Batch(torch.zeros(3, 4), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="reduction"):
        make_engine("auto", model, nn.MSELoss(reduction="none"), Parameters(model), batch)


def test_an_unknown_engine_is_refused_by_name():
    model, batch = make("linear", torch.float32, size=3)
    with pytest.raises(ArgumentError, match="'warp'"):
        engine_for(model, batch, "warp")
