"""Tuning on a private table: settings are chosen at a price that is paid before the first look."""

import json
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from privada import defaults, tables
from privada.accounting import Ledger, Statement
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError
from privada.core.ranks import refuse_several
from privada.methods import get
from privada.models import Architecture, save
from privada.report import Entry, write, write_model_card
from privada.report.entries import with_baselines
from privada.selection.candidates import Candidate
from privada.selection.prices import in_each_way
from privada.selection.search import Selection, dry_run_search, select
from privada.workflows.findings import Findings
from privada.workflows.folders import RunFolder, default_output, writing
from privada.workflows.options import USUAL_METHOD, TuneOptions
from privada.workflows.pending_queries import TrainingData
from privada.workflows.table_rows import with_person_of_schema
from privada.workflows.table_runs import Work, run_on_table
from privada.workflows.table_source import as_source
from privada.workflows.train import public_metrics, table_score

# What is chosen among where nothing is said. Methods whose steps have a size of their own take
# rates around the default one; for the others they go a long way.
_OWN_STEP_SIZE = ("dp-adam", "dp-adam-wosm", "dp-adam-bc", "dp-rmsprop", "dp-adagrad")
_RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_CLIPS = (0.1, 0.5, 1.0)


@dataclass(frozen=True)
class CandidateFactory:
    """Makes candidates for a table: a model of its width, trained by one method."""

    method: str
    model: str
    inputs: int
    outputs: int
    batch_size: float
    epochs: float
    hidden: tuple[int, ...]
    public: Any = None

    def architecture(self, hidden: int | None = None) -> Architecture:
        """Return the model's description."""
        widths = self.hidden if hidden is None else (int(hidden),)
        return Architecture(
            self.model, self.inputs, self.outputs, widths if self.model == "mlp" else ()
        )

    def __call__(
        self,
        batch_size: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        hidden: int | None = None,
        **settings: Any,
    ) -> Candidate:
        """Return the candidate of some settings; those not of the run are the method's."""
        method = defaults.named(self.method, self.public, **settings)
        length = self.epochs if epochs is None and steps is None else epochs
        return Candidate(
            self.architecture(hidden).build(),
            nn.CrossEntropyLoss() if self.outputs > 1 else nn.MSELoss(),
            method,
            batch_size=self.batch_size if batch_size is None else batch_size,
            epochs=length,
            steps=steps,
        )


def default_space(method: str, steps: int) -> dict[str, list[Any]]:
    """Return what to choose among where nothing is said: learning rates and clip norms.

    Args:
        method: the name of a method.
        steps: how many steps a run takes.

    Returns:
        The values by name, as `TuneOptions.space` takes them.

    Guarantee: it depends on public figures alone.

    Example:
        >>> from privada.workflows import default_space
        >>> default_space("dp-adam-wosm", steps=900)
        {'lr': [0.003, 0.01, 0.03], 'clip': [0.1, 0.5, 1.0]}
    """
    rates = list(_RATES)
    if method in _OWN_STEP_SIZE:
        usual = defaults.learning_rate(steps)
        rates = [float(f"{factor * usual:.3g}") for factor in (0.3, 1.0, 3.0)]
    return {"lr": rates, "clip": list(_CLIPS)}


@dataclass(frozen=True)
class TunedTable:
    """What a search on a table has found, and what describes it.

    Attributes:
        selection: the best model, its settings, its score and its price.
        architecture: what the model is built of.
        schema: what the columns are.
        space: what was chosen among.
        assumptions: what the schema rests on, in words.
        metrics: figures on rows that were declared public, by name.
        output: the folder that everything is in.
        baselines: what a model without features reaches on these rows, by the same names.

    Example: see `tune_table`.
    """

    selection: Selection
    architecture: Architecture
    schema: tables.Schema
    space: dict[str, list[Any]]
    assumptions: tuple[str, ...]
    metrics: dict[str, float]
    output: Path
    baselines: dict[str, float] = field(default_factory=dict)

    @property
    def statement(self) -> Statement:
        """The search's statement, with what the schema rests on."""
        said = self.selection.statement
        return replace(said, assumptions=(*said.assumptions, *self.assumptions))

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        found = self.selection
        return {
            "settings": found.settings,
            "score": found.score,
            "score_std": found.score_std,
            "noise_multiplier": found.noise_multiplier,
            "how": found.price.how,
            "price": {"epsilon": found.price.epsilon, "delta": found.price.delta},
            "expected_runs": found.price.runs,
            "candidates": found.candidates,
            "grid": self.space,
            "prices": in_each_way(found.run_charges, found.price.runs, found.price.delta),
            "tried": [{"settings": each.settings, "score": each.score} for each in found.tried],
            "epsilon": found.epsilon(),
            "metrics": self.metrics,
            "baselines": self.baselines,
            "model": {"kind": self.architecture.kind, "inputs": self.architecture.inputs},
        }


