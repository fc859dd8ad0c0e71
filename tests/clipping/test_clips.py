"""The ways of clipping: values, the projection, groups, and their way through the query."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn import functional

from privada import data
from privada.accounting import Ledger, events
from privada.clipping import (
    Batch,
    Clipping,
    automatic,
    ellipsoid,
    make_engine,
    microbatches,
    projection,
    threshold,
)
from privada.clipping.bounds import Automatic, Threshold
from privada.clipping.norms import lengths, rounding_of
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.outer_products import OuterProductGrad
from privada.clipping.parameter_views import ParameterView
from privada.clipping.reference import PerExampleEngine
from privada.core.errors import ArgumentError
from privada.core.randomness import SecureSource, SeededSource
from privada.core.tensors import Parameters
from privada.core.values import ClippedSum
from privada.mechanism import Mechanism, Releases
from privada.noise import GaussianNoise, constant
from privada.participation import PoissonSampler
from privada.preconditioning import FlatScaling, diagonal, isotropic
from privada.query.account import Account
from privada.query.executor import Draw
from privada.query.gradients import GradientQuery
from privada.query.local import LocalExecutor
from tests.clipping import test_norms as norms
from tests.contracts.test_clippings import Direct, add_up
from tests.contracts.test_engines import GEOMETRIES, make, scaling
from tests.oracles import clippings as oracles
from tests.oracles.examples import gradients
from tests.releases import paid


@pytest.fixture(autouse=True)
def _own_generator():
    """Leave torch's generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        yield


ALL = [threshold(), automatic(), automatic(2.0), ellipsoid(), microbatches(1), microbatches(4)]
entropy = functional.cross_entropy


# ---------------------------------------------------------------------- values


def test_clippings_are_values_that_say_what_they_are():
    assert [repr(clipping) for clipping in ALL] == [
        "threshold()",
        "automatic(gamma=0.01)",
        "automatic(gamma=2)",
        "ellipsoid()",
        "microbatches(1)",
        "microbatches(4)",
    ]
    assert repr(Clipping(Automatic(0.5), 3)) == "automatic(gamma=0.5) of microbatches(3)"
    assert threshold() == threshold() != automatic()
    assert len({*ALL, *ALL}) == len(ALL)


@pytest.mark.parametrize("gamma", [0, -1.0, math.nan, math.inf, "0.01", None, True, 1e-7, 1e7])
def test_a_wrong_gamma_is_refused(gamma):
    with pytest.raises(ArgumentError, match=r"Expected gamma .* got gamma=.*0\.01 serves"):
        automatic(gamma)


@pytest.mark.parametrize("size", [0, -4, 2.0, "4", None, True])
def test_a_wrong_size_is_refused(size):
    with pytest.raises(ArgumentError, match=r"Expected size .* got size="):
        microbatches(size)


@pytest.mark.parametrize("wrong", ["automatic", automatic, Threshold(), None, 0.5])
def test_what_is_no_clipping_is_refused_with_the_remedy(wrong):
    model, batch = make("linear", torch.float32, size=3)
    with pytest.raises(ArgumentError, match=r"Expected clipping .* Use threshold\(\)"):
        make_engine("auto", model, entropy, Parameters(model), batch, wrong)
    with pytest.raises(ArgumentError, match=r"Expected clipping .* Use threshold\(\)"):
        make_gate(torch.zeros(3, 2), clipping=wrong)


@pytest.mark.parametrize("wrong", ["threshold", Threshold, None, threshold()])
def test_what_is_no_bound_is_refused(wrong):
    with pytest.raises(ArgumentError, match="Expected bound"):
        Clipping(wrong)


def test_microbatches_larger_than_a_batch_are_refused():
    with pytest.raises(ArgumentError, match=r"Expected size <= batch_size \(3\), got size=4"):
        microbatches(4).expected_terms(3)
    with pytest.raises(ArgumentError, match="Expected size <= batch_size"):
        make_gate(torch.zeros(10, 2), clipping=microbatches(6), batch_size=5)


# ---------------------------------------------------------------------- the default is as it was


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", GEOMETRIES)
@pytest.mark.parametrize("how", ["one-pass", "vmap", "loop"])
@pytest.mark.parametrize("name", ["mlp", "conv", "tied"])
def test_the_default_is_unchanged_to_the_last_bit(name, how, kind, dtype):
    model, batch = make(name, dtype, size=9)
    parameters = Parameters(model)
    shape = scaling(kind, parameters.size, dtype)
    engine = make_engine(how, model, entropy, parameters, next(batch.chunks(3)))
    engine.padding = None  # products of other sizes round differently
    for clip in (0.01, 0.8, 1e3):
        if how == "one-pass":
            expected = oracles.plain_one_pass(engine, batch, shape, clip, parameters.zeros())
        else:
            rows = engine._gradients(batch)
            expected = oracles.plain_sum(rows, shape, clip, parameters.zeros())
        found = engine.clipped_sum(batch, shape, clip)
        assert torch.equal(found.value, expected)
        assert found.sensitivity == clip


