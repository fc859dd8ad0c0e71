"""Sums of squared features: what one unit can move, and what they are, against NumPy."""

import math

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privada.clipping.features import SIZES, feature_sum
from privada.preconditioning.feature_moments import LEAST_POWER

CPU = torch.device("cpu")
BOUND = math.sqrt(1 + 1 / 16)


def summed(rows, units=None, sparse=False):
    rows = torch.as_tensor(rows)
    width = rows.shape[1]
    if sparse:
        rows = rows.to_sparse_csr()
    units = None if units is None else torch.as_tensor(units)
    return feature_sum(width, [(rows, units)] if rows.shape[0] else [], CPU)


def by_numpy(rows, units=None):
    """The same by a loop over rows in NumPy."""
    rows = np.asarray(rows, dtype=np.float64)
    units = np.arange(len(rows)) if units is None else np.asarray(units)
    total = np.zeros(rows.shape[1] + SIZES)
    for row, unit in zip(rows, units, strict=True):
        if not np.isfinite(row).all() or not row.any():
            continue
        largest = np.abs(row).max()
        squares = (row / largest) ** 2
        norm = np.linalg.norm(squares)
        share = 1 / (units == unit).sum()
        total[: rows.shape[1]] += share * squares / norm
        power = int(np.clip(np.round(2 * np.log2(largest) + np.log2(norm)), -40, 40))
        total[rows.shape[1] + power - LEAST_POWER] += share / 4
    return total


WILD = np.array(
    [
        [0.0, 0.0, 0.0, 0.0],
        [1.0, -2.0, 0.5, 0.0],
        [1e30, 1e30, -1e30, 1e-30],
        [1e-30, 0.0, 0.0, 0.0],
        [np.nan, 1.0, 1.0, 1.0],
        [np.inf, 0.0, 0.0, -np.inf],
        [0.0, 0.0, 7.0, 0.0],
        [1e-45, 1e38, 3.0, 4.0],
    ],
    dtype=np.float32,
)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("units", [None, [0, 0, 1, 1, 1, 2, 2, 9]], ids=["rows", "persons"])
def test_the_sum_is_that_of_a_loop_over_rows(units, sparse):
    found = summed(WILD, units, sparse)
    np.testing.assert_allclose(found.value.numpy(), by_numpy(WILD, units), rtol=1e-10, atol=1e-300)
    assert found.extra == SIZES
    assert BOUND <= found.sensitivity <= BOUND * (1 + 1e-8)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("units", [None, [0, 0, 1, 1, 1, 2, 2, 9]], ids=["rows", "persons"])
def test_leaving_out_a_unit_moves_the_sum_by_at_most_its_sensitivity(units, sparse):
    of = np.arange(len(WILD)) if units is None else np.asarray(units)
    whole = summed(WILD, units, sparse)
    moves = []
    for unit in np.unique(of):
        kept = of != unit
        others = summed(WILD[kept], None if units is None else of[kept], sparse)
        moves.append(float((whole.value - others.value).norm()))
    assert max(moves) <= whole.sensitivity
    assert max(moves) == pytest.approx(BOUND, rel=1e-12)  # which is reached, and not just bounded


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float64, (5, 3), elements=st.floats(allow_nan=True, allow_infinity=True)),
    arrays(np.int64, 5, elements=st.integers(0, 2)),
)
def test_no_person_moves_it_by_more_whatever_their_rows_are(rows, units):
    whole = summed(rows, units)
    assert bool(torch.isfinite(whole.value).all())
    for unit in np.unique(units):
        kept = units != unit
        moved = whole.value - summed(rows[kept], units[kept]).value
        assert float(moved.norm()) <= whole.sensitivity


def test_a_cell_that_is_given_twice_counts_as_one_feature():
    twice = scipy.sparse.csr_matrix(([1.0, 1.0, 1.0], [0, 0, 1], [0, 3]), shape=(1, 2))
    parts = (twice.indptr, twice.indices, twice.data)
    rows = torch.sparse_csr_tensor(*map(torch.as_tensor, parts), size=(1, 2))
    found = feature_sum(2, [(rows, None)], CPU)
    np.testing.assert_allclose(found.value.numpy(), by_numpy([[2.0, 1.0]]), rtol=1e-12)
    assert float(found.value.norm()) <= found.sensitivity


def test_sums_over_disjoint_units_add_up():
    whole, one, other = summed(WILD), summed(WILD[:3]), summed(WILD[3:])
    torch.testing.assert_close((one + other).value, whole.value, rtol=1e-12, atol=0)
    assert (one + other).sensitivity == whole.sensitivity


def test_nobody_gives_zero():
    assert not bool(feature_sum(3, [], CPU).value.any())
