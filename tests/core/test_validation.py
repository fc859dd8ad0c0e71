"""Every check returns the value, or names it and says what it should be."""

import fractions
import math

import numpy as np
import pandas as pd
import pytest
import torch

from privada.core.errors import ArgumentError, PrivadaError
from privada.core.validation import (
    flag,
    integer,
    one_of,
    positive,
    probability,
    rate,
    real,
    shown,
)

NAN, INF = math.nan, math.inf
NOT_NUMBERS = [True, False, np.True_, "1", b"1", None, [1.0], 1j, object, np.ones(1)]

ACCEPTED = [
    (real, [0, -3, 2.5, np.float32(0.5), np.int64(-7), fractions.Fraction(1, 4)]),
    (positive, [1, 5e-324, 1e308, np.float64(0.1)]),
    (probability, [5e-324, 0.5, math.nextafter(1, 0), np.float32(0.25)]),
    (rate, [5e-324, 0.5, 1, 1.0]),
]
REFUSED = [
    (real, [NAN, INF, -INF]),
    (positive, [0, 0.0, -0.0, -5e-324, -1, NAN, INF]),
    (probability, [0, 1, -0.1, 1.1, NAN, INF]),
    (rate, [0, -0.5, math.nextafter(1, 2), 2, NAN, INF]),
]


def pairs(table):
    return [(check, value) for check, values in table for value in values]


@pytest.mark.parametrize(("check", "value"), pairs(ACCEPTED))
def test_a_good_number_comes_back_as_a_float(check, value):
    result = check("x", value)
    assert type(result) is float
    assert result == value


@pytest.mark.parametrize(("check", "value"), pairs(REFUSED))
def test_a_number_out_of_range_is_named_with_its_value(check, value):
    with pytest.raises(ArgumentError) as error:
        check("learning_rate", value, "Try 0.1.")
    assert f"learning_rate={value!r}." in str(error.value)
    assert str(error.value).endswith("Try 0.1.")


@pytest.mark.parametrize("check", [real, positive, probability, rate, integer])
@pytest.mark.parametrize("value", NOT_NUMBERS, ids=repr)
def test_what_is_not_a_number_is_refused(check, value):
    with pytest.raises(ArgumentError, match="Expected x to be a"):
        check("x", value)


@pytest.mark.parametrize("value", [1, 10**30, np.int64(5), np.uint8(3)])
def test_a_whole_number_comes_back_as_an_int(value):
    result = integer("x", value)
    assert type(result) is int
    assert result == value


@pytest.mark.parametrize("value", [1.0, 1.5, np.float64(2), NAN, fractions.Fraction(4, 2)])
def test_a_fraction_is_not_a_whole_number(value):
    with pytest.raises(ArgumentError, match="to be a whole number"):
        integer("x", value)


@pytest.mark.parametrize(("value", "least"), [(0, 1), (-1, 0), (4, 5)])
def test_a_whole_number_has_a_least_value(value, least):
    with pytest.raises(ArgumentError, match=f">= {least}, got x={value}"):
        integer("x", value, least=least)
    assert integer("x", least, least=least) == least


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_number_without_dimensions_is_a_number(kind):
    assert real("x", kind(0.5)) == 0.5
    assert integer("x", kind(3)) == 3
    for check, value in ((integer, kind(3.0)), (real, kind(True)), (real, kind([0.5]))):
        with pytest.raises(ArgumentError, match="Expected x to be a"):
            check("x", value)
    with pytest.raises(ArgumentError, match=r"x=-0\.5"):
        positive("x", kind(-0.5))


def test_a_number_that_is_trained_is_refused_with_the_remedy():
    with pytest.raises(ArgumentError, match=r"x\.item\(\)"):
        real("x", torch.tensor(0.5, requires_grad=True))


def test_a_number_beyond_floats_is_not_finite():
    with pytest.raises(ArgumentError, match="to be finite"):
        real("x", 10**400)


def test_a_flag_is_true_or_false():
    assert flag("x", np.True_) is True
    for value in (None, 0, 1, "no", [], torch.tensor(True)):
        with pytest.raises(ArgumentError, match="Expected x to be True or False"):
            flag("x", value)


@pytest.mark.parametrize(
    "value",
    [
        torch.full((3,), 0.12345),
        np.full((2, 2), 0.12345),
        torch.tensor(0.12345),
        [0.12345, 1.0],
        {"name": 0.12345},
        {0.12345},
        pd.DataFrame({"a": [0.12345]}),
        type("Record", (), {"__repr__": lambda self: "0.12345"})(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_be_data_is_not_shown(value):
    assert "12345" not in shown(value)
    assert type(value).__name__ in shown(value)


def test_a_long_setting_is_cut_short():
    assert len(shown("x" * 1000)) == 80
    assert len(shown(10**400)) == 80


def test_a_choice_comes_back():
    assert one_of("x", "b", ("a", "b")) == "b"
    assert one_of("x", "b", iter(["a", "b"])) == "b"


@pytest.mark.parametrize("value", ["c", "", "A", None, 1, ["a"]])
def test_a_choice_that_is_not_offered_is_refused_with_the_offer(value):
    with pytest.raises(ArgumentError) as error:
        one_of("mode", value, ("a", "b"), "See the docs.")
    assert (
        str(error.value)
        == f"Expected mode to be one of 'a', 'b', got mode={value!r}. See the docs."
    )


def test_errors_can_be_caught_as_our_own_and_as_value_errors():
    assert issubclass(ArgumentError, PrivadaError)
    assert issubclass(ArgumentError, ValueError)
