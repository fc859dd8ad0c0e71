"""Training on a private table: from a file to a private model, its statement and its report."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privada import defaults, tables
from privada.accounting import Ledger, Statement
from privada.accounting.events import Tally
from privada.accounting.ledger import Place
from privada.core.errors import ArgumentError, BudgetExceeded
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import make_source
from privada.core.ranks import refuse_several
from privada.core.validation import integer
from privada.execute.helpers import helpers
from privada.methods import PrivateNewton
from privada.metrics import Validation, accuracy, auc, r2
from privada.metrics.metric import metric
from privada.metrics.validation import PublicEvaluator, figures_on
from privada.models import Architecture, save
from privada.query.executor import Execution
from privada.query.scores import Score, bounded_loss
from privada.query.scores import accuracy as charged_accuracy
from privada.report import Entry, write, write_model_card
from privada.report.entries import EVALUATIONS, figures_of, with_baselines
from privada.train.callbacks import Callback, checked
from privada.train.trainer import Trainer
from privada.workflows.findings import Findings
from privada.workflows.folders import RunFolder, default_output, writing
from privada.workflows.options import USUAL_METHOD, TrainOptions
from privada.workflows.pending_queries import TrainingData
from privada.workflows.table_rows import with_person_of_schema
from privada.workflows.table_runs import Work, run_on_table
from privada.workflows.table_source import as_source

# A run that is killed loses at most one in so many of its steps.
_CHECKPOINTS = 50
_PUBLIC = "public rows"


@dataclass(frozen=True)
class TrainedTable:
    """A model that was trained on a table, and what describes it.

    Attributes:
        trainer: the trainer, with the model, its history and the ledger.
        architecture: what the model is built of.
        data: the records that it was trained on, encoded. Private.
        metrics: figures on rows that were declared public, by name.
        baselines: what a model without inputs reaches on them, by the same names.
        output: the folder that everything is in.

    Example: see `train_table`.
    """

    trainer: Trainer
    architecture: Architecture
    data: TrainingData
    metrics: dict[str, float]
    output: Path
    baselines: dict[str, float] = field(default_factory=dict)

    @property
    def statement(self) -> Statement:
        """The trainer's statement, with what the schema rests on."""
        said = self.trainer.statement()
        return replace(said, assumptions=(*said.assumptions, *self.data.assumptions))

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        trainer = self.trainer
        return {
            "epsilon": trainer.epsilon(),
            "steps": trainer.steps_done,
            "noise_multiplier": trainer.noise_multiplier,
            "method": trainer.method.describe(),
            "metrics": self.metrics,
            "baselines": self.baselines,
            "features": len(self.data.schema.features),
            "statement": self.statement.to_dict(),
        }


