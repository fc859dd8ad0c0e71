"""One run on private data: its plan, its price, its gate and its statement."""

import contextlib
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from privada import data as private_data
from privada.accounting import Budget, Ledger, Statement, epsilon_of, events
from privada.accounting.events import Tally
from privada.accounting.ledger import ROW, all_rows_of
from privada.clipping import Batch, Clipping, Engine, make_engine, refuse_mixing_layers
from privada.clipping.clips import THRESHOLD, checked
from privada.clipping.engine import not_compiled
from privada.clipping.losses import Loss
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.probes import refuse_mixing_models
from privada.core import formatting
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError, ModelError
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import SecureSource, make_source
from privada.core.silence import pass_on_signals, silenced
from privada.core.state import HeldState
from privada.core.tensors import Parameters
from privada.core.validation import integer, positive, printable_text, probability, shown
from privada.core.values import Release
from privada.data.batch import call, scaled
from privada.mechanism import Mechanism, Parts
from privada.noise import GaussianNoise
from privada.objective import Objective
from privada.participation import Participation
from privada.preconditioning import FlatScaling
from privada.query.account import Account
from privada.query.gradients import Gate
from privada.train.public_training import ModelSide
from privada.updates import Controller, Rule

# A plan of more would not fit into memory.
_MOST_STEPS = 10**8
_MOST_RECORDS = 2**53
# Distinct points per doubling at which a run's epsilon is computed for its history.
_POINTS_PER_OCTAVE = 16
# What made-up examples are multiplied by to see whether a model or a loss keeps something of them.
_EXTREMES = (1.0, 0.0, 40.0, -1e6, 1e30, math.nan)


@dataclass(frozen=True)
class Settings:
    """What a user asks of a run, beside the model, the loss and the data."""

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
    transform: private_data.Transform | None = None
    collate: private_data.Collate | None = None
    example: Any = None
    objective: Objective = field(default_factory=Objective)
    groups: Any = None
    rows_per_unit: int | None = None

    def __post_init__(self) -> None:
        self._number("batch_size", positive)
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
        if (self.epochs is None) == (self.steps is None):
            raise ArgumentError(
                "Expected exactly one of epochs and steps, got "
                f"{'neither' if self.epochs is None else 'both'}."
            )
        if self.epochs is not None:
            self._number("epochs", positive)
        if self.steps is not None:
            self._number("steps", integer)
        if self.delta is not None:
            self._number("delta", probability)
            if self.budget is not None and self.delta != self.budget.delta:
                raise ArgumentError(
                    f"Expected delta to be left out or equal to the budget's "
                    f"({self.budget.delta}), got delta={self.delta}."
                )
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

    def _number(self, name: str, check: Callable[[str, Any], float]) -> None:
        """Check a number; one of NumPy's or torch's becomes a plain one."""
        value = getattr(self, name)
        checked = check(name, value)
        if type(value) not in (int, float):
            object.__setattr__(self, name, checked)


class Steps(Parts, Protocol):
    """What a run has to know of a method."""

    @property
    def controller(self) -> Controller:
        """How many releases a step takes."""

    @property
    def rule(self) -> Rule:
        """What is made of the releases."""


