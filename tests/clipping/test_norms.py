"""No example counts for more than the clip norm, whatever its numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from privada.clipping import norms
from privada.clipping.combining import Sum
from privada.clipping.contributions import DenseGrad, EmbeddingGrad
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.outer_products import OuterProductGrad
from privada.clipping.parameter_views import ParameterView, Weights
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.preconditioning import FlatScaling

EPS = torch.finfo(torch.float32).eps
quick = settings(max_examples=40, deadline=None)


def product(output, target):
    """A loss whose gradient by the output is the target."""
    return (output * target).sum()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)

    def forward(self, tokens):
        return self.table(tokens) @ self.table.weight.T


def unit(*shape):
    return 2 * torch.rand(shape) - 1


# name -> (model, shape of an input or number of tokens, shape of an output)
MODELS = {
    "vectors": (lambda: nn.Linear(7, 5), (7,), (5,)),
    "sequences": (lambda: nn.Linear(4, 3), (6, 4), (6, 3)),
    "gram": (lambda: nn.Linear(30, 20), (3, 30), (3, 20)),
    "convolution": (lambda: nn.Conv1d(2, 3, 2), (2, 5), (3, 4)),
    "embedding": (lambda: nn.Embedding(6, 4), 6, (5, 4)),
    "tied": (Tied, 6, (5, 6)),
}


def make(name, large, size=4):
    """Return an engine and a batch whose inputs and output gradients have the given sizes."""
    build, shape, out = MODELS[name]
    model = build().train()
    inputs = torch.randint(shape, (size, 5)) if isinstance(shape, int) else unit(size, *shape)
    targets = unit(size, *out)
    parameters = Parameters(model)
    engine = OnePassEngine(model, product, parameters, Batch(inputs[:3], targets[:3]))
    if inputs.is_floating_point():
        inputs = inputs * large[0]
    return engine, parameters, Batch(inputs, targets * large[1])


def preconditioner(kind, parameters, spread):
    if kind == "isotropic":
        return FlatScaling(None, None)
    scale = 10 ** (spread * unit(parameters.size))
    shift = unit(parameters.size) if kind == "shifted" else None
    return FlatScaling(scale, shift)


exponents = st.floats(-30, 30)
SEEDS = st.integers(0, 10_000)


@pytest.mark.parametrize("name", MODELS)
@given(
    seed=SEEDS,
    large=st.tuples(exponents, exponents),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
    kind=st.sampled_from(["isotropic", "diagonal", "shifted"]),
    clip=st.floats(-6, 6).map(lambda x: 10**x),
)
@quick
def test_one_example_has_at_most_the_clip_norm(name, seed, large, spread, kind, clip):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        engine, parameters, batch = make(name, [10**x for x in large])
        shape = preconditioner(kind, parameters, spread)
    first = Batch(batch.inputs[:1], batch.targets[:1])
    alone = engine.clipped_sum(first, shape, clip).value.double()
    assert float(alone.norm()) <= clip * (1 + 1e-6)
    if kind != "shifted":  # beside others that count for nothing
        others = batch.targets.clone()
        others[1:] = 0
        beside = engine.clipped_sum(Batch(batch.inputs, others), shape, clip).value.double()
        assert float(beside.norm()) <= clip * (1 + 1e-6)


@given(seed=SEEDS, kind=st.sampled_from(["isotropic", "diagonal", "shifted"]), nearly=st.booleans())
@quick
def test_contributions_that_cancel_are_not_under_estimated(seed, kind, nearly):
    """Position for position the gradient is large, their sum is nothing or almost nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(40, 30)
        half = unit(2, 4, 40)
        slopes = 1e3 * unit(2, 4, 30)
        parameters = Parameters(model)
        shape = preconditioner(kind, parameters, 1.0)
    batch = Batch(
        torch.cat([half, half], dim=1),
        torch.cat([slopes, -slopes * (1 + 1e-4 * nearly)], dim=1),
    )
    dummy_batch = Batch(unit(3, 8, 40), unit(3, 8, 30))
    engine = OnePassEngine(model, product, parameters, dummy_batch)
    for clip in (1e-3, 1.0):
        for i in range(2):
            one = Batch(batch.inputs[i : i + 1], batch.targets[i : i + 1])
            found = engine.clipped_sum(one, shape, clip).value.double()
            assert float(found.norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "shifted"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_example_that_is_not_finite_counts_as_zero_and_spoils_no_other(name, kind, bad):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        engine, parameters, batch = make(name, [1, 1])
        shape = preconditioner(kind, parameters, 1.0)
    rest = torch.tensor([0, 2, 3])
    expected = engine.clipped_sum(Batch(batch.inputs[rest], batch.targets[rest]), shape, 0.7).value
    inputs, targets = batch.inputs.clone(), batch.targets.clone()
    if inputs.is_floating_point():
        inputs[1] = bad
    else:
        targets[1] = bad
    found = engine.clipped_sum(Batch(inputs, targets), shape, 0.7).value
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_an_example_too_large_to_be_squared_is_clipped_like_any_other():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        engine, _, batch = make("vectors", [1e20, 1e12])
    found = engine.clipped_sum(batch, FlatScaling(None, None), 0.5).value
    for i in range(4):
        one = Batch(batch.inputs[i : i + 1], batch.targets[i : i + 1])
        alone = engine.clipped_sum(one, FlatScaling(None, None), 0.5).value
        assert 0.4999 < float(alone.double().norm()) <= 0.5 * (1 + 1e-6)
        found = found - alone
    assert float(found.norm()) < 1e-5


# ---------------------------------------------------------------------- long sums


def scales(size, kind):
    """Return scales of two values that are no outer product, or none."""
    if kind == "isotropic":
        return None
    scale = torch.ones(size)
    scale[::2] = 2.0
    scale[0] = 3.0
    return scale


def under_estimate(contribution, gradients, scale):
    """Return by how much the true norm is above the one taken for it."""
    weights = None
    if scale is not None:
        weights = Weights(scale)
        gradients = gradients.flatten(1) / scale.double()
    taken = contribution.squared_norms(weights).sqrt() * (1 + 8 * EPS)
    return float((gradients.flatten(1).norm(dim=1) / taken).max()) - 1


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
@pytest.mark.parametrize("value", [1 / 3, 0.1, 1.1, 0.7, 1e-3])
@pytest.mark.parametrize("size", [1000, 8194, 20_014, 30_000, 500_000])
def test_like_numbers_in_a_long_row_do_not_lose_their_sum(value, size, kind):
    """A sum of like numbers in float32 goes wrong the same way at each step."""
    scale = scales(size, kind)
    whole = torch.full((2, size), value)
    for rows in (whole, whole.t().contiguous().t()):
        found = under_estimate(
            DenseGrad(ParameterView(0, (size,), (1,)), rows), whole.double(), scale
        )
        assert -1e-4 <= found <= 1e-6
    inputs, outputs = torch.full((2, 1, size // 2), value), torch.tensor([[[0.3, 0.9]]] * 2)
    outer = OuterProductGrad(ParameterView(0, (2, size // 2), (size // 2, 1)), inputs, outputs)
    gradients = torch.bmm(outputs.double().mT, inputs.double())
    assert -1e-4 <= under_estimate(outer, gradients, scale) <= 1e-6


@pytest.mark.parametrize(
    ("m", "n"), [(3, 5), (1, 1024), (2, 1025), (70, 2050), (2050, 70), (5, 4099)]
)
@pytest.mark.parametrize("examples", [1, 3, 700])
@pytest.mark.parametrize("kept", [0, 1 << 30])
def test_norms_of_vectors_are_those_of_their_gradients(m, n, examples, kept, monkeypatch):
    monkeypatch.setattr(norms, "_KEPT", kept)
    with torch.random.fork_rng():
        torch.manual_seed(m * n)
        inputs, outputs, scale = (
            unit(examples, 1, n),
            unit(examples, 1, m),
            scales(m * n, "diagonal"),
        )
    outer = OuterProductGrad(ParameterView(0, (m, n), (n, 1)), inputs, outputs)
    squares = (scale.double() ** -2).view(m, n)
    expected = torch.einsum(
        "ij,jk,ik->i", outputs[:, 0].double() ** 2, squares, inputs[:, 0].double() ** 2
    )
    found = outer.squared_norms(Weights(scale))
    assert (expected <= found * (1 + 16 * EPS)).all()
    assert torch.allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("kept", [0, 1 << 30])
@pytest.mark.parametrize(("m", "n"), [(60, 70), (70, 3000), (3000, 70)])
def test_squares_of_scales_are_kept_for_small_matrices_only(m, n, kept, monkeypatch):
    monkeypatch.setattr(norms, "_KEPT", kept)
    weights = Weights(scales(m * n, "diagonal"))
    outer = OuterProductGrad(ParameterView(0, (m, n), (n, 1)), unit(4, 1, n), unit(4, 1, m))
    first, second = outer.squared_norms(weights), outer.squared_norms(weights)
    assert torch.equal(first, second)
    made = weights.of(outer.piece).__dict__
    assert ("squares" in made, "inverse" in made) == (kept > 0, False)


def test_sequences_without_positions_have_no_gradient():
    model = nn.Linear(4, 3)
    parameters = Parameters(model)
    engine = OnePassEngine(model, product, parameters, Batch(unit(3, 2, 4), unit(3, 2, 3)))
    for scale in (None, scales(parameters.size, "diagonal")):
        found = engine.clipped_sum(
            Batch(unit(3, 0, 4), unit(3, 0, 3)), FlatScaling(scale, None), 1.0
        )
        assert torch.equal(found.value, torch.zeros(parameters.size))


@pytest.mark.parametrize(("m", "n"), [(0, 4), (4, 0), (0, 0)])
def test_norms_of_nothing_are_zero(m, n):
    outer = OuterProductGrad(ParameterView(0, (m, n), (max(n, 1), 1)), unit(3, 1, n), unit(3, 1, m))
    for weights in (None, Weights(torch.empty(0))):
        assert float(outer.squared_norms(weights).max()) < 1e-30


@pytest.mark.parametrize("examples", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_was_in_the_place_of_a_sum_does_not_matter(examples, dtype):
    gradients, factors = unit(examples, 4).to(dtype), torch.ones(examples, dtype=dtype)
    flat = torch.full((4,), math.nan, dtype=dtype)
    DenseGrad(ParameterView(0, (4,), (1,)), gradients).write_to(flat, factors)
    torch.testing.assert_close(flat, gradients.sum(dim=0))


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
@pytest.mark.parametrize("value", [1 / 3, 0.7])
@pytest.mark.parametrize(("m", "n", "positions"), [(300, 300, 2), (300, 300, 40), (20, 2000, 3)])
def test_like_numbers_at_many_positions_do_not_lose_their_sum(m, n, positions, value, kind):
    inputs, outputs = (torch.full((2, positions, k), value) for k in (n, m))
    outer = OuterProductGrad(ParameterView(0, (m, n), (n, 1)), inputs, outputs)
    gradients = torch.bmm(outputs.double().mT, inputs.double())
    assert under_estimate(outer, gradients, scales(m * n, kind)) <= 1e-6
    if kind == "isotropic":
        by_gram = outer.by_gram(None).sqrt() * (1 + 8 * EPS)
        assert float((gradients.flatten(1).norm(dim=1) / by_gram).max()) <= 1 + 1e-6


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
def test_a_tied_table_is_not_under_estimated_where_its_parts_cancel(kind):
    tokens, count, width = torch.tensor([[0, 1, 1, 2]]), 5, 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        looked_up, inputs = unit(1, 4, width), unit(1, 4, width)
    rows = torch.zeros(1, count, width)
    rows[0].index_add_(0, tokens[0], looked_up[0])
    outputs = -torch.nn.functional.one_hot(tokens, count).float()
    piece = ParameterView(0, (count, width), (width, 1))
    for inputs_of in (looked_up, inputs):
        tied = Sum(
            piece,
            [EmbeddingGrad(piece, tokens, looked_up), OuterProductGrad(piece, inputs_of, outputs)],
            1,
        )
        true = rows.double() + torch.bmm(outputs.double().mT, inputs_of.double())
        assert under_estimate(tied, true, scales(count * width, kind)) <= 1e-6
