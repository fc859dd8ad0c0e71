"""Tables that a query of a database returns: SQLite, PostgreSQL and DuckDB, by a URL."""

import importlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from privada.core.errors import ArgumentError, DataError, PrivadaError
from privada.tables.cells import text_of
from privada.tables.formats.arrow_files import columns_of, type_of
from privada.tables.formats.building import (
    Part,
    Types,
    cell_type,
    kept_names,
    missing_texts,
    no_record,
    number_names,
    part_of,
    refuse_twice,
)
from privada.tables.text_column import parser, text_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema

# Rows that are fetched at a time.
_ROWS = 1 << 14
_Value = TypeVar("_Value")
_POSTGRES = ("postgresql", "postgres")
SCHEMES = ("sqlite", "duckdb", *_POSTGRES)


def is_url(source: Any) -> bool:
    """Return whether a table is named by the URL of a database."""
    return isinstance(source, str) and source.partition("://")[0] in SCHEMES and "://" in source


def shown(url: str) -> str:
    """Return a URL without its user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _check_query(url: str, query: str | None) -> str:
    if isinstance(query, str) and query.strip():
        return query
    raise ArgumentError(
        f"Expected a query for {shown(url)!r}, got query={query!r}. Say which rows: --query "
        '"select * from patients".'
    )


def _in_words(url: str, found: Iterator[_Value]) -> Iterator[_Value]:
    """Yield what is found; say that a query failed, without what the database says of values."""
    nothing = object()
    while True:
        each: Any = nothing
        try:
            each = next(found, None)
        except (PrivadaError, MemoryError):
            raise
        except Exception:
            pass
        if each is None:
            return
        if each is nothing:  # said outside the handler, where no traceback leads to a value
            raise DataError(
                f"Cannot run the query on {shown(url)!r}. Check the address, the permissions and "
                "the query in a client of the database, which says what is wrong."
            )
        yield each


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        pass
    raise DataError(
        f"Cannot read from this database: {name} is not there. Install it with "
        f"pip install 'privada[{extra}]'."
    )


def _place(url: str) -> str:
    """Return the file that a URL names, empty for a database in memory."""
    host, path = urlsplit(url).netloc, urlsplit(url).path
    return unquote(host + path if host else path.removeprefix("/"))


@contextmanager
def _rows(url: str, query: str) -> Iterator[tuple[list[str], Iterator[list[Any]]]]:
    """Run a query that may only read: give the names of its columns, and rows in batches."""
    if url.startswith("sqlite"):
        file = f"file:{quote(_place(url))}?mode=ro"
        with closing(sqlite3.connect(file, uri=True)) as connection:
            cursor = connection.execute(query)
            yield _names(cursor, url), _batches(cursor)
        return
    postgres = _library("psycopg", "postgres")
    with postgres.connect(url) as connection:
        connection.read_only = True
        with connection.cursor(name="privada") as cursor:
            cursor.execute(query)
            first = cursor.fetchmany(_ROWS)  # a cursor of the server has no names before
            yield _names(cursor, url), chain([first] if first else [], _batches(cursor))


def _names(cursor: Any, url: str) -> list[str]:
    if cursor.description is None:
        raise ArgumentError(
            f"Expected a query of {shown(url)!r} that returns rows, got one that returns none. "
            "Give a select statement."
        )
    return [column[0] for column in cursor.description]


def _batches(cursor: Any) -> Iterator[list[Any]]:
    while rows := cursor.fetchmany(_ROWS):
        yield rows


@contextmanager
def _duck(url: str, query: str) -> Iterator[Any]:
    """Run a query in DuckDB: give what PyArrow reads its result by."""
    duck, place = _library("duckdb", "duckdb"), _place(url)
    with closing(duck.connect(place or ":memory:", read_only=bool(place))) as connection:
        found = connection.execute(query)
        fetch = getattr(found, "to_arrow_reader", None) or found.fetch_record_batch
        yield fetch(_ROWS)


def query_parts(url: str, query: str | None, schema: "Schema | None") -> Iterator[Part]:
    """Yield the columns of what a query returns, some rows at a time."""
    asked, size = _check_query(url, query), 0
    parts = _duck_parts if url.startswith("duckdb") else _sql_parts
    for part in _in_words(url, parts(url, asked, schema)):
        size += part.size
        yield part
    if not size:
        raise DataError(no_record(shown(url)))


def _duck_parts(url: str, query: str, schema: "Schema | None") -> Iterator[Part]:
    with _duck(url, query) as batches:
        names = list(batches.schema.names)
        refuse_twice(names, shown(url))
        kept = kept_names(names, schema)
        for batch in batches:
            if batch.num_rows:
                yield part_of(columns_of(batch, kept, schema))


def _sql_parts(url: str, query: str, schema: "Schema | None") -> Iterator[Part]:
    numbers, missing = number_names(schema), frozenset(missing_texts(schema))
    with _rows(url, query) as (names, batches):
        refuse_twice(names, shown(url))
        kept = kept_names(names, schema)
        for rows in batches:
            cells = dict(zip(names, zip(*rows, strict=True), strict=True))
            columns = {name: text_column(list(map(text_of, cells[name]))) for name in kept}
            yield part_of(
                {
                    name: column.numbers(missing, parser(missing, column.mark), name)
                    if name in numbers
                    else column
                    for name, column in columns.items()
                }
            )


def query_types(url: str, query: str | None) -> Types:
    """Return the types that a query's result declares, or those of its first record."""
    found = _duck_types if url.startswith("duckdb") else _sql_types
    return next(_in_words(url, found(url, _check_query(url, query))))


def _duck_types(url: str, query: str) -> Iterator[Types]:
    with _duck(url, query) as batches:
        yield {field.name: type_of(field.type) for field in batches.schema}


def _sql_types(url: str, query: str) -> Iterator[Types]:
    with _rows(url, query) as (names, batches):
        first = next(iter(next(batches, [])), None)
        if first is None:
            raise DataError(no_record(shown(url)))
        yield {n: cell_type(text_of(cell)) for n, cell in zip(names, first, strict=True)}
