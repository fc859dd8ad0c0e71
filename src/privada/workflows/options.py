"""What is asked of training and tuning on a table, in Python, on the command line and in a file."""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from privada.accounting import Budget
from privada.accounting.ledger import ROW, all_rows_of
from privada.core.errors import ArgumentError
from privada.core.validation import integer, printable_text
from privada.selection.defaults import default_delta
from privada.tables.kinds import Kind, column_kinds

USUAL_METHOD = "dp-adam-wosm"
_LISTS = ("classes", "text", "hidden")
# Fields that an option names for each of several.
_CALLED = {"class": "classes", "column": "columns"}
# What a unit is called unless the user says otherwise: without and with a column of persons.
_RECORD, _PERSON = "record", "person"


@dataclass(frozen=True)
class TableOptions:
    """What training and tuning have in common; see `TrainOptions` and `TuneOptions`."""

    epsilon: float
    target: str | None = None
    schema: str | None = None
    classes: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    columns: Mapping[str, Kind] = field(default_factory=dict)
    delta: float | None = None
    method: str | None = None
    model: str = "linear"
    hidden: tuple[int, ...] = (64,)
    batch_size: float | None = None
    epochs: float | None = None
    public: str | None = None
    public_rows: str | None = None
    unit: str = _RECORD
    person: str | None = None
    rows_per_person: int | None = None
    ledger: str | None = None
    seed: int | None = None
    lr: float | None = None
    clip: float | None = None
    when_lost: str = "refuse"
    regression: bool = False
    separator: str | None = None
    decimal: str | None = None
    query: str | None = None
    stream: bool | None = None
    scratch: str | None = None

    workflow: ClassVar[str]

    @property
    def run_prefix(self) -> str:
        """What the names of runs begin with."""
        return self.workflow

    def __post_init__(self) -> None:
        for name in _LISTS:
            value = getattr(self, name)
            listed = tuple(value) if isinstance(value, list | tuple) else (value,)
            object.__setattr__(self, name, listed)
        for name in ("schema", "public", "ledger", "scratch"):
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        object.__setattr__(self, "columns", column_kinds(self.columns))
        twice = [name for name in self.text if name in self.columns]
        if twice:
            raise ArgumentError(
                f"Expected one of --text and --column for column {twice[0]!r}, got both. Leave one "
                "out."
            )
        printable_text("unit", self.unit)
        if self.regression and self.classes:
            raise ArgumentError(
                "Expected one of --class and --regression, got both. Leave one out: the target is "
                "one of some classes, or a number."
            )
        if self.rows_per_person is not None:
            integer("rows_per_person", self.rows_per_person)
            if self.person is None:
                raise ArgumentError(
                    "Expected --rows-per-person only with --person, got "
                    f"{self.rows_per_person} without it. Name the column that says whose a row is."
                )
        if self.person is not None:
            printable_text("person", self.person)
            if self.person == self.target:
                raise ArgumentError(
                    f"Expected --person to be another column than --target, got {self.person!r} "
                    "for both."
                )
            if self.unit == _RECORD:
                object.__setattr__(self, "unit", _PERSON)

    @property
    def layout(self) -> dict[str, Any]:
        """How a text file is written, as `pv.tables.read` takes it."""
        return {"separator": self.separator, "decimal": self.decimal}

    @property
    def charged_unit(self) -> str:
        """What is protected, as the ledger keeps it: a row, or all rows of a person."""
        return ROW if self.person is None else all_rows_of(self.unit)

    def budget(self, units: int) -> Budget:
        """Return what all of it may cost, with a delta that follows from the number of units."""
        delta = default_delta(max(1, units)) if self.delta is None else self.delta
        return Budget(self.epsilon, delta)


@dataclass(frozen=True)
class TrainOptions(TableOptions):
    """What is asked of `train_table`: the options of `privada train`.

    Args:
        epsilon: what the run may cost.
        target: the column to predict; not needed with a schema.
        schema: the path of a schema, which `draft_schema` drafts.
        classes: the classes that the target can have.
        text: columns of text, to be made bags of words.
        columns: what columns hold, by their names, where it is not what names and types say: words
            such as "mixed", "number:0..120", "date:2015-01-01..2025-01-01", "category:yes,no",
            "hashed:64", "text" or "ignore", or column types such as `pv.tables.Mixed(0, 9)`. What a
            word leaves open is found as it is for other columns. Changes what a schema says, too.
        delta: the budget's delta, by default the largest power of ten not above n^-1.1.
        method: the name of a method, by default "dp-adam-wosm".
        model: "linear", "mlp" or "module:factory".
        hidden: the widths of the hidden layers of an "mlp".
        batch_size: the expected number of records in a step; of persons, with `person`.
        epochs: passes over the records.
        lr, clip: the learning rate and the clip norm.
        public: the path of a public table with the same columns.
        public_rows: "column=value" of rows that are public.
        unit: what is protected, in words: what a row stands for, or what a person is called.
        person: the column that says whose a row is. The promise is then for all rows of a person,
            and the column is no feature.
        rows_per_person: the most rows of a person that one step looks at, by default 8.
        ledger: the path or URL of the data set's ledger.
        when_lost: what becomes of a query that was charged and whose answer was lost: "refuse",
            "pay-again" or "defaults".
        seed: makes it reproducible, and not private.
        regression: the target is a number, also where it is 0 or 1; no query asks for its classes.
        separator, decimal, query: how the table is read, as `pv.tables.read` takes them.
        stream: whether rows and features are kept on disk while the run goes on, as they need not
            fit into memory then; by default they are where they would take too much of it. The
            result is the same. They are in files without a name, gone with the process.
        scratch: the folder of these files, by default that around the output folder.

    Edge cases: `rows_per_person` without `person`, and a person that is the target, are refused.

    Example:
        >>> from privada.workflows import TrainOptions
        >>> TrainOptions(epsilon=1.0, target="sick", person="patient").unit
        'person'
    """

    workflow: ClassVar[str] = "train"

    @property
    def run_prefix(self) -> str:
        """The method."""
        return self.method or USUAL_METHOD


