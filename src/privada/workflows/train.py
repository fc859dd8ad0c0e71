"""Training on a private table: from a file to a private model, its statement and its report."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privada import data as records
from privada import defaults, tables
from privada.accounting import Ledger, Statement
from privada.accounting.events import Tally
from privada.accounting.ledger import PLANNED, Place, exists
from privada.core.errors import BudgetExceeded, PrivadaError
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import make_source
from privada.core.ranks import refuse_several
from privada.core.validation import integer
from privada.execute.helpers import helpers
from privada.models import Architecture, save
from privada.query.executor import Execution
from privada.query.scores import Score, accuracy, bounded_loss, public_score
from privada.report import Entry, write, write_model_card
from privada.tables.files import write_durably
from privada.train.trainer import Trainer
from privada.workflows.declarations import declare_run, tally_of_run
from privada.workflows.folders import RunFolder, default_output, writing
from privada.workflows.options import TrainOptions
from privada.workflows.pending_queries import (
    PendingQueries,
    TrainingData,
    ask_and_encode,
    dry_run_data,
    pending_queries,
    unpaid_queries,
)
from privada.workflows.table_rows import TableRows, read_rows, with_person_of_schema

# A run that is killed loses at most one in so many of its steps.
_CHECKPOINTS = 50
_USUAL_METHOD = "dp-adam-wosm"


@dataclass(frozen=True)
class TrainedTable:
    """A model that was trained on a table, and what describes it.

    Attributes:
        trainer: the trainer, with the model, its history and the ledger.
        architecture: what the model is built of.
        data: the records that it was trained on, encoded. Private.
        metrics: figures on rows that were declared public, by name.
        output: the folder that everything is in.

    Example: see `train_table`.
    """

    trainer: Trainer
    architecture: Architecture
    data: TrainingData
    metrics: dict[str, float]
    output: Path

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
            "features": len(self.data.schema.features),
            "statement": self.statement.to_dict(),
        }


def train_table(
    table: str | os.PathLike[str],
    options: TrainOptions,
    output: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    progress: bool = False,
    processes: int = 1,
) -> TrainedTable:
    """Train a model on a private table, and write it with its statement to a folder.

    What no schema, public table or option tells of the columns is found by charged queries, within
    the same epsilon. Settings that are not given follow from the number of records, or of persons.
    This is what `privada train` does.

    Args:
        table: a file, or a folder of text, as `pv.tables.read` takes it.
        options: what is asked for.
        output: the output folder, which is created; by default the table's name and "-private".
        resume: go on with the stopped run in `output`, on its ledger. What was answered is not
            asked again.
        progress: show a bar.
        processes: how many processes of this machine compute the steps together, this one included.

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
    integer("processes", processes)
    options = with_person_of_schema(options)
    source = Path(table)
    place = default_output(source) if output is None else Path(output)
    folder = (RunFolder.reopen if resume else RunFolder.create)(place, options)
    run, made = "", False
    try:
        run = folder.run_name(source)
        folder.check_ledger()
        rows = read_rows(source, options, folder.schema)
        answers = tables.AnswerCache(folder.answers, when_lost=options.when_lost)
        budget = options.budget(rows.units)
        pending = pending_queries(rows, options, budget, answers).as_declared(folder.queries)
        ahead = None
        if not rows.complete or (folder.declares and not folder.checkpoint.exists()):
            ahead = _dry_run(rows, pending, folder, run)
        made = not exists(folder.ledger_place)
        with folder.open_ledger(budget, source.name.split(".")[0]) as ledger:
            answers.check_paid(ledger=ledger, run=run)  # a schema that is kept came of them
            if ahead is not None:
                _declare(ahead, pending, ledger, run, folder)
            data = ask_and_encode(rows, options, pending, ledger=ledger, run=run)
            return _train(_kept(data, folder), ledger, run, folder, progress, processes)
    except BaseException as error:
        charged = folder.charged_in_words(run) if folder.may_be_charged else ""
        if charged and isinstance(error, PrivadaError):
            error.args = (f"{error} {charged}",)
        if not resume and not charged:
            if made:
                folder.remove_new_ledger()
            folder.remove_if_unpaid()
        raise


