"""With identical releases, everything that a run shows is identical, whatever one record is."""

import contextlib
import dataclasses
import functools
import logging
import os
import random
import sys
import warnings
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada import defaults
from privada.cli.app import main
from privada.scikit_learn import fit_registry
from tests.audits import replay
from tests.releases import paid
from tests.schemas import SCHEMA

RECORDS, ODD, FEATURES, STEPS = 16, 7, 3, 3
_RNG = np.random.default_rng(0)
INPUTS = torch.tensor(_RNG.normal(size=(RECORDS, FEATURES)), dtype=torch.float32)
LABELS = torch.arange(RECORDS) % 2
PUBLIC = (INPUTS[:6] + 1.0, LABELS[:6])


# ---------------------------------------------------------------------- odd records

# What a record makes a C library, a subprocess or os.write print is not kept in, which the library
# says; so it is not among these.


class Stop(BaseException):
    """What some library raises to end a program; not the interrupt of a user."""


def pair(x=None, y=None):
    """Return an item of a data set of pairs: an ordinary one, but for what is given."""
    return (INPUTS[ODD] if x is None else x, int(LABELS[ODD]) if y is None else y)


def raising(error):
    def item():
        raise error

    return item


def warning():
    warnings.warn(f"record {ODD} has a strange encoding", stacklevel=1)
    return pair()


def printing():
    print(f"record {ODD} is odd")
    print(f"record {ODD} is odd", file=sys.stderr)
    return pair()


def logs():
    logging.getLogger("library").error("record %d is odd", ODD)
    logging.getLogger("library").debug("record %d is odd", ODD)
    return pair()


def drawing():
    torch.rand(5)
    np.random.rand(5)  # noqa: NPY002
    random.random()
    return pair()


def seeding():
    torch.manual_seed(ODD)
    np.random.seed(ODD)  # noqa: NPY002
    random.seed(ODD)
    return pair()


class Thing:
    """Neither a number nor an array."""


PAIRS = {
    "list": lambda: list(pair()),
    "three parts": lambda: (*pair(), 0),
    "one part": lambda: (pair()[0],),
    "not a pair": lambda: INPUTS[ODD],
    "float64": lambda: pair(INPUTS[ODD].double()),
    "float16": lambda: pair(INPUTS[ODD].half()),
    "whole numbers": lambda: pair(torch.tensor([1, 2, 3])),
    "truths": lambda: pair(torch.tensor([True, False, True])),
    "complex": lambda: pair(INPUTS[ODD].to(torch.complex64)),
    "array": lambda: pair(INPUTS[ODD].numpy()),
    "numbers": lambda: pair([1.0, 2.0, 3.0]),
    "longer": lambda: pair(torch.ones(FEATURES + 1)),
    "shorter": lambda: pair(torch.ones(FEATURES - 1)),
    "more dimensions": lambda: pair(torch.ones(1, FEATURES)),
    "no dimensions": lambda: pair(torch.tensor(1.0)),
    "empty": lambda: pair(torch.empty(0)),
    "ragged": lambda: pair([[1.0], [2.0, 3.0]]),
    "words": lambda: pair("odd"),
    "object": lambda: pair(Thing()),
    "None": lambda: None,
    "no input": lambda: (None, 0),
    "no label": lambda: (INPUTS[ODD], None),
    "label of words": lambda: pair(y="odd"),
    "label that is no class": lambda: pair(y=5),
    "negative label": lambda: pair(y=-1),
    "fractional label": lambda: pair(y=0.5),
    "vector of labels": lambda: pair(y=torch.tensor([0, 1])),
    "huge": lambda: pair(torch.full((FEATURES,), 1e30)),
    "beyond float32": lambda: pair(torch.full((FEATURES,), 1e300, dtype=torch.float64)),
    "NaN": lambda: pair(torch.full((FEATURES,), float("nan"))),
    "infinite": lambda: pair(torch.full((FEATURES,), float("inf"))),
    "trained": lambda: pair(INPUTS[ODD].clone().requires_grad_()),
    "sparse": lambda: pair(INPUTS[ODD].to_sparse()),
    "raises": raising(ValueError(f"record {ODD} cannot be read")),
    "raises StopIteration": raising(StopIteration(f"record {ODD}")),
    "raises our own error": raising(pv.DataError(f"record {ODD}")),
    "runs out of memory": raising(MemoryError(f"record {ODD}")),
    "exits": raising(SystemExit(f"record {ODD}")),
    "stops": raising(Stop(f"record {ODD}")),
    "warns": warning,
    "prints": printing,
    "logs": logs,
    "draws": drawing,
    "seeds": seeding,
}