def tune_table(
    table: Any,
    options: TuneOptions,
    output: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    progress: bool = False,
    confirm: Callable[[Findings], bool] | None = None,
) -> TunedTable:
    """Choose settings on a private table, at a price that is paid before the first look.

    What no schema, public table or option tells of the columns is found by charged queries first,
    within the same epsilon. Each candidate is trained privately and scored privately on records
    that none is trained on. This is what `privada tune` does.

    Args:
        table: a file, a folder, a database or a frame, as `pv.tables.read` takes it.
        options: what is asked for.
        output: the output folder, which is created; by default the table's name and "-tuned".
        resume: go on with the stopped search in `output`, on its ledger. What was answered is not
            asked again, and what was paid for is not charged again.
        progress: show a bar.
        confirm: is told what a new search makes of the table, before anything is charged, and says
            whether to go on.

    Returns:
        The best model, its settings and what it cost to find.

    Guarantee: queries and search, scores included, together cost at most `options.epsilon` at the
    budget's delta, for each row or, with `options.person`, for all rows of a person. On a ledger
    that is made for the search both are declared before the first query; the search is calibrated
    to what the queries leave, by the joint price of all. See `pv.selection.select`.

    Edge cases: what can be wrong, a search that does not fit included, is looked for before the
    first charge, and then nothing is left. After a charge the folder stays, and the error says what
    was charged. Until the search is done the folder holds a file `checkpoint` that is private.
    Errors name options as the command line spells them.

    Example:
        >>> from pathlib import Path
        >>> import privada as pv
        >>> rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(600)]
        >>> _ = Path("patients.csv").write_text("age,sick\\n" + "\\n".join(rows))
        >>> options = pv.workflows.TuneOptions(
        ...     epsilon=2.0, target="sick", epochs=1, space={"lr": [0.1, 1.0]}
        ... )
        >>> tuned = pv.workflows.tune_table("patients.csv", options)
        >>> tuned.statement.epsilon <= 2.0, tuned.output.name
        (True, 'patients-tuned')
    """
    refuse_several(
        "tuning on a table", "Leave out torchrun: runs go side by side by the option jobs instead."
    )
    options = with_person_of_schema(options)
    method = options.method or USUAL_METHOD
    get(method)
    source = as_source(table)
    place = default_output(source, "tuned") if output is None else Path(output)
    if options.state is not None:
        warnings.warn(
            "state is deprecated: a search keeps its state in its output folder. Leave it out, and "
            "go on with a stopped search by resume=True (--resume).",
            DeprecationWarning,
            stacklevel=2,
        )
        resume = resume or RunFolder.unfinished(place)

    def planned(data: TrainingData, trial: Ledger, run: str) -> Tally:
        return dry_run_search(**_asked(options, data), ledger=trial, run=run)

    def done(data: TrainingData, ledger: Ledger, run: str, folder: RunFolder) -> TunedTable:
        found = select(
            **_asked(options, data),
            ledger=ledger,
            run=run,
            state=folder.checkpoint,
            progress=progress,
        )
        factory = _factory(options, data)
        metrics, baselines = public_metrics(found.model, data)
        tuned = TunedTable(
            found,
            factory.architecture(found.settings.get("hidden")),
            data.schema,
            _space(factory, options, data),
            data.assumptions,
            metrics,
            folder.path,
            baselines,
        )
        with writing(folder.path):
            _write_results(tuned, factory, folder, data.population)
            folder.checkpoint.unlink(missing_ok=True)
        return tuned

    return run_on_table(source, options, place, Work(planned, done), resume=resume, confirm=confirm)


def _factory(options: TuneOptions, data: TrainingData) -> CandidateFactory:
    size, epochs = options.batch_size, options.epochs
    return CandidateFactory(
        method=options.method or USUAL_METHOD,
        model=options.model,
        inputs=int(data.train[0].shape[1]),
        outputs=data.outputs,
        batch_size=defaults.batch_size(data.population) if size is None else size,
        epochs=defaults.EPOCHS if epochs is None else epochs,
        hidden=options.hidden,
        public=data.public,
    )


def _space(
    factory: CandidateFactory, options: TuneOptions, data: TrainingData
) -> dict[str, list[Any]]:
    """Return what is chosen among: what is asked for, or the default without what is fixed."""
    fixed = {name: getattr(options, name) for name in ("lr", "clip")}
    fixed = {name: [value] for name, value in fixed.items() if value is not None}
    asked = dict(options.space)
    twice = sorted(set(fixed) & set(asked))
    if twice:
        name = twice[0]
        raise ArgumentError(
            f"Expected one of --{name} and --set {name}=..., got both. --{name} fixes it, --set "
            "chooses."
        )
    if not asked:
        trained_on = data.population * (1 - options.validation)
        steps = max(1, math.ceil(factory.epochs * trained_on / factory.batch_size))
        asked = default_space(factory.method, steps)
    return asked | fixed


def _asked(options: TuneOptions, data: TrainingData) -> dict[str, Any]:
    """Return what a search is asked for, the ledger left out."""
    factory = _factory(options, data)
    return {
        "recipe": factory,
        "data": data.train,
        "space": _space(factory, options, data),
        "validation": options.validation,
        "score": table_score(data.outputs),
        "how": options.how,
        "candidates": options.candidates,
        "budget": options.budget(data.population),
        "seed": options.seed,
        "unit": options.unit,
        "groups": data.persons,
        "rows_per_unit": options.rows_per_person,
        "population": data.population if data.leaves_out else None,
        "n_jobs": options.jobs,
    }


def _write_results(
    tuned: TunedTable, factory: CandidateFactory, folder: RunFolder, units: int
) -> None:
    found, schema, output = tuned.selection, tuned.schema, folder.path
    target = schema.target
    save(
        output,
        found.model,
        tuned.architecture,
        task=schema.task,
        classes=list(target.classes) if isinstance(target, tables.Classes) else None,
        features=list(schema.features),
        method=factory(**found.settings).method.describe(),
        settings=found.settings,
        units=units,
    )
    said = {name: value for name, value in folder.settings().items() if value not in (None, [])}
    folder.keep_facts(said | {"delta": found.price.delta})
    texts = {
        "statement.txt": f"{tuned.statement}\n",
        "metrics.json": json.dumps(with_baselines(tuned.metrics, tuned.baselines), indent=2) + "\n",
        "tuning.json": json.dumps(tuned.to_dict(), indent=2) + "\n",
        "statement.json": tuned.statement.to_json() + "\n",
    }
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    write([Entry.of_folder(output)], output / "report.html")
    write_model_card(output)