def test_a_size_of_one_is_the_default_with_twice_the_sensitivity():
    model, batch = make("mlp", torch.float32, size=9)
    parameters = Parameters(model)
    shape = scaling("shifted", parameters.size, torch.float32)
    for how in ("vmap", "loop"):
        one, other = (
            make_engine(how, model, entropy, parameters, batch, clipping).clipped_sum(
                batch, shape, 0.3
            )
            for clipping in (threshold(), microbatches(1))
        )
        assert torch.equal(one.value, other.value)
        assert other.sensitivity == 2 * one.sensitivity


# ---------------------------------------------------------------------- automatic


@pytest.mark.parametrize("name", norms.MODELS)
@given(
    seed=norms.SEEDS,
    large=st.tuples(norms.exponents, norms.exponents),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
    kind=st.sampled_from(["isotropic", "diagonal", "shifted"]),
    clip=st.floats(-6, 6).map(lambda x: 10**x),
    chosen=st.sampled_from([automatic(1e-6), automatic(), automatic(1e6), ellipsoid()]),
)
@settings(max_examples=40, deadline=None)
def test_one_example_has_at_most_the_clip_norm(name, seed, large, spread, kind, clip, chosen):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        engine, parameters, batch = norms.make(name, [10**x for x in large])
        shape = norms.preconditioner(kind, parameters, spread)
    engine.clipping = chosen
    first = Batch(batch.inputs[:1], batch.targets[:1])
    alone = engine.clipped_sum(first, shape, clip).value.double()
    assert float(alone.norm()) <= clip * (1 + 1e-6)
    assert bool(torch.isfinite(engine.clipped_sum(batch, shape, clip).value).all())


@pytest.mark.parametrize("chosen", [threshold(), automatic()], ids=repr)
@pytest.mark.parametrize("name", [*norms.MODELS, "sparse", "tied sequences"])
def test_numbers_that_underflow_do_not_lengthen_a_gradient(name, chosen):
    """A huge number times a tiny one, which a factor takes below the normal numbers."""
    for turn in range(150):
        large = 10 ** float(torch.empty(1).uniform_(30, 38.4))
        small = 10 ** float(torch.empty(1).uniform_(-44, -20))
        clip, scale = (1.0, 1e-3)[turn % 2], (1.0, 1e-4, 1e-8)[turn % 3]
        engine, parameters, batch = extreme(name, large, small, swapped=turn % 5 > 2)
        engine.clipping = chosen
        shape = FlatScaling(torch.full((parameters.size,), scale), None)
        found = engine.clipped_sum(batch, shape, clip).value.double()
        assert float(found.norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("factor", ["inputs", "outputs"])
def test_an_example_that_is_no_number_does_not_hide_a_huge_one(factor, positions):
    factors = {"inputs": torch.ones(3, positions, 4), "outputs": torch.ones(3, positions, 5)}
    factors[factor][0] = math.nan
    factors[factor][1, 0, 0] = 1e20
    outer = OuterProductGrad(ParameterView(0, (5, 4), (4, 1)), **factors)
    outer.squared_norms(None)
    assert outer.extreme().tolist() == [False, True, False]
    plain = OuterProductGrad(
        ParameterView(0, (5, 4), (4, 1)), torch.ones(3, positions, 4), torch.ones(3, positions, 5)
    )
    plain.squared_norms(None)
    assert plain.extreme() is None


def extreme(name, large, small, swapped):
    """Return an engine, and one example of which one factor is huge and the other tiny."""
    sizes = (small, large) if swapped else (large, small)
    if name == "sparse":
        model = nn.Linear(9, 4)
        inputs, targets = norms.unit(3, 9).to_sparse_csr(), norms.unit(3, 4)
        engine = OnePassEngine(model, norms.product, Parameters(model), Batch(inputs, targets))
        one = (sizes[0] * norms.unit(1, 9)).to_sparse_csr()
        return engine, Parameters(model), Batch(one, sizes[1] * norms.unit(1, 4))
    if name == "tied sequences":  # two uses of one matrix, with more outputs than inputs
        model = Twice()
        inputs, targets = norms.unit(3, 2, 3), norms.unit(3, 2, 8)
        engine = OnePassEngine(model, norms.product, Parameters(model), Batch(inputs, targets))
        return (
            engine,
            Parameters(model),
            Batch(sizes[0] * norms.unit(1, 2, 3), sizes[1] * norms.unit(1, 2, 8)),
        )
    engine, parameters, batch = norms.make(name, sizes, size=3)
    return engine, parameters, Batch(batch.inputs[:1], batch.targets[:1])


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 3))

    def forward(self, x):
        return functional.linear(x, self.weight) + functional.linear(2 * x, self.weight)


