"""A mechanism knows what it will be charged, and what that costs, before any data."""

from collections import Counter

import pytest
import torch

import privada as pv
from privada.accounting import epsilon_of, events
from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.mechanism import Mechanism

DELTA = 1e-5


def made(method=None, *, steps=20, batch_size=10, units=100, sampling="poisson", **more):
    method = method or pv.methods.DPSGD(lr=0.1, clip=0.5)
    return Mechanism.of(
        method.parts(steps),
        Parameters(torch.nn.Linear(3, 1)),
        participation=pv.participation.participation(sampling),
        units=units,
        batch_size=batch_size,
        steps=steps,
        clip=method.clip,
        clipping=method.clipping,
        **more,
    )


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize(
    "method",
    [
        pv.methods.DPSGD(lr=0.1),
        pv.methods.ADADP(lr=0.1),
        pv.methods.ADPSGD(lr=0.1),
        pv.methods.AdaDPS(lr=0.1, preconditioner=pv.preconditioning.diagonal(2.0)),
    ],
    ids=lambda method: method.name,
)
def test_what_it_says_is_what_a_run_is_charged(method, sampling):
    mechanism = made(method, steps=6, sampling=sampling).with_noise(1.5)
    trainer = pv.Trainer(
        torch.nn.Linear(3, 1),
        torch.nn.MSELoss(),
        (torch.zeros(100, 3), torch.zeros(100, 1)),
        method=method,
        batch_size=10,
        steps=6,
        noise_multiplier=1.5,
        delta=DELTA,
        sampling=sampling,
    ).fit()
    assert trainer.ledger.totals() == mechanism.charges() == trainer.planned()
    assert trainer.epsilon() == mechanism.epsilon(DELTA)


def test_parts_of_the_charges_add_up_to_all_of_them():
    mechanism = made(pv.methods.ADPSGD(lr=0.1))
    parts = sum((mechanism.charges(n, n + 3) for n in range(0, 20, 3)), Counter())
    assert parts == mechanism.charges()
    assert mechanism.charges(18, 90) == mechanism.charges(18, 20)
    assert not mechanism.charges(20)


def test_calibration_fits_the_budget_beside_what_was_paid():
    budget, paid = pv.Budget(1.0, DELTA), Counter({events.gaussian(10.0): 1})
    alone, beside = made().calibrated(budget), made().calibrated(budget, paid)
    assert 0.99 < alone.epsilon(DELTA) <= 1.0
    assert 0.99 < beside.epsilon(DELTA, paid) <= 1.0
    assert beside.noise_multiplier > alone.noise_multiplier


def test_a_budget_reaches_as_far_as_it_pays_for():
    mechanism = made(steps=50).calibrated(pv.Budget(1.0, DELTA))
    assert mechanism.affordable(pv.Budget(1.0, DELTA), Counter(), 0) == 50
    paid = mechanism.charges(0, 30)
    reached = mechanism.affordable(pv.Budget(1.0, DELTA), paid, 10)
    assert 10 < reached < 50
    assert epsilon_of(paid + mechanism.charges(10, reached), DELTA) <= 1.0
    assert epsilon_of(paid + mechanism.charges(10, reached + 1), DELTA) > 1.0
    assert mechanism.affordable(pv.Budget(0.01, DELTA), paid, 10) == 10


def test_the_sensitivity_follows_from_the_clip():
    assert made().sensitivity == 0.5
    four = pv.methods.DPSGD(lr=0.1, clip=0.5, clipping=pv.clipping.microbatches(4))
    assert made(four).sensitivity == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 101}, "batch_size"),
        ({"batch_size": 2.5, "sampling": "fixed-size"}, "batch_size"),
        ({"population": 90, "sampling": "fixed-size"}, "population"),
        ({"sampling": "everyone"}, "batch_size=100"),
        (
            {"method": pv.methods.DPSGD(lr=0.1, clipping=pv.clipping.microbatches(20))},
            "size <= batch_size",
        ),
    ],
)
def test_what_cannot_be_drawn_or_clipped_is_refused(settings, words):
    with pytest.raises(ArgumentError, match=words):
        made(**settings)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_there_is_no_mechanism_without_noise(value):
    with pytest.raises(ArgumentError, match="noise_multiplier"):
        made().with_noise(value)


def test_everyone_takes_part_in_every_step():
    trainer = pv.Trainer(
        torch.nn.Linear(3, 1),
        torch.nn.MSELoss(),
        (torch.zeros(100, 3), torch.zeros(100, 1)),
        method=pv.methods.DPSGD(lr=0.1),
        batch_size=100,
        steps=3,
        noise_multiplier=5.0,
        delta=DELTA,
        sampling=pv.participation.Everyone(),
    ).fit()
    assert trainer.ledger.totals() == {events.gaussian(5.0): 3}
    assert "all records take part" in trainer.statement().sampling
