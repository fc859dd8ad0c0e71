"""`privada papers`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from privada.cli import options as shared
from privada.cli.printing import print_table

if TYPE_CHECKING:
    from privada.workflows import Paper


def papers(
    which: Annotated[
        list[str] | None,
        typer.Argument(help="Keys, such as li2022private, or methods, such as adadps."),
    ] = None,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print BibTeX entries.")] = False,
    as_json: shared.AsJson = False,
) -> None:
    """List the papers that the methods come from, and how to cite them.

    The recipes repeat the papers' own experiments, from a
    checkout of the project: python -m papers.adadps.imdb

    $ privada papers

    $ privada papers dp-adam-wosm --bibtex
    """
    from privada.workflows import find_papers

    found = find_papers(which or [])
    if as_json:
        listed = [{**asdict(paper), "link": paper.link} for paper in found]
        typer.echo(json.dumps(listed, indent=2))
    elif bibtex:
        typer.echo("\n\n".join(paper.bibtex() for paper in found))
    else:
        show(found, Console())


def show(found: "list[Paper]", console: Console) -> None:
    """Print the papers as a table."""
    table = Table(title="Papers", title_justify="left", title_style="bold", show_lines=True)
    for name in ("paper", "what it gives", "methods", "recipes"):
        table.add_column(name, overflow="fold")
    for paper in found:
        table.add_row(
            f"{paper.by} ({paper.year}), {paper.title}, arXiv {paper.arxiv} ({paper.key})",
            paper.gives,
            "\n".join(paper.methods),
            "\n".join(paper.recipes) or "none",
        )
    print_table(console, table)
