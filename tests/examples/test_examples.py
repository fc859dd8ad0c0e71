"""Extensions by one file each, at work: a sampler, a noise, a clip and a query.

The first three also pass the contract suites of their protocols, in tests/contracts.
"""

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.accounting import events
from privada.core.errors import BudgetExceeded
from privada.core.randomness import SeededSource
from privada.data import GroupedUnits, RowUnits
from privada.query.account import Account
from tests.examples.coin_flips import CoinFlips
from tests.examples.count_query import CountQuery
from tests.examples.soft_clip import soft_clip
from tests.examples.two_servers import TwoServers

ROWS = 80


def records():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 4, generator=generator)
    return x, (x.sum(dim=1) > 0).long()


def trainer(clipping=None, **given):
    torch.manual_seed(1)
    settings = {"batch_size": ROWS / 2, "steps": 40, "seed": 3} | given
    method = pv.methods.DPSGD(lr=2.0, clipping=clipping or pv.clipping.threshold())
    return pv.Trainer(
        nn.Linear(4, 2), nn.CrossEntropyLoss(), records(), method=method,
        budget=pv.Budget(8.0, 1e-3), **settings,
    )  # fmt: skip


def accuracy(made):
    x, y = records()
    return float((made.model(x).argmax(dim=1) == y).double().mean())


@pytest.mark.parametrize(
    "given",
    [
        {"sampling": CoinFlips()},
        {"noise": TwoServers()},
        {"clipping": soft_clip()},
        {"sampling": CoinFlips(), "noise": TwoServers(), "clipping": soft_clip()},
        {"clipping": soft_clip(), "executor": pv.execute.InParts(3)},
    ],
    ids=["sampler", "noise", "clip", "all three", "clip in parts"],
)
def test_a_model_learns_within_its_budget(given):
    made = trainer(**given).fit()
    assert 7.0 < made.epsilon() <= 8.0
    assert accuracy(made) > 0.8


def test_a_sampler_is_charged_for_what_it_draws():
    made = trainer(sampling=CoinFlips()).fit()
    event = events.poisson(0.5, made.noise_multiplier)
    assert made.ledger.totals() == {event: 40}
    assert "coin flips" in made.statement().sampling
    with pytest.raises(pv.ArgumentError, match="half of the records"):
        trainer(sampling=CoinFlips(), batch_size=10)


def test_a_run_goes_on_with_the_noise_that_it_was_started_with(tmp_path):
    ledger, path = tmp_path / "ledger", tmp_path / "run.pt"
    first = trainer(noise=TwoServers(), ledger=ledger).step()
    first.save(path)
    with pytest.raises(pv.CheckpointError, match="noise: 'two servers' there, 'independent' here"):
        trainer(ledger=ledger, resume=path)
    trainer(noise=TwoServers(), ledger=ledger, resume=path).fit()


def test_a_query_pays_before_it_counts():
    ledger = pv.Ledger(None, pv.Budget(0.5, 1e-5))
    query = CountQuery(RowUnits(ROWS), Account(ledger, run="count", purpose="statistics"))
    found = [query.release(40.0) for _ in range(5)]
    assert ledger.totals() == {events.gaussian(40.0): 5}
    assert np.all(np.abs(np.array(found) - ROWS) < 40 * 8)  # eight standard deviations
    with pytest.raises(BudgetExceeded):
        query.release(1.0)


def test_persons_are_counted_once_however_many_rows_they_have():
    def counted(ids):
        account = Account(pv.Ledger(None), run="count", unit="person (all their rows)")
        return CountQuery(GroupedUnits(ids), account, SeededSource(5, "noise")).release(2.0)

    assert counted(["ann", "bob"] + ["cid"] * 1000) - counted(["ann", "bob"]) == pytest.approx(1.0)
