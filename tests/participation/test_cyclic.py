"""Units in turns: who is where, how often, and that nobody's part depends on others."""

import numpy as np
import pytest
from scipy import stats

import privada as pv
from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.randomness import SeededSource
from privada.participation import Cyclic, CyclicPoisson, CyclicPoissonSampler, Poisson


def dealt(units=60, rate=0.5, parts=4, seed=0):
    return CyclicPoissonSampler(units, rate, parts).deal(SeededSource(seed, "sampling"))


def test_each_unit_comes_in_every_so_many_steps_alone():
    sampler, rng = dealt(), SeededSource(1, "sampling")
    seen = [set() for _ in range(60)]
    for step in range(400):
        for unit in sampler.draw(step, rng):
            seen[unit].add(step % 4)
    assert all(len(places) == 1 for places in seen)


def test_parts_share_nobody_and_leave_nobody_out():
    sampler = dealt(rate=1.0)
    drawn = [sampler.draw(step, SeededSource(step, "sampling")) for step in range(4)]
    assert sorted(np.concatenate(drawn)) == list(range(60))
    assert sum(each.size for each in drawn) == 60


def test_parts_are_uniform_and_those_of_two_units_are_independent():
    kind, rng = CyclicPoissonSampler(2, 1.0, 3), SeededSource(2, "sampling")
    counts = np.zeros((3, 3))
    for _ in range(6000):
        members = kind.deal(rng).members
        first, second = (
            next(k for k, part in enumerate(members) if unit in part) for unit in (0, 1)
        )
        counts[first, second] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 1e-6


def test_within_a_part_coins_are_independent_at_the_rate():
    sampler, rng = dealt(units=30, rate=0.3, parts=2), SeededSource(3, "sampling")
    rounds, counts = 4000, np.zeros(30)
    for step in range(2 * rounds):
        counts[sampler.draw(step, rng)] += 1
    deviations = (counts - rounds * 0.3) / np.sqrt(rounds * 0.3 * 0.7)
    assert np.abs(deviations).max() < stats.norm.isf(1e-6 / 60)


def test_a_part_may_be_empty():
    sampler = dealt(units=1, rate=1.0, parts=50)
    sizes = [sampler.draw(step, SeededSource(1, "sampling")).size for step in range(50)]
    assert sorted(sizes) == [0] * 49 + [1]


def test_the_event_is_a_poisson_one_at_so_many_times_the_rate():
    sampler = CyclicPoisson(5).among(1000, batch_size=20)
    assert sampler.event(1.5) == events.poisson(0.1, 1.5)
    assert CyclicPoisson(5).among(1000, batch_size=200).event(1.5) == events.gaussian(1.5)
    assert isinstance(sampler, Cyclic)
    assert not isinstance(Poisson().among(1000, batch_size=20), Cyclic)


def test_a_public_population_sets_the_rate():
    assert CyclicPoisson(4).among(38, 5, population=40).sampling_rate == 0.5


@pytest.mark.parametrize("size", [251, 0, -1, float("nan"), float("inf")])
def test_a_batch_that_a_part_does_not_hold_is_refused(size):
    with pytest.raises(ArgumentError):
        CyclicPoisson(4).among(1000, size)


@pytest.mark.parametrize("wrong", [0, -2, 1.5, True, "4"])
def test_parts_must_be_a_whole_number(wrong):
    with pytest.raises(ArgumentError, match="parts"):
        CyclicPoisson(wrong)


def test_who_is_in_which_part_is_not_shown():
    assert "private" in repr(dealt())
    assert "members" not in repr(dealt())


def test_one_part_costs_what_poisson_sampling_costs():
    one, other = (kind.among(500, 10).event(2.0) for kind in (CyclicPoisson(1), Poisson()))
    assert one == other
    assert pv.accounting.epsilon_of({one: 10}, 1e-5) == pv.accounting.epsilon_of({other: 10}, 1e-5)
