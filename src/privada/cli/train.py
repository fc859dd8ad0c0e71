"""`privada train`: from a private table to a private model, and one page about it."""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from privada import defaults, tables
from privada.accounting import Budget, Ledger, epsilon_of
from privada.accounting.calibration import least_noise
from privada.cli.folders import refuse_taken
from privada.core.errors import ArgumentError, BudgetExceeded, CheckpointError
from privada.core.randomness import make_bits
from privada.models import Architecture, save
from privada.noise.hidden import hidden_generator
from privada.report import Entry, write
from privada.scores import accuracy, bounded_loss, public_score
from privada.selection.candidates import Candidate, charges_of
from privada.selection.planning import default_delta
from privada.training import Trainer

# The share of epsilon that estimating bounds may cost by itself.
_FOR_BOUNDS = 0.1
_CHECKPOINT, _CONFIG = "checkpoint", "config.json"


@dataclass(frozen=True)
class Wanted:
    """What was asked for: the options of the command, and the names in a configuration file."""

    epsilon: float
    target: str | None = None
    schema: str | None = None
    classes: tuple[str, ...] = ()
    delta: float | None = None
    method: str | None = None
    model: str = "linear"
    hidden: tuple[int, ...] = (64,)
    batch_size: float | None = None
    epochs: float | None = None
    lr: float | None = None
    clip: float | None = None
    public_rows: str | None = None
    unit: str = "record"
    ledger: str | None = None
    seed: int | None = None


def merged(config: Path | None, given: Mapping[str, Any]) -> Wanted:
    """Return what a configuration file and the command line say; the latter has the last word."""
    said: dict[str, Any] = {}
    if config is not None:
        try:
            said = tomllib.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArgumentError(
                f"Cannot read the configuration {str(config)!r}: {error}."
            ) from error
    names = {each.name for each in fields(Wanted)}
    found = {key.replace("-", "_"): value for key, value in said.items()}
    unknown = sorted(set(found) - names)
    if unknown:
        raise ArgumentError(
            f"Expected the names of options in {str(config)!r}, got {', '.join(unknown)}. Known: "
            f"{', '.join(sorted(names))}."
        )
    found |= {key: value for key, value in given.items() if value not in (None, (), [])}
    for name in ("classes", "hidden"):
        if name in found:
            value = found[name]
            found[name] = tuple(value) if isinstance(value, list | tuple) else (value,)
    if "epsilon" not in found:
        raise ArgumentError("Expected epsilon, got none. Give --epsilon, or write it in --config.")
    return Wanted(**found)


@dataclass(frozen=True)
class Trained:
    """What came of it."""

    trainer: Trainer
    architecture: Architecture
    schema: tables.Schema
    metrics: dict[str, float]


@dataclass(frozen=True)
class _Data:
    """The private rows and the public ones, encoded."""

    train: tuple[Any, Any]
    public: tuple[Any, Any] | None
    schema: tables.Schema

    @property
    def records(self) -> int:
        return len(self.train[1])

    @property
    def outputs(self) -> int:
        target = self.schema.target
        return len(target.classes) if isinstance(target, tables.Classes) else 1


def run_train(
    table: Path, wanted: Wanted, output: Path, *, resume: bool, progress: bool
) -> Trained:
    """Train, and fill the folder of results."""
    made = _prepare(output, resume)
    try:
        ledger, data = _encoded(table, wanted, output)
        trainer, architecture = _trainer(wanted, data, ledger, output, resume)
    except BaseException:
        if made:
            _undo(output)
        raise
    (output / _CONFIG).write_text(
        json.dumps({"table": table.name, **asdict(wanted)}, indent=2) + "\n", encoding="utf-8"
    )
    trainer.fit(progress=progress, checkpoint=output / _CHECKPOINT)
    metrics = _metrics(trainer.model, data)
    _write(output, trainer, architecture, data.schema, metrics)
    (output / _CHECKPOINT).unlink(missing_ok=True)
    return Trained(trainer, architecture, data.schema, metrics)


def _prepare(output: Path, resume: bool) -> bool:
    """Make the folder, or find the one to go on in; return whether it is new."""
    if not resume:
        refuse_taken(output)
        output.mkdir()
        return True
    if not (output / _CHECKPOINT).exists():
        raise CheckpointError(
            f"Expected an unfinished run in {str(output)!r}, got none. Start one without --resume."
        )
    return False


def _undo(output: Path) -> None:
    """Remove a folder in which nothing was charged; keep one whose ledger holds a charge."""
    path = output / "ledger"
    if path.exists():
        with Ledger(path) as ledger:
            if ledger.totals():
                return
        path.unlink()
    for each in output.iterdir():
        each.unlink()
    output.rmdir()


