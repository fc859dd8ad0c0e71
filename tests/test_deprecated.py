"""Former names: each works for one minor version, and says what it is called now."""

import importlib

import pytest
import torch

import privada
from privada import methods, preconditioning, updates
from privada.core.randomness import SeededSource

# module, former name, present module, present name
RENAMED = [
    ("privada", "Gate", "privada", "GradientQuery"),
    ("privada.sampling", "Poisson", "privada.participation", "PoissonSampler"),
    ("privada.sampling", "FixedSize", "privada.participation", "FixedSizeSampler"),
    ("privada.sampling", "Sampler", "privada.participation", "Sampler"),
    ("privada.geometry", "Geometry", "privada.preconditioning", "DiagonalScaling"),
    ("privada.geometry", "Shape", "privada.preconditioning", "Preconditioner"),
    ("privada.geometry", "Whitening", "privada.preconditioning", "FlatScaling"),
]
PRESENT = {module: place for module, _, place, _ in RENAMED}


@pytest.mark.parametrize(("module", "former", "place", "now"), RENAMED)
def test_a_former_name_is_the_present_one(module, former, place, now):
    with pytest.warns(
        DeprecationWarning, match=rf"{module}\.{former} is now called {place}\.{now}"
    ):
        found = getattr(importlib.import_module(module), former)
    assert found is getattr(importlib.import_module(place), now)


MODULES = sorted({module for module, *_ in RENAMED} - {"privada"})


@pytest.mark.parametrize("module", MODULES)
def test_a_former_module_has_no_other_names(module):
    found = importlib.import_module(module)
    present = set(getattr(importlib.import_module(PRESENT[module]), "__all__", ()))
    former = {former for where, former, *_ in RENAMED if where == module}
    assert former <= set(found.__all__) <= former | present
    with pytest.raises(AttributeError, match="nothing"):
        found.nothing  # noqa: B018


def test_a_former_module_is_found_on_the_package():
    for module in MODULES:
        assert getattr(privada, module.removeprefix("privada.")) is importlib.import_module(module)


def scales():
    return preconditioning.diagonal(2.0)


# the former argument, the present one, and what takes it
ARGUMENTS = [
    ("geometry", "preconditioner", lambda **given: methods.AdaDPS(lr=0.1, **given)),
    ("geometry", "preconditioner", lambda **given: methods.PASAN(lr=0.1, **given)),
    ("geometry", "preconditioner", lambda **given: methods.PAGAN(lr=0.1, **given)),
    (
        "geometry",
        "preconditioner",
        lambda **given: methods.Parts(
            rule=updates.sgd(), controller=updates.scheduled(0.1), **given
        ),
    ),
]


@pytest.mark.parametrize(("former", "now", "make"), ARGUMENTS)
def test_a_former_argument_is_the_present_one(former, now, make):
    value = scales()
    with pytest.warns(DeprecationWarning, match=f"The argument {former} of .* now called {now}"):
        found = make(**{former: value})
    assert getattr(found, now) is value
    with (
        pytest.raises(TypeError, match="which are the same"),
        pytest.warns(DeprecationWarning, match=former),
    ):
        make(**{former: value, now: value})


def test_the_former_ways_to_ask_a_trainer_work():
    trainer = privada.Trainer(
        torch.nn.Linear(2, 1),
        torch.nn.MSELoss(),
        (torch.zeros(50, 2), torch.zeros(50, 1)),
        method=methods.DPSGD(lr=0.1),
        batch_size=10,
        steps=3,
        noise_multiplier=1.0,
        delta=1e-3,
    )
    with pytest.warns(DeprecationWarning, match=r"Trainer\.gate is now called"):
        query = trainer.gate
    assert query is trainer.gradients
    with pytest.warns(DeprecationWarning, match=r"Gate\.query is now called"):
        assert query.query(preconditioning.isotropic(), 1.0).noise_std == 1.0
    with pytest.warns(DeprecationWarning, match=r"Gate\.settle is now called"):
        query.settle()
    assert sum(trainer.ledger.totals().values()) == 1


def test_the_former_names_of_clippings_work():
    clipping, rng = privada.clipping.microbatches(2), SeededSource(0, "sampling")
    with pytest.warns(DeprecationWarning, match=r"Clipping\.terms is now called .*expected_terms"):
        assert clipping.terms(10) == clipping.expected_terms(10) == 5
    with pytest.warns(DeprecationWarning, match=r"Clipping\.deal is now .*assign_microbatches"):
        found = clipping.deal(6, 10, rng)
    expected = clipping.assign_microbatches(6, 10, SeededSource(0, "sampling"))
    assert torch.equal(found, expected)
