"""`privada schema`: draft a schema, to be read and completed by people."""

from pathlib import Path
from typing import Annotated

import typer

_PUBLIC = (
    "Drafted from the values of a table that was declared public. Check bounds and values: the\n"
    "private table may have others."
)


def schema(
    table: Annotated[
        Path, typer.Argument(help="A table: .csv, .tsv, .jsonl, .txt (or .gz), .npz, .parquet.")
    ],
    target: Annotated[str, typer.Option(help="The column that is to be predicted.")],
    public: Annotated[
        bool, typer.Option("--public", help="Declare the table public, and use its values.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="A new file for the schema. Default: print it.")
    ] = None,
) -> None:
    """Draft a schema from a public table, or from the names and types of columns alone.

    A schema says what each column is, so that nothing has to
    be found out from private values. Without --public only
    names and types are used, and bounds are left to be filled
    in.

    $ privada schema patients.csv --target sick --output schema.toml

    $ privada schema census.csv.gz --target income --public
    """
    text = run_schema(table, target=target, public=public, output=output)
    typer.echo(text.rstrip("\n") if output is None else f"Wrote {output}. Read it before use.")


def run_schema(table: Path, *, target: str, public: bool, output: Path | None) -> str:
    """Return the draft as TOML, written to a file as well if there is one."""
    from privada import tables
    from privada.tables.files import write_text

    if public:
        text = tables.infer_schema(tables.read(table), target=target, public=True).to_toml(_PUBLIC)
    else:
        text = tables.schema_template(table, target=target)
    if output is not None:
        write_text(output, text, replace=False)
    return text