@pytest.mark.parametrize("name", norms.MODELS)
@given(
    seed=norms.SEEDS,
    first=st.floats(-40, 38),
    excess=st.floats(-2, 5),
    clip=st.floats(-6, 3),
    preconditioner=st.sampled_from(["isotropic", "small", "diagonal", "shifted"]),
    cancels=st.booleans(),
    chosen=st.sampled_from([threshold(), automatic(1e-6), automatic(), ellipsoid()]),
)
@settings(max_examples=60, deadline=None)
def test_gradients_about_as_long_as_the_clip_norm_do_not_exceed_it(
    name, seed, first, excess, clip, preconditioner, cancels, chosen
):
    """Made of factors of any two sizes, in sums that cancel or not."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokens = isinstance(norms.MODELS[name][1], int)
        second = min(38.0, clip + excess - (0 if tokens else first))
        engine, parameters, batch = norms.make(name, [10**first, 10**second], size=3)
        shape = norms.preconditioner("isotropic", parameters, 0.0)
        if preconditioner == "small":
            shape = FlatScaling(torch.full((parameters.size,), 1e-7), None)
            batch = replace(batch, targets=1e-7 * batch.targets)
        elif preconditioner != "isotropic":
            shape = norms.preconditioner(preconditioner, parameters, 1.0)
    inputs, targets = batch.inputs[:1], batch.targets[:1]
    if cancels and name in ("sequences", "gram"):
        half = inputs.shape[1] // 2
        inputs[:, half : 2 * half] = inputs[:, :half]
        targets[:, half : 2 * half] = targets[:, :half] * -(1 + 1e-4)
    engine.clipping = chosen
    found = engine.clipped_sum(Batch(inputs, targets), shape, 10**clip).value.double()
    assert float(found.norm()) <= 10**clip * (1 + 1e-6)


class Mixed(nn.Module):
    """A matrix that is multiplied in two ways, which are added up one after the other."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 4))

    def forward(self, x):
        product = functional.linear(x[:, :4], self.weight)
        elements = x[:, 4:].view(-1, 6, 4) * self.weight
        return torch.cat([product, elements.flatten(1)], dim=1)


@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "shifted"])
@pytest.mark.parametrize("chosen", [threshold(), automatic(1e-6)], ids=repr)
def test_uses_of_different_kinds_that_cancel_are_not_under_estimated(chosen, kind):
    model = Mixed()
    parameters = Parameters(model)
    example = Batch(norms.unit(3, 28), norms.unit(3, 30))
    engine = OnePassEngine(model, norms.product, parameters, example, clipping=chosen)
    for turn in range(200):
        shape = norms.preconditioner(kind, parameters, 1.0)
        a, b = 1e3 * norms.unit(4), norms.unit(6)
        against = -(b[:, None] * a) * (1 + 10.0 ** -(4 + turn % 3) * norms.unit(6, 4))
        inputs = torch.cat([a, against.flatten()])[None]
        targets = torch.cat([b, torch.ones(24)])[None]
        for clip in (1e-5, 1e-4, 1e-3, 1e-2):
            found = engine.clipped_sum(Batch(inputs, targets), shape, clip).value.double()
            assert float(found.norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("large", "small"), [(1e14, 1e-22), (1e12, 3e-21), (1e10, 1e-25)])
def test_norms_from_gram_matrices_keep_what_underflows_in_them(large, small, swapped):
    """The squares of the small factors vanish, and their products with the large ones do not."""
    sizes = (small, large) if swapped else (large, small)
    inputs, outputs = sizes[0] * norms.unit(4, 3, 30), sizes[1] * norms.unit(4, 3, 20)
    outer = OuterProductGrad(ParameterView(0, (20, 30), (30, 1)), inputs, outputs)
    true = torch.bmm(outputs.double().mT, inputs.double()).flatten(1).norm(dim=1)
    assert bool((outer.by_gram(None).sqrt() >= true).all())


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-25, 1e-12, 1.0, 1e15, 1e25, 1e38])
def test_lengths_are_known_at_any_size(size):
    values = size * norms.unit(3, 4, 5)
    for dim in (1, 2):
        expected = values.double().norm(dim=dim)
        torch.testing.assert_close(lengths(values, dim), expected, rtol=1e-6, atol=0)
    cancelling = torch.cat([values, -values], dim=1)
    rounding = rounding_of(cancelling, torch.full((3, 2), 1e-30))
    assert bool((rounding > 0).all()) == (size > 0)


