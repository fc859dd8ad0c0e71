"""Options that several commands have, each said once."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
TableFile = Annotated[
    Path,
    typer.Argument(
        help="The table: .csv, .tsv, .jsonl or .txt (also compressed), .parquet, .feather, .arrow, "
        ".xlsx or .npz; a folder of such files; or one with a subfolder of .txt files for each "
        "class."
    ),
]
Epsilon = Annotated[
    float | None, typer.Option(help="Privacy budget: the epsilon of everything together.")
]
Delta = Annotated[
    float | None,
    typer.Option(help="Privacy budget: delta. Default: the largest power of ten not above n^-1.1."),
]
Target = Annotated[str | None, typer.Option(help="Column to predict. Not needed with --schema.")]
SchemaFile = Annotated[
    str | None, typer.Option("--schema", help="Schema of the table; `privada schema` drafts one.")
]
ClassNames = Annotated[
    list[str] | None,
    typer.Option("--class", help="A class of the target; repeat for each."),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        help="A column of text, encoded as a bag of words; repeat for more. In .csv and .jsonl a "
        "column whose first cell has five words or more is taken for text."
    ),
]
ColumnKinds = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=KIND",
        help="What a column holds, where names and types mislead; repeat for more. KIND: number, "
        "number:LOW..HIGH, mixed (numbers and codes; also mixed:LOW..HIGH), date, "
        "date:FIRST..LAST, date:%d.%m.%Y, category:VALUE,VALUE, hashed, hashed:BUCKETS, text, "
        "text:FEATURES or ignore.",
    ),
]
MethodName = Annotated[str | None, typer.Option(help="Training method. Default: dp-adam-wosm.")]
ModelName = Annotated[
    str | None,
    typer.Option(help="linear, mlp, or module:factory for a torch model. Default: linear."),
]
Hidden = Annotated[
    list[int] | None,
    typer.Option(help="Width of a hidden layer of an mlp; repeat for more layers. Default: 64."),
]
BatchSize = Annotated[
    float | None,
    typer.Option(
        help="Expected batch size, in rows, or in persons with --person. Default: about 5 sqrt(n)."
    ),
]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training data. Default: 30.")]
PublicTable = Annotated[
    str | None,
    typer.Option(
        help="A public table with the same columns. It gives bounds and categories where there is "
        "no --schema, public examples to methods that use them, and metrics."
    ),
]
PublicRows = Annotated[
    str | None,
    typer.Option(
        help="column=value: rows of the table that are public. They are used like --public and not "
        "trained on."
    ),
]
Unit = Annotated[
    str | None,
    typer.Option(help="What is protected, in words. Default: record, or person with --person."),
]
Person = Annotated[
    str | None,
    typer.Option(
        help="Column that identifies a person. All rows of a person are protected together, and "
        "the column is not a feature."
    ),
]
RowsPerPerson = Annotated[
    int | None,
    typer.Option(help="Rows of a person that one step uses, at most. Default: 8."),
]
Regression = Annotated[
    bool | None,
    typer.Option(
        "--regression",
        help="The target is a number, also where it is 0 or 1; no query asks for its classes.",
    ),
]
TableSource = Annotated[
    str,
    typer.Argument(
        help="The table: .csv, .tsv, .jsonl or .txt (also compressed), .parquet, .feather, .arrow, "
        ".xlsx or .npz; a folder of such files, or with a subfolder of .txt files for each class; "
        "or sqlite:///FILE, duckdb:///FILE or postgresql://HOST/NAME, with --query."
    ),
]
Separator = Annotated[
    str | None, typer.Option(help="What separates cells of a CSV file. Default: by its header.")
]
Decimal = Annotated[
    str | None,
    typer.Option(
        help='The decimal mark of a CSV file, "." or ",". Default: a point; where semicolons '
        "separate, either."
    ),
]
Query = Annotated[str | None, typer.Option(help="Which rows of a database.")]
Yes = Annotated[
    bool, typer.Option("--yes", help="Go on without asking whether the table is understood.")
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Keep rows and features on disk while it runs, or in memory. Default: on disk where "
        "they would take too much memory. The result is the same.",
    ),
]
Scratch = Annotated[
    str | None,
    typer.Option(
        help="Folder for rows and features on disk: in files without a name, gone at the end. "
        "Default: the folder that --output is in."
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Random seed, for experiments: the result is reproducible and not private."),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        help="Learning rate. Default: for train 0.6 / sqrt(steps), falling to 0; for "
        "tune, chosen among several."
    ),
]
Clip = Annotated[
    float | None,
    typer.Option(help="Clipping norm. Default: 0.5 for train; for tune, chosen among several."),
]
LedgerPlace = Annotated[
    str | None,
    typer.Option(help="Privacy ledger of the data set. Default: a new one in --output."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the stopped run in --output, on its ledger. Queries that were answered "
        "are not repeated.",
    ),
]
WhenLost = Annotated[
    str | None,
    typer.Option(
        help="With --resume: what to do about a query that was charged but whose answer was "
        "lost: refuse, pay-again or defaults. Default: refuse."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="TOML file with the same option names. The command line wins."),
]
