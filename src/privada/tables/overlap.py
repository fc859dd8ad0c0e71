"""Whether a table that was declared public is the private one, or rows of it."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from privada.core.errors import DataError
from privada.core.overlap import are_shared, row_digest
from privada.tables.cells import MISSING, CellCache
from privada.tables.schema import Schema
from privada.tables.spooling import SpooledTable, parts_of
from privada.tables.table import Table, is_sparse


def refuse_overlap(
    public: Table, private: Table | SpooledTable, schema: Schema | None = None
) -> None:
    """Raise if a public table is the private one, or if most rows of one are rows of the other.

    Rows are compared by the columns that both have and the schema uses, whatever their order; 1 and
    1.0, fractions that are one number in float32, and all texts for a missing value, are one value.

    Args:
        public: the table that was declared public.
        private: the private one, in memory or in parts.
        schema: what the columns are, if it is known.

    Guarantee: none; it looks at private values, as other checks of a set-up do, and is not charged.
    It guards against mistakes. It says yes or no, never which rows or how many.

    Edge cases: what chance explains is let through. How many rows of a table have no twin in it
    tells how many of an independent one are new to it; refused is what has less than half as many,
    with a probability below 1e-6 and at least 20 different rows in common. So a table of few
    different rows, and one of fewer than 20, are refused only if both have the very same rows.

    Example:
        >>> from privada.tables import Table, refuse_overlap
        >>> private = Table({"age": range(1000), "sick": ["no", "yes"] * 500})
        >>> refuse_overlap(Table({"age": range(900, 2000), "sick": ["no", "yes"] * 550}), private)
        >>> try:
        ...     refuse_overlap(private.take(slice(0, 300)), private)
        ... except ValueError as error:
        ...     print(str(error).partition(",")[0])
        Expected a public table of other records than the private one

    Reference: Good (1953), The Population Frequencies of Species and the Estimation of Population
    Parameters, for the chance that a new row is one that was seen.
    """
    unused = frozenset[str]() if schema is None else schema.unused
    missing = MISSING if schema is None else schema.missing
    names = [n for n in sorted(public.names) if n in private.names and n not in unused]
    if names and are_shared(_rows(public, names, missing), _rows(private, names, missing)):
        raise DataError(
            "Expected a public table of other records than the private one, got one that shares "
            "too many rows with it. Give a table that is public, and leave its rows out of the "
            "private one."
        )


def _rows(table: Table | SpooledTable, names: list[str], missing: Iterable[str]) -> Iterator[bytes]:
    """Yield a digest of each row."""
    for part in parts_of(table, names):
        columns = [_canonical(part.columns[name], frozenset(missing)) for name in names]
        for row in zip(*columns, strict=True):
            yield row_digest(repr(row).encode("utf-8", "surrogatepass"))


def _canonical(values: Any, missing: frozenset[str]) -> list[Any]:
    """Return cells, each as what it stands for."""
    if is_sparse(values):
        rows = values.tocsr()
        ends = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
        return [_entries(rows.indices[start:end], rows.data[start:end]) for start, end in ends]
    if values.ndim == 2:
        places = np.arange(values.shape[1])
        return [_entries(places, row) for row in values]
    if values.dtype != object:
        numbers = _single(np.asarray(values, dtype=np.float64)).tolist()
        return [None if math.isnan(number) else number + 0.0 for number in numbers]
    meaning = CellCache(lambda cell: None if cell is None or cell in missing else _plain(cell))
    return [meaning[cell] for cell in values.tolist()]


def _entries(places: Any, values: Any) -> bytes:
    """Return the numbers of a row of a matrix that are not zero, and where they are."""
    order = np.argsort(places)
    kept = order[np.asarray(values)[order] != 0]
    return bytes(
        places[kept].astype(np.int64).tobytes() + _single(values[kept].astype(np.float64)).tobytes()
    )


def _single(numbers: Any) -> Any:
    """Return numbers as float32 has them, as copies often do; whole ones as they are."""
    with np.errstate(all="ignore"):  # a warning would tell that a record has a huge value
        rounded = numbers.astype(np.float32).astype(np.float64)
    return np.where(np.rint(numbers) == numbers, numbers, rounded)


def _plain(cell: str) -> float | str | None:
    """Return the number that a cell is, None for one that is not a number, other text as it is."""
    try:
        number = float(cell)
    except ValueError:
        return cell
    return None if math.isnan(number) else float(_single(np.float64(number))) + 0.0
