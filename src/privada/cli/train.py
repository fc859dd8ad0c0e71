"""`privada train`: from a private table to a private model, and one page about it."""

import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from privada import data as records
from privada import defaults, tables
from privada.accounting import Budget, Ledger, Statement
from privada.accounting.events import Tally
from privada.accounting.ledger import ROW
from privada.cli import inputs
from privada.cli.charges import count_charges, holds_charges
from privada.cli.folders import LEDGER, refuse_taken
from privada.cli.inputs import Inputs, Open, Rows
from privada.cli.wanted import Wanted
from privada.core.errors import (
    ArgumentError,
    BudgetExceeded,
    CheckpointError,
    LedgerError,
    PrivadaError,
)
from privada.core.formatting import number
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import make_source
from privada.models import Architecture, save
from privada.query.scores import accuracy, bounded_loss, public_score
from privada.report import Entry, write
from privada.selection.planning import default_delta
from privada.tables.files import write_durably
from privada.train.trainer import Trainer

_CHECKPOINT, _RUN, _SCHEMA = "checkpoint", "config.json", "schema.toml"
_ANSWERS = "answers.json"
# A run that is killed loses at most one in so many of its steps.
_CHECKPOINTS = 50


@dataclass(frozen=True)
class Trained:
    """What came of it."""

    trainer: Trainer
    architecture: Architecture
    inputs: Inputs
    metrics: dict[str, float]

    @property
    def statement(self) -> Statement:
        """The trainer's statement, with what the schema rests on."""
        said = self.trainer.statement()
        return replace(said, assumptions=(*said.assumptions, *self.inputs.assumptions))


def run_train(
    table: Path, wanted: Wanted, output: Path, *, resume: bool, progress: bool
) -> Trained:
    """Train, and fill the folder of results."""
    made, run = _prepare(output, resume), ""
    try:
        run = _name_of_run(output, table, wanted)
        _refuse_lost_ledger(wanted, output)
        rows = inputs.read(table, wanted, output / _SCHEMA)
        answers = tables.AnswerCache(output / _ANSWERS, when_lost=wanted.when_lost)
        unknown = inputs.still_open(rows, wanted, _budget(wanted, rows.private.size), answers)
        if not rows.complete:
            _rehearse(rows, wanted, unknown, output, run)
        with _ledger(table, wanted, output, rows.private.size) as ledger:
            answers.check_paid(ledger=ledger, run=run)  # a schema that is kept came of them
            return _run(wanted, rows, unknown, ledger, run, output, progress)
    except BaseException as error:
        if any((output / name).exists() for name in (_ANSWERS, _CHECKPOINT)):
            spent = _spent(_ledger_path(wanted, output), run, (output / _CHECKPOINT).exists())
            if spent and isinstance(error, PrivadaError):
                error.args = (f"{error} {spent}",)
            made = made and not spent
        if made and not holds_charges(output / LEDGER):  # before either, there is no charge
            shutil.rmtree(output)
        raise


def _rehearse(rows: Rows, wanted: Wanted, unknown: Open, output: Path, run: str) -> None:
    """Raise what queries and training would raise, on a copy of the ledger, before any charge."""
    path, budget = _ledger_path(wanted, output), _budget(wanted, rows.private.size)
    with _copied(path, budget) as copy:
        dummy_batch = inputs.rehearse(rows, wanted, unknown, copy, run)
        _trainer(wanted, dummy_batch, copy, run, None)


def _copied(path: Path, budget: Budget) -> Ledger:
    """Return a ledger in memory that holds what a file does, an empty one if there is no file."""
    if not path.exists():
        return Ledger(None, budget)
    with Ledger(path) as ledger:
        copy = Ledger(None, ledger.budget, dataset=ledger.dataset)
        held: dict[tuple[str, str], Tally] = defaultdict(Counter)
        for charge in ledger.charges():
            held[charge.run, charge.purpose][charge.event] += charge.count
        for (run, purpose), tally in held.items():
            copy.charge(tally, run=run, purpose=purpose, unit=ledger.unit or ROW)
    return copy


