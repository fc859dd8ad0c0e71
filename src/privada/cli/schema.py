"""`privada schema`."""

from pathlib import Path
from typing import Annotated

import typer

from privada.cli import options as shared


def schema(
    table: shared.TableSource,
    target: Annotated[str, typer.Option(help="Column to predict.")],
    person: shared.Person = None,
    columns: shared.ColumnKinds = None,
    public: Annotated[
        bool, typer.Option("--public", help="Declare the table public, and use its values.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Output file (created). Default: print the schema.")
    ] = None,
    separator: shared.Separator = None,
    decimal: shared.Decimal = None,
    query: shared.Query = None,
) -> None:
    """Draft a schema, which says what each column is, for you to read and complete.

    With a schema, nothing has to be estimated from private
    values. Without --public only column names and types are
    used, and bounds are left for you to fill in.

    $ privada schema patients.csv --target sick --output schema.toml

    $ privada schema census.csv.gz --target income --public
    """
    from privada.workflows import draft_schema

    text = draft_schema(
        table, target, person=person, public=public, output=output, columns=columns or (),
        separator=separator, decimal=decimal, query=query,
    )  # fmt: skip
    typer.echo(text.rstrip("\n") if output is None else f"Wrote {output}. Read it before use.")
