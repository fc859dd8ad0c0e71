"""`privada report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Output directories of `privada train` and `privada tune`."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Report file (.html).")] = Path("report.html"),
    ledger: Annotated[
        str | None, typer.Option(help="Privacy ledger, to show what is spent and left by now.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write one HTML page with the privacy statement, the budget and the results of runs.

    The page is one file that needs no network. Several folders
    are compared on it. With --ledger it shows everything that
    is charged by now, later runs included. The model cards in
    the folders are written anew.

    $ privada report best

    $ privada report sgd adam --ledger census.ledger
    --output comparison.html
    """
    from privada.workflows import write_report

    typer.echo(f"Wrote {write_report(folders or [], output, ledger=ledger, title=title)}.")
