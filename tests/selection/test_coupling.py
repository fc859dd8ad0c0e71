"""The grid of learning rates and clip norms: exact reductions, its price, its map."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from joblib import parallel_config
from torch import nn

import privada as pv
from privada.selection import coupling
from privada.selection.coupling import Coupling, coupling_grid

RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 1.0, size=(200, 3)).astype("float32")
Y = (X @ np.full(3, 10.0)).astype("float32")[:, None]
DATA, TEST = (X[:150], Y[:150]), pv.Public((X[150:].copy(), Y[150:].copy()))
LOSS = pv.selection.bounded_loss(nn.MSELoss(), 1000.0)


def linear(kind, lr, clip, steps=10, **settings):
    """Return the linear regression of Mohapatra et al. (2022).

    Its gradients have norms above 10 as long as it is far from the optimum.
    """
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    method = kind(lr=lr, clip=clip, **settings)
    return pv.selection.Candidate(model, nn.MSELoss(), method, batch_size=30, steps=steps)


SGD = partial(linear, pv.methods.DPSGD)
ADAM = partial(linear, pv.methods.DPAdam, eps=1e-12)


def grid(recipe=SGD, data=DATA, **changes):
    given = {
        "learning_rates": [0.1], "clips": [0.01], "test": TEST, "score": LOSS,
        "noise_multiplier": 2.0, "delta": 1e-3, "seed": 4,
    } | changes  # fmt: skip
    return coupling_grid(recipe, data, **given)


def dummy_batch(function, rates, clips, greater=True):
    """Return a study whose scores are a function of the logarithms of lr and clip."""
    each = np.array([[[function(np.log(lr), np.log(clip)) for clip in clips] for lr in rates]])
    score = pv.selection.Score("made up", lambda out, target: out, -99.0, 99.0, greater)
    price = pv.selection.Price("compose-pld", 1.0, 1e-5, each.size, "all models")
    return Coupling(tuple(rates), tuple(clips), each, score, "dp-sgd", 1.0, price, (), None)


# ---------------------------------------------------------------------- what is exact


def test_where_all_is_clipped_dp_sgd_depends_on_the_product_alone():
    one = grid(learning_rates=[0.4], clips=[0.01])
    two = grid(learning_rates=[0.2], clips=[0.02])
    other = grid(learning_rates=[0.4], clips=[0.02])
    weights = [each.tried[0].model.weight for each in (one, two, other)]
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-6)
    assert not torch.allclose(weights[0], weights[2], rtol=0, atol=1e-4)
    assert one.scores == pytest.approx(two.scores, rel=1e-6)
    assert one.scores != pytest.approx(other.scores, rel=1e-4)


def test_where_all_is_clipped_dp_adam_does_not_depend_on_the_clip_norm():
    one, two = (grid(ADAM, learning_rates=[0.2], clips=[clip]) for clip in (0.01, 0.08))
    other = grid(ADAM, learning_rates=[0.1], clips=[0.01])
    weights = [each.tried[0].model.weight for each in (one, two, other)]
    assert weights[0].abs().max() > 0.1
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-5)
    assert not torch.allclose(weights[0], weights[2], rtol=0, atol=1e-2)


def test_scores_are_those_of_the_models():
    found = grid(learning_rates=[3.0, 0.3], clips=[0.2, 0.1], repeats=2, score=None,
                 test=pv.Public((X[150:], (Y[150:] > 20).astype("float32"))))  # fmt: skip
    assert found.learning_rates == (0.3, 3.0)
    assert found.clips == (0.1, 0.2)
    assert found.each.shape == (2, 2, 2)
    runs = iter(found.tried)
    for repeat in range(2):
        for i, lr in enumerate(found.learning_rates):
            for j, clip in enumerate(found.clips):
                run = next(runs)
                assert run.settings == {"lr": lr, "clip": clip}
                with torch.no_grad():
                    said = (run.model(torch.tensor(X[150:])).numpy() > 0) == (Y[150:] > 20)
                assert found.each[repeat, i, j] == pytest.approx(said.mean())
    assert found.scores == pytest.approx(found.each.mean(axis=0))
    assert not torch.equal(found.tried[0].model.weight, found.tried[4].model.weight)
    assert not found.each.flags.writeable


def test_side_by_side_gives_the_same():
    with parallel_config(backend="threading"):
        one = grid(learning_rates=[0.1, 1.0], n_jobs=2)
    assert (one.each == grid(learning_rates=[0.1, 1.0]).each).all()


# ---------------------------------------------------------------------- the price


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_the_whole_grid_is_charged_as_all_runs_composed(sampling, tmp_path):
    path = tmp_path / "ledger.db"
    found = grid(learning_rates=[0.1, 1.0], clips=[0.1, 1.0, 3.0], repeats=2, ledger=path,
                 sampling=sampling, seed=None)  # fmt: skip
    rate = {"sampling_rate": 30 / 150} if sampling == "poisson" else {}
    alone = pv.Ledger(None)
    for run in range(12):
        pv.Trainer(
            nn.Linear(3, 1), nn.MSELoss(), DATA, method=pv.methods.DPSGD(lr=0.1), batch_size=30,
            steps=10, noise_multiplier=2.0, delta=1e-3, sampling=sampling, ledger=alone, seed=run,
        ).fit()  # fmt: skip
    assert found.price.runs == 12
    assert found.price.epsilon == pytest.approx(pv.Ledger(path).epsilon(1e-3), rel=1e-9)
    assert pv.Ledger(path).kind == "planned"
    composed = pv.accounting.epsilon_of(alone.totals(), 1e-3)
    assert found.price.epsilon == pytest.approx(composed, rel=1e-3)
    if rate:
        expected = pv.accounting.epsilon(noise_multiplier=2.0, steps=120, delta=1e-3, **rate)
        assert found.price.epsilon == pytest.approx(expected, rel=1e-3)
    assert found.statement.private
    assert found.statement.epsilon == found.price.epsilon


def test_a_budget_is_for_the_whole_grid(tmp_path):
    budget = pv.Budget(2.0, 1e-4)
    found = grid(learning_rates=[0.1, 1.0], clips=[0.1, 1.0], noise_multiplier=None, delta=None,
                 budget=budget)  # fmt: skip
    assert 0.99 * 2.0 < found.price.epsilon <= 2.0
    sigma = pv.accounting.noise_multiplier(
        epsilon=2.0, delta=1e-4, sampling_rate=30 / 150, steps=40
    )
    assert found.noise_multiplier == pytest.approx(sigma, rel=2e-3)


def test_a_second_grid_is_added_to_the_first(tmp_path):
    path = tmp_path / "ledger.db"
    pv.Ledger(path).close()  # for several looks
    one, two = grid(ledger=path), grid(ADAM, ledger=path)
    assert two.statement.epsilon > one.statement.epsilon
    assert two.price.epsilon == pytest.approx(one.price.epsilon)
    assert len(two.statement.charges) == 2
    ledger = pv.Ledger(path)
    assert two.statement.epsilon == ledger.price(ledger.totals(), 1e-3) > two.price.epsilon
    alone = tmp_path / "alone.db"
    grid(ledger=alone)
    with pytest.raises(pv.LedgerError, match=r"make one by pv\.Ledger"):
        grid(ADAM, ledger=alone)  # nobody knows why


def test_a_ledger_that_cannot_pay_for_all_runs_refuses_before_the_first(tmp_path):
    path = tmp_path / "ledger.db"
    one = grid().price.epsilon
    ledger = pv.Ledger(path, pv.Budget(1.5 * one, 1e-3))
    with pytest.raises(pv.BudgetExceeded):
        grid(clips=[0.1, 0.2, 0.4, 0.8, 1.6], ledger=ledger)
    assert not ledger.totals()


def test_a_killed_grid_goes_on_and_is_charged_once(tmp_path):
    paths = {"ledger": tmp_path / "ledger.db", "state": tmp_path / "state"}
    one, two = (grid(clips=[0.1, 0.2], **paths) for _ in range(2))
    assert (one.each == two.each).all()
    assert len(two.statement.charges) == 1


# ---------------------------------------------------------------------- slopes

RATES, CLIPS = [2.0**k for k in range(-6, 7)], [2.0**k for k in range(-2, 3)]


@pytest.mark.parametrize("slope", [-1.0, -0.3, 0.0, 0.7])
@pytest.mark.parametrize("greater", [True, False])
def test_the_slope_of_a_parabola_is_found_between_grid_points(slope, greater):
    def score(lr, clip):
        return (-1 if greater else 1) * (lr - slope * clip - 0.2) ** 2

    found = dummy_batch(score, RATES, CLIPS, greater)
    assert found.slope() == pytest.approx(slope, abs=1e-9)
    for peak in found.peaks():
        assert peak.inside
        assert np.log(peak.learning_rate) == pytest.approx(slope * np.log(peak.clip) + 0.2)


def test_uneven_grids():
    rates, clips = [0.01, 0.02, 0.04, 0.05, 0.08, 0.1, 0.2, 0.4], [0.5, 0.8, 1.0, 2.0]
    found = dummy_batch(lambda lr, clip: -((lr + clip + 3.0) ** 2), rates, clips)
    assert found.slope() == pytest.approx(-1.0, abs=1e-9)


def test_clips_whose_best_is_at_an_end_are_left_out():
    found = dummy_batch(lambda lr, clip: -abs(lr + 4 * clip), RATES, CLIPS)
    inside = [peak.clip for peak in found.peaks() if peak.inside]
    assert inside == [0.5, 1.0, 2.0]
    assert found.slope() == pytest.approx(-4.0)
    narrow = dummy_batch(lambda lr, clip: lr, RATES, CLIPS)
    assert not any(peak.inside for peak in narrow.peaks())
    with pytest.raises(pv.ArgumentError, match="wider range"):
        narrow.slope()


def test_equal_scores_count_as_their_middle():
    found = dummy_batch(lambda lr, clip: -float(abs(lr) > 1), RATES, CLIPS)
    assert found.slope() == pytest.approx(0.0)
    assert found.peaks()[0].learning_rate == pytest.approx(1.0)
    level = dummy_batch(lambda lr, clip: 0.5, RATES, CLIPS)
    assert level.slope() == pytest.approx(0.0, abs=1e-12)
    level.figure()


def test_dp_sgd_and_dp_adam_on_001s_regression():
    """In the regime of Theorem 2: gradients far above every clip norm, for most of the run."""
    rates, clips = [4.0**k for k in range(-1, 5)], [4.0**k / 64 for k in range(3)]
    sgd = grid(partial(SGD, steps=20), learning_rates=rates, clips=clips)
    adam = grid(partial(ADAM, steps=20), learning_rates=[r / 16 for r in rates], clips=clips)
    assert sgd.slope() == pytest.approx(-1.0, abs=0.3)
    assert adam.slope() == pytest.approx(0.0, abs=0.3)


# ---------------------------------------------------------------------- the map


def test_the_map():
    found = dummy_batch(lambda lr, clip: -((lr + clip) ** 2) - 0.01 * clip**2, RATES, CLIPS)
    figure = found.figure()
    assert found.best == (1.0, 1.0)
    heat, *others = figure.data
    assert np.asarray(heat.z) == pytest.approx(found.scores)
    assert heat.x == pytest.approx(np.log10(CLIPS))
    assert heat.y == pytest.approx(np.log10(RATES))
    named = {trace.name: trace for trace in others}
    line = named["lr × clip = 1"]
    assert np.asarray(line.x) + np.asarray(line.y) == pytest.approx(0.0)
    frame = next(trace for name, trace in named.items() if str(name).startswith("best: lr 1"))
    half = np.log10(2) / 2
    assert (min(frame.x), max(frame.x)) == pytest.approx((-half, half))
    assert (min(frame.y), max(frame.y)) == pytest.approx((-half, half))
    assert list(figure.layout.xaxis.ticktext) == ["0.25", "0.5", "1", "2", "4"]
    assert not heat.reversescale


def test_the_best_of_a_loss_is_the_least():
    found = dummy_batch(lambda lr, clip: (lr - 1) ** 2 + clip**2, RATES, CLIPS, greater=False)
    assert found.best == (2.0, 1.0)
    assert found.best_score == found.scores.min()
    assert found.figure().data[0].reversescale


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (4, 1), (40, 40)])
def test_maps_of_any_size(rows, columns):
    rates, clips = np.geomspace(0.1, 10, rows), np.geomspace(0.1, 10, columns)
    found = dummy_batch(lambda lr, clip: -(lr**2) - clip, rates.tolist(), clips.tolist())
    figure = found.figure()
    assert any(trace.mode == "text" for trace in figure.data[1:]) == (rows < 40)
    assert len(figure.layout.yaxis.ticktext) <= 16


def test_plain_values():
    found = grid(clips=[0.1, 0.2])
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["scores"] == found.scores.tolist()
    assert plain["slope"] is None
    assert plain["method"] == "dp-sgd"
    assert plain["price"]["epsilon"] == found.price.epsilon
    assert plain["statement"]["epsilon"] == found.statement.epsilon
    assert plain["best"]["score"] == found.best_score


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rates": []}, "learning_rates.*at least one"),
        ({"clips": []}, "clips.*at least one"),
        ({"learning_rates": [0.1, -1.0]}, "learning_rates > 0.*-1"),
        ({"clips": [0.1, float("nan")]}, "clips to be finite"),
        ({"clips": [float("inf")]}, "clips to be finite"),
        ({"clips": [0.1, "1"]}, "clips to be a number"),
        ({"clips": 0.1}, "Write \\[0.1\\]"),
        ({"clips": [0.1, 0.2, 0.1]}, "repeats="),
        ({"repeats": 0}, "repeats >= 1"),
        ({"test": (X, Y)}, "pv.Public"),
        ({"test": 0.2}, "pv.Public"),
        ({"score": "accuracy"}, "Score"),
        ({"noise_multiplier": None}, "exactly one of budget"),
        ({"noise_multiplier": -1.0}, "noise_multiplier > 0"),
        ({"delta": None}, "delta"),
        ({"recipe": lambda lr: None}, "takes the settings"),
        ({"recipe": 3}, "recipe"),
        ({"sampling": "shuffle"}, "sampling"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_charged(changes, words):
    ledger = pv.Ledger(None)
    with pytest.raises(pv.ArgumentError, match=words):
        grid(ledger=ledger, **changes)
    assert not ledger.totals()


def test_the_module_keeps_no_second_training_loop():
    assert "Trainer" not in vars(coupling)
