"""The engine of one pass is held to the loop over examples: what that lets pass and what not."""

import math
import warnings
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from privada.clipping import (
    Batch,
    combining,
    contributions,
    make_engine,
    outer_products,
    self_check,
)
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.reads import NotFollowed
from privada.clipping.reference import PerExampleEngine
from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.data.dummies import make_dummies
from privada.preconditioning import FlatScaling
from tests.contracts.models import Apply, parameter
from tests.oracles import examples

PLAIN = FlatScaling(None, None)
entropy = functional.cross_entropy


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def classes(count):
    return torch.arange(count) % 3


def held_to_the_loop(engine, model, loss, batch):
    """Assert that an engine gives each parameter the gradient that ordinary autograd gives it."""
    rows = examples.gradients(model, loss, batch.inputs, batch.targets)
    layout = Parameters(model).layout
    found = layout.split(engine.clipped_sum(batch, PLAIN, 1e6).value)
    for name, expected in layout.split(rows.sum(dim=0).to(rows.dtype)).items():
        assert float(expected.norm()) > 0, name
        error = float((found[name].double() - expected).norm() / expected.norm())
        assert error < 1e-3, name


# ---------------------------------------------------------------------- group-norm networks


def norm(features):
    return nn.GroupNorm(min(16, features), features)


def conv(inputs, outputs, kernel=3, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Wide(nn.Module):
    """A block of a wide residual network: normalise, ReLU, convolve, twice."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.norms = nn.ModuleList([norm(inputs), norm(outputs)])
        self.convs = nn.ModuleList([conv(inputs, outputs, 3, stride), conv(outputs, outputs)])
        same = inputs == outputs and stride == 1
        self.short = None if same else conv(inputs, outputs, 1, stride)

    def forward(self, x):
        first = functional.relu(self.norms[0](x))
        inner = functional.relu(self.norms[1](self.convs[0](first)))
        return self.convs[1](inner) + (x if self.short is None else self.short(first))


class Residual(nn.Module):
    """A block of a residual network: convolve, normalise, ReLU, twice."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.inner = nn.Sequential(
            conv(inputs, outputs, 3, stride),
            norm(outputs),
            nn.ReLU(),
            conv(outputs, outputs),
            norm(outputs),
        )
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x):
        return functional.relu(self.inner(x) + self.short(x))


def stages(block, widths, depth):
    blocks = []
    for stage, (inputs, outputs) in enumerate(pairwise(widths)):
        for place in range(depth):
            stride = 2 if stage and place == 0 else 1
            blocks.append(block(outputs if place else inputs, outputs, stride))
    return blocks


def head(features):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 10)]


def wrn_16_4():
    blocks = stages(Wide, [16, 64, 128, 256], depth=2)
    return nn.Sequential(conv(3, 16), *blocks, norm(256), nn.ReLU(), *head(256))


def resnet_20():
    blocks = stages(Residual, [16, 16, 32, 64], depth=3)
    return nn.Sequential(conv(3, 16), norm(16), nn.ReLU(), *blocks, *head(64))


def evenly(*shape):
    """Return numbers that are spread evenly between -0.5 and 0.5."""
    return ((torch.arange(math.prod(shape)) * 0.7548776662).frac() - 0.5).view(shape)


# name -> (model, inputs, seeds, one of which took the other engine when float32 decided)
GROUP_NORM = {
    "WRN-16-4": (wrn_16_4, lambda: evenly(3, 3, 16, 16), range(18, 26)),
    "ResNet-20": (resnet_20, lambda: torch.randn(3, 3, 8, 8), range(8, 16)),
}


