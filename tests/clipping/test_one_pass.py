"""What the engine of one pass leaves to others, refuses, and does not depend on."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from privada.clipping.calling import call
from privada.clipping.engine import make_engine
from privada.clipping.layers import refuse_mixing_layers
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.reads import NotFollowed
from privada.clipping.reference import PerExampleEngine
from privada.clipping.rules import sparse
from privada.core.errors import ArgumentError, ModelError
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.preconditioning import FlatScaling
from tests.contracts.models import Apply, parameter
from tests.contracts.test_rules import GEOMETRIES, scaling
from tests.oracles import examples

PLAIN = FlatScaling(None, None)
loss = functional.mse_loss


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def batch_for(model, make, size):
    inputs = make(size)
    with torch.no_grad():
        return Batch(inputs, torch.randn_like(call(model, inputs)))


def normal(*shape):
    return lambda size: torch.randn(size, *shape, dtype=torch.float64)


# ---------------------------------------------------------------------- modules without a rule

linear = nn.Linear

# name -> (model, inputs, the modules that run example by example)
WITHOUT_RULE = {
    "prelu": (lambda: nn.Sequential(linear(4, 3), nn.PReLU(3), linear(3, 2)), normal(4), {"1"}),
    "bilinear": (
        lambda: Apply(lambda s, x: s.b(s.a(x), x), a=linear(4, 3), b=nn.Bilinear(3, 4, 2)),
        normal(4),
        {"b"},
    ),
    "transposed convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ConvTranspose2d(3, 2, 2)),
        normal(2, 4, 4),
        {"1"},
    ),
    "bag of embeddings": (
        lambda: nn.Sequential(nn.EmbeddingBag(7, 4), linear(4, 2)),
        lambda size: torch.randint(7, (size, 3)),
        {"0"},
    ),
    "weight norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(linear(4, 3)), nn.Tanh(), linear(3, 2)
        ),
        normal(4),
        {"0"},
    ),
    "einsum": (
        lambda: nn.Sequential(
            linear(4, 3),
            Apply(lambda s, x: torch.einsum("bn,nm->bm", x, s.w), w=parameter(3, 2)),
            nn.Tanh(),
        ),
        normal(4),
        {"1"},
    ),
    "vector of weights": (
        lambda: nn.Sequential(
            linear(4, 3), Apply(lambda s, x: functional.linear(x, s.w)[:, None], w=parameter(3))
        ),
        normal(4),
        {"1"},
    ),
    "one offset for all outputs": (
        lambda: nn.Sequential(
            linear(4, 3),
            Apply(lambda s, x: functional.linear(x, s.w, s.b), w=parameter(2, 3), b=parameter(1)),
        ),
        normal(4),
        {"1"},
    ),
    "difference": (
        lambda: nn.Sequential(linear(4, 3), Apply(lambda s, x: x - s.b, b=parameter(3))),
        normal(4),
        {"1"},
    ),
    "twice": (
        lambda: Apply(lambda s, x: s.p(s.a(s.p(x))), p=nn.PReLU(4), a=linear(4, 4)),
        normal(4),
        {"p"},
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_a_module_without_a_rule_runs_example_by_example_with_a_warning(name):
    build, make, modules = WITHOUT_RULE[name]
    model = build().double()
    parameters = Parameters(model)
    with pytest.warns(UserWarning, match="No rule knows"):
        engine = make_engine("auto", model, loss, parameters, batch_for(model, make, 3))
    assert isinstance(engine, OnePassEngine)
    assert engine.whole_modules == modules
    for size in (1, 3, 5):
        batch = batch_for(model, make, size)
        rows = examples.gradients(model, loss, batch.inputs, batch.targets)
        for kind in GEOMETRIES:
            shape = scaling(kind, parameters)
            moved = examples.whitened(rows, shape.scale, shape.shift)
            clip = float(moved.norm(dim=1).median())
            found = engine.clipped_sum(batch, shape, clip).value
            error = (found - examples.clipped(moved, clip)).norm()
            assert float(error) <= 1e-10 * size * clip


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:No rule knows")
@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_module_with_an_argument_as_long_as_the_batch_is_not_run_by_example(length):
    """What is around it is, where the mask belongs to no example."""

    def run(s, x):
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        return s.attend(x, x, x, attn_mask=mask)[0]

    attend = nn.MultiheadAttention(4, 2, add_zero_attn=True, batch_first=True)
    model = nn.Sequential(linear(4, 4), Apply(run, attend=attend)).double()
    parameters = Parameters(model)
    make = normal(length, 4)
    engine = make_engine("auto", model, loss, parameters, batch_for(model, make, 3))
    assert isinstance(engine, OnePassEngine)
    assert engine.whole_modules == {"1"}
    for size in (1, 2, 3, 5):
        batch = batch_for(model, make, size)
        found = engine.clipped_sum(batch, PLAIN, 0.1).value
        expected = examples.clipped_sum(model, loss, batch.inputs, batch.targets, 0.1)
        torch.testing.assert_close(found, expected)


# name -> model, for inputs (2, 4), of which another engine gives the right sum
NOT_FOLLOWED = {
    "a parameter put into a tensor": lambda: Apply(_put, a=linear(4, 3), cls=parameter(4)),
    "overlapping windows": lambda: Apply(
        lambda s, x: functional.linear(x, s.w.unfold(0, 4, 1)), w=parameter(7)
    ),
    "a parameter through a frozen layer": lambda: Apply(
        lambda s, x: x + functional.linear(s.p, s.w), p=parameter(4), w=frozen(4, 4)
    ),
    "a normalised parameter": lambda: Apply(lambda s, x: x + s.n(s.p), p=parameter(4), n=norm()),
    "a turned kernel": lambda: Apply(
        lambda s, x: functional.conv1d(x, s.w.transpose(1, 2)), w=parameter(3, 2, 2)
    ),
    "values that are read": lambda: Apply(
        lambda s, x: s.a(x) * (1 if x.sum().item() > 0 else 2), a=linear(4, 3)
    ),
    "a length that is read by torch": lambda: Apply(
        lambda s, x: s.a(x)[:, : (x.amax() * 0).long() + 2], a=linear(4, 3)
    ),
    "rows that are there for their values": lambda: Apply(
        lambda s, x: s.a(x[x[..., 0] > -99]).view(len(x), -1), a=linear(4, 3)
    ),
    "layers that run again": lambda: Apply(
        lambda s, x: torch.utils.checkpoint.checkpoint(
            s.a, torch.tanh(x * s.p), use_reentrant=False
        ),
        a=linear(4, 3),
        p=parameter(4),
    ),
    "rows that are looked for": lambda: Apply(
        lambda s, x: s.a(x.flatten(0, 1)[torch.nonzero(x.flatten(0, 1)[:, 0] > -99)[:, 0]]).view(
            len(x), -1
        ),
        a=linear(4, 3),
    ),
}


def test_a_use_on_what_belongs_to_no_example_is_told_by_name():
    """As relative positions are, whose biases go through operations for one shape alone."""

    def run(s, x):
        places = torch.arange(2)
        bias = s.table(places[None, :] - places[:, None] + 1).permute(2, 0, 1)
        return s.a(x)[:, None] * bias.sum(dim=1)[..., None]

    model = Apply(run, a=linear(4, 3), table=nn.Embedding(3, 2)).double()
    with pytest.raises(NotFollowed, match=r"table.weight.* belongs to no example"):
        OnePassEngine(model, loss, Parameters(model), batch_for(model, normal(2, 4), 3))


def _put(s, x):
    x = x.clone()
    x[:, 0] = s.cls
    return s.a(x)


def frozen(*shape):
    return nn.Parameter(torch.randn(shape), requires_grad=False)


def norm():
    return nn.LayerNorm(4).requires_grad_(False)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_the_rules_cannot_follow_is_left_to_another_engine(name):
    model = NOT_FOLLOWED[name]().double()
    parameters = Parameters(model)
    example, batch = (batch_for(model, normal(2, 4), size) for size in (3, 5))
    with pytest.raises(NotFollowed):
        OnePassEngine(model, loss, parameters, example)
    with pytest.warns(UserWarning, match="The fast engine cannot follow"):
        engine = make_engine("auto", model, loss, parameters, example)
    assert isinstance(engine, PerExampleEngine)
    found = engine.clipped_sum(batch, PLAIN, 0.1).value
    expected = examples.clipped_sum(model, loss, batch.inputs, batch.targets, 0.1)
    torch.testing.assert_close(found, expected)


MIXING = {
    "centred inputs": lambda s, x: s.a(x - x.mean(dim=0)),
    "centred by constants": lambda s, x: s.a(x - x.mean(dim=0).detach()),
    "centred outputs": lambda s, x: s.a(x) - s.a(x).mean(dim=0),
    "attention over the batch": lambda s, x: torch.softmax(s.a(x) @ s.a(x).T, dim=1) @ x,
    "sorted outputs": lambda s, x: s.a(x).sort(dim=0)[0],
    "neighbours": lambda s, x: s.a(x) + s.a(x).roll(1, dims=0),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_examples_is_not_taken(name):
    model = Apply(MIXING[name], a=nn.Linear(4, 4))
    batch = Batch(torch.randn(3, 4), torch.randn(3, 4))
    with pytest.raises(ArgumentError, match="a dummy"):
        make_engine("one-pass", model, loss, Parameters(model), batch)


def test_batch_normalisation_is_refused_before_an_engine_is_made():
    with pytest.raises(ModelError, match="GroupNorm"):
        refuse_mixing_layers(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))


def test_rows_of_packed_sequences_are_not_taken_for_examples():
    """With made-up examples of one length they lie as if the shape told whose they are."""

    def run(s, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        changed = packed._replace(data=s.a(packed.data))
        return pad_packed_sequence(changed, batch_first=True, total_length=3)[0]

    model = Apply(run, a=nn.Linear(4, 2))
    batch = Batch((torch.randn(3, 3, 4), torch.tensor([3, 3, 3])), torch.randn(3, 3, 2))
    with pytest.raises(NotFollowed, match="packed"):
        OnePassEngine(model, loss, Parameters(model), batch)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("safe", [True, False])
def test_no_example_sees_the_longest_of_its_batch(safe, trained):
    """Unpacked sequences are as long as the longest, and their mean depends on that."""

    def run(s, x, lengths):
        packed = pack_padded_sequence(
            x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False
        )
        out = pad_packed_sequence(s.rnn(packed)[0], batch_first=True)[0]
        return s.a(out.sum(dim=1) if safe else out.mean(dim=1))

    model = Apply(run, rnn=nn.GRU(4, 3, batch_first=True), a=nn.Linear(3, 2)).double()
    model.rnn.requires_grad_(trained)
    ones = torch.ones(3, dtype=torch.int64)  # as made-up whole numbers may all be
    example = Batch(
        (torch.randn(3, 5, 4, dtype=torch.float64), ones), torch.randn(3, 2, dtype=torch.float64)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = make_engine("auto", model, loss, Parameters(model), example)
    assert isinstance(engine, OnePassEngine if safe else PerExampleEngine)
    inputs = torch.randn(4, 5, 4, dtype=torch.float64), torch.tensor([1, 5, 2, 3])
    targets = torch.randn(4, 2, dtype=torch.float64)
    found = engine.clipped_sum(Batch(inputs, targets), PLAIN, 0.1).value
    expected = examples.clipped_sum(model, loss, inputs, targets, 0.1)
    torch.testing.assert_close(found, expected)


def test_masks_that_keep_the_shape_are_followed():
    def run(s, x):
        x = x.clone()
        x[x > 1] = 0.0
        x[x[..., 0] < -1] = torch.ones(4, dtype=x.dtype)
        return s.a(x.masked_fill(x < -2, 3.0))

    model = Apply(run, a=nn.Linear(4, 2)).double()
    example, batch = (batch_for(model, normal(3, 4), size) for size in (3, 6))
    engine = OnePassEngine(model, loss, Parameters(model), example)
    found = engine.clipped_sum(batch, PLAIN, 0.1).value
    expected = examples.clipped_sum(model, loss, batch.inputs, batch.targets, 0.1)
    torch.testing.assert_close(found, expected)


def test_examples_of_which_nothing_tells_whose_they_are_are_not_followed():
    """Nothing of the output depends on the layer, whose rows may be (time, batch) or not."""
    model = Apply(
        lambda s, x: x + 0 * s.a(x.transpose(0, 1).reshape(-1, 4)).sum(), a=nn.Linear(4, 4)
    )
    batch = Batch(torch.ones(3, 6, 4), torch.zeros(3, 6, 4))
    with pytest.raises(NotFollowed):
        OnePassEngine(model, loss, Parameters(model), batch)


@pytest.mark.parametrize("length", [1, 3, 4])
def test_positions_may_be_as_many_or_as_few_as_examples(length):
    """Lengths that differ from those of made-up examples, and are equal to their number."""

    def run(s, x):
        places = torch.arange(x.shape[1])
        return torch.tanh(s.tok(x) + s.pos(places) + s.ids(places[None]) + s.table[: x.shape[1]])

    parts = {"tok": nn.Embedding(5, 2), "pos": nn.Embedding(9, 2), "ids": nn.Embedding(9, 2)}
    model = Apply(run, **parts, table=parameter(9, 2)).double()

    def tokens(length):
        return lambda size: torch.randint(5, (size, length))

    engine = OnePassEngine(model, loss, Parameters(model), batch_for(model, tokens(length), 3))
    for other in (1, 2, 3, 4, 7):
        for size in (1, 2, 3, 4):
            batch = batch_for(model, tokens(other), size)
            found = engine.clipped_sum(batch, PLAIN, 0.1).value
            expected = examples.clipped_sum(model, loss, batch.inputs, batch.targets, 0.1)
            torch.testing.assert_close(found, expected)


# name -> (function, shape of the parameter), for inputs of shape (time, batch, features)
BY_TIME = {
    "added": (lambda x, p: x + p, (5, 1, 4)),
    "multiplied": (lambda x, p: p * x, (5, 1, 4)),
    "of one position": (lambda x, p: x + p, (1, 1, 4)),
    "of one feature": (lambda x, p: x * p, (5, 1, 1)),
    "cut": (lambda x, p: x + p[: len(x)], (7, 1, 4)),
}


@pytest.mark.parametrize("name", BY_TIME)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_parameters_by_time_are_followed_where_the_batch_is_second(name, size):
    combine, shape = BY_TIME[name]

    def run(s, x):
        return s.a(combine(torch.tanh(x.transpose(0, 1)), s.p)).transpose(0, 1)

    model = Apply(run, a=linear(4, 3), p=parameter(*shape)).double()
    example, batch = (batch_for(model, normal(5, 4), n) for n in (3, size))
    engine = OnePassEngine(model, loss, Parameters(model), example)
    assert not engine.whole_modules
    found = engine.clipped_sum(batch, PLAIN, 0.1).value
    expected = examples.clipped_sum(model, loss, batch.inputs, batch.targets, 0.1)
    torch.testing.assert_close(found, expected)


def test_what_comes_back_to_padding_does_not_matter():
    """The slope of a root is infinite at the zeros of a padded row."""

    def run(s, x):
        return torch.where((x == 0)[..., None], 0.0, s.table(x).abs().sqrt()).sum(dim=1)

    model = Apply(run, table=nn.Embedding(5, 3, padding_idx=0)).double()
    tokens = torch.tensor([[1, 2, 0], [3, 0, 0], [4, 4, 1], [2, 3, 4]])
    batch = Batch(tokens, torch.randn(4, 3, dtype=torch.float64))
    engine = OnePassEngine(
        model, loss, Parameters(model), Batch(tokens[2:] % 4 + 1, batch.targets[2:])
    )
    found = engine.clipped_sum(batch, PLAIN, 0.1).value
    expected = examples.clipped_sum(model, loss, batch.inputs, batch.targets, 0.1)
    torch.testing.assert_close(found, expected)


# ---------------------------------------------------------------------- what does not matter


def small_model():
    return nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 4), nn.LayerNorm(4)
    ).double()


@given(size=st.integers(1, 9), room=st.integers(1, 4000), kind=st.sampled_from(GEOMETRIES))
@settings(max_examples=25, deadline=None)
def test_chunks_do_not_change_the_sum(size, room, kind):
    model = small_model()
    parameters = Parameters(model)
    example, batch = (batch_for(model, normal(2, 4), n) for n in (3, size))
    shape = scaling(kind, parameters)
    whole = OnePassEngine(model, loss, parameters, example)
    parts = OnePassEngine(model, loss, parameters, example, record_bytes=room)
    a, b = (engine.clipped_sum(batch, shape, 0.1).value for engine in (whole, parts))
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def test_a_scale_that_changes_in_place_counts_as_it_is():
    model = small_model()
    parameters = Parameters(model)
    batch = batch_for(model, normal(2, 4), 3)
    engine = OnePassEngine(model, loss, parameters, batch)
    shape = scaling("diagonal", parameters)
    engine.clipped_sum(batch, shape, 0.1)
    shape.scale.mul_(torch.linspace(0.1, 3, parameters.size))
    found = engine.clipped_sum(batch, shape, 0.1).value
    expected = examples.clipped_sum(model, loss, batch.inputs, batch.targets, 0.1, shape.scale)
    torch.testing.assert_close(found, expected)


DROPPING = {
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 2)),
    "dropout between recurrent layers": lambda: Apply(
        lambda s, x: s.l(x)[0], l=nn.LSTM(4, 3, 2, dropout=0.3, batch_first=True)
    ),
    "dropout in attention": lambda: nn.TransformerEncoderLayer(4, 2, 6, 0.3, batch_first=True),
}


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_followed(name):
    model = DROPPING[name]().train()
    example, batch = (
        Batch(x, torch.randn_like(model(x).detach()))
        for x in (torch.randn(3, 5, 4), torch.randn(6, 5, 4))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = make_engine("auto", model, loss, Parameters(model), example)
    assert isinstance(engine, OnePassEngine)
    first, second = (engine.clipped_sum(batch, PLAIN, 0.1).value for _ in range(2))
    assert not torch.equal(first, second)
    for found in (first, second):
        assert float(found.norm()) <= 0.6 * (1 + 1e-6)


# ---------------------------------------------------------------------- bfloat16


SHORT = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3)), (8,)),
    "sequences": (lambda: nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 3)), (5, 8)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), (2, 5, 5)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 9, 0.0, batch_first=True), (5, 8)),
    "lstm": (
        lambda: Apply(
            lambda s, x: s.o(s.l(x)[0]), l=nn.LSTM(8, 6, batch_first=True), o=linear(6, 3)
        ),
        (5, 8),
    ),
    "gru": (
        lambda: Apply(
            lambda s, x: s.o(s.l(x)[0]), l=nn.GRU(8, 6, batch_first=True), o=linear(6, 3)
        ),
        (5, 8),
    ),
    "gru alone": (lambda: Apply(lambda s, x: s.l(x)[0], l=nn.GRU(8, 6, batch_first=True)), (5, 8)),
    "scales": (lambda: Apply(lambda s, x: s.a(x + s.p) * s.g, **scales()), (5, 8)),
    "norm": (lambda: nn.Sequential(linear(8, 6), nn.LayerNorm(6), nn.Tanh()), (5, 8)),
}


def scales():
    return {"a": nn.Linear(8, 6), "p": parameter(5, 8), "g": parameter(6)}


@pytest.mark.parametrize("kind", GEOMETRIES)
@pytest.mark.parametrize("name", SHORT)
def test_autocast_gives_sums_in_float32_within_the_clip_norm(name, kind):
    build, shape = SHORT[name]
    model = build().train()
    parameters = Parameters(model)
    inputs = torch.randn(8, *shape)
    batch = Batch(inputs, torch.randn_like(model(inputs).detach()))
    example = next(batch.chunks(3))
    preconditioner, clip = scaling(kind, parameters), 0.05
    engine = make_engine("auto", model, loss, parameters, example)
    expected = engine.clipped_sum(batch, preconditioner, clip).value
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = make_engine("auto", model, loss, parameters, example)
        assert isinstance(engine, OnePassEngine)
        found = engine.clipped_sum(batch, preconditioner, clip).value
        norms = [
            engine.clipped_sum(one, preconditioner, clip).value.double().norm()
            for one in batch.chunks(1)
        ]
    assert found.dtype == torch.float32
    assert max(norms) <= clip * (1 + 1e-6)
    assert float((found - expected).norm() / expected.norm()) < 0.03


# ---------------------------------------------------------------------- sparse rows


def rows_of(dense):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dense.to_sparse_csr()


@pytest.mark.parametrize("deep", [False, True])
@given(
    size=st.integers(1, 6), seed=st.integers(0, 1000), kind=st.sampled_from(GEOMETRIES),
    filled=st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_sparse_rows_give_what_dense_ones_do(deep, size, seed, kind, filled):
    torch.manual_seed(seed)
    layers = (nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3)) if deep else (nn.Linear(7, 3),)
    model = nn.Sequential(*layers).double()
    parameters = Parameters(model)
    dense = torch.randn(size, 7, dtype=torch.float64) * (torch.rand(size, 7) < filled)
    targets = torch.randint(3, (size,))
    example = Batch(rows_of(torch.randn(3, 7, dtype=torch.float64)), torch.tensor([0, 1, 2]))
    entropy = functional.cross_entropy
    shape = scaling(kind, parameters)
    expected = examples.clipped_sum(model, entropy, dense, targets, 0.3, shape.scale, shape.shift)
    for room in (1, 1 << 20):
        engine = OnePassEngine(model, entropy, parameters, example, record_bytes=room)
        found = engine.clipped_sum(Batch(rows_of(dense), targets), shape, 0.3).value
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("filled", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_sparse_rows_need_no_library(monkeypatch, library, filled, dtype):
    if library and not sparse._HAS_PRODUCT:
        pytest.skip("this build of torch has no product of CSR matrices")
    monkeypatch.setattr(sparse, "_HAS_PRODUCT", library)
    dense = torch.randn(9, 20, dtype=dtype) * (torch.rand(9, 20) < filled)
    weight, bias = torch.randn(4, 20, dtype=dtype), torch.randn(4, dtype=dtype)
    for offset in (None, bias):
        found = sparse.sparse_linear(rows_of(dense), weight, offset)
        torch.testing.assert_close(found, functional.linear(dense, weight, offset))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_entries_of_one_place_add_up_before_they_are_squared():
    model = nn.Linear(5, 1, bias=False)
    engine = OnePassEngine(
        model, loss, Parameters(model), Batch(rows_of(torch.ones(3, 5)), torch.ones(3, 1))
    )
    doubled = torch.sparse_csr_tensor(
        torch.tensor([0, 3]), torch.tensor([3, 1, 3]), torch.tensor([40.0, 1.0, 40.0]), (1, 5)
    )
    found = engine.clipped_sum(Batch(doubled, torch.zeros(1, 1)), PLAIN, 1.0).value
    assert float(found.double().norm()) <= 1 + 1e-6


def test_a_model_that_mixes_examples_is_not_followed_even_if_it_has_dropout():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.dropout = nn.Linear(4, 3), nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(self.layer(x - x.mean(dim=0)))

    batch = Batch(torch.randn(3, 4), torch.randn(3, 3))
    model = Mixing()
    with pytest.raises(ArgumentError, match="depends on its neighbours"):
        make_engine("one-pass", model, functional.mse_loss, Parameters(model), batch)
    assert model.training
    assert model.dropout.training


def test_a_model_whose_gradients_vanish_is_warned_about():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            x = x.detach().requires_grad_()
            return torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=True)

    model = Checkpointed()
    batch = Batch(torch.randn(3, 4), torch.randn(3, 3))
    with pytest.warns(UserWarning, match="use_reentrant=False"):
        make_engine("auto", model, functional.mse_loss, Parameters(model), batch)
