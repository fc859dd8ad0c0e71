"""`privada export`."""

from pathlib import Path
from typing import Annotated

import typer

from privada.cli.predict import Folder, Trust


def export(
    folder: Folder,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="onnx, or pt2 for a program of torch.export. Default: as --output ends, or onnx.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Output file (created). Default: model.onnx in FOLDER.")
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="End with a softmax: probabilities in place of scores.")
    ] = False,
    trust: Trust = None,
) -> None:
    """Export a model for other programs: its network, and what its inputs are.

    The network takes features. How the columns of a table
    become features is written beside it, as JSON.

    $ privada export patients-private

    $ privada export patients-private --format pt2 --output sick.pt2
    """
    from privada.core.errors import ArgumentError
    from privada.core.validation import one_of
    from privada.workflows.export import ENDINGS, export_model
    from privada.workflows.private_model import load

    known = "onnx" if form is None else one_of("--format", form, ENDINGS)
    place = folder / f"model{ENDINGS[known]}" if output is None else output
    if form is not None and place.suffix != ENDINGS[form]:
        raise ArgumentError(f"Expected --output to end in {ENDINGS[form]}, got {str(place)!r}.")
    export_model(load(folder, trust=trust), place, proba=proba)
    typer.echo(f"Wrote {place} and {place}.json.")
