"""The composition bounds of Wu et al. (2021) against their formulas in mpmath."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import advanced_composition, advanced_composition_sigma, noise_multiplier
from privada.core.errors import ArgumentError

unit = st.floats(1e-6, 0.999)
tiny = st.floats(1e-20, 1e-3)


def lemma(epsilons, deltas, slack):
    """Wu et al. (2021), Lemma 2.2."""
    with mp.workdps(60):
        eps = [mp.mpf(e) for e in epsilons]
        spread = mp.sqrt(2 * mp.log(1 / mp.mpf(slack)) * mp.fsum(e**2 for e in eps))
        drift = mp.fsum(e * (mp.exp(e) - 1) / (mp.exp(e) + 1) for e in eps)
        return spread + drift, 1 - mp.fprod(1 - mp.mpf(d) for d in deltas) + mp.mpf(slack)


def test_reference_values_of_the_lemma():
    epsilon, delta = advanced_composition([0.1, 0.2, 0.3], [1e-6, 2e-6, 3e-6], slack=1e-5)
    assert epsilon == pytest.approx(1.865038939, abs=5e-10)
    assert delta == pytest.approx(1.5999989e-5, abs=5e-13)


@given(pairs=st.lists(st.tuples(unit, tiny), min_size=1, max_size=30), slack=tiny)
@settings(max_examples=200, deadline=None)
def test_the_lemma_is_computed_as_written(pairs, slack):
    epsilons, deltas = zip(*pairs, strict=True)
    epsilon, delta = advanced_composition(epsilons, deltas, slack)
    expected = lemma(epsilons, deltas, slack)
    assert epsilon == pytest.approx(float(expected[0]), rel=1e-12)
    assert delta == pytest.approx(float(expected[1]), rel=1e-12, abs=0)


def test_tiny_deltas_do_not_vanish():
    deltas = [1e-18] * 1000
    assert 1 - np.prod(1 - np.array(deltas)) == 0
    _, delta = advanced_composition([0.01] * 1000, deltas, slack=1e-20)
    assert delta == pytest.approx(1e-15 + 1e-20, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("epsilons", "deltas", "slack", "said"),
    [
        ([], [], 1e-5, "0 epsilons"),
        ([0.1], [1e-6, 1e-6], 1e-5, "1 epsilons and 2 deltas"),
        ([0.1, 1.0], [1e-6, 1e-6], 1e-5, "epsilons[1]=1.0"),
        ([0.0], [1e-6], 1e-5, "epsilons[0]=0.0"),
        ([0.1], [0], 1e-5, "deltas[0]=0"),
        ([0.1], [math.nan], 1e-5, "deltas[0]=nan"),
        ([0.1], [1e-6], 0.0, "slack=0.0"),
        ([0.1], [1e-6], 1, "slack=1"),
        ([0.1], [1e-6], "a", "slack='a'"),
    ],
)
def test_bad_arguments_of_the_lemma_are_named(epsilons, deltas, slack, said):
    with pytest.raises(ArgumentError) as error:
        advanced_composition(epsilons, deltas, slack)
    assert said in str(error.value)


GOOD = {"epsilon": 1.0, "delta": 1e-5, "population": 1000, "lipschitz": 2.0, "alphas": [1.0, 2.0]}


@given(
    epsilon=st.floats(0.01, 10),
    delta=st.floats(1e-9, 1e-2),
    population=st.integers(1, 1000),
    lipschitz=st.floats(0.01, 100),
    alphas=st.lists(st.floats(0.1, 10), min_size=1, max_size=50),
)
@settings(max_examples=100, deadline=None)
def test_equation_six_is_computed_as_written(epsilon, delta, population, lipschitz, alphas):
    b = mp.log(16 * mp.mpf(len(alphas)) / (population * delta)) * mp.log(1.25 / mp.mpf(delta))
    variance = (16 * lipschitz) ** 2 * b / (population * epsilon) ** 2
    expected = mp.sqrt(variance * mp.fsum(mp.mpf(a) ** -2 for a in alphas))
    found = advanced_composition_sigma(
        epsilon=epsilon, delta=delta, population=population, lipschitz=lipschitz, alphas=alphas
    )
    assert found == pytest.approx(float(expected), rel=1e-9)


def test_equation_six_is_far_above_tight_calibration():
    # one record a step, sampled from n, with a sum of norm 2G when it is exchanged
    population, count = 1000, 500
    paper = advanced_composition_sigma(
        epsilon=1.0, delta=1e-5, population=population, lipschitz=1.0, alphas=[1.0] * count
    )
    tight = noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=1 / population, steps=count)
    assert paper > 3 * tight


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("epsilon", 0.0, "epsilon=0.0"),
        ("delta", 1, "delta=1"),
        ("population", 1.5, "population=1.5"),
        ("population", 0, "population=0"),
        ("lipschitz", -1.0, "lipschitz=-1.0"),
        ("alphas", [], "alphas"),
        ("alphas", [1.0, 0.0], "alphas[1]=0.0"),
        ("population", 10**9, "1000000000"),
    ],
)
def test_bad_arguments_of_equation_six_are_named(name, value, said):
    with pytest.raises(ArgumentError) as error:
        advanced_composition_sigma(**{**GOOD, name: value})
    assert said in str(error.value)
