"""The rows of a private table and what is known of its columns, before any query is charged."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privada import tables
from privada.core.errors import ArgumentError, DataError
from privada.tables.cells import MISSING
from privada.tables.encoding import public_texts
from privada.tables.frames import is_frame
from privada.tables.kinds import refuse_unknown, usual_type
from privada.tables.persons import person_numbers
from privada.tables.schema import TOLD
from privada.tables.table import joined
from privada.workflows.options import TableOptions
from privada.workflows.row_storage import RowStorage
from privada.workflows.table_source import same_file, source_name

_TYPES = (
    "The names and types of the columns are public; of a file that declares no types, they are "
    "those of its first record, and a type that is missing there is not looked for in others."
)

_QUERY = (
    "Each row that the query of the database returned follows from one record alone: it does not "
    "group, rank, join or limit records by others."
)

_SAID = "What {} holds was said without looking at these records."

_Options = TypeVar("_Options", bound=TableOptions)


@dataclass(frozen=True)
class TableRows:
    """The private rows of a table and the public ones, not encoded yet.

    `schema` is what is known of them; without it, `types` say what can be known for nothing.
    `persons` has the number of the person of each private row, None if each row is a unit of its
    own. `storage` is where features are kept.
    """

    private: tables.SpooledTable
    public: tables.Table | None
    schema: tables.Schema | None
    types: dict[str, str | int]
    assumptions: tuple[str, ...]
    storage: RowStorage
    persons: NDArray[np.int64] | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be found by a charged query."""
        return self.schema is not None and not self.schema.pending

    @property
    def units(self) -> int:
        """How many units the promise protects: private rows, or the persons who have them."""
        return self.private.size if self.persons is None else int(self.persons.max()) + 1


def with_person_of_schema(options: _Options) -> _Options:
    """Return the options with the column of persons that their schema names, if it names one.

    So a schema that says whose a row is protects persons, whatever else is asked for.
    """
    named = None if options.schema is None else tables.Schema.read(options.schema).person
    if named is None or options.person == named:
        return options
    if options.person is not None:
        raise ArgumentError(
            f"Expected --person to be left out or {named!r}, as the schema says, got "
            f"{options.person!r}."
        )
    return replace(options, person=named)


def read_rows(
    path: Any, options: TableOptions, storage: RowStorage, known: Path | None = None
) -> TableRows:
    """Return the rows and what is known of them without a look at private values.

    `known` is the schema of a run that is resumed, if there is such a file.
    """
    schema = _given_schema(options, known)
    said: tuple[str, ...] = (TOLD,)
    parts = tables.read_parts(path, schema, query=options.query, **options.layout)
    chosen: list[tables.Table] = []
    if options.public_rows is not None:
        parts = _without_public_rows(parts, options.public_rows, chosen)
    private = storage.spool(parts, in_memory=is_frame(path))
    if options.person is not None:
        _check_person(private, options.person)
    public = joined(chosen) if chosen else None
    if options.public is not None:
        if public is not None:
            raise ArgumentError("Expected one of --public and --public-rows, got both.")
        public = _public_table(path, private, options, schema)
    if schema is not None:
        _refuse_private_texts(schema, path, private)
    types: dict[str, str | int] = {}
    if schema is None:
        types, said = _types(path, options), (_TYPES,)
        if public is not None:
            schema, said = _schema_of_public_rows(public, options)
        if options.columns:
            said = (*said, _SAID.format(", ".join(map(repr, options.columns))))
    if options.query is not None:
        said = (*said, _QUERY)
    persons = None
    if options.person is not None:
        missing = MISSING if schema is None else schema.missing
        persons = person_numbers(private, options.person, missing)
        said = (
            *said,
            f"Rows with one value of column {options.person!r} are one {options.unit}'s.",
        )
    rows = TableRows(private, public, schema, types, said, storage, persons)
    if schema is None or not types:
        return rows
    return replace(rows, schema=with_bins(schema, options, rows.units))


def check_names(path: Any, options: TableOptions) -> None:
    """Raise where options name a file or a column that there is not, before any row is read."""
    if _given_schema(options, None) is None:
        _types(path, options)


def target_name(options: TableOptions) -> str:
    """Return the target's column, which is known where there is no schema."""
    assert options.target is not None
    return options.target


def _given_schema(options: TableOptions, known: Path | None) -> tables.Schema | None:
    if known is not None and known.exists():
        return tables.Schema.read(known, version=1)
    if options.schema is None:
        return None
    schema = tables.Schema.read(options.schema)
    if options.target not in (None, schema.target.column):
        raise ArgumentError(
            f"Expected --target to be left out or {schema.target.column!r}, as the schema says, "
            f"got {options.target!r}."
        )
    if options.regression and schema.task == "classification":
        raise ArgumentError(
            f"Expected --regression with a target that has low and high, got the classes of "
            f"{schema.target.column!r} in the schema. Remove it, or correct the schema."
        )
    said = {name: value for name, value in options.layout.items() if value is not None}
    schema = replace(schema, **said)
    if options.columns:
        inputs = [name for name in schema.columns if name not in (options.person, schema.person)]
        refuse_unknown(options.columns, inputs, schema.target.column)
        schema = replace(schema, columns={**schema.columns, **_kinds(options)})
    return schema if options.person is None else schema.with_person(options.person)


