"""`privada report`: one page for people, from folders of results."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of results, which train and tune write."),
    ] = None,
    output: Annotated[Path, typer.Option(help="The page, an .html file.")] = Path("report.html"),
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger, to show what is spent and left by now.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
) -> None:
    """Write one HTML page that says what was promised, spent and reached.

    The page is one file that needs no network. Several folders
    are compared on it. With --ledger it shows all that is
    charged by now, later runs included.

    $ privada report best

    $ privada report sgd adam --ledger census.ledger
    --output comparison.html
    """
    made = run_report(folders or [], output=output, ledger=ledger, title=title)
    typer.echo(f"Wrote {made}.")


def run_report(
    folders: list[Path], *, output: Path, ledger: Path | None, title: str | None = None
) -> Path:
    """Write the page of some folders, and return its path."""
    from privada.accounting import Ledger
    from privada.core.errors import ArgumentError
    from privada.report import Entry, write

    if not folders and ledger is None:
        raise ArgumentError(
            "Expected folders of results or a --ledger, got neither. Give the --output of a run."
        )
    names = [folder.resolve().name for folder in folders]
    alike = {name for name in names if names.count(name) > 1}
    entries = [
        Entry.of_folder(folder, name=str(folder) if name in alike else None)
        for folder, name in zip(folders, names, strict=True)
    ]
    if ledger is None:
        return write(entries, output, title=title)
    if not ledger.is_file():  # a ledger that is not there would be made
        raise ArgumentError(
            f"Expected a ledger at {str(ledger)!r}, got "
            f"{'something else' if ledger.exists() else 'no file'}. Check the path."
        )
    with Ledger(ledger) as opened:
        return write(entries, output, title=title, ledger=opened)
