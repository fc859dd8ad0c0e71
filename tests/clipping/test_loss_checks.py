"""Losses, and parameters, with which a model would not learn as its owner thinks it does."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import privada as pv
from privada.clipping import Batch, make_engine
from privada.clipping.one_pass import OnePassEngine
from privada.core.errors import ModelError
from privada.core.tensors import Parameters
from privada.preconditioning import FlatScaling
from tests.contracts.models import Apply, parameter

PLAIN = FlatScaling(None, None)
HOW = ("auto", "vmap", "loop")


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def quietly(how, model, loss, batch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_engine(how, model, loss, Parameters(model), next(batch.chunks(3)))


def one_by_one(model, loss, batch, clip):
    """Return the clipped sum by ordinary autograd, of the parameters where they are."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in trained), dtype=trained[0].dtype)
    for one in batch.chunks(1):
        parts = torch.autograd.grad(
            loss(model(one.inputs), one.targets), trained, allow_unused=True
        )
        row = torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(trained, parts, strict=True)
            ]
        )
        total += row * min(1.0, clip / float(row.norm()))
    return total


# ---------------------------------------------------------------------- parameters in the loss


class Angular(nn.Module):
    """A loss with weights of its own, a vector for each class."""

    def __init__(self, features, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features, dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(4.0, dtype=torch.float64), requires_grad=False)

    def forward(self, output, target):
        cosines = functional.normalize(output) @ functional.normalize(self.weight).T
        return functional.cross_entropy(self.scale * cosines, target)


def penalty():
    model = nn.Linear(4, 3).double()
    return (
        model,
        lambda out, y: functional.cross_entropy(out, y) + 0.3 * model.weight.square().sum(),
    )


def kept_penalty():
    """The parameter is kept, and not looked up in the model."""
    model = nn.Linear(4, 3).double()
    weight = model.weight
    return model, lambda out, y: functional.cross_entropy(out, y) + 0.3 * weight.square().sum()


def tied():
    model = Apply(lambda s, x: s.body(x @ s.table), body=nn.Linear(5, 5), table=parameter(4, 5))
    model = model.double()

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = model.table

        def forward(self, output, target):
            return functional.cross_entropy(output @ self.table.T, target)

    return model, Tied()


def part_of_the_model():
    model = Apply(lambda s, x: s.body(x), body=nn.Linear(4, 5)).double()
    model.loss = Angular(5, 3)
    return model, model.loss


def temperature():
    model = Apply(lambda s, x: s.body(x), body=nn.Linear(4, 3), t=nn.Parameter(torch.ones(())))
    model = model.double()
    return model, lambda out, y: functional.cross_entropy(out * model.t.exp(), y)


IN_THE_LOSS = [penalty, kept_penalty, tied, part_of_the_model, temperature]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("build", IN_THE_LOSS)
def test_the_models_parameters_have_the_right_gradient_in_the_loss_too(build, how):
    model, loss = build()
    batch = Batch(torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2]))
    if how == "vmap" and build is kept_penalty:
        with pytest.raises(pv.ArgumentError, match=r"\['weight'\] are used where vmap cannot"):
            quietly(how, model, loss, batch)
        return
    engine = quietly(how, model, loss, batch)
    for clip in (0.1, 100.0):
        found = engine.clipped_sum(batch, PLAIN, clip).value
        torch.testing.assert_close(found, one_by_one(model, loss, batch, clip))


@pytest.mark.parametrize("build", IN_THE_LOSS)
def test_a_model_whose_loss_uses_its_parameters_is_not_run_in_one_pass(build):
    model, loss = build()
    batch = Batch(torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2]))
    with pytest.warns(UserWarning, match="its loss uses the parameters"):
        make_engine("auto", model, loss, Parameters(model), batch)


def test_a_penalty_is_trained_by_the_trainer():
    """With nothing but a penalty to follow, weights shrink."""
    model = nn.Linear(4, 1)
    start = float(model.weight.norm().detach())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pv.Trainer(
            model,
            lambda out, y: 1e-3 * functional.mse_loss(out, y) + model.weight.square().sum(),
            (torch.zeros(200, 4), torch.zeros(200, 1)),
            method=pv.methods.DPSGD(lr=0.1, clip=100.0),
            batch_size=100,
            steps=20,
            noise_multiplier=1e-3,
            delta=1e-3,
            seed=0,
        ).fit()
    assert float(model.weight.norm().detach()) < 0.1 * start


