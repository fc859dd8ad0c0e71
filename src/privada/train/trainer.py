"""The trainer: a model, a loss, private data and a method, step by step within a budget."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from torch import nn

from privada.accounting import Budget, Ledger, Statement
from privada.accounting.events import Tally
from privada.clipping.losses import Loss
from privada.core.deprecation import renamed
from privada.core.errors import ArgumentError, BudgetExceeded
from privada.core.validation import integer, shown
from privada.data import Collate, Transform
from privada.mechanism import Noise
from privada.methods import Method
from privada.participation import Participation
from privada.query.executor import Execution
from privada.query.gradients import GradientQuery
from privada.train import callbacks as called
from privada.train import checkpoint
from privada.train.bill import statement
from privada.train.evaluations import Evaluation, Evaluator
from privada.train.history import History
from privada.train.modes import training_mode
from privada.train.progress_bar import ProgressBar, is_shown
from privada.train.public_scores import Validates
from privada.train.run import Run
from privada.train.settings import TrainSettings
from privada.train.state import TrainState
from privada.train.step import first_state, prepare, take_step
from privada.train.stopping import EarlyStopping
from privada.train.team import team_of, told_state


class Trainer:
    """Trains a model in place under differential privacy, and keeps the bill.

    Args:
        model: any torch module that treats examples one by one.
        loss: a torch loss, module or function of (output, target); it is taken per example.
        data: a map-style Dataset of (input, target), or a pair of arrays, tensors or SciPy
            sparse matrices; with `schema`, a table.
        method: how to train, such as `pv.methods.DPSGD(lr=0.1, clip=1.0)`.
        batch_size: the expected number of records in a step.
        epochs, steps: how long, exactly one of them; epochs means ceil(epochs n / batch_size)
            steps.
        budget: what this run may cost; the noise is calibrated to it.
        noise_multiplier: the noise, as a multiple of the clip norm; epsilon is then reported at
            `delta`. Give exactly one of `budget` and `noise_multiplier`.
        sampling: who takes part in a step: "poisson" (add-or-remove-one), "fixed-size"
            (replace-one), "everyone", or a value of `pv.participation`.
        ledger: a `Ledger`, or the path or URL of one; by default one in memory. One that does not
            exist is made for this run alone, as a planned one: give several runs a `pv.Ledger`.
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
        example: a dummy record (input, target), in place of the first one, from which the
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
        executor: where sums are computed, one of `pv.execute`; by default in this process, each
            batch as a whole.
        noise: how the noise of one step depends on that of others, one of `pv.noise`; by default
            `pv.noise.Independent()`.
        stopping: when to end early, a `pv.EarlyStopping`; by private scores it needs an adaptive
            ledger.
        validation: public records to evaluate the model on while it trains, a `pv.Validation`.
        schema: what the columns are, a `pv.tables.Schema`, where `data` is a table: a frame of
            pandas or Polars, a `pv.tables.Table`, or a path that `pv.tables.read` takes. A person
            column of the schema gives the groups.

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

    _kind_of_run: ClassVar[type[Run]] = Run

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
        executor: Execution | None = None,
        noise: Noise | None = None,
        stopping: EarlyStopping | None = None,
        schema: Any = None,
        validation: Validates | None = None,
    ) -> None:
        _check(method, resume, stopping, validation)
        if schema is not None:
            data, groups, population = _of_table(data, schema, groups, population)
        self._rests_on: list[str] = [] if schema is None else [schema.told]
        self._start(model, loss, data, method, TrainSettings.of(locals()), resume)

    def _start(
        self,
        model: nn.Module,
        loss: Loss,
        data: Any,
        method: Method,
        settings: TrainSettings,
        resume: str | os.PathLike[str] | None,
    ) -> None:
        """Put the run together, from its beginning or from a checkpoint."""
        self.model, self.method, self._loss = model, method, loss
        self._fingerprint = settings.fingerprint(method.describe())
        team = team_of(settings.executor)
        saved = team.first(
            lambda: None if resume is None else checkpoint.read(resume, self._fingerprint)
        )
        self._run = self._kind_of_run(
            model,
            loss,
            data,
            settings,
            clip=method.clip,
            clipping=method.clipping,
            parts_of=method.parts_of,
            name=method.name,
            description=method.describe(),
            resumed=None if saved is None else saved["run"],
            done=0 if saved is None else integer("releases", saved["releases"], least=0),
            multipliers=() if saved is None else saved.get("multipliers", ()),
            noise_multiplier=None if saved is None else saved.get("noise_multiplier"),
            stacklevel=4,
            team=team,
        )
        with team.alike(dict):
            self._evaluator = Evaluator(self._run, loss, self._run.private_data(data))
            self._state = first_state(self._run)
        self._rates: list[float] = []
        self._evaluations: list[Evaluation] = []
        self._calls = called.Calls((), self._event, self._run.parameters)

        def restore() -> None:
            if saved is not None:
                self._state = checkpoint.restore(saved, self._run, self._state)
                self._rates = list(saved["rates"])
                self._evaluations = checkpoint.evaluations(saved)

        team.first(restore)
        self._run.share_model()
        if not self._run.follow("Trainer", self._take):
            with self._run.together("Trainer", self._told):
                pass

    def _told(self) -> tuple[TrainState, list[float], list[Evaluation]]:
        """Return how far the run is, for the ranks that follow."""
        return told_state(self._state), self._rates, self._evaluations

    def _take(self, told: tuple[TrainState, list[float], list[Evaluation]]) -> None:
        """Take over how far the run is; on a rank that follows."""
        self._state, self._rates, self._evaluations = told

    # ------------------------------------------------------------------ training

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return self._run.steps

    @property
    def expected_steps(self) -> int:
        """After how many steps the run is expected to end, by its plan or with its budget.

        Where the noise follows the releases it is a forecast from what is public and from the
        releases so far. It may be less than `steps` where the noise was given, and not calibrated.
        """
        self._refund()
        return self._run.charges.expected_steps(self._state)

    @property
    def steps_done(self) -> int:
        """The number of steps taken."""
        return self._state.step

    @property
    def finished(self) -> bool:
        """Whether no further step can be taken: all were, or the run was ended early."""
        return self._state.finished

    @property
    def batch_size(self) -> float:
        """The expected number of records in a step."""
        return self._run.settings.batch_size

    @property
    def noise_multiplier(self) -> float:
        """The calibrated or given noise multiplier."""
        return self._run.mechanism.noise_multiplier

    @property
    def clip_norm(self) -> float:
        """The clip norm of the next release; where it adapts, it follows from the releases."""
        return self._run.mechanism.clipping.norm(self._state.clip)

    @property
    def gradients(self) -> GradientQuery:
        """The gradient query, for experts; every release is charged."""
        return self._run.gradients

    @property
    def gate(self) -> GradientQuery:
        """The gradient query by its former name."""
        renamed("Trainer.gate", "Trainer.gradients")
        return self._run.gradients

    @property
    def ledger(self) -> Ledger:
        """The ledger that the run is charged to."""
        return self._run.ledger

    def planned(self) -> Tally:
        """Return what the whole run is charged, by its plan; known before the first step.

        Scores of early stopping are in it, as if the run took all its steps. Where the noise
        follows the releases, it is a forecast.
        """
        return self._run.charges.planned(0, -1) + self._run.charges.scores(0, self.steps)

    def step(self) -> "Trainer":
        """Take one step of the method.

        Raises:
            BudgetExceeded: the ledger cannot pay for it; the model is as it was.
            ArgumentError: the run has taken all its steps.
        """
        if self._run.follow("step", self._take):
            return self
        with self._run.together("step", self._told):
            self._step()
        return self

    def _step(self) -> None:
        self._refuse_from_callbacks("step")
        if self._state.finished:
            raise ArgumentError(
                f"Expected at most the planned {self.steps} steps, all of which are taken or were "
                "given up by finish(). "
                "Plan more steps when making the trainer: the noise depends on it."
            )
        if self._state.step == self.steps:  # what its last step had to do besides has failed
            self.finish()
            return
        with training_mode(self.model):
            self._state = prepare(self._run, self._state)
            self._state, lr = take_step(self._run, self._state)
        self._rates.append(lr)
        self._state, found = self._evaluator.after_step(self._state)
        self._evaluations.extend(found)
        if self._state.step == self.steps or self._state.ended:
            self.finish()

    def finish(self) -> "Trainer":
        """End the run: the model gets its final parameters, and unused charges are returned.

        They are the mean of all points for methods that average, else the last point. The last
        step does this; call it to end a run early. No further step can be taken.

        On a planned ledger, as the trainer makes one for itself, a run that is ended early costs
        what its whole plan does, since the reason may be something that was seen. On an adaptive
        one it costs what it was charged, and the rest can be used by other runs.
        """
        if self._run.follow("finish", self._take):
            return self
        with self._run.together("finish", self._told):
            self._finish()
        return self

    def _finish(self) -> None:
        self._refuse_from_callbacks("finish")
        ended = not self._state.finished
        if ended:
            final = self._run.parts.rule.final_parameters(self._state.rule)
            best = self._state.stopping.get("parameters", final)
            if best is not None:
                self._run.parameters.write_(best)
        self._state = replace(self._state, finished=True)
        self._refund()
        if ended:
            self._evaluations.extend(self._evaluator.at_end(self._state, self._evaluations))

    def _refuse_from_callbacks(self, call: str) -> None:
        if self._calls.calling:
            raise ArgumentError(
                f"Expected a callback to look on, got a call of {call}() from one. Raise "
                "pv.StopTraining to end the run."
            )

    def _refund(self) -> None:
        self._run.gradients.account.refund_unused()

    def fit(
        self,
        progress: bool | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_steps: int = 1000,
        callbacks: Sequence[called.Callback] = (),
    ) -> "Trainer":
        """Take all remaining steps.

        Where the noise follows the releases, the run ends with its steps or with its budget,
        whichever is first; the noise is fitted so that both end together.

        Args:
            progress: whether to show a bar; by default where errors are shown on a terminal, and so
                neither in a file nor in a notebook.
            checkpoint: where to save before the first step, if there is no such file, every
                `checkpoint_steps` steps, at the end, and when interrupted.
            checkpoint_steps: how many steps lie between two checkpoints.
            callbacks: objects of `pv.Callback`, such as those of `pv.loggers`, called between the
                steps. They are not part of a checkpoint.
        """
        every = integer("checkpoint_steps", checkpoint_steps)
        listeners = called.checked(callbacks)
        shown = is_shown(progress)
        if self._run.follow("fit", self._take):
            return self
        with self._run.together("fit", self._told):
            self._refuse_from_callbacks("fit")
            bar = (ProgressBar(self.method.name),) if shown else ()
            self._fit((*bar, *listeners), checkpoint, every)
        return self

    def _fit(
        self,
        listeners: tuple[called.Callback, ...],
        checkpoint: str | os.PathLike[str] | None,
        every: int,
    ) -> None:
        self._calls = called.Calls(listeners, self._event, self._run.parameters)
        if checkpoint is not None and not Path(checkpoint).exists():
            self.save(checkpoint)  # a run that is killed early can go on: its budget is reserved
        try:
            with self._calls.around():
                self._take_steps(checkpoint, every)
        except called.StopTraining:  # of on_start: before the first step
            self.finish()
        finally:
            self._run.charges.next_checkpoint(None)
            if checkpoint is None:
                self._refund()
            else:
                self.save(checkpoint)

    def _take_steps(self, checkpoint: str | os.PathLike[str] | None, every: int) -> None:
        """Take all remaining steps, and call back after each."""
        while not self._state.finished:
            if checkpoint is not None:
                next_one = (self.steps_done // every + 1) * every
                self._run.charges.next_checkpoint(next_one)
            before, told = self.steps_done, len(self._evaluations)
            try:
                self.step()
            except BudgetExceeded:
                if self._run.following is None or not self.steps_done:
                    raise
                self.finish()  # the noise was less than forecast: the budget ends first
            try:
                if self.steps_done > before:
                    self._calls.after_step()
                told = self._tell(told)
            except called.StopTraining:
                self.finish()
            with suppress(called.StopTraining):  # of the last evaluation: the run has ended
                self._tell(told)
            if checkpoint is not None and self.steps_done % every == 0:
                self.save(checkpoint)

    def _tell(self, told: int) -> int:
        """Call back for evaluations that were not told of yet; return how many there are."""
        for each in self._evaluations[told:]:
            self._calls.after_evaluation(each)
        return len(self._evaluations)

    def _event(self, about: Evaluation | None) -> called.TrainingEvent:
        """Return what callbacks get to see now."""
        step, charges = self.steps_done, self._run.charges
        finished = self._state.finished
        newest = self._evaluations[-1] if self._evaluations else None
        return called.TrainingEvent(
            step=step,
            steps=self.steps,
            settings=self._public_settings(),
            lr=self._rates[-1] if self._rates else None,
            noise_multiplier=charges.multiplier(step - 1) if self._rates else None,
            clip_norm=self.clip_norm,
            evaluation=newest if about is None else about,
            finished=finished,
            _epsilon=charges.epsilon if finished else partial(charges.epsilon_after, step),
            _model=self._run.model,
        )

    def _public_settings(self) -> Mapping[str, Any]:
        charges, budget = self._run.charges, self._run.settings.budget
        settings: dict[str, Any] = {
            "run": charges.run,
            "method": self.method.describe(),
            "steps": self.steps,
            "batch_size": self.batch_size,
            "noise_multiplier": self.noise_multiplier,
            "delta": charges.delta,
        }
        if budget is not None:
            settings["budget"] = budget.epsilon
        return MappingProxyType(settings)

    # ------------------------------------------------------------------ reporting

    @property
    def history(self) -> History:
        """What is known of each step taken; epsilon never falls from one to the next."""
        return History(self._run.charges, tuple(self._rates), self.steps_done)

    @property
    def validation(self) -> Validates | None:
        """The public records that the model is evaluated on, None without."""
        found: Validates | None = self._run.settings.validation
        return found

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """What the model reached while it trained: on the public records, and by charged scores."""
        return tuple(self._evaluations)

    def evaluate(self, validation: Validates | None = None) -> Evaluation:
        """Return what the model reaches now on public records, by default those of the trainer.

        Before the end of the run, it is the model as `finish()` would leave it without
        `restore_best`, which is another one for methods that average.

        Raises:
            ArgumentError: there is no validation.
            DataError: the records are the private ones.
        """
        return self._evaluator.now(self._state, validation)

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger, earlier runs included."""
        return self._run.charges.epsilon(delta)

    def statement(self) -> Statement:
        """Return what was promised so far, what it cost and what it rests on."""
        self._refund()
        said = statement(self._run, self.method.describe(), self.steps_done, self._state.finished)
        return replace(said, assumptions=(*said.assumptions, *self._rests_on))

    # ------------------------------------------------------------------ checkpoints

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: model, method's state, place in the run. It holds no code and no key.

        Guarantee: what it holds is post-processing of releases, as private as the model itself.
        The ledger stays the authority on what was spent: steps that are taken again from an old
        checkpoint are charged again.

        Edge cases: of a data-parallel run rank 0 writes it, and the others do nothing.
        """
        if not self._run.team.leads:
            return
        try:
            checkpoint.write(
                path,
                checkpoint.packed(
                    self._run, self._state, self._rates, self._evaluations, self._fingerprint
                ),
            )
        finally:
            self._refund()


def _of_table(
    data: Any, schema: Any, groups: Any, population: int | None
) -> tuple[Any, Any, int | None]:
    """Return the records of a table, their groups and their number, as a schema encodes them."""
    if not hasattr(schema, "training_data"):
        raise ArgumentError(
            f"Expected schema to be a pv.tables.Schema, got schema={shown(schema)}. Read one from "
            "a file: pv.tables.Schema.read(path)."
        )
    found: tuple[Any, Any, int | None] = schema.training_data(data, groups, population)
    return found


def _check(method: Any, resume: Any, stopping: Any, validation: Any) -> None:
    if not isinstance(method, Method):
        raise ArgumentError(
            f"Expected method to be a method such as pv.methods.DPSGD(lr=0.1), got "
            f"method={shown(method)}."
        )
    if stopping is not None and not isinstance(stopping, EarlyStopping):
        raise ArgumentError(
            f"Expected stopping to be a pv.EarlyStopping, got stopping={shown(stopping)}."
        )
    if validation is not None and (
        isinstance(validation, type) or not isinstance(validation, Validates)
    ):
        raise ArgumentError(
            "Expected validation to be a pv.Validation, which declares its records public, got "
            f"validation={shown(validation)}. Write pv.Validation((inputs, targets))."
        )
    other = None if stopping is None else stopping.validation
    if None not in (validation, other) and validation is not other:
        raise ArgumentError(
            "Expected one pv.Validation, got one as validation and another in stopping. Leave out "
            "the first: the trainer evaluates on what it stops by."
        )
    if resume is not None and not isinstance(resume, (str, os.PathLike)):
        raise ArgumentError(
            f"Expected resume to be the path of a checkpoint, got resume={shown(resume)}. Give "
            "what fit(checkpoint=...) was given."
        )