def _run(
    wanted: Wanted, rows: Rows, unknown: Open, ledger: Ledger, run: str, output: Path,
    progress: bool,
) -> Trained:  # fmt: skip
    data = _kept(inputs.prepare(rows, wanted, unknown, ledger=ledger, run=run), output)
    checkpoint = output / _CHECKPOINT
    resumed = checkpoint if checkpoint.exists() else None
    trainer, architecture = _trainer(wanted, data, ledger, run, resumed)
    if resumed is None:
        trainer.save(checkpoint)  # so that a run that is killed can go on
    try:
        every = max(1, trainer.steps // _CHECKPOINTS)
        trainer.fit(progress=progress, checkpoint=checkpoint, checkpoint_steps=every)
    except BudgetExceeded:
        if trainer.steps_done == 0:
            raise
        trainer.finish()  # it has paid for some steps twice, after a crash; what there is, counts
    trained = Trained(trainer, architecture, data, _metrics(trainer.model, data))
    with _writing(output):
        _write(output, trained)
        checkpoint.unlink(missing_ok=True)
    return trained


def _prepare(output: Path, resume: bool) -> bool:
    """Make the folder, or find the one to go on in; return whether it is new."""
    if not resume:
        refuse_taken(output)
        with _writing(output):
            output.mkdir()
        return True
    done = (output / "statement.json").exists() and not (output / _CHECKPOINT).exists()
    if done or not (output / _RUN).exists():
        raise CheckpointError(
            f"Expected an unfinished run in {str(output)!r}, got none. Start one without --resume, "
            "in another folder if this one exists."
        )
    return False


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """Say in words that a file of the folder cannot be written."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        words = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"Cannot write to {str(output)!r}: {words}. Make room, or check that it may be written."
        ) from error


def _facts(output: Path, **kinds: type) -> dict[str, Any]:
    """Return what the folder says of its run, which must have parts of the given kinds."""
    path = output / _RUN
    try:
        facts = dict(json.loads(path.read_text(encoding="utf-8")))
        if not all(isinstance(facts[name], kind) for name, kind in kinds.items()):
            raise TypeError
        return facts
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"Cannot read {str(path)!r}, which says how the run was begun: {type(error).__name__}. "
            "Restore it from a copy, and keep the folder: its ledger says what was spent."
        ) from None


def _keep_facts(output: Path, facts: dict[str, Any]) -> None:
    write_durably(output / _RUN, json.dumps(facts, indent=2) + "\n")


def _name_of_run(output: Path, table: Path, wanted: Wanted) -> str:
    """Return the name that all of it is charged under, kept in the folder."""
    if (output / _RUN).exists():
        return str(_facts(output, run=str)["run"])
    name = f"{wanted.method or 'dp-adam-wosm'}-{os.urandom(4).hex()}"
    _keep_facts(output, {"run": name, "table": table.name, **asdict(wanted)})
    return name


def _kept(data: Inputs, output: Path) -> Inputs:
    """Keep the schema in the folder with what it rests on; a resumed run has what was kept."""
    if (output / _SCHEMA).exists():
        kept = _facts(output, assumptions=list)["assumptions"]
        return replace(data, assumptions=tuple(kept))
    _keep_facts(output, {**_facts(output), "assumptions": list(data.assumptions)})
    write_durably(output / _SCHEMA, data.schema.to_toml(folder=output))
    return data


def _refuse_lost_ledger(wanted: Wanted, output: Path) -> None:
    """Raise if a run that may have been charged is to go on without the ledger it has."""
    path = _ledger_path(wanted, output)
    if path.exists() or not any((output / name).exists() for name in (_ANSWERS, _CHECKPOINT)):
        return
    began = _facts(output).get("ledger") or output / LEDGER
    raise LedgerError(
        f"Expected the ledger of the run in {str(output)!r}, got {str(path)!r}, which does not "
        f"exist. Give the one it was begun with, --ledger {began}, or restore that from a copy. A "
        "new one would forget what was spent."
    )


def _spent(path: Path, run: str, begun: bool) -> str:
    """Return in words what a run was charged, nothing if the ledger holds none of it.

    Once training has begun, its settings are fixed.
    """
    charged = count_charges(path, run)
    if not charged:
        return ""
    many = "release" if charged == 1 else "releases"
    return (
        f"What run {run!r} was charged before stays charged, {charged:,} {many} on the ledger "
        f"{str(path)!r}: keep the folder, and go on with --resume"
        f"{'' if begun else ', which takes other options too'}."
    )


def _ledger_path(wanted: Wanted, output: Path) -> Path:
    return output / LEDGER if wanted.ledger is None else Path(wanted.ledger)


def _ledger(table: Path, wanted: Wanted, output: Path, records: int) -> Ledger:
    path = _ledger_path(wanted, output)
    if path.exists():
        return Ledger(path)
    return Ledger(path, _budget(wanted, records), dataset=table.name.split(".")[0])


def _budget(wanted: Wanted, records: int) -> Budget:
    delta = default_delta(max(1, records)) if wanted.delta is None else wanted.delta
    return Budget(wanted.epsilon, delta)


def _trainer(
    wanted: Wanted, data: Inputs, ledger: Ledger, run: str, resumed: Path | None
) -> tuple[Trainer, Architecture]:
    chosen = defaults.settings(
        data.population, batch=wanted.batch_size, epochs=wanted.epochs, clip=wanted.clip,
        lr=wanted.lr,
    )  # fmt: skip
    method = chosen.method
    if wanted.method not in (None, "dp-adam-wosm"):
        assert wanted.method is not None
        method = defaults.named(wanted.method, data.public, lr=wanted.lr, clip=wanted.clip)
    hidden = wanted.hidden if wanted.model == "mlp" else ()
    features = int(data.train[0].shape[1])
    architecture = Architecture(wanted.model, features, data.outputs, hidden)
    with hidden_generator(make_source(wanted.seed, "weights"), torch.device("cpu")):
        model = architecture.build()
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss() if data.outputs > 1 else nn.MSELoss(),
        data.train,
        method=method,
        batch_size=chosen.batch_size,
        epochs=chosen.epochs,
        budget=_budget(wanted, data.population),
        ledger=ledger,
        seed=wanted.seed,
        population=data.population if data.leaves_out else None,
        unit=wanted.unit,
        run=run,
        resume=resumed,
    )
    return trainer, architecture


def _metrics(model: nn.Module, data: Inputs) -> dict[str, float]:
    """Return how the model does on rows that were declared public."""
    if data.public is None:
        return {}
    first = next(model.parameters())
    loaded = records.load(data.public, first.dtype, first.device)
    score = accuracy() if data.outputs > 1 else bounded_loss(nn.MSELoss(), 4.0)
    name = "accuracy" if data.outputs > 1 else "squared error of targets between -1 and 1"
    return {f"{name} on public rows": public_score(score, model, loaded)}


def _write(output: Path, trained: Trained) -> None:
    schema, trainer = trained.inputs.schema, trained.trainer
    target = schema.target
    save(
        output,
        trainer.model,
        trained.architecture,
        task=schema.task,
        classes=list(target.classes) if isinstance(target, tables.Classes) else None,
        features=list(schema.features),
        method=trainer.method.describe(),
    )
    asked = _facts(output)
    chosen = {
        "method": trainer.method.describe(),
        "batch_size": trainer.batch_size,
        "steps": trainer.steps,
        "noise_multiplier": trainer.noise_multiplier,
        "delta": trainer.statement().delta,
    }
    said = {name: value for name, value in asked.items() if value not in (None, [])}
    statement = trained.statement
    history = [asdict(step) for step in trainer.history]
    _keep_facts(output, said | chosen)
    texts = {
        "statement.txt": f"{statement}\n",
        "history.json": json.dumps(history) + "\n",
        "metrics.json": json.dumps(trained.metrics, indent=2) + "\n",
        "statement.json": statement.to_json() + "\n",
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
        "features": len(trained.inputs.schema.features),
        "statement": trained.statement.to_dict(),
    }


def show(trained: Trained, output: Path, console: Console) -> None:
    """Print what was done, and the statement."""
    trainer = trained.trainer
    console.print(
        f"Trained a {trained.architecture.kind} model on "
        f"{len(trained.inputs.schema.features)} features: "
        f"{trainer.method.describe()}, {trainer.steps_done:,} steps, noise multiplier "
        f"{number(trainer.noise_multiplier)}.",
        highlight=False,
    )
    for name, value in trained.metrics.items():
        console.print(f"{name}: {number(value)}", highlight=False)
    console.print(f"Everything is in {output}.\n", highlight=False)
    console.print(str(trained.statement), highlight=False, markup=False, soft_wrap=True)
