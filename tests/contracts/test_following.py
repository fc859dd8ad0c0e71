"""What every noise schedule that follows the releases must do."""

import copy
import math

import pytest
import torch

import privada as pv
from privada.accounting.filters import lattice_event
from privada.core.errors import ArgumentError
from privada.noise.following import on_lattice
from tests.releases import released

SCHEDULES = {
    "norm": pv.noise.follow_norm(first=2.0),
    "norm, denoised": pv.noise.follow_norm(first=2.0, denoised=True),
    "moment": pv.noise.follow_moment(beta=0.9),
    "descent": pv.noise.when_descent_stops(window=5),
}
OUTLOOK = pv.noise.Outlook(coordinates=6, std=0.3, bound=1.0)


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return SCHEDULES[request.param]


def some_releases(count, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        released(scale * torch.randn(6, generator=generator), noise_std=0.3, batch_size=1.0)
        for _ in range(count)
    ]


def followed(schedule, releases, state=None):
    state = schedule.init() if state is None else state
    for release in releases:
        state = schedule.seen(release, state)
    return state


def test_it_is_a_following_schedule_with_values_that_compare(schedule):
    assert isinstance(schedule, pv.noise.FollowingSchedule)
    assert copy.deepcopy(schedule) == schedule
    assert not isinstance(schedule, pv.noise.Schedule)


def test_the_first_release_has_the_factor_one(schedule):
    assert schedule.factor(schedule.init()) == 1.0


def test_factors_are_positive_and_finite(schedule):
    for scale in (0.0, 1e-30, 1.0, 1e15):
        factor = schedule.factor(followed(schedule, some_releases(30, scale)))
        assert 0 < factor < math.inf


def test_a_state_is_not_changed_in_place_and_decides_all(schedule):
    state = followed(schedule, some_releases(7))
    kept = copy.deepcopy(state)
    one = schedule.factor(followed(schedule, some_releases(9, seed=1), state))
    again = schedule.factor(followed(schedule, some_releases(9, seed=1), kept))
    assert one == again
    for key, value in kept.items():
        same = torch.equal(value, state[key]) if torch.is_tensor(value) else value == state[key]
        assert same, key


@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_a_release_that_is_not_finite_changes_nothing(schedule, wild):
    state = followed(schedule, some_releases(4))
    (release,) = some_releases(1)
    release.value[2] = wild
    assert schedule.factor(schedule.seen(release, state)) == schedule.factor(state)


@pytest.mark.parametrize("count", [0, 1, 2, 77, 40_000])
def test_a_forecast_is_of_as_many_releases_as_asked_for(schedule, count):
    for state in (schedule.init(), followed(schedule, some_releases(12))):
        parts = schedule.forecast(state, count, OUTLOOK)
        assert sum(length for length, _ in parts) == count
        assert all(length > 0 and 0 < factor < math.inf for length, factor in parts)
        assert len(parts) < 400
        if count:
            assert parts[0][1] == pytest.approx(schedule.factor(state))


def test_states_can_be_kept_in_a_checkpoint(schedule, tmp_path):
    state = followed(schedule, some_releases(12))
    torch.save(state, tmp_path / "state")
    kept = torch.load(tmp_path / "state", weights_only=True)
    assert schedule.factor(kept) == schedule.factor(state)


# ---------------------------------------------------------------------- what each follows


def test_the_norm_is_that_of_adagrad():
    schedule, rule = pv.noise.follow_norm(2.0), pv.updates.adagrad_norm(2.0, 1e-5)
    parameters = torch.nn.Linear(5, 1)
    total = rule.init(parameters)
    state = schedule.init()
    for release in some_releases(20):
        _, total = rule.update(release, total, parameters, 1.0)
        state = schedule.seen(release, state)
        assert state["total"] == total["total"]
        assert schedule.factor(state) == pytest.approx((total["total"] / 2) ** 0.25)


def test_a_denoised_norm_subtracts_what_noise_is_expected_to_be():
    value = torch.tensor([3.0, 4.0])
    release = released(2 * value, noise_std=1.0, batch_size=2.0)
    assert release.noise_square == pytest.approx(0.5)
    raw, clean = pv.noise.follow_norm(1.0), pv.noise.follow_norm(1.0, denoised=True)
    assert raw.seen(release, raw.init())["total"] == pytest.approx(26.0)
    assert clean.seen(release, clean.init())["total"] == pytest.approx(25.5)
    rule = pv.updates.adagrad_norm(1.0, denoised=True)
    _, state = rule.update(release, rule.init(None), None, 1.0)
    assert state["total"] == pytest.approx(25.5)


def test_the_moment_falls_with_the_releases():
    schedule = pv.noise.follow_moment(beta=0.5)
    state = followed(schedule, some_releases(10, 1.0))
    high = schedule.factor(state)
    assert schedule.factor(followed(schedule, some_releases(60, 0.1), state)) < 0.6 * high


def test_noise_shrinks_when_releases_no_longer_agree():
    schedule = pv.noise.when_descent_stops(shrink=0.5, window=10)
    direction = torch.ones(6)
    agreeing = [released(direction + r.value * 0.1, 0.1, 1.0) for r in some_releases(60)]
    state = followed(schedule, agreeing)
    assert schedule.factor(state) == 1.0
    state = followed(schedule, some_releases(200, scale=0.3), state)
    assert schedule.factor(state) == schedule.least


@pytest.mark.parametrize("multiplier", [1e-3, 0.37, 1.0, 2.5, 800.0])
def test_multipliers_are_on_the_lattice_of_the_filters(multiplier):
    near = on_lattice(multiplier)
    assert multiplier / 1.006 < near < multiplier * 1.006
    event = pv.accounting.events.poisson(0.01, near)
    assert pv.accounting.events.multiplier(lattice_event(event)) == pytest.approx(near, rel=1e-12)


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (pv.noise.follow_norm, {"first": 0.0}, "first"),
        (pv.noise.follow_norm, {"least": -1.0}, "least"),
        (pv.noise.follow_norm, {"denoised": "yes"}, "denoised"),
        (pv.noise.follow_moment, {"beta": 1.0}, "beta"),
        (pv.noise.follow_moment, {"least": 2.0}, "least <= 1 <= most"),
        (pv.noise.when_descent_stops, {"shrink": 0.0}, "shrink"),
        (pv.noise.when_descent_stops, {"shrink": 1.5}, "shrink"),
        (pv.noise.when_descent_stops, {"window": 0}, "window"),
    ],
)
def test_wrong_settings_are_refused(make, given, words):
    with pytest.raises(ArgumentError, match=words):
        make(**given)
