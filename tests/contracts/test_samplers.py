"""What every sampler must do. To add one, write one file as tests/examples/coin_flips.py is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.randomness import SecureSource, SeededSource
from privada.participation import (
    CyclicPoisson,
    CyclicPoissonSampler,
    Everyone,
    FixedSize,
    FixedSizeSampler,
    FullBatchSampler,
    Participation,
    Poisson,
    PoissonSampler,
    participation,
)
from tests.examples.coin_flips import CoinFlips, CoinFlipSampler

SAMPLERS = [
    PoissonSampler(100, 0.1),
    PoissonSampler(100, 0.97),
    PoissonSampler(100, 1.0),
    PoissonSampler(1, 0.5),
    FixedSizeSampler(100, 10),
    FixedSizeSampler(100, 51),
    FixedSizeSampler(100, 97),
    FixedSizeSampler(100, 100),
    FixedSizeSampler(1, 1),
    FullBatchSampler(100),
    FullBatchSampler(1),
    CoinFlipSampler(100),
    CoinFlipSampler(13),
    CyclicPoissonSampler(100, 0.4, 4),
    CyclicPoissonSampler(100, 1.0, 3),
    CyclicPoissonSampler(1, 0.5, 2),
]


class Counted:
    """RandomSource that count what is drawn."""

    secure = False

    def __init__(self, seed=0):
        self.inner, self.bytes = SeededSource(seed, "counted"), 0

    def draw(self, size):
        self.bytes += size
        return self.inner.draw(size)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_indices_are_ascending_distinct_and_in_range(sampler):
    rng = SeededSource(1, "sampling")
    for _ in range(200):
        drawn = sampler.draw(0, rng)
        assert drawn.dtype == np.int64
        assert (np.diff(drawn) > 0).all()
        assert drawn.size == 0 or (drawn[0] >= 0 and drawn[-1] < sampler.units)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_draws_repeat_with_the_seed_and_differ_without(sampler):
    again = [sampler.draw(0, SeededSource(7, "sampling")) for _ in range(2)]
    assert np.array_equal(*again)
    drawn = {bytes(sampler.draw(0, SecureSource())) for _ in range(60)}
    free = sampler.batch_size < sampler.units
    assert (len(drawn) > 1) == free


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_every_record_is_as_likely_as_it_should_be(sampler):
    rng, rounds = SeededSource(11, "sampling"), 4000
    counts = np.zeros(sampler.units)
    for _ in range(rounds):
        counts[sampler.draw(0, rng)] += 1
    q = sampler.batch_size / sampler.units
    if q == 1:
        assert (counts == rounds).all()
        return
    deviations = (counts - rounds * q) / np.sqrt(rounds * q * (1 - q))
    # Bonferroni over the records, one false alarm in a million
    assert np.abs(deviations).max() < stats.norm.isf(1e-6 / 2 / sampler.units)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_the_event_is_of_the_right_relation(sampler):
    event = sampler.event(2.0)
    assert events.multiplier(event) == 2.0
    expected = events.REPLACE if isinstance(sampler, FixedSizeSampler) else events.ADD_OR_REMOVE
    assert events.relation(event) in (expected, events.EITHER)
    assert sampler.describe()


@pytest.mark.parametrize(
    "make",
    [lambda n: PoissonSampler(n, 64 / n), lambda n: FixedSizeSampler(n, 64)],
    ids=["poisson", "fixed"],
)
def test_a_draw_costs_in_proportion_to_the_batch_and_not_to_the_data(make):
    costs = []
    for records in (10_000, 10_000_000):
        rng = Counted()
        make(records).draw(0, rng)
        costs.append(rng.bytes)
    assert costs[1] <= 1.5 * costs[0] <= 1.5 * 8 * 300


def test_poisson_batch_sizes_are_binomial():
    rng, sampler = SeededSource(3, "sampling"), PoissonSampler(50, 0.2)
    sizes = np.bincount([sampler.draw(0, rng).size for _ in range(6000)], minlength=51)
    expected = stats.binom.pmf(np.arange(51), 50, 0.2) * 6000
    common = expected > 10
    observed = np.append(sizes[common], sizes[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    assert stats.chisquare(observed, wanted).pvalue > 1e-6
    assert sizes[~common].sum() < 200


def test_poisson_coins_are_independent_from_record_to_record_and_step_to_step():
    rng, sampler = SeededSource(4, "sampling"), PoissonSampler(200, 0.3)
    chosen = np.zeros((3000, 200))
    for row in chosen:
        row[sampler.draw(0, rng)] = 1
    chosen -= 0.3
    scale = 0.3 * 0.7
    for pairs in (chosen[:, 1:] * chosen[:, :-1], chosen[1:] * chosen[:-1]):
        assert abs(pairs.mean()) / (scale / np.sqrt(pairs.size)) < 5


def test_poisson_batches_may_be_empty_and_larger_than_expected():
    rng = SeededSource(5, "sampling")
    sizes = [PoissonSampler(1000, 0.001).draw(0, rng).size for _ in range(300)]
    assert min(sizes) == 0
    assert max(sizes) >= 3


def test_poisson_goes_on_drawing_gaps_until_the_records_end():
    class ShortGaps(Counted):
        """The first draw has only tiny gaps, as bad luck would have it."""

        def draw(self, size):
            drawn = super().draw(size)
            return np.full(size, 255, np.uint8) if self.bytes == size else drawn

    drawn = PoissonSampler(100_000, 0.001).draw(0, ShortGaps())
    assert drawn[0] == 0
    assert drawn[-1] > 99_000 - 20_000
    assert drawn.size > 150


def test_fixed_size_sets_are_uniform():
    rng, sampler = SeededSource(6, "sampling"), FixedSizeSampler(6, 2)
    seen: dict[bytes, int] = {}
    for _ in range(15_000):
        key = bytes(sampler.draw(0, rng))
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 15
    assert stats.chisquare(list(seen.values())).pvalue > 1e-6


@given(records=st.integers(1, 300), data=st.data())
@settings(max_examples=60, deadline=None)
def test_fixed_size_gives_exactly_its_size(records, data):
    size = data.draw(st.integers(1, records))
    drawn = FixedSizeSampler(records, size).draw(0, SeededSource(records, "sampling"))
    assert np.unique(drawn).size == size


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PoissonSampler(0, 0.1), "units"),
        (lambda: PoissonSampler(10, 0.0), "sampling_rate"),
        (lambda: PoissonSampler(10, 1.1), "sampling_rate"),
        (lambda: PoissonSampler(10, float("nan")), "sampling_rate"),
        (lambda: FixedSizeSampler(10, 11), "batch_size"),
        (lambda: FixedSizeSampler(10, 0), "batch_size"),
        (lambda: FixedSizeSampler(10, 2.5), "batch_size"),
    ],
)
def test_bad_sizes_and_rates_are_refused(make, name):
    with pytest.raises(ArgumentError, match=name):
        make()


WAYS = [Poisson(), FixedSize(), Everyone(), CoinFlips(), CyclicPoisson(3)]


@pytest.mark.parametrize("way", WAYS, ids=repr)
def test_a_participation_makes_the_sampler_of_its_batch_size(way):
    size = {Everyone(): 40, CoinFlips(): 20}.get(way, 10)
    sampler = way.among(40, size)
    assert (sampler.units, sampler.batch_size) == (40, size)
    expected = events.REPLACE if way.fixed_count else events.ADD_OR_REMOVE
    assert events.relation(sampler.event(1.0)) in (expected, events.EITHER)
    assert isinstance(way, Participation)


@pytest.mark.parametrize("way", WAYS, ids=repr)
@pytest.mark.parametrize("size", [41, 0, -1, float("nan")])
def test_a_batch_that_cannot_be_drawn_is_refused(way, size):
    with pytest.raises(ArgumentError):
        way.among(40, size)


def test_a_public_population_sets_the_rate_of_coins_alone():
    assert Poisson().among(38, 10, population=40).sampling_rate == 0.25
    assert Everyone().among(38, 40, population=40).units == 38
    with pytest.raises(ArgumentError, match="population=None"):
        FixedSize().among(38, 10, population=40)


def test_names_are_short_hands():
    assert [participation(way.name) for way in WAYS[:3]] == WAYS[:3]
    assert participation(WAYS[0]) is WAYS[0]
    for wrong in ("shuffled", None, 3, Poisson):
        with pytest.raises(ArgumentError, match="sampling"):
            participation(wrong)
