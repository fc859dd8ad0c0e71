"""No model in which examples touch each other is trained so that one moves the sum by more."""

import warnings

import pytest
import torch
from torch.nn import functional

import privada as pv
from privada.clipping.engine import make_engine
from privada.core.errors import ModelError
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.data.dummies import make_dummies
from privada.preconditioning import FlatScaling
from tests.contracts.mixing import ZOO, in_window

# Records whose company has shown something: large, absent, small, ordinary.
ODD = (40.0, 150.0, 1e3, -999.0, 0.0, float("nan"))
CLIP = 1.0


def records(shape, count):
    generator = torch.Generator().manual_seed(1)
    inputs = 3 * torch.randn(count, *shape, generator=generator)
    inputs[::3].flatten(1)[:, :2] = -999.0  # what is imputed
    return inputs, torch.arange(count) % 3


def move(engine, inputs, targets, odd):
    """Return how far a record moves the clipped sum of others, at both ends of a batch."""
    one = torch.full((1, *inputs.shape[1:]), odd)
    label = torch.zeros(1, dtype=torch.int64)
    found = []
    without = engine.clipped_sum(Batch(inputs, targets), FlatScaling(None, None), CLIP).value
    for order in (1, -1):
        together = torch.cat((inputs, one)[::order]), torch.cat((targets, label)[::order])
        there = engine.clipped_sum(Batch(*together), FlatScaling(None, None), CLIP).value
        found.append(float((there - without).norm()))
    return max(found)


def test_the_zoo_is_wide():
    assert len({name.split(",")[0] for name in ZOO}) >= 60


@pytest.mark.parametrize("name", ZOO)
def test_a_mixing_model_is_refused_or_held_to_the_clip_norm(name):
    build, shape = ZOO[name]
    torch.manual_seed(0)
    inputs, targets = records(shape, 40)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = pv.Trainer(
                build(),
                functional.cross_entropy,
                (inputs, targets),
                method=pv.methods.DPSGD(lr=0.1, clip=CLIP),
                batch_size=20,
                steps=4,
                noise_multiplier=1.0,
                delta=1e-3,
            )
    except ModelError:
        return
    engine = trainer._run.tried.engine
    for count in (5, 31, 40):
        for odd in ODD:
            moved = move(engine, inputs[:count], targets[:count], odd)
            assert moved <= CLIP * (1 + 1e-6), f"{odd} moves the sum by {moved} clip norms"


class Stashed(torch.nn.Linear):
    """A layer that leaves its input where the loss finds it."""

    def forward(self, x):
        SEEN[:] = [x.detach()]
        return super().forward(x)


SEEN = []


@pytest.mark.parametrize(
    "read",
    [
        lambda x: bool(in_window(x)),
        lambda x: in_window(x).item(),
        lambda x: in_window(x).numpy(),
        lambda x: x[(x > 100) & (x < 200)].numel(),
        lambda x: len(x) >= 40,
    ],
)
def test_a_loss_that_reads_the_batch_is_held_to_the_clip_norm(read):
    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets) * (0.1 if read(SEEN[0]) else 1e-3)

    torch.manual_seed(0)
    inputs, targets = records((12,), 40)
    model, example = Stashed(12, 3), make_dummies(Batch(inputs[:1], targets[:1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = make_engine("auto", model, loss, Parameters(model), example, expected=20)
    for count in (31, 40):
        for odd in ODD:
            assert move(engine, inputs[:count], targets[:count], odd) <= CLIP * (1 + 1e-6)


def test_an_example_in_the_loop_has_memory_of_its_own():
    class Reads(torch.nn.Linear):
        def forward(self, x):
            values = torch.empty(0).set_(x.detach().untyped_storage())  # all that it is a view of
            return super().forward(x * (10.0 if in_window(values) else 1.0))

    torch.manual_seed(0)
    inputs, targets = records((12,), 10)
    model, example = Reads(12, 3), make_dummies(Batch(inputs[:1], targets[:1]))
    engine = make_engine("loop", model, functional.cross_entropy, Parameters(model), example)
    assert move(engine, inputs, targets, 150.0) <= CLIP * (1 + 1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "mean and deviation of everything, before",
        "greatest, clamped, before",
        "gradient divided by its norm, between",
        "imputed, before",
        "large batches only, between",
    ],
)
def test_the_zoo_shows_what_is_let_through(name, monkeypatch):
    """Without labels and poisoned neighbours, one record moves the sum by more."""
    monkeypatch.setattr("privada.query.local.refuse_mixing_models", lambda *args: None)
    monkeypatch.setattr("privada.clipping.one_pass.OnePassEngine._keep_apart", lambda *args: None)
    monkeypatch.setattr("privada.clipping.engine.hold_to_the_loop", lambda *args: None)
    build, shape = ZOO[name]
    torch.manual_seed(0)
    inputs, targets = records(shape, 40)
    trainer = pv.Trainer(
        build(), functional.cross_entropy, (inputs, targets),
        method=pv.methods.DPSGD(lr=0.1, clip=CLIP), batch_size=20, steps=4, noise_multiplier=1.0,
        delta=1e-3, engine="one-pass",
    )  # fmt: skip
    engine = trainer._run.tried.engine
    assert max(move(engine, inputs, targets, odd) for odd in ODD) > 1.1
