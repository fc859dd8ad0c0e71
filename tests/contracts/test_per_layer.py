"""Clipping of each layer by itself: equal to a loop, and no layer above its own clip norm."""

import math
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from privada.clipping import (
    Batch,
    adaptive,
    automatic,
    ellipsoid,
    in_turns,
    make_engine,
    microbatches,
    per_layer,
    threshold,
)
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.self_check import moved
from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.preconditioning import FlatScaling
from tests.clipping import test_norms as extremes
from tests.clipping.test_extremes import shape_of as extreme_scaling
from tests.contracts.models import CASES
from tests.contracts.test_clippings import add_up, batch_of
from tests.contracts.test_engines import make
from tests.contracts.test_engines import scaling as pattern
from tests.contracts.test_rules import TOLERANCE, drawn, in_type, quick, scaling
from tests.oracles import examples

ENGINES = ("one-pass", "vmap", "loop")
ISOTROPIC = FlatScaling(None, None)
entropy = functional.cross_entropy


def layers_of(parameters, shares=None):
    """Return where each layer's coordinates are, and the share of its clip norm."""
    slices = parameters.layout.slices()
    found = []
    for name, group in groupby(slices, key=lambda each: each[0].rpartition(".")[0]):
        places = [place for _, place, _ in group]
        share = 1.0 if shares is None else shares[name]
        found.append((slice(places[0].start, places[-1].stop), share))
    root = math.sqrt(sum(share**2 for _, share in found))
    return [(place, share / root) for place, share in found]


def clipped(rows, clip, layers, bounded=examples.clipped):
    """Return the sum of rows, each layer bounded by itself; those not finite count as zero."""
    rows = rows[torch.isfinite(rows).all(dim=1)]
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for place, share in layers:
        for row in rows:
            total[place] += bounded(row[None, place], clip * share)
    return total


# ---------------------------------------------------------------------- equal to the loop


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(quick, max_examples=4)
def test_the_sum_equals_the_loop_for_all_models(name, data):
    model, example, batch = drawn(name, data.draw, data.draw(st.integers(1, 5)))
    rows = examples.gradients(model, functional.mse_loss, batch.inputs, batch.targets)
    for dtype, tolerance in TOLERANCE.items():
        model = model.to(dtype)
        parameters = Parameters(model)
        names = {each.rpartition(".")[0] for each in parameters.layout.names}
        shares = {each: 1.0 + i % 3 for i, each in enumerate(sorted(names))}
        with moved(parameters):
            engine = OnePassEngine(model, functional.mse_loss, parameters, in_type(example, dtype))
        for kind in ("diagonal", "shifted"):
            shape = scaling(kind, parameters)
            whitened = examples.whitened(rows, shape.scale, shape.shift)
            for given_shares in (None, shares):
                engine.clipping = per_layer(given_shares)
                layers = layers_of(parameters, given_shares)
                norms = torch.stack([whitened[:, place].norm(dim=1) for place, _ in layers])
                clip = float(norms.median()) * math.sqrt(len(layers)) + 1e-3
                expected = clipped(whitened, clip, layers)
                found = engine.clipped_sum(in_type(batch, dtype), shape, clip)
                assert found.sensitivity == clip
                error = float((found.value.double() - expected).norm())
                size = max(float(expected.norm()), min(clip, float(norms.max())))
                # what is small in one layer may be what is left of the rounding of others
                loose = 64 * torch.finfo(dtype).eps * float(norms.max())
                assert error <= tolerance * size + loose + 1e-15, (kind, error, expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "shifted"])
@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("base", [threshold(), automatic(0.3)], ids=repr)
def test_all_engines_agree_with_the_loop(base, how, kind, dtype):
    def automatically(rows, clip):
        return (rows * clip / (rows.norm(dim=1, keepdim=True) + 0.3)).sum(dim=0)

    bounded = examples.clipped if base == threshold() else automatically
    model, batch = make("mlp", dtype, size=8)
    parameters = Parameters(model)
    shape = pattern(kind, parameters.size, dtype)
    clipping = per_layer({"0": 1.0, "2": 3.0}, of=base)
    engine = make_engine(how, model, entropy, parameters, batch, clipping)
    rows = examples.gradients(model, entropy, batch.inputs, batch.targets)
    whitened = examples.whitened(rows, shape.scale, shape.shift)
    layers = layers_of(parameters, {"0": 1.0, "2": 3.0})
    for clip in (1e-3, 0.8, 1e3):
        found = engine.clipped_sum(batch, shape, clip).value.double()
        expected = clipped(whitened, clip, layers, bounded)
        assert float((found - expected).norm()) <= TOLERANCE[dtype] * 10 * float(expected.norm())


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("units", [True, False])
def test_averages_are_clipped_by_layer(how, units):
    """Of the rows of a unit, and of micro-batches."""
    model, batch = make("mlp", torch.float64, size=6)
    owners = torch.tensor([0, 1, 0, 2, 1, 0])
    batch = Batch(batch.inputs, batch.targets, owners)
    clipping = per_layer().of_units() if units else per_layer(of=microbatches(2))
    assert clipping.sensitivity(0.5) == (0.5 if units else 1.0)
    parameters = Parameters(model)
    engine = make_engine(how, model, entropy, parameters, batch, clipping)
    shape = pattern("shifted", parameters.size, torch.float64)
    rows = examples.gradients(model, entropy, batch.inputs, batch.targets)
    rows = torch.stack([rows[owners == owner].mean(dim=0) for owner in range(3)])
    expected = clipped(
        examples.whitened(rows, shape.scale, shape.shift), 0.5, layers_of(parameters)
    )
    found = engine.clipped_sum(batch, shape, 0.5).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("how", ENGINES)
