import dataclasses

import pytest
import torch
from torch import nn

import privada as pv
from privada.core.tensors import Parameters
from privada.methods import Method
from tests.releases import released


def test_every_name_gives_the_class_that_bears_it():
    for name in pv.methods.names():
        assert pv.methods.get(name).name == name
        assert issubclass(pv.methods.get(name), Method)


def test_methods_are_frozen_values():
    method = pv.methods.DPSGD(lr=0.5)
    assert method == pv.methods.DPSGD(lr=0.5, clip=1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.lr = 1.0


def test_a_method_without_parts_says_so():
    with pytest.raises(TypeError, match="parts"):
        Method().parts(1)


def test_dp_sgd_descends_along_the_released_gradient():
    parts = pv.methods.DPSGD(lr=0.5).parts(1)
    parameters = Parameters(nn.Linear(1, 1))
    before = parameters.read()
    release = released(torch.tensor([4.0, -8.0]), noise_std=1.0, batch_size=4)
    _, _, lr = parts.controller.iterate(lambda: release, parts.rule, parameters, {}, {}, step=0)
    assert lr == 0.5
    assert torch.allclose(parameters.read() - before, torch.tensor([-0.5, 1.0]))


def test_a_schedule_that_returns_nonsense_is_refused():
    with pytest.raises(pv.ArgumentError, match=r"lr\(0\)"):
        pv.updates.scheduled(lambda step: -1.0)
    later = pv.updates.scheduled(lambda step: 1.0 - step)
    assert later.rate(0) == 1.0
    with pytest.raises(pv.ArgumentError, match=r"lr\(1\)"):
        later.rate(1)


@pytest.mark.parametrize(
    "method",
    [
        lambda public: pv.methods.DPRPub(lr=0.1, public=public),
        lambda public: pv.methods.DPAdamPub(lr=0.1, public=public),
        lambda public: pv.methods.PDADPMD(lr=0.1, public=public),
        lambda public: pv.methods.PDPSGD(lr=0.1, public=public, dimensions=2),
        lambda public: pv.methods.AdaDPS(
            lr=0.1, preconditioner=pv.preconditioning.public_gradients(public)
        ),
    ],
    ids=["dp-r-pub", "dp-adam-pub", "pda-dpmd", "pdp-sgd", "adadps"],
)
def test_the_statement_says_that_examples_were_declared_public(method):
    x, y = torch.rand(60, 3), torch.arange(60) % 2
    trainer = pv.Trainer(
        torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), (x[9:], y[9:]),
        method=method((x[:9], y[:9])),
        batch_size=10, steps=1, noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip
    said = [each for each in trainer.statement().assumptions if "Side information" in each]
    assert said == ["Side information: gradients of examples declared public."]
