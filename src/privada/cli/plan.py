"""The plan on a terminal: four small tables and the recommendation."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from privada import charts
from privada.accounting import Budget
from privada.cli.printing import print_table
from privada.core import formatting
from privada.selection.planning import (
    CANDIDATES,
    BudgetPlan,
    PlannedRun,
    PlannedSearch,
    default_delta,
    plan,
)
from privada.selection.prices import WAYS


def run_plan(
    *,
    records: int,
    epsilon: float,
    delta: float | None,
    parameters: int | None,
    batch_sizes: list[int] | None,
    epochs: list[float] | None,
    candidates: list[int] | None,
    sampling: str,
    charted: list[Path] | None,
    progress: bool,
) -> BudgetPlan:
    """Return what the budget affords, with its charts written."""
    budget = Budget(epsilon, default_delta(records) if delta is None else delta)

    def computed() -> BudgetPlan:
        return plan(
            records=records,
            budget=budget,
            parameters=parameters,
            batch_sizes=batch_sizes or None,
            epochs=epochs or None,
            candidates=candidates or CANDIDATES,
            sampling=sampling,
        )

    if progress:
        with Console(stderr=True).status("Calibrating noise; this takes about ten seconds."):
            afforded = computed()
    else:
        afforded = computed()
    for path in charted or ():
        page = path.suffix == ".html"
        charts.write(afforded.figure() if page else afforded.picture(), path)
    return afforded


def show(afforded: BudgetPlan, console: Console, *, delta_given: bool) -> None:
    """Print the tables and the recommendation."""
    budget, chosen = afforded.budget, afforded.recommendation.setting
    ruled = "" if delta_given else ", the largest power of ten not above n^-1.1"
    _say(
        console,
        f"{afforded.records:,} records, epsilon {formatting.epsilon(budget.epsilon)} at delta "
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


def _settings(afforded: BudgetPlan, title: str, cell: Callable[[PlannedRun], str]) -> Table:
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


def _searches(afforded: BudgetPlan, title: str, cell: Callable[[PlannedSearch], str]) -> Table:
    table = _table(title, "candidates")
    counts = sorted({each.candidates for each in afforded.searches})
    for count in counts:
        table.add_column(f"{count:,}", justify="right")
    for how in WAYS:
        found = {each.candidates: each for each in afforded.searches if each.how == how}
        table.add_row(how, *(cell(found[count]) for count in counts))
    return table
