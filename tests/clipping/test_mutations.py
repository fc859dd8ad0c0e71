"""Planted bugs of the engines and the clippings, each of which the contract's checks catch.

The check that an engine makes of itself before the first record is left out here: these are the
faults that the tests alone would have to find.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from privada.clipping import (
    Batch,
    adaptive,
    automatic,
    averages,
    bounds,
    clips,
    combining,
    contributions,
    ellipsoid,
    microbatches,
    norm_controls,
    one_pass,
    outer_products,
    per_layer,
    projection,
    recorded_model,
    reference,
    threshold,
)
from privada.clipping.clips import Clipping
from privada.clipping.layer_bounds import PerLayer
from privada.clipping.norm_controls import Adaptive, InTurns
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.reference import PerExampleEngine
from privada.core.tensors import Parameters
from privada.core.values import ClippedSum
from privada.preconditioning import FlatScaling
from tests.contracts.test_clippings import Direct, add_up, batch_of
from tests.contracts.test_engines import make, scaling
from tests.contracts.test_per_layer import clipped as clipped_by_layer
from tests.contracts.test_per_layer import layers_of
from tests.oracles import clippings as oracles
from tests.oracles.examples import gradients, whitened
from tests.releases import released

ISOTROPIC = FlatScaling(None, None)
ENGINES = ("one-pass", "loop")
MODELS = ("mlp", "conv", "norms", "embedding", "tied", "recurrent")
entropy = functional.cross_entropy


def engine_of(how, model, loss, example, clipping):
    parameters = Parameters(model)
    if how == "one-pass":
        return OnePassEngine(model, loss, parameters, example, clipping=clipping)
    return PerExampleEngine(model, loss, parameters, how, clipping=clipping)


def expected(clipping, rows, clip, shape, parameters):
    """Return the sum by a loop, with the count behind it where there is one."""
    inner = clipping.bound
    if isinstance(inner, PerLayer):
        moved = whitened(rows.double(), shape.scale, shape.shift)
        total = clipped_by_layer(moved, clip, layers_of(parameters))
    else:
        oracle = {
            "threshold()": oracles.threshold,
            "automatic(gamma=0.5)": oracles.automatic(0.5),
            "ellipsoid()": oracles.ellipsoid,
        }[repr(inner)]
        total = oracle(rows, clip, shape.scale, shape.shift)
    if not isinstance(clipping.control, Adaptive):
        return total
    norms = whitened(rows.double(), shape.scale, shape.shift).norm(dim=1)
    count = sum(0.5 if float(norm) <= clip else -0.5 for norm in norms if norm.isfinite())
    return torch.cat([total, torch.tensor([count * clip], dtype=torch.float64)])


# ---------------------------------------------------------------------- the checks


def sums_equal_the_loop():
    ways = [threshold(), automatic(0.5), per_layer(), ellipsoid(), adaptive()]
    for number, name in enumerate(MODELS):
        model, batch = make(name, torch.float64, size=6)
        parameters = Parameters(model)
        rows = gradients(model, entropy, batch.inputs, batch.targets)
        few = next(make(name, torch.float64, size=3)[1].chunks(3))
        engines = ENGINES if number == 0 else ENGINES[:1]
        for engine in [engine_of(how, model, entropy, few, threshold()) for how in engines]:
            for kind in ("isotropic", "shifted"):
                shape = scaling(kind, parameters.size, torch.float64)
                norms = whitened(rows, shape.scale, shape.shift).norm(dim=1)
                for engine.clipping in ways:
                    for clip in (0.3 * float(norms.min()), float(norms.median()) * 1.01):
                        found = engine.clipped_sum(batch, shape, clip).value
                        true = expected(engine.clipping, rows, clip, shape, parameters)
                        assert float((found - true).norm()) <= 1e-9 * float(true.norm())


def batches_in_parts_and_filled_up_give_the_same():
    for how in ENGINES:
        model, batch = make("mlp", torch.float64, size=5)
        engine = engine_of(how, model, entropy, batch, adaptive())
        engine.pad(batch)
        whole = engine.clipped_sum(batch, ISOTROPIC, 0.5)
        more = torch.cat([batch.inputs, 3 * torch.ones(3, 6, dtype=torch.float64)])
        targets = torch.cat([batch.targets, torch.zeros(3, dtype=torch.int64)])
        filled = engine.clipped_sum(Batch(more, targets, None, 3), ISOTROPIC, 0.5)
        torch.testing.assert_close(filled.value, whole.value, rtol=1e-9, atol=1e-12)
        engine._chunk = 2
        again = engine.clipped_sum(batch, ISOTROPIC, 0.5)
        torch.testing.assert_close(again.value, whole.value, rtol=1e-9, atol=1e-12)
        both = ClippedSum(whole.value, 0.5, 1) + ClippedSum(whole.value, whole.sensitivity, 1)
        assert both.sensitivity == whole.sensitivity
        torch.testing.assert_close(both.value, 2 * whole.value)


def units_are_averaged():
    rows = torch.tensor([[3.0, 0], [1.0, 0], [0, 0.5], [0, 0.1], [0, 0.3]], dtype=torch.float64)
    owners = torch.tensor([0, 0, 1, 1, 1])
    for how in ENGINES:
        model = Direct(2, torch.float64)
        engine = engine_of(how, model, add_up, batch_of(rows[:3]), adaptive().of_units())
        found = engine.clipped_sum(batch_of(rows, owners), ISOTROPIC, 1.0).value
        torch.testing.assert_close(found, torch.tensor([1.0, 0.3, 0.0]).double())
        engine.clipping = microbatches(3)
        found = engine.clipped_sum(batch_of(rows, owners), ISOTROPIC, 1.0).value
        torch.testing.assert_close(found, torch.tensor([1.0, 0.3]).double())


class Three(nn.Module):
    """Three layers whose gradients are parts of the inputs."""

    def __init__(self, dtype):
        super().__init__()
        self.layers = nn.ModuleList(nn.Module() for _ in range(3))
        for layer in self.layers:
            layer.weight = nn.Parameter(torch.zeros(2, dtype=dtype))

    def forward(self, x):
        pairs = zip(torch.split(x, 2, dim=1), self.layers, strict=True)
        return torch.cat([part * layer.weight for part, layer in pairs], dim=1)


def no_record_moves_the_sum_by_more_than_the_sensitivity():
    """One record is added to others, all of them hostile, in float32."""
    ramp = torch.arange(1.0, 7)
    hostile = [1e30 * ramp, -1e30 * ramp, ramp, 0 * ramp, 1e-30 * ramp, ramp + math.nan]
    hostile += [torch.tensor([1e20, 0, 0, 0, 1e-3, 0]), torch.full((6,), 3e38)]
    rows, scale = torch.stack(hostile), torch.tensor([0.1, 1, 2, 5, 0.3, 10])
    ways = [
        threshold(),
        automatic(),
        per_layer(),
        ellipsoid(),
        adaptive(),
        adaptive(of=per_layer()),
    ]
    for how in ENGINES:
        for clipping in ways:
            engine = engine_of(how, Three(torch.float32), add_up, batch_of(rows[2:4]), clipping)
            for shape in (ISOTROPIC, FlatScaling(scale, -scale), FlatScaling(scale, None)):
                base = engine.clipped_sum(batch_of(rows[:1]), shape, 0.5)
                assert bool(torch.isfinite(base.value).all())
                for row in rows:
                    more = engine.clipped_sum(batch_of(torch.stack([rows[0], row])), shape, 0.5)
                    move = float((more.value.double() - base.value.double()).norm())
                    assert move <= base.sensitivity * (1 + 1e-5)
    assert microbatches(2).sensitivity(0.5) == 1.0
    engine = engine_of("loop", Three(torch.float32), add_up, batch_of(rows[2:4]), microbatches(2))
    far, groups = torch.stack([1e9 * ramp, -3e9 * ramp]), torch.zeros(2, dtype=torch.int64)
    whole = engine.clipped_sum(batch_of(far, groups), ISOTROPIC, 0.5)
    less = engine.clipped_sum(batch_of(far[:1], groups[:1]), ISOTROPIC, 0.5)
    assert float((whole.value - less.value).norm()) <= whole.sensitivity * (1 + 1e-5)


def a_short_gradient_of_huge_and_tiny_factors_is_kept():
    model = nn.Linear(3, 2, bias=False)
    example = Batch(torch.rand(3, 3), torch.rand(3, 2))
    engine = engine_of("one-pass", model, add_up, example, threshold())
    batch = Batch(torch.full((1, 3), 1e-38), torch.full((1, 2), 1e37))
    found = engine.clipped_sum(batch, ISOTROPIC, 1.0).value
    torch.testing.assert_close(found, torch.full((6,), 0.1), rtol=1e-2, atol=0.0)


def one_record_that_is_not_finite_is_as_if_absent():
    rows = torch.ones(3, 6, dtype=torch.float64)
    spoilt = rows.clone()
    spoilt[1, 4] = math.inf
    for how in ENGINES:
        for clipping in (threshold(), per_layer(), adaptive()):
            engine = engine_of(how, Three(torch.float64), add_up, batch_of(rows), clipping)
            found = engine.clipped_sum(batch_of(spoilt), ISOTROPIC, 0.5).value
            rest = engine.clipped_sum(batch_of(rows[:2]), ISOTROPIC, 0.5).value
            torch.testing.assert_close(found, rest, rtol=1e-12, atol=1e-12)


def clip_norms_follow_releases():
    clipping, turns = adaptive(), InTurns(((2, 1.0), (1, 3.0)))
    state = clipping.init(1.0)
    for count, larger in ((50.0, False), (-50.0, True)):
        statistics = torch.tensor([count])
        release = released(torch.zeros(1), 1.0, 100.0, statistics=statistics)
        found = clipping.norm(clipping.seen(release, state))
        assert found == pytest.approx(math.exp(-0.2 * (0.5 + count / 100 - 0.5)))
        assert (found > 1.0) == larger
    assert [turns.norm({"seen": step}) for step in range(4)] == [1.0, 1.0, 3.0, 1.0]
    ratio = clipping.calibrated(1.0, 100.0).control.ratio
    assert math.sqrt(1 / ratio**2 + 0.25) == pytest.approx(5.0)


CHECKS = [
    sums_equal_the_loop,
    batches_in_parts_and_filled_up_give_the_same,
    units_are_averaged,
    no_record_moves_the_sum_by_more_than_the_sensitivity,
    a_short_gradient_of_huge_and_tiny_factors_is_kept,
    one_record_that_is_not_finite_is_as_if_absent,
    clip_norms_follow_releases,
]


def caught():
    """Return the names of the checks that fail, up to the first."""
    for check in CHECKS:
        try:
            check()
        except Exception:
            return check.__name__
    return None


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_without_a_bug_every_check_passes(check):
    check()


# ---------------------------------------------------------------------- the bugs


def changed(owner, name, change):
    """Return a bug: a function or a method whose result is another one."""

    def plant(monkeypatch):
        before = getattr(owner, name)

        def wrong(*args, **kwargs):
            return change(before(*args, **kwargs), *args)

        monkeypatch.setattr(owner, name, wrong)

    return plant


def instead(owner, name, wrong):
    """Return a bug: something in the place of a function, a method or a property."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, wrong)


