"""`privada train`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from privada.cli import options as shared
from privada.cli.printing import confirmed, print_line, print_metrics, stoppable

if TYPE_CHECKING:
    from privada.workflows import TrainedTable


def train(
    context: typer.Context,
    table: shared.TableSource,
    output: Annotated[
        Path | None,
        typer.Option(help="Output directory (created). Default: the table's name and -private."),
    ] = None,
    epsilon: shared.Epsilon = None,
    target: shared.Target = None,
    schema: shared.SchemaFile = None,
    classes: shared.ClassNames = None,
    text: shared.TextColumns = None,
    columns: shared.ColumnKinds = None,
    delta: shared.Delta = None,
    person: shared.Person = None,
    rows_per_person: shared.RowsPerPerson = None,
    method: shared.MethodName = None,
    model: shared.ModelName = None,
    hidden: shared.Hidden = None,
    batch_size: shared.BatchSize = None,
    epochs: shared.Epochs = None,
    lr: shared.LearningRate = None,
    clip: shared.Clip = None,
    public: shared.PublicTable = None,
    public_rows: shared.PublicRows = None,
    unit: shared.Unit = None,
    ledger: shared.LedgerPlace = None,
    config: shared.Config = None,
    resume: shared.Resume = False,
    when_lost: shared.WhenLost = None,
    processes: Annotated[
        int, typer.Option(help="Processes of this machine that compute the steps together.")
    ] = 1,
    log: Annotated[
        Path | None,
        typer.Option(
            help="Log public figures of the run: to a file that ends in .jsonl or .csv, else to a "
            "folder for TensorBoard."
        ),
    ] = None,
    seed: shared.Seed = None,
    regression: shared.Regression = None,
    separator: shared.Separator = None,
    decimal: shared.Decimal = None,
    query: shared.Query = None,
    stream: shared.Stream = None,
    scratch: shared.Scratch = None,
    yes: shared.Yes = False,
    as_json: shared.AsJson = False,
) -> None:
    """Train a model on a private table, and write it to a folder with its privacy statement.

    A table, a target and an epsilon are enough: default
    settings follow from the number of rows. Column bounds and
    classes that you do not give are estimated by queries that
    are charged within --epsilon.

    $ privada train patients.csv --target sick --epsilon 1

    If a person can have several rows, protect persons:

    $ privada train visits.csv --target sick --person patient
    --epsilon 1

    Ctrl-C stops cleanly; --resume continues.
    """
    from privada.workflows import TrainOptions, read_options
    from privada.workflows.folders import default_output
    from privada.workflows.requests import check_request

    options = read_options(TrainOptions, config, context.params)
    folder = default_output(table) if output is None else output
    check_request(table, options, folder, resume=resume)
    with stoppable("Go on with --resume.", folder):
        from privada.loggers.by_path import logger_for
        from privada.workflows import train_table  # which loads torch

        trained = train_table(
            table,
            options,
            folder,
            resume=resume,
            progress=False if as_json else None,
            processes=processes,
            confirm=None if as_json else confirmed("Train like this?", yes),
            callbacks=() if log is None else [logger_for(log)],
        )
    if as_json:
        typer.echo(json.dumps(trained.to_dict(), indent=2))
    else:
        show(trained, Console())


def show(trained: "TrainedTable", console: Console) -> None:
    """Print what was done, and the statement."""
    from privada.core.formatting import number

    trainer = trained.trainer
    console.print(
        f"Trained a {trained.architecture.kind} model on "
        f"{len(trained.data.schema.features)} features: "
        f"{trainer.method.describe()}, {trainer.steps_done:,} steps, noise multiplier "
        f"{number(trainer.noise_multiplier)}.",
        highlight=False,
    )
    print_metrics(console, trained.metrics, trained.baselines)
    print_line(console, f"Output: {trained.output}\n")
    console.print(str(trained.statement), highlight=False, markup=False, soft_wrap=True)
