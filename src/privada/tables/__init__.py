"""Tables: from files to features and targets, by a schema that does not leak.

Bounds and categories come from a schema, from public data, or from a query that is charged; never
silently from the private table. Only these queries need torch, and load it when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from privada.tables.drafting import draft, draft_types
from privada.tables.encoding import Encoded, encode, encode_inputs, identifiers
from privada.tables.kinds import (
    Category,
    Classes,
    Hashed,
    Ignore,
    Matrix,
    Number,
    Person,
    Range,
    Text,
)
from privada.tables.reading import column_types, read
from privada.tables.schema import Schema
from privada.tables.table import Table

if TYPE_CHECKING:
    from privada.tables.answers import Answers
    from privada.tables.overlap import refuse_overlap
    from privada.tables.private_bounds import default_bounds, estimate_bounds
    from privada.tables.private_classes import estimate_classes
    from privada.tables.queries import Queries, plan_queries

__all__ = [
    "Answers",
    "Category",
    "Classes",
    "Encoded",
    "Hashed",
    "Ignore",
    "Matrix",
    "Number",
    "Person",
    "Queries",
    "Range",
    "Schema",
    "Table",
    "Text",
    "column_types",
    "default_bounds",
    "draft",
    "draft_types",
    "encode",
    "encode_inputs",
    "estimate_bounds",
    "estimate_classes",
    "identifiers",
    "plan_queries",
    "read",
    "refuse_overlap",
]

_LATE = {
    "Answers": "answers",
    "Queries": "queries",
    "default_bounds": "private_bounds",
    "estimate_bounds": "private_bounds",
    "estimate_classes": "private_classes",
    "plan_queries": "queries",
    "refuse_overlap": "overlap",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(f"privada.tables.{_LATE[name]}"), name)
    raise AttributeError(f"module 'privada.tables' has no attribute {name!r}")
