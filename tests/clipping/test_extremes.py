"""The bound at the ends of float32: scales, shifts and models beyond what can be squared."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from privada.clipping.bounds import Threshold
from privada.clipping.clips import Clipping, automatic, threshold
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.reference import PerExampleEngine
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.preconditioning import FlatScaling
from tests.clipping.test_norms import MODELS, make, product, unit


def shape_of(kind, size, exponent):
    """Return scales of an order of magnitude, alike or not, and a shift that goes with them."""
    spread = torch.zeros(size) if kind == "constant" else 2 * torch.rand(size) - 1
    scale = 10 ** (exponent + spread.double())
    shift = (unit(size) * scale).float() if kind == "shifted" else None
    return FlatScaling(scale.float(), shift)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["constant", "diagonal", "shifted"])
@pytest.mark.parametrize("exponent", [-40, -35, -28, -22, -19, -17, 17, 19, 22, 28, 35])
def test_the_bound_holds_for_scales_that_cannot_be_squared(name, kind, exponent):
    engine, parameters, batch = make(name, [1.0, 1.0])
    shape = shape_of(kind, parameters.size, exponent)
    inputs = batch.inputs[:1]
    for size in (-38, -26, -14, 0, 14, 18, 22, 26, 34):
        one = Batch(inputs, batch.targets[:1] * 10.0**size)
        for clip in (1e-4, 1.0, 1e4):
            found = engine.clipped_sum(one, shape, clip).value.double()
            assert float(found.norm()) <= clip * (1 + 1e-6), (size, clip)


@pytest.mark.parametrize("clipping", [threshold(), automatic()], ids=repr)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("exponent", [-30, -19, 19, 30])
def test_sums_are_those_of_the_loop_for_scales_that_cannot_be_squared(name, exponent, clipping):
    engine, parameters, batch = make(name, [1.0, 10.0**exponent])
    engine.clipping = clipping
    loop = PerExampleEngine(engine.model, product, parameters, "loop", clipping=clipping)
    shape = shape_of("diagonal", parameters.size, exponent)
    found, expected = (each.clipped_sum(batch, shape, 1.0).value for each in (engine, loop))
    assert float(expected.norm()) > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_an_inner_product_with_the_shift_that_overflows_does_not_hide_a_long_gradient():
    model = nn.Linear(3, 2, bias=False)
    batch = Batch(torch.full((1, 2, 3), 1e14), torch.full((1, 2, 2), 1e-10))
    engine = OnePassEngine(model, product, Parameters(model), Batch(unit(3, 2, 3), unit(3, 2, 2)))
    shape = FlatScaling(torch.full((6,), 1e-12), torch.full((6,), 1e3))
    found = engine.clipped_sum(batch, shape, 1.0).value.double()
    assert float(found.norm()) <= 1 + 1e-6


class Tied(nn.Module):
    """A table that is the output layer too, with an input of its own there."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, tokens, given):
        looked_up, out = self.table(tokens), functional.linear(given, self.table.weight)
        return torch.cat([looked_up, out], dim=2)


def test_an_inner_product_of_tied_uses_that_overflows_does_not_hide_a_long_gradient():
    model, tokens = Tied(), torch.zeros((3, 2), dtype=torch.int64)
    example = Batch((tokens, unit(3, 2, 3)), unit(3, 2, 7))
    engine = OnePassEngine(model, product, Parameters(model), example)
    given = torch.full((1, 2, 3), -1e14)
    slopes = torch.cat([torch.ones(1, 2, 3), torch.full((1, 2, 4), 1e-20)], dim=2)
    shape = FlatScaling(torch.full((12,), 1e-13), None)
    found = engine.clipped_sum(Batch((tokens[:1], given), slopes), shape, 1.0).value.double()
    assert float(found.norm()) <= 1 + 1e-6


class Noting(Threshold):
    """The ordinary bound, which notes when gradients were used up."""

    def __init__(self, events):
        object.__setattr__(self, "events", events)

    def sum_of(self, rows, scaling, clip):
        self.events.append("summed")
        return super().sum_of(rows, scaling, clip)


def test_a_model_that_is_not_finite_has_one_gradient_made_at_a_time(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    parameters, events = Parameters(model), []
    batch = Batch(torch.randn(9, 4), torch.randint(3, (9,)))
    engine = OnePassEngine(model, functional.cross_entropy, parameters, next(batch.chunks(3)))
    engine.clipping, made = Clipping(Noting(events)), engine._materialised

    def noted(*given):
        events.append("made")
        return made(*given)

    monkeypatch.setattr(engine, "_materialised", noted)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    found = engine.clipped_sum(batch, FlatScaling(None, None), 1.0).value
    assert torch.equal(found, parameters.zeros())
    assert events == ["made", "summed"] * 9
