"""The statement of a run, and what it says that it rests on."""

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv

ROWS = 40


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.full((3,), float(index)), torch.zeros(1)


def statement(data=None, **given):
    settings = {"batch_size": 10, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-3} | given
    data = (torch.zeros(ROWS, 3), torch.zeros(ROWS, 1)) if data is None else data
    method = settings.pop("method", pv.methods.DPSGD(lr=0.1))
    made = pv.Trainer(nn.Linear(3, 1), nn.MSELoss(), data, method=method, **settings)
    return made.fit().statement()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Each record is one row of the data"),
        ({"unit": "patient"}, "Each patient is one row of the data"),
        ({}, "The number of records, 40, is public"),
        ({"population": 50}, "a public population of 50"),
        ({"groups": np.arange(ROWS) // 2}, "Each person: all their rows"),
        ({"groups": np.arange(ROWS) // 2}, "The number of persons, 20, is public"),
        ({"groups": np.arange(ROWS) // 2, "rows_per_unit": 1}, "A look takes at most 1 of them"),
        ({}, "The ledger is in memory"),
        ({"data": Rows()}, "What the data set gives for a record depends on that record alone"),
        ({"weight_decay": 0.1}, "weight decay of 0.1"),
        ({"seed": 1}, "seeded: not a private release"),
        (
            {
                "method": pv.methods.AdaDPS(
                    lr=0.1, preconditioner=pv.preconditioning.diagonal(2.0, source="a corpus")
                )
            },
            "Side information: a corpus.",
        ),
    ],
)
def test_an_assumption_is_said_where_it_is_made(given, said):
    assert any(said in each for each in statement(**given).assumptions)


def test_assumptions_are_not_said_where_they_are_not_made(tmp_path):
    said = " ".join(statement(ledger=tmp_path / "ledger").assumptions)
    for other in ("in memory", "data set gives", "Side information", "objective", "seeded"):
        assert other not in said


def test_a_statement_counts_steps_and_names_the_run(tmp_path):
    found = statement(ledger=tmp_path / "patients.ledger", run="first")
    assert (found.run, found.progress) == ("first", "2 of 2 steps")
    assert found.ledger.endswith("patients.ledger")
    assert found.private
    assert not found.seeded
    assert statement(seed=1).seeded
    assert not statement(seed=1).private
