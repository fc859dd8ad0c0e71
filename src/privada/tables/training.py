"""A table as what a trainer takes: encoded records, whose they are, and how many there are."""

from typing import Any

import numpy as np

from privada.core.errors import ArgumentError
from privada.tables.encoding import encode, identifiers
from privada.tables.reading import read
from privada.tables.schema import Schema


def encoded_data(
    data: Any, schema: Schema, groups: Any, population: int | None
) -> tuple[Any, Any, int | None]:
    """Return the data, groups and population of a trainer that is given a table and its schema."""
    leaves_out = getattr(schema.target, "others", "refuse") == "leave-out"
    if groups is not None and (schema.person is not None or leaves_out):
        raise ArgumentError(
            "Expected groups, or a schema with a person column or classes that leave rows out, got "
            'both. Give the column of identifiers kind = "person".'
        )
    table = read(data, schema)
    encoded = encode(table, schema)
    if schema.person is not None:
        groups = encoded.groups
    if population is None and leaves_out:  # how many rows are left is private
        persons = identifiers(table, schema)
        population = table.size if persons is None else int(np.unique(persons.astype(str)).size)
    return encoded.data, groups, population
