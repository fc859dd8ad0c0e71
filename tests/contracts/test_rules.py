"""Every rule of the engine of one pass, held to the loop over examples in every geometry."""

import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from privada.clipping import self_check
from privada.clipping.calling import call
from privada.clipping.engine import make_engine
from privada.clipping.one_pass import OnePassEngine
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.preconditioning import FlatScaling
from tests.contracts.models import CASES
from tests.oracles import examples

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
GEOMETRIES = ("isotropic", "constant", "by-column", "by-row", "separable", "diagonal", "shifted")
quick = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def scaling(kind, parameters):
    """Return a geometry, with rows and columns those of each parameter as a matrix."""
    parts = []
    for shape in parameters.layout.shapes:
        size = shape.numel()
        pattern = torch.arange(size, dtype=torch.float64)
        rows = shape[0] if len(shape) > 1 else 1
        row = (0.5 + (torch.arange(rows) * 0.618).frac())[:, None].expand(rows, size // rows)
        column = (0.5 + (torch.arange(size // rows) * 0.618).frac())[None].expand(rows, -1)
        scale = {
            "isotropic": torch.ones(size),
            "constant": torch.full((size,), 0.3),
            "by-column": column,
            "by-row": row,
            "separable": row * column,
            "diagonal": 0.1 + 2 * (pattern * 0.618).frac(),
            "shifted": 0.1 + 2 * (pattern * 0.618).frac(),
        }[kind]
        parts.append(scale.reshape(-1))
    scale = torch.cat(parts).to(parameters.dtype)
    shift = 0.2 * torch.sin(torch.arange(parameters.size, dtype=parameters.dtype))
    return FlatScaling(None if kind == "isotropic" else scale, shift if kind == "shifted" else None)


def cast(values, dtype):
    return torch.utils._pytree.tree_map(
        lambda t: t.to(dtype) if t.is_floating_point() else t, values
    )


def drawn(name, draw, size):
    """Return a model in float64, made-up examples, and a batch."""
    with torch.random.fork_rng():
        torch.manual_seed(draw(st.integers(0, 1000)))
        model, make = CASES[name](draw)
        model = model.double().train()
        batches = []
        for count in (3, size):
            inputs = cast(make(count), torch.float64)
            with torch.no_grad():
                targets = torch.randn_like(call(model, inputs))
            batches.append(Batch(inputs, targets))
    return model, *batches


def in_type(batch, dtype):
    return Batch(cast(batch.inputs, dtype), cast(batch.targets, dtype))


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@quick
def test_clipped_sum_equals_the_loop_over_examples(name, data):
    model, example, batch = drawn(name, data.draw, data.draw(st.integers(1, 5)))
    rows = examples.gradients(model, functional.mse_loss, batch.inputs, batch.targets)
    for dtype, tolerance in TOLERANCE.items():
        model = model.to(dtype)
        parameters = Parameters(model)
        with self_check.moved(parameters):
            engine = OnePassEngine(model, functional.mse_loss, parameters, in_type(example, dtype))
        assert not engine.whole_modules
        here = in_type(batch, dtype)
        for kind in GEOMETRIES:
            shape = scaling(kind, parameters)
            moved = examples.whitened(rows, shape.scale, shape.shift)
            norms = moved.norm(dim=1)
            clips = {
                "none": 2 * norms.max() + 1e-3,
                "some": norms.median() + 1e-3,
                "all": 0.5 * norms.min() + 1e-3,
            }
            clip = float(clips[data.draw(st.sampled_from(sorted(clips)))])
            expected = examples.clipped(moved, clip)
            found = engine.clipped_sum(here, shape, clip)
            assert found.sensitivity == clip
            error = float((found.value.double() - expected).norm())
            # parts may cancel in the sum: what one example may count for is the measure
            size = max(float(expected.norm()), min(clip, float(norms.max())))
            assert error <= tolerance * size + 1e-15, (kind, error, expected)
        nothing = engine.clipped_sum(None, shape, 1.0).value
        assert torch.equal(nothing, torch.zeros(parameters.size, dtype=dtype))


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(quick, max_examples=2)
def test_the_engine_of_one_pass_is_chosen_without_a_warning(name, data):
    model, example, _ = drawn(name, data.draw, 1)
    model, example = model.float(), in_type(example, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = make_engine("auto", model, functional.mse_loss, Parameters(model), example)
    assert isinstance(engine, OnePassEngine)
    assert not engine.whole_modules