def test_a_huge_example_spoils_no_other():
    """It leaves the fast way, and its neighbours stay on it."""
    engine, parameters, batch = norms.make("sequences", [1, 1])
    inputs = batch.inputs.clone()
    inputs[1] *= 1e25
    shape = norms.preconditioner("shifted", parameters, 1.0)
    for chosen in (threshold(), automatic()):
        engine.clipping = chosen
        found = engine.clipped_sum(Batch(inputs, batch.targets), shape, 0.5).value
        rest = torch.tensor([0, 2, 3])
        others = engine.clipped_sum(Batch(inputs[rest], batch.targets[rest]), shape, 0.5).value
        own = engine.clipped_sum(Batch(inputs[1:2], batch.targets[1:2]), shape, 0.5).value
        torch.testing.assert_close(found, others + own, rtol=1e-5, atol=1e-6)
        assert 0.4999 < float(own.double().norm()) <= 0.5 * (1 + 1e-6)


def test_a_huge_input_is_still_clipped_like_any_other():
    engine, _, batch = norms.make("vectors", [1e30, 1e-20])
    one = Batch(batch.inputs[:1], batch.targets[:1])
    for chosen in (threshold(), automatic()):
        engine.clipping = chosen
        found = engine.clipped_sum(one, FlatScaling(None, None), 0.5).value
        assert 0.4999 < float(found.double().norm()) <= 0.5 * (1 + 1e-6)


def test_automatic_clipping_makes_long_gradients_alike():
    engine = direct_engine(automatic(), 4, torch.float64)
    for length in (1.0, 1e3, 1e9):
        row = torch.tensor([[0.6, 0.0, -0.8, 0.0]]).double() * length
        found = engine.clipped_sum(Batch(row, torch.ones_like(row)), FlatScaling(None, None), 2.0)
        assert float(found.value.norm()) == pytest.approx(2 * length / (length + 0.01), rel=1e-9)


def direct_engine(clipping, size, dtype):
    model = Direct(size, dtype)
    example = Batch(torch.rand(3, size, dtype=dtype), torch.ones(3, size, dtype=dtype))
    return make_engine("one-pass", model, add_up, Parameters(model), example, clipping)


# ---------------------------------------------------------------------- the projection


def some_gradients(seed, count, size, spread, large):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, size, generator=generator, dtype=torch.float64)
    rows *= 10 ** (large * (2 * torch.rand(count, 1, generator=generator) - 1))
    scale = 10 ** (spread * (2 * torch.rand(size, generator=generator).double() - 1))
    return rows, scale


def project(rows, scale, clip):
    return projection.projected(rows / scale, scale, clip) * scale


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 8),
    spread=st.sampled_from([0.0, 0.5, 3.0, 8.0]),
    large=st.sampled_from([0.0, 2.0, 9.0]),
    clip=st.sampled_from([1e-3, 1.0, 50.0]),
)
@settings(max_examples=60, deadline=None)
def test_the_projection_is_that_of_the_bisection(seed, size, spread, large, clip):
    rows, scale = some_gradients(seed, 4, size, spread, large)
    found = project(rows, scale, clip)
    for row, point in zip(rows, found, strict=True):
        expected = oracles.projection(row, scale, clip)
        # compared where it is summed
        assert float(((point - expected) / scale).norm()) <= 1e-8 * clip


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(2, 8),
    spread=st.sampled_from([0.0, 0.5, 2.0]),
    clip=st.sampled_from([1e-2, 1.0, 50.0]),
)
@settings(max_examples=60, deadline=None)
def test_the_projection_is_the_nearest_point(seed, size, spread, clip):
    """No point of the ellipsoid makes an acute angle with the way out: (d - p)(z - p) <= 0."""
    rows, scale = some_gradients(seed, 3, size, spread, 2.0)
    generator = torch.Generator().manual_seed(seed + 1)
    for row, point in zip(rows, project(rows, scale, clip), strict=True):
        assert float((point / scale).norm()) <= clip * (1 + 1e-12)
        way = row - point
        assert bool((way * row >= -1e-12 * row.square()).all())  # towards zero, not beyond
        for _ in range(20):
            other = torch.randn(size, generator=generator, dtype=torch.float64)
            other = other / other.norm() * clip * scale  # on the surface
            product, across = float(way @ (other - point)), float((other - point).norm())
            assert product <= (1e-9 * float(way.norm()) + 1e-15 * float(row.norm())) * across


