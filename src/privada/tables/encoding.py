"""From a table and its schema to features and targets, each row by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from privada.core.errors import ArgumentError, DataError
from privada.tables.bag_of_words import hash_bucket, inverse_frequencies, weighted
from privada.tables.cells import Cell, CellError, translate
from privada.tables.columns import Category, ColumnType, Date, Hashed, Matrix, Mixed, Number, Text
from privada.tables.persons import check_identifiers
from privada.tables.reading import read
from privada.tables.schema import Schema
from privada.tables.table import Table, is_sparse, refuse_infinite
from privada.tables.targets import Classes, Range

# Rows that are written at a time: few enough for the processor's cache.
_ROWS = 1 << 10


@dataclass(frozen=True, eq=False)
class Encoded:
    """Features and targets of a table.

    `inputs` are float32, dense or CSR as the schema says. `targets` are int64 class numbers, of
    shape (n,), or float32 in [-1, 1], of shape (n, 1). `names` are those of the features. `data`
    is what a `Trainer` takes, and so are `groups`: the identifier of each row's person, None
    without a `Person` column.

    Example:
        >>> from privada.tables import Classes, Number, Schema, Table, encode
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(low=0, high=100)})
        >>> encoded = encode(Table({"age": [25, 75], "sick": ["no", "yes"]}), schema)
        >>> encoded.inputs.tolist(), encoded.targets.tolist()
        ([[-0.5], [0.5]], [0, 1])
    """

    inputs: Any
    targets: NDArray[Any]
    names: tuple[str, ...]
    groups: NDArray[Any] | None = None

    @property
    def data(self) -> tuple[Any, NDArray[Any]]:
        """The pair of inputs and targets."""
        return self.inputs, self.targets


def encode(table: Table, schema: Schema) -> Encoded:
    """Return the features and the targets of a table.

    Numbers are clipped to their bounds and mapped to [-1, 1], so that the middle, and a missing
    value, count for nothing; categories have a feature for each value; words are counted. See the
    kinds, such as `Number`, for each.

    Guarantee: row i of the result follows from row i of the table and the schema alone. Whatever
    the other rows are, it is the same, bit for bit.

    Edge cases: NaN is a missing value; an infinite one is refused. So are a missing
    target, a class that is not listed, an unlisted value of a category without `other`, and a
    missing identifier where there is a `Person` column. A target with
    `others = "leave-out"` leaves out records of which the first two are true; there, row i is that
    of the i-th record that is left. Columns that the schema does not list are refused. Bounds that
    are still to be estimated are refused.

    Example:
        >>> from privada.tables import Category, Range, Schema, Table, encode
        >>> schema = Schema(
        ...     Range("price", low=0, high=100), {"kind": Category(["flat", "house"], other=True)}
        ... )
        >>> encoded = encode(Table({"kind": ["house", "boat"], "price": [75, 50]}), schema)
        >>> encoded.names
        ('kind=flat', 'kind=house', 'kind (other)', 'kind (missing)')
        >>> encoded.inputs.tolist()
        [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
        >>> schema.target.restore(encoded.targets[:, 0])
        array([75., 50.])
    """
    schema.check(table.names, has_header=table.has_header)
    _refuse_pending(schema)
    if isinstance(schema.target, Classes) and schema.target.others == "leave-out":
        listed = frozenset(map(schema.text, schema.target.classes))
        table = table.take(
            _of_each(table, schema.target.column, schema, lambda cell: cell in listed, np.bool_)
        )
    targets = _targets(table, schema)
    return Encoded(_inputs(table, schema), targets, schema.features, identifiers(table, schema))


def identifiers(table: Table, schema: Schema) -> NDArray[Any] | None:
    """Return the identifier of each row's person, None if the schema names no person column.

    They are what `groups=` is for a `Trainer`, `estimate_bounds` and `estimate_classes`.

    Guarantee: an error says the column, and neither a row nor an identifier.

    Edge cases: a missing identifier is refused. 1 and 1.0 are one person.

    Example:
        >>> from privada.tables import Classes, Number, Schema, Table, identifiers
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(low=0, high=100)})
        >>> table = Table({"patient": [7, 7.0, "b"], "age": [25, 75, 50], "sick": ["no"] * 3})
        >>> identifiers(table, schema.with_person("patient")).tolist()
        ['7', '7', 'b']
    """
    if schema.person is None:
        return None
    check_identifiers(table, schema.person, schema.missing)
    return table.texts(schema.person)


def encode_inputs(table: Table, schema: Schema) -> Any:
    """Return the features of a table, which need not have the target.

    Guarantee and edge cases: as for `encode`.

    Example:
        >>> from privada.tables import Classes, Hashed, Schema, Table, encode_inputs
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"town": Hashed(buckets=4)})
        >>> encode_inputs(Table({"town": ["Ulm", "Ulm", None]}), schema).sum(axis=1).tolist()
        [1.0, 1.0, 0.0]
    """
    schema.check(table.names, target=False, has_header=table.has_header)
    _refuse_pending(schema)
    return _inputs(table, schema)


def _refuse_pending(schema: Schema) -> None:
    if schema.pending:
        raise ArgumentError(
            f"Expected bounds for {', '.join(map(repr, schema.pending))}, got bounds = "
            '"estimate" that no query has estimated yet. Call estimate_bounds first, or give low '
            "and high."
        )


def _inputs(table: Table, schema: Schema) -> Any:
    used = {name: kind for name, kind in schema.columns.items() if name not in schema.unused}
    encoders = (_ENCODERS[type(kind)](table, name, kind, schema) for name, kind in used.items())
    if schema.sparse:
        sparse: Any = scipy.sparse.hstack(
            list(map(_as_csr, encoders)), format="csr", dtype=np.float32
        )
        return sparse
    widths = [len(schema.features_of(name)) for name in used]
    starts = np.cumsum([0, *widths])
    made = list(encoders)
    inputs = np.zeros((table.size, len(schema.features)), dtype=np.float32)
    for first in range(0, table.size, _ROWS):
        rows = slice(first, first + _ROWS)
        for block, start, width in zip(made, starts, widths, strict=False):
            _write(inputs[rows, start : start + width], block, rows)
    return inputs


@dataclass(frozen=True)
class _Slots:
    """A 1 in one place of each row, or nowhere if that is beyond the last."""

    places: NDArray[np.int64]
    width: int


@dataclass(frozen=True)
class _Beside:
    """Dense features and, to the right of them, places."""

    left: NDArray[np.float32]
    right: _Slots


def _as_csr(made: Any) -> Any:
    """Return the features of one column as CSR."""
    if isinstance(made, _Beside):
        return scipy.sparse.hstack([_as_csr(made.left), _as_csr(made.right)], format="csr")
    if not isinstance(made, _Slots):
        return scipy.sparse.csr_array(made)
    inside = made.places < made.width
    starts = np.concatenate([[0], np.cumsum(inside)])
    ones = np.ones(int(starts[-1]), dtype=np.float32)
    return scipy.sparse.csr_array(
        (ones, made.places[inside], starts), shape=(len(inside), made.width)
    )


def _write(out: NDArray[np.float32], made: Any, rows: slice) -> None:
    """Write the features of one column, for some rows, to where they belong."""
    if isinstance(made, _Beside):
        width = made.left.shape[1]
        _write(out[:, :width], made.left, rows)
        _write(out[:, width:], made.right, rows)
    elif isinstance(made, _Slots):
        places = made.places[rows]
        inside = np.flatnonzero(places < made.width)
        out[inside, places[inside]] = 1
    else:
        out[:] = made[rows].toarray() if is_sparse(made) else made[rows]


def _of_each(
    table: Table, name: str, schema: Schema, meaning: Callable[[Cell], Any], dtype: Any
) -> NDArray[Any]:
    """Return what the cells of a column stand for, found once for each different one."""
    codes, cells = table.coded(name)
    return np.asarray(translate(list(map(schema.text, cells)), meaning, dtype, name)[codes])


# ---------------------------------------------------------------------- each kind


def _number(table: Table, name: str, kind: Number, schema: Schema) -> Any:
    values = schema.numbers(table, name)
    absent = np.isnan(values)
    filled = np.where(absent, -1.0 if kind.missing == "low" else 0.0, kind.unit(values))
    flag = [absent] if kind.missing == "flag" else []
    bins = [kind.shares(values)] if kind.bins else []
    return np.column_stack([filled.astype(np.float32), *flag, *bins])


def _mixed(table: Table, name: str, kind: Mixed, schema: Schema) -> Any:
    values = schema.numbers(table, name, lenient=True)
    known = ~np.isnan(values)

    def bucket(cell: Cell) -> int:
        if cell is None or cell in schema.absent:
            return kind.buckets
        return hash_bucket(cell, kind.buckets)

    places = _of_each(table, name, schema, bucket, np.int64)
    places[known] = kind.buckets  # and in no bucket
    number = np.where(known, kind.unit(values), 0.0).astype(np.float32)[:, None]
    return _Beside(number, _Slots(places, kind.buckets))


def _date(table: Table, name: str, kind: Date, schema: Schema) -> Any:
    codes, cells = table.coded(name)
    absent = frozenset(schema.missing)
    texts = [None if cell is None or cell in absent else cell for cell in cells]
    try:
        made = kind.calendar.all_features(texts)
    except CellError as error:
        found = error.of_column(name)
    else:
        if kind.missing == "flag":
            made = np.column_stack([made, np.array([text is None for text in texts])])
        return made[codes]
    # said outside the handler, where no traceback leads to the cell
    raise found


def _category(table: Table, name: str, kind: Category, schema: Schema) -> Any:
    known: dict[Cell, int] = {}
    for place, value in enumerate(kind.values):
        known.setdefault(schema.text(value), place)
    last = len(kind.values) + kind.other

    def slot(cell: Cell) -> int:
        if cell in schema.absent:
            return last
        if cell not in known and not kind.other:
            raise CellError(
                "one of the values that the schema lists",
                "List it, or write other = true for a feature of all others.",
            )
        return known.get(cell, last - 1)

    return _Slots(_of_each(table, name, schema, slot, np.int64), last + 1)


def _hashed(table: Table, name: str, kind: Hashed, schema: Schema) -> Any:
    def slot(cell: Cell) -> int:
        if cell is None or cell in schema.absent:
            return kind.buckets
        return hash_bucket(cell, kind.buckets)

    return _Slots(_of_each(table, name, schema, slot, np.int64), kind.buckets)


def _text(table: Table, name: str, kind: Text, schema: Schema) -> Any:
    absent = frozenset(schema.missing)
    vocabulary = schema.vocabularies[name]
    weights = word_weights(name, kind, schema)
    texts = (None if text in absent else text for text in table.texts(name))
    return weighted(vocabulary.counts(texts), kind.weighting, weights, kind.unit_norm)


def word_weights(name: str, kind: Text, schema: Schema) -> NDArray[np.float32] | None:
    """Return what counts of words are multiplied by, None for nothing."""
    if kind.public_text is None:
        return None
    return inverse_frequencies(schema.vocabularies[name].counts(public_texts(name, kind, schema)))


def public_texts(name: str, kind: Text, schema: Schema) -> NDArray[Any]:
    """Return the documents that were declared public for a column of text."""
    table = read(schema.folder / str(kind.public_text))
    return table.texts(name if name in table.names else "text")


def _matrix(table: Table, name: str, kind: Matrix, schema: Schema) -> Any:
    values = table.matrix(name)
    if values.shape[1] != kind.width:
        raise DataError(
            f"Expected {kind.width:,} numbers for each record in column {name!r}, got "
            f"{values.shape[1]:,}. Correct width in the schema."
        )
    if not kind.sparse:
        dense = values.toarray() if is_sparse(values) else values
        refuse_infinite(name, np.isinf(dense).any(axis=1))
        return _bounded(dense, kind)
    rows: Any = scipy.sparse.csr_array(values, copy=True)
    rows.sum_duplicates()
    infinite = np.zeros(table.size, dtype=bool)
    infinite[np.repeat(np.arange(table.size), np.diff(rows.indptr))[np.isinf(rows.data)]] = True
    refuse_infinite(name, infinite)
    parts = _bounded(rows.data, kind), rows.indices, rows.indptr
    return scipy.sparse.csr_array(parts, shape=rows.shape)


def _bounded(values: NDArray[Any], kind: Matrix) -> NDArray[np.float32]:
    known = np.nan_to_num(values.astype(np.float64), copy=False)
    return (np.clip(known, kind.low, kind.high) / kind.largest).astype(np.float32)


_ENCODERS: dict[type[ColumnType], Callable[[Table, str, Any, Schema], Any]] = {
    Number: _number,
    Mixed: _mixed,
    Date: _date,
    Category: _category,
    Hashed: _hashed,
    Text: _text,
    Matrix: _matrix,
}


# ---------------------------------------------------------------------- targets


def _targets(table: Table, schema: Schema) -> NDArray[Any]:
    if isinstance(schema.target, Range):
        return _range(table, schema.target, schema)
    return _classes(table, schema.target, schema)


def _range(table: Table, target: Range, schema: Schema) -> NDArray[Any]:
    values = schema.numbers(table, target.column)
    if np.isnan(values).any():
        raise DataError(
            f"Expected a target in every row of column {target.column!r}, got a missing value. "
            "Remove rows without one."
        )
    return target.unit(values).astype(np.float32)[:, None]


def _classes(table: Table, target: Classes, schema: Schema) -> NDArray[Any]:
    known: dict[Cell, int] = {}
    for place, name in enumerate(target.classes):
        known.setdefault(schema.text(name), place)

    def number(cell: Cell) -> int:
        if cell in schema.absent:
            raise CellError("a target", "Remove rows without one.")
        if cell not in known:
            raise CellError("one of the classes that the schema lists", "List every class.")
        return known[cell]

    return _of_each(table, target.column, schema, number, np.int64)
