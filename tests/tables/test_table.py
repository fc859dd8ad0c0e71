import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privada.core.errors import ArgumentError, DataError
from privada.tables import Table
from tests.forks import PATIENCE


def test_one_value_has_one_text_however_it_is_kept():
    for values in ([1, 2.5, None], np.array([1, 2.5, np.nan]), ["1", " 2.5 ", None]):
        table = Table({"a": values})
        assert table.texts("a").tolist() == ["1", "2.5", None]
        np.testing.assert_array_equal(table.numbers("a"), [1, 2.5, np.nan])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)))
def test_numbers_survive_being_text(values):
    if not values:
        return
    as_numbers = Table({"a": np.array(values, dtype=np.float64)})
    as_text = Table({"a": as_numbers.texts("a")})
    np.testing.assert_array_equal(as_text.numbers("a"), as_numbers.numbers("a"))


def test_whole_numbers_beyond_2_53_are_kept_exactly():
    table = Table({"a": np.array([2**53 + 1, 1])})
    assert table.texts("a").tolist() == [str(2**53 + 1), "1"]
    with pytest.raises(DataError, match=r"2\^53 either way in column 'a'"):
        table.numbers("a")
    assert Table({"a": np.array([2**53])}).numbers("a").tolist() == [2**53]


def test_infinite_numbers_are_refused_with_their_row():
    table = Table({"a": np.array([0, np.inf])})
    with pytest.raises(DataError, match="an infinite one"):
        table.numbers("a")
    np.testing.assert_array_equal(table.numbers("a", lenient=True), [0, np.nan])


def test_what_stands_for_missing_can_be_said():
    table = Table({"a": ["1", "-", "?"]})
    np.testing.assert_array_equal(table.numbers("a", ["-", "?"]), [1, np.nan, np.nan])
    with pytest.raises(DataError, match="a finite number in column 'a'"):
        table.numbers("a", ["-"])


def test_it_shows_no_values():
    assert repr(Table({"a": ["secret"]})) == "Table(1 rows; a)"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "at least one column"),
        ({"a": [1], "b": [1, 2]}, "one length"),
        ({"a": [[1], [2]]}, "text or a number in column 'a'"),
        ({"a": np.zeros((1, 1, 1))}, "shape"),
        ({"a": np.zeros(1, dtype=complex)}, "complex"),
    ],
)
def test_what_is_no_table_is_refused(columns, words):
    with pytest.raises(DataError, match=words):
        Table(columns)


@pytest.mark.parametrize("values", ["text", 7, None])
def test_columns_are_sequences(values):
    with pytest.raises(ArgumentError, match="sequences"):
        Table({"a": values})


def test_columns_are_asked_for_as_what_they_are():
    table = Table({"a": [1], "m": np.zeros((1, 2))})
    for ask, words in [
        (lambda: table.numbers("m"), "got a matrix"),
        (lambda: table.texts("m"), "got a matrix"),
        (lambda: table.matrix("a"), "to be a matrix"),
        (lambda: table.texts("b"), "Expected a column 'b'"),
    ]:
        with pytest.raises(DataError, match=words):
            ask()


def test_rows_are_taken_by_number_and_by_mask():
    table = Table({"a": [1, 2, 3], "m": np.arange(6).reshape(3, 2)})
    assert table.take([2, 0]).numbers("a").tolist() == [3, 1]
    assert table.take(np.array([False, True, False])).matrix("m").tolist() == [[2, 3]]


def test_tables_load_torch_only_to_estimate_bounds():
    program = "import sys, privada.tables as t; print('torch' in sys.modules); t.estimate_bounds"
    program += "; print('torch' in sys.modules)"
    shown = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=PATIENCE)
    assert shown.split() == ["False", "True"]
