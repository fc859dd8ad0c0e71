"""Projections: nearest points of convex sets, in any diagonal norm."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import privada as pv
from tests.oracles import pasan_pagan

SETS = {
    "box": (pv.updates.box(-0.5, 0.8), pasan_pagan.box(-0.5, 0.8)),
    "ball": (pv.updates.ball(0.7), pasan_pagan.ball(0.7)),
    "simplex": (pv.updates.simplex(1.3), pasan_pagan.simplex(1.3)),
}
numbers = st.integers(0, 2**32 - 1)


def point_and_metric(seed, size=None):
    rng = np.random.default_rng(seed)
    size = size or int(rng.integers(1, 12))
    return rng.normal(size=size) * 10 ** rng.uniform(-2, 3), 10 ** rng.uniform(-4, 4, size)


@pytest.mark.parametrize("name", SETS)
@given(numbers)
def test_a_projection_is_that_of_the_transcription(name, seed):
    mine, theirs = SETS[name]
    x, h = point_and_metric(seed)
    found = mine.project(torch.from_numpy(x), torch.from_numpy(h)).numpy()
    np.testing.assert_allclose(found, theirs(x, h), rtol=1e-7, atol=1e-9)
    plain = mine.project(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(plain, theirs(x, np.ones_like(x)), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", SETS)
@given(numbers)
def test_no_other_point_of_the_set_is_nearer(name, seed):
    mine, _ = SETS[name]
    x, h = point_and_metric(seed)
    y = mine.project(torch.from_numpy(x), torch.from_numpy(h)).numpy()
    rng = np.random.default_rng(seed + 1)
    for _ in range(20):
        other = mine.project(torch.from_numpy(y + rng.normal(size=len(x)) * 0.1)).numpy()
        # the angle between x - y and any way into the set is not acute
        assert np.sum(h * (x - y) * (other - y)) <= 1e-6 * (1 + np.sum(h * np.abs(x - y)))


@pytest.mark.parametrize("name", SETS)
def test_points_of_the_set_stay_where_they_are_and_are_not_shared(name):
    mine, _ = SETS[name]
    inside = mine.project(torch.tensor([0.1, 0.2, 0.3]))
    again = mine.project(inside, torch.tensor([1.0, 5.0, 0.1]))
    torch.testing.assert_close(again, inside)
    assert again.data_ptr() != inside.data_ptr()


@pytest.mark.parametrize("name", SETS)
def test_float32_stays_float32_and_in_the_set(name):
    mine, _ = SETS[name]
    found = mine.project(torch.linspace(-3, 5, 1000), torch.logspace(-3, 3, 1000))
    assert found.dtype == torch.float32
    if name == "ball":
        assert float(found.double().norm()) <= 0.7 * (1 + 1e-6)
    if name == "simplex":
        assert float(found.double().sum()) == pytest.approx(1.3, rel=1e-5)
        assert float(found.min()) >= 0


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: pv.updates.box(1.0, 1.0), "low < high"),
        (lambda: pv.updates.box(float("nan"), 1.0), "low"),
        (lambda: pv.updates.ball(0.0), "radius"),
        (lambda: pv.updates.simplex(-1.0), "total"),
    ],
)
def test_a_wrong_set_is_an_error_that_names_it(make, name):
    with pytest.raises(pv.ArgumentError, match=name):
        make()
