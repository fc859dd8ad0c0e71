"""The least noise that fits is found wherever one starts to look."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privada.train.levels import LEAST_LEVEL, MOST_LEVEL, least_level


@given(st.floats(-18, 18), st.floats(-25, 25), st.sampled_from([1, 64, 512]))
def test_the_least_level_above_a_threshold_is_found(threshold, start, points):
    found = least_level(lambda level: level >= 2.0**threshold, 2.0**start, points)
    assert 2.0**threshold <= found < 2.0 ** (threshold + 1 / points) * (1 + 1e-12)
    assert math.log2(found) * points == pytest.approx(round(math.log2(found) * points), abs=1e-6)


@pytest.mark.parametrize("start", [1e-9, 1.0, 1e9])
def test_where_all_or_none_fit_it_ends(start):
    assert least_level(lambda level: True, start, 64) == LEAST_LEVEL
    assert least_level(lambda level: False, start, 64) is None
    assert least_level(lambda level: level >= MOST_LEVEL, start, 64) == MOST_LEVEL


def test_few_levels_are_tried():
    tried = []

    def fits(level):
        tried.append(level)
        return level >= 1.01

    least_level(fits, 1.0, 64)
    assert len(tried) < 8