def test_the_conditions_of_karush_kuhn_and_tucker_hold():
    rows, scale = some_gradients(3, 50, 6, 1.0, 2.0)
    outside = 0
    for row, point in zip(rows, project(rows, scale, 1.0), strict=True):
        length = float((point / scale).norm())
        if float((row / scale).norm()) <= 1:
            assert torch.allclose(row, point, rtol=1e-15)
            continue
        outside += 1
        assert length == pytest.approx(1.0, rel=1e-9)
        multipliers = (row - point) * scale**2 / point
        assert float(multipliers.min()) >= 0
        assert torch.allclose(multipliers, multipliers.mean(), rtol=1e-6)
    assert 5 < outside < 50


def test_the_projection_is_not_the_shortening_unless_scales_are_equal():
    rows, scale = some_gradients(3, 5, 6, 1.0, 0.0)
    for same in (False, True):
        scales = scale.mean().expand(6) if same else scale
        shortened = rows / (rows / scales).norm(dim=1, keepdim=True).clamp(min=1e-3) * 1e-3
        assert torch.allclose(project(rows, scales, 1e-3), shortened, rtol=1e-9) == same


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_no_projection_is_outside_whatever_the_solver_did(turns, monkeypatch):
    monkeypatch.setattr(projection, "_MOST_TURNS", turns)
    for seed in range(20):
        rows, scale = some_gradients(seed, 6, 5, 8.0, 9.0)
        found = project(rows, scale, 0.5) / scale
        assert float(found.norm(dim=1).max()) <= 0.5 * (1 + 1e-12)


@pytest.mark.parametrize("ratio", [1e-30, 1e-200, 1.0, 1e200])
@pytest.mark.parametrize("length", [1e-300, 1e-150, 1.0, 1e150])
def test_the_projection_survives_the_ends_of_the_type(ratio, length):
    scale = torch.tensor([1.0, ratio, 1.0]).double()
    whitened = torch.tensor([[1.0, -2.0, 3.0], [0.0, 0.0, 0.0], [math.nan, 1, 1]]).double() * length
    for clip in (1e-300, 1e-10, 1.0, 1e10):
        found = projection.projected(whitened, scale, clip)
        assert bool(torch.isfinite(found).all())
        assert float(found.norm(dim=1).max()) <= clip * (1 + 1e-12)
        assert torch.equal(found[1:], torch.zeros(2, 3).double())


# ---------------------------------------------------------------------- groups


def test_groups_are_dealt_uniformly_and_by_record():
    rounds, count = 4000, 6
    rng = SeededSource(11, "sampling")
    dealt = np.stack(
        [microbatches(3).assign_microbatches(count, 12, rng).numpy() for _ in range(rounds)]
    )
    assert dealt.shape == (rounds, count)
    assert set(dealt.flat) == {0, 1, 2, 3}
    for record in range(count):
        assert stats.chisquare(np.bincount(dealt[:, record], minlength=4)).pvalue > 1e-6
        for other in range(record):
            table = np.bincount(4 * dealt[:, record] + dealt[:, other], minlength=16)
            assert stats.chisquare(table).pvalue > 1e-6


def test_the_groups_of_others_do_not_depend_on_how_many_there_are():
    for count in range(1, 9):
        fewer, more = (
            microbatches(2).assign_microbatches(n, 10, SeededSource(5, "sampling"))
            for n in (count, count + 1)
        )
        assert torch.equal(fewer, more[:-1])


@pytest.mark.parametrize(("batch_size", "size", "groups"), [(64, 4, 16), (10, 4, 3), (7.5, 2, 4)])
def test_there_are_as_many_groups_as_a_batch_has_micro_batches(batch_size, size, groups):
    dealt = microbatches(size).assign_microbatches(5000, batch_size, SeededSource(1, "sampling"))
    assert sorted(set(dealt.tolist())) == list(range(groups))


@pytest.mark.parametrize("clipping", [threshold(), automatic(), ellipsoid(), microbatches(1)])
def test_others_deal_no_groups_and_draw_no_bits(clipping):
    rng = SeededSource(1, "sampling")
    assert clipping.assign_microbatches(10, 10, rng) is None
    assert rng.position == 0


