"""`privada`: the commands."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from privada.cli.ledger import ledger
from privada.cli.papers import papers
from privada.cli.report import report
from privada.cli.schema import schema
from privada.core.errors import PrivadaError

app = typer.Typer(
    name="privada",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@contextmanager
def _stoppable(advice: str, folder: Path | None = None) -> Iterator[None]:
    """Turn Ctrl-C into one line and exit code 130; without its folder nothing was charged."""
    try:
        yield
    except KeyboardInterrupt:
        words = f"What was charged stays charged. {advice}"
        if folder is not None and not folder.exists():
            words = "Nothing was charged."
        typer.echo(f"privada: stopped. {words}", err=True)
        raise typer.Exit(130) from None


@app.callback()
def _options(
    debug: Annotated[  # found by main, wherever it stands
        bool, typer.Option("--debug", help="Show where an error arose.")
    ] = False,
) -> None:
    """Train models under differential privacy, with an honest bill.

    Begin with demo; or with plan, which reads no data; or with
    train, on a table of yours. A mistake is one line and exit
    code 2, and says what was charged; Ctrl-C is 130.
    """


@app.command()
def demo(
    epsilon: Annotated[float, typer.Option(help="The budget's epsilon.")] = 2.0,
    delta: Annotated[float, typer.Option(help="The budget's delta.")] = 1e-4,
    epochs: Annotated[float, typer.Option(help="Passes over the training data.")] = 40.0,
    batch_size: Annotated[float, typer.Option(help="Expected records in a step.")] = 256.0,
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger file; runs on it add up. Default: in memory.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The report, an .html file.")] = Path(
        "privada-demo.html"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ] = False,
) -> None:
    """Train by four methods on handwritten digits that ship with scikit-learn, and compare.

    Each has the same epsilon. A table, the statement of the
    best and a report of all come out.
    """
    from privada.cli.demo import run_demo, show, to_dict

    result = run_demo(
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        batch_size=batch_size,
        ledger=ledger,
        output=None if as_json else output,
        progress=not as_json and sys.stdout.isatty(),
    )
    if as_json:
        typer.echo(json.dumps(to_dict(result), indent=2))
    else:
        show(result, output, Console())


@app.command()
def plan(
    records: Annotated[int, typer.Option(help="The number of records, taken as public.")],
    epsilon: Annotated[float, typer.Option(help="The budget's epsilon.")],
    delta: Annotated[
        float | None,
        typer.Option(
            help="The budget's delta, well below 1 / n. "
            "Default: the largest power of ten not above n^-1.1."
        ),
    ] = None,
    parameters: Annotated[
        int | None, typer.Option(help="How many parameters are trained; scales the noise's norm.")
    ] = None,
    batch_size: Annotated[
        list[int] | None, typer.Option(help="A batch size to consider; may be repeated.")
    ] = None,
    epochs: Annotated[
        list[float] | None, typer.Option(help="A number of epochs to consider; may be repeated.")
    ] = None,
    candidates: Annotated[
        list[int] | None,
        typer.Option(help="A size of search to price; may be repeated. Default: 1 4 10 40 1000."),
    ] = None,
    sampling: Annotated[str, typer.Option(help="poisson or fixed-size.")] = "poisson",
    chart: Annotated[
        list[Path] | None,
        typer.Option(help="Draw the plan to a file: .html, .png, .svg or .pdf; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ] = False,
) -> None:
    """Say what a budget affords before any data is read: noise, searches and a recommendation.

    It prints the noise that a run needs for each batch size
    and number of epochs, the price of choosing among 1 to 1000
    candidates in each way, and a setting to begin with.
    It reads no data and charges nothing.

    What do 60,000 records and an epsilon of 1 afford, if the
    model has 100,000 parameters?

    $ privada plan --records 60000 --epsilon 1 --parameters 100000

    The same with two batch sizes only, and drawn:

    $ privada plan --records 60000 --epsilon 1 --batch-size 512
    --batch-size 2048 --chart plan.html --chart plan.png
    """
    from privada.cli.plan import run_plan, show

    afforded = run_plan(
        records=records,
        epsilon=epsilon,
        delta=delta,
        parameters=parameters,
        batch_sizes=batch_size,
        epochs=epochs,
        candidates=candidates,
        sampling=sampling,
        charted=chart,
        progress=not as_json and sys.stdout.isatty(),
    )
    if as_json:
        typer.echo(json.dumps(afforded.to_dict(), indent=2))
    else:
        show(afforded, Console(), delta_given=delta is not None)


app.command()(schema)


@app.command()
def train(
    table: Annotated[
        Path,
        typer.Argument(
            help="A table: .csv, .tsv, .jsonl (or .gz), .npz or .parquet; or a folder with a "
            "subfolder of .txt files for each class."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            help="A new folder for everything that comes of it. Default: the table's name and "
            "-private, here."
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="What the run may cost.")] = None,
    target: Annotated[
        str | None, typer.Option(help="The column to predict; not needed with --schema.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            help="What the columns are; `privada schema` drafts one. Without it and public rows, "
            "text is hashed, and bounds and classes are estimated, charged within --epsilon."
        ),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class that the target can have; repeat for each."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of text, to be made a bag of words; may be repeated. In .csv and .jsonl "
            "one whose first cell has five words is taken for text."
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="The budget's delta. Default: the largest power of ten below n^-1.1."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="How to train. Default: dp-adam-wosm.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="linear, mlp, or module:factory for a torch model. Default: linear."),
    ] = None,
    hidden: Annotated[
        list[int] | None, typer.Option(help="Width of a hidden layer of an mlp; repeat for more.")
    ] = None,
    batch_size: Annotated[
        float | None, typer.Option(help="Expected records in a step. Default: about 5 sqrt(n).")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes. Default: 30.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate. Default: 0.6 / sqrt(steps), falling to 0.")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Clip norm. Default: 0.5.")] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="A public table with the same columns: for bounds and categories where there is "
            "no --schema, for methods that take public examples, and for metrics."
        ),
    ] = None,
    public_rows: Annotated[
        str | None,
        typer.Option(
            help="column=value of rows that are public, as a public table would be; they are not "
            "trained on."
        ),
    ] = None,
    unit: Annotated[str | None, typer.Option(help="What a row stands for, in words.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="The data set's ledger. Default: a new one in the folder.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with the same names; options win.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the stopped run in --output, on its ledger; what was answered is not "
            "asked again.",
        ),
    ] = False,
    when_lost: Annotated[
        str | None,
        typer.Option(
            help="With --resume, what becomes of a query that was charged and whose answer was "
            "lost: refuse, pay-again or defaults. Default: refuse."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes it reproducible, and not private.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ] = False,
) -> None:
    """Train a model on a private table, and write it with its bill to a folder.

    With only a table, a target and an epsilon, settings follow
    from the number of rows. Nothing is found out from private
    values without being charged.

    $ privada train patients.csv --target sick --epsilon 1

    Ctrl-C stops it cleanly; --resume goes on.
    """
    from privada.cli.train import run_train, show, to_dict
    from privada.cli.wanted import merged

    wanted = merged(
        config,
        {
            "epsilon": epsilon, "target": target, "schema": schema, "classes": classes,
            "text": text, "delta": delta, "method": method, "model": model, "hidden": hidden,
            "batch_size": batch_size, "epochs": epochs, "lr": lr, "clip": clip,
            "public": public, "public_rows": public_rows, "unit": unit, "ledger": ledger,
            "when_lost": when_lost, "seed": seed,
        },
    )  # fmt: skip
    folder = Path(f"{table.resolve().name.split('.')[0]}-private") if output is None else output
    with _stoppable("Go on with --resume.", folder):
        trained = run_train(
            table, wanted, folder, resume=resume, progress=not as_json and sys.stdout.isatty()
        )
    if as_json:
        typer.echo(json.dumps(to_dict(trained), indent=2))
    else:
        show(trained, folder, Console())


@app.command()
def tune(
    table: Annotated[
        Path, typer.Argument(help="A table: .csv, .jsonl, .npz, .parquet or .txt, also compressed.")
    ],
    schema: Annotated[
        Path, typer.Option(help="What its columns are: a schema, which `privada schema` drafts.")
    ],
    epsilon: Annotated[float, typer.Option(help="The epsilon of the whole search.")],
    delta: Annotated[
        float | None,
        typer.Option(help="Its delta. Default: the largest power of ten not above n^-1.1."),
    ] = None,
    method: Annotated[str, typer.Option(help="How to train.")] = "dp-adam-wosm",
    model: Annotated[
        str, typer.Option(help="linear, mlp, or module:factory for a torch model of yours.")
    ] = "linear",
    choices: Annotated[
        list[str] | None,
        typer.Option("--set", help="Values to choose among, such as lr=0.1,1,10; may be repeated."),
    ] = None,
    batch_size: Annotated[
        float | None, typer.Option(help="Expected records in a step. Default: about 5 sqrt(n).")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training records. Default: 30.")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Width of the hidden layer of an mlp. Default: 64.")
    ] = None,
    how: Annotated[
        str, typer.Option(help="The way to choose: cheapest, compose-pld, repeat-geometric, ...")
    ] = "cheapest",
    candidates: Annotated[
        float | None,
        typer.Option(help="Expected number of runs. Default: the number of candidates."),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="The share of records that is set apart for scores.")
    ] = 0.2,
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger file; looks at one data set add up there.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="A file to go on from if the search is stopped; needs --ledger."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="A new folder for the model, the statement and the prices."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="How many runs go side by side.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes it reproducible, and not private.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ] = False,
) -> None:
    """Choose settings on a private table, at a price that is paid before the first look.

    Each candidate is trained privately and scored privately on
    records that none is trained on. The whole search, scores
    included, costs what --epsilon says, and is charged before
    it begins. Unless every candidate is to be released
    (--how compose-pld), the best one alone is.

    $ privada schema census.csv --target income --output census.toml

    $ privada tune census.csv --schema census.toml --epsilon 1
    --set lr=0.01,0.03,0.1 --set clip=0.5,1 --output best

    What a search would cost, before any data: privada plan.
    """
    from privada.cli.charges import telling_charges
    from privada.cli.tune import run_tune, show, to_dict

    goes_on = "The same command goes on if it has --state."
    with _stoppable(goes_on), telling_charges(ledger, goes_on):
        tuned = run_tune(
            table,
            schema=schema,
            epsilon=epsilon,
            delta=delta,
            method=method,
            model=model,
            choices=choices or [],
            batch_size=batch_size,
            epochs=epochs,
            hidden=hidden,
            how=how,
            candidates=candidates,
            validation=validation,
            ledger=ledger,
            state=state,
            output=output,
            jobs=jobs,
            seed=seed,
            progress=not as_json and sys.stdout.isatty(),
        )
    if as_json:
        typer.echo(json.dumps(to_dict(tuned), indent=2))
    else:
        show(tuned, Console())


app.command()(report)
app.command()(ledger)
app.command()(papers)


def main() -> None:
    """Run the command line; a mistake of the user's is one line and exit code 2."""
    asked = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(asked) < len(sys.argv) - 1
    try:
        app(args=asked)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, PrivadaError):
            typer.echo(f"privada: {error}", err=True)
            raise SystemExit(2) from None
        words = f"{type(error).__name__}: {error}".replace("\n", " ")
        typer.echo(
            f"privada: {words}. That should not happen; --debug shows where it did.", err=True
        )
        raise SystemExit(1) from None
