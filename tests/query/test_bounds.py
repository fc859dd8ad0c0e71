"""The query for bounds: its bins, its noise, and what one person can move."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privada as pv
from privada.query.bounds import BINS, edges, power_bins, release_bounds
from privada.query.histograms import HistogramQuery, statistics_units


def query(rows, noise_multiplier, groups=None, seed=None):
    units = statistics_units(rows, groups)
    return HistogramQuery(
        units, pv.Ledger(None), noise_multiplier, run="r", stream="bounds", seed=seed
    )


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_within_the_edges_of_its_bin(value):
    (place,) = power_bins(np.array([value]))
    low, high = edges(int(place))
    assert 0 <= place < BINS
    if abs(value) < 2.0**-24:
        assert (low, high) == (0, 0)
    elif abs(value) < 2.0**40:
        assert low <= value <= high
    else:
        assert place == (BINS - 1 if value > 0 else 0)


def test_bins_of_what_is_not_a_number():
    assert power_bins(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])).tolist() == [
        *(-1, BINS - 1, 0, BINS // 2, BINS // 2)
    ]


def test_the_noise_has_the_standard_deviation_that_is_charged_for():
    # no value is a number, so that the release is noise alone
    draws = [
        release_bounds(query(1, 3.0, seed=seed), lambda: [[np.array([np.nan])] * 2])
        for seed in range(40)
    ]
    expected = 3.0 * math.sqrt(2)
    assert draws[0].noise_std == pytest.approx(expected)
    values = np.concatenate([draw.value.numpy() for draw in draws])
    # 10,320 normals: the relative error of their deviation is 0.007; five of these
    assert values.std() == pytest.approx(expected, rel=0.035)
    assert abs(values.mean()) < 5 * expected / math.sqrt(len(values))


def test_noise_is_added_to_the_right_counts_and_is_fresh():
    def counts():
        columns = [np.full(90, 3.0), np.full(90, -0.3)]
        return release_bounds(query(90, 0.5), lambda: [columns]).value.numpy()

    first, second = counts().reshape(2, BINS), counts().reshape(2, BINS)
    assert first[0].argmax() == power_bins(np.array([3.0]))[0]
    assert first[1].argmax() == power_bins(np.array([-0.3]))[0]
    assert not np.array_equal(first, second)
