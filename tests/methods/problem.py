"""A small problem on which a method and its transcription see the same gradients and noise."""

import numpy as np
import torch
from torch import nn

import privada as pv
from privada.noise import gaussian

FEATURES, CLASSES, RECORDS = 4, 3, 24
SIZE = CLASSES * (FEATURES + 1)
SIGMA, CLIP = 0.7, 0.5


def _softmax(scores):
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def drawn(seed, count):
    """Return inputs and labels."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, FEATURES)), rng.integers(0, CLASSES, count)


X, Y = drawn(0, RECORDS)
PUBLIC = drawn(1, 10)


def rows_of(data):
    """Return the source of per-example gradients of softmax regression, by hand."""
    x, y = data

    def rows(theta, t):
        weight, bias = theta[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), theta[-CLASSES:]
        errors = _softmax(x @ weight.T + bias) - np.eye(CLASSES)[y]
        outer = errors[:, :, None] * x[:, None, :]
        return np.concatenate([outer.reshape(len(x), -1), errors], axis=1)

    return rows


rows = rows_of((X, Y))


def public_mean(theta, t):
    """Return the mean public gradient."""
    return rows_of(PUBLIC)(theta, t).mean(axis=0)


def normals(count, seed=2):
    """Return the standard normals of so many releases."""
    return np.random.default_rng(seed).normal(size=(count, SIZE))


def flat(model):
    """Return a model's parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


def trainer(method, steps=12, **settings):
    """Return a trainer that takes every record in every step."""
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, CLASSES).double()
    options = {"noise_multiplier": SIGMA, "delta": 1e-3} | settings
    if method.name == "newton":
        options["sampling"] = "everyone"
    return pv.Trainer(
        model, nn.CrossEntropyLoss(), (X, Y), method=method, batch_size=RECORDS, steps=steps,
        **options,
    )  # fmt: skip


def path_of(monkeypatch, method, steps=12, noise=None, **settings):
    """Return the first parameters, those after every step, and the trainer, with given noise."""
    run = trainer(method, steps, **settings)
    left = list(normals(2 * steps + 60) if noise is None else noise)

    def add_noise_(value, std, rng):
        value.add_(torch.from_numpy(std * left.pop(0)))

    monkeypatch.setattr(gaussian, "add_noise_", add_noise_)
    start, path = flat(run.model), []
    for number in range(steps):
        run.step()
        if (
            number == steps - 1
            and run._run.parts.rule.final_parameters(run._state.rule) is not None
        ):
            break  # the model is the answer now
        path.append(flat(run.model))
    return start, path, run
