"""What every clipping must do, with every engine and in every diagonal geometry."""

import math

import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from privada.clipping import Batch, automatic, ellipsoid, make_engine, microbatches, threshold
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.reference import PerExampleEngine
from privada.core.tensors import Parameters
from privada.data import SparseColumn
from privada.preconditioning import FlatScaling
from tests.contracts.test_engines import make, scaling
from tests.oracles import clippings as oracles
from tests.oracles.examples import gradients

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
ENGINES = ("one-pass", "vmap", "loop")
GEOMETRIES = ("isotropic", "diagonal", "shifted")
# name -> (clipping, the loop that it is held to, its sensitivity in clip norms)
CLIPPINGS = {
    "threshold": (threshold(), oracles.threshold, 1),
    "automatic": (automatic(), oracles.automatic(0.01), 1),
    "automatic, large gamma": (automatic(3.0), oracles.automatic(3.0), 1),
    "ellipsoid": (ellipsoid(), oracles.ellipsoid, 1),
    "microbatches": (microbatches(3), oracles.microbatches, 2),
    "microbatches of one": (microbatches(1), oracles.microbatches, 2),
}
entropy = functional.cross_entropy


def grouped(batch, name):
    """Return the batch with groups, where the clipping has them."""
    if name != "microbatches":
        return batch
    return Batch(batch.inputs, batch.targets, torch.arange(batch.size) * 7 % 3)


def expected_sum(oracle, rows, clip, shape, groups):
    return oracle(rows, clip, shape.scale, shape.shift, groups)


def close(found, expected, dtype):
    return float((found.double() - expected).norm()) <= TOLERANCE[dtype] * float(expected.norm())


# ---------------------------------------------------------------------- the sum


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", GEOMETRIES)
@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
def test_the_sum_equals_the_loop(name, how, kind, dtype):
    clipping, oracle, moves = CLIPPINGS[name]
    for size in (1, 8):
        model, batch = make("mlp", dtype, size=size)
        batch = grouped(batch, name)
        shape = scaling(kind, Parameters(model).size, dtype)
        example = make("mlp", dtype, size=3)[1]
        engine = make_engine(how, model, entropy, Parameters(model), example, clipping)
        rows = gradients(model, entropy, batch.inputs, batch.targets)
        for clip in (1e-3, 0.8, 1e3):
            found = engine.clipped_sum(batch, shape, clip)
            expected = expected_sum(oracle, rows, clip, shape, batch.groups)
            assert found.sensitivity == moves * clip
            assert found.value.dtype == dtype
            assert close(found.value, expected, dtype)


@pytest.mark.parametrize(
    "model_name", ["conv", "norms", "embedding", "tied", "recurrent", "attention"]
)
@pytest.mark.parametrize("name", CLIPPINGS)
def test_the_sum_equals_the_loop_in_other_models(name, model_name):
    clipping, oracle, _ = CLIPPINGS[name]
    model, batch = make(model_name, torch.float64, size=6)
    batch = grouped(batch, name)
    shape = scaling("shifted", Parameters(model).size, torch.float64)
    engine = make_engine("auto", model, entropy, Parameters(model), batch, clipping)
    assert isinstance(engine, OnePassEngine)
    rows = gradients(model, entropy, batch.inputs, batch.targets)
    for clip in (0.1, 3.0):
        found = engine.clipped_sum(batch, shape, clip).value
        assert close(found, expected_sum(oracle, rows, clip, shape, batch.groups), torch.float64)


@pytest.mark.parametrize("name", CLIPPINGS)
def test_a_model_that_the_fast_engine_cannot_follow_is_clipped_alike(name):
    clipping, oracle, _ = CLIPPINGS[name]
    model, batch = make("branching", torch.float64, size=6)
    batch = grouped(batch, name)
    with pytest.warns(UserWarning, match="cannot follow"):
        engine = make_engine("auto", model, entropy, Parameters(model), batch, clipping)
    assert isinstance(engine, PerExampleEngine)
    shape = scaling("diagonal", Parameters(model).size, torch.float64)
    rows = gradients(model, entropy, batch.inputs, batch.targets)
    found = engine.clipped_sum(batch, shape, 0.3).value
    assert close(found, expected_sum(oracle, rows, 0.3, shape, batch.groups), torch.float64)


