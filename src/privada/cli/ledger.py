"""`privada ledger`: what was spent on a data set, for what, and what is left."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


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
        spent = opened.epsilon(at)
        dataset = opened.dataset
    runs: dict[str, dict[Any, int]] = {}
    for charge in charges:
        own = runs.setdefault(charge.run, {})
        own[charge.event] = own.get(charge.event, 0) + charge.count
    comparable = budget is not None and at == budget.delta
    return {
        "dataset": dataset,
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
    from privada.accounting.statement import up

    budget = found["budget"]
    limit = "no limit" if budget is None else f"of {budget['epsilon']:g}"
    line = f"{found['dataset']}: epsilon {up(found['spent'])} {limit} spent, at delta "
    console.print(f"{line}{found['delta']:g}.", highlight=False, markup=False)
    if found["left"] is not None:
        console.print(
            f"Left: about {found['left']:.4g}. Costs do not simply add up: what a run needs is "
            "known when it is planned.",
            highlight=False,
        )
    table = Table(title="Charges", title_justify="left", title_style="bold")
    for name in ("run", "purpose", "releases", "first", "last", "epsilon alone"):
        table.add_column(name, justify="right" if name in ("releases", "epsilon alone") else "left")
    for charge in found["charges"]:
        table.add_row(
            charge["run"], charge["purpose"], f"{charge['count']:,}", charge["first"],
            charge["last"], up(found["runs"][charge["run"]]),
        )  # fmt: skip
    console.print(table)
