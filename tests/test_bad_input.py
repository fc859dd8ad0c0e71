"""A wrong value gets an error that names it, before anything is read or charged."""

import functools
import inspect
import json

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import privada as pv
from tests.train.test_trainer import LOSS, Pairs, problem, trainer, zeroed

X, Y = problem()
NAN = float("nan")


def with_value(value):
    x = X.copy()
    x[3, 2] = value
    return x


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield X[0], 0


class Singles:
    def __len__(self):
        return 200

    def __getitem__(self, i):
        return i


ARGUMENTS = [
    ({"batch_size": 0}, "batch_size", "0"),
    ({"batch_size": -3}, "batch_size", "-3"),
    ({"batch_size": NAN}, "batch_size", "nan"),
    ({"batch_size": "many"}, "batch_size", "many"),
    ({"batch_size": 201}, "batch_size", "201"),
    ({"batch_size": 2.5, "sampling": "fixed-size"}, "batch_size", "2.5"),
    ({"steps": 0}, "steps", "0"),
    ({"steps": 2.5}, "steps", "2.5"),
    ({"steps": True}, "steps", "True"),
    ({"epochs": 1}, "epochs", "both"),
    ({"steps": None}, "epochs", "neither"),
    ({"steps": None, "epochs": -1}, "epochs", "-1"),
    ({"noise_multiplier": 0}, "noise_multiplier", "0"),
    ({"noise_multiplier": -1.0}, "noise_multiplier", "-1.0"),
    ({"noise_multiplier": float("inf")}, "noise_multiplier", "inf"),
    ({"noise_multiplier": None}, "budget", "neither"),
    ({"budget": pv.Budget(1, 1e-3)}, "budget", "both"),
    ({"noise_multiplier": None, "budget": 1.0}, "budget", "1.0"),
    ({"noise_multiplier": None, "budget": pv.Budget(1, 1e-5)}, "delta", "0.001"),
    ({"delta": 0.0}, "delta", "0.0"),
    ({"delta": 1.0}, "delta", "1.0"),
    ({"delta": None}, "delta", "None"),
    ({"sampling": "shuffle"}, "sampling", "shuffle"),
    ({"seed": -1}, "seed", "-1"),
    ({"seed": "x"}, "seed", "x"),
    ({"population": 0}, "population", "0"),
    ({"population": 300, "sampling": "fixed-size"}, "population", "fixed-size"),
    ({"ledger": 7}, "ledger", "7"),
    ({"method": "dp-sgd"}, "method", "dp-sgd"),
    ({"engine": "warp"}, "engine", "warp"),
]


@pytest.mark.parametrize(("changes", "name", "value"), ARGUMENTS, ids=lambda v: str(v)[:40])
def test_a_bad_argument_is_named_with_its_value(changes, name, value):
    settings = {
        "method": pv.methods.DPSGD(lr=0.5),
        "batch_size": 20,
        "steps": 10,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    } | changes
    model = zeroed()
    with pytest.raises(pv.ArgumentError) as caught:
        pv.Trainer(model, LOSS, (X, Y), **settings)
    assert name in str(caught.value)
    assert value in str(caught.value)
    assert torch.equal(model.weight, torch.zeros(3, 5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pv.methods.DPSGD(lr=1.0, clip=-1), r"Expected clip > 0, got clip=-1\."),
        (lambda: pv.methods.DPSGD(lr=1.0, clip=NAN), "clip"),
        (lambda: pv.methods.DPSGD(lr=0), "lr"),
        (lambda: pv.methods.DPSGD(lr="fast"), "lr"),
        (lambda: pv.Budget(0, 1e-5), "epsilon"),
        (lambda: pv.Budget(float("inf"), 1e-5), "epsilon"),
        (lambda: pv.Budget(1, 0), "delta"),
        (lambda: pv.Budget(1, 1), "delta"),
        (lambda: pv.methods.get("dp-magic"), "dp-magic"),
        (lambda: pv.Ledger(None, (1.0, 1e-5)), "Budget"),
    ],
)
def test_a_bad_part_is_named(make, message):
    with pytest.raises(pv.ArgumentError, match=message):
        make()


# ---------------------------------------------------------------------- every argument


def a_scheduler():
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 1)


