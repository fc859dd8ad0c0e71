"""Tables: from files to features and targets, by a schema that does not leak.

Bounds and categories come from a schema, from public data, or from a query that is charged; never
silently from the private table. Only these queries need torch, and load it when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from privada.core.deprecation import renamed
from privada.tables.columns import (
    Category,
    Date,
    Hashed,
    Ignore,
    Matrix,
    Mixed,
    Number,
    Person,
    Text,
)
from privada.tables.encoding import Encoded, encode, encode_inputs, identifiers
from privada.tables.reading import column_types, read
from privada.tables.schema import Schema
from privada.tables.schema_inference import infer_schema, schema_template
from privada.tables.spooling import SpooledTable
from privada.tables.streaming import encode_file, read_parts
from privada.tables.table import Table
from privada.tables.targets import Classes, Range

if TYPE_CHECKING:
    from privada.tables.answer_cache import AnswerCache
    from privada.tables.overlap import refuse_overlap
    from privada.tables.private_bounds import default_bounds, estimate_bounds
    from privada.tables.private_classes import estimate_classes
    from privada.tables.query_plan import QueryPlan, plan_queries

__all__ = [
    "AnswerCache",
    "Category",
    "Classes",
    "Date",
    "Encoded",
    "Hashed",
    "Ignore",
    "Matrix",
    "Mixed",
    "Number",
    "Person",
    "QueryPlan",
    "Range",
    "Schema",
    "SpooledTable",
    "Table",
    "Text",
    "column_types",
    "default_bounds",
    "encode",
    "encode_file",
    "encode_inputs",
    "estimate_bounds",
    "estimate_classes",
    "identifiers",
    "infer_schema",
    "plan_queries",
    "read",
    "read_parts",
    "refuse_overlap",
    "schema_template",
]

_LATE = {
    "AnswerCache": "answer_cache",
    "QueryPlan": "query_plan",
    "default_bounds": "private_bounds",
    "estimate_bounds": "private_bounds",
    "estimate_classes": "private_classes",
    "plan_queries": "query_plan",
    "refuse_overlap": "overlap",
}
# Former names, and what they are called now.
_RENAMED = {
    "Answers": "AnswerCache",
    "Queries": "QueryPlan",
    "draft": "infer_schema",
    "draft_types": "schema_template",
}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        renamed(f"privada.tables.{name}", f"privada.tables.{_RENAMED[name]}")
        name = _RENAMED[name]
    if name in _LATE:
        return getattr(import_module(f"privada.tables.{_LATE[name]}"), name)
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module 'privada.tables' has no attribute {name!r}")