def test_the_order_of_records_does_not_matter_to_their_groups():
    model, batch = make("mlp", torch.float64, size=9)
    engine = make_engine("loop", model, entropy, Parameters(model), batch, microbatches(3))
    engine._chunk = 2
    groups = torch.tensor([4, 0, 0, 2, 4, 2, 2, 0, 1])
    shape = scaling("shifted", Parameters(model).size, torch.float64)
    found = []
    for seed in range(5):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
        mixed = Batch(batch.inputs[order], batch.targets[order], groups[order])
        found.append(engine.clipped_sum(mixed, shape, 0.3).value)
    rows = gradients(model, entropy, batch.inputs, batch.targets)
    expected = oracles.microbatches(rows, 0.3, shape.scale, shape.shift, groups)
    for value in found:
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


def test_a_batch_keeps_its_groups():
    batch = Batch(torch.arange(5.0)[:, None], torch.arange(5), torch.tensor([1, 0, 1, 2, 0]))
    parts = list(batch.chunks(2))
    assert [part.groups.tolist() for part in parts] == [[1, 0], [1, 2], [0]]
    assert batch.at(torch.tensor([3, 0])).groups.tolist() == [2, 1]
    ordered = batch.by_group()
    assert ordered.groups.tolist() == [0, 0, 1, 1, 2]
    assert ordered.targets.tolist() == ordered.inputs[:, 0].tolist() == [1, 4, 0, 2, 3]
    assert "1" not in repr(batch)
    with pytest.raises(ValueError, match="5 examples"):
        replace(batch, groups=torch.zeros(4)).by_group()


# ---------------------------------------------------------------------- through the query


class EmbeddingGrad:
    """A data set whose records are gradients; some cannot be read, or make the model fail."""

    def __init__(self, rows, unreadable=(), odd=()):
        self.rows, self.unreadable, self.odd = rows, unreadable, odd

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index in self.unreadable:
            raise OSError("unreadable")
        row = self.rows[index]
        if index in self.odd:
            row = torch.cat([row, row[:1]])
        return row, torch.ones(self.rows.shape[1])