def test_parameters_that_are_frozen_later_keep_their_place():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    batch = Batch(torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0]))
    engines = [quietly(how, model, functional.cross_entropy, batch) for how in HOW]
    expected = one_by_one(model, functional.cross_entropy, batch, 0.1)
    model[0].requires_grad_(False)
    for engine in engines:
        torch.testing.assert_close(engine.clipped_sum(batch, PLAIN, 0.1).value, expected)
    assert not model[0].weight.requires_grad


# ---------------------------------------------------------------------- parameters elsewhere


def captured(kind):
    other = kind(3, 3)
    return lambda out, y: functional.cross_entropy(other(out), y)


TEMPERATURE = torch.ones((), requires_grad=True)
ELSEWHERE = {
    "a loss module": (lambda: Angular(3, 3), r"got \['weight'\].*self\.loss = loss"),
    "a layer": (lambda: captured(lambda i, o: nn.Linear(i, o).double()), "got 2 others, of shapes"),
    "a tensor": (
        lambda: lambda out, y: functional.cross_entropy(out * TEMPERATURE, y),
        r"got 1 others, of shapes \(\)",
    ),
}


@pytest.mark.parametrize("how", [*HOW, "one-pass"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_loss_with_trainable_parameters_that_the_model_has_not_is_refused(name, how):
    build, words = ELSEWHERE[name]
    model = nn.Linear(4, 3).double()
    batch = Batch(torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2]))
    with pytest.raises(ModelError, match=words):
        make_engine(how, model, build(), Parameters(model), batch)


def test_layers_in_a_plain_list_are_refused():
    """As in torch, they are no parameters of the model, and would stay as they are."""
    layers = [nn.Linear(4, 4)]
    model = Apply(lambda s, x: s.out(s.layers[0](x)), out=nn.Linear(4, 3))
    model.layers = layers
    batch = Batch(torch.randn(3, 4), torch.tensor([0, 1, 2]))
    with pytest.raises(ModelError, match="ModuleList"):
        make_engine("auto", model, functional.cross_entropy, Parameters(model), batch)


def with_gradient_penalty(output, target):
    point = torch.ones(3, dtype=output.dtype, requires_grad=True)
    (slope,) = torch.autograd.grad((point**3).sum(), point, create_graph=True)
    return functional.cross_entropy(output * slope, target)


def frozen_teacher():
    teacher = nn.Linear(3, 3).double().requires_grad_(False)
    return lambda out, y: functional.mse_loss(out, teacher(out.detach()))


CONSTANT = {
    "frozen weights": lambda: Angular(3, 3).requires_grad_(False),
    "a frozen teacher": frozen_teacher,
    "points made in the loss": lambda: with_gradient_penalty,
}


@pytest.mark.filterwarnings("ignore:The fast engine cannot follow")
@pytest.mark.parametrize("name", CONSTANT)
def test_constants_of_a_loss_are_not_refused(name):
    model, loss = nn.Linear(4, 3).double(), CONSTANT[name]()
    batch = Batch(torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2]))
    engine = make_engine("auto", model, loss, Parameters(model), batch)
    found = engine.clipped_sum(batch, PLAIN, 0.1).value
    torch.testing.assert_close(found, one_by_one(model, loss, batch, 0.1))


def test_gradient_hooks_on_parameters_are_refused():
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda gradient: gradient.sign())
    batch = Batch(torch.randn(3, 4), torch.tensor([0, 1, 2]))
    with pytest.raises(ModelError, match=r"hooks on \['weight'\]"):
        make_engine("auto", model, functional.cross_entropy, Parameters(model), batch)


# ---------------------------------------------------------------------- losses of pairs


def info_nce(output, target):
    """Two views in a row; the others of the batch are the negatives."""
    one, two = functional.normalize(output, dim=-1).unbind(dim=1)
    return functional.cross_entropy(one @ two.T / 0.1, torch.arange(len(output)))


def nt_xent(output, target):
    views = functional.normalize(output, dim=-1).transpose(0, 1).flatten(0, 1)
    count = len(output)
    same = (views @ views.T / 0.5).fill_diagonal_(-1e9)
    return functional.cross_entropy(same, torch.arange(2 * count).roll(count))