# What the optional entry does is not nothing: without it all gradients of a batch turn round.
SCALE = torch.tensor([-1.0])


def entries(**changes):
    """Return an item of a data set of dictionaries: an ordinary one, but for what is given."""
    return ({"x": INPUTS[ODD], "scale": SCALE} | changes, int(LABELS[ODD]))


DICTS = {
    "lacks an optional key": lambda: ({"x": INPUTS[ODD]}, int(LABELS[ODD])),
    "has another key": lambda: entries(extra=torch.ones(2)),
    "OrderedDict": lambda: (OrderedDict(entries()[0]), int(LABELS[ODD])),
    "another order": lambda: (dict(reversed(entries()[0].items())), int(LABELS[ODD])),
    "None for a key": lambda: entries(scale=None),
    "a longer entry": lambda: entries(scale=torch.ones(4)),
    "no dictionary": lambda: (INPUTS[ODD], int(LABELS[ODD])),
    "NaN in an entry": lambda: entries(scale=torch.tensor([float("nan")])),
}


def augmented(index=ODD):
    """Return an item of a data set that draws from all of the process's generators."""
    shift = torch.randn(FEATURES) + random.gauss(0, 1)
    return INPUTS[index] + shift + torch.tensor(np.random.randn(FEATURES)), int(LABELS[index])  # noqa: NPY002


def drawing_more():
    drawing()
    return augmented()


def seeding_first():
    seeding()
    return augmented()


AUGMENTED = {
    "draws more": drawing_more,
    "draws nothing": pair,
    "seeds first": seeding_first,
    "draws and raises": lambda: (drawing(), raising(ValueError(f"record {ODD}"))()),
}
KINDS = {"pair": PAIRS, "dict": DICTS, "augmented": AUGMENTED}
ODDITIES = [(kind, name) for kind in ("pair", "dict") for name in KINDS[kind]]
# One or two of each sort, where the parts that differ do not look at records.
FEW = [
    *(("pair", name) for name in ("longer", "huge", "NaN", "object", "raises", "exits", "warns",
                                  "prints", "draws", "label that is no class")),
    *(("dict", name) for name in ("lacks an optional key", "OrderedDict")),
]  # fmt: skip


class Items:
    """A map-style data set with one record that may be odd."""

    def __init__(self, kind, odd, size=RECORDS, place=ODD):
        self._kind, self._odd, self._size, self._place = kind, odd, size, place

    def __len__(self):
        return self._size

    def __getitem__(self, index):
        if index == self._place and self._odd is not None:
            return KINDS[self._kind][self._odd]()
        if self._kind == "augmented":
            return augmented(index)
        x, y = INPUTS[index % RECORDS], int(LABELS[index % RECORDS])
        return (x, y) if self._kind == "pair" else ({"x": x, "scale": SCALE}, y)