def train_table(
    table: Any,
    options: TrainOptions,
    output: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    progress: bool | None = False,
    processes: int = 1,
    confirm: Callable[[Findings], bool] | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainedTable:
    """Train a model on a private table, and write it with its statement to a folder.

    What no schema, public table or option tells of the columns is found by charged queries, within
    the same epsilon. Settings that are not given follow from the number of records, or of persons.
    This is what `privada train` does.

    Args:
        table: a file, a folder, a database or a frame, as `pv.tables.read` takes it.
        options: what is asked for.
        output: the output folder, which is created; by default the table's name and "-private".
        resume: go on with the stopped run in `output`, on its ledger. What was answered is not
            asked again.
        progress: whether to show a bar; None for one on a terminal.
        callbacks: what is called between the steps, as for `Trainer.fit`.
        processes: how many processes of this machine compute the steps together, this one included.
        confirm: is told what a new run makes of the table, before anything is charged, and says
            whether to go on.

    Returns:
        The trained model, its statement and its metrics.

    Guarantee: the model, and everything else in the folder, is (epsilon, delta)-differentially
    private as its statement says, for each row or, with `options.person`, for all rows of a person.
    Every query is charged to the ledger, durably, before a private value goes into it. On a ledger
    that is made for the run, queries and training are declared together before the first of them.

    Edge cases: what can be wrong is looked for before the first charge, and then nothing is left.
    After a charge the folder stays, and the error says what was charged. A run that was killed
    pays again for the steps that it lost, within its own budget. Errors name options as the command
    line spells them.

    Example:
        >>> from pathlib import Path
        >>> import privada as pv
        >>> rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(600)]
        >>> _ = Path("patients.csv").write_text("age,sick\\n" + "\\n".join(rows))
        >>> options = pv.workflows.TrainOptions(
        ...     epsilon=2.0, target="sick", classes=("no", "yes"), epochs=2
        ... )
        >>> trained = pv.workflows.train_table("patients.csv", options)
        >>> trained.statement.epsilon <= 2.0, trained.output.name
        (True, 'patients-private')
    """
    refuse_several(
        "training on a table", "Leave out torchrun and give the number of processes instead."
    )
    if integer("processes", processes) > 1 and options.method == PrivateNewton.name:
        raise ArgumentError(
            f"Expected processes=1 with method='newton', which works in one, got "
            f"processes={processes}. Leave it out. Nothing was charged."
        )
    checked(callbacks)
    options = with_person_of_schema(options)
    source = as_source(table)
    place = default_output(source) if output is None else Path(output)
    how = {"progress": progress, "callbacks": callbacks}

    def planned(data: TrainingData, trial: Ledger, run: str) -> Tally:
        trainer, _ = _make_trainer(options, data, trial, run, None)
        return trainer.planned()

    def done(data: TrainingData, ledger: Ledger, run: str, folder: RunFolder) -> TrainedTable:
        return _train(options, data, ledger, run, folder, processes, how)

    return run_on_table(source, options, place, Work(planned, done), resume=resume, confirm=confirm)


def _train(
    options: TrainOptions,
    data: TrainingData,
    ledger: Ledger,
    run: str,
    folder: RunFolder,
    processes: int,
    how: dict[str, Any],
) -> TrainedTable:
    """Take all steps, and fill the folder."""
    checkpoint = folder.checkpoint
    resumed = checkpoint if checkpoint.exists() else None
    with helpers(processes, _help, options, data, run, folder.ledger_place) as executor:
        trainer, architecture = _make_trainer(options, data, ledger, run, resumed, executor)
        every = max(1, trainer.steps // _CHECKPOINTS)
        _take_steps(trainer, **how, checkpoint=checkpoint, checkpoint_steps=every)
    reached: dict[str, dict[str, float]] = {"metrics": {}, "baselines": {}}
    if trainer.validation is not None:
        reached = figures_of(trainer.evaluate(), _PUBLIC)
    trained = TrainedTable(
        trainer, architecture, data, reached["metrics"], folder.path, reached["baselines"]
    )
    with writing(folder.path):
        _write_results(trained, folder)
        checkpoint.unlink(missing_ok=True)
    return trained


def _take_steps(trainer: Trainer, **how: Any) -> None:
    """Take all steps that the budget allows."""
    try:
        trainer.fit(**how)
    except BudgetExceeded:
        if trainer.steps_done == 0:
            raise
        trainer.finish()  # it has paid for some steps twice, after a crash; what there is, counts


def _help(
    executor: Execution, options: TrainOptions, data: TrainingData, run: str, ledger: Place
) -> None:
    """Compute a share of the steps, in another process. The ledger is only named, never opened."""
    trainer, _ = _make_trainer(options, data, ledger, run, None, executor)
    _take_steps(trainer)


def _make_trainer(
    options: TrainOptions,
    data: TrainingData,
    ledger: Ledger | Place,
    run: str,
    resumed: Path | None,
    executor: Execution | None = None,
) -> tuple[Trainer, Architecture]:
    features = int(data.train[0].shape[1])
    chosen = _settings(options, data, features)
    hidden = options.hidden if options.model == "mlp" else ()
    architecture = Architecture(options.model, features, data.outputs, hidden)
    with hidden_generator(make_source(options.seed, "weights"), torch.device("cpu")):
        model = architecture.build()
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss() if data.outputs > 1 else nn.MSELoss(),
        data.train,
        method=chosen.method,
        batch_size=chosen.batch_size,
        epochs=chosen.epochs,
        sampling=chosen.sampling,
        budget=options.budget(data.population),
        ledger=ledger,
        seed=options.seed,
        population=data.population if data.leaves_out else None,
        unit=options.unit,
        run=run,
        resume=resumed,
        groups=data.persons,
        rows_per_unit=options.rows_per_person,
        executor=executor,
        validation=None if data.public is None else _PublicRows(data.public, **_measured(data)),
    )
    return trainer, architecture


def _settings(options: TrainOptions, data: TrainingData, features: int) -> defaults.Defaults:
    """Return what to train with: what is asked for, and what suits the table for the rest."""
    asked: dict[str, Any] = {
        "batch": options.batch_size, "epochs": options.epochs, "clip": options.clip,
        "lr": options.lr,
    }  # fmt: skip
    budget = options.budget(data.population)
    if options.method == PrivateNewton.name:
        return defaults.newton(data.population, features, data.outputs, budget, **asked)
    usual = defaults.settings(
        data.population, numbers=data.outputs == 1,
        linear=data.looks and options.model == "linear", budget=budget, **asked,
    )  # fmt: skip
    if options.method in (None, USUAL_METHOD):
        return usual
    assert options.method is not None
    method = defaults.named(options.method, data.public, lr=options.lr, clip=options.clip)
    return replace(usual, method=method)


def table_score(outputs: int) -> Score:
    """Return accuracy, or the squared error of targets between -1 and 1."""
    return charged_accuracy() if outputs > 1 else bounded_loss(nn.MSELoss(), 4.0)


def public_metrics(
    model: nn.Module, data: TrainingData
) -> tuple[dict[str, float], dict[str, float]]:
    """Return how the model does on rows that were declared public, and the baselines."""
    if data.public is None:
        return {}, {}
    metrics, baselines = (
        {f"{name} on {_PUBLIC}": value for name, value in found.items() if isfinite(value)}
        for found in figures_on(model, _PublicRows(data.public, **_measured(data)))
    )
    return metrics, baselines


class _PublicRows(Validation):
    """Rows that were compared with the private ones as a table, or are a part of it by a word."""

    def on(self, model: nn.Module, loss: Any, private: Sequence[Any], load: Any) -> PublicEvaluator:
        """Return what evaluates a model on these rows."""
        return super().on(model, loss, (), load)


def _measured(data: TrainingData) -> dict[str, Any]:
    """Return what is measured on public rows."""
    if data.outputs == 1:
        name = "squared error of targets between -1 and 1"
        return {"metrics": (replace(metric(table_score(1)), name=name), r2())}
    return {"metrics": (accuracy(), auc()) if data.outputs == 2 else (accuracy(),)}


def _write_results(trained: TrainedTable, folder: RunFolder) -> None:
    schema, trainer = trained.data.schema, trained.trainer
    target, output = schema.target, folder.path
    save(
        output,
        trainer.model,
        trained.architecture,
        task=schema.task,
        classes=list(target.classes) if isinstance(target, tables.Classes) else None,
        features=list(schema.features),
        method=trainer.method.describe(),
        units=trained.data.population,
    )
    chosen = {
        "method": trainer.method.describe(),
        "batch_size": trainer.batch_size,
        "steps": trainer.steps,
        "noise_multiplier": trainer.noise_multiplier,
        "delta": trainer.statement().delta,
    }
    said = {name: value for name, value in folder.settings().items() if value not in (None, [])}
    statement = trained.statement
    history = [asdict(step) for step in trainer.history]
    folder.keep_facts(said | chosen)
    texts = {
        "statement.txt": f"{statement}\n",
        "history.json": json.dumps(history) + "\n",
        "metrics.json": json.dumps(with_baselines(trained.metrics, trained.baselines), indent=2)
        + "\n",
        "statement.json": statement.to_json() + "\n",
    }
    if trainer.evaluations:
        reached = [
            {"step": each.step, **figures_of(each, _PUBLIC)["metrics"]}
            for each in trainer.evaluations
        ]
        texts[EVALUATIONS] = json.dumps(reached) + "\n"
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    write([Entry.of_folder(output)], output / "report.html")
    write_model_card(output)
