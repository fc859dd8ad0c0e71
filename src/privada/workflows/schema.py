"""Drafting a schema, to be read and completed by people."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from privada import tables
from privada.tables.files import write_text
from privada.tables.kinds import Kind, column_kinds
from privada.workflows.table_source import as_source

_PUBLIC = (
    "Drafted from the values of a table that was declared public. Check bounds and values: the\n"
    "private table may have others."
)


def draft_schema(
    table: Any,
    target: str,
    *,
    person: str | None = None,
    public: bool = False,
    output: str | os.PathLike[str] | None = None,
    columns: Mapping[str, Kind] | Sequence[str] = (),
    separator: str | None = None,
    decimal: str | None = None,
    query: str | None = None,
) -> str:
    """Return a draft of a schema, from a public table or from names and types of columns alone.

    This is what `privada schema` does.

    Args:
        table: a file, a folder, a database or a frame, as `pv.tables.read` takes it.
        target: the column that is to be predicted.
        person: the column that says whose a row is, if a person may have several.
        public: whether the table is declared public, so that its values are used.
        output: a new file for the draft.
        columns: what columns hold, as `TrainOptions` takes it, where names and types mislead.
        separator, decimal, query: how the table is read, as `pv.tables.read` takes them.

    Returns:
        The draft as TOML.

    Guarantee: without `public` only names and types are used: of a text file the first record's
    types, and no other value.

    Edge cases: a file that exists is not overwritten.

    Example:
        >>> from pathlib import Path
        >>> import privada as pv
        >>> _ = Path("people.csv").write_text("age,sick\\n39,no\\n50,yes\\n")
        >>> 'low = "?"' in pv.workflows.draft_schema("people.csv", "sick")
        True
    """
    said = column_kinds(columns)
    source: Any = as_source(table)
    layout: dict[str, Any] = {"separator": separator, "decimal": decimal}
    if public:
        values = tables.read(source, query=query, **layout)
        found = tables.infer_schema(values, target=target, public=True, person=person, columns=said)
        text = replace(found, **layout).to_toml(_PUBLIC)
    else:
        text = tables.schema_template(
            source, target=target, person=person, columns=said, query=query, **layout
        )
    if output is not None:
        write_text(output, text, replace=False)
    return text
