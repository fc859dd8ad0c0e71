"""`privada`: the commands."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from privada.core.errors import PrivadaError

app = typer.Typer(
    name="privada",
    help="Train models under differential privacy, with an honest bill.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options() -> None:
    """Train models under differential privacy, with an honest bill."""


@app.command()
def demo(
    epsilon: Annotated[float, typer.Option(help="The budget's epsilon.")] = 2.0,
    delta: Annotated[float, typer.Option(help="The budget's delta.")] = 1e-4,
    epochs: Annotated[float, typer.Option(help="Passes over the training data.")] = 40.0,
    batch_size: Annotated[float, typer.Option(help="Expected records in a step.")] = 256.0,
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger file; runs on it add up. Default: in memory.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ] = False,
) -> None:
    """Train DP-SGD on handwritten digits that ship with scikit-learn, and print the statement."""
    from privada.cli.demo import run_demo

    result = run_demo(
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        batch_size=batch_size,
        ledger=ledger,
        progress=not as_json and sys.stdout.isatty(),
    )
    if as_json:
        fields = {
            "accuracy": result.accuracy,
            "steps": result.trainer.steps_done,
            "statement": result.trainer.statement().to_dict(),
        }
        typer.echo(json.dumps(fields, indent=2))
        return
    console = Console()
    console.print(
        f"DP-SGD on {result.train_size:,} images of handwritten digits, "
        f"{result.trainer.steps_done:,} steps, noise multiplier "
        f"{result.trainer.noise_multiplier:.3f}.",
        highlight=False,
    )
    console.print(
        f"Accuracy on {result.test_size:,} other images, taken as public: {result.accuracy:.1%}\n",
        highlight=False,
    )
    typer.echo(str(result.trainer.statement()))


def main() -> None:
    """Run the command line; a mistake of the user's is one line and exit code 2."""
    try:
        app()
    except PrivadaError as error:
        typer.echo(f"privada: {error}", err=True)
        raise SystemExit(2) from None