def first_row_is_one(kept, *_):
    kept[0] = 1.0
    return kept


def first_contribution_not_clipped(monkeypatch):
    before = OnePassEngine._added

    def wrong(self, total, contributions, kept, layers):
        total = before(self, total, contributions[1:], kept, layers)
        contributions[0].add_to(total, torch.ones_like(kept if kept.ndim == 1 else kept[0]))
        return total

    monkeypatch.setattr(OnePassEngine, "_added", wrong)


def repeated_tokens_apart(self, weights):
    flat = self.outputs.reshape(len(self.outputs), -1)
    return contributions.row_squares(flat)


def of_tied_without_cross_term(rows, outer, weights):
    return rows.squared_norms(weights) + outer.squared_norms(weights)


def sums(rows, groups):
    for some in averages.averages(rows, groups):
        yield 2 * some


def not_centred(self, norms, clip):
    return ((norms <= clip).double().sum()[None]) * clip


def not_bounded(self, norms, clip):
    return norms[torch.isfinite(norms)].sum()[None]


def counts_what_is_not_finite(self, norms, clip):
    return ((norms <= clip).double() - 0.5).sum()[None] * clip


def larger(share):
    return lambda found, *_: share * found


def seen_with_the_sign_flipped(self, release, state):
    count = float(release.statistics) / (self.ratio * state["clip"]) / release.batch_size
    move = self.rate * (0.5 + count - self.quantile)
    return {"clip": state["clip"] * math.exp(move), "first": state["first"]}