def _given_schema(wanted: Wanted, known: Path) -> tables.Schema | None:
    """Return the schema of a run that is resumed, or the one that was given, if there is one."""
    if known.exists():
        return tables.Schema.read(known)
    if wanted.schema is None:
        return None
    schema = tables.Schema.read(wanted.schema)
    if wanted.target not in (None, schema.target.column):
        raise ArgumentError(
            f"Expected --target to be left out or {schema.target.column!r}, as the schema says, "
            f"got {wanted.target!r}."
        )
    return schema


def _encoded(table: Path, wanted: Wanted, output: Path) -> tuple[Ledger, _Data]:
    """Return the ledger and the encoded rows; bounds that no one knows are estimated, charged."""
    known = output / "schema.toml"
    schema = _given_schema(wanted, known)
    read = tables.read(table, schema=schema)
    if schema is None:
        schema = _guessed(table, read, wanted)
    public = _public_rows(read, schema, wanted)
    private = read if public is None else read.take(~public)
    delta = _delta(wanted, max(1, private.size))
    path = output / "ledger" if wanted.ledger is None else Path(wanted.ledger)
    ledger = (
        Ledger(path)
        if path.exists()
        else Ledger(path, Budget(wanted.epsilon, delta), dataset=table.name.split(".")[0])
    )
    if schema.pending:
        run = f"bounds-{os.urandom(4).hex()}"
        _remember(output, bounds=run)
        schema = tables.estimate_bounds(
            private, schema, ledger=ledger, run=run, seed=wanted.seed,
            budget=Budget(_FOR_BOUNDS * wanted.epsilon, delta),
        )  # fmt: skip
    if not known.exists():
        schema.write(known)
    rows = None if public is None else tables.encode(read.take(public), schema).data
    return ledger, _Data(tables.encode(private, schema).data, rows, schema)


def _remember(output: Path, **facts: Any) -> dict[str, Any]:
    """Return what is known of the run in a folder, with some facts added."""
    path = output / "run.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if facts:
        known |= facts
        path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    return dict(known)


def _guessed(path: Path, table: tables.Table, wanted: Wanted) -> tables.Schema:
    """Return a schema from names and types alone; bounds are left to a charged query."""
    if wanted.target is None:
        raise ArgumentError("Expected --target, or --schema, got neither.")
    types = tables.column_types(path)
    if wanted.target not in types:
        raise ArgumentError(
            f"Expected --target to be a column of {path.name}, got {wanted.target!r}. Its columns: "
            f"{', '.join(types)}."
        )
    kinds: dict[str, Any] = {
        "number": lambda: tables.Number(bounds="estimate"),
        "text": tables.Hashed,
        "words": tables.Text,
    }
    columns = {}
    for name, kind in types.items():
        if isinstance(kind, int):
            raise ArgumentError(
                f"Expected a schema for the matrix {name!r}, whose bounds cannot be estimated. "
                "Draft one: privada schema."
            )
        if name != wanted.target:
            columns[name] = kinds[kind]()
    if wanted.classes or types[wanted.target] != "number":
        occurring = (str(each) for each in table.texts(wanted.target) if each not in (None, ""))
        classes = wanted.classes or tuple(sorted(set(occurring)))
        return tables.Schema(tables.Classes(wanted.target, classes), columns)
    return tables.Schema(tables.Range(wanted.target, bounds="estimate"), columns)