def by_hand(output, target):
    """Its gradient is zero up to rounding."""
    one, two = output.unbind(dim=1)
    shares = torch.exp(torch.tanh(one @ two.T))
    return -torch.log(shares.diagonal() / shares.sum(dim=1)).mean()


def supervised(output, target):
    """Other examples of the same class are the positives; with none, nothing is left."""
    views = functional.normalize(output[:, 0], dim=-1)
    others = ~torch.eye(len(views), dtype=torch.bool)
    alike = (target[:, None] == target[None]) & others
    logits = (views @ views.T / 0.1).masked_fill(~others, -1e9)
    each = functional.log_softmax(logits, dim=1) * alike
    return -(each.sum(dim=1) / alike.sum(dim=1).clamp(min=1)).mean()


def triplet(output, target):
    anchor, positive = output.unbind(dim=1)
    negative = positive.roll(1, dims=0)
    near, far = (torch.linalg.vector_norm(anchor - p, dim=1) for p in (positive, negative))
    return torch.relu(near - far + 0.2).mean()


def spread(output, target):
    """The variance over a batch, which one example does not have."""
    return -output.flatten(1).var(dim=0).sum()


OF_PAIRS = [info_nce, nt_xent, by_hand, supervised, triplet, spread]


@pytest.mark.filterwarnings("ignore:var\\(\\)")
@pytest.mark.parametrize("how", [*HOW, "one-pass"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", OF_PAIRS)
def test_a_loss_that_compares_examples_is_refused(loss, dtype, how):
    model = nn.Linear(4, 5).to(dtype)
    batch = Batch(torch.randn(3, 2, 4, dtype=dtype), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ModelError, match="compares the examples of a batch"):
        make_engine(how, model, loss, Parameters(model), batch)


def hinge(output, target):
    return torch.relu(1 - target * output).sum()


def ignoring(output, target):
    return functional.cross_entropy(output, target, ignore_index=0)


def epsilon_insensitive(output, target):
    return torch.relu((output - target).abs() - 3).sum()


def of_shares(output, target):
    return functional.nll_loss(output.log(), target)


def masked(output, target):
    """Nothing counts where the target is zero, as made-up ones are."""
    return ((output - target).square() * (target != 0)).sum()


FLAT_SOMEWHERE = {
    "hinge": (hinge, torch.zeros(3, 3)),
    "hinge of whole numbers": (hinge, torch.zeros(3, 3, dtype=torch.int64)),
    "ignored targets": (ignoring, torch.zeros(3, dtype=torch.int64)),
    "a wide tube": (epsilon_insensitive, torch.zeros(3, 3)),
    "log of negative numbers": (of_shares, torch.zeros(3, dtype=torch.int64)),
    "masked targets": (masked, torch.zeros(3, 3)),
}


@pytest.mark.parametrize("name", FLAT_SOMEWHERE)
def test_a_loss_that_is_flat_somewhere_is_not_refused(name):
    loss, targets = FLAT_SOMEWHERE[name]
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    engine = make_engine("auto", model, loss, Parameters(model), Batch(torch.randn(3, 4), targets))
    assert isinstance(engine, OnePassEngine)


def test_a_loss_that_uses_weights_that_start_at_zero_is_not_refused():
    model = Apply(lambda s, x: s.body(x), body=nn.Linear(4, 5), head=nn.Linear(5, 3))
    nn.init.zeros_(model.head.weight)
    batch = Batch(torch.randn(3, 4), torch.tensor([0, 1, 2]))

    def loss(output, target):
        return functional.cross_entropy(model.head(output), target)

    with pytest.warns(UserWarning, match="its loss uses the parameters"):
        make_engine("auto", model, loss, Parameters(model), batch)


def test_trying_a_loss_leaves_its_buffers_as_they_were():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, output, target):
            self.calls += 1
            return 0 * output.sum()

    loss, model = Counting(), nn.Linear(4, 3)
    with pytest.raises(ModelError, match="compares"):
        make_engine(
            "loop", model, loss, Parameters(model), Batch(torch.randn(3, 4), torch.zeros(3))
        )
    assert float(loss.calls) <= 2  # of looking for parameters