BUGS = {
    "factors without a minimum": instead(
        bounds.Threshold, "factors", lambda self, norms, clip: clip / norms.clamp(min=1e-30)
    ),
    "no factors": instead(
        bounds.Threshold, "factors", lambda self, norms, clip: torch.ones_like(norms)
    ),
    "factors from squared norms": instead(
        bounds.Threshold, "factors", lambda self, norms, clip: clip / norms.square().clamp(min=clip)
    ),
    "factors a little too large": changed(bounds.Threshold, "factors", larger(1.001)),
    "factors of another example": changed(
        one_pass, "factors_in", lambda found, *_: found.roll(1, dims=-1)
    ),
    "automatic without gamma": instead(
        bounds.Automatic, "factors", lambda self, norms, clip: self.gamma / norms.clamp(min=1e-30)
    ),
    "automatic not finished": instead(
        bounds.Automatic, "finish_", lambda self, total, clip: total
    ),
    "no projection": instead(
        projection, "projected", lambda rows, scale, clip: rows.nan_to_num(0, 0, 0)
    ),
    "one layer of several not clipped": changed(PerLayer, "factors", first_row_is_one),
    "one contribution not clipped": first_contribution_not_clipped,
    "every layer has the whole clip norm": changed(
        PerLayer, "factors", lambda found, self, norms, clip: clip / norms.clamp(min=clip)
    ),
    "all parameters in one layer": changed(
        PerLayer, "block_of", lambda found, *_: 0
    ),
    "a tied weight counted once": changed(
        recorded_model, "combine", lambda found, parts, *_: parts[0]
    ),
    "tied norms without the cross term": instead(
        combining.Sum, "_of_tied", staticmethod(of_tied_without_cross_term)
    ),
    "norms of dense gradients left out": changed(
        contributions.DenseGrad, "squared_norms", larger(0.0)
    ),
    "norms of matrices too small": changed(
        outer_products.OuterProductGrad, "squared_norms", larger(0.99)
    ),
    "repeated tokens squared one by one": instead(
        contributions.EmbeddingGrad, "squared_norms", repeated_tokens_apart
    ),
    "norms without the scale": instead(OnePassEngine, "_weights_of", lambda self, scaling: None),
    "shift not subtracted": instead(one_pass, "_subtract_shift_", lambda *given: None),
    "shift not in the norm": changed(
        OnePassEngine, "_norms",
        lambda found, self, parts, size, scaling, layers=None: torch.where(
            found.isfinite(), 0.9 * found, found
        ) if scaling.shift is not None else found,
    ),
    "padding counted": changed(
        Batch, "__post_init__", lambda _, self: object.__setattr__(self, "size", self.rows)
    ),
    "only the first chunk": changed(
        Batch, "chunks", lambda found, *_: iter(list(found)[:1])
    ),
    "mean instead of sum": changed(
        Clipping, "clipped",
        lambda found, self, total, *_: ClippedSum(
            found.value / 6, found.sensitivity, found.extra
        ),
    ),
    "units summed instead of averaged": instead(clips, "averages", sums),
    "what is not finite is kept": changed(
        OnePassEngine, "_norms_and_plain", lambda found, *_: (found[0].nan_to_num(1.0, 1.0), None)
    ),
    "micro-batches with the sensitivity of records": instead(
        Clipping, "sensitivity", lambda self, clip: self.control.sensitivity(clip)
    ),
    "the count not in the sensitivity": instead(Adaptive, "sensitivity", lambda self, clip: clip),
    "the count not centred": instead(Adaptive, "statistics", not_centred),
    "the extra coordinate not bounded": instead(Adaptive, "statistics", not_bounded),
    "the count of what is not finite": instead(Adaptive, "statistics", counts_what_is_not_finite),
    "the clip norm moves the wrong way": instead(Adaptive, "seen", seen_with_the_sign_flipped),
    "a turn too long": changed(InTurns, "norm", lambda found, self, state: 1.0),
    "the ratio not calibrated": instead(Adaptive, "calibrated", lambda self, z, batch: self),
    "the smaller of two sensitivities": changed(
        ClippedSum, "__add__",
        lambda found, a, b: ClippedSum(found.value, min(a.sensitivity, b.sensitivity), found.extra),
    ),
    "the loop forgets the last row": changed(
        reference.PerExampleEngine, "rows", lambda found, *_: (some[:-1] for some in found)
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_every_planted_bug_is_caught(bug, monkeypatch):
    BUGS[bug](monkeypatch)
    assert caught() is not None, f"no check noticed: {bug}"
    assert norm_controls.CONSTANT.coordinates == 0
