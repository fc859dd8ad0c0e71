"""How the clip norm follows from releases, and the statistics that it follows from."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import privada as pv
from privada.clipping import (
    Batch,
    Clipping,
    adaptive,
    automatic,
    ellipsoid,
    in_turns,
    make_engine,
    microbatches,
    threshold,
)
from privada.clipping.bounds import Threshold
from privada.clipping.norm_controls import Adaptive, Constant, InTurns
from privada.clipping.one_pass import OnePassEngine
from privada.core.errors import ArgumentError
from privada.core.randomness import SeededSource
from privada.core.tensors import Parameters
from privada.core.values import ClippedSum
from privada.noise import GaussianNoise
from privada.preconditioning import FlatScaling
from tests.contracts.test_clippings import (
    SHAPES,
    SIZE,
    Direct,
    add_up,
    adversarial,
    batch_of,
    moved_by,
    shape_of,
)
from tests.contracts.test_engines import make, scaling
from tests.oracles import clippings as oracles
from tests.oracles.examples import gradients, whitened
from tests.releases import paid, released

ENGINES = ("one-pass", "vmap", "loop")
ISOTROPIC = FlatScaling(None, None)
entropy = functional.cross_entropy
BOUNDS = {
    "threshold": (threshold(), oracles.threshold),
    "automatic": (automatic(), oracles.automatic(0.01)),
    "ellipsoid": (ellipsoid(), oracles.ellipsoid),
}


def seen(statistic, batch_size=100.0):
    """Return a release that has one statistic, or none."""
    found = None if statistic is None else torch.tensor([statistic], dtype=torch.float64)
    return released(torch.zeros(2), 1.0, batch_size, statistics=found)


# ---------------------------------------------------------------------- states


@pytest.mark.parametrize("clipping", [threshold(), in_turns((2, 0.5), (1, 3.0)), adaptive()])
def test_a_state_is_plain_numbers_that_a_checkpoint_can_hold(clipping):
    state = clipping.init(0.5)
    for _ in range(3):
        assert json.loads(json.dumps(state)) == state
        assert isinstance(clipping.norm(state), float)
        state = clipping.seen(seen(0.1), state)


def test_the_clip_norm_is_constant_by_default():
    clipping = threshold()
    state = clipping.seen(seen(None), clipping.init(0.7))
    assert clipping.norm(state) == 0.7
    assert clipping.calibrated(1.0, 64) == clipping
    assert clipping.control == Constant()


def test_turns_follow_each_other_and_begin_again():
    clipping = in_turns((2, 0.5), (3, 4.0), (1, 7.0))
    state, found = clipping.init(123.0), []
    for _ in range(14):
        found.append(clipping.norm(state))
        state = clipping.seen(seen(None), state)
    assert found == ([0.5] * 2 + [4.0] * 3 + [7.0]) * 2 + [0.5] * 2
    assert [clipping.sensitivity(each) for each in (0.5, 4.0)] == [0.5, 4.0]


def test_a_control_goes_with_every_bound():
    assert in_turns((2, 0.5), of=automatic()).bound == automatic().bound
    assert in_turns((2, 0.5), of=microbatches(4)).sensitivity(0.5) == 1.0
    assert adaptive(of=ellipsoid()).bound == ellipsoid().bound
    assert adaptive().of_units().control == adaptive().control
    assert adaptive(of=in_turns((2, 0.5))) == adaptive()


def test_controls_say_what_they_are():
    words = "adaptive(quantile=0.5, rate=0.2, count_noise=0.05)"
    assert repr(adaptive()) == words == repr(adaptive().calibrated(1.0, 512))
    assert repr(adaptive(of=automatic())) == f"{words} of automatic(gamma=0.01)"
    assert repr(in_turns((2, 0.5), (3, 4))) == "in_turns((2, 0.5), (3, 4))"
    assert repr(in_turns((2, 0.5), of=microbatches(4))) == "in_turns((2, 0.5)) of microbatches(4)"
    assert Constant().describe() == "constant"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: in_turns(), "at least one turn"),
        (lambda: in_turns((1.5, 1.0)), "Expected steps"),
        (lambda: in_turns((0, 1.0)), "Expected steps"),
        (lambda: in_turns((3, -1.0)), "Expected norm"),
        (lambda: in_turns((3,)), "a pair"),
        (lambda: in_turns(0.5), "a pair"),
        (lambda: adaptive(quantile=0), "Expected quantile"),
        (lambda: adaptive(quantile=1), "Expected quantile"),
        (lambda: adaptive(rate=0), "Expected rate"),
        (lambda: adaptive(count_noise=-1), "Expected count_noise"),
        (lambda: adaptive(of=Threshold()), "Expected clipping"),
        (lambda: Clipping(Threshold(), control="adaptive"), "Expected control"),
        (lambda: Clipping(Threshold(), control=Adaptive), "Expected control"),
        (lambda: adaptive(of=microbatches(4)), "micro-batches of 4"),
        (lambda: adaptive().calibrated(0, 64), "Expected noise_multiplier"),
        (lambda: adaptive().calibrated(1.0, 0), "Expected batch_size"),
        (lambda: adaptive().init(0.0), "Expected clip"),
    ],
)
def test_wrong_settings_are_refused(wrong, words):
    with pytest.raises(ArgumentError, match=words):
        wrong()


# ---------------------------------------------------------------------- the adaptive clip norm


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_clip_norm_moves_geometrically_to_the_quantile(share):
    """Fewer short gradients than wanted: a larger clip norm; more: a smaller one."""
    clipping = adaptive(quantile=0.3, rate=0.5)
    kappa = 2.0  # the ratio is one
    release = seen(kappa * 100 * (share - 0.5))
    found = clipping.norm(clipping.seen(release, clipping.init(2.0)))
    assert found == pytest.approx(2.0 * math.exp(-0.5 * (share - 0.3)), rel=1e-9)
    assert (found > 2.0) == (share < 0.3)


@pytest.mark.parametrize("statistic", [1e9, -1e9, 1e300, -1e300])
def test_the_clip_norm_stays_within_four_powers_of_ten_of_the_first(statistic):
    clipping, first = adaptive(), 0.3
    state = clipping.init(first)
    state = clipping.seen(seen(statistic), state)
    # a share of short gradients is between 0 and 1, however loud the noise
    assert abs(math.log(clipping.norm(state) / first)) == pytest.approx(0.2 * 0.5)
    for _ in range(100):
        state = clipping.seen(seen(statistic), state)
    expected = first * (1e-4 if statistic > 0 else 1e4)
    assert clipping.norm(state) == pytest.approx(expected, rel=1e-9)


def test_a_release_without_the_count_is_refused():
    clipping = adaptive()
    with pytest.raises(ArgumentError, match="noisy count"):
        clipping.seen(seen(None), clipping.init(1.0))


@given(z=st.floats(0.2, 20), batch=st.floats(1, 1e6), noise=st.floats(1e-3, 0.5))
@settings(max_examples=200, deadline=None)
def test_the_ratio_gives_the_count_the_noise_that_was_asked_for(z, batch, noise):
    found = adaptive(count_noise=noise).calibrated(z, batch)
    ratio = found.control.ratio
    assert 0 < ratio <= 1
    std = z * found.sensitivity(3.0) / (ratio * 3.0)  # of the count, in units
    if ratio < 1:
        assert std == pytest.approx(noise * batch, rel=1e-6)
        # Theorem 1 of Andrew et al.: z^-2 = (noise multiplier of gradients)^-2 + (2 std)^-2
        gradients_z = z * found.sensitivity(3.0) / 3.0
        assert gradients_z**-2 + (2 * std) ** -2 == pytest.approx(z**-2, rel=1e-6)
    else:
        assert std >= noise * batch * (1 - 1e-9)


def test_before_calibration_the_ratio_is_one():
    assert adaptive().control.ratio == 1
    assert adaptive().sensitivity(2.0) == pytest.approx(2 * math.sqrt(1.25))


def test_the_clip_norm_finds_the_quantile_of_the_norms():
    model = Direct(2, torch.float64)
    generator = torch.Generator().manual_seed(3)
    lengths = torch.exp(torch.randn(400, generator=generator, dtype=torch.float64))
    rows = torch.stack([lengths, torch.zeros_like(lengths)], dim=1)
    clipping = adaptive(quantile=0.7).calibrated(1.0, 400)
    engine = make_engine("one-pass", model, add_up, Parameters(model), batch_of(rows[:3]), clipping)
    noise, state = GaussianNoise(SeededSource(1, "noise")), clipping.init(0.01)
    found = []
    for _ in range(150):
        clipped = engine.clipped_sum(batch_of(rows), ISOTROPIC, clipping.norm(state))
        state = clipping.seen(noise.release(clipped, paid(1.0), 400.0), state)
        found.append(clipping.norm(state))
    true = float(torch.quantile(lengths, 0.7))
    late = torch.tensor(found[-80:]).log().mean().exp()
    assert float(late) == pytest.approx(true, rel=0.1)


# ---------------------------------------------------------------------- the count in the sum


def expected_count(rows, shape, clip, kappa):
    norms = whitened(rows.double(), shape.scale, shape.shift).norm(dim=1)
    return kappa * float(sum(0.5 if norm <= clip else -0.5 for norm in norms if norm.isfinite()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "shifted"])
@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", BOUNDS)
def test_the_count_is_one_more_coordinate_of_the_same_sum(name, how, kind, dtype):
    base, oracle = BOUNDS[name]
    clipping = adaptive(of=base).calibrated(1.0, 64)
    model, batch = make("mlp", dtype, size=9)
    parameters = Parameters(model)
    shape = scaling(kind, parameters.size, dtype)
    engine = make_engine(how, model, entropy, parameters, batch, clipping)
    rows = gradients(model, entropy, batch.inputs, batch.targets)
    norms = whitened(rows.double(), shape.scale, shape.shift).norm(dim=1)
    for clip in (1e-3, float(norms.median()) * 1.01, 1e6):
        found = engine.clipped_sum(batch, shape, clip)
        assert found.extra == 1
        assert found.value.shape == (parameters.size + 1,)
        assert found.sensitivity == clipping.sensitivity(clip)
        expected = oracle(rows, clip, shape.scale, shape.shift)
        torch.testing.assert_close(found.value[:-1].double(), expected, rtol=1e-3, atol=1e-4 * clip)
        count = expected_count(rows, shape, clip, clipping.control.ratio * clip)
        assert float(found.value[-1]) == pytest.approx(count, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", BOUNDS)
def test_no_record_moves_sum_and_count_by_more_than_the_sensitivity(name, how, kind, dtype):
    model = Direct(SIZE, dtype)
    example = Batch(torch.rand(3, SIZE, dtype=dtype), torch.ones(3, SIZE, dtype=dtype))
    for ratio_batch in (8, 512):
        clipping = adaptive(of=BOUNDS[name][0]).calibrated(1.0, ratio_batch)
        engine = make_engine(how, model, add_up, Parameters(model), example, clipping)
        shape, hostile = shape_of(kind, dtype), adversarial(dtype)
        generator = torch.Generator().manual_seed(5)
        for turn in range(30):
            picked = torch.randint(len(hostile), (1 + turn % 4,), generator=generator)
            clip = (1e-3, 0.5, 20.0)[turn % 3]
            most, sensitivity = moved_by(engine, hostile[picked].contiguous(), None, shape, clip)
            assert most <= sensitivity * (1 + 1e-6)


@pytest.mark.parametrize("how", ENGINES)
def test_the_sensitivity_with_the_count_is_used_up(how):
    model = Direct(SIZE, torch.float64)
    far = 1e9 * torch.ones(2, SIZE, dtype=torch.float64)
    engine = make_engine(how, model, add_up, Parameters(model), batch_of(far), adaptive())
    most, sensitivity = moved_by(engine, far, None, ISOTROPIC, 0.5)
    assert most == pytest.approx(sensitivity, rel=1e-6)


@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_unit_that_is_not_finite_is_as_if_absent(name, how, bad):
    """It adds nothing to the sum and nothing to the count."""
    model, rows = Direct(SIZE, torch.float64), torch.ones(4, SIZE, dtype=torch.float64)
    clipping = adaptive(of=BOUNDS[name][0])
    engine = make_engine(how, model, add_up, Parameters(model), batch_of(rows[:3]), clipping)
    spoilt = rows.clone()
    spoilt[2, 3] = bad
    found = engine.clipped_sum(batch_of(spoilt), ISOTROPIC, 0.7)
    rest = engine.clipped_sum(batch_of(rows[[0, 1, 3]]), ISOTROPIC, 0.7)
    torch.testing.assert_close(found.value, rest.value, rtol=1e-12, atol=1e-12)
    alone = engine.clipped_sum(batch_of(spoilt[2:3]), ISOTROPIC, 0.7)
    assert torch.equal(alone.value, torch.zeros(SIZE + 1, dtype=torch.float64))


@pytest.mark.parametrize("how", ENGINES)
def test_an_empty_batch_counts_nobody(how):
    model, batch = make("mlp", torch.float32, size=3)
    parameters = Parameters(model)
    engine = make_engine(how, model, entropy, parameters, batch, adaptive())
    found = engine.clipped_sum(None, ISOTROPIC, 0.7)
    assert torch.equal(found.value, torch.zeros(parameters.size + 1))
    assert found.extra == 1


@pytest.mark.parametrize("how", ENGINES)
def test_examples_that_fill_up_a_batch_are_not_counted(how):
    model, batch = make("mlp", torch.float64, size=5)
    engine = make_engine(how, model, entropy, Parameters(model), batch, adaptive(), expected=64)
    assert how == "loop" or engine.padding.size(5) > 5
    assert float(engine.clipped_sum(batch, ISOTROPIC, 1e6).value[-1]) == pytest.approx(2.5e6)
    assert float(engine.clipped_sum(batch, ISOTROPIC, 1e-6).value[-1]) == pytest.approx(-2.5e-6)
    inputs = torch.cat([batch.inputs, torch.full((3, 6), 1e3, dtype=torch.float64)])
    padded = Batch(inputs, torch.cat([batch.targets, torch.zeros(3, dtype=torch.int64)]), None, 3)
    assert float(engine.clipped_sum(padded, ISOTROPIC, 1e6).value[-1]) == pytest.approx(2.5e6)


@pytest.mark.parametrize("how", ENGINES)
def test_a_unit_of_several_rows_is_counted_once_by_its_average(how):
    model = Direct(2, torch.float64)
    rows = torch.tensor([[3.0, 0], [-3.0, 0], [0, 2.0], [0, 2.0], [5.0, 0]], dtype=torch.float64)
    owners = torch.tensor([0, 0, 1, 1, 2])
    clipping = adaptive().of_units()
    engine = make_engine(how, model, add_up, Parameters(model), batch_of(rows[:3]), clipping)
    found = engine.clipped_sum(batch_of(rows, owners), ISOTROPIC, 1.0)
    # averages of norm 0, 2 and 5: one short, two long
    torch.testing.assert_close(found.value, torch.tensor([1.0, 1.0, -0.5]).double())
    assert found.sensitivity == adaptive().sensitivity(1.0)


def test_a_model_that_the_engine_loses_track_of_is_counted_alike():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.late = nn.Linear(4, 3), nn.Linear(4, 3), False

        def forward(self, x):
            return self.first(x) + (self.second(x) if self.late else 0)

    model, generator = Late().double(), torch.Generator().manual_seed(2)
    inputs, targets = torch.randn(11, 4, generator=generator).double(), torch.arange(11) % 3
    few = Batch(inputs[:3], targets[:3])
    engine = OnePassEngine(model, entropy, Parameters(model), few, clipping=adaptive())
    model.late = True
    rows = gradients(model, entropy, inputs, targets)
    clip = float(rows.norm(dim=1).median()) * 1.001
    found = engine.clipped_sum(Batch(inputs, targets), ISOTROPIC, clip)
    assert float(found.value[-1]) == pytest.approx(expected_count(rows, ISOTROPIC, clip, clip))


# ---------------------------------------------------------------------- releases


def test_the_count_gets_the_same_noise_and_stays_beside_the_gradient():
    clipped = ClippedSum(torch.zeros(1001), 2.0, extra=1000)
    release = GaussianNoise(SeededSource(2, "noise")).release(clipped, paid(3.0), 10.0)
    assert release.value.shape == (1,)
    assert float(release.statistics.std()) == pytest.approx(6.0, rel=0.1)
    assert release.gradient.shape == (1,)
    assert release.restored(torch.ones(1), None).statistics is release.statistics
    plain = GaussianNoise(SeededSource(2, "noise")).release(
        ClippedSum(torch.zeros(3), 1.0), paid(1.0), 1.0
    )
    assert plain.statistics is None


def test_parts_of_a_batch_add_up_with_their_counts():
    model, batch = make("mlp", torch.float64, size=8)
    engine = make_engine("one-pass", model, entropy, Parameters(model), batch, adaptive())
    whole = engine.clipped_sum(batch, ISOTROPIC, 0.5)
    parts = [engine.clipped_sum(part, ISOTROPIC, 0.5) for part in batch.chunks(3)]
    both = parts[0] + parts[1] + parts[2]
    torch.testing.assert_close(both.value, whole.value, rtol=1e-10, atol=1e-12)
    assert (both.extra, both.sensitivity) == (1, whole.sensitivity)
    with pytest.raises(ArgumentError, match="extra coordinates"):
        whole + ClippedSum(whole.value, whole.sensitivity)
    with pytest.raises(ArgumentError, match="extra"):
        ClippedSum(torch.zeros(2), 1.0, extra=3)


def test_one_release_pays_for_gradient_and_count():
    """The multiplier of the event times the sensitivity of both: there is no second charge."""
    model, batch = make("mlp", torch.float64, size=8)
    clipping = adaptive().calibrated(2.0, 64)
    engine = make_engine("one-pass", model, entropy, Parameters(model), batch, clipping)
    clipped = engine.clipped_sum(batch, ISOTROPIC, 0.5)
    release = GaussianNoise(SeededSource(0, "noise")).release(clipped, paid(2.0), 64.0)
    assert release.noise_std == 2.0 * clipping.sensitivity(0.5)
    assert InTurns(((3, 1.0),)).coordinates == 0


# ---------------------------------------------------------------------- DP2, with two clip norms


def trained(clipping, preconditioner, rate, clip, steps=17):
    """Return the path of releases in turns, with noise multiplier 0.7 and the same normals."""
    model, batch = make("mlp", torch.float64, size=9)
    parameters = Parameters(model)
    engine = make_engine("one-pass", model, entropy, parameters, batch, clipping)
    generator = torch.Generator().manual_seed(5)
    normals = torch.randn(steps, parameters.size, generator=generator, dtype=torch.float64)
    state, scales, path = clipping.init(clip), preconditioner.init(parameters), []
    for step in range(steps):
        now, scales = preconditioner.at(scales, parameters)
        norm, shape = clipping.norm(state), now.on(parameters)
        clipped = engine.clipped_sum(batch, shape, norm)
        noisy = clipped.value + 0.7 * clipped.sensitivity * normals[step]
        release = now.restore(released(noisy, 0.7 * clipped.sensitivity, 9.0), shape)
        scales, state = preconditioner.seen(release, scales), clipping.seen(release, state)
        parameters.add_(release.gradient, -rate(step))
        path.append(parameters.read())
    return torch.stack(path)


class Stretched(pv.preconditioning.delayed):
    """The former way: scales times the ratio of the clip norms, at one clip norm."""

    def __init__(self, ratio, *given):
        super().__init__(*given)
        self.ratio = ratio

    def at(self, state, parameters):
        now, state = super().at(state, parameters)
        return (
            now if now is self._isotropic else replace(now, scale=now.scale * self.ratio)
        ), state


@pytest.mark.parametrize("base", [threshold(), ellipsoid()], ids=repr)
def test_dp2_trains_as_it_did_with_stretched_scales(base):
    method = pv.methods.DP2RMSProp(
        lr=0.3, adaptive_lr=0.05, plain=3, adaptive=2, decay=0.7, eps=0.02, clip=0.4,
        adaptive_clip=1.5, clipping=base,
    )  # fmt: skip
    parts, ratio = method.parts(17), 1.5 / 0.4
    found = trained(
        method.clipping, parts.preconditioner, lambda k: 0.3 if k % 5 < 3 else 0.05, method.clip
    )
    former = trained(
        base, Stretched(ratio, 3, 2, 0.7, 0.02), lambda k: 0.3 if k % 5 < 3 else 0.05 * ratio, 0.4
    )
    torch.testing.assert_close(found, former, rtol=1e-9, atol=1e-11)


def test_dp2_has_its_clip_norms_in_turns_and_keeps_the_bound():
    method = pv.methods.DP2RMSProp(
        lr=0.3, adaptive_lr=0.05, plain=3, adaptive=2, clip=0.4, adaptive_clip=1.5,
        clipping=automatic(),
    )  # fmt: skip
    assert method.clipping == in_turns((3, 0.4), (2, 1.5), of=automatic())
    assert replace(method, clip=0.8).clipping == in_turns((3, 0.8), (2, 1.5), of=automatic())
    with pytest.raises(ArgumentError, match="adaptive_clip"):
        replace(method, clipping=adaptive())
