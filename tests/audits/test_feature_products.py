"""An audit of the second moments from outside: no attack on a release beats what was charged."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import privada as pv
from privada.accounting import epsilon_of, events
from privada.preconditioning.feature_matrix import SIZE_WEIGHT

ROUNDS, DELTA = 2000, 1e-5


def releases(rows, sigma):
    """Return many releases of the products of some rows."""
    x = np.array(rows, dtype=np.float32)
    run = pv.Trainer(
        nn.Linear(x.shape[1], 1), nn.MSELoss(), (x, np.zeros((len(x), 1), np.float32)),
        method=pv.methods.PrivateNewton(), sampling="everyone", batch_size=len(x), steps=1,
        noise_multiplier=sigma, delta=DELTA, ledger=pv.Ledger(None),
    )  # fmt: skip
    query = run._run.second_moments
    return torch.stack([query.release(SIZE_WEIGHT, sigma).value for _ in range(ROUNDS)]).numpy()


def lower_bound(with_it, without):
    """Return a lower bound on epsilon, at confidence 1 - 1e-4, by the best threshold test."""
    best = 0.0
    for threshold in np.quantile(np.concatenate([with_it, without]), np.linspace(0.02, 0.98, 25)):
        hits, alarms = (with_it > threshold).sum(), (without > threshold).sum()
        low = stats.beta.ppf(2e-6, max(hits, 1), ROUNDS - hits + 1)
        high = stats.beta.ppf(1 - 2e-6, alarms + 1, max(ROUNDS - alarms, 1))
        if low > DELTA:
            best = max(best, float(np.log((low - DELTA) / high)))
    return best


@pytest.fixture(scope="module")
def found():
    """Return releases with a long row and without it, along its direction."""
    others = np.random.default_rng(0).uniform(-1, 1, (20, 2)).tolist()
    with_it = releases([*others, [1e6, -1e6]], sigma=2.0)
    without = releases(others, sigma=2.0)
    along = with_it.mean(axis=0) - without.mean(axis=0)
    along /= np.linalg.norm(along)
    return with_it @ along, without @ along


def test_no_attack_beats_the_epsilon_of_a_release(found):
    claimed = epsilon_of({events.gaussian(2.0): 1}, DELTA)
    assert 0.05 < lower_bound(*found) <= claimed


def test_the_attack_finds_noise_that_is_an_eighth_of_what_is_charged(found):
    sharper = [each.mean() + (each - each.mean()) / 8 for each in found]
    assert lower_bound(*sharper) > epsilon_of({events.gaussian(2.0): 1}, DELTA)
