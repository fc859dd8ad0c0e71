"""`privada predict`."""

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from privada.cli import options as shared

Folder = Annotated[
    Path, typer.Argument(help="Output directory of `privada train` or `privada tune`.")
]
Trust = Annotated[
    str | None,
    typer.Option(help="module:factory of a model of your own, which is imported and run."),
]


def predict(
    folder: Folder,
    table: shared.TableSource,
    output: Annotated[
        Path | None, typer.Option(help="Output file, .csv (created). Default: print.")
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Write the probability of each class too.")
    ] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Columns of the table to write in front, with commas between them."),
    ] = None,
    score: Annotated[
        bool,
        typer.Option(
            "--score",
            help="Compare with the target's column, and print accuracy or R^2 beside a baseline. "
            "An exact look at these rows that is not charged: needs --public.",
        ),
    ] = False,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Declare that the rows are public, or not protected by any promise. Never for "
            "rows that the model was trained on.",
        ),
    ] = False,
    trust: Trust = None,
    query: shared.Query = None,
    as_json: shared.AsJson = False,
) -> None:
    """Predict new rows with a model that was trained privately.

    The new table needs the columns that the model was trained
    on. Others are ignored, the target among them. Predicting
    costs no privacy: the model has paid.

    $ privada predict patients-private new.csv

    $ privada predict patients-private new.csv --proba
    --columns id,name --output predictions.csv

    $ privada predict patients-private test.csv --score --public
    """
    from privada import tables
    from privada.core.errors import ArgumentError
    from privada.workflows.predict import predictions, write_predictions
    from privada.workflows.predict import score as score_of
    from privada.workflows.private_model import load

    if public and not score:
        raise ArgumentError("Expected --public with --score only, got it alone. Leave it out.")
    if score and (proba or columns) and output is None:
        raise ArgumentError(
            "Expected --output with --score and --proba or --columns, got none: scores are "
            "printed in place of predictions."
        )
    model = load(folder, trust=trust)
    rows = table if query is None else tables.read(table, query=query)
    kept = [name for listed in columns or () for name in next(csv.reader([listed]))]
    metrics = score_of(model, rows, public=public) if score else None
    shown = output is None and metrics is None
    if shown and not as_json:
        write_predictions(model, rows, sys.stdout, proba=proba, columns=kept)
        return
    facts: dict[str, object] = {}
    if metrics is not None:
        facts["metrics"] = metrics
    if output is not None:
        count = write_predictions(model, rows, output, proba=proba, columns=kept)
        facts |= {"rows": count, "output": str(output)}
    elif shown:
        facts["predictions"] = list(predictions(model, rows, proba=proba, columns=kept))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, found in (metrics or {}).items():
        typer.echo(f"{name}: {found['value']:.4g} (baseline: {found['baseline']:.4g})")
    if output is not None:
        typer.echo(f"Wrote {facts['rows']:,} predictions to {output}.")
