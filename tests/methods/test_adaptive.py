"""The adaptive methods on released gradients, against NumPy, step by step."""

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from tests.oracles import optimisers
from tests.releases import released
from tests.taps import tap_releases

# method -> its transcription, given the standard deviation of the noise in a released gradient
METHODS = {
    "dp-momentum": (
        pv.methods.DPMomentum(lr=0.2, decay=0.7, clip=0.5),
        lambda *a, noise: optimisers.momentum(*a, lr=0.2, decay=0.7),
    ),
    "dp-adam": (
        pv.methods.DPAdam(lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3, clip=0.5),
        lambda *a, noise: optimisers.adam(*a, lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3),
    ),
    "dp-adam-wosm": (
        pv.methods.DPAdamWOSM(lr=0.05, beta1=0.8, eps=1e-3, clip=0.5),
        lambda *a, noise: optimisers.adam_wosm(*a, lr=0.05, noise=noise, beta1=0.8, eps=1e-3),
    ),
    "dp-rmsprop": (
        pv.methods.DPRMSProp(lr=0.05, decay=0.9, eps=1e-3, clip=0.5),
        lambda *a, noise: optimisers.rmsprop(*a, lr=0.05, decay=0.9, eps=1e-3),
    ),
    "dp-adagrad": (
        pv.methods.DPAdaGrad(lr=0.3, eps=1e-3, clip=0.5),
        lambda *a, noise: optimisers.adagrad(*a, lr=0.3, eps=1e-3),
    ),
}


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


def made(method, seed=1):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(120, 4)), rng.integers(0, 3, 120)
    torch.manual_seed(0)
    return pv.Trainer(
        nn.Linear(4, 3).double(), nn.CrossEntropyLoss(), data, method=method, batch_size=30,
        steps=12, noise_multiplier=0.8, delta=1e-3, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_each_step_equals_the_papers_algorithm(name, monkeypatch):
    method, oracle = METHODS[name]
    trainer = made(method)
    theta, seen, path = flat(trainer.model), [], []
    tap_releases(monkeypatch, lambda release: seen.append(release.gradient.numpy().copy()))
    for _ in range(12):
        trainer.step()
        path.append(flat(trainer.model))
    expected = oracle(theta, seen, noise=0.8 * 0.5 / 30)
    np.testing.assert_allclose(np.stack(path), np.stack(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_goes_on_with_its_moments(name, tmp_path):
    method, _ = METHODS[name]
    models = []
    for stop in (False, True):
        path = tmp_path / f"ledger-{stop}.db"
        trainer = made_on(method, path)
        if stop:
            for _ in range(5):
                trainer.step()
            trainer.save(tmp_path / "half.pt")
            trainer = made_on(method, path, resume=tmp_path / "half.pt")
        models.append(flat(trainer.fit().model))
    np.testing.assert_array_equal(*models)


def made_on(method, ledger, **more):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(120, 4)), rng.integers(0, 3, 120)
    torch.manual_seed(0)
    return pv.Trainer(
        nn.Linear(4, 3).double(), nn.CrossEntropyLoss(), data, method=method, batch_size=30,
        steps=12, noise_multiplier=0.8, delta=1e-3, seed=1, ledger=ledger, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_one_release_is_charged_for_each_step(name):
    trainer = made(METHODS[name][0]).fit()
    assert sum(trainer.ledger.totals().values()) == 12


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: pv.methods.DPAdam(lr=-1.0), "lr"),
        (lambda: pv.methods.DPAdam(beta1=1.0), "beta1"),
        (lambda: pv.methods.DPAdam(beta2=-0.1), "beta2"),
        (lambda: pv.methods.DPAdam(eps=0.0), "eps"),
        (lambda: pv.methods.DPAdamWOSM(beta1=2), "beta1"),
        (lambda: pv.methods.DPMomentum(lr=0.1, decay=1.0), "decay"),
        (lambda: pv.methods.DPRMSProp(lr=0.1, decay=float("nan")), "decay"),
        (lambda: pv.methods.DPAdaGrad(lr=0.1, eps=-1.0), "eps"),
        (lambda: pv.methods.DPAdaGrad(lr="fast"), "lr"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(make, name):
    with pytest.raises(pv.ArgumentError, match=f"Expected {name}"):
        make()


def test_the_second_moment_of_adam_converges_to_that_of_the_noise():
    """Mohapatra et al. (2022), Theorem 3: with no gradient the step is lr / (sigma C / B + eps)."""
    std, batch, rule = 2.0, 50.0, pv.updates.adam(beta1=0.0, beta2=0.999)
    parameters = pv.core.tensors.Parameters(nn.Linear(99, 101))
    generator = torch.Generator().manual_seed(0)
    state = rule.init(parameters)
    for _ in range(3000):
        noise = torch.randn(parameters.size, generator=generator) * std
        move, state = rule.update(released(noise, std, batch), state, parameters, 1.0)
    steps = (move.direction * move.length / (noise / batch)).abs()
    assert float(steps.median()) == pytest.approx(batch / std, rel=0.01)
