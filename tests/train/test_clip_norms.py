"""Clip norms that follow from releases: in a trainer, in a loop, in checkpoints, by units."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.preconditioning import FlatScaling
from privada.query.executor import Draw
from tests.taps import tap_releases

COUNT, WIDTH = 400, 5


def lengths_of(count=COUNT):
    return torch.linspace(0.1, 3.9, count)  # whose median is 2


def problem(count=COUNT):
    """Rows whose gradients are themselves, whatever the parameters, of known lengths."""
    rows = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(3))
    rows = rows / rows.norm(dim=1, keepdim=True) * lengths_of(count)[:, None]
    return rows, torch.zeros(count, 1)


def linear():
    torch.manual_seed(2)
    return nn.Linear(WIDTH, 1, bias=False)


def output_itself(output, target):
    return output.sum()


def trainer(clipping, *, clip=0.5, steps=60, data=None, method=None, **given):
    settings = {"batch_size": 200, "noise_multiplier": 0.5, "delta": 1e-4, "seed": 5} | given
    method = method or pv.methods.DPSGD(lr=1e-6, clip=clip, clipping=clipping)
    data = problem() if data is None else data
    return pv.Trainer(linear(), output_itself, data, method=method, steps=steps, **settings)


@pytest.mark.parametrize(("quantile", "expected"), [(0.5, 2.0), (0.25, 1.05), (0.9, 3.52)])
def test_the_clip_norm_comes_to_the_quantile_of_gradient_norms(quantile, expected):
    made = trainer(pv.clipping.adaptive(quantile=quantile), steps=150).fit()
    # the count has noise of a twentieth of the batch, which moves the norm by about a hundredth
    assert made.clip_norm == pytest.approx(expected, rel=0.15)


def test_it_costs_what_a_constant_clip_norm_costs_and_the_noise_follows(monkeypatch):
    seen = []
    tap_releases(monkeypatch, lambda release: seen.append(release))
    made = trainer(pv.clipping.adaptive(), steps=20)
    ratio = made._run.mechanism.clipping.control.ratio
    # the noise in the count, in records, is a twentieth of the batch
    assert 0.5 * math.sqrt(1 / ratio**2 + 1 / 4) == pytest.approx(0.05 * 200)
    clip = [0.5]
    for _ in range(20):
        made.step()
        clip.append(made._state.clip["clip"])
    plain = trainer(pv.clipping.threshold(), steps=20).fit()
    assert made.ledger.totals() == plain.ledger.totals()
    assert made.epsilon() == plain.epsilon()
    for release, norm in zip(seen[:20], clip[:20], strict=True):
        assert release.noise_std == pytest.approx(0.5 * norm * math.sqrt(1 + ratio**2 / 4))
        assert release.value.shape == (WIDTH,)
    assert clip[-1] > clip[0]


def test_with_a_budget_the_share_of_the_count_is_found_by_calibration():
    made = trainer(
        pv.clipping.adaptive(), noise_multiplier=None, delta=None, budget=pv.Budget(1.0, 1e-4)
    )
    plain = trainer(
        pv.clipping.threshold(), noise_multiplier=None, delta=None, budget=pv.Budget(1.0, 1e-4)
    )
    assert made.noise_multiplier == plain.noise_multiplier
    ratio = made._run.mechanism.clipping.control.ratio
    wanted = (0.05 * 200 / made.noise_multiplier) ** 2 - 1 / 4
    assert ratio == pytest.approx(min(1.0, 1 / math.sqrt(wanted)))
    assert made._run.tried.engine.clipping == made._run.mechanism.clipping
    assert made.fit().epsilon() <= 1.0


@pytest.mark.parametrize(
    "clipping",
    [pv.clipping.adaptive(), pv.clipping.in_turns((2, 0.5), (3, 2.0))],
    ids=["adaptive", "in turns"],
)
def test_a_resumed_run_goes_on_with_its_clip_norm(tmp_path, clipping):
    whole = trainer(clipping, steps=12).fit()
    ledger, path = tmp_path / "ledger", tmp_path / "run.pt"
    first = trainer(clipping, steps=12, ledger=ledger)
    for _ in range(7):
        first.step()
    first.save(path)
    again = trainer(clipping, steps=12, ledger=ledger, resume=path).fit()
    assert again._state.clip == whole._state.clip
    assert torch.equal(again.model.weight, whole.model.weight)


def test_in_turns_clips_each_release_by_its_turn(monkeypatch):
    seen = []
    tap_releases(monkeypatch, lambda release: seen.append(release.noise_std))
    trainer(pv.clipping.in_turns((2, 0.5), (1, 4.0)), steps=6).fit()
    assert seen == [0.25, 0.25, 2.0, 0.25, 0.25, 2.0]


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_norms_of_whole_persons_are_counted(sampling):
    rows, targets = problem()
    rows, targets = rows.repeat_interleave(3, 0), targets.repeat_interleave(3, 0)
    groups = np.repeat(np.arange(COUNT), 3)
    made = trainer(
        pv.clipping.adaptive(), steps=120, data=(rows, targets), groups=groups, sampling=sampling
    ).fit()
    assert made.clip_norm == pytest.approx(2.0, rel=0.15)
    assert "all their rows" in str(made.statement())


def test_the_statement_and_the_checkpoint_say_how_the_norm_adapts():
    made = trainer(pv.clipping.adaptive(quantile=0.3), steps=3).fit()
    assert "adaptive(quantile=0.3" in str(made.statement())


def test_a_loop_adapts_too():
    net = linear()
    loop = pv.PrivateLoop(
        net, torch.optim.SGD(net.parameters(), lr=1e-6), output_itself, problem(), clip=0.5,
        clipping=pv.clipping.adaptive(), batch_size=200, steps=80, noise_multiplier=0.5,
        delta=1e-4, seed=5,
    )  # fmt: skip
    model, optimizer, criterion, loader = loop
    while loop.steps_done < 80:
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
    assert loop._state.clip["clip"] == pytest.approx(2.0, rel=0.2)


def test_a_step_that_fails_leaves_the_clip_norm_as_it_was(monkeypatch):
    made = trainer(pv.clipping.adaptive(), steps=5).step()
    before = made._state

    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(made._run.mechanism.clipping.control), "seen", fail)
        with pytest.raises(KeyboardInterrupt):
            made.step()
    assert made._state is before
    made.fit()
    # what was released in vain is in the bill and in the history
    assert sum(made.ledger.totals().values()) == 6
    assert made.history[-1].epsilon == pytest.approx(made.epsilon(), rel=1e-12)


def two_layers():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 1))


@pytest.mark.parametrize("groups", [None, np.arange(COUNT) // 4], ids=["rows", "persons"])
@pytest.mark.parametrize(
    "clipping",
    [
        pv.clipping.per_layer(),
        pv.clipping.per_layer({"0": 1.0, "2": 2.0}),
        pv.clipping.adaptive(of=pv.clipping.per_layer()),
    ],
    ids=["uniform", "by shares", "adaptive"],
)
def test_layers_are_clipped_by_themselves_in_training_and_no_unit_moves_more(clipping, groups):
    rows, targets = problem()
    rows[8:12] *= 1e12  # one wild person
    made = pv.Trainer(
        two_layers(), nn.MSELoss(), (rows, targets), batch_size=50, steps=3, noise_multiplier=1.0,
        delta=1e-4, groups=groups, method=pv.methods.DPSGD(lr=0.1, clip=0.5, clipping=clipping),
    )  # fmt: skip
    plain = FlatScaling(None, None)
    kept = np.arange(12) if groups is None else np.arange(24)
    owners = None if groups is None else torch.from_numpy(groups[kept])
    everyone = made.gradients.clipped_sum(Draw(kept, owners), plain, 0.5)
    gone = kept != 9 if groups is None else groups[kept] != 2
    without = made.gradients.clipped_sum(
        Draw(kept[gone], None if owners is None else owners[torch.from_numpy(gone)]), plain, 0.5
    )
    moved = float((everyone.value - without.value).double().norm())
    assert moved <= everyone.sensitivity * (1 + 1e-6)
    assert made.fit().steps_done == 3