class Fails(nn.Module):
    """A model whose gradients are its inputs, and that fails on inputs of minus one."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.failed = 0

    def forward(self, x):
        if x.shape[-1] != len(self.weight) or bool((x.detach() == -1).any()):
            self.failed += 1
            raise RuntimeError("private")
        return x * self.weight


def make_gate(rows, clipping="default", batch_size=None, clip=0.5, seed=3, how="loop", **given):
    rows = given.pop("records", rows)
    size = (rows.rows if isinstance(rows, EmbeddingGrad) else rows).shape[1]
    count = len(rows)
    model = given.pop("model", None) or Fails(size)
    parameters = Parameters(model)
    records = data.load(
        rows if isinstance(rows, EmbeddingGrad) else (rows, torch.ones_like(rows)),
        torch.float32,
        torch.device("cpu"),
    )
    batch_size = count if batch_size is None else batch_size
    chosen = {} if clipping == "default" else {"clipping": clipping}
    example = data.dummy_batch(records)
    usable = clipping if isinstance(clipping, Clipping) else threshold()
    sampler = PoissonSampler(count, batch_size / count)
    releases = Releases(1, constant(), lambda step: 1)
    return GradientQuery(
        mechanism=Mechanism(sampler, releases, batch_size, clip, **chosen),
        executor=LocalExecutor(
            records=records,
            engine=make_engine(how, model, add_up, parameters, example, usable),
            parameters=parameters,
            model_rng=SecureSource(),
        ),
        account=Account(Ledger(None), run="run"),
        noise=GaussianNoise(SeededSource(seed, "noise")),
        sampling_rng=SeededSource(seed, "sampling"),
        parameters=parameters,
        **given,
    )


@pytest.mark.parametrize("clipping", ALL, ids=repr)
def test_a_release_has_the_noise_that_its_sensitivity_asks_for(clipping):
    """And is charged for the multiplier alone, whatever the sensitivity is."""
    gate = make_gate(torch.zeros(8, 400), clipping, clip=0.25)
    moves = 2 if clipping.size else 1
    values = []
    for _ in range(30):
        release = gate.release(isotropic(), 3.0)
        assert release.noise_std == 3.0 * moves * 0.25
        assert release.batch_size == 8 / (clipping.size or 1)
        assert release.gradient_std == release.noise_std / release.batch_size
        values.append(release.value)
    found = torch.cat(values).double().numpy()
    low, high = stats.chi2.interval(1 - 1e-6, found.size)
    assert low < (found**2).sum() / (3.0 * moves * 0.25) ** 2 < high
    gate.account.refund_unused()
    assert gate.account.ledger.totals() == {events.gaussian(3.0): 30}


@pytest.mark.parametrize("clipping", ALL, ids=repr)
def test_a_release_is_the_clipped_average(clipping):
    """With next to no noise: gradients that are all alike, and within the clip norm."""
    generator = torch.Generator().manual_seed(1)
    row = torch.randn(6, generator=generator)
    gate = make_gate(row.repeat(4000, 1), clipping, batch_size=400, clip=1e-3)
    shape = diagonal(torch.rand(6, generator=generator) + 0.5)
    release = gate.release(shape, 1e-4)
    flat = shape.on(gate._parameters)
    term = {
        "threshold": oracles.threshold,
        "automatic(gamma=0.01)": oracles.automatic(0.01),
        "automatic(gamma=2)": oracles.automatic(2.0),
        "ellipsoid": oracles.ellipsoid,
    }.get(repr(clipping).removesuffix("()"), oracles.threshold)(row[None], 1e-3, flat.scale)
    terms = float(release.gradient.double() @ term / (term @ term))
    # as many terms as expected, within six standard deviations; 4 records leave one in e^4 empty
    assert terms == pytest.approx(1.0, abs=6 / 20 + 0.02)
    assert float((release.gradient.double() - terms * term).norm()) < 1e-2 * float(term.norm())


def test_the_gate_deals_groups_from_its_own_bits():
    rows = torch.randn(40, 5, generator=torch.Generator().manual_seed(2))
    gate = make_gate(rows, microbatches(4), batch_size=20, seed=9)
    release = gate.release(isotropic(), 1e-6)
    rng = SeededSource(9, "sampling")
    indices = PoissonSampler(40, 0.5).draw(0, rng)
    groups = microbatches(4).assign_microbatches(len(indices), 20, rng)
    expected = oracles.microbatches(rows[indices], 0.5, groups=groups)
    torch.testing.assert_close(release.value.double(), expected, rtol=0, atol=1e-4)
    assert torch.equal(release.gradient, release.value / 5.0)


def test_a_gate_without_a_choice_is_as_it_was():
    rows = torch.randn(30, 5, generator=torch.Generator().manual_seed(2))
    releases, positions = [], []
    for clipping in ("default", threshold()):
        gate = make_gate(rows, clipping, batch_size=10)
        releases.append([gate.release(isotropic(), 1.0) for _ in range(5)])
        positions.append(gate._rng.position)
    for one, other in zip(*releases, strict=True):
        assert torch.equal(one.value, other.value)
        assert (one.noise_std, one.batch_size) == (other.noise_std, other.batch_size) == (0.5, 10)
    sampler, rng, noise = (
        PoissonSampler(30, 1 / 3),
        SeededSource(3, "sampling"),
        GaussianNoise(SeededSource(3, "noise")),
    )
    for release in releases[0]:
        indices = sampler.draw(0, rng)
        total = oracles.plain_sum(rows[indices], FlatScaling(None, None), 0.5, torch.zeros(5))
        expected = noise.release(ClippedSum(total, 0.5), paid(), 10)
        assert torch.equal(release.value, expected.value)
    assert positions == [rng.position] * 2


@pytest.mark.parametrize(
    ("how", "fault"),
    [(how, fault) for how in ("one-pass", "vmap", "loop") for fault in ("unreadable", "odd")]
    + [("loop", "failing")],  # the others cannot follow a model that reads values
)
@pytest.mark.parametrize("clipping", ALL, ids=repr)
def test_a_record_that_fails_is_as_if_it_were_not_there(clipping, how, fault):
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(12, 5, generator=generator)
    bad = [4, 7]
    if fault == "failing":
        rows[bad] = -1.0
    faults = {} if fault == "failing" else {fault: bad}
    model = Fails(5) if how == "loop" else Plain(5)
    gate = make_gate(EmbeddingGrad(rows, **faults), clipping, how=how, model=model)
    groups = clipping.assign_microbatches(12, 12, SeededSource(3, "sampling"))
    whitened = FlatScaling(None, None)
    kept = torch.tensor([i not in bad for i in range(12)])
    indices = np.arange(12)
    found = gate.clipped_sum(Draw(indices, groups), whitened, 0.5)
    expected = gate.executor.engine.clipped_sum(
        Batch(
            rows[kept],
            torch.ones(int(kept.sum()), 5),
            None if groups is None else groups[kept],
        ),
        whitened,
        0.5,
    )
    torch.testing.assert_close(found.value, expected.value, rtol=1e-5, atol=1e-6)
    assert found.sensitivity == expected.sensitivity
    assert bool(found.value.any())
    assert bool(model.failed) == (fault == "failing")  # others do not reach the model


class Plain(Fails):
    """The same without reading values, for vmap."""

    def forward(self, x):
        if x.shape[-1] != len(self.weight):
            self.failed += 1
            raise RuntimeError("private")
        return x * self.weight


@pytest.mark.parametrize("fault", [{"unreadable": [5]}, {"odd": [5]}, {}])
def test_a_record_that_fails_moves_the_sum_by_no_more_than_the_sensitivity(fault):
    """Whichever group it is in, whoever else is there."""
    generator = torch.Generator().manual_seed(2)
    rows = 100 * torch.randn(6, 5, generator=generator)
    if not fault:
        rows[5] = -1.0
    gate = make_gate(EmbeddingGrad(rows, **fault), microbatches(2), batch_size=6)
    for _ in range(40):
        groups = torch.randint(3, (6,), generator=generator)
        kept = np.sort(torch.randperm(5, generator=generator)[:3].numpy())
        with_it = np.append(kept, 5)
        sums = [
            gate.clipped_sum(Draw(indices, groups[indices]), FlatScaling(None, None), 0.5)
            for indices in (kept, with_it)
        ]
        moved = float((sums[0].value - sums[1].value).double().norm())
        assert moved <= 1e-6  # left out, it does not move it at all
        assert sums[0].sensitivity == 1.0


class FailsTogether:
    """An engine that fails on records with 1 and with 2 in front, if they are in one batch."""

    def __init__(self, engine):
        self.engine, self.padding = engine, engine.padding

    def clipped_sum(self, batch, scaling, clip):
        if batch is not None and {1.0, 2.0} <= set(batch.inputs[:, 0].tolist()):
            raise RuntimeError("private")
        return self.engine.clipped_sum(batch, scaling, clip)


def test_members_that_do_not_go_together_leave_other_groups_as_they_were():
    """Each works alone, but not beside the other: their group counts as zero."""
    rows = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))
    rows[2, 0], rows[3, 0] = 1.0, 2.0
    gate = make_gate(EmbeddingGrad(rows), microbatches(2))
    gate.executor.engine = FailsTogether(gate.executor.engine)
    groups = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    found = gate.clipped_sum(Draw(np.arange(8), groups), FlatScaling(None, None), 0.5).value
    kept = groups != 1
    expected = oracles.microbatches(rows[kept], 0.5, groups=groups[kept])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_fault_of_the_model_is_told():
    model = Fails(5)
    gate = make_gate(torch.rand(6, 5), microbatches(2), model=model)
    model.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError) as caught:
        gate.release(isotropic(), 1.0)
    assert caught.value.__context__ is None


def test_an_engine_and_a_gate_that_disagree_are_still_safe():
    """Groups that a clipping does not ask for, or that nobody dealt, never lower the noise."""
    rows = 100 * torch.randn(6, 5, generator=torch.Generator().manual_seed(2))
    model = Fails(5)
    parameters = Parameters(model)
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    dealt = Batch(rows, torch.ones_like(rows), groups)
    shape = FlatScaling(None, None)
    plain = PerExampleEngine(model, add_up, parameters, "loop")
    micro = PerExampleEngine(model, add_up, parameters, "loop", clipping=microbatches(3))
    ungrouped = plain.clipped_sum(replace(dealt, groups=None), shape, 0.5)
    assert torch.equal(plain.clipped_sum(dealt, shape, 0.5).value, ungrouped.value)
    found = micro.clipped_sum(replace(dealt, groups=None), shape, 0.5)
    assert torch.equal(found.value, ungrouped.value)
    assert found.sensitivity == 1.0


def test_the_fast_engine_is_compared_with_the_loop_in_the_way_it_will_be_used():
    """Gradients that a clipping needs are made otherwise than norms, and are tried as well."""
    model, batch = make("mlp", torch.float64, size=3)

    class Wrong(OnePassEngine):
        def _materialised(self, *given):
            return 1.01 * super()._materialised(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privada.clipping.engine.OnePassEngine", Wrong)
        make_engine("one-pass", model, entropy, Parameters(model), batch, automatic())
        for clipping in (ellipsoid(), microbatches(2), microbatches(1)):
            with pytest.raises(ArgumentError, match="gradient is off"):
                make_engine("one-pass", model, entropy, Parameters(model), batch, clipping)
