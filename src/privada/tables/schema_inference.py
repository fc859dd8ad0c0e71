"""Schemas by inference: from public values, or from the names and types of columns alone."""

import math
from collections.abc import Mapping
from datetime import date, datetime
from functools import partial
from typing import Any

import numpy as np

from privada.core.errors import ArgumentError, DataError
from privada.tables.cells import MISSING, canonical
from privada.tables.columns import (
    Category,
    ColumnType,
    Date,
    Hashed,
    Ignore,
    Matrix,
    Mixed,
    Number,
    Text,
)
from privada.tables.formats.building import is_date
from privada.tables.kinds import (
    KIND_OF_TYPE,
    USUAL_PARTS,
    Kind,
    column_kinds,
    column_type,
    refuse_unknown,
)
from privada.tables.reading import column_types
from privada.tables.schema import Schema
from privada.tables.schema_file import section_of
from privada.tables.table import Numbers, Table
from privada.tables.targets import Classes, Range, Target
from privada.tables.toml_writing import document, key

# Up to so many values are listed, and whole numbers as targets are classes.
_MOST_VALUES, _MOST_CLASSES = 64, 10
_FEWEST_BUCKETS, _MOST_BUCKETS = 32, 1024
# Text has so many words on average; a column all of whose values differ is a name or an id.
_WORDS_OF_TEXT, _ROWS_TO_TELL = 5, 20
# A column that is never negative and whose average is below this share of the top is skewed. Near
# zero the log scale is a straight line, so that the top must be far from there.
_SKEWED, _FAR = 1 / 20, 100


def infer_schema(
    table: Table,
    *,
    target: str,
    public: bool,
    person: str | None = None,
    regression: bool = False,
    columns: Mapping[str, Kind] | None = None,
) -> Schema:
    """Return a schema that is inferred from the values of a public table.

    Numbers get bounds, rounded outwards to two digits of their span, and the log scale where they
    are skewed. Text gets a list of values with room for others if there are at most 64, else
    buckets; text of several words is a bag of words; text of which no two are the same is ignored.
    Text that is a date in each row gets the years around all of them. A target of at most 10 whole
    numbers, or of text, is classes; else, and with `regression`, it is a number. The column that
    `person` names holds identifiers, and no features come from it. What `columns` says of a column
    goes first, in words such as "mixed" or "number:0..120", or as a column type.

    Guarantee: none for this table: whoever is in it gets no protection. It must be public, which
    `public=True` declares.

    Edge cases: a column without any value is ignored.

    Example:
        >>> from privada.tables import Table, infer_schema
        >>> table = Table({"age": [18, 41, 67], "sex": list("FMF"), "sick": ["no", "yes", "no"]})
        >>> print(infer_schema(table, target="sick", public=True).to_toml())
        [target]
        column = "sick"
        classes = ["no", "yes"]
        <BLANKLINE>
        [columns.age]
        kind = "number"
        low = 18
        high = 67
        <BLANKLINE>
        [columns.sex]
        kind = "category"
        values = ["F", "M"]
        other = true
        <BLANKLINE>
    """
    if public is not True:
        raise ArgumentError(
            f"Expected public=True, got public={public!r}. A schema from values looks at all of "
            "them: declare the table public, or use schema_template."
        )
    _check_column("target", target, table.names)
    inputs = [name for name in table.names if name not in (target, person)]
    kinds = column_kinds(columns or {})
    refuse_unknown(kinds, inputs, target)
    types = {
        name: column_type(name, kinds[name], partial(_of_word, table, name))
        if name in kinds
        else _column_type(table, name)
        for name in inputs
    }
    schema = Schema(_target(table, target, regression), types)
    if person is None:
        return schema
    _check_column("person", person, table.names)
    return schema.with_person(person)


def _check_column(argument: str, name: str, names: Any) -> None:
    if name not in names:
        listed = ", ".join(map(repr, names))
        raise ArgumentError(
            f"Expected {argument} to be one of the columns {listed}, got {argument}={name!r}."
        )


def _values(table: Table, name: str) -> list[str]:
    """Return the texts of a column that are not missing, one for each value."""
    texts = table.texts(name)
    return [canonical(text) for text in texts if text is not None and text not in MISSING]


