"""Tables: from files to features and targets, by a schema that does not leak.

Bounds and categories come from a schema, from public data, or from a query that is charged; never
silently from the private table. Only these queries need torch, and load it when first used.
"""

from typing import TYPE_CHECKING, Any

from privada.tables.drafting import draft, draft_types
from privada.tables.encoding import Encoded, encode, encode_inputs
from privada.tables.kinds import (
    Category,
    Classes,
    Hashed,
    Ignore,
    Matrix,
    Number,
    Range,
    Text,
)
from privada.tables.reading import column_types, read
from privada.tables.schema import Schema
from privada.tables.table import Table

if TYPE_CHECKING:
    from privada.tables.estimating import estimate_bounds, estimate_classes

__all__ = [
    "Category",
    "Classes",
    "Encoded",
    "Hashed",
    "Ignore",
    "Matrix",
    "Number",
    "Range",
    "Schema",
    "Table",
    "Text",
    "column_types",
    "draft",
    "draft_types",
    "encode",
    "encode_inputs",
    "estimate_bounds",
    "estimate_classes",
    "read",
]


def __getattr__(name: str) -> Any:
    if name in ("estimate_bounds", "estimate_classes"):
        from privada.tables import estimating

        return getattr(estimating, name)
    raise AttributeError(f"module 'privada.tables' has no attribute {name!r}")