def test_a_model_of_one_layer_is_clipped_as_a_whole(how):
    model, batch = make("linear", torch.float64, size=5)
    parameters = Parameters(model)
    shape = pattern("shifted", parameters.size, torch.float64)
    one, whole = (
        make_engine(how, model, entropy, parameters, batch, clipping).clipped_sum(batch, shape, 0.3)
        for clipping in (per_layer(), threshold())
    )
    torch.testing.assert_close(one.value, whole.value, rtol=1e-12, atol=1e-13)


def test_parameters_can_have_shares_of_their_own():
    model, batch = make("linear", torch.float64, size=5)
    parameters = Parameters(model)
    clipping = per_layer({"weight": 3.0, "bias": 4.0})
    engine = make_engine("one-pass", model, entropy, parameters, batch, clipping)
    rows = examples.gradients(model, entropy, batch.inputs, batch.targets)
    expected = clipped(rows, 0.01, [(slice(0, 18), 0.6), (slice(18, 21), 0.8)])
    found = engine.clipped_sum(batch, ISOTROPIC, 0.01).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("how", ENGINES)
def test_the_count_of_an_adaptive_clip_norm_is_of_whole_gradients(how):
    model, batch = make("mlp", torch.float64, size=9)
    parameters = Parameters(model)
    clipping = adaptive(of=per_layer())
    engine = make_engine(how, model, entropy, parameters, batch, clipping)
    rows = examples.gradients(model, entropy, batch.inputs, batch.targets)
    clip = float(rows.norm(dim=1).median()) * 1.001
    found = engine.clipped_sum(batch, ISOTROPIC, clip)
    expected = clipped(rows, clip, layers_of(parameters))
    torch.testing.assert_close(found.value[:-1], expected, rtol=1e-9, atol=1e-12)
    assert float(found.value[-1]) == pytest.approx(clip * (5 - 4) / 2)
    assert found.sensitivity == clip * math.sqrt(1.25)


# ---------------------------------------------------------------------- the bound


class Parts(nn.Module):
    """Layers whose per-example gradients are parts of the inputs."""

    def __init__(self, dtype):
        super().__init__()
        self.layers = nn.ModuleList(nn.Module() for _ in range(3))
        for layer, size in zip(self.layers, (2, 1, 3), strict=True):
            layer.weight = nn.Parameter(torch.zeros(size, dtype=dtype))

    def forward(self, x):
        parts = torch.split(x, (2, 1, 3), dim=1)
        pairs = zip(parts, self.layers, strict=True)
        return torch.cat([part * layer.weight for part, layer in pairs], dim=1)


SHARES = {"layers.0": 1.0, "layers.1": 4.0, "layers.2": 0.1}
SCALES = {
    "isotropic": (None, None),
    "diagonal": ([1e-3, 0.2, 1.0, 5.0, 1e3, 0.7], None),
    "shifted": ([1e-3, 0.2, 1.0, 5.0, 1e3, 0.7], [0.01, -0.3, 2.0, 0.0, -40.0, 1.0]),
}