def _check_person(table: tables.SpooledTable, person: str) -> None:
    if person not in table.names:
        named = f" Its columns: {', '.join(table.names)}." if table.has_header else ""
        raise ArgumentError(
            f"Expected --person to be a column of the table, got {person!r}.{named}"
        )


# ---------------------------------------------------------------------- public rows


def _public_table(
    path: Any, private: tables.SpooledTable, options: TableOptions, schema: tables.Schema | None
) -> tables.Table:
    assert options.public is not None
    _refuse_same_file("--public", Path(options.public), path)
    public = tables.read(Path(options.public), schema=schema, **options.layout)
    # identifiers must not hide that rows are shared: they are not compared
    tables.refuse_overlap(_without_person(public, options.person), private, schema)
    return public


def _without_person(table: tables.Table, person: str | None) -> tables.Table:
    kept = {name: values for name, values in table.columns.items() if name != person}
    if not kept:
        raise DataError(f"Expected other columns than {person!r} in a table, got none.")
    return tables.Table.of_columns(kept, has_header=table.has_header)


def _refuse_same_file(name: str, public: Path, private: Any) -> None:
    if same_file(public, private):
        raise ArgumentError(
            f"Expected {name} to be a public table, got {str(public)!r}, which is the private one."
        )


def _refuse_private_texts(schema: tables.Schema, path: Any, private: tables.SpooledTable) -> None:
    """Raise if text that was declared public, to weigh words by, is the private text."""
    for name, kind in schema.columns.items():
        if isinstance(kind, tables.Text) and kind.public_text is not None:
            _refuse_same_file(f"public_text of {name!r}", schema.folder / kind.public_text, path)
            shown = tables.Table({name: public_texts(name, kind, schema)})
            tables.refuse_overlap(shown, private)


def _without_public_rows(
    parts: Iterable[tables.Table], asked: str, public: list[tables.Table]
) -> Iterator[tables.Table]:
    """Yield the parts of a table without the rows that were declared public, which are kept."""
    name, equals, value = asked.partition("=")
    names: set[str] = set()
    size = chosen = 0
    for part in parts:
        names.update(part.names)
        mask = np.zeros(part.size, dtype=bool)
        if name in part.names:
            mask = np.asarray(part.texts(name) == value, dtype=bool)
        size, chosen = size + part.size, chosen + int(mask.sum())
        if mask.any():
            public.append(part.take(mask))
        yield part.take(~mask)
    if not equals or name not in names:
        raise ArgumentError(
            f"Expected --public-rows column=value with a column of the table, got {asked!r}."
        )
    if chosen in (0, size):
        raise ArgumentError(
            f"Expected --public-rows to choose some rows and leave some, got {asked!r}, which "
            f"chooses {chosen} of {size}."
        )


def _types(path: Any, options: TableOptions) -> dict[str, str | int]:
    """Return the types of the columns, as far as names and types alone say."""
    types = tables.column_types(path, query=options.query, **options.layout)
    if options.target is None:
        raise ArgumentError("Expected --target, or --schema, got neither.")
    types.pop(options.person or "", None)
    if options.target not in types:
        raise ArgumentError(
            f"Expected --target to be a column of {source_name(path)}, got {options.target!r}. Its "
            f"columns: {', '.join(types)}."
        )
    for name in options.text:
        if types.get(name) not in ("text", "words") or name == options.target:
            raise ArgumentError(
                f"Expected --text to be a column of text other than the target, got {name!r}. If "
                f"its first cell is misleading, give --column {name}=text."
            )
    inputs = [name for name in types if name != options.target]
    refuse_unknown(options.columns, inputs, options.target)
    if options.public is None and options.public_rows is None:
        _kinds(options)
    return types | dict.fromkeys(options.text, "words")


def _kinds(options: TableOptions) -> dict[str, Any]:
    """Return the columns that options say the kind of, with bounds left to a query."""
    return {name: usual_type(name, kind) for name, kind in options.columns.items()}


def _schema_of_public_rows(
    public: tables.Table, options: TableOptions
) -> tuple[tables.Schema, tuple[str, ...]]:
    """Return a schema from public rows, and what it rests on."""
    target = target_name(options)
    shown = _without_person(public, options.person)
    drafted = tables.infer_schema(
        shown, target=target, public=True, regression=options.regression, columns=options.columns
    )
    columns = {**drafted.columns, **{name: tables.Text() for name in options.text}}
    drafted = replace(drafted, columns=columns, **options.layout)
    if options.classes:
        drafted = replace(drafted, target=tables.Classes(target, options.classes))
    said = (
        f"Bounds, categories and classes are those of {public.size:,} rows that were declared "
        "public."
    )
    if options.person is not None:
        drafted = drafted.with_person(options.person)
    return drafted, (said,)


def with_bins(schema: tables.Schema, options: TableOptions, units: int) -> tables.Schema:
    """Return a schema that no user wrote with bins of numbers, which a linear model gains by."""
    if options.model != "linear":
        return schema
    columns = schema.columns.items()
    numbers = {name: kind for name, kind in columns if isinstance(kind, tables.Number)}
    from privada import defaults  # which loads torch: names are checked without it

    bins = defaults.bins(units, len(numbers))
    binned = {name: replace(kind, bins=bins) for name, kind in numbers.items()}
    return replace(schema, columns={**schema.columns, **binned})