def _dry_run(rows: TableRows, pending: PendingQueries, folder: RunFolder, run: str) -> Tally:
    """Return what the run is still going to be charged, known before any of it.

    What queries and training would raise is raised here, on a copy of the ledger. The plan depends
    on the number of units, the options and the charges so far, and on no answer: `dry_run_data` has
    none.
    """
    options = folder.options
    with folder.copied_ledger() as held, Ledger(None, kind=PLANNED) as planned:
        before = planned if held is None else held
        unpaid = unpaid_queries(rows, options, pending, before, run)
        trial, charged = before, unpaid
        if held is not None and held.declared(run) is not None:
            # declared or not, it can be charged here; `declare_run` says what is allowed
            trial, charged = planned, tally_of_run(held, run) + unpaid
        if charged:
            trial.charge(charged, run=run, purpose="statistics", unit=options.charged_unit)
        data = dry_run_data(rows, options, pending)
        trainer, _ = _make_trainer(options, data, trial, run, None)
        return unpaid + trainer.planned()


def _declare(
    ahead: Tally, pending: PendingQueries, ledger: Ledger, run: str, folder: RunFolder
) -> None:
    """Declare what is still to be charged, and keep how queries are asked: they stay as they are.

    A question that was paid for and whose answer was lost is paid for again, if that is asked for.
    """
    if ledger.declared(run) is not None and folder.queries is None:
        folder.keep_queries(pending.queries)
    lost = pending.answers.lost(ledger=ledger, run=run) > 0
    declare_run(ledger, run, ahead, interrupted=lost)


def _train(
    data: TrainingData,
    ledger: Ledger,
    run: str,
    folder: RunFolder,
    progress: bool,
    processes: int,
) -> TrainedTable:
    """Take all steps, and fill the folder."""
    checkpoint, options = folder.checkpoint, folder.options
    resumed = checkpoint if checkpoint.exists() else None
    with helpers(processes, _help, options, data, run, folder.ledger_place) as executor:
        trainer, architecture = _make_trainer(options, data, ledger, run, resumed, executor)
        every = max(1, trainer.steps // _CHECKPOINTS)
        _take_steps(trainer, progress=progress, checkpoint=checkpoint, checkpoint_steps=every)
    metrics = _public_metrics(trainer.model, data)
    trained = TrainedTable(trainer, architecture, data, metrics, folder.path)
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


def _kept(data: TrainingData, folder: RunFolder) -> TrainingData:
    """Keep the schema in the folder with what it rests on; a resumed run has what was kept."""
    if folder.schema.exists():
        kept = folder.facts(assumptions=list)["assumptions"]
        return replace(data, assumptions=tuple(kept))
    folder.keep_facts({**folder.facts(), "assumptions": list(data.assumptions)})
    write_durably(folder.schema, data.schema.to_toml(folder=folder.path))
    return data


def _make_trainer(
    options: TrainOptions,
    data: TrainingData,
    ledger: Ledger | Place,
    run: str,
    resumed: Path | None,
    executor: Execution | None = None,
) -> tuple[Trainer, Architecture]:
    chosen = defaults.settings(
        data.population, batch=options.batch_size, epochs=options.epochs, clip=options.clip,
        lr=options.lr, numbers=data.outputs == 1,
    )  # fmt: skip
    method = chosen.method
    if options.method not in (None, _USUAL_METHOD):
        assert options.method is not None
        method = defaults.named(options.method, data.public, lr=options.lr, clip=options.clip)
    hidden = options.hidden if options.model == "mlp" else ()
    features = int(data.train[0].shape[1])
    architecture = Architecture(options.model, features, data.outputs, hidden)
    with hidden_generator(make_source(options.seed, "weights"), torch.device("cpu")):
        model = architecture.build()
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss() if data.outputs > 1 else nn.MSELoss(),
        data.train,
        method=method,
        batch_size=chosen.batch_size,
        epochs=chosen.epochs,
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
    )
    return trainer, architecture


def table_score(outputs: int) -> Score:
    """Return accuracy, or the squared error of targets between -1 and 1."""
    return accuracy() if outputs > 1 else bounded_loss(nn.MSELoss(), 4.0)


def _public_metrics(model: nn.Module, data: TrainingData) -> dict[str, float]:
    """Return how the model does on rows that were declared public."""
    if data.public is None:
        return {}
    first = next(model.parameters())
    loaded = records.load(data.public, first.dtype, first.device)
    name = "accuracy" if data.outputs > 1 else "squared error of targets between -1 and 1"
    return {f"{name} on public rows": public_score(table_score(data.outputs), model, loaded)}


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
        "metrics.json": json.dumps(trained.metrics, indent=2) + "\n",
        "statement.json": statement.to_json() + "\n",
    }
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    write([Entry.of_folder(output)], output / "report.html")
    write_model_card(output)
