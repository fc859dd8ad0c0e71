"""What is not known of a private table yet, and the charged queries that find it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privada import tables
from privada.accounting import Budget, Ledger
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError, DataError
from privada.tables.kinds import KIND_OF_TYPE, usual_type
from privada.tables.private_bounds import bounds_question
from privada.tables.private_classes import FAILURE_SHARE, classes_question
from privada.workflows.options import TableOptions
from privada.workflows.table_rows import TableRows, target_name, with_bins

Target = tables.Classes | tables.Range


@dataclass(frozen=True)
class TrainingData:
    """The private records and the public ones, encoded.

    `population` is how many units the table has: private records, or persons. Records without a
    class that is known are not in `train`, and `persons` has no number for them. `assumptions`
    are what the schema rests on, in words. Training `looks` at the features first, if it may: not
    where a query finds out whether the target is a number, since a run is charged the same then.
    """

    train: tuple[Any, Any]
    public: tuple[Any, Any] | None
    schema: tables.Schema
    population: int
    assumptions: tuple[str, ...]
    persons: NDArray[np.int64] | None = None
    looks: bool = True

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
class PendingQueries:
    """What is not known of the private rows yet, and the queries that find it.

    `target` is None where its classes are not known; `answers` holds what was answered before;
    `unit` is what a person is called, None if queries protect rows. If `undecided`, the target is a
    number that a query for classes may find to be 0 or 1.
    """

    target: Target | None
    queries: tables.QueryPlan
    answers: tables.AnswerCache
    unit: str | None
    undecided: bool = False

    def as_declared(self, kept: tables.QueryPlan | None) -> "PendingQueries":
        """Return the queries with the noise that was declared for them, if they were.

        What is not asked any more is left out. Bounds that were not to be asked for are not.
        """
        if kept is None:
            return self
        columns = (*self.queries.bounds, *self.queries.defaults)
        bounds, defaults = (columns, ()) if kept.bounds else ((), columns)
        return replace(
            self,
            queries=replace(kept, classes=self.queries.classes, bounds=bounds, defaults=defaults),
        )

    def unpaid(self, schema: tables.Schema, ledger: Ledger, run: str) -> Tally:
        """Return what is still to be charged, by a schema with the columns that are asked for."""
        classes = bounds = False
        if self.queries.classes is not None:
            asked = classes_question(self.queries.classes, unit=self.unit)
            classes = self.answers.will_charge(asked, ledger=ledger, run=run)
        if self.queries.bounds:
            asked = bounds_question(schema, unit=self.unit)
            bounds = self.answers.will_charge(asked, ledger=ledger, run=run, default={})
        queries = self.queries
        if ledger.budget is not None:  # as `estimate_classes` takes it
            queries = replace(queries, failure=FAILURE_SHARE * ledger.budget.delta)
        return queries.tally(classes=classes, bounds=bounds)


def pending_queries(
    rows: TableRows, options: TableOptions, budget: Budget, answers: tables.AnswerCache
) -> PendingQueries:
    """Return what is to be found by charged queries; refuse what cannot be, before any of them."""
    target = _known_target(rows.types, options) if rows.schema is None else rows.schema.target
    schema = provisional_schema(rows, options, target)
    unit = None if options.person is None else options.unit
    number = rows.schema is None and target == _estimated_range(options)
    # what a run or a search is charged does not depend on which of the two it is
    undecided = number and not options.regression
    if undecided:
        asked = target_name(options)
        with suppress(DataError):  # with too few records to ask, it stays a number
            queries = tables.plan_queries(rows.units, budget, classes=asked, bounds=schema.pending)
            return PendingQueries(target, queries, answers, unit, undecided)
    queries = tables.plan_queries(
        rows.units,
        budget,
        classes=target_name(options) if target is None else None,
        bounds=schema.pending,
    )
    return PendingQueries(target, queries, answers, unit)


def _estimated_range(options: TableOptions) -> tables.Range:
    return tables.Range(target_name(options), bounds="estimate")


def unpaid_queries(
    rows: TableRows, options: TableOptions, pending: PendingQueries, ledger: Ledger, run: str
) -> Tally:
    """Return what the queries are still going to be charged; raise where they would be refused."""
    return pending.unpaid(provisional_schema(rows, options, pending.target), ledger, run)


def dry_run_data(rows: TableRows, options: TableOptions, pending: PendingQueries) -> TrainingData:
    """Return records by a schema with placeholder bounds and classes.

    What is wrong with the table, and with what is made of it, then shows before it is paid for.
    """
    sketch = provisional_schema(rows, options, pending.target)
    schema = sketch.with_bounds(dict.fromkeys(sketch.pending, (0.0, 1.0)))
    if pending.target is None:
        found = rows.storage.encode(rows.private, schema, target=False)
        public = _public_data(rows, schema)
        return TrainingData(found.data, public, schema, rows.units, (), found.groups)
    return _encoded(rows, schema, ())


def ask_and_encode(
    rows: TableRows, options: TableOptions, pending: PendingQueries, *, ledger: Ledger, run: str
) -> TrainingData:
    """Return the records, encoded; bounds and classes that no one knows are estimated, charged."""
    schema, said = rows.schema, rows.assumptions
    if schema is None:
        target = pending.target or _found_classes(rows, options, pending, ledger, run)
        schema = _schema_of_types(rows, options, target)
    if pending.queries.bounds:
        schema = tables.estimate_bounds(
            rows.private, schema, ledger=ledger, run=run, seed=options.seed,
            noise_multiplier=pending.queries.noise_multiplier, answers=pending.answers,
            groups=rows.persons, unit=options.unit,
        )  # fmt: skip
    if pending.undecided:
        found = _asked_classes(rows, options, pending, ledger, run)
        if _are_zero_and_one(found):
            schema = replace(schema, target=_as_classes(options, found))
    schema = tables.default_bounds(schema)
    if schema.defaulted:
        said = (*said, _defaults(schema.defaulted))
    return _encoded(rows, schema, said)


def _encoded(rows: TableRows, schema: tables.Schema, assumptions: tuple[str, ...]) -> TrainingData:
    encoded = rows.storage.encode(rows.private, schema)
    return TrainingData(
        train=encoded.data,
        public=_public_data(rows, schema),
        schema=schema,
        population=rows.units,
        assumptions=assumptions,
        persons=encoded.groups,
    )


def _public_data(rows: TableRows, schema: tables.Schema) -> tuple[Any, Any] | None:
    """Return the public rows, encoded; whose they are does not matter, and may be absent."""
    if rows.public is None:
        return None
    if schema.person is not None:
        schema = replace(schema, columns={**schema.columns, schema.person: tables.Ignore()})
    return tables.encode(rows.public, schema).data


def _defaults(columns: tuple[str, ...]) -> str:
    return (
        f"No bounds were found for {', '.join(map(repr, columns))} in the noise, or could be: "
        "they are clipped to default bounds, 2^20 either way on the log scale."
    )


def provisional_schema(
    rows: TableRows, options: TableOptions, target: Target | None
) -> tables.Schema:
    """Return the schema with bounds to be estimated, and placeholder classes if none are known."""
    if rows.schema is not None:
        return rows.schema
    made_up = tables.Classes(target_name(options), ("0", "1"))
    return _schema_of_types(rows, options, target or made_up)


def _known_target(types: Mapping[str, str | int], options: TableOptions) -> Target | None:
    """Return the target, None if its classes are to be found."""
    name = target_name(options)
    if options.classes:
        return tables.Classes(name, options.classes)
    number = options.regression or types[name] == "number"
    return _estimated_range(options) if number else None


def _found_classes(
    rows: TableRows, options: TableOptions, pending: PendingQueries, ledger: Ledger, run: str
) -> tables.Classes:
    column, found = target_name(options), _asked_classes(rows, options, pending, ledger, run)
    if len(found) < 2:
        raise DataError(
            f"Expected at least two classes of {column!r} to stand out of the noise, got "
            f"{len(found)}. Name the classes: --class, once for each."
        )
    return _as_classes(options, found)


def _asked_classes(
    rows: TableRows, options: TableOptions, pending: PendingQueries, ledger: Ledger, run: str
) -> tuple[str, ...]:
    return tables.estimate_classes(
        rows.private, target_name(options), ledger=ledger, run=run, seed=options.seed,
        noise_multiplier=pending.queries.noise_multiplier, answers=pending.answers,
        groups=rows.persons, unit=options.unit,
    )  # fmt: skip


def _as_classes(options: TableOptions, found: tuple[str, ...]) -> tables.Classes:
    return tables.Classes(target_name(options), found, others="leave-out")


def _are_zero_and_one(found: tuple[str, ...]) -> bool:
    """Return whether the values that a query found are 0 and 1, however they are written."""
    try:
        return sorted(map(float, found)) == [0, 1]
    except ValueError:
        return False


def _schema_of_types(rows: TableRows, options: TableOptions, target: Target) -> tables.Schema:
    """Return a schema from names and types alone; bounds are left to a query."""
    columns = {}
    for name, kind in rows.types.items():
        if name == options.target:
            continue
        said = options.columns.get(name, KIND_OF_TYPE.get(kind, kind))
        if isinstance(said, int):
            raise ArgumentError(
                f"Expected a schema for the matrix {name!r}, whose bounds cannot be estimated. "
                f"Draft one: privada schema. --column {name}=ignore leaves it out."
            )
        columns[name] = usual_type(name, said)
    schema = tables.Schema(target, columns, **options.layout)
    schema = with_bins(schema, options, rows.units)
    return schema if options.person is None else schema.with_person(options.person)