def _public_rows(
    table: tables.Table, schema: tables.Schema, wanted: Wanted
) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Return which rows were declared public, None if none were."""
    if wanted.public_rows is None:
        return None
    name, equals, value = wanted.public_rows.partition("=")
    if not equals or name not in table.names:
        raise ArgumentError(
            f"Expected --public-rows column=value with a column of the table, got "
            f"{wanted.public_rows!r}."
        )
    chosen = np.asarray(table.texts(name) == value, dtype=bool)
    if not chosen.any() or chosen.all():
        raise ArgumentError(
            f"Expected --public-rows to choose some rows and leave some, got "
            f"{wanted.public_rows!r}, which chooses {int(chosen.sum())} of {table.size}."
        )
    return chosen


def _trainer(
    wanted: Wanted, data: _Data, ledger: Ledger, output: Path, resume: bool
) -> tuple[Trainer, Architecture]:
    inputs, _ = data.train
    chosen = defaults.settings(
        data.records, batch=wanted.batch_size, epochs=wanted.epochs, clip=wanted.clip, lr=wanted.lr
    )
    method = chosen.method
    if wanted.method not in (None, "dp-adam-wosm"):
        assert wanted.method is not None
        method = defaults.named(wanted.method, lr=wanted.lr, clip=wanted.clip)
    hidden = wanted.hidden if wanted.model == "mlp" else ()
    architecture = Architecture(wanted.model, int(inputs.shape[1]), data.outputs, hidden)
    with hidden_generator(make_bits(wanted.seed, "weights"), torch.device("cpu")):
        model = architecture.build()
    loss = nn.CrossEntropyLoss() if data.outputs > 1 else nn.MSELoss()
    candidate = Candidate(model, loss, method, chosen.batch_size, epochs=chosen.epochs)
    trainer = Trainer(
        model,
        loss,
        data.train,
        method=method,
        batch_size=chosen.batch_size,
        epochs=chosen.epochs,
        noise_multiplier=_noise(wanted, candidate, ledger, data.records, resume, output),
        delta=_delta(wanted, data.records),
        ledger=ledger,
        seed=wanted.seed,
        unit=wanted.unit,
        resume=output / _CHECKPOINT if resume else None,
    )
    return trainer, architecture


def _delta(wanted: Wanted, records: int) -> float:
    return default_delta(records) if wanted.delta is None else wanted.delta


def _noise(
    wanted: Wanted, candidate: Candidate, ledger: Ledger, records: int, resume: bool, output: Path
) -> float:
    """Return the least noise with which the run fits the budget beside what bounds cost."""
    known = _remember(output)
    if resume and "noise_multiplier" in known:
        return float(known["noise_multiplier"])
    charges = charges_of(candidate, records, "poisson")
    own = {c.event: c.count for c in ledger.charges() if c.run == known.get("bounds")}
    delta = _delta(wanted, records)
    before = epsilon_of(own, delta)
    if before >= wanted.epsilon:
        raise BudgetExceeded(
            f"Expected something to be left of epsilon {wanted.epsilon:g} after estimating bounds, "
            f"which cost {before:.4g}. Give bounds in a schema."
        )

    def cost(sigma: float) -> float:
        total = charges(sigma)
        total.update(own)
        return epsilon_of(total, delta)

    sigma = least_noise(cost, wanted.epsilon, str(Budget(wanted.epsilon, delta)))
    _remember(output, noise_multiplier=sigma)
    return sigma


def _metrics(model: nn.Module, data: _Data) -> dict[str, float]:
    """Return how the model does on rows that were declared public."""
    if data.public is None:
        return {}
    from privada import data as records

    first = next(model.parameters())
    loaded = records.load(data.public, first.dtype, first.device)
    score = accuracy() if data.outputs > 1 else bounded_loss(nn.MSELoss(), 4.0)
    name = "accuracy" if data.outputs > 1 else "squared error of targets between -1 and 1"
    return {f"{name} on public rows": public_score(score, model, loaded)}


def _write(
    output: Path,
    trainer: Trainer,
    architecture: Architecture,
    schema: tables.Schema,
    metrics: dict[str, float],
) -> None:
    target = schema.target
    save(
        output,
        trainer.model,
        architecture,
        task=schema.task,
        classes=list(target.classes) if isinstance(target, tables.Classes) else None,
        features=list(schema.features),
        method=trainer.method.describe(),
    )
    statement = trainer.statement()
    history = [asdict(step) for step in trainer.history]
    texts = {
        "statement.txt": f"{statement}\n",
        "statement.json": statement.to_json() + "\n",
        "history.json": json.dumps(history) + "\n",
        "metrics.json": json.dumps(metrics, indent=2) + "\n",
    }
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    write([Entry.of_folder(output)], output / "report.html")


def to_dict(trained: Trained) -> dict[str, Any]:
    """Return the outcome as plain values."""
    trainer = trained.trainer
    return {
        "epsilon": trainer.epsilon(),
        "steps": trainer.steps_done,
        "noise_multiplier": trainer.noise_multiplier,
        "method": trainer.method.describe(),
        "metrics": trained.metrics,
        "features": len(trained.schema.features),
        "statement": trainer.statement().to_dict(),
    }


def show(trained: Trained, output: Path, console: Console) -> None:
    """Print what was done, and the statement."""
    trainer = trained.trainer
    console.print(
        f"Trained a {trained.architecture.kind} model on {len(trained.schema.features)} features: "
        f"{trainer.method.describe()}, {trainer.steps_done:,} steps, noise multiplier "
        f"{trainer.noise_multiplier:.3f}.",
        highlight=False,
    )
    for name, value in trained.metrics.items():
        console.print(f"{name}: {value:.4f}", highlight=False)
    console.print(f"Everything is in {output}.\n", highlight=False)
    console.print(str(trainer.statement()), highlight=False, markup=False, soft_wrap=True)
