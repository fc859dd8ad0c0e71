"""Each kind of number is shown in one way; an epsilon is never shown below its value."""

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privada.core import formatting

EPSILONS = st.floats(1e-9, 1e12)


def read(shown):
    return Decimal(shown.replace(",", ""))


@given(EPSILONS)
def test_an_epsilon_is_never_shown_below_its_value_and_close_to_it(value):
    shown = float(read(formatting.epsilon(value)))
    assert value <= shown <= value * 1.0011


@given(EPSILONS, EPSILONS)
def test_what_is_within_a_limit_is_shown_within_it(one, other):
    low, high = sorted((one, other))
    assert read(formatting.epsilon(low)) <= read(formatting.epsilon(high))


@given(st.floats(1e-3, 1e5), st.floats(0, 1))
def test_what_is_shown_as_spent_and_left_makes_the_limit(limit, share):
    spent = limit * share
    shown = [read(formatting.epsilon(each)) for each in (spent, limit)]
    assert read(formatting.left(limit, spent)) + shown[0] == shown[1]


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (formatting.epsilon, 4.46671, "4.467"),
        (formatting.epsilon, 2.00001, "2.001"),
        (formatting.epsilon, 999.96, "1,000"),
        (formatting.epsilon, 12345.01, "12,346"),
        (formatting.epsilon, 1.23451e-6, "1.235e-06"),
        (formatting.epsilon, -0.0, "0"),
        (formatting.epsilon, math.inf, "infinite"),
        (formatting.epsilon, math.nan, "none"),
        (formatting.delta, 1e-05, "1e-05"),
        (formatting.delta, 1.00001e-05, "1.01e-05"),
        (formatting.number, 0.92504, "0.925"),
        (formatting.number, -math.inf, "-infinite"),
    ],
)
def test_kinds_of_numbers(kind, value, shown):
    assert kind(value) == shown


def test_nothing_is_left_of_what_is_spent_without_end():
    assert formatting.left(1.0, math.inf) == "0"
    assert formatting.left(1.0, 2.0) == "0"
