"""`privada ledger`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from privada.cli import options as shared


def ledger(
    file: Annotated[Path, typer.Argument(help="Ledger file.")],
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
    """
    from privada.tables.files import write_text
    from privada.workflows import ledger_contents, new_ledger

    if new is not None:
        new_ledger(file, new, delta)
    found = ledger_contents(file, delta)
    if export is not None:
        write_text(export, json.dumps(found, indent=2) + "\n", replace=False)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show(found, Console())


def show(found: dict[str, Any], console: Console) -> None:
    """Print the account."""
    from privada.cli.printing import print_line
    from privada.core import formatting

    budget, spent = found["budget"], formatting.epsilon(found["spent"])
    limit = "no limit" if budget is None else f"of {formatting.epsilon(budget['epsilon'])}"
    delta = formatting.delta(found["delta"])
    print_line(console, f"{found['dataset']}: epsilon {spent} {limit} spent, at delta {delta}.")
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
