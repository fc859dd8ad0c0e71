"""Tuning on a private table: settings are chosen at a price that is paid before the first look."""

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from privada import defaults, tables
from privada.accounting import Ledger, Statement
from privada.accounting.ledger import exists
from privada.methods import get
from privada.models import Architecture, save
from privada.report import Entry, write, write_model_card
from privada.selection.candidates import Candidate
from privada.selection.prices import in_each_way
from privada.selection.search import Selection, select
from privada.workflows.charges import telling_charges
from privada.workflows.folders import new_folder, refuse_existing
from privada.workflows.options import TuneOptions
from privada.workflows.pending_queries import TrainingData, encode_known
from privada.workflows.table_rows import read_rows, with_person_of_schema
from privada.workflows.train import table_score

# What is chosen among where nothing is said. Methods whose steps have a size of their own take
# rates around the default one; for the others they go a long way.
_OWN_STEP_SIZE = ("dp-adam", "dp-adam-wosm", "dp-adam-bc", "dp-rmsprop", "dp-adagrad")
_RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_CLIPS = (0.1, 0.5, 1.0)
_USUAL_METHOD = "dp-adam-wosm"
RESUMES = "The same command goes on if it has --state."


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

    Example: see `tune_table`.
    """

    selection: Selection
    architecture: Architecture
    schema: tables.Schema
    space: dict[str, list[Any]]
    assumptions: tuple[str, ...] = ()

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
            "model": {"kind": self.architecture.kind, "inputs": self.architecture.inputs},
        }


def tune_table(
    table: str | os.PathLike[str],
    options: TuneOptions,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: bool = False,
) -> TunedTable:
    """Choose settings on a private table, at a price that is paid before the first look.

    Each candidate is trained privately and scored privately on records that none is trained on.
    This is what `privada tune` does.

    Args:
        table: a file, or a folder of text, as `pv.tables.read` takes it.
        options: what is asked for.
        output: a folder for the model, the statement and the prices, which is created; none is
            written without it.
        progress: show a bar.

    Returns:
        The best model, its settings and what it cost to find.

    Guarantee: the whole search, scores included, costs what `options.epsilon` says and is charged
    before it begins; see `pv.selection.select`.

    Edge cases: what the columns are has to be known, by a schema or a public table: a search does
    not estimate bounds or classes. What is wrong is said before the charge. An error after it says
    what stays charged.

    Example:
        >>> from pathlib import Path
        >>> import privada as pv
        >>> rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(600)]
        >>> _ = Path("patients.csv").write_text("age,sick\\n" + "\\n".join(rows))
        >>> _ = Path("patients.toml").write_text(
        ...     '[target]\\ncolumn = "sick"\\nclasses = ["no", "yes"]\\n'
        ...     '[columns.age]\\nkind = "number"\\nlow = 0\\nhigh = 100\\n'
        ... )
        >>> options = pv.workflows.TuneOptions(
        ...     epsilon=2.0, schema="patients.toml", epochs=1, space={"lr": [0.1, 1.0]}
        ... )
        >>> tuned = pv.workflows.tune_table("patients.csv", options)
        >>> tuned.selection.epsilon() <= 2.0
        True
    """
    options = with_person_of_schema(options)
    place = None if output is None else Path(output)
    with telling_charges(options.ledger, RESUMES):
        return _tune(Path(table), options, place, progress)


def _tune(table: Path, options: TuneOptions, output: Path | None, progress: bool) -> TunedTable:
    if output is not None:
        refuse_existing(output)
    method = options.method or _USUAL_METHOD
    get(method)
    if options.ledger is not None and exists(options.ledger):
        with Ledger(options.ledger) as opened:
            opened.check_unit(options.charged_unit)
    data = encode_known(read_rows(table, options), options)
    factory = CandidateFactory(
        method=method,
        model=options.model,
        inputs=len(data.schema.features),
        outputs=data.outputs,
        batch_size=defaults.batch_size(data.population)
        if options.batch_size is None
        else options.batch_size,
        epochs=defaults.EPOCHS if options.epochs is None else options.epochs,
        hidden=options.hidden,
        public=data.public,
    )
    trained_on = data.population * (1 - options.validation)
    steps = math.ceil(factory.epochs * trained_on / factory.batch_size)
    space = dict(options.space) or default_space(method, max(1, steps))
    found = _select(factory, data, space, options, progress)
    architecture = factory.architecture(found.settings.get("hidden"))
    tuned = TunedTable(found, architecture, data.schema, space, data.assumptions)
    if output is not None:
        _write_results(output, tuned, data.population)
    return tuned


def _select(
    factory: CandidateFactory,
    data: TrainingData,
    space: dict[str, list[Any]],
    options: TuneOptions,
    progress: bool,
) -> Selection:
    return select(
        factory,
        data.train,
        space=space,
        validation=options.validation,
        score=table_score(data.outputs),
        how=options.how,
        candidates=options.candidates,
        budget=options.budget(data.population),
        ledger=options.ledger,
        state=options.state,
        seed=options.seed,
        unit=options.unit,
        groups=data.persons,
        rows_per_unit=options.rows_per_person,
        n_jobs=options.jobs,
        progress=progress,
    )


def _write_results(output: Path, tuned: TunedTable, units: int) -> None:
    found, schema = tuned.selection, tuned.schema
    target = schema.target
    with new_folder(output) as folder:
        save(
            folder,
            found.model,
            tuned.architecture,
            task=schema.task,
            classes=list(target.classes) if isinstance(target, tables.Classes) else None,
            features=list(schema.features),
            settings=found.settings,
            units=units,
        )
        (folder / "schema.toml").write_text(schema.to_toml(folder=output), encoding="utf-8")
        (folder / "statement.txt").write_text(f"{tuned.statement}\n", encoding="utf-8")
        (folder / "statement.json").write_text(tuned.statement.to_json() + "\n", encoding="utf-8")
        (folder / "tuning.json").write_text(
            json.dumps(tuned.to_dict(), indent=2) + "\n", encoding="utf-8"
        )
        write([Entry.of_folder(folder, name=output.name)], folder / "report.html")
        write_model_card(folder, name=output.name)