@dataclass(frozen=True)
class TuneOptions(TableOptions):
    """What is asked of `tune_table`: the options of `privada tune`.

    Args:
        space: values to choose among, for each setting, such as {"lr": [0.1, 1.0]}; by default
            learning rates and clip norms that suit the method.
        how: the way to choose, of `pv.selection.WAYS`, or "cheapest".
        candidates: the expected number of runs, by default the number of candidates.
        validation: the share of records that is set apart for scores.
        jobs: how many runs go side by side.

    The other options are those of `TrainOptions`. epsilon is that of the whole search, with the
    queries before it; `lr` and `clip` are fixed where they are given, and not chosen.

    `state` is deprecated: a search keeps its state in its output folder. With it, a search that was
    stopped goes on as with `resume=True`.

    Example:
        >>> from privada.workflows import TuneOptions
        >>> TuneOptions(epsilon=1.0, schema="census.toml", space={"lr": [0.1, 1.0]}).how
        'cheapest'
    """

    space: Mapping[str, list[Any]] = field(default_factory=dict)
    how: str = "cheapest"
    candidates: float | None = None
    validation: float = 0.2
    jobs: int | None = None
    state: str | None = None

    workflow: ClassVar[str] = "tune"


def parse_space(choices: Sequence[str]) -> dict[str, list[Any]]:
    """Return values to choose among, from words such as "lr=0.1,1".

    Args:
        choices: for each setting its name, an equals sign and its values with commas between them.

    Returns:
        The values by name, as `TuneOptions.space` takes them.

    Edge cases: words without a name or a value are refused, and a setting that is there twice.

    Example:
        >>> from privada.workflows import parse_space
        >>> parse_space(["lr=0.1,1", "clip=1"])
        {'lr': [0.1, 1], 'clip': [1]}
    """
    space: dict[str, list[Any]] = {}
    for choice in choices:
        name, equals, values = choice.partition("=")
        listed = [_value(part) for part in values.split(",") if part.strip()]
        if not equals or not name.strip() or not listed:
            raise ArgumentError(
                f"Expected --set name=value,value, got {choice!r}. Write --set lr=0.1,1,10."
            )
        setting = name.strip().replace("-", "_")
        if setting in space:
            values = ",".join(map(str, (*space[setting], *listed)))
            raise ArgumentError(
                f"Expected each setting once in --set, got {setting} twice. Write --set "
                f"{setting}={values}."
            )
        space[setting] = listed
    return space


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


_Options = TypeVar("_Options", bound=TableOptions)


def read_options(
    kind: type[_Options], config: str | os.PathLike[str] | None, given: Mapping[str, Any]
) -> _Options:
    """Return options from a configuration file and from what is given, which has the last word.

    Args:
        kind: `TrainOptions` or `TuneOptions`.
        config: a TOML file with the names of the options, with dashes or underscores; "class" may
            stand for "classes", and "column" for "columns".
        given: options by name. None and empty lists count as not given; names that are not options
            are left out.

    Returns:
        The options.

    Edge cases: unknown names in the file, a file that cannot be read and a missing epsilon are
    refused in words.

    Example:
        >>> from pathlib import Path
        >>> from privada.workflows import TrainOptions, read_options
        >>> _ = Path("run.toml").write_text('epsilon = 1.0\\nbatch-size = 64\\n')
        >>> read_options(TrainOptions, "run.toml", {"epsilon": 2.0, "target": "sick"}).epsilon
        2.0
    """
    names = {each.name for each in fields(kind)}
    found = {key.replace("-", "_"): value for key, value in _read(config).items()}
    for option, name in _CALLED.items():
        if option in found:
            found[name] = found.pop(option)
    unknown = sorted(set(found) - names)
    if unknown:
        raise ArgumentError(
            f"Expected the names of options in {str(config)!r}, got {', '.join(unknown)}. Known: "
            f"{', '.join(sorted(names))}."
        )
    found |= {
        key: value
        for key, value in given.items()
        if key in names and value is not None and value not in ((), [], {})
    }
    if "epsilon" not in found:
        raise ArgumentError("Expected epsilon, got none. Give --epsilon, or write it in --config.")
    return kind(**found)


def _read(config: str | os.PathLike[str] | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"Cannot read the configuration {str(config)!r}: {error}.") from error
