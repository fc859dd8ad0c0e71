"""Ranges from noisy histograms: of small tables, and of noise alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import datasets

from privada.query.bounds import BINS, POWERS, edges, power_bins
from privada.tables.ranges import _cut, find_ranges


def noisy(columns, ratio, seed):
    """Return the histograms of columns with noise, its deviation and the number of records."""
    records = len(columns[0])
    std = records / ratio
    counts = np.stack([np.bincount(power_bins(c[~np.isnan(c)]), minlength=BINS) for c in columns])
    noise = np.random.default_rng(seed).normal(0, std, counts.shape)
    return counts + noise, std, records


def found(columns, ratio, seed=0, outside=0.005):
    counts, std, records = noisy([np.asarray(c, dtype=float) for c in columns], ratio, seed)
    return find_ranges(counts, std, records, outside)


def columns_of(loader):
    loaded = loader()
    return np.column_stack([loaded.data, loaded.target]).T


SETS = {
    "diabetes": datasets.load_diabetes,
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
}


@pytest.mark.parametrize("name", SETS)
def test_small_tables_have_ranges_at_twenty_records_for_each_deviation_of_noise(name):
    """On average 6% of the values at most are clipped, and the range is about twice as wide."""
    columns = columns_of(SETS[name])[:-1]
    clipped, width = [], []
    for seed in range(10):
        for values, bounds in zip(columns, found(columns, 20.0, seed), strict=True):
            assert bounds is not None
            low, high = bounds
            clipped.append(np.mean((values < low) | (values > high)))
            true = np.quantile(values, [0.005, 0.995])
            width.append(math.log2((high - low) / (true[1] - true[0])))
    assert np.mean(clipped) < 0.06
    assert -0.5 < np.mean(width) < 1.2
    assert np.quantile(width, 0.99) < 4


@pytest.mark.parametrize("name", SETS)
def test_most_ranges_are_found_at_eight(name):
    columns = columns_of(SETS[name])[:-1]
    shown = [b is not None for seed in range(10) for b in found(columns, 8.0, seed)]
    # half of diabetes's values are negative, in bins of a sixteenth of the records
    assert np.mean(shown) > (0.4 if name == "diabetes" else 0.9)


def test_both_signs_are_found_together():
    """Each bin alone is below three deviations of the noise."""
    values = np.random.default_rng(0).normal(0, 0.05, 400)
    for seed in range(20):
        ((low, high),) = found([values], 16.0, seed)
        assert low < 0 < high
        assert max(-low, high) <= 1


def test_what_columns_have_in_common_helps_each():
    """A hint at one place counts for more if all columns have it there."""
    values = np.geomspace(1024, 2**14, 400)
    alone = [found([values], 6.0, seed)[0] is None for seed in range(60)]
    together = [found([values] * 12, 6.0, seed)[0] is None for seed in range(60)]
    assert sum(together) < sum(alone)


def test_noise_alone_is_seldom_taken_for_values():
    empty = [np.full(100, math.nan)] * 5
    assert all(b is None for seed in range(200) for b in found(empty, 100.0, seed))
    shown = [b is not None for seed in range(200) for b in found(empty, 12.0, seed)]
    assert np.mean(shown) < 0.1


def test_zeros_are_a_bound_and_alone_they_are_zero_to_one():
    values = np.where(np.arange(1000) % 3, 0.0, 90.0)
    assert found([values], 100.0) == [(0, 128)]
    assert found([values * 0], 100.0) == [(0, 1)]


def test_values_far_apart_are_both_found():
    values = np.where(np.arange(1000) % 4, 3.0, 1e6)
    assert found([values], 100.0) == [(2, 2.0**20)]


@given(st.integers(0, 2**32 - 1), st.floats(1.0, 1e4), st.floats(0.0, 0.4))
def test_ranges_are_edges_of_bins(seed, std, outside):
    counts = np.random.default_rng(seed).normal(0, 2 * std, (3, BINS))
    known = {0.0, 1.0, *(edge for place in range(BINS) for edge in edges(place))}
    for bounds in find_ranges(counts, std, 100, outside):
        assert bounds is None or (bounds[0] < bounds[1] and set(bounds) <= known)


def test_mirrored_values_have_mirrored_ranges():
    counts, std, records = noisy([np.geomspace(1, 100, 300)], 20.0, 3)
    ((low, high),) = find_ranges(counts, std, records, 0.005)
    ((below, above),) = find_ranges(counts[:, ::-1], std, records, 0.005)
    assert counts.shape[1] == 2 * POWERS + 1
    assert (below, above) == (-high, -low)


def test_a_share_of_nothing_leaves_nothing_outside():
    """However sums are rounded."""
    for seed in range(50):
        counts = np.zeros(BINS)
        counts[POWERS + 5 : POWERS + 30] = np.random.default_rng(seed).exponential(1.0, 25)
        assert _cut(counts, 1e-17) == (edges(POWERS + 5)[0], edges(POWERS + 29)[1])
