"""`privada demo`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from privada.cli import options as shared
from privada.cli.printing import print_line, print_table

if TYPE_CHECKING:
    from privada.workflows import DemoResult


def demo(
    epsilon: Annotated[float, typer.Option(help="Privacy budget of each run: epsilon.")] = 2.0,
    delta: Annotated[float, typer.Option(help="Privacy budget of each run: delta.")] = 1e-4,
    epochs: Annotated[float, typer.Option(help="Passes over the training data.")] = 40.0,
    batch_size: Annotated[float, typer.Option(help="Expected batch size.")] = 256.0,
    ledger: Annotated[
        str | None,
        typer.Option(help="Privacy ledger; runs on it add up. Default: one in memory."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Report file (.html).")] = Path(
        "privada-demo.html"
    ),
    as_json: shared.AsJson = False,
) -> None:
    """Train four methods on handwritten digits that ship with scikit-learn, and compare them.

    All have the same epsilon. Prints a table and the privacy
    statement of the best run, and writes a report of all.
    """
    from privada import workflows

    result = workflows.demo(
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        batch_size=batch_size,
        ledger=ledger,
        output=None if as_json else output,
        progress=not as_json and sys.stdout.isatty(),
    )
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        show(result, output, Console())


def show(result: "DemoResult", output: Path | None, console: Console) -> None:
    """Print the comparison, and the statement of the best run."""
    from privada.core import formatting

    table = Table(
        title=f"Linear classifiers of {result.train_size:,} images of handwritten digits",
        title_justify="left",
        title_style="bold",
    )
    for name in ("method", "steps", "noise", "epsilon of the run", "accuracy"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for run in result.runs:
        trainer = run.trainer
        mark = " *" if run is result.best else ""
        table.add_row(
            trainer.method.name,
            f"{trainer.steps_done:,}",
            formatting.number(trainer.noise_multiplier),
            formatting.epsilon(trainer.statement().run_epsilon),
            f"{formatting.number(run.accuracy)}{mark}",
        )
    print_table(console, table)
    console.print(
        f"* Accuracy on {result.test_size:,} other images, taken as public. All "
        f"{len(result.runs)} runs together cost an epsilon of "
        f"{formatting.epsilon(result.together)}.",
        highlight=False,
    )
    if output is not None:
        print_line(console, f"Report: {output}")
    console.print(
        f"\n{result.best.trainer.statement()}", highlight=False, markup=False, soft_wrap=True
    )
