"""What `privada train` trains on: a table, by a schema that someone gave, drafted or paid for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privada import tables
from privada.accounting import Budget, Ledger
from privada.accounting.events import Tally
from privada.cli.wanted import Wanted
from privada.core.errors import ArgumentError, DataError
from privada.tables.encoding import public_texts
from privada.tables.private_bounds import bounds_question
from privada.tables.private_classes import classes_question
from privada.tables.targets import Target

_TOLD = "What the columns are, their bounds and classes, was said without looking at these records."
_TYPES = "The names and types of the columns are public."


@dataclass(frozen=True)
class Inputs:
    """The private records and the public ones, encoded.

    `population` is how many private records the table has, of which those without a class that is
    known are not in `train`; `assumptions` are what the schema rests on, in words.
    """

    train: tuple[Any, Any]
    public: tuple[Any, Any] | None
    schema: tables.Schema
    population: int
    assumptions: tuple[str, ...]

    @property
    def leaves_out(self) -> bool:
        """Whether records may have been left out, so that how many there are is private."""
        return getattr(self.schema.target, "others", "refuse") == "leave-out"

    @property
    def outputs(self) -> int:
        """How many numbers a model has to return."""
        target = self.schema.target
        return len(target.classes) if isinstance(target, tables.Classes) else 1


@dataclass(frozen=True)
class Rows:
    """The private rows of a table and the public ones, not encoded yet.

    `schema` is what is known of them; without it, `types` say what can be known for nothing.
    """

    private: tables.Table
    public: tables.Table | None
    schema: tables.Schema | None
    types: dict[str, str | int]
    assumptions: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be found by a charged query."""
        return self.schema is not None and not self.schema.pending


def read(path: Path, asked: Wanted, known: Path) -> Rows:
    """Return the rows and what is known of them without a look at private values.

    `known` is the schema of a run that is resumed, if there is such a file.
    """
    schema = _given(asked, known)
    said: tuple[str, ...] = (_TOLD,)
    table = tables.read(path, schema=schema)
    chosen = _public_rows(table, asked)
    private, public = table, None
    if chosen is not None:
        private, public = table.take(~chosen), table.take(chosen)
    if asked.public is not None:
        if public is not None:
            raise ArgumentError("Expected one of --public and --public-rows, got both.")
        _refuse_same_file("--public", Path(asked.public), path)
        public = tables.read(Path(asked.public), schema=schema)
        tables.refuse_overlap(public, private, schema)
    if schema is not None:
        _refuse_private_texts(schema, path, private)
    types = {} if schema is not None else _types(path, asked)
    if schema is None and public is not None:
        schema, said = _drafted(public, asked)
    return Rows(private, public, schema, types, said)


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


def _given(asked: Wanted, known: Path) -> tables.Schema | None:
    if known.exists():
        return tables.Schema.read(known)
    if asked.schema is None:
        return None
    schema = tables.Schema.read(asked.schema)
    if asked.target not in (None, schema.target.column):
        raise ArgumentError(
            f"Expected --target to be left out or {schema.target.column!r}, as the schema says, "
            f"got {asked.target!r}."
        )
    return schema


