"""Products of features: a unit moves them by no more than their sensitivity, whatever its rows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privada.clipping.feature_products import feature_product_sum
from privada.core.symmetric import folded, unfolded

WEIGHT = 0.3
MOST = math.sqrt(1 + WEIGHT**2)
numbers = st.one_of(
    st.floats(-3, 3),
    st.sampled_from(
        [0.0, 1e-160, 1e-300, 5e-324, 1e20, 1e150, 1e308, math.inf, -math.inf, math.nan]
    ),
)
rows = arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=numbers)


def of(rows, weights=None):
    held = torch.from_numpy(np.asarray(rows, dtype=np.float64).reshape(-1, 3))
    weights = torch.ones(len(held)) if weights is None else torch.as_tensor(weights)
    return feature_product_sum([(held, weights.double())], 3, WEIGHT)


def test_it_is_the_sum_of_directions_and_of_sizes():
    found = np.random.default_rng(0).normal(size=(50, 3))
    sizes = (found**2).sum(axis=1)
    value = of(found).value.numpy()
    directions = found / np.sqrt(sizes)[:, None]
    matrix = unfolded(torch.from_numpy(value[:-1]), 3).numpy()
    np.testing.assert_allclose(matrix, directions.T @ directions, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(value[-1], WEIGHT * np.minimum(sizes, 3).sum() / 3, rtol=1e-10)


def test_a_folded_matrix_has_its_norm_and_can_be_unfolded():
    half = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 7)))
    matrix = half + half.T
    assert folded(matrix).norm().item() == pytest.approx(matrix.norm().item(), rel=1e-14)
    torch.testing.assert_close(unfolded(folded(matrix), 7), matrix, rtol=1e-14, atol=1e-14)


@given(rows, rows)
def test_a_person_with_any_rows_moves_the_sum_by_at_most_its_sensitivity(others, own):
    whole = np.concatenate([others, own])
    weights = np.concatenate([np.ones(len(others)), np.full(len(own), 1 / len(own))])
    with_it, without = of(whole, weights), of(others)
    assert with_it.sensitivity == MOST
    assert torch.isfinite(with_it.value).all()
    assert float((with_it.value - without.value).norm()) <= MOST * (1 + 1e-14)


def test_one_row_reaches_the_sensitivity():
    # so that the noise is not more than it has to be
    assert float(of([[30.0, 40.0, 0.0]]).value.norm()) == pytest.approx(MOST, rel=1e-9)


def test_rows_that_are_not_finite_or_zero_count_as_nothing():
    assert not of([[math.nan, 1, 1], [math.inf, 0, 0], [0, 0, 0], [1e300, 0, 0]]).value.any()
