"""The demonstration: several methods at one epsilon, on data that ships with scikit-learn."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import privada as pv
from privada import defaults
from privada.accounting import epsilon_of
from privada.accounting.events import Tally
from privada.cli.printing import print_line, print_table
from privada.core import formatting
from privada.core.errors import BudgetExceeded
from privada.report import Entry, write

_DATASET = "handwritten digits"


@dataclass(frozen=True)
class Run:
    """One method's run, and how it does on images that are taken as public."""

    trainer: pv.Trainer
    accuracy: float


@dataclass(frozen=True)
class Demo:
    """What the demonstration did; `together` is the epsilon of all runs, which share a ledger."""

    runs: tuple[Run, ...]
    together: float
    train_size: int
    test_size: int

    @property
    def best(self) -> Run:
        """The run that does best on public images."""
        return max(self.runs, key=lambda run: run.accuracy)


def _methods(steps: int) -> list[pv.methods.Method]:
    return [
        pv.methods.DPSGD(lr=2.0, clip=1.0),
        pv.methods.DPAdam(lr=defaults.learning_rate(steps), clip=defaults.CLIP),
        pv.methods.DPAdamWOSM(lr=defaults.learning_rate(steps), clip=defaults.CLIP),
        pv.methods.ADADP(lr=0.5, clip=1.0),
    ]


def run_demo(
    *,
    epsilon: float,
    delta: float,
    epochs: float,
    batch_size: float,
    ledger: Path | None,
    output: Path | None,
    progress: bool,
) -> Demo:
    """Train linear classifiers of digits privately, and test them on digits taken as public."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32) / 16  # pixels are 0 .. 16 by definition
    targets = torch.tensor(labels)
    test = torch.arange(len(targets)) % 5 == 0
    data = inputs[~test], targets[~test]
    budget = pv.Budget(epsilon, delta)

    def trainer(method: pv.methods.Method, account: pv.Ledger | None = None) -> pv.Trainer:
        return pv.Trainer(
            _zero_model(), torch.nn.CrossEntropyLoss(), data, method=method,
            batch_size=batch_size, epochs=epochs, budget=budget, ledger=account,
        )  # fmt: skip

    methods = _methods(trainer(pv.methods.DPSGD(lr=1.0)).steps)
    everything: Tally = Counter()
    for method in methods:
        everything.update(trainer(method).planned())
    together = epsilon_of(everything, delta)
    account = _account(ledger, everything, pv.Budget(together, delta))
    runs = []
    for method in methods:
        each = trainer(method, account)  # which counts what the ledger holds by now
        each.fit(progress=progress)
        with torch.no_grad():
            right = each.model(inputs[test]).argmax(dim=1) == targets[test]
        runs.append(Run(each, float(right.float().mean())))
    demo = Demo(tuple(runs), together, int((~test).sum()), int(test.sum()))
    if output is not None:
        _report(demo, output)
    return demo


def _zero_model() -> torch.nn.Module:
    model = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def _account(path: Path | None, everything: Tally, budget: pv.Budget) -> pv.Ledger:
    """Return one ledger for all runs, new or with room for them; in memory without a file."""
    if path is None or not path.exists():
        return pv.Ledger(path, budget, dataset=_DATASET)
    ledger = pv.Ledger(path)
    if ledger.budget is not None:
        cost = epsilon_of(ledger.totals() + everything, ledger.budget.delta)
        if cost > ledger.budget.epsilon:
            raise BudgetExceeded(
                f"Expected all runs to fit the budget of {ledger!r}, but "
                f"{formatting.epsilon(ledger.epsilon())} is spent and they would make it "
                f"{formatting.epsilon(cost)}. Give another ledger. Nothing was charged."
            )
    return ledger


def _report(demo: Demo, output: Path) -> None:
    entries = [
        Entry.of_trainer(
            run.trainer,
            name=run.trainer.method.name,
            metrics={"accuracy on public images": run.accuracy},
            configuration={
                "method": run.trainer.method.describe(),
                "steps": run.trainer.steps,
                "noise multiplier": run.trainer.noise_multiplier,
            },
        )
        for run in sorted(demo.runs, key=lambda run: -run.accuracy)
    ]
    write(entries, output, title="Handwritten digits, four ways")


def to_dict(demo: Demo) -> dict[str, Any]:
    """Return the outcome as plain values; accuracy, steps and statement are the best run's."""
    best = demo.best
    return {
        "accuracy": best.accuracy,
        "steps": best.trainer.steps_done,
        "statement": best.trainer.statement().to_dict(),
        "together": demo.together,
        "runs": [
            {
                "method": run.trainer.method.describe(),
                "accuracy": run.accuracy,
                "noise_multiplier": run.trainer.noise_multiplier,
            }
            for run in demo.runs
        ],
    }


def show(demo: Demo, output: Path | None, console: Console) -> None:
    """Print the comparison, and the statement of the best run."""
    table = Table(
        title=f"Linear classifiers of {demo.train_size:,} images of handwritten digits",
        title_justify="left",
        title_style="bold",
    )
    for name in ("method", "steps", "noise", "epsilon of the run", "accuracy"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for run in demo.runs:
        trainer = run.trainer
        mark = " *" if run is demo.best else ""
        table.add_row(
            trainer.method.name,
            f"{trainer.steps_done:,}",
            formatting.number(trainer.noise_multiplier),
            formatting.epsilon(trainer.statement().run_epsilon),
            f"{formatting.number(run.accuracy)}{mark}",
        )
    print_table(console, table)
    console.print(
        f"* Accuracy on {demo.test_size:,} other images, taken as public. All "
        f"{len(demo.runs)} runs together cost an epsilon of {formatting.epsilon(demo.together)}.",
        highlight=False,
    )
    if output is not None:
        print_line(console, f"Report: {output}")
    console.print(
        f"\n{demo.best.trainer.statement()}", highlight=False, markup=False, soft_wrap=True
    )
