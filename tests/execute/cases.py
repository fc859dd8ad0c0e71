"""Runs of every kind, each to be computed on one process and on several."""

import numpy as np
import torch
from torch import nn

import privada as pv
from privada.core.randomness import SeededSource
from tests.methods.test_charges import METHODS

ROWS, FEATURES, CLASSES = 120, 4, 3
SIGMA, CLIP = 0.7, 0.5
BUDGET = pv.Budget(4.0, 1e-4)


def drawn(seed, count):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, count)


X, Y = drawn(0, ROWS)
SCORED = drawn(1, 90)


class Buffered(nn.Module):
    """A model with buffers, one of which is not in its state, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.linear, self.frozen = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, FEATURES)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.rand(FEATURES))
        self.register_buffer("shift", torch.rand(FEATURES), persistent=False)

    def forward(self, x):
        return self.linear(self.frozen(x) * self.scale + self.shift)


class Noisy(torch.utils.data.Dataset):
    """A data set that augments its records at random, by torch's global generator."""

    def __len__(self):
        return ROWS

    def __getitem__(self, place):
        x = torch.from_numpy(X[place])
        return x + 0.1 * torch.randn(FEATURES), int(Y[place])


def linear():
    return nn.Linear(FEATURES, CLASSES)


def network(*between):
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), *between, nn.Linear(6, CLASSES))


def sgd(**given):
    return pv.methods.DPSGD(lr=0.5, clip=CLIP, **given)


def half_square(model):
    return sum((p**2).sum() for p in model.parameters()) / 2


class Broken(torch.utils.data.Dataset):
    """A data set with records that are not finite, huge, or that cannot be read."""

    def __len__(self):
        return ROWS

    def __getitem__(self, place):
        if place in (8, 9, 77):
            raise OSError("no such record")
        x = torch.from_numpy(X[place]).clone()
        x[0] = {3: float("nan"), 50: float("inf"), 51: 1e38}.get(place, x[0])
        return x, int(Y[place])


def method(name):
    return pv.methods.get(name)(clip=CLIP, **METHODS[name][0])


MOMENTS = pv.preconditioning.private_second_moments(2.0)
FEATURE_MOMENTS = pv.preconditioning.private_feature_moments(2.0)
PERSONS = np.array([f"p{place % 17}" for place in range(ROWS)])
# Newton's method is for one process: it refuses an executor before it pays.
CASES = {f"method {name}": {"model": linear, "method": lambda name=name: method(name)}
         for name in METHODS if name != "newton"}  # fmt: skip
CASES |= {
    "adaptive clip": {"method": lambda: sgd(clipping=pv.clipping.adaptive())},
    "automatic clip": {"method": lambda: sgd(clipping=pv.clipping.automatic())},
    "per layer": {"method": lambda: sgd(clipping=pv.clipping.per_layer())},
    "ellipsoid": {"method": lambda: sgd(clipping=pv.clipping.ellipsoid())},
    "micro-batches": {"method": lambda: sgd(clipping=pv.clipping.microbatches(4))},
    "persons": {"groups": PERSONS, "rows_per_unit": 3, "batch_size": 6},
    "persons, adaptive clip": {
        "groups": PERSONS,
        "batch_size": 6,
        "method": lambda: sgd(clipping=pv.clipping.adaptive()),
    },
    "second moments": {
        "model": linear,
        "method": lambda: pv.methods.PASAN(lr=0.5, clip=CLIP, preconditioner=MOMENTS),
    },
    "feature moments": {
        "model": linear,
        "method": lambda: pv.methods.DPAdamWOSM(lr=0.1, clip=CLIP, preconditioner=FEATURE_MOMENTS),
    },
    "feature moments of persons": {
        "model": linear,
        "groups": PERSONS,
        "rows_per_unit": 3,
        "batch_size": 6,
        "method": lambda: pv.methods.DPAdamWOSM(lr=0.1, clip=CLIP, preconditioner=FEATURE_MOMENTS),
    },
    "second moments of persons": {
        "model": linear,
        "groups": PERSONS,
        "rows_per_unit": 3,
        "batch_size": 6,
        "method": lambda: pv.methods.PASAN(lr=0.5, clip=CLIP, preconditioner=MOMENTS),
    },
    "noise that follows": {
        "method": lambda: pv.methods.ADPSGD(lr=1.0, alpha="adaptive", clip=CLIP),
        "budget": BUDGET,
        "noise_multiplier": None,
        "delta": None,
    },
    "noise in turns": {
        "sampling": pv.participation.CyclicPoisson(3),
        "noise": pv.noise.Banded(3),
        "steps": 7,
    },
    "calibrated": {"budget": BUDGET, "noise_multiplier": None, "delta": None},
    "early stopping": {
        "steps": 12,
        "budget": BUDGET,
        "noise_multiplier": None,
        "delta": None,
        "ledger": lambda: pv.Ledger(None, pv.Budget(5.0, 1e-4)),
        "stopping": lambda: pv.EarlyStopping(
            SCORED, noise_multiplier=20.0, every=2, patience=2, restore_best=True
        ),
    },
    "public stopping": {
        "steps": 12,
        "stopping": lambda: pv.EarlyStopping(
            pv.Validation(SCORED, every=2), patience=2, restore_best=True
        ),
    },
    "weight decay": {"weight_decay": 0.1, "public_term": half_square},
    "buffers": {"model": Buffered},
    "dropout": {"model": lambda: network(nn.Dropout(0.5))},
    "dropout, left in evaluation mode": {"model": lambda: network(nn.Dropout(0.5)).eval()},
    "augmented": {"data": Noisy},
    "not finite": {"data": Broken},
    "empty draws": {"batch_size": 0.5, "steps": 12},
    "fewer rows than ranks": {"batch_size": 2, "steps": 12},
    "fixed size": {"sampling": "fixed-size", "batch_size": 7},
    "everyone": {"sampling": "everyone", "batch_size": ROWS},
    "averaged": {"method": lambda: method("pagan"), "model": linear},
    "double": {"model": lambda: network().double()},
}  # fmt: skip


