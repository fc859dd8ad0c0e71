"""Learning rates as functions of the step."""

import math

import pytest
import torch

import privada as pv
from privada.updates import cosine, decaying, from_torch, inverse_sqrt, scheduled, warmed_up


def test_the_papers_own_schedules():
    assert [inverse_sqrt(2.0)(t - 1) for t in (1, 4, 100)] == [2.0, 1.0, 0.2]
    assert decaying(1.0)(0) == 1 / math.sqrt(21)  # t counts from 1
    assert decaying(3.0, a=0.0, c=4.0)(24) == pytest.approx(0.3)


def test_a_cosine_goes_from_all_to_the_rest_and_stays():
    at = cosine(0.5, steps=11, last=0.1)
    assert at(0) == 0.5
    assert at(10) == pytest.approx(0.05)
    assert at(99) == pytest.approx(0.05)
    assert at(5) == pytest.approx(0.5 * 0.55)
    rates = [at(step) for step in range(11)]
    assert rates == sorted(rates, reverse=True)
    assert cosine(0.5, steps=1)(0) == 0.5


def test_a_warm_up_grows_evenly_and_then_follows():
    at = warmed_up(inverse_sqrt(1.0), steps=4)
    assert at(0) == 0.25
    assert at(3) == 0.5
    assert at(99) == 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=30),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch),
    ],
)
def test_a_scheduler_of_torch_gives_the_rates_that_it_gives_an_optimiser(make):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    scheduler, expected = make(optimizer), []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    at = from_torch(make, lr=0.2)
    assert [at(step) for step in (7, 0, 19)] == [expected[7], expected[0], expected[19]]


def test_rates_that_are_no_rates_are_refused():
    for wrong in (0.0, -1.0, float("nan"), "fast", None):
        with pytest.raises(pv.ArgumentError, match="lr"):
            scheduled(wrong)
    with pytest.raises(pv.ArgumentError, match="lr"):
        scheduled(lambda step: 0.0).rate(0)
    with pytest.raises(pv.ArgumentError, match="steps"):
        cosine(0.1, steps=0)
