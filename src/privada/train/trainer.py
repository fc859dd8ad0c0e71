"""The trainer: a model, a loss, private data and a method, through the gate."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from privada.accounting import Budget, Ledger, Statement
from privada.accounting.events import Tally
from privada.clipping.losses import Loss
from privada.core import formatting
from privada.core.errors import ArgumentError, CheckpointError
from privada.core.randomness import SeededSource
from privada.core.validation import integer, shown
from privada.data import Collate, Transform
from privada.methods import Method, Parts
from privada.objective import objective
from privada.participation import Participation, participation
from privada.query.gradients import Gate
from privada.train import checkpoint
from privada.train.run import Run, Settings


@dataclass(frozen=True)
class Step:
    """What is known of one step: nothing in it comes from private data without noise.

    `epsilon` is that of everything charged up to this step, rounded up in long runs to one of
    some hundred values.
    """

    step: int
    lr: float
    noise_multiplier: float
    epsilon: float


class Trainer:
    """Trains a model in place under differential privacy, and keeps the bill.

    Args:
        model: any torch module that treats examples one by one.
        loss: a torch loss, module or function of (output, target); it is taken per example.
        data: a map-style Dataset of (input, target), or a pair of arrays, tensors or SciPy
            sparse matrices.
        method: how to train, such as `pv.methods.DPSGD(lr=0.1, clip=1.0)`.
        batch_size: the expected number of records in a step.
        epochs, steps: how long, exactly one of them; epochs means ceil(epochs n / batch_size)
            steps.
        budget: what this run may cost; the noise is calibrated to it.
        noise_multiplier: the noise, as a multiple of the clip norm; epsilon is then reported at
            `delta`. Give exactly one of `budget` and `noise_multiplier`.
        sampling: who takes part in a step: "poisson" (add-or-remove-one), "fixed-size"
            (replace-one), "everyone", or a value of `pv.participation`.
        ledger: a `Ledger` or the path of one; by default one in memory.
        seed: makes sampling and noise reproducible, and the release not private.
        population: a public figure to use instead of the number of records.
        unit: what one record stands for, in the statement's words.
        run: the name under which it is charged, by default one of its own. What the ledger holds
            under this name for other purposes, such as estimated bounds, is within the budget.
        resume: a checkpoint to go on from.
        engine: for experts and tests: "auto", "one-pass", "vmap" or "loop".
        transform: a function of (record, generator) that returns a record, such as an augmented
            one, each time a record is used. The generator is seeded secretly for that record.
        collate: a function of a list of one record that returns a batch of one, always of the same
            shapes, such as `pv.pad_to(length)` for records of different lengths.
        example: a made-up record (input, target), in place of the first one, from which the
            records' nesting, names, shapes and types are taken; for a Dataset.
        weight_decay: adds weight_decay times the parameters to the released gradient, which costs
            nothing.
        public_term: what else is added to the loss, without looking at records: a function of the
            model that returns one number, one of `pv.objective`, or a list of them. Its gradient
            is added after the release, costs nothing and is not clipped.
        groups: one identifier for each row: the promise is then for all rows of a person, not for a
            row. `batch_size` counts persons.
        rows_per_unit: how many rows of a person a step looks at, at most, by default 8; they are
            chosen afresh each time, and their average gradient is clipped once.

    Guarantee: the sequence of all models during training, and everything derived from it, is
    (epsilon, delta)-differentially private as `statement()` says, `epsilon()` being that of
    everything on the ledger. Nothing else about the records leaves: no loss, no batch size, no
    exception that depends on them.

    Edge cases: steps whose batch is empty add noise alone. A record that cannot be read, whose
    names, types or shapes are not those of the example or of the first record, or on which the
    model fails, counts as zero. A batch norm is refused. A run that the
    ledger cannot pay for is refused before the first step; one that is resumed after a crash
    trains until the budget ends.

    Example:
        >>> import privada as pv, torch
        >>> from sklearn.datasets import load_breast_cancer
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> x = (x / 5000).astype("float32")  # a bound that is known without the data
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(30, 2), torch.nn.CrossEntropyLoss(), (x, y),
        ...     method=pv.methods.DPSGD(lr=1.0, clip=1.0),
        ...     batch_size=64, epochs=2, budget=pv.Budget(epsilon=2.0, delta=1e-4),
        ... ).fit()
        >>> trainer.epsilon() <= 2.0
        True

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1, for the
    loop; each method cites its own paper.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Any,
        *,
        method: Method,
        batch_size: float,
        epochs: float | None = None,
        steps: int | None = None,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        sampling: str | Participation = "poisson",
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: int | None = None,
        population: int | None = None,
        unit: str = "record",
        run: str | None = None,
        resume: str | os.PathLike[str] | None = None,
        engine: str = "auto",
        transform: Transform | None = None,
        collate: Collate | None = None,
        example: Any = None,
        weight_decay: float = 0.0,
        public_term: Any = None,
        groups: Any = None,
        rows_per_unit: int | None = None,
    ) -> None:
        if not isinstance(method, Method):
            raise ArgumentError(
                f"Expected method to be a method such as pv.methods.DPSGD(lr=0.1), got "
                f"method={shown(method)}."
            )
        if resume is not None and not isinstance(resume, (str, os.PathLike)):
            raise ArgumentError(
                f"Expected resume to be the path of a checkpoint, got resume={shown(resume)}. Give "
                "what fit(checkpoint=...) was given."
            )
        settings = Settings(
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=participation(sampling),
            ledger=ledger,
            seed=seed,
            population=population,
            unit=unit,
            engine=engine,
            run=run,
            transform=transform,
            collate=collate,
            example=example,
            objective=objective(weight_decay, public_term),
            groups=groups,
            rows_per_unit=rows_per_unit,
        )
        self.model, self.method = model, method
        self._fingerprint = {
            "method": method.describe(),
            "batch_size": float(batch_size),
            "epochs": epochs,
            "steps": steps,
            "sampling": settings.sampling.name,
            "budget": None if budget is None else [budget.epsilon, budget.delta],
            "noise_multiplier": noise_multiplier,
            "seed": seed,
            "objective": settings.objective.describe() or None,
            "rows_per_unit": rows_per_unit,
            "unit": None if groups is None else settings.unit,
        }
        saved = None if resume is None else checkpoint.read(resume, self._fingerprint)
        self._step = 0 if saved is None else integer("step", saved["step"], least=0)
        self._run = Run(
            model,
            loss,
            data,
            settings,
            clip=method.clip,
            clipping=method.clipping,
            parts_of=self._plan,
            name=method.name,
            resumed=None if saved is None else saved["run"],
            done=0 if saved is None else integer("done", saved["done"], least=0),
        )
        self._rule_state = self._parts.rule.init(self._run.parameters)
        self._controller_state = self._parts.controller.init(self._run.parameters)
        self._rates: list[float] = []
        self._finished = False
        if saved is not None:
            self._restore(saved)

    def _plan(self, steps: int) -> Parts:
        self._parts = self.method.parts(steps)
        return self._parts

    # ------------------------------------------------------------------ training

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return self._run.steps

    @property
    def steps_done(self) -> int:
        """The number of steps taken."""
        return self._step

    @property
    def batch_size(self) -> float:
        """The expected number of records in a step."""
        return self._run.settings.batch_size

    @property
    def noise_multiplier(self) -> float:
        """The calibrated or given noise multiplier."""
        return self._run.noise_multiplier

    @property
    def gate(self) -> Gate:
        """The gate to the private data, for methods and experts; every query is charged."""
        return self._run.gate

    @property
    def ledger(self) -> Ledger:
        """The ledger that the run is charged to."""
        return self._run.ledger

    def planned(self) -> Tally:
        """Return what the whole run is charged, by its plan; known before the first step."""
        return self._run.planned(0, -1)

    def step(self) -> "Trainer":
        """Take one step of the method.

        Raises:
            BudgetExceeded: the ledger cannot pay for it; the model is as it was.
            ArgumentError: the run has taken all its steps.
        """
        if self._finished:
            raise ArgumentError(
                f"Expected at most the planned {self.steps} steps, all of which are taken or were "
                "given up by finish(). "
                "Plan more steps when making the trainer: the noise depends on it."
            )
        number, parts = self._step, self._parts
        try:
            with self._training_mode():
                self._rule_state, self._controller_state, lr = parts.controller.iterate(
                    lambda: self._run.query(number),
                    parts.rule,
                    self._run.parameters,
                    self._rule_state,
                    self._controller_state,
                    number,
                )
        except BaseException:
            self._run.give_up(number)
            raise
        self._step += 1
        self._rates.append(lr)
        if self._step == self.steps:
            self.finish()
        return self

    def finish(self) -> "Trainer":
        """End the run: the model becomes the method's answer, and unused charges are returned.

        The answer is the mean of all points for methods that average, else the last point. The
        last step does this; call it to end a run early. No further step can be taken.
        """
        answer = None if self._finished else self._parts.rule.final_parameters(self._rule_state)
        if answer is not None:
            self._run.parameters.write_(answer)
        self._finished = True
        self._run.gate.settle()
        return self

    def fit(
        self,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_steps: int = 1000,
    ) -> "Trainer":
        """Take all remaining steps.

        With `progress`, show a bar. With `checkpoint`, save there every `checkpoint_steps` steps,
        at the end, and when interrupted.
        """
        every = integer("checkpoint_steps", checkpoint_steps)
        try:
            with _bar(progress, self) as advance:
                while not self._finished:
                    if checkpoint is not None:
                        self._run.save_after((self._step // every + 1) * every)
                    self.step()
                    advance()
                    if checkpoint is not None and self._step % every == 0:
                        self.save(checkpoint)
        finally:
            self._run.save_after(None)
            if checkpoint is None:
                self._run.gate.settle()
            else:
                self.save(checkpoint)
        return self

    @contextmanager
    def _training_mode(self) -> Iterator[None]:
        before = self.model.training
        self.model.train()
        try:
            yield
        finally:
            self.model.train(before)

    # ------------------------------------------------------------------ reporting

    @property
    def history(self) -> tuple[Step, ...]:
        """What is known of each step taken; epsilon never falls from one to the next."""
        first = self._step - len(self._rates)
        backwards = (
            self._run.epsilon_after(number, exactly=number == self._step)
            for number in range(self._step, first, -1)
        )
        # what bounds more steps bounds fewer
        epsilons = list(accumulate(backwards, min))[::-1]
        return tuple(
            Step(
                step=number + 1,
                lr=lr,
                noise_multiplier=self._run.multiplier(number),
                epsilon=epsilon,
            )
            for number, (lr, epsilon) in enumerate(
                zip(self._rates, epsilons, strict=True), start=first
            )
        )

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger, earlier runs included."""
        return self._run.epsilon(delta)

    def statement(self) -> Statement:
        """Return what was promised so far, what it cost and what it rests on."""
        self._run.gate.settle()
        return self._run.statement(self.method.describe(), self._step)

    # ------------------------------------------------------------------ checkpoints

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: model, method's state, place in the run. It holds no code and no key.

        Guarantee: what it holds is post-processing of releases, as private as the model itself.
        The ledger stays the authority on what was spent: steps that are taken again from an old
        checkpoint are charged again.
        """
        positions = {
            use: rng.position for use, rng in self._run.rng.items() if isinstance(rng, SeededSource)
        }
        try:
            checkpoint.write(
                path,
                {
                    "settings": self._fingerprint,
                    "run": self._run.run,
                    "step": self._step,
                    "done": self._run.done,
                    "finished": self._finished,
                    "prepared": self._run.prepared,
                    "shape": self._run.shape_state,
                    "model": self.model.state_dict(),
                    "rule": self._rule_state,
                    "controller": self._controller_state,
                    "rates": self._rates,
                    "positions": positions,
                },
            )
        finally:
            self._run.gate.settle()

    def _restore(self, saved: dict[str, Any]) -> None:
        own, there = (
            {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}
            for state in (self.model.state_dict(), saved["model"])
        )
        if own != there:
            raise CheckpointError(
                f"Expected the checkpoint to be of this model, whose parameters are {own}, got one "
                f"with {there}. Make the model as it was when the run was started."
            )
        self.model.load_state_dict(saved["model"])
        device = self._run.parameters.device

        def placed(value: Any) -> Any:
            return value.to(device) if isinstance(value, torch.Tensor) else value

        def state(part: str) -> dict[str, Any]:
            return {key: placed(value) for key, value in saved[part].items()}

        self._rule_state, self._controller_state = state("rule"), state("controller")
        self._run.shape_state, self._run.prepared = state("shape"), bool(saved["prepared"])
        self._finished = bool(saved["finished"])
        self._rates = list(saved["rates"])
        for use, rng in self._run.rng.items():
            if isinstance(rng, SeededSource):
                if use not in saved["positions"]:
                    raise CheckpointError(f"The checkpoint lacks the place in the {use} stream.")
                rng.position = saved["positions"][use]


@contextmanager
def _bar(shown: bool, trainer: Trainer) -> Iterator[Any]:
    """Show a progress bar with the epsilon of what was charged."""
    if not shown:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epsilon {task.fields[epsilon]}"),
        TimeColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(
            trainer.method.name, total=trainer.steps, completed=trainer.steps_done, epsilon="0"
        )

        def advance() -> None:
            epsilon = formatting.epsilon(trainer._run.epsilon_after(trainer.steps_done))
            bar.update(task, completed=trainer.steps_done, epsilon=epsilon)

        yield advance
