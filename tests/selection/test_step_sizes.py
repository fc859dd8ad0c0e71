"""The effective step size of DPAdam, against Adam in NumPy and against chi-squares."""

import json
import math

import numpy as np
import pytest
import torch

import privada as pv
from privada.selection.step_sizes import effective_step_sizes
from tests.taps import tap_releases

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def trainer(method, steps=20, **changes):
    given = {
        "method": method, "batch_size": 20, "steps": steps, "noise_multiplier": 2.0, "delta": 1e-3,
        "seed": 1,
    } | changes  # fmt: skip
    model = torch.nn.Linear(4, 2)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return pv.Trainer(model, torch.nn.CrossEntropyLoss(), (X, Y), **given)


def noise_alone(method, steps, coordinates=20_000):
    """Return a trainer whose gradients are zero, as its targets are; its releases are noise."""
    model = torch.nn.Linear(1, coordinates, bias=False)
    return pv.Trainer(
        model, lambda out, target: (out * target).sum(),
        (torch.ones(4, 1), torch.zeros(4, coordinates)), method=method,
        batch_size=2, steps=steps, noise_multiplier=3.0, delta=1e-3, seed=5,
    )  # fmt: skip


def recorded(run, monkeypatch):
    """Return a list to which the average gradients that are released will be added."""
    found = []
    tap_releases(
        monkeypatch, lambda each: found.append(each.value.double().numpy() / each.batch_size)
    )
    return found


@pytest.mark.parametrize("lr", [0.01, lambda step: 0.1 / (step + 1)], ids=["fixed", "schedule"])
def test_step_sizes_are_those_of_adam_in_numpy(lr, monkeypatch):
    run = trainer(pv.methods.DPAdam(lr=lr, beta2=0.9, eps=1e-3, clip=0.5))
    releases = recorded(run, monkeypatch)
    found = effective_step_sizes(run, tail=0.1)
    assert found.steps == tuple(range(1, 21))
    second = np.zeros(10)
    for t, gradient in enumerate(releases, start=1):
        second = 0.9 * second + 0.1 * gradient**2
        rate = lr(t - 1) if callable(lr) else lr
        sizes = rate / (np.sqrt(second / (1 - 0.9**t)) + 1e-3)
        assert found.limit[t - 1] == pytest.approx(rate / (2.0 * 0.5 / 20 + 1e-3))
        assert sizes.min() <= found.low[t - 1] <= found.median[t - 1] <= found.high[t - 1]
        # between two of ten coordinates, quantiles of sizes and of moments are taken differently
        middle = np.sort(sizes)[4:6]
        assert middle[0] * (1 - 1e-4) <= found.median[t - 1] <= middle[1] * (1 + 1e-4)


def test_the_model_moves_by_these_step_sizes(monkeypatch):
    """With beta1 = 0 a step is the step size times the release, coordinate by coordinate."""
    method = pv.methods.DPAdam(lr=0.1, beta1=0.0, beta2=0.5)
    run = trainer(method, steps=1)
    releases = recorded(run, monkeypatch)
    before = torch.cat([p.detach().flatten().clone() for p in run.model.parameters()])
    found = effective_step_sizes(run, tail=1e-9)
    after = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    sizes = ((before - after) / torch.tensor(releases[0])).numpy()
    assert found.low[0] == pytest.approx(sizes.min(), rel=1e-3)
    assert found.high[0] == pytest.approx(sizes.max(), rel=1e-3)


def test_noise_alone_comes_to_the_limit_and_stays_around_it():
    """At beta2 = 0.98 and 300 steps the first releases weigh less than 0.3 %."""
    found = effective_step_sizes(noise_alone(pv.methods.DPAdam(beta2=0.98), 300), every=50)
    assert found.limit[-1] == pytest.approx(0.001 / (3.0 * 1.0 / 2 + 1e-8))
    # a mean of squares with weights w has its median below its mean by the third cumulant over six
    # times the second, and steps are longer by half of that
    weights = 0.02 * 0.98 ** np.arange(300)
    below = (8 * (weights**3).sum()) / (6 * 2 * (weights**2).sum())
    assert found.ratio == pytest.approx(1 + below / 2, abs=2e-3)  # three standard errors
    spread = math.sqrt(0.02 / (2 * 1.98))
    half = (found.high[-1] - found.low[-1]) / 2 / found.limit[-1]
    assert half == pytest.approx(1.645 * spread, rel=0.05)


