import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.nn import functional

import privada as pv
from privada import data
from privada.clipping.engine import make_engine
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.data.dummies import make_dummies
from privada.data.padding import Padding, find_padding, sizes_to_try
from privada.preconditioning import FlatScaling

PLAIN = FlatScaling(None, None)


def dummy(*shape):
    return make_dummies(Batch(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64)), 1)


@pytest.mark.parametrize(("count", "size"), [(1, 8), (7, 8), (8, 16), (20, 24)])
def test_batches_are_filled_up_with_at_least_one_dummy_example(count, size):
    padding = Padding(dummy(3), 8, 63, True)
    batch = Batch(torch.randn(count, 3), torch.ones(count, dtype=torch.int64))
    filled = padding.fill(batch)
    assert (filled.size, filled.rows, filled.dummies) == (count, size, size - count)
    assert torch.equal(filled.inputs[:count], batch.inputs)
    assert torch.equal(filled.without_dummies().targets, batch.targets)
    assert padding.fill(filled) is filled


def test_sparse_rows_are_filled_up():
    matrix = scipy.sparse.random(5, 30, 0.3, format="csr", random_state=0)
    records = data.load((matrix, np.zeros(5)), torch.float32, torch.device("cpu"))
    batch = records.fetch(np.arange(5))
    padding = Padding(make_dummies(records.example, 1), 8, 63, True)
    filled = padding.fill(batch)
    assert (filled.size, filled.rows) == (5, 8)
    assert torch.equal(filled.inputs.to_dense()[:5], batch.inputs.to_dense())


def test_rows_of_arrays_are_read_filled_up():
    inputs, targets = torch.randn(20, 3), torch.arange(20)
    records = data.load((inputs, targets), torch.float32, torch.device("cpu"))
    padding = Padding(dummy(3), 8, 63, True)
    batch, _ = records.read(np.array([4, 2, 9]), None, padding)
    assert (batch.size, batch.rows) == (3, 8)
    assert torch.equal(batch.without_dummies().inputs, inputs[[4, 2, 9]])
    assert torch.equal(batch.inputs[3:], padding.dummy.inputs.expand(5, 3))


@pytest.mark.parametrize("how", ["one-pass", "vmap"])
@pytest.mark.parametrize("shift", [None, 0.3])
def test_dummy_examples_add_nothing(how, shift):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    parameters = Parameters(model)
    scaling = PLAIN
    if shift is not None:
        scaling = FlatScaling(
            torch.full((parameters.size,), 2.0).double(),
            torch.full((parameters.size,), shift).double(),
        )
    batch = Batch(torch.randn(11, 4).double(), torch.randint(3, (11,)))
    example = make_dummies(next(batch.chunks(1)))
    sums = [
        make_engine(kind, model, functional.cross_entropy, parameters, example).clipped_sum(
            batch, scaling, 0.5
        )
        for kind in (how, "loop")
    ]
    torch.testing.assert_close(sums[0].value, sums[1].value)


def test_what_never_rounds_alike_is_known():
    """A model whose results follow from the size of the batch has no padding that helps."""
    example = make_dummies(dummy(3), 3)
    padding = find_padding(example, lambda batch: [batch.inputs * batch.rows], 256, 64)
    assert not padding.invariant


def test_a_pass_that_has_room_for_one_example_is_always_alone():
    padding = find_padding(make_dummies(dummy(3), 3), lambda batch: [batch.inputs], 1)
    assert (padding.multiple, padding.size(1), padding.invariant) == (1, 1, True)


@pytest.mark.parametrize(("engine", "said"), [("auto", True), ("loop", False)])
def test_the_statement_says_where_company_may_show(engine, said, monkeypatch):
    monkeypatch.setattr("privada.data.padding._invariant", lambda *args: False)
    trainer = pv.Trainer(
        nn.Linear(4, 2),
        functional.cross_entropy,
        (torch.randn(40, 4), torch.randint(2, (40,))),
        method=pv.methods.DPSGD(lr=0.1),
        batch_size=10,
        steps=1,
        noise_multiplier=1.0,
        delta=1e-3,
        engine=engine,
    )
    assert any("last bits" in line for line in trainer.statement().assumptions) == said


@pytest.mark.parametrize(
    ("room", "expected", "sizes"),
    [
        (1 << 20, None, [8, 128]),
        (1 << 20, 20, [8, 64]),
        (1 << 20, 256, [8, 256, 384]),
        (100, 256, [8, 64, 96]),
        (5, 256, [4, 5]),
    ],
)
def test_sizes_that_are_tried_stand_for_all(room, expected, sizes):
    assert sizes_to_try(room, expected) == sizes


def test_no_batch_is_larger_than_what_was_tried():
    tried = []

    def factors(batch):
        tried.append(batch.rows)
        return [batch.inputs]

    padding = find_padding(make_dummies(dummy(3), 3), factors, 1 << 20, 64)
    assert padding.size(padding.most) == max(tried) == 128
