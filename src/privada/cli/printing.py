"""What commands print: tables and lines that cut nothing, and one line where one is stopped."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from privada.workflows.findings import Findings


def print_table(console: Console, table: Table) -> None:
    """Print a table whose words stay whole: where they need more, it is wider than the console."""
    for column in table.columns:
        cells = [Text.from_markup(str(cell)).plain for cell in (column.header, *column.cells)]
        column.min_width = max(cell_len(word) for cell in cells for word in cell.split() or [""])
        # rich takes width from the columns that can give some
        column.no_wrap = not any(" " in cell for cell in cells)
    console.print(table, crop=False)


def print_line(console: Console, words: str) -> None:
    """Print a line as it is: not cut, not broken, and without a meaning of brackets or colons."""
    console.print(words, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_metrics(
    console: Console, metrics: Mapping[str, float], baselines: Mapping[str, float]
) -> None:
    """Print public figures, each with the baseline that it has."""
    from privada.core.formatting import number

    for name, value in metrics.items():
        beside = f", baseline {number(baselines[name])}" if name in baselines else ""
        console.print(f"{name}: {number(value)}{beside}", highlight=False)


def confirmed(question: str, yes: bool) -> "Callable[[Findings], bool]":
    """Return what shows how a table is understood, and asks on a terminal whether to go on."""

    def confirm(found: "Findings") -> bool:
        typer.echo(f"{found}\n")
        asked = not yes and sys.stdin.isatty() and sys.stdout.isatty()
        return not asked or typer.confirm(question, default=True)

    return confirm


@contextmanager
def stoppable(advice: str, folder: Path | None = None) -> Iterator[None]:
    """Turn Ctrl-C into one line and exit code 130; without its folder nothing was charged."""
    try:
        yield
    except KeyboardInterrupt:
        words = f"What was charged stays charged. {advice}"
        if folder is not None and not folder.exists():
            words = "Nothing was charged."
        typer.echo(f"privada: stopped. {words}", err=True)
        raise typer.Exit(130) from None