def hostile(dtype):
    big, axis = 1e36 if dtype == torch.float32 else 1e140, torch.eye(6, dtype=dtype)
    ramp = torch.arange(1.0, 7, dtype=dtype)
    spread = torch.tensor([big, 1e-30, 1.0, -big, big, 1e-3], dtype=dtype)
    return torch.stack(
        [
            big * ramp, -big * ramp, big * axis[2], -big * axis[5], 1e-36 * ramp, 0 * ramp, ramp,
            -ramp, spread, -spread, ramp + math.nan * axis[0], ramp - math.inf,
            torch.full((6,), torch.finfo(dtype).max, dtype=dtype),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("base", [threshold(), automatic()], ids=repr)
def test_no_layer_of_one_record_is_above_its_clip_norm(base, how, kind, dtype):
    model = Parts(dtype)
    scale, shift = (None if v is None else torch.tensor(v, dtype=dtype) for v in SCALES[kind])
    parameters, rows = Parameters(model), hostile(dtype)
    layers = layers_of(parameters, SHARES)
    engine = make_engine(
        how, model, add_up, parameters, batch_of(rows[6:8]), per_layer(SHARES, of=base)
    )
    for clip in (1e-3, 0.5, 20.0):
        for row in rows:
            found = engine.clipped_sum(batch_of(row[None]), FlatScaling(scale, shift), clip)
            value = found.value.double()
            for place, share in layers:
                assert float(value[place].norm()) <= clip * share * (1 + 1e-6)
            assert float(value.norm()) <= found.sensitivity * (1 + 1e-6)
        both = engine.clipped_sum(batch_of(rows[[0, 1, 8]]), FlatScaling(scale, shift), clip)
        less = engine.clipped_sum(batch_of(rows[[0, 8]]), FlatScaling(scale, shift), clip)
        assert float((both.value - less.value).double().norm()) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("name", extremes.MODELS)
@pytest.mark.parametrize("kind", ["constant", "diagonal", "shifted"])
@pytest.mark.parametrize("exponent", [-35, -19, 0, 19, 35])
def test_the_bound_holds_at_the_ends_of_float32(name, kind, exponent):
    engine, parameters, batch = extremes.make(name, [1.0, 1.0])
    names = dict.fromkeys(parameters.layout.names, 1.0)
    engine.clipping = per_layer(names)
    shape = extreme_scaling(kind, parameters.size, exponent)
    share = 1 / math.sqrt(len(names))
    for size in (-38, -14, 0, 18, 34):
        one = Batch(batch.inputs[:1], batch.targets[:1] * 10.0**size)
        for clip in (1e-4, 1.0, 1e4):
            found = engine.clipped_sum(one, shape, clip).value.double()
            for _, place, _ in parameters.layout.slices():
                assert float(found[place].norm()) <= clip * share * (1 + 1e-6), (size, clip)


@pytest.mark.parametrize("how", ENGINES)
def test_a_gradient_that_is_not_finite_in_one_layer_counts_as_zero_in_all(how):
    model, rows = Parts(torch.float64), torch.ones(4, 6, dtype=torch.float64)
    engine = make_engine(how, model, add_up, Parameters(model), batch_of(rows[:3]), per_layer())
    spoilt = rows.clone()
    spoilt[2, 4] = math.inf
    found = engine.clipped_sum(batch_of(spoilt), ISOTROPIC, 0.7).value
    rest = engine.clipped_sum(batch_of(rows[:3]), ISOTROPIC, 0.7).value
    torch.testing.assert_close(found, rest, rtol=1e-12, atol=1e-12)


@given(shares=st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3))
@settings(max_examples=200, deadline=None)
def test_the_squares_of_the_shares_add_up_to_at_most_one(shares):
    layout = Parameters(Parts(torch.float64)).layout
    named = dict(zip(SHARES, shares, strict=True))
    blocks = per_layer(named).on(layout).bound.blocks
    total = math.fsum(block.share**2 for block in blocks)
    assert 1 - 1e-12 < total <= 1
    assert [(block.start, block.stop) for block in blocks] == [(0, 2), (2, 3), (3, 6)]
    assert blocks[0].share / blocks[2].share == pytest.approx(shares[0] / shares[2])


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"0": 1.0}, r"none for \['2'\]"),
        ({"0": 1.0, "2": 1.0, "7": 1.0}, r"unknown names \['7'\]"),
        ({"0": 1.0, "2.weight": 1.0}, r"none for \['2'\] and unknown names \['2.weight'\]"),
        ({"0": 1.0, "2": 1.0, "2.weight": 1.0}, r"unknown names \['2.weight'\]"),
    ],
)
@pytest.mark.parametrize("how", ["auto", "loop"])
def test_names_that_do_not_fit_the_model_are_refused_with_the_remedy(how, shares, words):
    model, batch = make("mlp", torch.float32, size=3)
    with pytest.raises(ArgumentError, match=words + r".*named_modules\(\)"):
        make_engine(how, model, entropy, Parameters(model), batch, per_layer(shares))


@pytest.mark.parametrize("wrong", [{}, 0.5, ["0"], {"0": 0.0}, {"0": -1}, {"0": math.nan}])
def test_wrong_shares_are_refused(wrong):
    with pytest.raises(ArgumentError, match="Expected shares"):
        per_layer(wrong)


@pytest.mark.parametrize("wrong", [ellipsoid(), per_layer()])
def test_bounds_that_are_not_by_the_norm_are_refused(wrong):
    with pytest.raises(ArgumentError, match="by its norm"):
        per_layer(of=wrong)


def test_it_is_a_value_that_says_what_it_is():
    assert per_layer() == per_layer() != threshold()
    assert per_layer({"0": 1}) == per_layer({"0": 1.0})
    assert len({per_layer(), per_layer({"0": 1}), threshold()}) == 3
    assert repr(per_layer({"0": 1})) == "per_layer({'0': 1})"
    assert repr(per_layer(of=automatic())) == "per_layer() of automatic(gamma=0.01)"
    assert repr(per_layer(of=microbatches(4))) == "per_layer() of microbatches(4)"
    assert repr(in_turns((2, 1.0), of=per_layer())) == "in_turns((2, 1)) of per_layer()"
