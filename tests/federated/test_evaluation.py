"""A federated run is evaluated at the server, on records that are public."""

import pytest
import torch
from torch import nn

import privada as pv
from privada.core.errors import ArgumentError

X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(dim=1) > 0).long()
TARGET = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])


def made(**changes):
    model = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(model.weight)
    settings = {
        "method": pv.methods.DPSGD(lr=1.0, clip=5.0), "batch_size": 50, "rounds": 4,
        "noise_multiplier": 1.0, "delta": 1e-4, "seed": 1,
        "validation": pv.Validation((X, Y), every=2, metrics=[pv.metrics.accuracy()]),
    } | changes  # fmt: skip
    clients = pv.federated.InProcess(lambda who, start: start + (TARGET.flatten() - start) / 2, 500)
    return pv.federated.FederatedTrainer(model, clients, **settings)


def test_it_is_evaluated_stopped_and_logged(tmp_path):
    run = made().fit(callbacks=[pv.loggers.JSONLines(tmp_path / "run.jsonl")])
    assert [each.step for each in run.evaluations] == [2, 4]
    assert run.evaluations[-1].values["accuracy"] > 0.9 > run.evaluations[-1].baselines["accuracy"]
    assert "validation/accuracy" in (tmp_path / "run.jsonl").read_text()
    assert any("protected client" in each for each in run.statement().assumptions)
    stopping = pv.EarlyStopping(pv.Validation((X, Y), every=1), patience=1, least=1.0)
    ended = made(rounds=9, validation=None, stopping=stopping, loss=nn.CrossEntropyLoss()).fit()
    assert ended.steps_done == 2


def test_what_the_server_does_not_have_is_refused():
    with pytest.raises(ArgumentError, match="clients keep to themselves"):
        made(stopping=pv.EarlyStopping((X, Y), noise_multiplier=1.0, every=1))
    with pytest.raises(ArgumentError, match="metrics in the validation"):
        made(validation=pv.Validation((X, Y)))
    with pytest.raises(ArgumentError, match=r"pv\.Validation"):
        made(validation=(X, Y))
