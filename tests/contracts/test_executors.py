"""What every executor has to do: the sum of a draw, with its sensitivity, whatever computes it."""

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.core.randomness import SeededSource
from privada.preconditioning import FlatScaling
from privada.query.executor import Draw

CLIP, ROWS = 0.5, 60

EXECUTIONS = {
    "local": None,
    "said to be local": pv.execute.Local(),
    "one rank": pv.execute.DataParallel(),
    "one part": pv.execute.InParts(1),
    "two parts": pv.execute.InParts(2),
    "seven parts": pv.execute.InParts(7),
    "more parts than rows": pv.execute.InParts(100),
}
CLIPPINGS = {
    "threshold": pv.clipping.threshold(),
    "automatic": pv.clipping.automatic(),
    "micro-batches": pv.clipping.microbatches(4),
    "adaptive": pv.clipping.adaptive(),
    "ellipsoid": pv.clipping.ellipsoid(),
}


def records(rows=ROWS):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return x, torch.randn(rows, 1, generator=generator, dtype=torch.float64)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def trainer(execution, clipping=CLIPPINGS["threshold"], data=None, **given):
    settings = {"batch_size": 20, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-3} | given
    return pv.Trainer(
        network(),
        nn.MSELoss(),
        records() if data is None else data,
        method=pv.methods.DPSGD(lr=0.1, clip=CLIP, clipping=clipping),
        executor=execution,
        **settings,
    )


def drawn_by(made, count=25):
    rows = np.arange(0, 2 * count, 2)
    clipping = made._run.mechanism.clipping
    groups = clipping.assign_microbatches(count, 20, SeededSource(3, "groups"))
    return Draw(rows, groups)


@pytest.mark.parametrize("scale", [None, 3.0], ids=["plain", "scaled"])
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_the_sum_is_that_of_one_pass_with_the_same_sensitivity(execution, clipping, scale):
    reference = trainer(None, CLIPPINGS[clipping])
    made = trainer(EXECUTIONS[execution], CLIPPINGS[clipping])
    drawn = drawn_by(made)
    size = made._run.parameters.size
    flat = FlatScaling(None if scale is None else torch.full((size,), scale).double(), None)
    found = made.gradients.clipped_sum(drawn, flat, CLIP)
    expected = reference.gradients.clipped_sum(drawn, flat, CLIP)
    torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=1e-12)
    assert found.sensitivity == expected.sensitivity
    assert found.extra == expected.extra


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_an_empty_draw_gives_zero(execution):
    made = trainer(EXECUTIONS[execution])
    found = made.gradients.clipped_sum(Draw(np.empty(0, np.int64)), FlatScaling(None, None), CLIP)
    assert not bool(found.value.any())
    assert found.sensitivity == CLIP


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_one_wild_record_moves_the_sum_by_at_most_the_sensitivity(execution):
    x, y = records()
    for wild in (1e300, 1e30, -1e8):
        x[7] = wild
        made = trainer(EXECUTIONS[execution], data=(x.clone(), y))
        rows = np.arange(0, 20)
        with_it = made.gradients.clipped_sum(Draw(rows), FlatScaling(None, None), CLIP)
        without = made.gradients.clipped_sum(Draw(rows[rows != 7]), FlatScaling(None, None), CLIP)
        moved = float((with_it.value - without.value).norm())
        assert moved <= CLIP * (1 + 1e-9)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_rows_of_a_person_stay_together(execution):
    groups = np.repeat(np.arange(12), 5)
    reference = trainer(None, groups=groups, batch_size=6)
    made = trainer(EXECUTIONS[execution], groups=groups, batch_size=6)
    drawn = Draw(np.arange(40), torch.arange(8).repeat_interleave(5))
    found, expected = (
        each.gradients.clipped_sum(drawn, FlatScaling(None, None), CLIP).value
        for each in (made, reference)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_whole_run_is_the_same_and_is_charged_once(execution):
    made = trainer(EXECUTIONS[execution], seed=4).fit()
    reference = trainer(None, seed=4).fit()
    for one, other in zip(made.model.parameters(), reference.model.parameters(), strict=True):
        # sums that differ in their last bits may fall on neighbouring points of the noise's lattice
        torch.testing.assert_close(one, other, rtol=0, atol=0.1 * CLIP / 20 / 16)
    assert made.ledger.totals() == reference.ledger.totals()


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_squares_over_all_units_are_the_same(execution):
    found, expected = (
        each._run.gradients.executor.squared_sum(0.1, SeededSource(1, "rows"))
        for each in (trainer(EXECUTIONS[execution]), trainer(None))
    )
    assert torch.equal(found.value, expected.value)
    assert found.sensitivity == expected.sensitivity


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_features_over_all_units_are_the_same(execution):
    found, expected = (
        each._run.gradients.executor for each in (trainer(EXECUTIONS[execution]), trainer(None))
    )
    assert found.features() == expected.features() == 4
    one, other = (each.feature_sum(SeededSource(1, "rows")) for each in (found, expected))
    torch.testing.assert_close(one.value, other.value, rtol=1e-12, atol=0)
    assert (one.sensitivity, one.extra) == (other.sensitivity, other.extra)


@pytest.mark.parametrize("wrong", ["local", 2, pv.execute, object()])
def test_what_is_no_executor_is_refused_with_the_remedy(wrong):
    with pytest.raises(pv.ArgumentError, match=r"executor.*Leave it out"):
        trainer(wrong)


@pytest.mark.parametrize("parts", [0, -1, 1.5, "2", None])
def test_parts_are_counted(parts):
    with pytest.raises(pv.ArgumentError, match="parts"):
        pv.execute.InParts(parts)
