"""The number of runs is drawn from the distribution that is priced."""

import math

import numpy as np
import pytest
from scipy import stats

from privada.accounting.repetition import stopping_rate
from privada.core.randomness import SeededSource
from privada.selection import stopping
from privada.selection.stopping import draw_runs


def law(mean, shape, most):
    """Return P(K = k) for k = 0 .. most, from SciPy or from the definition."""
    if shape == math.inf:
        return stats.poisson.pmf(np.arange(most + 1), mean)
    gamma = stopping_rate(mean, shape)
    k = np.arange(1, most + 1)
    if shape == 1:
        rest = stats.geom.pmf(k, gamma)
    elif shape == 0:
        rest = stats.logser.pmf(k, 1 - gamma)
    else:  # the negative binomial without its zero
        whole = stats.nbinom.pmf(np.arange(most + 1), shape, gamma)
        rest = whole[1:] / (1 - whole[0])
    return np.concatenate([[0.0], rest])


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("mean", [1.5, 4.0, 40.0])
def test_the_law_is_the_one_that_is_priced(shape, mean, monkeypatch):
    """Every uniform number is taken to the count whose cumulated chance it falls in."""
    chances = law(mean, shape, 60_000)
    ends = np.cumsum(chances)
    for u in np.concatenate([np.linspace(0.0005, 0.9995, 200), [1e-9, 1 - 1e-9]]):
        monkeypatch.setattr(stopping, "uniforms", lambda *_, u=u: np.array([u]))
        found = draw_runs(mean, shape, SeededSource(0, "x"))
        before = ends[found - 1] if found else 0.0
        assert before - 1e-12 <= u <= ends[found] + 1e-12
    assert np.sum(chances * np.arange(len(chances))) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_draws_have_the_mean(shape):
    rng = SeededSource(5, "runs")
    drawn = np.array([draw_runs(6.0, shape, rng) for _ in range(20_000)])
    spread = drawn.std() / math.sqrt(len(drawn))
    assert abs(drawn.mean() - 6.0) < 5 * spread
    assert drawn.min() >= (0 if shape == math.inf else 1)


def test_the_farthest_tail_ends(monkeypatch):
    monkeypatch.setattr(stopping, "uniforms", lambda *_: np.array([1 - 2.0**-53]))
    for shape in (0.0, 0.5, 1.0, math.inf):
        for mean in (1.0, 1 + 1e-9, 10.0, 1000.0):
            found = draw_runs(mean, shape, SeededSource(0, "x"))
            assert mean <= max(found, mean)
            assert found < 1e6