@pytest.mark.parametrize("beta2", [0.9, 0.99, 0.999])
def test_the_band_of_noise_alone_is_where_coordinates_are(beta2):
    found = effective_step_sizes(noise_alone(pv.methods.DPAdam(beta2=beta2), 60), every=20)
    for low, high, below, above in zip(
        found.low, found.high, found.noise_low, found.noise_high, strict=True
    ):
        assert low == pytest.approx(below, rel=0.03)
        assert high == pytest.approx(above, rel=0.1 if high is found.high[0] else 0.04)


def test_gradients_make_steps_shorter():
    quiet = trainer(pv.methods.DPAdam(clip=1.0), steps=100, noise_multiplier=0.05)
    assert effective_step_sizes(quiet).ratio < 0.7


def test_the_limit_has_the_noise_that_clipping_needs(monkeypatch):
    method = pv.methods.DPAdam(lr=0.1, clip=0.5, clipping=pv.clipping.microbatches(4))
    found = effective_step_sizes(trainer(method, steps=3))
    assert found.limit[0] == pytest.approx(0.1 / (2.0 * 2 * 0.5 / 5))


def test_it_costs_what_the_run_costs_and_changes_nothing():
    looked, plain = trainer(pv.methods.DPAdam()), trainer(pv.methods.DPAdam()).fit()
    effective_step_sizes(looked, every=7)
    assert looked.epsilon() == plain.epsilon()
    assert looked.ledger.totals() == plain.ledger.totals()
    assert torch.equal(looked.model.weight, plain.model.weight)


def test_every_and_a_run_under_way():
    assert effective_step_sizes(trainer(pv.methods.DPAdam()), every=8).steps == (1, 9, 17, 20)
    run = trainer(pv.methods.DPAdam()).step().step()
    whole = effective_step_sizes(trainer(pv.methods.DPAdam()))
    rest = effective_step_sizes(run, every=100)
    assert rest.steps == (3, 20)
    assert rest.median[-1] == whole.median[-1]


def test_chart_and_plain_values():
    found = effective_step_sizes(trainer(pv.methods.DPAdam()))
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["steps"] == list(range(1, 21))
    assert plain["ratio"] == found.ratio
    named = {trace.name: trace for trace in found.figure().data}
    assert tuple(named["median"].y) == found.median
    assert tuple(named["limit: lr / (σC/B + eps)"].y) == found.limit
    assert tuple(named["90 % of coordinates"].y) == found.low
    one = effective_step_sizes(trainer(pv.methods.DPAdam(), steps=1))
    assert one.figure().layout.xaxis.type is None


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (lambda: trainer(pv.methods.DPSGD(lr=0.1)), {}, "one of dp-sgd"),
        (lambda: trainer(pv.methods.DPAdamWOSM()), {}, "one of dp-adam-wosm"),
        (lambda: None, {}, "got NoneType"),
        (lambda: trainer(pv.methods.DPAdam()), {"every": 0}, "every"),
        (lambda: trainer(pv.methods.DPAdam()), {"tail": 0.5}, "tail"),
        (lambda: trainer(pv.methods.DPAdam()), {"tail": float("nan")}, "tail"),
        (lambda: trainer(pv.methods.DPAdam()).fit(), {}, "before fit"),
        (lambda: trainer(pv.methods.DPAdam()).step().finish(), {}, "given up by finish"),
    ],
)
def test_bad_input(make, arguments, words):
    run = make()
    spent = None if run is None else run.ledger.totals()
    with pytest.raises(pv.ArgumentError, match=words):
        effective_step_sizes(run, **arguments)
    assert run is None or run.ledger.totals() == spent
