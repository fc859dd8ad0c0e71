"""The demonstration: several methods at one epsilon, on data that ships with scikit-learn."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from privada import defaults, methods
from privada.accounting import Budget, Ledger, epsilon_of
from privada.accounting.events import Tally
from privada.accounting.ledger import PLANNED, Place, exists
from privada.core import formatting
from privada.core.errors import BudgetExceeded
from privada.report import Entry, write
from privada.train.trainer import Trainer

_DATASET = "handwritten digits"


@dataclass(frozen=True)
class DemoRun:
    """One method's run, and how it does on images that are taken as public.

    Example: see `demo`.
    """

    trainer: Trainer
    accuracy: float


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration did; `together` is the epsilon of all runs, which share a ledger.

    Example: see `demo`.
    """

    runs: tuple[DemoRun, ...]
    together: float
    train_size: int
    test_size: int

    @property
    def best(self) -> DemoRun:
        """The run that does best on public images."""
        return max(self.runs, key=lambda run: run.accuracy)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values; accuracy, steps and statement are the best run's."""
        best = self.best
        return {
            "accuracy": best.accuracy,
            "steps": best.trainer.steps_done,
            "statement": best.trainer.statement().to_dict(),
            "together": self.together,
            "runs": [
                {
                    "method": run.trainer.method.describe(),
                    "accuracy": run.accuracy,
                    "noise_multiplier": run.trainer.noise_multiplier,
                }
                for run in self.runs
            ],
        }


def _methods(steps: int) -> list[methods.Method]:
    return [
        methods.DPSGD(lr=2.0, clip=1.0),
        methods.DPAdam(lr=defaults.learning_rate(steps), clip=defaults.CLIP),
        methods.DPAdamWOSM(lr=defaults.learning_rate(steps), clip=defaults.CLIP),
        methods.ADADP(lr=0.5, clip=1.0),
    ]


def demo(
    *,
    epsilon: float = 2.0,
    delta: float = 1e-4,
    epochs: float = 40.0,
    batch_size: float = 256.0,
    ledger: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> DemoResult:
    """Train linear classifiers of digits by four methods, and test them on digits taken as public.

    This is what `privada demo` does.

    Args:
        epsilon, delta: what each run may cost.
        epochs: passes over the training images.
        batch_size: the expected number of images in a step.
        ledger: a ledger file; runs on it add up. By default one in memory.
        output: a report of all runs, an .html file; none is written without it.
        progress: show a bar for each run.

    Returns:
        The runs, the best of them, and what all of them cost together.

    Guarantee: each run is private at `epsilon`, all of them together at `together`. Accuracies are
    those of images that are taken as public.

    Edge cases: a ledger without room for all runs is refused before the first.

    Example:
        >>> import privada as pv
        >>> result = pv.workflows.demo(epochs=1)
        >>> len(result.runs), result.together > 2.0
        (4, True)
    """
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32) / 16  # pixels are 0 .. 16 by definition
    targets = torch.tensor(labels)
    test = torch.arange(len(targets)) % 5 == 0
    data = inputs[~test], targets[~test]
    budget = Budget(epsilon, delta)

    mark = os.urandom(4).hex()  # of this demonstration, where several are on one ledger

    def trainer(method: methods.Method, account: Ledger | None = None) -> Trainer:
        return Trainer(
            _zero_model(), torch.nn.CrossEntropyLoss(), data, method=method, budget=budget,
            batch_size=batch_size, epochs=epochs, ledger=account, run=f"{method.name}-{mark}",
        )  # fmt: skip

    compared = _methods(trainer(methods.DPSGD(lr=1.0)).steps)
    plans = {f"{method.name}-{mark}": trainer(method).planned() for method in compared}
    account = _shared_ledger(ledger, plans, delta)
    together = account.price(sum(plans.values(), start=Counter()), delta)
    runs = []
    for method in compared:
        each = trainer(method, account)  # which counts what the ledger holds by now
        each.fit(progress=progress)
        with torch.no_grad():
            right = each.model(inputs[test]).argmax(dim=1) == targets[test]
        runs.append(DemoRun(each, float(right.float().mean())))
    result = DemoResult(tuple(runs), together, int((~test).sum()), int(test.sum()))
    if output is not None:
        _write_report(result, Path(output))
    return result


def _zero_model() -> torch.nn.Module:
    model = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def _shared_ledger(place: Place | None, plans: Mapping[str, Tally], delta: float) -> Ledger:
    """Return one ledger for all runs, in memory without a place.

    A new one is planned, with all of them declared; one that exists must have room for them.
    """
    everything = sum(plans.values(), start=Counter())
    if place is None or not exists(place):
        budget = Budget(epsilon_of(everything, delta), delta)
        ledger = Ledger(place, budget, dataset=_DATASET, kind=PLANNED)
        ledger.declare(plans)
        return ledger
    ledger = Ledger(place)
    if ledger.budget is not None:
        cost = ledger.cost("demonstration", everything)
        if cost > ledger.budget.epsilon:
            raise BudgetExceeded(
                f"Expected all runs to fit the budget of {ledger!r}, but "
                f"{formatting.epsilon(ledger.epsilon())} is spent and they would make it "
                f"{formatting.epsilon(cost)}. Give another ledger. Nothing was charged."
            )
    return ledger


def _write_report(result: DemoResult, output: Path) -> None:
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
        for run in sorted(result.runs, key=lambda run: -run.accuracy)
    ]
    write(entries, output, title="Handwritten digits, four ways")
