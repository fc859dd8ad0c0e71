"""The rows of a private table and what is known of its columns, before any query is charged."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privada import tables
from privada.core.errors import ArgumentError, DataError
from privada.tables.cells import MISSING
from privada.tables.encoding import public_texts
from privada.workflows.options import TableOptions

_TOLD = "What the columns are, their bounds and classes, was said without looking at these records."


@dataclass(frozen=True)
class TableRows:
    """The private rows of a table and the public ones, not encoded yet.

    `schema` is what is known of them; without it, `types` say what can be known for nothing.
    `persons` has the identifier of the person of each private row, None if each row is a unit of
    its own.
    """

    private: tables.Table
    public: tables.Table | None
    schema: tables.Schema | None
    types: dict[str, str | int]
    assumptions: tuple[str, ...]
    persons: NDArray[Any] | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be found by a charged query."""
        return self.schema is not None and not self.schema.pending

    @property
    def units(self) -> int:
        """How many units the promise protects: private rows, or the persons who have them."""
        return self.private.size if self.persons is None else len(set(self.persons.tolist()))


def read_rows(path: Path, options: TableOptions, known: Path | None = None) -> TableRows:
    """Return the rows and what is known of them without a look at private values.

    `known` is the schema of a run that is resumed, if there is such a file.
    """
    schema = _given_schema(options, known)
    said: tuple[str, ...] = (_TOLD,)
    whole = tables.read(path, schema=_with_person(schema, options.person, tables.Hashed()))
    schema = _with_person(schema, options.person, tables.Ignore())
    table, persons = _without_person(whole, options)
    chosen = _public_rows(whole, options)
    private, public = table, None
    if chosen is not None:
        private, public = table.take(~chosen), table.take(chosen)
        persons = None if persons is None else persons[~chosen]
    if options.public is not None:
        if public is not None:
            raise ArgumentError("Expected one of --public and --public-rows, got both.")
        public = _public_table(path, private, options, schema)
    if persons is not None:
        _refuse_nobody(persons, options, schema)
    if schema is not None:
        _refuse_private_texts(schema, path, private)
    types = {} if schema is not None else _types(path, options)
    if schema is None and public is not None:
        schema, said = _schema_of_public_rows(public, options)
    return TableRows(private, public, schema, types, said, persons)


def target_name(options: TableOptions) -> str:
    """Return the target's column, which is known where there is no schema."""
    assert options.target is not None
    return options.target


def _given_schema(options: TableOptions, known: Path | None) -> tables.Schema | None:
    if known is not None and known.exists():
        return tables.Schema.read(known)
    if options.schema is None:
        return None
    schema = tables.Schema.read(options.schema)
    if options.target not in (None, schema.target.column):
        raise ArgumentError(
            f"Expected --target to be left out or {schema.target.column!r}, as the schema says, "
            f"got {options.target!r}."
        )
    kind = schema.columns.get(options.person or "", tables.Ignore())
    if options.person == schema.target.column or not isinstance(kind, tables.Ignore):
        raise ArgumentError(
            f"Expected --person to be a column that is no target and no feature, got "
            f'{options.person!r}. Give the column kind = "ignore" in the schema, or leave it out.'
        )
    return schema


# ---------------------------------------------------------------------- persons


def _with_person(
    schema: tables.Schema | None, person: str | None, kind: tables.Hashed | tables.Ignore
) -> tables.Schema | None:
    """Return the schema with the column of persons as a column of some kind."""
    if schema is None or person is None:
        return schema
    return replace(schema, columns={**schema.columns, person: kind})


def _without_person(
    table: tables.Table, options: TableOptions
) -> tuple[tables.Table, NDArray[Any] | None]:
    """Return the table without the column of persons, and that column."""
    person = options.person
    if person is None:
        return table, None
    if person not in table.names:
        named = f" Its columns: {', '.join(table.names)}." if table.has_header else ""
        raise ArgumentError(
            f"Expected --person to be a column of the table, got {person!r}.{named}"
        )
    return _dropped(table, person), table.texts(person)