@pytest.mark.parametrize("name", CLIPPINGS)
def test_sparse_rows_are_clipped_like_dense_ones(name):
    clipping, oracle, _ = CLIPPINGS[name]
    generator = torch.Generator().manual_seed(4)
    dense = torch.randn(7, 12, generator=generator).double()
    dense *= torch.rand(7, 12, generator=generator) < 0.3
    column = SparseColumn(scipy.sparse.csr_matrix(dense.numpy()), torch.float64, dense.device)
    targets = torch.arange(7) % 3
    model = nn.Linear(12, 3).double()
    batch = grouped(Batch(column.rows(torch.arange(7).numpy()), targets), name)
    assert batch.sparse
    engine = make_engine("one-pass", model, entropy, Parameters(model), batch, clipping)
    shape = scaling("shifted", Parameters(model).size, torch.float64)
    found = engine.clipped_sum(batch, shape, 0.4).value
    rows = gradients(model, entropy, dense, targets)
    assert close(found, expected_sum(oracle, rows, 0.4, shape, batch.groups), torch.float64)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
def test_an_empty_batch_gives_zero_and_keeps_its_sensitivity(name, how):
    clipping, _, moves = CLIPPINGS[name]
    model, batch = make("mlp", torch.float32, size=3)
    shape = scaling("shifted", Parameters(model).size, torch.float32)
    engine = make_engine(how, model, entropy, Parameters(model), batch, clipping)
    found = engine.clipped_sum(None, shape, 0.7)
    assert torch.equal(found.value, torch.zeros(Parameters(model).size))
    assert found.sensitivity == moves * 0.7


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
@given(size=st.integers(1, 9), chunk=st.integers(1, 9), kind=st.sampled_from(GEOMETRIES))
@settings(max_examples=12, deadline=None)
def test_chunks_do_not_change_the_sum(name, how, size, chunk, kind):
    clipping = CLIPPINGS[name][0]
    model, batch = make("mlp", torch.float64, size=size)
    batch = grouped(batch, name)
    parameters = Parameters(model)
    shape = scaling(kind, parameters.size, torch.float64)
    if how == "one-pass":
        example = make("mlp", torch.float64, size=3)[1]
        whole, parts = (
            OnePassEngine(model, entropy, parameters, example, clipping=clipping) for _ in "ab"
        )
    else:
        whole, parts = (
            PerExampleEngine(model, entropy, parameters, how, clipping=clipping) for _ in "ab"
        )
    parts._chunk = chunk
    assert whole._chunk > 9
    a, b = (engine.clipped_sum(batch, shape, 0.5).value for engine in (whole, parts))
    assert torch.allclose(a, b, rtol=1e-11, atol=1e-13)


