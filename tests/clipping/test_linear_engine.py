"""Clipped sums of a linear layer in other features: held to a loop over examples in NumPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.clipping import Batch, make_engine, threshold
from privada.clipping.linear_engine import LinearEngine, curvature_of, lengths
from privada.core.feature_maps import FeatureMap
from privada.core.tensors import Parameters
from privada.preconditioning import FlatScaling

FEATURES, OUTPUTS, RECORDS = 4, 3, 40


def problem(bias=True, clipping=None, dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, OUTPUTS, bias=bias, dtype=dtype)
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(RECORDS, FEATURES))).to(dtype)
    batch = Batch(x, torch.from_numpy(rng.integers(0, OUTPUTS, RECORDS)))
    loss, parameters = nn.CrossEntropyLoss(), Parameters(model)
    inner = make_engine("auto", model, loss, parameters, batch, clipping or threshold())
    size = FEATURES + bias
    matrix = torch.from_numpy(rng.normal(size=(size, size)))
    return LinearEngine(inner, model, loss, parameters), batch, model, FeatureMap(matrix, bias)


def by_hand(batch, model, features, clip, groups=None):
    """Return the sum, example by example."""
    x = batch.inputs.double().numpy()
    x = np.c_[x, np.ones(len(x))] if features.bias else x
    weight = torch.cat([p.detach().reshape(OUTPUTS, -1) for p in model.parameters()], 1)
    scores = x @ weight.double().numpy().T
    p = np.exp(scores - scores.max(1, keepdims=True))
    e = p / p.sum(1, keepdims=True) - np.eye(OUTPUTS)[batch.targets.numpy()]
    each = e[:, :, None] * (x @ features.matrix.numpy())[:, None, :]
    if groups is not None:
        each = np.stack([each[groups == unit].mean(axis=0) for unit in np.unique(groups)])
    total = sum(u * min(1, clip / np.linalg.norm(u)) for u in each)
    if not features.bias:
        return total.reshape(-1)
    return np.concatenate([total[:, :-1].reshape(-1), total[:, -1]])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("clip", [0.3, 2.0, 1e6])
def test_the_sum_is_that_of_a_loop(bias, clip):
    engine, batch, model, features = problem(bias)
    found = engine.clipped_sum(batch, FlatScaling(None, None, features), clip)
    np.testing.assert_allclose(found.value, by_hand(batch, model, features, clip), rtol=1e-10)
    assert found.sensitivity == clip


def test_rows_of_a_person_are_averaged_and_bounded_together():
    engine, batch, model, features = problem(clipping=threshold().of_units())
    groups = np.random.default_rng(2).integers(0, 9, RECORDS)
    grouped = replace(batch, groups=torch.from_numpy(groups))
    found = engine.clipped_sum(grouped, FlatScaling(None, None, features), 0.4)
    np.testing.assert_allclose(
        found.value, by_hand(batch, model, features, 0.4, groups), rtol=1e-10
    )


def test_other_scalings_are_left_to_the_engine_that_it_stands_for():
    engine, batch, _, _ = problem()
    scaling = FlatScaling(torch.full((OUTPUTS * (FEATURES + 1),), 2.0).double(), None)
    found, known = (each.clipped_sum(batch, scaling, 0.4) for each in (engine, engine._inner))
    torch.testing.assert_close(found.value, known.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_example_adds_more_than_the_clip_norm_however_ill_the_matrix(dtype):
    engine, batch, _, features = problem(dtype=dtype)
    rng = np.random.default_rng(3)
    for power in range(0, 9, 2):
        scales = torch.from_numpy(10.0 ** (power * rng.uniform(-1, 1, FEATURES + 1)))
        scaling = FlatScaling(None, None, FeatureMap(features.matrix * scales, True))
        for factor in (1e-3, 1.0, 1e3):
            rows = Batch(batch.inputs * factor, batch.targets)
            for one in rows.chunks(1):
                found = engine.clipped_sum(one, scaling, 0.5)
                assert float(found.value.norm()) <= 0.5 * (1 + 1e-12)


def test_lengths_are_bounded_from_above_where_products_cancel():
    x = torch.tensor([[1.0, -1.0 + 2**-20, 1e-4]])
    matrix = torch.tensor([[1e4, 0.1], [1e4, 0.1], [-3.0, 2.0]], dtype=torch.float64)
    exact = float((x.double() @ matrix).norm())
    assert exact <= float(lengths(x, matrix)) <= exact + 0.1


def test_lengths_that_are_kept_are_not_used_for_other_rows():
    engine, batch, model, features = problem()
    scaling = FlatScaling(None, None, features)
    engine.clipped_sum(batch, scaling, 0.3)
    other = Batch(batch.inputs.clone(), batch.targets)
    other.inputs[7] *= 50
    found = engine.clipped_sum(other, scaling, 0.3)
    np.testing.assert_allclose(found.value, by_hand(other, model, features, 0.3), rtol=1e-10)
    longer = FeatureMap(features.matrix * 3, True)
    found = engine.clipped_sum(other, FlatScaling(None, None, longer), 0.3)
    np.testing.assert_allclose(found.value, by_hand(other, model, longer, 0.3), rtol=1e-10)


def test_examples_that_are_not_finite_count_as_zero_and_leave_others_alone():
    engine, batch, _, features = problem()
    scaling = FlatScaling(None, None, features)
    kept = Batch(batch.inputs[2:], batch.targets[2:])
    batch.inputs[0], batch.inputs[1, 2] = math.nan, math.inf
    found, known = (engine.clipped_sum(each, scaling, 0.3) for each in (batch, kept))
    torch.testing.assert_close(found.value, known.value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "outputs", "target"),
    [
        (nn.CrossEntropyLoss(), 5, lambda k: torch.tensor([1])),
        (nn.BCEWithLogitsLoss(), 3, lambda k: torch.ones(1, k).double()),
        (nn.MSELoss(), 4, lambda k: torch.ones(1, k).double()),
        (nn.MSELoss(reduction="sum"), 4, lambda k: torch.ones(1, k).double()),
    ],
)
def test_no_second_derivative_is_above_the_curvature_and_one_reaches_it(loss, outputs, target):
    most, rng = 0.0, torch.Generator().manual_seed(0)
    close = [torch.full((outputs,), -40.0), torch.zeros(outputs)]
    close[0][:2] = 0.0  # two classes that are as likely as each other
    for number in range(60):
        at = torch.randn(outputs, generator=rng) * 3 if number > 1 else close[number]
        hessian = torch.autograd.functional.hessian(
            lambda out: loss(out[None], target(outputs)), at.double()
        )
        most = max(most, float(torch.linalg.eigvalsh(hessian)[-1]))
    assert most == pytest.approx(curvature_of(loss, outputs), rel=1e-9)


@pytest.mark.parametrize("loss", [nn.L1Loss(), nn.CrossEntropyLoss(weight=torch.ones(3)), min])
def test_losses_of_unknown_curvature_are_refused(loss):
    with pytest.raises(pv.ArgumentError, match="curvature is known"):
        curvature_of(loss, 3)
