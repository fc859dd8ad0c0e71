"""What a run makes of a table, said before it is charged: from public facts alone."""

from dataclasses import dataclass
from typing import Any

from privada import tables
from privada.tables.calendar import PUBLIC_DATES
from privada.workflows.options import TableOptions
from privada.workflows.pending_queries import PendingQueries, provisional_schema
from privada.workflows.table_rows import TableRows


@dataclass(frozen=True)
class Findings:
    """What is to be predicted, and how each column is used.

    Attributes:
        rows: how many rows, or persons, are trained on, in words.
        task: what is predicted, in words.
        columns: for each column, how it is used.
        queries: what is asked of the private records first, in words.

    Guarantee: it follows from the names and types of the columns, the schema, the options and
    the number of rows or persons, all of which are public.

    Example:
        >>> from privada.workflows.findings import Findings
        >>> print(Findings("20 rows", "regression", {"age": "not used"}, "nothing"))
        Records: 20 rows.
        Target: regression.
        Asked first: nothing.
        Columns:
          age: not used
    """

    rows: str
    task: str
    columns: dict[str, str]
    queries: str

    def __str__(self) -> str:
        listed = "".join(f"\n  {name}: {use}" for name, use in self.columns.items())
        return (
            f"Records: {self.rows}.\nTarget: {self.task}.\nAsked first: {self.queries}.\n"
            f"Columns:{listed}"
        )


def findings(rows: TableRows, options: TableOptions, pending: PendingQueries) -> Findings:
    """Return what a run makes of a table."""
    schema = provisional_schema(rows, options, pending.target)
    counted = f"{rows.private.size:,} rows"
    if rows.persons is not None:
        counted = f"all rows of {rows.units:,} persons, which column {options.person!r} identifies"
    defaults = pending.queries.defaults
    uses = {name: _use(name, kind, name in defaults) for name, kind in schema.columns.items()}
    return Findings(counted, _task(schema, pending), uses, _asked(pending))


def _asked(pending: PendingQueries) -> str:
    queries = pending.queries
    asked = [f"the classes of {queries.classes!r}"] if queries.classes is not None else []
    if queries.bounds:
        asked.append(f"bounds of {len(queries.bounds):,} columns")
    if not asked:
        return "nothing"
    return f"{' and '.join(asked)}, charged within the same epsilon"


def _task(schema: tables.Schema, pending: PendingQueries) -> str:
    name, target = repr(schema.target.column), pending.target
    if pending.undecided:
        return (
            f"{name}, classes if a charged query finds them to be 0 and 1, else a number. "
            "--regression or --class says which without asking"
        )
    if target is None:
        return f"{name}, classes that a charged query finds"
    if isinstance(target, tables.Classes):
        return f"{name}, one of the classes {', '.join(target.classes)}"
    return f"{name}, a number {_bounds(target, target.column in pending.queries.defaults)}"


def _bounds(kind: Any, default: bool) -> str:
    if default:
        return "with default bounds"
    if kind.bounds == "estimate":
        return "with bounds that a charged query finds"
    scale = ", on the log scale" if kind.scale == "log" else ""
    return f"from {kind.low:g} to {kind.high:g}{scale}"


def _use(name: str, kind: Any, default: bool) -> str:
    if isinstance(kind, tables.Number):
        return f"number {_bounds(kind, default)}"
    if isinstance(kind, tables.Mixed):
        hashed = f"or else hashed to {kind.buckets:,} buckets, each cell by itself"
        return f"number {_bounds(kind, default)}, {hashed}"
    if isinstance(kind, tables.Date):
        parts = f"; {', '.join(kind.parts)}" if kind.parts else ""
        usual = (kind.low, kind.high) == PUBLIC_DATES
        others = f', unless --column "{name}=date:FIRST..LAST" says otherwise' if usual else ""
        return f"date from {kind.low} to {kind.high}{others}{parts}"
    if isinstance(kind, tables.Category):
        return f"one of {len(kind.values):,} values{', or another' if kind.other else ''}"
    if isinstance(kind, tables.Hashed):
        return f"hashed to {kind.buckets:,} buckets"
    if isinstance(kind, tables.Text):
        return "a bag of words"
    if isinstance(kind, tables.Matrix):
        return f"{kind.width:,} numbers from {kind.low:g} to {kind.high:g}"
    return "says whose a row is" if isinstance(kind, tables.Person) else "not used"
