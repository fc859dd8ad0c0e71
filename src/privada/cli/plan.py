"""`privada plan`: four small tables and the recommendation."""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from privada.cli import options as shared
from privada.cli.printing import print_table
from privada.core import formatting

if TYPE_CHECKING:
    from privada.selection.planning import BudgetPlan, PlannedRun, PlannedSearch


def plan(
    records: Annotated[
        int, typer.Option(help="Number of records, or of persons; treated as public.")
    ],
    epsilon: Annotated[float, typer.Option(help="Privacy budget: epsilon.")],
    delta: Annotated[
        float | None,
        typer.Option(
            help="Privacy budget: delta, well below 1 / n. "
            "Default: the largest power of ten not above n^-1.1."
        ),
    ] = None,
    parameters: Annotated[
        int | None,
        typer.Option(help="Number of trained parameters, to show the norm of the noise."),
    ] = None,
    batch_size: Annotated[
        list[int] | None, typer.Option(help="Batch size to consider; repeat for more.")
    ] = None,
    epochs: Annotated[
        list[float] | None, typer.Option(help="Number of epochs to consider; repeat for more.")
    ] = None,
    candidates: Annotated[
        list[int] | None,
        typer.Option(
            help="Number of tuning candidates to price; repeat for more. Default: 1 4 10 40 1000."
        ),
    ] = None,
    sampling: Annotated[str, typer.Option(help="poisson or fixed-size.")] = "poisson",
    chart: Annotated[
        list[Path] | None,
        typer.Option(help="Chart file: .html, .png, .svg or .pdf; repeat for more."),
    ] = None,
    as_json: shared.AsJson = False,
) -> None:
    """Show what a privacy budget affords before any data is read, and recommend settings.

    Prints the noise that a run needs for each batch size and
    number of epochs, the price of tuning over 1 to 1000
    candidates, and settings to begin with. It reads no data
    and charges nothing.

    What do 60,000 records and an epsilon of 1 afford, if the
    model has 100,000 parameters?

    $ privada plan --records 60000 --epsilon 1 --parameters 100000

    The same for two batch sizes, with charts:

    $ privada plan --records 60000 --epsilon 1 --batch-size 512
    --batch-size 2048 --chart plan.html --chart plan.png
    """
    from privada.workflows import plan_budget

    with _status(not as_json and sys.stdout.isatty()):
        afforded = plan_budget(
            records,
            epsilon,
            delta=delta,
            parameters=parameters,
            batch_sizes=batch_size,
            epochs=epochs,
            candidates=candidates,
            sampling=sampling,
            chart_files=chart or (),
        )
    if as_json:
        typer.echo(json.dumps(afforded.to_dict(), indent=2))
    else:
        show(afforded, Console(), delta_given=delta is not None)


def _status(shown: bool) -> AbstractContextManager[object]:
    if not shown:
        return nullcontext()
    return Console(stderr=True).status("Calibrating noise; this takes a few seconds.")


def show(afforded: "BudgetPlan", console: Console, *, delta_given: bool) -> None:
    """Print the tables and the recommendation."""
    budget, chosen = afforded.budget, afforded.recommendation.setting
    counted = "record" if afforded.records == 1 else "records"
    ruled = "" if delta_given else ", the largest power of ten not above n^-1.1"
    _say(
        console,
        f"{afforded.records:,} {counted}, epsilon {formatting.epsilon(budget.epsilon)} at delta "
        f"{formatting.delta(budget.delta)}{ruled}; {afforded.sampling} sampling. No data was "
        "read and nothing was charged.\n",
    )
    print_table(
        console,
        _settings(
            afforded,
            "Noise multiplier of one run",
            lambda each: formatting.number(each.noise_multiplier),
        ),
    )
    console.print()
    over = "one coordinate"
    if afforded.parameters is not None:
        over = f"{afforded.parameters:,} parameters"
    print_table(
        console,
        _settings(
            afforded,
            f"Noise of the run over the clip norm, {over}",
            lambda each: f"{each.run_noise_norm or each.run_noise:.3g}",
        ),
    )
    _say(console, "* recommended. Compare settings by the second table: less is better.\n")
    print_table(
        console,
        _searches(
            afforded,
            "Noise of each run that keeps a search within the budget, over that of one run",
            lambda each: "-" if each.times is None else f"{each.times:.3g}",
        ),
    )
    console.print()
    print_table(
        console,
        _searches(
            afforded,
            "Epsilon of a search if each run has the noise of one run",
            lambda each: formatting.epsilon(each.epsilon),
        ),
    )
    _say(console, f"Runs of {chosen}. A dash: no amount of noise is enough.\n")
    console.print("Recommendation", style="bold")
    advice = Table.grid(padding=(0, 1))
    for reason in afforded.recommendation.reasons:
        advice.add_row("-", Text(reason))
    for warning in afforded.recommendation.warnings:
        advice.add_row("-", Text(f"Warning: {warning}", style="yellow"))
    console.print(advice)


def _say(console: Console, words: str) -> None:
    console.print(words, highlight=False, markup=False)


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    return table


def _settings(afforded: "BudgetPlan", title: str, cell: "Callable[[PlannedRun], str]") -> Table:
    table = _table(title, "batch size")
    for duration in sorted({each.epochs for each in afforded.settings}):
        table.add_column("1 epoch" if duration == 1 else f"{duration:g} epochs", justify="right")
    for size in sorted({each.batch_size for each in afforded.settings}):
        row = sorted(
            (each for each in afforded.settings if each.batch_size == size),
            key=lambda each: each.epochs,
        )
        chosen = afforded.recommendation.setting
        cells = (f"[bold]* {cell(each)}[/]" if each == chosen else cell(each) for each in row)
        table.add_row(f"{size:,}", *cells)
    return table


def _searches(afforded: "BudgetPlan", title: str, cell: "Callable[[PlannedSearch], str]") -> Table:
    from privada.selection.prices import WAYS

    table = _table(title, "candidates")
    counts = sorted({each.candidates for each in afforded.searches})
    for count in counts:
        table.add_column(f"{count:,}", justify="right")
    for how in WAYS:
        found = {each.candidates: each for each in afforded.searches if each.how == how}
        table.add_row(how, *(cell(found[count]) for count in counts))
    return table