RUBBISH = {
    "None": None,
    "words": "x",
    "bytes": b"0.1",
    "a class": torch.optim.lr_scheduler.StepLR,
    "a scheduler": a_scheduler(),
    "NaN": NAN,
    "infinity": float("inf"),
    "negative": -1.5,
    "beyond floats": 10**400,
    "a bool": True,
    "complex": 1j,
    "a list": [0.1],
    "a dict": {"a": 1},
    "a vector": torch.ones(3),
    "a matrix": np.ones((2, 2)),
    "trained": torch.tensor(0.5, requires_grad=True),
    "an object": object(),
    "a function of words": lambda step: "x",
    "a function that raises": lambda step: 1 / 0,
}
PUBLIC = (torch.tensor(X[:8]), torch.tensor(Y[:8]))
NEEDED = {
    "lr": 0.1,
    "adaptive_lr": 0.1,
    "public": PUBLIC,
    "preconditioner": pv.preconditioning.isotropic(),
}
# By the argument, what of the above is a value that it takes. Public examples are looked at when
# there is a model for them.
TAKEN = {
    **{name: {"a bool"} for name in ("accept", "averaging", "corrected", "denoised")},
    **{
        name: {"None"}
        for name in ("tolerance", "power", "divisor", "alpha", "onto", "weight", "epochs",
                     "population", "budget", "controller", "groups", "rows_per_unit", "executor",
                     "noise", "schedule", "schema", "stopping", "validation")
    },
    **{name: {"beyond floats"} for name in ("plain", "dimensions", "every")},
    **{name: {"None", "beyond floats"} for name in ("freeze", "epoch", "microbatch", "seed")},
    **{name: {"None", "words"} for name in ("ledger", "resume", "run")},
    "preconditioner": {"None"},  # of a method that has none of its own
    "adaptive": {"a bool", "beyond floats"},
    "public": set(RUBBISH),
    "unit": {"words"},
    # a function of the model is tried on the model, in tests of its own
    "public_term": {"None", "a function of words", "a function that raises"},
}  # fmt: skip


def made_trainer(**changes):
    settings = {
        "model": zeroed(), "loss": LOSS, "data": (X, Y), "method": pv.methods.DPSGD(lr=0.5),
        "batch_size": 20, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-3,
    } | changes  # fmt: skip
    return pv.Trainer(**settings)


