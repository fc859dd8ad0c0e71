"""With identical releases everything observable is identical, whatever one record does."""

import logging
import random
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import privada as pv
from tests.methods.problem import CLASSES, CLIP, FEATURES, RECORDS, SIGMA, X, Y
from tests.methods.test_charges import METHODS, made

ODD = 5


class Records(Dataset):
    """Dictionaries, one of which is what `odd` makes of it. All draw random numbers."""

    def __init__(self, odd):
        self.odd = odd

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        jitter = torch.rand(FEATURES) + float(np.random.rand()) + random.random()  # noqa: NPY002
        record = {"x": torch.as_tensor(X[index]) + jitter}, int(Y[index])
        return self.odd(*record) if index == ODD else record


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES).double()

    def forward(self, x, more=None):
        return self.layer(nn.functional.dropout(x, 0.1, self.training))


def raising(error):
    def odd(inputs, target):
        raise error

    return odd


def shouting(then):
    def odd(inputs, target):
        secret = f"record {ODD} has {target}"
        warnings.warn(secret, stacklevel=1)
        logging.getLogger("library").critical(secret)
        print(secret)
        print(secret, file=sys.stderr)
        torch.rand(99), np.random.rand(99), random.random()  # noqa: NPY002
        return then(inputs, target)

    return odd


# All of these count as zero.
ODDITIES = {
    "raises": raising(ValueError("private")),
    "exits": raising(SystemExit(3)),
    "claims an interrupt": raising(KeyboardInterrupt()),
    "warns, logs, prints and raises": shouting(raising(OSError("private"))),
    "missing name": lambda inputs, target: ({}, target),
    "other type": lambda inputs, target: ("text", target),
    "other shape": lambda inputs, target: ({"x": torch.ones(FEATURES + 1)}, target),
    "the model fails": lambda inputs, target: (inputs, CLASSES + 7),
}


def positions():
    numpy = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2:], random.getstate()


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record.getMessage())


def observed(run, capsys):
    """Return everything that can be seen of a run, its exception included."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    handler, raised, seen = Heard(), None, None
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                seen = run()
            except BaseException as error:
                raised = type(error), str(error)
    finally:
        logging.getLogger().removeHandler(handler)
    heard = [str(each.message) for each in said], handler.records, capsys.readouterr()
    return seen, raised, heard, positions()


def values(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


SETTINGS = {"batch_size": RECORDS - 4, "noise_multiplier": SIGMA, "delta": 1e-3, "seed": 4}


def trained(odd, method):
    run = pv.Trainer(
        Model(), nn.CrossEntropyLoss(), Records(odd), method=method, steps=4, **SETTINGS
    ).fit()
    return values(run.model), run.history, run.ledger.totals()


def looped(odd, clipping):
    net = Model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    loop = pv.PrivateLoop(
        net, optimizer, nn.CrossEntropyLoss(), Records(odd), clip=CLIP, clipping=clipping,
        steps=4, **SETTINGS,
    )  # fmt: skip
    for _ in range(4):
        for x, y in loop.loader:
            loop.criterion(loop.model(x), y).backward()
            optimizer.step()
    return values(net), loop.epsilon()


def searched(odd, scored):
    def recipe(lr):
        return pv.selection.Candidate(
            Model(), nn.CrossEntropyLoss(), pv.methods.DPSGD(lr=lr, clip=CLIP),
            batch_size=6, steps=3,
        )  # fmt: skip

    found = pv.selection.select(
        recipe, Records(odd), space=[{"lr": 0.1}, {"lr": 0.5}], validation=scored,
        score=pv.selection.accuracy(), noise_multiplier=SIGMA, score_noise=2.0, delta=1e-3, seed=3,
    )  # fmt: skip
    return values(found.model), found.settings, found.statement.epsilon


def same_for_all(run, capsys):
    first, *others = [observed(lambda odd=odd: run(odd), capsys) for odd in ODDITIES.values()]
    assert first[1] is None
    assert first[2] == ([], [], ("", ""))
    for name, other in zip(list(ODDITIES)[1:], others, strict=True):
        assert other == first, name


# Newton's method takes plain linear models alone; test_replay.py compares its runs.
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"newton"}))
def test_a_method_shows_nothing_of_what_an_odd_record_does(name, capsys):
    same_for_all(lambda odd: trained(odd, made(name)), capsys)


@pytest.mark.parametrize("clipping", [pv.clipping.threshold(), pv.clipping.microbatches(4)])
def test_a_loop_of_ones_own_shows_nothing_of_it(clipping, capsys):
    same_for_all(lambda odd: looped(odd, clipping), capsys)


@pytest.mark.parametrize("first", [0, 12])
def test_a_search_shows_nothing_of_it(first, capsys):
    """Whether the record is scored or trained on."""
    same_for_all(lambda odd: searched(odd, np.arange(first, first + 8)), capsys)