def test_a_batch_that_the_fast_engine_loses_track_of_is_clipped_alike():
    """The model does something new, which it did not do when it was tried."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.late = nn.Linear(4, 3), nn.Linear(4, 3), False

        def forward(self, x):
            return self.first(x) + (self.second(x) if self.late else 0)

    model = Late().double()
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(44, 4, generator=generator).double()
    targets = torch.arange(44) % 3
    shape = scaling("shifted", Parameters(model).size, torch.float64)
    parameters = Parameters(model)
    for name, (clipping, oracle, _) in CLIPPINGS.items():
        batch = grouped(Batch(inputs, targets), name)
        model.late = False
        engine = OnePassEngine(
            model, entropy, parameters, Batch(inputs[:3], targets[:3]), clipping=clipping
        )
        model.late = True
        found = engine.clipped_sum(batch, shape, 0.3).value
        rows = gradients(model, entropy, inputs, targets)
        assert close(found, expected_sum(oracle, rows, 0.3, shape, batch.groups), torch.float64)


# ---------------------------------------------------------------------- its sensitivity


class Direct(nn.Module):
    """A model whose per-example gradients, with the loss below, are the inputs themselves."""

    def __init__(self, size, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=dtype))

    def forward(self, x):
        return x * self.weight


def add_up(output, target):
    return (output * target).sum()


def direct(name, how, size, dtype):
    model = Direct(size, dtype)
    example = Batch(torch.rand(3, size, dtype=dtype), torch.ones(3, size, dtype=dtype))
    return make_engine(how, model, add_up, Parameters(model), example, CLIPPINGS[name][0])


def batch_of(rows, groups=None):
    return Batch(rows, torch.ones_like(rows), groups)


SIZE = 5
SHAPES = {
    "isotropic": (None, None),
    "diagonal": ([1e-3, 0.2, 1.0, 5.0, 1e3], None),
    "shifted": ([1e-3, 0.2, 1.0, 5.0, 1e3], [0.01, -0.3, 2.0, 0.0, -40.0]),
}


def shape_of(kind, dtype):
    scale, shift = (None if v is None else torch.tensor(v, dtype=dtype) for v in SHAPES[kind])
    return FlatScaling(scale, shift)


def adversarial(dtype):
    """Return gradients that are huge, tiny, opposite, equal to the shift, or no numbers."""
    big = 1e36 if dtype == torch.float32 else 1e140
    axis = torch.eye(SIZE, dtype=dtype)
    ramp = torch.arange(1.0, SIZE + 1, dtype=dtype)
    rows = [
        big * ramp,
        -big * ramp,
        big * axis[0],
        -big * axis[4],
        1e-36 * ramp,
        torch.zeros(SIZE, dtype=dtype),
        torch.tensor(SHAPES["shifted"][1], dtype=dtype),
        ramp,
        -ramp,
        -1.0000001 * ramp,
        torch.tensor([math.nan, 1, 1, 1, 1], dtype=dtype),
        torch.tensor([1, math.inf, 1, 1, -math.inf], dtype=dtype),
        torch.full((SIZE,), torch.finfo(dtype).max, dtype=dtype),
        torch.full((SIZE,), torch.finfo(dtype).tiny / 8, dtype=dtype),
    ]
    return torch.stack(rows)


def moved_by(engine, rows, groups, shape, clip):
    """Return by how much the sum moves at most when one of the records is taken away."""
    whole = engine.clipped_sum(batch_of(rows, groups), shape, clip)
    most = 0.0
    for i in range(len(rows)):
        rest = torch.arange(len(rows)) != i
        left = None if groups is None else groups[rest]
        batch = batch_of(rows[rest], left) if bool(rest.any()) else None
        part = engine.clipped_sum(batch, shape, clip)
        assert bool(torch.isfinite(part.value).all())
        most = max(most, float((whole.value.double() - part.value.double()).norm()))
    return most, whole.sensitivity


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
def test_no_record_moves_the_sum_by_more_than_the_sensitivity(name, how, kind, dtype):
    """In batches of one to four, of adversarial and of random gradients."""
    engine, shape = direct(name, how, SIZE, dtype), shape_of(kind, dtype)
    generator = torch.Generator().manual_seed(5)
    hostile = adversarial(dtype)
    for turn in range(60):
        count = 1 + turn % 4
        rows = hostile[torch.randint(len(hostile), (count,), generator=generator)]
        if turn % 3 == 0:
            spread = 10 ** torch.empty(count, 1).uniform_(-4, 4, generator=generator)
            rows = torch.randn(count, SIZE, generator=generator, dtype=dtype) * spread.to(dtype)
        groups = None
        if name == "microbatches":
            groups = torch.randint(2, (count,), generator=generator)
        clip = (1e-3, 0.5, 20.0)[turn % 3 if turn < 30 else turn % 2]
        most, sensitivity = moved_by(engine, rows.contiguous(), groups, shape, clip)
        assert most <= sensitivity * (1 + 1e-6)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
def test_the_sensitivity_is_used_up(name, how):
    """The claim is not only safe: some batch comes close to it, so half of it would be wrong."""
    engine, shape = direct(name, how, SIZE, torch.float64), shape_of("isotropic", torch.float64)
    far = 1e9 * torch.ones(1, SIZE, dtype=torch.float64)
    rows = torch.cat([far, -3 * far])
    groups = torch.zeros(2, dtype=torch.int64) if name == "microbatches" else None
    most, sensitivity = moved_by(engine, rows, groups, shape, 0.5)
    used = 0.5 if name == "microbatches of one" else 1.0
    assert most == pytest.approx(used * sensitivity, rel=1e-6)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
@given(
    seed=st.integers(0, 10_000),
    large=st.floats(-37, 37),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
    clip=st.floats(-6, 6).map(lambda x: 10**x),
    shifted=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_one_record_alone_has_at_most_the_clip_norm(name, how, seed, large, spread, clip, shifted):
    """In float32, which rounds most."""
    generator = torch.Generator().manual_seed(seed)
    row, scale, shift = (2 * torch.rand(SIZE, generator=generator) - 1 for _ in range(3))
    engine = direct(name, how, SIZE, torch.float32)
    shape = FlatScaling(10 ** (spread * scale), shift if shifted else None)
    found = engine.clipped_sum(batch_of(10**large * row[None]), shape, clip)
    assert float(found.value.double().norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", [name for name in CLIPPINGS if name != "microbatches"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_counts_as_zero(name, how, kind, bad):
    engine, shape = direct(name, how, SIZE, torch.float64), shape_of(kind, torch.float64)
    rows = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1)).double()
    spoilt = rows.clone()
    spoilt[2, 3] = bad
    found = engine.clipped_sum(batch_of(spoilt), shape, 0.7).value
    rest = engine.clipped_sum(batch_of(rows[[0, 1, 3]]), shape, 0.7).value
    torch.testing.assert_close(found, rest, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_group_whose_average_is_not_finite_counts_as_zero(how, bad):
    engine, shape = (
        direct("microbatches", how, SIZE, torch.float64),
        shape_of("shifted", torch.float64),
    )
    rows = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(1)).double()
    groups = torch.tensor([2, 0, 1, 0, 2, 1])
    spoilt = rows.clone()
    spoilt[3, 1] = bad
    found = engine.clipped_sum(batch_of(spoilt, groups), shape, 0.7).value
    kept = groups != 0
    rest = engine.clipped_sum(batch_of(rows[kept], groups[kept]), shape, 0.7).value
    torch.testing.assert_close(found, rest, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
def test_a_gradient_of_zero_adds_nothing(name, how):
    engine, shape = direct(name, how, SIZE, torch.float32), shape_of("diagonal", torch.float32)
    found = engine.clipped_sum(batch_of(torch.zeros(3, SIZE)), shape, 1e30)
    assert torch.equal(found.value, torch.zeros(SIZE))


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
def test_factors_of_a_short_gradient_do_not_overflow(name, how):
    """A gradient is a product; one of its factors may be huge where the product is small."""
    model = nn.Linear(3, 2, bias=False)
    example = Batch(torch.rand(3, 3), torch.rand(3, 2))
    engine = make_engine(how, model, add_up, Parameters(model), example, CLIPPINGS[name][0])
    batch = Batch(torch.full((1, 3), 1e-38), torch.full((1, 2), 1e37))
    found = engine.clipped_sum(batch, FlatScaling(None, None), 1.0).value
    assert bool(torch.isfinite(found).all())
    assert 0.1 < float(found.norm()) <= 1 + 1e-6 or name == "automatic, large gamma"


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
@pytest.mark.parametrize("clip", [1e-4, 1e-5, 1e-6, 1e-7])
def test_factors_too_small_for_their_type_are_not_rounded_up(name, how, clip):
    engine = direct(name, how, SIZE, torch.float32)
    for large in (1e38, 3e37, 1e36):
        rows = torch.full((1, SIZE), large)
        found = engine.clipped_sum(batch_of(rows), FlatScaling(None, None), clip).value
        assert float(found.double().norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", CLIPPINGS)
def test_sums_are_not_rounded_to_short_numbers(name, how):
    """Inside autocast the model runs in bfloat16, which has eight bits; clipping must not."""
    clipping, _, moves = CLIPPINGS[name]
    model, batch = make("linear", torch.float32, size=4)
    groups = torch.tensor([0, 1, 0, 1]) if name == "microbatches" else None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine = make_engine(how, model, entropy, Parameters(model), batch, clipping)
        whole = engine.clipped_sum(
            Batch(batch.inputs * 100, batch.targets, groups), FlatScaling(None, None), 1.0
        )
        again = engine.clipped_sum(
            Batch(batch.inputs * 100, batch.targets, groups), FlatScaling(None, None), 1.0 + 1e-4
        )
    assert whole.sensitivity == moves
    # bfloat16 cannot tell sums for clip norms so close
    ratio = again.value.double() / whole.value.double()
    assert torch.allclose(ratio, torch.full_like(ratio, 1 + 1e-4), atol=3e-6)