def _dropped(table: tables.Table, name: str) -> tables.Table:
    kept = {other: values for other, values in table.columns.items() if other != name}
    if not kept:
        raise DataError(f"Expected other columns than {name!r} in the table, got none.")
    return tables.Table.of_columns(kept, has_header=table.has_header)


def _refuse_nobody(
    persons: NDArray[Any], options: TableOptions, schema: tables.Schema | None
) -> None:
    """Raise if some private row is nobody's: whose rows these are decides what is protected."""
    missing = frozenset(MISSING if schema is None else schema.missing)
    if any(each is None or each in missing for each in persons.tolist()):
        raise DataError(
            f"Expected a person in every row of column {options.person!r}, got a missing value. "
            "Remove rows without one, or give each the identifier of its person."
        )


# ---------------------------------------------------------------------- public rows


def _public_table(
    path: Path, private: tables.Table, options: TableOptions, schema: tables.Schema | None
) -> tables.Table:
    assert options.public is not None
    _refuse_same_file("--public", Path(options.public), path)
    public = tables.read(Path(options.public), schema=schema)
    if options.person is not None and options.person in public.names:
        public = _dropped(public, options.person)
    tables.refuse_overlap(public, private, schema)
    return public


def _refuse_same_file(name: str, public: Path, private: Path) -> None:
    if public.exists() and public.samefile(private):
        raise ArgumentError(
            f"Expected {name} to be a public table, got {str(public)!r}, which is the private one."
        )


def _refuse_private_texts(schema: tables.Schema, path: Path, private: tables.Table) -> None:
    """Raise if text that was declared public, to weigh words by, is the private text."""
    for name, kind in schema.columns.items():
        if isinstance(kind, tables.Text) and kind.public_text is not None:
            _refuse_same_file(f"public_text of {name!r}", schema.folder / kind.public_text, path)
            shown = tables.Table({name: public_texts(name, kind, schema)})
            tables.refuse_overlap(shown, tables.Table({name: private.texts(name)}))


def _public_rows(table: tables.Table, options: TableOptions) -> NDArray[np.bool_] | None:
    """Return which rows were declared public, None if none were."""
    if options.public_rows is None:
        return None
    name, equals, value = options.public_rows.partition("=")
    if not equals or name not in table.names:
        raise ArgumentError(
            f"Expected --public-rows column=value with a column of the table, got "
            f"{options.public_rows!r}."
        )
    chosen = np.asarray(table.texts(name) == value, dtype=bool)
    if not chosen.any() or chosen.all():
        raise ArgumentError(
            f"Expected --public-rows to choose some rows and leave some, got "
            f"{options.public_rows!r}, which chooses {int(chosen.sum())} of {table.size}."
        )
    return chosen


def _types(path: Path, options: TableOptions) -> dict[str, str | int]:
    """Return the types of the columns, as far as names and types alone say."""
    if options.target is None:
        raise ArgumentError("Expected --target, or --schema, got neither.")
    types = tables.column_types(path)
    types.pop(options.person or "", None)
    if options.target not in types:
        raise ArgumentError(
            f"Expected --target to be a column of {path.name}, got {options.target!r}. Its "
            f"columns: {', '.join(types)}."
        )
    for name in options.text:
        if types.get(name) not in ("text", "words") or name == options.target:
            raise ArgumentError(
                f"Expected --text to be a column of text other than the target, got {name!r}."
            )
    return types | dict.fromkeys(options.text, "words")


def _schema_of_public_rows(
    public: tables.Table, options: TableOptions
) -> tuple[tables.Schema, tuple[str, ...]]:
    """Return a schema from public rows, and what it rests on."""
    target = target_name(options)
    drafted = tables.draft(public, target=target, public=True)
    columns = {**drafted.columns, **{name: tables.Text() for name in options.text}}
    drafted = replace(drafted, columns=columns)
    if options.classes:
        drafted = replace(drafted, target=tables.Classes(target, options.classes))
    said = (
        f"Bounds, categories and classes are those of {public.size:,} rows that were declared "
        "public."
    )
    made = _with_person(drafted, options.person, tables.Ignore())
    assert made is not None
    return made, (said,)
