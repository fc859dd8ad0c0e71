"""`privada ledger`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from privada.cli import options as shared

if TYPE_CHECKING:
    import click

_SHOW = "show"


class LedgerCommands(TyperGroup):
    """Commands of which the first word may also be a ledger: that is shown.

    A file that is called like a command is reached by ./ and its name.
    """

    def parse_args(self, ctx: "click.Context", args: list[str]) -> list[str]:
        """Parse the command line, with the name of the usual command put in."""
        if not args or args[0] == _SHOW or args[0] not in self.commands:
            args = [_SHOW, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: "click.Context", args: list[str]
    ) -> "tuple[str | None, click.Command | None, list[str]]":
        """Return the command; the usual one has no name."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == _SHOW else name, command, rest


commands = typer.Typer(cls=LedgerCommands, add_completion=False, no_args_is_help=False)


@commands.callback()
def ledger() -> None:
    """Check a privacy ledger, and show what was spent, on what, and what is left."""


@commands.command(_SHOW, hidden=True)
def show_ledger(
    file: Annotated[str, typer.Argument(help="Ledger file, or URL in PostgreSQL.")],
    delta: Annotated[
        float | None,
        typer.Option(
            help="Report epsilon at this delta. Default: the budget's. With --new: the budget's."
        ),
    ] = None,
    new: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON",
            help="Create the file, an adaptive ledger for several runs, with this epsilon.",
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Output file (created) for all charges, as JSON.")
    ] = None,
    as_json: shared.AsJson = False,
) -> None:
    """Check a privacy ledger, and show what was spent, on what, and what is left.

    Opening a ledger checks that no charge is missing or
    altered. Nothing is charged.

    $ privada ledger patients.ledger

    For several runs on one data set, each chosen after a look
    at those before it, create the ledger first, and give it
    to each of them by --ledger:

    $ privada ledger patients.ledger --new 3 --delta 1e-5

    $ privada ledger patients.ledger --export patients.json

    A team keeps it in PostgreSQL, by a URL in place of the
    file. Other commands: privada ledger copy, to move it;
    privada ledger grant, for the rights of roles; privada
    ledger accept, after a backup was restored.
    """
    from privada.workflows import ledger_contents, new_ledger

    if new is not None:
        new_ledger(file, new, delta)
    found = ledger_contents(file, delta)
    if export is not None:
        from privada.tables.files import write_text

        write_text(export, json.dumps(found, indent=2) + "\n", replace=False)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show(found, Console())


@commands.command("copy")
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Ledger file or URL.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Ledger file or URL (created).")],
    as_json: shared.AsJson = False,
) -> None:
    """Copy a ledger to another place, and close the old one.

    It is charged in the new place from then on, and can only
    be read in the old one. All charges and the budget are
    kept; runs continue with the new place. If it is
    interrupted, run it again.

    $ privada ledger copy patients.ledger
    "postgresql://ana@db.example/clinic?ledger=patients"
    """
    from privada.workflows import copy_ledger

    done = copy_ledger(source, target)
    if as_json:
        typer.echo(json.dumps(done, indent=2))
        return
    typer.echo(
        f"Copied {done['dataset']} with {done['releases']:,} releases to {done['to']}. Charge it "
        f"there: {done['from']} is closed, and can only be read."
    )


@commands.command("grant")
def grant(
    url: Annotated[str, typer.Argument(help="URL of a ledger in PostgreSQL.")],
    role: Annotated[str, typer.Argument(help="Role of the database.")],
    read: Annotated[
        bool, typer.Option("--read", help="May only read the ledger, as an auditor does.")
    ] = False,
) -> None:
    """Print the SQL that lets a role charge a ledger, and neither delete nor change charges.

    Nothing is run. The ledger's owner pipes it into psql:

    $ privada ledger grant "postgresql://db.example/clinic"
    trainer | psql clinic
    """
    from privada.accounting.ledger import grants

    typer.echo(grants(url, role, read_only=read))


@commands.command("accept")
def accept(
    url: Annotated[str, typer.Argument(help="URL of a ledger in PostgreSQL.")],
) -> None:
    """Let a ledger be charged whose database was restored, copied or taken over by a standby.

    Before, make sure that no other copy of it is charged.
    Afterwards, charge again what the backup does not hold.
    Only the ledger's owner may do this.
    """
    from privada.accounting.ledger import in_words
    from privada.workflows import accept_ledger

    changed = accept_ledger(url)
    words = "Accepted" if changed else "Nothing to accept:"
    typer.echo(f"{words} {in_words(url)}{'.' if changed else ' can be charged where it is.'}")


def show(found: dict[str, Any], console: Console) -> None:
    """Print the account."""
    from privada.cli.printing import print_line
    from privada.core import formatting

    budget, spent = found["budget"], formatting.epsilon(found["spent"])
    limit = "no limit" if budget is None else f"of {formatting.epsilon(budget['epsilon'])}"
    delta = formatting.delta(found["delta"])
    print_line(console, f"{found['dataset']}: epsilon {spent} {limit} spent, at delta {delta}.")
    if found["closed"] is not None:
        print_line(console, f"Closed: {found['closed']}.")
    counting = found["counting"]
    print_line(console, f"{counting[0].upper()}{counting[1:]}.")
    print_line(console, f"Epsilon is {found['meaning']}.")
    if found["unit"] is not None:
        print_line(console, f"Protects each {found['unit']}.")
    if found["left"] is not None:
        left = formatting.left(budget["epsilon"], found["spent"])
        rest = "Costs do not simply add up: what a run needs is known when it is planned."
        if found["kind"] == "planned" and found["charges"]:
            rest = "Nothing but what was declared can be charged to it."
        print_line(console, f"Left: about {left}. {rest}")
    if found["kind"] == "adaptive" and found["charges"]:
        print_line(
            console,
            "What a run costs alone is counted in the same way; its own statement has what it was "
            "planned to cost.",
        )
    lines: dict[str, list[str]] = {}
    for charge in found["charges"]:
        first, last = charge["first"], charge["last"]
        when = first if first == last else f"{first} to {last}"
        many = "release" if charge["count"] == 1 else "releases"
        number = "" if charge["event"]["kind"] == "failure" else f"{charge['count']:,} {many}, "
        lines.setdefault(charge["run"], []).append(
            f"  {charge['purpose']}: {number}{charge['what']}, {when}"
        )
    for run, epsilon in found["runs"].items():
        print_line(console, f"\nRun {run}: epsilon {formatting.epsilon(epsilon)} alone")
        for line in lines[run]:
            print_line(console, line)