def made_loop(**changes):
    model = changes.get("model", zeroed())
    settings = {
        "model": model, "loss": LOSS, "data": (X, Y), "clip": 1.0,
        "optimizer": torch.optim.SGD(zeroed().parameters(), lr=0.1),
        "batch_size": 20, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-3,
    } | changes  # fmt: skip
    if isinstance(model, nn.Module) and "optimizer" not in changes:
        settings["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    return pv.PrivateLoop(**settings)


def calls():
    """Every argument of every method, of the trainer and of the loop, with what makes it."""
    for name in pv.methods.names():
        kind = pv.methods.get(name)
        arguments = inspect.signature(kind).parameters
        rest = {a: NEEDED[a] for a, p in arguments.items() if p.default is p.empty}
        for argument in arguments:
            yield f"{name}.{argument}", argument, functools.partial(kind, **rest)
    for title, kind, make in (
        ("Trainer", pv.Trainer, made_trainer),
        ("PrivateLoop", pv.PrivateLoop, made_loop),
    ):
        for argument in inspect.signature(kind).parameters:
            # how records may be given is tested elsewhere; without a geometry there is one
            if argument not in ("data", "example", "transform", "collate", "preconditioner"):
                yield f"{title}.{argument}", argument, make
    yield "Budget.epsilon", "epsilon", functools.partial(pv.Budget, delta=1e-3)
    yield "Budget.delta", "delta", functools.partial(pv.Budget, epsilon=1.0)
    updates = pv.updates
    for make, rest in (
        (updates.scheduled, {}), (updates.inverse_sqrt, {}), (updates.decaying, {}),
        (updates.cosine, {"steps": 3}), (updates.falling, {"steps": 3}),
        (updates.warmed_up, {"steps": 3}), (updates.step_doubling, {"tolerance": 0.1}),
        (updates.from_torch, {"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1)}),
    ):  # fmt: skip
        yield f"{make.__name__}.lr", "lr", functools.partial(make, **rest)


CALLS = {title: (argument, make) for title, argument, make in calls()}


@pytest.mark.parametrize(("argument", "make"), CALLS.values(), ids=CALLS)
def test_rubbish_is_an_error_that_names_the_argument_and_says_what_to_give(argument, make):
    for kind, value in RUBBISH.items():
        functions = {"a function of words", "a function that raises"}
        if kind in TAKEN.get(argument, ()) or (argument == "loss" and kind in functions):
            continue
        with pytest.raises((pv.ArgumentError, pv.LedgerError)) as caught:
            make(**{argument: value})
        said = str(caught.value)
        assert argument in said or "neither" in said or "both" in said, (kind, said)
        assert len(said) < 500, kind
        assert "tensor(" not in said, kind  # no values of what may be data


@pytest.mark.parametrize(
    "kind", [np.float32, np.float64, torch.tensor, np.array], ids=["f32", "f64", "tensor", "array"]
)
def test_numbers_of_numpy_and_torch_are_numbers(kind):
    plain, given = made_trainer(seed=3), None
    method = pv.methods.DPSGD(lr=kind(0.5), clip=kind(1.0))
    given = made_trainer(
        method=method, batch_size=kind(20.0), noise_multiplier=kind(1.0), seed=np.int64(3),
        steps=torch.tensor(3), delta=1e-3,
    )  # fmt: skip
    assert torch.equal(plain.fit().model.weight, given.fit().model.weight)
    assert plain.epsilon() == given.epsilon()
    json.loads(given.statement().to_json())
    assert pv.Budget(kind(1.0), kind(0.25)) == pv.Budget(1.0, 0.25)


def test_a_scheduler_as_a_learning_rate_is_told_how_to_be_one():
    for given in (torch.optim.lr_scheduler.StepLR, a_scheduler()):
        with pytest.raises(pv.ArgumentError, match=r"from_torch\(lambda optimizer: .*StepLR"):
            pv.methods.DPSGD(lr=given)
    for scheduler in (torch.optim.lr_scheduler.StepLR, a_scheduler(), None, lambda o: o,
                      torch.optim.lr_scheduler.ReduceLROnPlateau):  # fmt: skip
        with pytest.raises(pv.ArgumentError, match="scheduler"):
            pv.updates.from_torch(scheduler, lr=0.1)


def test_a_plan_that_no_memory_holds_is_refused():
    for changes in ({"steps": 10**12}, {"steps": None, "epochs": 1e300}):
        with pytest.raises(pv.ArgumentError, match="at most 100,000,000 steps"):
            made_trainer(**changes)


PARTS = {
    "rule": (lambda v: pv.methods.Parts(v, pv.updates.scheduled(0.1)), "rule"),
    "controller": (lambda v: pv.methods.Parts(pv.updates.sgd(), v), "controller"),
    "onto": (pv.updates.sgd, "onto"),
    "averaged": (pv.updates.averaged, "rule"),
    "factors": (pv.noise.Schedule, "factors"),
    "scales": (pv.preconditioning.diagonal, "scales"),
    "sigma": (pv.preconditioning.known_moments, "sigma"),
    "by feature": (pv.preconditioning.by_feature, "scales"),
    "frequency": (pv.preconditioning.token_frequency, "counts"),
    "source": (lambda v: pv.preconditioning.diagonal(1.0, source=v), "source"),
    "restore": (lambda v: pv.preconditioning.diagonal(1.0, restore=v), "restore"),
}


@pytest.mark.parametrize(("make", "name"), PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("kind", ["bytes", "a class", "an object", "a function of words"])
def test_a_part_of_the_wrong_kind_is_named(make, name, kind):
    with pytest.raises(pv.ArgumentError, match=f"Expected {name} "):
        make(RUBBISH[kind])


DATA = {
    "NaN": ((with_value(NAN), Y), "finite inputs"),
    "infinity": ((with_value(np.inf), Y), "finite inputs"),
    "NaN target": ((X, np.where(Y == 0, np.nan, Y.astype(float))), "finite targets"),
    "NaN in a sparse matrix": ((scipy.sparse.csr_matrix(with_value(NAN)), Y), "finite inputs"),
    "label too large": ((X, Y + 1), "labels from 0 to 2"),
    "negative label": ((X, Y - 1), "labels from 0 to 2"),
    "no records": ((X[:0], Y[:0]), "at least one record"),
    "fewer targets": ((X, Y[:-1]), "200 inputs and 199 targets"),
    "three parts": ((X, Y, Y), "pair"),
    "one number": ((1.0, Y), "one row per record"),
    "text": ((np.array([["a"]] * 200), Y), "Encode text"),
    "ragged": (([[1.0], [1.0, 2.0]], [0, 1]), "cannot be converted"),
    "sparse targets": ((X, scipy.sparse.csr_matrix(Y[:, None])), "dense targets"),
    "shuffled loader": (
        DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), shuffle=True),
        "loader.dataset",
    ),
    "stream": (Endless(), "map-style"),
    "a number": (7, "map-style dataset"),
    "empty dataset": (Pairs(X[:0], Y[:0]), "at least one record"),
    "dataset of single values": (Singles(), "pairs"),
}


@pytest.mark.parametrize(("data", "message"), DATA.values(), ids=DATA)
def test_bad_data_is_refused_and_nothing_is_charged(data, message):
    ledger = pv.Ledger(None, pv.Budget(100.0, 1e-3))
    with pytest.raises(pv.DataError, match=message):
        trainer(data=data, ledger=ledger)
    assert ledger.charges() == ()


def test_token_numbers_beyond_the_embedding_are_refused():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    tokens = np.arange(600).reshape(200, 3) % 11
    with pytest.raises(pv.DataError, match="token numbers from 0 to 9"):
        trainer(model, (tokens, Y))


def test_binary_targets_out_of_range_are_refused():
    model = nn.Linear(5, 1)
    targets = (Y[:, None] == 1).astype(np.float32) * 2
    with pytest.raises(pv.DataError, match="between 0 and 1"):
        pv.Trainer(
            model,
            nn.BCEWithLogitsLoss(),
            (X, targets),
            method=pv.methods.DPSGD(lr=1.0),
            batch_size=20,
            steps=1,
            noise_multiplier=1.0,
            delta=1e-3,
        )


MODELS = {
    "batch norm": (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "GroupNorm"),
    "no parameters": (nn.Identity(), "trainable parameter"),
    "all frozen": (nn.Linear(5, 3).requires_grad_(False), "trainable parameter"),
    "lazy layer": (nn.LazyLinear(3), "dummy input"),
    "half precision": (nn.Linear(5, 3).half(), "float32"),
    "two types": (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).double()), "float32"),
}