def _numbers(table: Table, name: str) -> Numbers | None:
    """Return the numbers of a column that are not missing, None if it has text."""
    try:
        found = table.numbers(name)
    except DataError:
        return None
    return found[~np.isnan(found)]


def _outwards(numbers: Numbers) -> tuple[float, float]:
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return math.floor(low) - 1.0, math.ceil(high) + 1.0
    digits = min(15, 1 - math.floor(math.log10(min(high - low, 1e300))))
    step = 10.0 ** abs(digits)
    if digits < 0:
        bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    else:
        bottom, top = math.floor(low * step) / step, math.ceil(high * step) / step
    return min(low, bottom), max(high, top)  # rounding may have gone inwards by a hair


def _scale(numbers: Numbers, low: float, high: float) -> str:
    skewed = low >= 0 and high >= _FAR and numbers.mean() < _SKEWED * high
    return "log" if skewed else "linear"


def _column_type(table: Table, name: str) -> ColumnType:
    if table.columns[name].ndim == 2:
        return _matrix(table.columns[name])
    values = _values(table, name)
    if not values:
        return Ignore()
    numbers = _numbers(table, name)
    if numbers is not None:
        return _number(numbers)
    distinct = sorted(set(values))
    if all(map(is_date, distinct)):
        return _date(distinct)
    if sum(len(value.split()) for value in values) >= _WORDS_OF_TEXT * len(values):
        return Text()
    if len(distinct) == len(values) >= _ROWS_TO_TELL:
        return Ignore()
    if len(distinct) <= _MOST_VALUES:
        return Category(distinct, other=True)
    return _hashed(distinct)


def _number(numbers: Numbers) -> Number:
    low, high = _outwards(numbers)
    return Number(low, high, _scale(numbers, low, high))


def _hashed(distinct: list[str]) -> Hashed:
    buckets = 2 ** math.ceil(math.log2(max(1, len(distinct))))
    return Hashed(min(max(buckets, _FEWEST_BUCKETS), _MOST_BUCKETS))


def _of_word(table: Table, name: str, word: str) -> ColumnType:
    """Return the type of a column of which a word says what it is, and values the rest."""
    if word in ("text", "ignore"):
        return Text() if word == "text" else Ignore()
    distinct = sorted(set(_values(table, name)))
    if word == "hashed":
        return _hashed(distinct)
    numbers = table.numbers(name, lenient=word != "number")
    known = numbers[~np.isnan(numbers)]
    if word == "mixed":
        return Mixed(*(_outwards(known) if known.size else (0, 1)))
    if not distinct or (word == "date" and not all(map(is_date, distinct))):
        raise DataError(f"Expected values of column {name!r} that are of kind {word}, got others.")
    if word == "number":
        return _number(known)
    return _date(distinct) if word == "date" else Category(distinct, other=True)


def _date(values: list[str]) -> ColumnType:
    """Return dates between whole years; with the hour if any says a time."""
    years = [datetime.fromisoformat(value).year for value in values]
    first, last = max(min(years), date.min.year + 1), min(max(years) + 1, date.max.year - 1)
    hours = ["hour"] if any(len(value) > len("2020-12-31") for value in values) else []
    return Date(f"{first:04}-01-01", f"{last:04}-01-01", ["month", "weekday", *hours])


def _matrix(values: Any) -> ColumnType:
    sparse = not isinstance(values, np.ndarray)
    held = values.data if sparse else values
    known = held[np.isfinite(held)].astype(np.float64)
    low, high = _outwards(np.append(known, 0.0) if sparse or not known.size else known)
    return Matrix(int(values.shape[1]), low, high, sparse=sparse)


def _target(table: Table, name: str, regression: bool) -> Target:
    values = _values(table, name)
    if not values:
        raise DataError(f"Expected values in the target {name!r}, got none.")
    numbers = _numbers(table, name)
    distinct = set(values)
    whole = numbers is None or bool((numbers == np.round(numbers)).all())
    if numbers is None and regression:
        raise DataError(f"Expected numbers in the target {name!r} of a regression, got text.")
    if numbers is None or (whole and len(distinct) <= _MOST_CLASSES and not regression):
        return Classes(name, sorted(distinct, key=None if numbers is None else float))
    low, high = _outwards(numbers)
    return Range(name, low, high, _scale(numbers, low, high))