@pytest.mark.parametrize(
    "place", [p if p < 2 else pytest.param(p, marks=pytest.mark.slow) for p in range(8)]
)
@pytest.mark.parametrize("name", GROUP_NORM)
def test_the_choice_of_an_engine_is_not_one_of_rounding(name, place):
    """In float32, a unit at the edge of its ReLU takes the two engines a percent apart."""
    build, make, seeds = GROUP_NORM[name]
    torch.manual_seed(seeds[place])
    model = build()
    batch = Batch(make(), torch.tensor([0, 0, 0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = make_engine("auto", model, entropy, Parameters(model), batch)
    assert isinstance(engine, OnePassEngine)


def test_nor_is_it_where_no_copy_in_float64_can_be_made(monkeypatch):
    monkeypatch.setattr(self_check, "_COPY_BYTES", 8)
    build, make, seeds = GROUP_NORM["ResNet-20"]
    torch.manual_seed(seeds[4])
    model = build()
    batch = Batch(make(), torch.tensor([0, 0, 0]))
    engine = make_engine("one-pass", model, entropy, Parameters(model), batch)
    assert isinstance(engine, OnePassEngine)


class OnTheEdge(nn.Module):
    """Adds two sums of the same numbers in another order, and asks which is the larger.

    It stands for a deep network with a unit at the edge of its ReLU: in float32 the answer depends
    on how many examples there are.
    """

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(301, 40)
        self.out = nn.Linear(40, 3)

    def forward(self, x):
        z = self.a(x)
        one = functional.linear(x, self.a.weight.detach(), self.a.bias.detach())
        two = (x[:, None] * self.a.weight.detach()).flip(-1).sum(dim=-1) + self.a.bias.detach()
        return self.out(z * torch.where((one - two).abs() > 1e-12, 1.3, 1.0))


def test_gradients_whose_squares_underflow_do_not_decide_the_engine():
    """A loss that is as good as zero has gradients of 1e-151, and bounds on their norms above."""
    torch.manual_seed(2601)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.Flatten(), nn.Linear(72, 3),
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(12.0)
    first = Batch(torch.zeros(1, 1, 5, 8).double(), torch.zeros(1, dtype=torch.int64))
    make_engine("one-pass", model, functional.cross_entropy, Parameters(model), make_dummies(first))


def test_what_only_rounding_decides_does_not_decide_the_engine():
    model = OnTheEdge()
    batch = Batch(torch.randn(3, 301), classes(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = make_engine("auto", model, entropy, Parameters(model), batch)
    assert isinstance(engine, OnePassEngine)


# ---------------------------------------------------------------------- hidden parameters


class Adapter(nn.Module):
    """What peft's layer for DoRA does: it is given two layers that are not its own."""

    def __init__(self, magnitude):
        super().__init__()
        self.magnitude = nn.Parameter(magnitude)

    def forward(self, x, *, base, down, up, alpha):
        weight = base.weight + alpha * (up.weight @ down.weight).detach()
        scale = self.magnitude / weight.norm(dim=1)
        plain = functional.linear(x, base.weight)
        return scale * alpha * up(down(x)) + (scale - 1) * plain + plain


class Dora(nn.Module):
    """A frozen layer, two thin ones and a magnitude (Liu et al., 2024)."""

    def __init__(self, base, alpha):
        super().__init__()
        self.base, self.alpha = base.requires_grad_(False), alpha
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        self.adapter = Adapter(base.weight.norm(dim=1))

    def forward(self, x):
        return self.adapter(x, base=self.base, down=self.down, up=self.up, alpha=self.alpha)


@pytest.mark.filterwarnings("ignore:No rule knows", "ignore:There is a performance drop")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1.0, 1e-3, 1e-5])
def test_layers_that_are_given_to_another_layer_are_trained(alpha, dtype):
    layers = (Dora(nn.Linear(i, o, bias=False), alpha) for i, o in ((5, 6), (6, 3)))
    model = nn.Sequential(next(layers), nn.Tanh(), next(layers)).to(dtype)
    example, batch = (Batch(torch.randn(n, 5, dtype=dtype), classes(n)) for n in (3, 7))
    engine = make_engine("auto", model, entropy, Parameters(model), example)
    assert isinstance(engine, OnePassEngine)
    assert engine.whole_modules == {"0", "2"}
    held_to_the_loop(engine, model, entropy, batch)


class Unseen(torch.autograd.Function):
    """A product with a parameter in a function that torch does not let anyone see."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(dim=0)


@pytest.mark.parametrize("factor", [1.0, 1e-12, 0.0])
def test_a_parameter_that_no_function_shows_is_noticed_however_little_it_matters(factor):
    model = Apply(
        lambda s, x: s.a(x + factor * Unseen.apply(x, s.w)), a=nn.Linear(4, 3), w=parameter(4)
    )
    batch = Batch(torch.randn(3, 4), classes(3))
    with pytest.raises(NotFollowed, match=r"\['w'\] where that cannot be seen"):
        OnePassEngine(model, entropy, Parameters(model), batch)
    with pytest.warns(UserWarning, match="cannot be seen"):
        engine = make_engine("auto", model, entropy, Parameters(model), batch)
    assert isinstance(engine, PerExampleEngine)


# ---------------------------------------------------------------------- planted faults


class Everything(nn.Module):
    """A model that goes through many rules; its parts matter very differently."""

    def __init__(self, small):
        super().__init__()
        self.small = small
        self.table = nn.Embedding(5, 4)
        self.place = parameter(1, 6, 4)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.LayerNorm(4)
        self.groups = nn.GroupNorm(2, 4)
        self.rows = nn.GRU(4, 4, batch_first=True)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.gain = parameter(4)
        self.mixed = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, tokens):
        x = self.table(tokens) + self.place
        x = self.groups(self.conv(x.transpose(1, 2))).transpose(1, 2)
        x = self.norm(x + self.rows(x)[0])
        x = x + self.attend(x, x, x)[0] * self.gain
        x = x + self.small * torch.tanh(self.mixed(x))
        return self.out(torch.tanh(x).mean(dim=1))


def tried(model, clipping=None, dtype=torch.float32, **given):
    model = model.to(dtype)
    tokens = torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(1))
    batch = Batch(tokens, classes(3))
    options = () if clipping is None else (clipping,)
    return make_engine("one-pass", model, entropy, Parameters(model), batch, *options)


def scaled(contribution, factor):
    """Return a contribution with another factor, in whichever way it is kept."""
    if isinstance(contribution, combining.Sum):
        contribution.parts = [scaled(part, factor) for part in contribution.parts]
        return contribution
    for name in ("_rows", "_gradients", "_outputs", "outputs"):
        if hasattr(contribution, name):
            setattr(contribution, name, factor * getattr(contribution, name))
            return contribution
    raise AssertionError(type(contribution))


def planted(change):
    """Return a patch of what is read off the uses: `change` gets a name and a contribution."""

    def patch(monkeypatch):
        before = OnePassEngine._by_parameter

        def by_parameter(self, recorder, gradients, examples):
            found = before(self, recorder, gradients, examples)
            kept = (change(self._owner(each.piece), each) for each in found)
            return [each for each in kept if each is not None]

        monkeypatch.setattr(OnePassEngine, "_by_parameter", by_parameter)

    return patch


def on(name, factor):
    """Return a fault in one parameter: a factor, or None for leaving it out."""

    def change(owner, contribution):
        if owner != name:
            return contribution
        return None if factor is None else scaled(contribution, factor)

    return planted(change)


NAMES = [name for name, _ in Everything(1.0).named_parameters()]
FACTORS = {"left out": None, "twice": 2.0, "its sign": -1.0, "a little": 1 + 1e-6}


def test_without_a_fault_the_model_of_the_planted_ones_is_taken():
    for dtype in (torch.float32, torch.float64):
        for small in (1.0, 1e-6):
            assert isinstance(tried(Everything(small), dtype=dtype), OnePassEngine)


@pytest.mark.parametrize("fault", FACTORS)
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_in_one_parameter_is_noticed(name, fault, monkeypatch):
    on(name, FACTORS[fault])(monkeypatch)
    with pytest.raises(ArgumentError, match="its gradient is off"):
        tried(Everything(1.0))


@pytest.mark.parametrize("fault", ["left out", "twice"])
@pytest.mark.parametrize("name", ["mixed.weight", "mixed.bias"])
@pytest.mark.parametrize("small", [1e-4, 1e-8])
def test_a_fault_in_a_parameter_of_small_gradients_is_noticed(small, name, fault, monkeypatch):
    """One norm over all parameters does not show it."""
    on(name, FACTORS[fault])(monkeypatch)
    with pytest.raises(ArgumentError, match=f"off by .* in '{name}'"):
        tried(Everything(small))


def too_small(kind, monkeypatch):
    """Plant a fault in the norms of a kind of contribution. A sum without clipping is right."""
    before = kind.squared_norms
    monkeypatch.setattr(kind, "squared_norms", lambda self, weights: 0.9 * before(self, weights))


class OneDiagonal(nn.Module):
    """Linear layers on vectors and on sequences."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, tokens):
        return self.b(torch.tanh(self.a(tokens.to(self.a.weight.dtype))))


NORMS = {
    "of gradients": (contributions.DenseGrad, lambda: Everything(1.0)),
    "of outer products": (outer_products.OuterProductGrad, OneDiagonal),
    "of tables": (contributions.EmbeddingGrad, lambda: Everything(1.0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_is_too_small_is_noticed(name, dtype, monkeypatch):
    kind, build = NORMS[name]
    tried(build(), dtype=dtype)
    too_small(kind, monkeypatch)
    with pytest.raises(ArgumentError, match=r"its bound on a norm is|what it clips to"):
        tried(build(), dtype=dtype)


def test_a_norm_that_is_too_small_in_one_geometry_is_noticed(monkeypatch):
    before = outer_products.OuterProductGrad.squared_norms

    def wrong(self, weights):
        return before(self, weights) * (1.0 if weights is None else 0.9)

    monkeypatch.setattr(outer_products.OuterProductGrad, "squared_norms", wrong)
    with pytest.raises(ArgumentError, match=r"its bound on a norm is|what it clips to"):
        tried(OneDiagonal())


def test_a_fault_between_examples_is_noticed(monkeypatch):
    """Alone each is right; together they change places."""
    before = outer_products.OuterProductGrad.write_to

    def wrong(self, flat, factors):
        self.inputs = self.inputs.roll(1, dims=0)
        before(self, flat, factors)

    monkeypatch.setattr(outer_products.OuterProductGrad, "write_to", wrong)
    with pytest.raises(ArgumentError, match="its gradient is off"):
        tried(OneDiagonal())


def test_a_batch_that_is_left_to_the_loop_is_no_agreement(monkeypatch):
    """What cannot be followed is left to the loop in training; here it would agree with itself."""

    def never(self, *given):
        raise NotFollowed("nothing can be followed")

    monkeypatch.setattr(OnePassEngine, "_contributions", never)
    with pytest.raises(ArgumentError, match="nothing can be followed"):
        tried(OneDiagonal())


# ---------------------------------------------------------------------- models without a copy


class NoCopy(OneDiagonal):
    """It cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("not to be copied")


class Made(OneDiagonal):
    """It makes tensors in float32 and multiplies with them."""

    def forward(self, tokens):
        return super().forward(tokens) @ torch.eye(3)


WITHOUT_A_COPY = {"no copy": NoCopy, "made in float32": Made}


@pytest.mark.parametrize("name", WITHOUT_A_COPY)
def test_a_model_that_cannot_run_in_float64_is_compared_in_its_own_type(name, monkeypatch):
    assert isinstance(tried(WITHOUT_A_COPY[name]()), OnePassEngine)
    for factor in (None, 2.0, -1.0, 1.01):
        with pytest.MonkeyPatch.context() as patch:
            on("a.bias", factor)(patch)
            with pytest.raises(ArgumentError, match="its gradient is off"):
                tried(WITHOUT_A_COPY[name]())


class Short(OneDiagonal):
    """In its middle it computes in float32."""

    def forward(self, tokens):
        x = self.a(tokens.to(self.a.weight.dtype))
        return self.b(torch.tanh(x.float()).to(self.b.weight.dtype))


def test_a_model_that_computes_in_float32_inside_is_taken():
    assert isinstance(tried(Short()), OnePassEngine)
    with pytest.MonkeyPatch.context() as patch:
        on("a.bias", 2.0)(patch)
        with pytest.raises(ArgumentError, match="its gradient is off"):
            tried(Short())


def test_a_model_that_is_too_large_for_a_copy_is_compared_in_its_own_type(monkeypatch):
    monkeypatch.setattr(self_check, "_COPY_BYTES", 8)
    assert isinstance(tried(OneDiagonal()), OnePassEngine)
    on("a.bias", None)(monkeypatch)
    with pytest.raises(ArgumentError, match="its gradient is off"):
        tried(OneDiagonal())


def test_a_copy_that_still_uses_the_parameters_it_was_copied_from_is_not_trusted():
    """Its function has kept a layer: the copy would show a model without that layer."""
    kept = nn.Linear(6, 5)
    model = Apply(lambda s, x: s.b(torch.tanh(kept(x))), a=kept, b=nn.Linear(5, 3))
    batch = Batch(torch.randn(3, 6), classes(3))
    engine = make_engine("one-pass", model, entropy, Parameters(model), batch)
    with pytest.MonkeyPatch.context() as patch:
        on("a.weight", None)(patch)
        with pytest.raises(ArgumentError, match="its gradient is off"):
            make_engine("one-pass", model, entropy, Parameters(model), batch)
    found = engine.clipped_sum(batch, PLAIN, 1e6).value
    trained = list(model.parameters())
    loss = entropy(model(batch.inputs), batch.targets, reduction="sum")
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
    torch.testing.assert_close(found, expected)


def test_the_model_is_as_it_was_after_the_comparison():
    model = Everything(1.0)
    model.register_buffer("seen", torch.ones(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    tried(model)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert value.dtype is torch.float32
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())


# ---------------------------------------------------------------------- modules with two names


class TwoNames(nn.Module):
    """One layer under two names."""

    def __init__(self, unknown):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.between = nn.PReLU(4) if unknown else nn.Tanh()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.second(self.between(self.first(x))))


@pytest.mark.filterwarnings("ignore:No rule knows", "ignore:There is a performance drop")
@pytest.mark.parametrize("how", ["auto", "one-pass", "vmap", "loop"])
@pytest.mark.parametrize("unknown", [False, True])
def test_a_module_with_two_names_keeps_its_parameters(unknown, how):
    """torch's functional_call would leave its copies there, which no step moves."""
    model = TwoNames(unknown)
    weight = model.first.weight
    batch = Batch(torch.randn(3, 4), classes(3))
    engine = make_engine(how, model, entropy, Parameters(model), batch)
    held_to_the_loop(engine, model, entropy, batch)
    assert model.first.weight is weight
    assert model.second.weight is weight


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_gradients_under_autocast_are_those_at_the_current_parameters(how):
    """Autocast keeps parameters in bfloat16 as they were when they were used first."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = Batch(torch.randn(3, 4), classes(3))
    parameters = Parameters(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine = make_engine(how, model, entropy, parameters, batch)
        before = engine.clipped_sum(batch, PLAIN, 1e6).value
        parameters.add_(torch.randn(parameters.size))
        after = engine.clipped_sum(batch, PLAIN, 1e6).value
    expected = engine.clipped_sum(batch, PLAIN, 1e6).value
    assert float((before - expected).norm() / expected.norm()) > 0.3
    assert float((after - expected).norm() / expected.norm()) < 0.05