@pytest.mark.parametrize(("model", "message"), MODELS.values(), ids=MODELS)
def test_a_model_that_cannot_be_private_is_refused_with_the_remedy(model, message):
    with pytest.raises(pv.ModelError, match=message):
        trainer(model)


def test_models_and_losses_of_the_wrong_kind_are_refused():
    settings = {
        "method": pv.methods.DPSGD(lr=1.0),
        "batch_size": 20,
        "steps": 1,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    }
    with pytest.raises(pv.ArgumentError, match=r"torch.nn.Module"):
        pv.Trainer(len, LOSS, (X, Y), **settings)
    with pytest.raises(pv.ArgumentError, match="loss"):
        pv.Trainer(zeroed(), "mse", (X, Y), **settings)
    with pytest.raises(pv.ArgumentError, match=r"\(3, 5\)"):
        pv.Trainer(zeroed(d=4), LOSS, (X, Y), **settings)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        (0.0, "> 0"),
        (-1.0, "> 0"),
        (NAN, "finite"),
        (torch.ones(4), "vector of 18"),
        (torch.ones(2, 2), "vector of 18"),
        ({"weight": torch.ones(3, 5)}, "missing.*bias"),
        ({"weight": torch.ones(3, 5), "bias": 1.0, "extra": 1.0}, "unknown.*extra"),
        ({"weight": torch.ones(4), "bias": torch.ones(3)}, "broadcast"),
    ],
)
def test_bad_scales_are_refused_before_anything_is_charged(scales, message):
    run = trainer()
    with pytest.raises(pv.ArgumentError, match=message):
        run.gradients.release(pv.preconditioning.diagonal(scales), 1.0)
    assert run.ledger.charges() == ()


def test_a_spent_budget_is_an_error_at_construction(tmp_path):
    path = tmp_path / "spent.ledger"
    budget = pv.Budget(1.0, 1e-3)
    pv.Ledger(path, budget).close()
    trainer(noise_multiplier=None, delta=None, budget=budget, ledger=path).fit()
    spent = pv.Ledger(path).charges()
    with pytest.raises(pv.BudgetExceeded, match="is spent"):
        trainer(ledger=path, steps=1)
    assert pv.Ledger(path).charges() == spent


def test_a_ledger_of_another_data_set_is_refused(tmp_path):
    pv.Ledger(tmp_path / "a.ledger", dataset="patients").close()
    with pytest.raises(pv.LedgerError, match="'patients'"):
        pv.Ledger(tmp_path / "a.ledger", dataset="clients")


def test_an_interrupted_checkpoint_is_refused_and_nothing_is_charged(tmp_path):
    ledger = tmp_path / "a.ledger"
    trainer(ledger=ledger, steps=10).fit(checkpoint=tmp_path / "run.pt")
    whole = (tmp_path / "run.pt").read_bytes()
    (tmp_path / "run.pt").write_bytes(whole[: len(whole) // 2])
    spent = pv.Ledger(ledger).charges()
    with pytest.raises(pv.CheckpointError, match="cut short"):
        trainer(ledger=ledger, steps=10, resume=tmp_path / "run.pt")
    assert pv.Ledger(ledger).charges() == spent


def test_a_million_columns_work():
    x = scipy.sparse.random(50, 1_000_000, density=1e-5, format="csr", dtype=np.float32, rng=0)
    y = np.arange(50) % 2
    run = trainer(nn.Linear(1_000_000, 2), (x, y), batch_size=5, steps=2).fit()
    assert run.steps_done == 2
