"""What a user asks of a run, beside the model, the loss and the data."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from privada.accounting import Budget, Ledger
from privada.core.errors import ArgumentError
from privada.core.validation import integer, positive, printable_text, probability, shown
from privada.data import Collate, Transform
from privada.mechanism import Independent, Noise
from privada.objective import Objective, objective
from privada.participation import Participation, participation
from privada.query.executor import Execution

# A plan of more would not fit into memory.
_MOST_STEPS = 10**8
_MOST_RECORDS = 2**53


@dataclass(frozen=True)
class TrainSettings:
    """The settings of a run; the arguments of `Trainer` and `PrivateLoop` say what each means."""

    batch_size: float
    epochs: float | None
    steps: int | None
    budget: Budget | None
    noise_multiplier: float | None
    delta: float | None
    sampling: Participation
    ledger: Ledger | str | os.PathLike[str] | None
    seed: int | None
    population: int | None
    unit: str
    engine: str
    run: str | None = None
    transform: Transform | None = None
    collate: Collate | None = None
    example: Any = None
    objective: Objective = field(default_factory=Objective)
    groups: Any = None
    rows_per_unit: int | None = None
    executor: Execution | None = None
    noise: Noise = field(default_factory=Independent)
    stopping: Any = None
    validation: Any = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "TrainSettings":
        """Return the settings among the arguments of a trainer or of a loop, by their names."""
        given = {each.name: arguments[each.name] for each in fields(cls) if each.name in arguments}
        given["sampling"] = participation(arguments["sampling"])
        given["objective"] = objective(arguments["weight_decay"], arguments["public_term"])
        if given.get("validation") is None and given.get("stopping") is not None:
            given["validation"] = given["stopping"].validation
        given["noise"] = Independent() if arguments["noise"] is None else arguments["noise"]
        return cls(**given)

    def __post_init__(self) -> None:
        self._number("batch_size", positive)
        self._check_noise()
        self._check_length()
        if self.population is not None:
            self._number("population", integer)
            if self.population > _MOST_RECORDS:
                raise ArgumentError(
                    f"Expected population <= {_MOST_RECORDS:,}, got population="
                    f"{shown(self.population)}. Give the public number of records."
                )
        printable_text("unit", self.unit)
        if self.groups is not None and self.unit == "record":
            object.__setattr__(self, "unit", "person")
        if self.run is not None:
            printable_text("run", self.run)
        if self.seed is not None:
            self._number("seed", partial(integer, least=0))
        if self.executor is not None and not hasattr(self.executor, "over"):
            raise ArgumentError(
                f"Expected executor to be one of pv.execute, got executor={shown(self.executor)}. "
                "Leave it out to compute sums in this process."
            )
        if isinstance(self.noise, type) or not isinstance(self.noise, Noise):
            raise ArgumentError(
                f"Expected noise to be one of pv.noise, got noise={shown(self.noise)}. Use "
                "pv.noise.Independent()."
            )

    @property
    def charged_stopping(self) -> Any:
        """Early stopping by private scores, which are charged; None without."""
        return self.stopping if self.stopping is not None and self.stopping.private else None

    def _check_noise(self) -> None:
        if (self.budget is None) == (self.noise_multiplier is None):
            raise ArgumentError(
                "Expected exactly one of budget and noise_multiplier, got "
                f"{'neither' if self.budget is None else 'both'}. With budget=pv.Budget(epsilon, "
                "delta) the noise is calibrated; with noise_multiplier the epsilon is reported."
            )
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise ArgumentError(
                f"Expected budget to be a Budget, got budget={shown(self.budget)}. "
                "Write pv.Budget(epsilon, delta)."
            )
        if self.noise_multiplier is not None:
            self._number("noise_multiplier", positive)
        if self.delta is not None:
            self._number("delta", probability)
            if self.budget is not None and self.delta != self.budget.delta:
                raise ArgumentError(
                    f"Expected delta to be left out or equal to the budget's "
                    f"({self.budget.delta}), got delta={self.delta}."
                )

    def _check_length(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ArgumentError(
                "Expected exactly one of epochs and steps, got "
                f"{'neither' if self.epochs is None else 'both'}."
            )
        if self.epochs is not None:
            self._number("epochs", positive)
        if self.steps is not None:
            self._number("steps", integer)

    def _number(self, name: str, check: Callable[[str, Any], float]) -> None:
        """Check a number; one of NumPy's or torch's becomes a plain one."""
        value = getattr(self, name)
        checked = check(name, value)
        if type(value) not in (int, float):
            object.__setattr__(self, name, checked)

    def steps_for(self, population: int) -> int:
        """Return the number of steps of a run on so many units.

        Raises:
            ArgumentError: there are too many for a plan.
        """
        steps = self.steps or math.ceil(
            self.epochs * population / self.batch_size  # type: ignore[operator]
        )
        if steps > _MOST_STEPS:
            raise ArgumentError(
                f"Expected at most {_MOST_STEPS:,} steps, got more. Take fewer steps or epochs, or "
                "a larger batch_size."
            )
        return steps

    def fingerprint(self, method: str) -> dict[str, Any]:
        """Return what a checkpoint and the run that goes on from it must have in common."""
        budget = self.budget
        return {
            "method": method,
            "batch_size": float(self.batch_size),
            "epochs": self.epochs,
            "steps": self.steps,
            "sampling": self.sampling.name,
            "budget": None if budget is None else [budget.epsilon, budget.delta],
            "noise_multiplier": self.noise_multiplier,
            "seed": self.seed,
            "objective": self.objective.describe() or None,
            "rows_per_unit": self.rows_per_unit,
            "unit": None if self.groups is None else self.unit,
            "noise": self.noise.name,
            "stopping": None if self.stopping is None else self.stopping.describe(),
        }