class Scaled(nn.Module):
    """A linear model with an optional input beside the first."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, 2)

    def forward(self, x, scale=None):
        return self.linear(x if scale is None else x * scale)


def model_for(kind):
    """Return the same model each time."""
    torch.manual_seed(1)
    return Scaled() if kind == "dict" else nn.Linear(FEATURES, 2)


# A record is in every sample of the others that is there at all, or in none; this one takes all.
SAMPLED = tuple(name for name in pv.methods.names() if name != "newton")


def method_of(name):
    """Return a method with what it needs."""
    needed = {
        "public": PUBLIC,
        "preconditioner": pv.preconditioning.isotropic(),
        "adaptive_lr": 0.1,
    }
    if name == "dp2-rmsprop":
        needed |= {"plain": 1, "adaptive": 1}
    kind = pv.methods.get(name)
    fields = kind.__dataclass_fields__
    return kind(lr=0.1, **{key: value for key, value in needed.items() if key in fields})


SETTINGS = {"batch_size": 4, "steps": STEPS, "noise_multiplier": 2.0, "delta": 1e-3}


# ---------------------------------------------------------------------- the trainer


class PublicItems:
    """Public examples as dictionaries."""

    def __len__(self):
        return len(PUBLIC[0])

    def __getitem__(self, index):
        return {"x": PUBLIC[0][index], "scale": SCALE}, int(PUBLIC[1][index])


def trained(name, kind, odd, **files):
    """Train, and return all that the trainer shows."""
    method = method_of(name)
    if kind == "dict" and "public" in method.__dataclass_fields__:
        method = dataclasses.replace(method, public=PublicItems())
    all_of_them = {"sampling": "everyone", "batch_size": RECORDS} if name == "newton" else {}
    trainer = pv.Trainer(
        model_for(kind), nn.CrossEntropyLoss(), Items(kind, odd), method=method,
        ledger=files.get("ledger"), **SETTINGS | all_of_them,
    )  # fmt: skip
    trainer.fit(checkpoint=files.get("checkpoint"))
    return replay.shown(trainer)


def trained_with_files(name, kind, odd):
    """Train with a ledger and a checkpoint on the disk."""
    return trained(name, kind, odd, ledger="l.ledger", checkpoint="run.pt")


@functools.cache
def without(work, *settings):
    """Return the run in whose samples the record is not."""
    found = replay.run(functools.partial(work, *settings, None), odd=ODD, there=False)
    assert found.raised == ""
    assert len(found.releases) >= STEPS
    return found


def audited(work, *settings):
    """Return what tells that the odd record, the last of the settings, is there."""
    first = without(work, *settings[:-1])
    second = replay.run(functools.partial(work, *settings), odd=ODD, played=first.releases)
    return replay.differences(first, second)


def crossed(first, second, every):
    """Return all pairs: one in `every`, spread evenly, runs by default, the others when slow."""
    return [
        pytest.param(
            *(a if isinstance(a, tuple) else (a,)),
            *(b if isinstance(b, tuple) else (b,)),
            marks=() if (i + j) % every == 0 else pytest.mark.slow,
        )
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]


@pytest.mark.parametrize(("name", "kind", "odd"), crossed(SAMPLED, ODDITIES, 6))
def test_the_trainer(name, kind, odd):
    assert audited(trained, name, kind, odd) == []


@functools.cache
def ordinary(work, *settings, always=None):
    """Return the run in which the record is an ordinary one."""
    found = replay.run(functools.partial(work, *settings, None), odd=always)
    assert found.raised == ""
    assert len(found.releases) >= STEPS
    return found


def exchanged(work, *settings, moves, always=None):
    """Return what tells that a record was exchanged for the odd one, the last of the settings.

    If its index is given, the record is in every sample.
    """
    first = ordinary(work, *settings[:-1], always=always)
    second = replay.run(functools.partial(work, *settings), odd=always, played=first.releases)
    return replay.differences(first, second, moves)


@pytest.mark.parametrize("odd", PAIRS)
def test_the_second_moments_and_the_steps_of_newton(odd):
    assert exchanged(trained, "newton", "pair", odd, moves=2.0) == []


@pytest.mark.parametrize(("name", "odd"), crossed(SAMPLED, AUGMENTED, 3))
def test_augmentation(name, odd):
    assert exchanged(trained, name, "augmented", odd, moves=2.0, always=ODD) == []


@pytest.mark.parametrize("name", ["dp-adam", "adadp", "adp-sgd", "pagan", "dp2-rmsprop"])
@pytest.mark.parametrize(("kind", "odd"), FEW, ids=lambda v: v)
def test_what_the_trainer_writes(name, kind, odd):
    assert set(without(trained_with_files, name, kind).files) == {"l.ledger", "run.pt"}
    assert audited(trained_with_files, name, kind, odd) == []


ENGINES = ("vmap", "loop", "one-pass")
CLIPPINGS = {"automatic": pv.clipping.automatic, "threshold": pv.clipping.threshold}


def by_engine(engine, clipping, kind, odd):
    """Train by one engine and one way of clipping."""
    trainer = pv.Trainer(
        model_for(kind), nn.CrossEntropyLoss(), Items(kind, odd), engine=engine,
        method=pv.methods.DPSGD(lr=0.1, clipping=CLIPPINGS[clipping]()), **SETTINGS,
    )  # fmt: skip
    return replay.shown(trainer.fit())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize(("kind", "odd"), FEW, ids=lambda v: v)
def test_every_engine(engine, clipping, kind, odd):
    assert audited(by_engine, engine, clipping, kind, odd) == []


# ---------------------------------------------------------------------- the loop


def looped(optimizer, kind, odd):
    """Train by a loop, and return all that it shows."""
    model = model_for(kind)
    controller = pv.updates.step_doubling(0.1, 1.0) if optimizer == "controlled" else None
    chosen = torch.optim.Adam if optimizer == "Adam" else torch.optim.SGD
    loop = pv.PrivateLoop(
        model, chosen(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), Items(kind, odd),
        clip=1.0, controller=controller, **SETTINGS,
    )  # fmt: skip
    tokens, optimizer, criterion, loader = loop
    for x, y in loader:
        optimizer.zero_grad()
        criterion(tokens(x), y).backward()
        optimizer.step()
    return replay.shown(loop)


@pytest.mark.parametrize(("kind", "odd"), ODDITIES, ids=lambda v: v)
def test_the_loop(kind, odd):
    assert audited(looped, "SGD", kind, odd) == []


@pytest.mark.parametrize("optimizer", ["Adam", "controlled"])
@pytest.mark.parametrize(("kind", "odd"), FEW, ids=lambda v: v)
def test_the_loop_with_another_optimiser(optimizer, kind, odd):
    assert audited(looped, optimizer, kind, odd) == []


# ---------------------------------------------------------------------- estimators

# Arrays are checked for values that are not finite before anything is charged, which the page on
# sharp edges says; so the records here are odd by their size alone.
ROWS = {
    "huge": [1e30] * FEATURES,
    "zero": [0.0] * FEATURES,
    "one large value": [0.0, 0.0, 1e18],
    "tiny": [1e-300] * FEATURES,
}


def fitted(estimator, name, odd):
    """Fit an estimator, and return all that it shows."""
    fit_registry.forget_fits()  # each fit is one of its own world
    x, y = INPUTS.double().numpy().copy(), LABELS.numpy()
    if odd is not None:
        x[ODD] = ROWS[odd]
    common = {
        "epsilon": 5.0, "delta": 1e-3, "method": method_of(name), "bounds": (-3, 3),
        "batch_size": 4, "epochs": 0.75,
    }  # fmt: skip
    if estimator == "classifier":
        made = pv.PrivateClassifier(classes=[0, 1], **common)
    else:
        made = pv.PrivateRegressor(target_bounds=(0, 1), **common)
    made.fit(x, y)
    shown = {key: value for key, value in vars(made).items() if key.endswith("_")}
    shown["statement_"] = shown["statement_"].to_dict()
    return {
        **{key: value for key, value in shown.items() if key not in ("model_", "module_")},
        "predictions": made.predict(INPUTS.double().numpy()),
    }


@pytest.mark.parametrize("estimator", ["classifier", "regressor"])
@pytest.mark.parametrize("odd", ROWS)
def test_the_estimators(estimator, odd):
    assert audited(fitted, estimator, "dp-adam-wosm", odd) == []


ALONE = [n for n in SAMPLED if "pub" not in n and n[:2] != "pd"]


@pytest.mark.parametrize("name", ALONE)
def test_the_classifier_by_every_method_that_needs_no_public_examples(name):
    assert audited(fitted, "classifier", name, "huge") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("estimator", ["classifier", "regressor"])
@pytest.mark.parametrize("odd", ROWS)
def test_the_estimators_by_every_method(estimator, name, odd):
    assert audited(fitted, estimator, name, odd) == []


# ---------------------------------------------------------------------- the search


def searched(how, place, odd):
    """Choose among two settings of DP-SGD, and return all that the search shows."""
    return searched_by("dp-sgd", how, place, odd)


def searched_by(name, how, place, odd):
    """Choose among two settings of a method, and return all that the search shows."""

    def recipe(lr):
        return pv.selection.Candidate(
            model_for("pair"), nn.CrossEntropyLoss(),
            dataclasses.replace(method_of(name), lr=lr), batch_size=4, steps=2,
        )  # fmt: skip

    # the first half is trained on, the other is scored
    found = pv.selection.select(
        recipe, Items("pair", odd, 2 * RECORDS, place), space={"lr": [0.1, 0.5]},
        validation=np.arange(RECORDS, 2 * RECORDS), noise_multiplier=3.0, delta=1e-3, how=how,
        candidates=2, score_noise=3.0,
    )  # fmt: skip
    return {
        "state": dict(found.model.state_dict()),
        "settings": found.settings,
        "score": found.score,
        "statement": found.statement.to_dict(),
        "tried": [(each.settings, each.score) for each in found.tried],
    }


WAYS = ("compose-pld", "repeat-geometric")


@pytest.mark.parametrize(("how", "odd"), crossed(WAYS, PAIRS, 3))
def test_the_search_that_trains_on_the_record(how, odd):
    assert audited(searched, how, ODD, odd) == []


@pytest.mark.parametrize(
    ("name", "odd"), crossed(SAMPLED, [odd for kind, odd in FEW if kind == "pair"], 20)
)
def test_the_search_by_every_method(name, odd):
    assert audited(searched_by, name, "compose-pld", ODD, odd) == []


@pytest.mark.parametrize(("how", "odd"), crossed(WAYS, PAIRS, 3))
def test_the_search_that_scores_the_record(how, odd):
    # a score is between 0 and 1, so that one for another moves the sum by one at most
    assert exchanged(searched, how, RECORDS + ODD, odd, moves=1.0) == []


# ---------------------------------------------------------------------- the command line

TABLE_ROWS = 200
# Cells that cannot be what the schema says are refused before anything is charged, as the page on
# tables says; these can be.
CELLS = {
    "missing number": ",a,no",
    "missing category": "50.0,,no",
    "all missing but the target": ",,no",
    "huge": "1e30,a,no",
    "beyond floats": "1e308,a,no",
    "below its bound": "-1e30,a,no",
    "spaces": "  50.0 , a , no ",
    "quoted": '"50.0","a","no"',
    "another target": "50.0,a,yes",
    "many digits": f"{'1' * 300}.5,b,no",
}


def _by_name():
    """Return the methods that a command makes from a learning rate and a clip norm."""
    for name in SAMPLED:
        with contextlib.suppress(pv.ArgumentError):
            yield defaults.named(name, lr=0.1, clip=1.0).name


COMMANDED = list(_by_name())


def commanded(command, folder, odd, method="dp-adam-wosm"):
    """Run a command on a table in a folder that is not looked at, and return its exit code."""
    rng = np.random.default_rng(0)
    lines = ["age,ward,sick"]
    for _ in range(TABLE_ROWS):
        age, ward = rng.uniform(0, 100), rng.choice(["a", "b"])
        lines.append(f"{age:.1f},{ward},{'yes' if age > 50 else 'no'}")
    if odd is not None:
        lines[1 + ODD] = CELLS[odd]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    (folder / "s.toml").write_text(SCHEMA)
    asked = [command, folder / "t.csv", "--schema", folder / "s.toml", "--epsilon", "3",
             "--output", "out", "--epochs", "2", "--batch-size", "80",
             "--method", method]  # fmt: skip
    if command == "train" and method != "dp-adam-wosm":
        asked += ["--lr", "0.1", "--clip", "1"]
    if command == "tune":
        asked += ["--set", "lr=0.1,1", "--set", "clip=1", "--how", "compose-pld",
                  "--validation", "0.5"]  # fmt: skip
    with mock.patch.object(sys, "argv", ["privada", *map(str, asked)]):
        try:
            main()
        except SystemExit as stopped:
            return {"code": stopped.code}
    return {"code": 0}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.mark.parametrize("odd", CELLS)
def test_the_command_that_trains(odd, tables):
    assert without(commanded, "train", tables).result == {"code": 0}
    assert audited(commanded, "train", tables, odd) == []


@pytest.mark.parametrize("odd", CELLS)
def test_the_command_that_searches(odd, tables):
    assert ordinary(commanded, "tune", tables).result == {"code": 0}
    # who is trained on is drawn, so the record is exchanged for another and not left out
    assert exchanged(commanded, "tune", tables, odd, moves=2.0) == []


def trained_by(name, folder, odd):
    return commanded("train", folder, odd, name)


def searched_for(name, folder, odd):
    return commanded("tune", folder, odd, name)


@pytest.mark.parametrize(("name", "odd"), crossed(COMMANDED, CELLS, 24))
def test_the_command_that_trains_by_every_method(name, odd, tables):
    assert audited(trained_by, name, tables, odd) == []


@pytest.mark.parametrize(("name", "odd"), crossed(COMMANDED, CELLS, 24))
def test_the_command_that_searches_by_every_method(name, odd, tables):
    assert exchanged(searched_for, name, tables, odd, moves=2.0) == []


# ---------------------------------------------------------------------- the audit itself


def leaking(how, odd):
    """Do what a library must not do, in one way or another."""
    shown = trained("dp-sgd", "pair", None)
    if odd is not None:
        how()
    return shown


def write_a_file():
    Path("note.txt").write_text("odd", encoding="utf-8")


def release_once_more():
    noise = pv.noise.GaussianNoise()
    noise.release(pv.ClippedSum(torch.ones(2), 1.0), paid(), 1)


LEAKS = {
    "out": lambda: print("odd"),
    "out, below Python": lambda: os.write(2, b"odd"),
    "raised": raising(ValueError("odd")),
    "raised, by an exit": raising(SystemExit(3)),
    "logged": lambda: logging.getLogger("x").debug("odd"),
    "warned": lambda: warnings.warn("odd", stacklevel=1),
    "files": write_a_file,
    "generators": lambda: torch.rand(1),
    "generators, NumPy's": lambda: np.random.rand(),  # noqa: NPY002
    "generators, random's": random.random,
    "number of releases": release_once_more,
}


@pytest.mark.parametrize("name", LEAKS)
def test_the_audit_notices(name):
    found = audited(leaking, LEAKS[name], "odd")
    assert any(each.startswith(name.partition(",")[0]) for each in found), found


def test_the_audit_notices_a_sum_that_moves_too_far():
    first = without(trained, "dp-sgd", "pair")
    assert replay.differences(first, first) == []
    moved = dataclasses.replace(first.releases[1], before=first.releases[1].before + 1.0)
    second = dataclasses.replace(first, releases=[first.releases[0], moved, first.releases[2]])
    assert any("moved by" in each for each in replay.differences(first, second))
    changed = dataclasses.replace(first, result={**first.result, "steps": 2})
    assert replay.differences(first, changed) == ["result: ['steps']"]
