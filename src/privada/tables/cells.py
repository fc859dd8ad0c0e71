"""Cells of a table: one text for each value, and one number for each text, whatever the others."""

import datetime
import decimal
import math
import numbers
import re
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privada.core.errors import ArgumentError, DataError

# What stands for a missing value unless a schema says otherwise.
MISSING = ("", "?", "NA", "NaN", "nan", "null")
# Beyond this, not every whole number is a float64.
LARGEST_WHOLE = 2**53

Cell = str | None
_Value = TypeVar("_Value")
_NOTHING = ("NAType", "NaTType")
_DIGITS = re.compile(r"[+-]?[0-9]+")
# Numbers that have more than one spelling; the whole ones among them are those with a sign of zero.
_POINTED = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)|-0", re.ASCII)
_TRUTH = frozenset(("True", "TRUE", "False", "FALSE"))
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}.{0,30}", re.ASCII)
# What may part a number's fraction from its whole: a point, a comma, or in each cell one of them.
POINT, COMMA, EITHER = ".", ",", "either"


class CellError(Exception):
    """A cell cannot be used: what was expected, and what to do. It never holds the cell itself.

    The remedy may have {column}, which stands for the column's name.
    """

    def __init__(self, expected: str, remedy: str) -> None:
        super().__init__(expected)
        self.expected, self.remedy = expected, remedy

    def of_column(self, column: str) -> "ColumnError":
        """Return what is said of the column, without a word on which cell."""
        fault = f"Expected {self.expected} in column {column!r}, got something else."
        return ColumnError(fault, self.remedy.replace("{column}", column))


class ColumnError(DataError):
    """A column has a cell that cannot be used: what is wrong, apart from what to do."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(f"{fault} {remedy}")
        self.fault = fault


_NO_NUMBER = CellError(
    "a finite number",
    "Correct it, list it under options.missing of a schema, or say what the column holds: "
    '--column "{column}=mixed", or kind = "mixed" in a schema, takes numbers and codes alike. '
    "A target that is no number has classes.",
)
_TOO_LARGE = CellError(
    "a whole number of at most 2^53 either way",
    'A larger one would be rounded: give --column "{column}=hashed" or "{column}=ignore", or that '
    "kind in a schema.",
)
_NO_VALUE = CellError("text or a number", "Nested values and other types cannot be used.")


class CellCache(dict[Cell, _Value]):
    """What cells stand for, computed once for each different cell."""

    def __init__(self, compute: Callable[[Cell], _Value]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, cell: Cell) -> _Value:
        value = self[cell] = self._compute(cell)
        return value


def text_of(value: Any) -> Cell:
    """Return the text of a value: the same for 1 and 1.0, None for what is missing."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, datetime.date):
        return value.isoformat() if value == value else None  # which NaT is not
    if isinstance(value, decimal.Decimal):
        return None if value.is_nan() else str(value)
    if type(value).__name__ in _NOTHING:  # of libraries that need not be there
        return None
    if not isinstance(value, numbers.Real):
        raise _NO_VALUE
    number = float(value)
    if math.isnan(number):
        return None
    whole = number.is_integer() and abs(number) <= LARGEST_WHOLE
    return str(int(number)) if whole else repr(number)


def canonical(text: str) -> str:
    """Return the one text of a value, however a file, a database or a frame writes it.

    A number with a point or an exponent, such as 1.0 or 1e5, has the text that `text_of` gives the
    float64; -0 is 0; True, TRUE, False and FALSE are true and false; a time of day is ISO 8601, and
    left out where it is midnight without an offset. Other text stays: 007, +1 and whole numbers of
    any size.

    Example:
        >>> from privada.tables.cells import canonical
        >>> [canonical(text) for text in ("1.0", "1e5", "2.50", "-0.0", "007", "TRUE")]
        ['1', '100000', '2.5', '0', '007', 'true']
        >>> canonical("2024-05-31 00:00:00"), canonical("2024-05-31 12:30:00.000")
        ('2024-05-31', '2024-05-31T12:30:00')
    """
    if _POINTED.fullmatch(text):
        number = float(text)
        return text if math.isinf(number) else text_of(number) or text
    if text in _TRUTH:
        return text.lower()
    if _MOMENT.fullmatch(text):
        with suppress(ValueError):
            moment = datetime.datetime.fromisoformat(text)
            midnight = moment.time() == datetime.time() and moment.tzinfo is None
            return (moment.date() if midnight else moment).isoformat()
    return text


def number_of(cell: Cell, missing: Container[str], mark: str = POINT) -> float:
    """Return the number that a cell is, NaN for what is missing."""
    if cell is None or cell in missing:
        return math.nan
    if mark == COMMA and "." in cell:
        raise _NO_NUMBER
    if mark != POINT:
        cell = cell.replace(",", ".")
    try:
        number = float(cell)
    except ValueError:
        raise _NO_NUMBER from None
    huge = abs(number) >= LARGEST_WHOLE and cell.lstrip("+-0") != str(LARGEST_WHOLE)
    if huge and _DIGITS.fullmatch(cell):
        raise _TOO_LARGE
    if math.isinf(number) or "_" in cell or not cell.isascii():
        raise _NO_NUMBER
    return number


def translate(cells: Any, meaning: Callable[[Any], Any], dtype: Any, column: str) -> NDArray[Any]:
    """Return what each cell stands for, or raise for the column, without a word on which cell."""
    try:
        return np.fromiter(map(meaning, cells), dtype, len(cells))
    except CellError as error:
        found = error.of_column(column)
    # said outside the handler, where no traceback leads to the cell
    raise found


def listed_texts(name: str, values: Any, least: int, remedy: str) -> tuple[str, ...]:
    """Return values as different texts, at least so many."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ArgumentError(f"Expected {name} to be a list, got {name}={values!r}. {remedy}")
    try:
        texts = [text_of(value) for value in values]
    except CellError:
        texts = [None]
    known = tuple(text for text in texts if text is not None)
    if len(known) < len(texts):
        raise ArgumentError(f"Expected {name} to be text or numbers, got {name}={values!r}.")
    if len(known) < least or len(set(known)) < len(known):
        raise ArgumentError(
            f"Expected {name} to have at least {least} entries, all different, got "
            f"{name}={list(known)!r}. {remedy}"
        )
    return known