def _public_rows(table: tables.Table, asked: Wanted) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Return which rows were declared public, None if none were."""
    if asked.public_rows is None:
        return None
    name, equals, value = asked.public_rows.partition("=")
    if not equals or name not in table.names:
        raise ArgumentError(
            f"Expected --public-rows column=value with a column of the table, got "
            f"{asked.public_rows!r}."
        )
    chosen = np.asarray(table.texts(name) == value, dtype=bool)
    if not chosen.any() or chosen.all():
        raise ArgumentError(
            f"Expected --public-rows to choose some rows and leave some, got "
            f"{asked.public_rows!r}, which chooses {int(chosen.sum())} of {table.size}."
        )
    return chosen


def _types(path: Path, asked: Wanted) -> dict[str, str | int]:
    if asked.target is None:
        raise ArgumentError("Expected --target, or --schema, got neither.")
    types = tables.column_types(path)
    if asked.target not in types:
        raise ArgumentError(
            f"Expected --target to be a column of {path.name}, got {asked.target!r}. Its columns: "
            f"{', '.join(types)}."
        )
    for name in asked.text:
        if types.get(name) not in ("text", "words") or name == asked.target:
            raise ArgumentError(
                f"Expected --text to be a column of text other than the target, got {name!r}."
            )
    return types | dict.fromkeys(asked.text, "words")


def _drafted(public: tables.Table, asked: Wanted) -> tuple[tables.Schema, tuple[str, ...]]:
    """Return a schema from public rows, and what it rests on."""
    drafted = tables.infer_schema(public, target=_name(asked), public=True)
    columns = {**drafted.columns, **{name: tables.Text() for name in asked.text}}
    drafted = replace(drafted, columns=columns)
    if asked.classes:
        drafted = replace(drafted, target=tables.Classes(_name(asked), asked.classes))
    said = (
        f"Bounds, categories and classes are those of {public.size:,} rows that were declared "
        "public."
    )
    return drafted, (said,)


# ---------------------------------------------------------------------- what is charged


@dataclass(frozen=True)
class Open:
    """What is not known of the private rows yet, and the queries that find it.

    `target` is None where its classes are not known; `answers` holds what was answered before.
    """

    target: Target | None
    queries: tables.QueryPlan
    answers: tables.AnswerCache

    def unpaid(self, schema: tables.Schema, ledger: Ledger, run: str) -> Tally:
        """Return what is still to be charged, by a schema with the columns that are asked for."""
        classes = bounds = False
        if self.queries.classes is not None:
            asked = classes_question(self.queries.classes)
            classes = self.answers.will_charge(asked, ledger=ledger, run=run)
        if self.queries.bounds:
            asked = bounds_question(schema)
            bounds = self.answers.will_charge(asked, ledger=ledger, run=run, default={})
        return self.queries.tally(classes=classes, bounds=bounds)


def still_open(rows: Rows, asked: Wanted, budget: Budget, answers: tables.AnswerCache) -> Open:
    """Return what is to be found by charged queries; refuse what cannot be, before any of them."""
    target = _known_target(rows.types, asked) if rows.schema is None else rows.schema.target
    schema = _sketch(rows, asked, target)
    queries = tables.plan_queries(
        rows.private.size,
        budget,
        classes=_name(asked) if target is None else None,
        bounds=schema.pending,
    )
    return Open(target, queries, answers)


def _sketch(rows: Rows, asked: Wanted, target: Target | None) -> tables.Schema:
    """Return the schema with bounds to be estimated, and made-up classes if none are known."""
    if rows.schema is not None:
        return rows.schema
    return _guessed(rows.types, asked, target or tables.Classes(_name(asked), ("0", "1")))


def rehearse(rows: Rows, asked: Wanted, unknown: Open, ledger: Ledger, run: str) -> Inputs:
    """Return records by a schema with made-up bounds and classes.

    What is wrong with the table, and with what is made of it, then shows before it is paid for. The
    ledger, which is a copy, is charged as it will be.
    """
    sketch = _sketch(rows, asked, unknown.target)
    ledger.charge(unknown.unpaid(sketch, ledger, run), run=run, purpose="statistics")
    schema = sketch.with_bounds(dict.fromkeys(sketch.pending, (0.0, 1.0)))
    if unknown.target is None:
        targets = np.arange(rows.private.size) % 2
        train = tables.encode_inputs(rows.private, schema), targets
    else:
        train = tables.encode(rows.private, schema).data
    public = None if rows.public is None else tables.encode(rows.public, schema).data
    return Inputs(train, public, schema, rows.private.size, ())


def prepare(rows: Rows, asked: Wanted, unknown: Open, *, ledger: Ledger, run: str) -> Inputs:
    """Return the records, encoded; bounds and classes that no one knows are estimated, charged."""
    schema, said = rows.schema, rows.assumptions
    if schema is None:
        target = unknown.target or _found_classes(rows, asked, unknown, ledger, run)
        schema, said = _guessed(rows.types, asked, target), (_TYPES,)
    if unknown.queries.bounds:
        schema = tables.estimate_bounds(
            rows.private, schema, ledger=ledger, run=run, seed=asked.seed,
            noise_multiplier=unknown.queries.noise_multiplier, answers=unknown.answers,
        )  # fmt: skip
    schema = tables.default_bounds(schema)
    if schema.defaulted:
        said = (*said, _defaults(schema.defaulted))
    return Inputs(
        train=tables.encode(rows.private, schema).data,
        public=None if rows.public is None else tables.encode(rows.public, schema).data,
        schema=schema,
        population=rows.private.size,
        assumptions=said,
    )


def _defaults(columns: tuple[str, ...]) -> str:
    return (
        f"No bounds were found for {', '.join(map(repr, columns))} in the noise, or could be: "
        "they are clipped to default bounds, 2^20 either way on the log scale."
    )


def _name(asked: Wanted) -> str:
    assert asked.target is not None
    return asked.target


def _known_target(types: Mapping[str, str | int], asked: Wanted) -> Target | None:
    """Return the target, None if its classes are to be found."""
    name = _name(asked)
    if asked.classes:
        return tables.Classes(name, asked.classes)
    return tables.Range(name, bounds="estimate") if types[name] == "number" else None


def _found_classes(
    rows: Rows, asked: Wanted, unknown: Open, ledger: Ledger, run: str
) -> tables.Classes:
    column = _name(asked)
    found = tables.estimate_classes(
        rows.private, column, ledger=ledger, run=run, seed=asked.seed,
        noise_multiplier=unknown.queries.noise_multiplier, answers=unknown.answers,
    )  # fmt: skip
    if len(found) < 2:
        raise DataError(
            f"Expected at least two classes of {column!r} to stand out of the noise, got "
            f"{len(found)}. Name the classes: --class, once for each."
        )
    return tables.Classes(column, found, others="leave-out")


def _guessed(types: Mapping[str, str | int], asked: Wanted, target: Target) -> tables.Schema:
    """Return a schema from names and types alone; bounds are left to a query."""
    kinds: dict[str, Callable[[], Any]] = {
        "number": lambda: tables.Number(bounds="estimate"),
        "text": tables.Hashed,
        "words": tables.Text,
    }
    columns = {}
    for name, kind in types.items():
        if isinstance(kind, int):
            raise ArgumentError(
                f"Expected a schema for the matrix {name!r}, whose bounds cannot be estimated. "
                "Draft one: privada schema."
            )
        if name != asked.target:
            columns[name] = kinds[kind]()
    return tables.Schema(target, columns)
