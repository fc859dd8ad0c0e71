"""What every rule, controller and shape must do: pure functions over plain state."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.core.tensors import Parameters
from privada.train.public_training import ModelSide
from tests.releases import released

RNG = np.random.default_rng(0)
PUBLIC = RNG.normal(size=(12, 3)), RNG.integers(0, 2, 12)
U, G = pv.updates, pv.preconditioning

RULES = {
    "sgd": U.sgd(),
    "sgd in a ball": U.sgd(onto=U.ball(0.1)),
    "momentum": U.momentum(),
    "adam": U.adam(),
    "adam without second moment": U.adam_without_second_moment(),
    "adam, bias-corrected": U.adam_bias_corrected(),
    "rmsprop": U.rmsprop(),
    "adagrad": U.adagrad(),
    "adagrad in a box": U.adagrad(onto=U.box(-0.1, 0.1)),
    "adagrad with one rate": U.adagrad_norm(first=1.0),
    "public rmsprop": U.public_rmsprop(PUBLIC),
    "public adam": U.public_adam(PUBLIC),
    "mixed with public": U.mixed_with_public(PUBLIC, 0.5),
    "public subspace": U.public_subspace(PUBLIC, 2),
    "averaged": U.averaged(U.adam()),
}
SHAPES = {
    "isotropic": G.isotropic(),
    "diagonal": G.diagonal(2.0, shift=0.1, restore=True),
    "by feature": G.by_feature([1.0, 2.0, 3.0]),
    "public rmsprop": G.public_gradients(PUBLIC, "rmsprop"),
    "public adagrad": G.public_gradients(PUBLIC, "adagrad", every=2),
    "public adam": G.public_gradients(PUBLIC, "adam"),
    "ideal": G.ideal(PUBLIC),
    "known moments": G.known_moments(2.0).ellipsoid(0.5),
    "public moments": G.public_moments(PUBLIC).ellipsoid(0.5),
    "private moments": G.private_second_moments(3.0, rounds=3).ellipsoid(0.5),
    "restoring": G.restoring(G.public_gradients(PUBLIC, "rmsprop")),
    "past releases": G.past_releases(eps=0.1),
    "delayed": G.delayed(plain=2, adaptive=1, eps=0.1),
}
CONTROLLERS = {
    "scheduled": U.scheduled(U.cosine(0.1, steps=9)),
    "step doubling": U.step_doubling(0.1, 1.0),
    "step doubling, full steps": U.step_doubling(0.1, steps=9, follow="full", accept=True),
    "step doubling, frozen": U.step_doubling(0.1, 1.0, freeze=2, epoch=2),
}


def made(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(dtype)
    return Parameters(model, ModelSide(model, nn.CrossEntropyLoss()), epoch=3)


def release(number, dtype=torch.float64, **restored):
    values = np.random.default_rng(number).normal(size=8)
    return released(torch.from_numpy(values).to(dtype), 0.5, 10.0, **restored)


def plain(value):
    return isinstance(value, (int, float, str, torch.Tensor))


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_a_rule_changes_nothing_that_it_is_given(name, dtype):
    rule, parameters = RULES[name], made(dtype)
    state = rule.init(parameters)
    scale = torch.linspace(0.5, 2.0, 8, dtype=dtype)
    for number in range(4):
        given = release(number, dtype, scale=scale if number % 2 else None)
        kept, before = copy.deepcopy(state), parameters.read()
        value = given.value.clone()
        move, after = rule.update(given, state, parameters, 0.1)
        assert same(state, kept)
        assert torch.equal(given.value, value)
        assert torch.equal(parameters.read(), before)
        assert move.direction.shape == (8,)
        assert move.direction.dtype == dtype
        assert math.isfinite(move.length)
        assert bool(torch.isfinite(move.direction).all())
        assert all(map(plain, after.values()))
        again, _ = rule.update(release(number, dtype, scale=given.scale), kept, parameters, 0.1)
        assert torch.equal(again.direction * again.length, move.direction * move.length)
        parameters.add_(*move)
        state = after
    answer = rule.final_parameters(state)
    assert answer is None or answer.shape == (8,)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_changes_nothing_that_it_is_given(name):
    shape, parameters = SHAPES[name], made()
    asked = []

    def ask(bound, noise_multiplier):
        asked.append((bound, noise_multiplier))
        return released(torch.rand(8, dtype=torch.float64), 0.1, 1.0)

    state = shape.prepare(shape.init(parameters), parameters, ask)
    assert tuple(noise for _, noise in asked) == shape.preliminary(parameters)
    assert isinstance(shape.source, str)
    for number in range(5):
        kept, before = copy.deepcopy(state), parameters.read()
        preconditioner, after = shape.at(state, parameters)
        scaling = preconditioner.on(parameters)
        assert same(state, kept)
        assert torch.equal(parameters.read(), before)
        assert scaling.scale is None or bool((scaling.scale > 0).all())
        twin, _ = shape.at(kept, parameters)
        other = twin.on(parameters).scale
        assert (other is None) == (scaling.scale is None)
        assert other is None or torch.equal(other, scaling.scale)
        given = preconditioner.restore(release(number), scaling)
        kept = copy.deepcopy(after)
        state = shape.seen(given, after)
        assert same(after, kept)
        assert all(map(plain, state.values()))
        parameters.add_(given.gradient, -0.1)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controller_asks_as_often_as_it_says(name):
    controller, parameters = CONTROLLERS[name], made()
    rule = U.sgd()
    state, rule_state = controller.init(parameters), rule.init(parameters)
    for step in range(6):
        asked = []

        def query(step=step, asked=asked):
            asked.append(parameters.read())
            return release(10 * step + len(asked))

        kept = copy.deepcopy(state)
        rule_state, after, lr = controller.iterate(query, rule, parameters, rule_state, state, step)
        assert len(asked) == controller.queries(step)
        assert same(state, kept)
        assert lr > 0
        assert all(map(plain, after.values()))
        state = after
    assert bool(torch.isfinite(parameters.read()).all())
