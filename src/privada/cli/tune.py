"""`privada tune`: choose settings on a private table, at a price that is paid before."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Shown
from torch import nn

from privada import defaults, tables
from privada.accounting import Budget
from privada.cli.folders import new_folder, refuse_taken
from privada.cli.printing import print_table
from privada.core.errors import ArgumentError
from privada.core.formatting import number
from privada.methods import get
from privada.models import Architecture, save
from privada.query.scores import Score, accuracy, bounded_loss
from privada.report import Entry, write
from privada.selection.candidates import Candidate
from privada.selection.planning import default_delta
from privada.selection.prices import in_each_way
from privada.selection.search import Selection, select

# What is chosen among where nothing is said. Methods whose steps have a size of their own take
# rates around the default one; for the others they go a long way.
_OWN_STEP_SIZE = ("dp-adam", "dp-adam-wosm", "dp-adam-bc", "dp-rmsprop", "dp-adagrad")
_RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_CLIPS = (0.1, 0.5, 1.0)
_HIDDEN = 64


@dataclass(frozen=True)
class Recipe:
    """Makes candidates for a table: a model of its width, trained by one method."""

    method: str
    model: str
    inputs: int
    outputs: int
    batch_size: float
    epochs: float
    hidden: int

    def architecture(self, hidden: int | None = None) -> Architecture:
        """Return the model's description."""
        width = self.hidden if hidden is None else hidden
        return Architecture(
            self.model, self.inputs, self.outputs, (int(width),) if self.model == "mlp" else ()
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
        method = defaults.named(self.method, **settings)
        length = self.epochs if epochs is None and steps is None else epochs
        return Candidate(
            self.architecture(hidden).build(),
            nn.CrossEntropyLoss() if self.outputs > 1 else nn.MSELoss(),
            method,
            batch_size=self.batch_size if batch_size is None else batch_size,
            epochs=length,
            steps=steps,
        )


def parsed(choices: list[str]) -> dict[str, list[Any]]:
    """Return a grid from words such as "lr=0.1,1".

    Example:
        >>> from privada.cli.tune import parsed
        >>> parsed(["lr=0.1,1", "clip=1"])
        {'lr': [0.1, 1], 'clip': [1]}
    """
    grid: dict[str, list[Any]] = {}
    for choice in choices:
        name, equals, values = choice.partition("=")
        listed = [_value(part) for part in values.split(",") if part.strip()]
        if not equals or not name.strip() or not listed:
            raise ArgumentError(
                f"Expected --set name=value,value, got {choice!r}. Write --set lr=0.1,1,10."
            )
        grid[name.strip().replace("-", "_")] = listed
    return grid


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def default_grid(method: str, steps: int) -> dict[str, list[Any]]:
    """Return what to choose among where nothing is said.

    Example:
        >>> from privada.cli.tune import default_grid
        >>> default_grid("dp-adam-wosm", steps=900)
        {'lr': [0.003, 0.01, 0.03], 'clip': [0.1, 0.5, 1.0]}
    """
    rates = list(_RATES)
    if method in _OWN_STEP_SIZE:
        usual = defaults.learning_rate(steps)
        rates = [float(f"{factor * usual:.3g}") for factor in (0.3, 1.0, 3.0)]
    return {"lr": rates, "clip": list(_CLIPS)}


@dataclass(frozen=True)
class Tuned:
    """What was found, and what describes it."""

    selection: Selection
    architecture: Architecture
    schema: tables.Schema
    grid: dict[str, list[Any]]


def run_tune(
    table: Path,
    *,
    schema: Path,
    epsilon: float,
    delta: float | None,
    method: str,
    model: str,
    choices: list[str],
    batch_size: float | None,
    epochs: float | None,
    hidden: int | None,
    how: str,
    candidates: float | None,
    validation: float,
    ledger: Path | None,
    state: Path | None,
    output: Path | None,
    jobs: int | None,
    seed: int | None,
    progress: bool,
) -> Tuned:
    """Search, and write the folder of results if one is asked for."""
    if output is not None:
        refuse_taken(output)
    get(method)
    described = tables.Schema.read(schema)
    encoded = tables.encode(tables.read(table, schema=described), described)
    records = len(encoded.targets)
    target = described.target
    outputs = len(target.classes) if isinstance(target, tables.Classes) else 1
    recipe = Recipe(
        method=method,
        model=model,
        inputs=len(encoded.names),
        outputs=outputs,
        batch_size=defaults.batch_size(records) if batch_size is None else batch_size,
        epochs=defaults.EPOCHS if epochs is None else epochs,
        hidden=_HIDDEN if hidden is None else hidden,
    )
    steps = math.ceil(recipe.epochs * records * (1 - validation) / recipe.batch_size)
    grid = parsed(choices) or default_grid(method, max(1, steps))
    found = select(
        recipe,
        encoded.data,
        space=grid,
        validation=validation,
        score=_score(outputs),
        how=how,
        candidates=candidates,
        budget=Budget(epsilon, default_delta(records) if delta is None else delta),
        ledger=ledger,
        state=state,
        seed=seed,
        n_jobs=jobs,
        progress=progress,
    )
    architecture = recipe.architecture(found.settings.get("hidden"))
    tuned = Tuned(found, architecture, described, grid)
    if output is not None:
        _write(output, tuned)
    return tuned


def _score(outputs: int) -> Score:
    """Return accuracy, or the squared error of targets between -1 and 1."""
    return accuracy() if outputs > 1 else bounded_loss(nn.MSELoss(), 4.0)


def _write(output: Path, tuned: Tuned) -> None:
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
        )
        (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
        (folder / "statement.txt").write_text(f"{found.statement}\n", encoding="utf-8")
        (folder / "statement.json").write_text(found.statement.to_json() + "\n", encoding="utf-8")
        (folder / "tuning.json").write_text(
            json.dumps(to_dict(tuned), indent=2) + "\n", encoding="utf-8"
        )
        write([Entry.of_folder(folder, name=output.name)], folder / "report.html")


def to_dict(tuned: Tuned) -> dict[str, Any]:
    """Return the outcome as plain values."""
    found = tuned.selection
    return {
        "settings": found.settings,
        "score": found.score,
        "score_std": found.score_std,
        "noise_multiplier": found.noise_multiplier,
        "how": found.price.how,
        "price": {"epsilon": found.price.epsilon, "delta": found.price.delta},
        "expected_runs": found.price.runs,
        "candidates": found.candidates,
        "grid": tuned.grid,
        "prices": in_each_way(found.run_charges, found.price.runs, found.price.delta),
        "tried": [{"settings": each.settings, "score": each.score} for each in found.tried],
        "epsilon": found.epsilon(),
        "model": {"kind": tuned.architecture.kind, "inputs": tuned.architecture.inputs},
    }


def show(tuned: Tuned, console: Console) -> None:
    """Print what was found, and the statement."""
    found = tuned.selection
    if found.tried:
        listed = Shown(title="Candidates", title_justify="left", title_style="bold")
        for name in (*tuned.grid, "score"):
            listed.add_column(name, justify="right")
        for each in sorted(found.tried, key=lambda tried: tried.score):
            listed.add_row(*(f"{each.settings[n]}" for n in tuned.grid), number(each.score))
        print_table(console, listed)
    words = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    score = "none: no run was drawn, and the model is untrained"
    if found.score is not None:
        score = f"{number(found.score)}, with noise of standard deviation {found.score_std:.2g}"
    console.print(f"Best of {found.candidates} candidates: {words}", highlight=False)
    console.print(f"Score on records set apart: {score}", highlight=False)
    console.print(f"Price: {found.price}\n", highlight=False)
    console.print(str(found.statement), highlight=False, markup=False, soft_wrap=True)
