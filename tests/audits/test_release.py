"""Audits from outside: what a release shows of one record is what the accounting says."""

import math

import numpy as np
import torch
from scipy import stats
from torch import nn

import privada as pv
from privada.accounting import epsilon_of, events

ROUNDS = 2000


class Mean(nn.Module):
    """A single weight whose per-example gradient is the input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * self.weight


def releases(inputs, sigma, clip, rate):
    """Return many releases of the sum of clipped inputs."""
    column = np.asarray(inputs, dtype=np.float32)[:, None]
    trainer = pv.Trainer(
        Mean(),
        lambda out, target: (out - target).sum(),
        (column, np.zeros_like(column)),
        method=pv.methods.DPSGD(lr=1.0, clip=clip),
        batch_size=rate * 10,
        steps=ROUNDS,
        noise_multiplier=sigma,
        delta=1e-5,
        population=10,
        ledger=pv.Ledger(None),  # as many releases as one likes
    )
    query = trainer.gradients
    preconditioner = pv.preconditioning.isotropic()
    values = [query.release(preconditioner, sigma).value.item() for _ in range(ROUNDS)]
    return np.array(values)


def test_a_record_moves_the_release_by_the_clip_norm_and_the_noise_is_as_charged():
    with_it = releases([100.0], sigma=2.0, clip=0.5, rate=1.0)
    without = releases([0.0], sigma=2.0, clip=0.5, rate=1.0)
    std = 2.0 * 0.5
    error = 6 * std * math.sqrt(2 / ROUNDS)  # passed once in 5e8
    assert abs(with_it.mean() - without.mean() - 0.5) < error
    for values in (with_it, without):
        # a false alarm in 1e8; noise that is 15 % too small is found
        low, high = stats.chi2.interval(1 - 1e-8, ROUNDS - 1)
        assert low < (ROUNDS - 1) * values.var(ddof=1) / std**2 < high


def empirical_epsilon(with_it, without, delta):
    """Return a lower bound on epsilon, at confidence 1 - 1e-4, by the best threshold test.

    In the two tests below it has its mean ten of its standard deviations, or more, from the claim.
    """
    best = 0.0
    for threshold in np.quantile(np.concatenate([with_it, without]), np.linspace(0.02, 0.98, 25)):
        hits, alarms = (with_it > threshold).sum(), (without > threshold).sum()
        low = stats.beta.ppf(2e-6, max(hits, 1), ROUNDS - hits + 1)
        high = stats.beta.ppf(1 - 2e-6, alarms + 1, max(ROUNDS - alarms, 1))
        if low > delta:
            best = max(best, math.log((low - delta) / high))
    return best


def test_no_threshold_attack_beats_the_epsilon_of_a_sampled_release():
    claimed = epsilon_of({events.poisson(0.5, 1.0): 1}, 1e-5)
    with_it = releases([100.0], sigma=1.0, clip=1.0, rate=0.5)
    without = releases([0.0], sigma=1.0, clip=1.0, rate=0.5)
    assert empirical_epsilon(with_it, without, 1e-5) <= claimed


def test_the_attack_catches_noise_that_is_too_small():
    claimed = epsilon_of({events.gaussian(4.0): 1}, 1e-5)
    with_it = releases([100.0], sigma=0.5, clip=1.0, rate=1.0)
    without = releases([0.0], sigma=0.5, clip=1.0, rate=1.0)
    assert empirical_epsilon(with_it, without, 1e-5) > claimed


class Dropped(nn.Module):
    """Dropout before one linear layer."""

    def __init__(self):
        super().__init__()
        self.drop, self.layer = nn.Dropout(0.5), nn.Linear(40, 1, bias=False)

    def forward(self, x):
        return self.layer(self.drop(x))


def test_a_known_torch_seed_does_not_tell_the_masks():
    gates = []
    for _ in range(2):
        trainer = pv.Trainer(
            Dropped(),
            lambda out, target: (out - target).sum(),
            (np.ones((8, 40), np.float32), np.zeros((8, 1), np.float32)),
            method=pv.methods.DPSGD(lr=1.0, clip=100.0),
            batch_size=8,
            steps=10,
            noise_multiplier=1e-6,
            delta=1e-3,
        )
        torch.manual_seed(0)
        state = torch.get_rng_state()
        gates.append(trainer.gradients.release(pv.preconditioning.isotropic(), 1e-6).value)
        assert torch.equal(torch.get_rng_state(), state)
    assert (gates[0] - gates[1]).abs().max() > 1