def trainer(name, execution, **changes):
    """Return the trainer of a case."""
    case = {"model": network, "method": sgd, "data": lambda: (X, Y)} | CASES[name] | changes
    torch.manual_seed(5)
    model = case.pop("model")()
    made = {key: case.pop(key)() for key in ("method", "data", "stopping", "ledger") if key in case}
    settings = {
        "batch_size": 24, "steps": 5, "noise_multiplier": SIGMA, "delta": 1e-3, "seed": 11,
        "executor": execution,
    } | case  # fmt: skip
    return pv.Trainer(model, nn.CrossEntropyLoss(), made.pop("data"), **made, **settings)


def outcome(made):
    """Return what a run has come to, as plain values."""
    state = [t.detach().clone() for t in (*made.model.parameters(), *made.model.buffers())]
    return {
        "model": state,
        "totals": {repr(event): count for event, count in made.ledger.totals().items()},
        "epsilon": made.epsilon(),
        "steps": made.steps_done,
        "expected": made.expected_steps,
        "noise": made.noise_multiplier,
        "history": [(each.step, each.lr, each.noise_multiplier, each.epsilon)
                    for each in made.history],
        "run epsilon": made.statement().run_epsilon,
        "scores": made._state.stopping.get("scores"),
        "evaluations": [(each.step, each.values, each.baselines) for each in made.evaluations],
        "planned": {repr(event): count for event, count in made.planned().items()},
    }  # fmt: skip


class Tree:
    """The oracle: all parts here, added up by pairs, as ranks add them up."""

    def __init__(self, parts):
        self.parts = parts

    def over(self, local):
        return _Tree(local, self.parts)

    def describe(self):
        return "by pairs"


class _Tree:
    def __init__(self, local, parts):
        self.local, self.parts = local, parts

    def _added(self, found):
        stride = 1
        while stride < self.parts:
            for place in range(0, self.parts - stride, 2 * stride):
                found[place] = found[place] + found[place + stride]
            stride *= 2
        return found[0]

    def clipped_sum(self, drawn, scaling, clip):
        parts = drawn.split(self.parts)
        return self._added([self.local.clipped_sum(part, scaling, clip) for part in parts])

    def squared_sum(self, bound, rng):
        start = rng.position if isinstance(rng, SeededSource) else 0
        found = []
        for part in range(self.parts):
            if isinstance(rng, SeededSource):
                rng.position = start
            found.append(self.local.squared_sum(bound, rng, part, self.parts))
        return self._added(found)

    def features(self):
        return self.local.features()

    def feature_sum(self, rng):
        start = rng.position if isinstance(rng, SeededSource) else 0
        found = []
        for part in range(self.parts):
            if isinstance(rng, SeededSource):
                rng.position = start
            found.append(self.local.feature_sum(rng, part, self.parts))
        return self._added(found)

    def recheck(self):
        self.local.recheck()