# ---------------------------------------------------------------------- types alone

_UNKNOWN = "?"


def schema_template(
    path: Any,
    *,
    target: str,
    person: str | None = None,
    columns: Mapping[str, Kind] | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    query: str | None = None,
) -> str:
    """Return a schema, as TOML to be filled in, from the names and types of columns alone.

    Numbers get the placeholder "?" for low and high, which `Schema.read` refuses until it is
    filled in, or replaced by `bounds = "estimate"`. Text gets 32 hashed buckets, for which no
    value needs to be known; text of at least five words is a bag of words. The column that `person`
    names holds identifiers. What `columns` says of a column goes before its type.

    Args:
        path, separator, decimal, query: a file, a folder, a database or a frame, as for `read`.
        target: the column that is to be predicted.
        person: the column of identifiers.
        columns: what columns hold, by their names: words such as "mixed" or "number:0..120", or
            column types.

    Returns:
        The template.

    Guarantee: of the private table, only names, types and shapes are used, which are taken to be
    public. Where a file declares no types, in CSV and JSON lines, they are those of the first
    record.

    Edge cases: a column that is missing in the first record is "mixed": each cell is encoded as the
    number or the text that it is. Columns that first occur in a later record of JSON lines are not
    seen.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import schema_template
        >>> _ = Path("people.csv").write_text("age,sick\\n39,no\\n50,yes\\n")
        >>> print(schema_template("people.csv", target="sick"))
        # Drafted from names and types alone. Replace each "?" by what is known without looking
        # at the private table, or write bounds = "estimate" in place of low and high. Text is
        # hashed; where its values are known, write kind = "category" and values = [...].
        <BLANKLINE>
        [target]
        column = "sick"
        classes = "?"
        <BLANKLINE>
        [columns.age]
        kind = "number"
        low = "?"
        high = "?"
        <BLANKLINE>
    """
    types = column_types(path, separator=separator, decimal=decimal, query=query)
    _check_column("target", target, types)
    if person is not None:
        _check_column("person", person, [name for name in types if name != target])
    kinds = column_kinds(columns or {})
    refuse_unknown(kinds, [name for name in types if name not in (target, person)], target)
    asked = {"low": _UNKNOWN, "high": _UNKNOWN}
    found: dict[str, Any] = asked if types[target] == "number" else {"classes": _UNKNOWN}
    sections = [("target", {"column": target, **found})]
    options = {"separator": separator, "decimal": decimal}
    said = {name: mark for name, mark in options.items() if mark is not None}
    if said:
        sections.append(("options", said))
    for name, kind in types.items():
        if name != target:
            found = (
                {"kind": "person"}
                if name == person
                else _template(name, kinds.get(name, KIND_OF_TYPE.get(kind, kind)))
            )
            sections.append((f"columns.{key(name)}", found))
    return document(_comment(types[target] == "number"), sections)


_BOUNDS = {"low": _UNKNOWN, "high": _UNKNOWN}
# The sections of columns, by a word for what they hold.
_TEMPLATES: dict[str, dict[str, Any]] = {
    "number": {"kind": "number", **_BOUNDS},
    "mixed": {"kind": "mixed", **_BOUNDS},
    "date": {"kind": "date", **_BOUNDS, "parts": USUAL_PARTS},
    "category": {"kind": "category", "values": _UNKNOWN, "other": True},
    "hashed": {"kind": "hashed", "buckets": Hashed().buckets},
    "text": {"kind": "text", "features": 4096},
    "ignore": {"kind": "ignore"},
}


def _template(name: str, kind: Kind | int) -> dict[str, Any]:
    if isinstance(kind, int):
        return {"kind": "matrix", "width": kind, **_BOUNDS}
    made = column_type(name, kind, _TEMPLATES.__getitem__)
    return made if isinstance(made, dict) else section_of(made)


def _comment(number: bool) -> str:
    said = (
        'Drafted from names and types alone. Replace each "?" by what is known without looking\n'
        'at the private table, or write bounds = "estimate" in place of low and high. Text is\n'
        'hashed; where its values are known, write kind = "category" and values = [...].'
    )
    classes = "\nIf the target is a class, write classes = [...] in place of its low and high."
    return said + (classes if number else "")
