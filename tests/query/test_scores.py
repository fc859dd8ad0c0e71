"""Scores on private records: one record moves their sum by its own score alone."""

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada import data
from privada.core.errors import ArgumentError, ModelError
from privada.core.randomness import SeededSource
from privada.data.batch import Batch
from privada.data.dummies import make_dummies
from privada.noise import GaussianNoise
from privada.query.account import Account
from privada.query.scores import Score, Scorer, accuracy

FIRST = Batch(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))


class MixingInEvaluation(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x if self.training else x - x.mean(dim=0))


def test_a_model_that_mixes_in_evaluation_mode_alone_is_not_scored():
    model = MixingInEvaluation().eval()
    with pytest.raises(ModelError, match="in evaluation mode"):
        accuracy().check(model, make_dummies(FIRST))


def test_a_search_among_such_models_is_refused_before_anything_is_charged():
    ledger = pv.Ledger(None, pv.Budget(10, 1e-3))
    with pytest.raises(ModelError, match="in evaluation mode"):
        pv.selection.select(
            lambda lr: pv.selection.Candidate(
                MixingInEvaluation(), nn.CrossEntropyLoss(), pv.methods.DPSGD(lr=lr),
                batch_size=10, steps=2,
            ),
            (torch.randn(400, 4), torch.arange(400) % 3),
            space={"lr": [0.1, 0.5]},
            noise_multiplier=3.0,
            delta=1e-3,
            validation=0.5,
            ledger=ledger,
        )  # fmt: skip
    assert ledger.charges() == ()


@pytest.mark.parametrize(
    "each",
    [
        lambda out, y: out[:, 0] / out.abs().max().clamp(min=1e6),
        lambda out, y: torch.where(out.max() > 1e6, 0.0, 1.0).expand(len(out)) * 1.0,
        lambda out, y: out[:, 0].sigmoid() - 1e-12 * out.mean(),
    ],
    ids=["clamped maximum", "flag", "mean"],
)
def test_a_score_that_can_depend_on_others_is_refused_whatever_the_values(each):
    with pytest.raises(ArgumentError, match="alone"):
        Score("mine", each, -10, 10).check(nn.Linear(4, 3), make_dummies(FIRST))


class Evaluated(nn.Module):
    """A linear model that does something else in evaluation mode."""

    def __init__(self, forward):
        super().__init__()
        self.layer, self._evaluate = nn.Linear(4, 2), forward

    def forward(self, x):
        return self.layer(x) if self.training else self._evaluate(self.layer, x)


def _right(out, y):
    return (out.argmax(dim=1) == y).double()


UNSEEN = {
    "a value that no dummy has": (
        lambda layer, x: -layer(x) if bool(((x - 7.25).abs() < 0.01).any()) else layer(x),
        _right,
    ),
    "a batch larger than those probed": (
        lambda layer, x: layer(x - x.mean(dim=0)) if len(x) > 70 else layer(x),
        _right,
    ),
    "a score that branches": (
        lambda layer, x: layer(x),
        lambda out, y: _right(out, y) * (0 if out.abs().max() > 50 else 1),
    ),
    "a score that reads": (
        lambda layer, x: layer(x),
        lambda out, y: _right(out, y) * float(out.abs().max().item() < 50),
    ),
    "a score in NumPy": (
        lambda layer, x: layer(x),
        lambda out, y: torch.from_numpy(_right(out, y).numpy() * (abs(out.numpy()).max() < 50)),
    ),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_what_reads_values_or_mixes_in_large_batches_is_scored_record_by_record(case):
    torch.manual_seed(0)
    model, score = Evaluated(UNSEEN[case][0]).eval(), Score("mine", UNSEEN[case][1])
    with pytest.warns(UserWarning, match="one at a time"):
        score.check(model, make_dummies(FIRST))
    inputs = torch.randn(200, 4)
    targets = model.layer(inputs).argmax(dim=1)

    def total(rows, labels):
        records = data.load((rows, labels), torch.float32, torch.device("cpu"))
        scorer = Scorer(
            records, score, population=200, account=Account(pv.Ledger(None), run="r"),
            noise=GaussianNoise(SeededSource(0, "noise")), model_rng=SeededSource(0, "model"),
        )  # fmt: skip
        with torch.no_grad():
            return float(torch.cat(list(scorer._utilities(model, None))).sum())

    whole = total(inputs, targets)
    for odd in (7.25, 1e4):
        more = torch.cat([inputs, torch.full((1, 4), odd)]), torch.cat([targets, targets[:1]])
        assert abs(total(*more) - whole) <= 1


@pytest.mark.parametrize(
    "layer",
    [nn.LSTM, nn.GRU, nn.RNN],
)
def test_recurrent_layers_are_followed(layer):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer(4, 3, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0][:, -1]

    example = make_dummies(Batch(torch.zeros(1, 5, 4), torch.zeros(1, dtype=torch.int64)))
    assert accuracy().keeps_apart(Last().eval(), example, 40)


class Sharp(nn.Module):
    """Makes classes of last bits: products over inputs in the thousands, of which most cancels."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(37, 64), nn.Linear(64, 2, bias=False)

    def forward(self, x):
        h = self.up(1e4 * x)
        return self.down(h - h.detach().double().to(h.dtype).roll(1, 1)) * 1e6 % 7.0


def test_no_record_changes_the_scores_of_others():
    torch.manual_seed(0)
    model = Sharp().eval()
    inputs, targets = torch.randn(30, 37), torch.arange(30) % 2

    def merits(count):
        records = data.load((inputs[:count], targets[:count]), torch.float32, torch.device("cpu"))
        scorer = Scorer(
            records, accuracy(), population=30,  # public: a record more or less leaves it
            account=Account(pv.Ledger(None), run="r", purpose="validation"),
            noise=GaussianNoise(SeededSource(0, "noise")), model_rng=SeededSource(0, "model"),
        )  # fmt: skip
        with torch.no_grad():
            return torch.cat(list(scorer._utilities(model, None)))

    whole = merits(30)
    for count in np.arange(1, 30):
        assert torch.equal(merits(int(count)), whole[:count])
