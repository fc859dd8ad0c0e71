"""`privada ledger`: what was spent on a data set, for what, and what is left."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console


def ledger(
    file: Annotated[Path, typer.Argument(help="The ledger's file.")],
    delta: Annotated[
        float | None, typer.Option(help="The delta to report at. Default: the budget's.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="A new file for everything in it, as JSON.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON and nothing else.")
    ] = False,
) -> None:
    """Check a ledger, and say what was spent, for what, and what is left.

    Opening it checks that it is whole: every charge has a seal,
    and none is missing. Nothing is changed.

    $ privada ledger patients.ledger

    $ privada ledger patients.ledger --export patients.json
    """
    from privada.tables.files import write_text

    found = contents(file, delta)
    if export is not None:
        write_text(export, json.dumps(found, indent=2) + "\n", replace=False)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show(found, Console())


def contents(file: Path, delta: float | None) -> dict[str, Any]:
    """Return what a ledger holds as plain values; each run's epsilon is that of the run alone."""
    from privada.accounting import Ledger, epsilon_of, events
    from privada.core.errors import ArgumentError, LedgerError
    from privada.core.validation import probability

    if not file.exists():  # opening would make a new one
        raise LedgerError(f"Cannot open the ledger {str(file)!r}: there is no such file.")
    with Ledger(file) as opened:
        charges, budget = opened.charges(), opened.budget
        if delta is None and budget is None:
            raise ArgumentError(
                "Expected --delta, got none. This ledger has no budget to take it from."
            )
        at = budget.delta if delta is None and budget else probability("delta", delta)
        spent, unit = opened.epsilon(at), opened.unit
        dataset = opened.dataset
    runs: dict[str, dict[Any, int]] = {}
    for charge in charges:
        own = runs.setdefault(charge.run, {})
        own[charge.event] = own.get(charge.event, 0) + charge.count
    comparable = budget is not None and at == budget.delta
    return {
        "dataset": dataset,
        "unit": unit,
        "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
        "delta": at,
        "spent": spent,
        "left": max(0.0, budget.epsilon - spent) if comparable and budget else None,
        "runs": {name: epsilon_of(tally, at) for name, tally in runs.items()},
        "charges": [
            {
                "run": each.run,
                "purpose": each.purpose,
                "what": events.describe(each.event),
                "event": json.loads(events.encode(each.event)),
                "count": each.count,
                "first": each.first,
                "last": each.last,
            }
            for each in charges
        ],
    }


def show(found: dict[str, Any], console: Console) -> None:
    """Print the account."""
    from privada.cli.printing import print_line
    from privada.core import formatting

    budget, spent = found["budget"], formatting.epsilon(found["spent"])
    limit = "no limit" if budget is None else f"of {formatting.epsilon(budget['epsilon'])}"
    delta = formatting.delta(found["delta"])
    print_line(console, f"{found['dataset']}: epsilon {spent} {limit} spent, at delta {delta}.")
    if found["unit"] is not None:
        print_line(console, f"Protects each {found['unit']}.")
    if found["left"] is not None:
        left = formatting.left(budget["epsilon"], found["spent"])
        print_line(
            console,
            f"Left: about {left}. Costs do not simply add up: what a run needs is known when it is "
            "planned.",
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
