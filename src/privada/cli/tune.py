"""`privada tune`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from privada.cli import options as shared
from privada.cli.printing import confirmed, print_line, print_metrics, print_table, stoppable

if TYPE_CHECKING:
    from privada.workflows import TunedTable


def tune(
    context: typer.Context,
    table: shared.TableSource,
    output: Annotated[
        Path | None,
        typer.Option(help="Output directory (created). Default: the table's name and -tuned."),
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
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Values to choose among, such as lr=0.1,1,10; repeat for more settings."
        ),
    ] = None,
    how: Annotated[
        str | None,
        typer.Option(
            help="How to choose: cheapest, compose-pld, repeat-geometric, ... Default: cheapest."
        ),
    ] = None,
    candidates: Annotated[
        float | None,
        typer.Option(help="Expected number of runs. Default: the number of candidates."),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Share of the records held out for scoring. Default: 0.2."),
    ] = None,
    public: shared.PublicTable = None,
    public_rows: shared.PublicRows = None,
    unit: shared.Unit = None,
    ledger: shared.LedgerPlace = None,
    config: shared.Config = None,
    resume: shared.Resume = False,
    when_lost: shared.WhenLost = None,
    state: Annotated[str | None, typer.Option(hidden=True)] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of runs in parallel.")] = None,
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
    """Choose hyperparameters on a private table, at a price that is charged before the first run.

    A table, a target and an epsilon are enough, as for train.
    Column bounds and classes that you do not give are
    estimated first, by queries that are charged. Each
    candidate is then trained privately and scored privately
    on held-out records. Queries, training and scores together
    cost at most --epsilon. Only the best candidate is
    released, unless --how compose-pld releases them all.

    $ privada tune census.csv --target income --epsilon 1

    What to choose among, and where to write it:

    $ privada tune census.csv --target income --epsilon 1
    --set lr=0.01,0.03,0.1 --set clip=0.5,1 --output best

    Ctrl-C stops cleanly; --resume continues. `privada plan`
    prices a search before any data is read.
    """
    from privada.workflows import TuneOptions, read_options
    from privada.workflows.folders import default_output
    from privada.workflows.options import parse_space
    from privada.workflows.requests import check_request

    given = {**context.params, "space": parse_space(choices or [])}
    options = read_options(TuneOptions, config, given)
    folder = default_output(table, "tuned") if output is None else output
    check_request(table, options, folder, resume=resume or state is not None)
    with stoppable("Go on with --resume.", folder):
        from privada.workflows import tune_table  # which loads torch

        tuned = tune_table(
            table,
            options,
            folder,
            resume=resume,
            progress=not as_json and sys.stdout.isatty(),
            confirm=None if as_json else confirmed("Tune like this?", yes),
        )
    if as_json:
        typer.echo(json.dumps(tuned.to_dict(), indent=2))
    else:
        show(tuned, Console())


def show(tuned: "TunedTable", console: Console) -> None:
    """Print what was found, and the statement."""
    from privada.core.formatting import number

    found = tuned.selection
    if found.tried:
        listed = Table(title="Candidates", title_justify="left", title_style="bold")
        for name in (*tuned.space, "score"):
            listed.add_column(name, justify="right")
        for each in sorted(found.tried, key=lambda tried: tried.score):
            listed.add_row(*(f"{each.settings[n]}" for n in tuned.space), number(each.score))
        print_table(console, listed)
    words = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    score = "none: no run was drawn, and the model is untrained"
    if found.score is not None:
        score = f"{number(found.score)}, with noise of standard deviation {found.score_std:.2g}"
    console.print(f"Best of {found.candidates} candidates: {words}", highlight=False)
    console.print(f"Score on held-out records: {score}", highlight=False)
    print_metrics(console, tuned.metrics, tuned.baselines)
    console.print(f"Price of the search: {found.price}", highlight=False)
    print_line(console, f"Output: {tuned.output}\n")
    console.print(str(tuned.statement), highlight=False, markup=False, soft_wrap=True)
