"""Membership inference: known answers, a transcription, and the limits of a promise."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

import privada as pv
from privada.audit import Attack, MembershipAudit, confidence, membership
from privada.audit.membership import _likelihood_ratios
from privada.core.errors import ArgumentError, DataError


class Memory(nn.Module):
    """A model that knows the numbers of its records."""

    def __init__(self, data):
        super().__init__()
        self.known = set(data[0][:, 0].tolist())


def recalled(model, inputs, targets):
    noise = torch.sin(1e3 * inputs[:, 0])  # records differ, but in the same way for all models
    return torch.tensor([float(x in model.known) for x in inputs[:, 0].tolist()]) + noise


def numbered(size):
    return torch.arange(float(size))[:, None], torch.zeros(size)


def memorised(data, population):
    return Memory(data)


def test_a_model_that_remembers_gives_all_members_away():
    (attack,) = membership(
        {"memory": memorised}, numbered(50), runs=8, score=recalled, seed=1
    ).attacks
    assert attack.auc == 1
    assert attack.found(0.0) == 1
    assert attack.limit(0.0) == 1  # nothing is promised


def test_a_model_that_knows_nothing_gives_nobody_away():
    coins = torch.Generator().manual_seed(0)

    def guessed(model, inputs, targets):
        return torch.randn(len(inputs), generator=coins)

    (attack,) = membership(
        {"none": memorised}, numbered(500), runs=8, score=guessed, seed=1
    ).attacks
    guesses = 8 * 500
    assert abs(attack.auc - 0.5) < 6 / math.sqrt(3 * guesses)  # six standard deviations
    assert attack.found(1.0) == 1


def test_likelihood_ratios_are_those_of_a_transcription():
    rng = np.random.default_rng(3)
    members, scores = rng.random((9, 5)) < 0.5, rng.normal(size=(9, 5))
    members[:, 4] = True  # no model is without this record: it is left out
    guesses, truth = _likelihood_ratios(members, scores)
    expected = []
    for run in range(9):
        others = [k for k in range(9) if k != run]
        with_it = [[scores[k, i] for k in others if members[k, i]] for i in range(4)]
        without = [[scores[k, i] for k in others if not members[k, i]] for i in range(4)]

        def log_density(samples, i, run=run):
            squares = sum(((np.array(one) - np.mean(one)) ** 2).sum() for one in samples)
            deviation = math.sqrt(squares / sum(len(one) - 1 for one in samples))
            return norm.logpdf(scores[run, i], np.mean(samples[i]), deviation)

        expected += [log_density(with_it, i) - log_density(without, i) for i in range(4)]
    assert np.allclose(guesses, expected)
    assert (truth == members[:, :4].ravel()).all()


def test_confidence_is_that_of_the_softmax():
    model, inputs = nn.Linear(3, 4).double(), torch.randn(6, 3, dtype=torch.float64)
    targets = torch.arange(6) % 4
    with torch.no_grad():
        chances = model(inputs).softmax(1)[torch.arange(6), targets]
        found = confidence(model, inputs, targets)
    assert torch.allclose(found, torch.log(chances / (1 - chances)))


def test_limits_hold_for_the_gaussian_and_are_close_to_it():
    """The best attack on a Gaussian release of sensitivity mu is known exactly."""
    mu = 0.8

    def delta_of(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )

    bounds = tuple((epsilon, delta_of(epsilon)) for epsilon in (0.05, 0.2, 0.5, 1.0, 2.0, 3.0))
    attack = Attack("gaussian", (0.0, 1.0), (0.0, 1.0), 0.5, bounds)
    for share in np.linspace(0.001, 0.999, 97):
        best = norm.cdf(norm.ppf(share) + mu)
        assert best <= attack.limit(share) + 1e-12
        assert attack.limit(share) <= best + 0.05


def test_the_promise_of_a_trainer_bounds_the_attack():
    generator = torch.Generator().manual_seed(2)
    records = torch.randn(60, 40, generator=generator), torch.arange(60) % 2

    def private(data, population):
        assert population == 30
        return pv.Trainer(
            nn.Linear(40, 2),
            nn.CrossEntropyLoss(),
            data,
            method=pv.methods.DPSGD(lr=0.5),
            batch_size=15,
            steps=10,
            budget=pv.Budget(1.0, 1e-3),
            population=population,
        ).fit()

    found = membership({"private": private}, records, runs=8, seed=4)
    (attack,) = found.attacks
    epsilons = [epsilon for epsilon, _ in attack.bounds]
    assert epsilons == sorted(epsilons, reverse=True)  # the greater delta is, the smaller
    assert {delta: epsilon for epsilon, delta in attack.bounds}[1e-3] <= 1.0
    assert attack.limit(0.01) <= math.e * 0.01 + 1e-3 + 1e-9
    assert attack.auc < 0.75
    assert "at most" in str(found)
    written = found.to_dict()
    assert written["attacks"][0]["limits"][0] == attack.limit(attack.false_positives[0])
    assert (written["records"], written["runs"]) == (60, 8)


def test_a_seeded_run_promises_nothing():
    def seeded(data, population):
        return pv.Trainer(
            nn.Linear(1, 2),
            nn.CrossEntropyLoss(),
            (data[0], data[1].long()),
            method=pv.methods.DPSGD(lr=0.5),
            batch_size=5,
            steps=2,
            budget=pv.Budget(1.0, 1e-3),
            population=population,
            seed=1,
        ).fit()

    inputs, targets = numbered(40)
    (attack,) = membership({"seeded": seeded}, (inputs, targets.long()), runs=8, seed=1).attacks
    assert attack.bounds == ()
    assert attack.to_dict()["limits"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runs": 4}, "runs"),
        ({"trainings": {}}, "at least one kind of training"),
        ({"records": 3}, "a pair of inputs and targets"),
        ({"records": (torch.zeros(3, 1), torch.zeros(4))}, "as many targets as inputs"),
        ({"records": numbered(2)}, "at least 4 records"),
        ({"trainings": {"none": lambda data, population: None}}, "return a torch module"),
        ({"score": lambda model, x, y: torch.zeros(len(x), 2)}, "one number for each"),
    ],
)
def test_bad_input_is_named(change, words):
    given = {"trainings": {"memory": memorised}, "records": numbered(8), "score": recalled}
    given |= {"runs": 8} | change
    with pytest.raises((ArgumentError, DataError), match=words):
        membership(given.pop("trainings"), given.pop("records"), **given)


def test_scores_that_are_not_finite_tell_nothing():
    def broken(model, inputs, targets):
        return torch.full((len(inputs),), math.nan)

    found = membership({"nan": memorised}, numbered(20), runs=8, score=broken, seed=1)
    assert isinstance(found, MembershipAudit)
    assert found.attacks[0].auc == 0.5
