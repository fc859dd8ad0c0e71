"""Sums of histograms: a record moves them by at most their sensitivity."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from privada.clipping.histograms import histogram_sum


def test_each_record_is_counted_once_in_each_column():
    clipped = histogram_sum([np.array([0, 2, 2, -1]), np.array([1, 1, 3, 0])], bins=3)
    assert clipped.value.tolist() == [1, 0, 2, 1, 2, 0]
    assert clipped.sensitivity == math.sqrt(2)


@given(
    st.lists(st.tuples(st.integers(-2, 9), st.integers(-2, 9)), min_size=1),
    st.integers(min_value=0),
)
def test_a_record_moves_the_histograms_by_at_most_their_sensitivity(records, left_out):
    def total(some):
        columns = np.array(some, dtype=np.int64).reshape(-1, 2)
        return histogram_sum([columns[:, 0], columns[:, 1]], bins=8)

    left_out %= len(records)
    whole, without = total(records), total(records[:left_out] + records[left_out + 1 :])
    assert float((whole.value - without.value).norm()) <= whole.sensitivity + 1e-12