class Run:
    """A run: everything between the private records and the method, and the bill.

    `parts_of` says, for a number of steps, what to clip in, how the noise changes from step to step
    and how many releases a step takes; `done` says how many a resumed run has made.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Any,
        settings: Settings,
        *,
        clip: float,
        parts_of: Callable[[int], Steps],
        name: str,
        resumed: str | None = None,
        done: int = 0,
        clipping: Clipping = THRESHOLD,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(
                f"Expected model to be a torch.nn.Module, got model={shown(model)}. Give a model "
                "that is made, not its class."
            )
        if not callable(loss) or isinstance(loss, type):
            raise ArgumentError(
                f"Expected loss to be a torch loss or a function of (output, target), got "
                f"loss={shown(loss)}. Use torch.nn.CrossEntropyLoss(), or the like."
            )
        refuse_mixing_layers(model)
        self.settings, self.name = settings, name
        self.clipping = checked(clipping)
        self.parameters = Parameters(model, ModelSide(not_compiled(model), loss, data))
        self.records = private_data.load(
            data,
            self.parameters.dtype,
            self.parameters.device,
            transform=settings.transform,
            collate=settings.collate,
            example=settings.example,
        )
        self.units = private_data.units_of(
            self.records.size, settings.groups, settings.rows_per_unit
        )
        self.clipping = self.clipping.of_units() if self.units.grouped else self.clipping
        # which refuses a batch size that cannot be drawn, before parts are made for its steps
        settings.sampling.among(self.units.size, settings.batch_size, settings.population)
        self.parameters.epoch = math.ceil(self.population / settings.batch_size)
        self.steps = settings.steps or math.ceil(
            settings.epochs * self.population / settings.batch_size  # type: ignore[operator]
        )
        if self.steps > _MOST_STEPS:
            raise ArgumentError(
                f"Expected at most {_MOST_STEPS:,} steps, got more. Take fewer steps or epochs, or "
                "a larger batch_size."
            )
        parts = parts_of(self.steps)
        self.shape, self._rule = parts.preconditioner, parts.rule
        self.mechanism = Mechanism.of(
            parts,
            self.parameters,
            participation=settings.sampling,
            units=self.units.size,
            batch_size=settings.batch_size,
            steps=self.steps,
            clip=clip,
            clipping=self.clipping,
            population=settings.population,
        )
        self.done = done
        self._last = self.mechanism.releases.total
        self.shape_state: dict[str, Any] = self.shape.init(self.parameters)
        self.prepared = False
        self._try_model(model, loss)
        self.ledger = self._open_ledger()
        self.ledger.check_unit(self._charged_unit)
        self.delta = self._find_delta()
        self.run = resumed or settings.run or f"{name}-{os.urandom(4).hex()}"
        self.mechanism = self._calibrated()
        self._check_continues(resumed is not None)
        self._last = self._within_own_budget()
        self._check_affordable(resumed is not None)
        # what the ledger holds beside the steps that a resumed run goes on from
        self._before: Tally = self.ledger.totals() - self.planned(0, self.done)
        self.rng = {use: make_source(settings.seed, use) for use in ("noise", "sampling", "model")}
        self.noise = GaussianNoise(self.rng["noise"])
        self._epsilons: dict[int, float] = {}
        self.saved_after: int | None = None
        self.gate = Gate(
            records=self.records,
            engine=self._engine,
            parameters=self.parameters,
            sampler=self.mechanism.sampler,
            sampling_rng=self.rng["sampling"],
            model_rng=self.rng["model"],
            noise=self.noise,
            account=Account(
                self.ledger,
                run=self.run,
                limit=settings.budget,
                upcoming=self._upcoming,
                unit=self._charged_unit,
            ),
            units=self.units,
            clip=clip,
            batch_size=settings.batch_size,
            clipping=self.clipping,
            state=self._state,
            look_again=self._look_again,
        )

    # ------------------------------------------------------------------ setting up

    @property
    def population(self) -> int:
        """The public number of units."""
        return self.settings.population or self.units.size

    @property
    def _charged_unit(self) -> str:
        """What one unit of the charged events is, as the ledger knows it."""
        return all_rows_of(self.settings.unit) if self.units.grouped else ROW

    def _try_model(self, model: nn.Module, loss: Loss) -> None:
        """Run the model on made-up examples, so that faults show before anything is charged."""
        model = not_compiled(model)
        self._model = model
        training = model.training
        model.train()
        example = private_data.dummy_batch(self.records).dense()
        try:
            fault = self._try_company(model, example)
            self._engine = self._make_engine(model, loss)
            if fault is not None:
                raise fault
            self._state = HeldState(model, loss, readers=private_data.readers_of(self.records))
            self._refuse_state()
            self.settings.objective.gradient(model, self.parameters)  # which may be an error
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                outputs = call(model, example.inputs)
        finally:
            model.train(training)
        if isinstance(outputs, torch.Tensor):
            private_data.check_ranges(self.records, model, loss, outputs)
        else:
            raise ModelError(f"Expected the model to return a tensor, got {type(outputs)}.")

    @staticmethod
    def _try_company(model: nn.Module, example: Batch) -> Exception | None:
        """Raise if examples touch each other; return what a model raises that does not run.

        The engine, which is tried afterwards, says that in better words.
        """
        try:
            refuse_mixing_models(model, example)
        except ModelError:
            raise
        except Exception as error:
            return error
        return None

    def _look_again(self, number: int) -> None:
        """Try the model on other dummy examples, at its current parameters.

        What this raises follows from the model and from releases, not from records.
        """
        example = private_data.dummy_batch(self.records, seed=number)
        self._try_company(self._model, example.dense())
        if isinstance(self._engine, OnePassEngine):
            self._engine.look_again(example)

    def _refuse_state(self) -> None:
        """Raise if made-up examples, ordinary and extreme, leave something behind."""
        example, before = private_data.dummy_batch(self.records), self.parameters.read()
        with (
            hidden_generator(SecureSource(), self.parameters.device),
            silenced(),
            self._state.watched(),
        ):
            for factor in _EXTREMES:
                try:
                    probe = scaled(example, factor)
                    self._engine.clipped_sum(probe, FlatScaling(None, None), 1.0)
                except BaseException as error:  # a model may refuse what is extreme
                    pass_on_signals(error)
            changed = self._state.changed()
        if changed:
            self.parameters.write_(before)
            raise ModelError(
                f"Expected a model and a loss that keep nothing of the data, but {changed} change "
                "when they run on made-up examples, and would carry un-noised facts from one "
                "record to the next. Remove what keeps state, such as observers, running maxima, "
                "counters and stored activations."
            )

    def _make_engine(self, model: nn.Module, loss: Loss) -> Engine:
        """Return the engine; rows of a sparse matrix stay sparse where the model allows it."""
        how, example = self.settings.engine, private_data.dummy_batch(self.records)
        expected = self.settings.batch_size * self.units.rows_per_unit
        if example.sparse:
            if how in ("auto", "one-pass"):
                with contextlib.suppress(ArgumentError):
                    return make_engine(
                        "one-pass", model, loss, self.parameters, example, self.clipping, expected
                    )
            assert isinstance(self.records, private_data.ColumnRecords)
            self.records.make_dense()
            example = private_data.dummy_batch(self.records)
        return make_engine(how, model, loss, self.parameters, example, self.clipping, expected)

    def _open_ledger(self) -> Ledger:
        given = self.settings.ledger
        if isinstance(given, Ledger):
            return given
        if given is None:
            return Ledger(None, self.settings.budget)
        if not isinstance(given, (str, os.PathLike)):
            raise ArgumentError(
                f"Expected ledger to be a Ledger or the path of one, got ledger={shown(given)}."
            )
        return Ledger(given, None if Path(given).exists() else self.settings.budget)

    def _find_delta(self) -> float:
        budget = self.settings.budget or self.ledger.budget
        delta = self.settings.delta or (None if budget is None else budget.delta)
        if delta is None:
            raise ArgumentError(
                "Expected delta, got delta=None. With noise_multiplier, give the delta at which "
                "epsilon is to be reported, well below 1 / n."
            )
        if delta >= 1 / self.population:
            warnings.warn(
                f"delta={delta:g} is not below 1 / n = {1 / self.population:.3g}: it would allow "
                "publishing a whole record now and then. Choose a smaller delta.",
                stacklevel=5,
            )
        return delta

    def _calibrated(self) -> Mechanism:
        """Return the mechanism with the noise that was asked for, or that the budget allows."""
        settings = self.settings
        if settings.noise_multiplier is not None:
            return self.mechanism.with_noise(float(settings.noise_multiplier))
        assert settings.budget is not None
        paid = self.own_tally() - self.own_tally("training")
        first = self.mechanism.releases.before(0)
        before = epsilon_of(paid + self.mechanism.charges(0, first), self.delta)
        if before >= settings.budget.epsilon:
            raise BudgetExceeded(
                f"Expected something to be left of {settings.budget} for the first step, got an "
                f"epsilon of {formatting.epsilon(before)} for what comes before it: "
                f"{first} releases of second moments, and {events.release_count(paid)} "
                f"that run {self.run!r} was charged for already. Give them more noise or "
                f"fewer rounds. {self._uncharged()}"
            )
        return self.mechanism.calibrated(settings.budget, paid)

    def _check_continues(self, resumed: bool) -> None:
        """Raise unless the ledger holds the steps that a run goes on from, a new one no step."""
        own = self.own_tally("training")
        if own and not resumed:
            raise ArgumentError(
                f"Expected run to be the name of a new run, got run={self.run!r}, under which "
                f"{self.ledger!r} holds {sum(own.values())} releases. Give another name, or resume."
            )
        if any(own[event] < count for event, count in self.planned(0, self.done).items()):
            raise LedgerError(
                f"Expected the ledger that run {self.run!r} was charged to, got {self.ledger!r}, "
                f"which does not hold its first {self.done} releases. Resume with the ledger file "
                "that the run was started with; one in memory is gone with its process."
            )

    def _within_own_budget(self) -> int:
        """Return the number of queries after which the run will have used up its own budget.

        That is all of them, unless a crash or an old checkpoint has made it pay for some twice. It
        is a plan: what other processes charge to the same run is known to the ledger alone, which
        holds each charge to the budget.
        """
        budget = self.settings.budget
        if budget is None or self.own_tally("training") == self.planned(0, self.done):
            return self._last
        return self.mechanism.affordable(budget, self.own_tally(), self.done)

    def _check_affordable(self, resumed: bool) -> None:
        """Raise before the first step if the ledger cannot pay for the whole run.

        A resumed run may have lost a block of charges to a crash: one more step is enough for it.
        """
        plan = self.planned(self.done, 1 if resumed else -1)
        if self.ledger.budget is None or not plan:
            return
        after = self.ledger.totals() + plan
        cost = epsilon_of(after, self.ledger.budget.delta)
        if cost <= self.ledger.budget.epsilon:
            return
        spent = self.ledger.epsilon()
        raise BudgetExceeded(
            f"Expected the run to fit the budget of {self.ledger!r}, but "
            f"{formatting.epsilon(spent)} is spent and the run's {sum(plan.values())} releases "
            f"would make it {formatting.epsilon(cost)}. Take fewer steps, more noise or a "
            f"smaller batch. {self._uncharged()}"
        )

    def _uncharged(self) -> str:
        """Say that nothing was charged, or nothing more if the run was charged before."""
        return "Nothing more was charged." if self.own_tally() else "Nothing was charged."

    # ------------------------------------------------------------------ running

    @property
    def noise_multiplier(self) -> float:
        """The calibrated or given noise multiplier."""
        return self.mechanism.noise_multiplier

    def multiplier(self, step: int) -> float:
        """Return the noise multiplier of a step, counted from 0."""
        return self.mechanism.multiplier(step)

    def planned(self, start: int, count: int) -> Tally:
        """Return the tally of `count` releases from release `start` on, all left for -1."""
        return self.mechanism.charges(
            start, self._last if count < 0 else min(self._last, start + count)
        )

    def _upcoming(self, count: int) -> Tally:
        """Return the next releases, those before the next checkpoint at most, all left for -1.

        What is reserved and lost in a crash is then no more than what is taken again.
        """
        if count > 0 and self.saved_after is not None:
            count = min(count, max(1, self.saved_after - self.done))
        return self.planned(self.done, count)

    def save_after(self, step: int | None) -> None:
        """Say after how many steps the next checkpoint is, None for no checkpoint."""
        self.saved_after = (
            None if step is None else self.mechanism.releases.before(min(step, self.steps))
        )

    def query(self, step: int) -> Release:
        """Return a release for a step, in the shape of the run."""
        if not self.prepared:
            self.shape_state = self.shape.prepare(self.shape_state, self.parameters, self._squares)
            self.prepared = True
        preconditioner, state = self.shape.at(self.shape_state, self.parameters)
        multiplier = self.multiplier(step)
        release = self._counted(lambda: self.gate.query(preconditioner, multiplier, self.done))
        self.shape_state = self.shape.seen(release, state)
        public = self.settings.objective.gradient(self._model, self.parameters)
        if public is None:
            return release
        return release.plus(preconditioner.precondition(public, self.gate.lay_out(preconditioner)))

    def give_up(self, step: int) -> None:
        """Count what was released for a step that was not finished beside the plan.

        The step starts anew the next time; what it was charged for stays charged.
        """
        start = self.mechanism.releases.before(step) if self.prepared else 0
        self._before += self.planned(start, self.done - start)
        self.done = start
        self._epsilons.clear()

    def _squares(self, bound: float, noise_multiplier: float) -> Release:
        return self._counted(lambda: self.gate.squares(bound, noise_multiplier, self.population))

    def _counted(self, ask: Callable[[], Release]) -> Release:
        """Return a release that is within the run's plan."""
        if self.done >= self._last:
            raise BudgetExceeded(
                f"Expected the run to keep to its own budget, {self.settings.budget}, which ends "
                f"after {self._last} releases: some were charged twice, for a crash or because an "
                "old checkpoint was resumed. Nothing more was charged and no data was read."
            )
        release = ask()
        self.done += 1
        return release

    # ------------------------------------------------------------------ the bill

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger."""
        return self.ledger.epsilon(self.delta if delta is None else probability("delta", delta))

    def epsilon_after(self, step: int, exactly: bool = False) -> float:
        """Return the epsilon of what was charged before and of this run's first `step` steps.

        Unless `exactly`, of up to a twentieth more steps: an upper bound that is computed for a few
        hundred steps only, however long the run is.
        """
        queries = self.mechanism.releases.before(step)
        if not exactly and queries > 2 * _POINTS_PER_OCTAVE:
            grain = 2 ** (queries.bit_length() - 1 - _POINTS_PER_OCTAVE.bit_length() + 1)
            queries = min(-(-queries // grain) * grain, max(queries, self.mechanism.releases.total))
        if queries not in self._epsilons:
            tally = self._before + self.planned(0, queries)
            self._epsilons[queries] = epsilon_of(tally, self.delta)
        return self._epsilons[queries]

    def own_tally(self, purpose: str | None = None) -> Tally:
        """Return what this run has been charged, for one purpose or for all."""
        own: Tally = Counter()
        for charge in self.ledger.charges():
            if charge.run == self.run and purpose in (None, charge.purpose):
                own[charge.event] += charge.count
        return own

    def statement(self, method: str, steps_done: int) -> Statement:
        """Return the statement of the run as it stands."""
        ledger = self.ledger
        totals = ledger.totals()
        where = "in memory: gone with this process" if not ledger.durable else ledger.name
        return Statement(
            private=self.noise.secure and self.shape.private,
            dataset=ledger.dataset,
            unit=self.settings.unit,
            relation=events.common_relation(totals or [self.mechanism.sampler.event(1.0)]),
            epsilon=self.epsilon(),
            delta=self.delta,
            run=self.run,
            run_epsilon=epsilon_of(self.own_tally(), self.delta),
            accountant="pld",
            budget=ledger.budget,
            ledger=where,
            method=method,
            sampling=self._sampling(),
            noise=self.noise.describe(),
            progress=f"{steps_done:,} of {self.steps:,} steps",
            charges=ledger.charges(),
            assumptions=tuple(self._assumptions()),
        )

    def _sampling(self) -> str:
        """Return in words who takes part in a step."""
        drawn = self.mechanism.sampler.describe()
        unit = self.settings.unit
        return (
            f"{drawn}; a record is here a {unit} with all their rows"
            if self.units.grouped
            else drawn
        )

    def _assumptions(self) -> list[str]:
        unit, settings = self.settings.unit, self.settings
        counted = f"{unit}s" if self.units.grouped else "records"
        if settings.population is None:
            public = (
                f"The number of {counted}, {self.population:,}, is public: it sets the sampling "
                "rate."
            )
        else:
            public = (
                f"The sampling rate is set from a public population of {settings.population:,}, "
                f"not from the number of {counted}."
            )
        if self.units.grouped:
            whose = (
                f"Each {unit}: all their rows, which are those with one identifier in groups; no "
                f"{unit} has two. A look takes at most {self.units.rows_per_unit} of them, chosen "
                "afresh, and bounds the average of their gradients."
            )
        else:
            whose = f"Each {unit} is one row of the data and shares no row with another."
        listed = [
            whose,
            public,
            "The model's first parameters, the method, its settings and the number of steps were "
            "chosen without looking at these records, or by looks that this ledger lists.",
            "The records' names, shapes and types, and the range of labels and tokens, are public.",
        ]
        if isinstance(self.records, private_data.DatasetRecords):
            listed.append(
                f"What the data set gives for a {unit} depends on that {unit} alone, and on "
                "nothing that another one has left behind, as in a cache."
            )
        if not self.ledger.durable:
            listed.append(
                "The ledger is in memory: runs on the same data elsewhere are not counted here. "
                "Give the trainer a ledger file to add them up."
            )
        sources = dict.fromkeys(s for s in (self.shape.source, self._rule.source) if s)
        if sources:
            listed.append(f"Side information: {'; '.join(sources)}.")
        if self.settings.objective.terms:
            listed.append(
                "What the objective adds to the loss depends on the parameters alone, and on no "
                f"record: {self.settings.objective.describe()}."
            )
        if self._engine.padding is not None and not self._engine.padding.invariant:
            listed.append(
                "On this machine the last bits of a record's gradient may depend on the other "
                "records of its batch, which is not in epsilon; engine='loop' removes it."
            )
        if not self.noise.secure:
            listed.append(
                "seeded: not a private release. Sampling and noise follow from a seed that is "
                "known to whoever set it."
            )
        return listed
