"""Drafting a schema, to be read and completed by people."""

import os

from privada import tables
from privada.tables.files import write_text

_PUBLIC = (
    "Drafted from the values of a table that was declared public. Check bounds and values: the\n"
    "private table may have others."
)


def draft_schema(
    table: str | os.PathLike[str],
    target: str,
    *,
    person: str | None = None,
    public: bool = False,
    output: str | os.PathLike[str] | None = None,
) -> str:
    """Return a draft of a schema, from a public table or from names and types of columns alone.

    This is what `privada schema` does.

    Args:
        table: a file, or a folder of text, as `pv.tables.read` takes it.
        target: the column that is to be predicted.
        person: the column that says whose a row is, if a person may have several.
        public: whether the table is declared public, so that its values are used.
        output: a new file for the draft.

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
    if public:
        found = tables.infer_schema(tables.read(table), target=target, public=True, person=person)
        text = found.to_toml(_PUBLIC)
    else:
        text = tables.schema_template(table, target=target, person=person)
    if output is not None:
        write_text(output, text, replace=False)
    return text
