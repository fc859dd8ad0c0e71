"""A run, put together before its first look: data, mechanism, dry run, ledger, queries."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from torch import nn

from privada import data as private_data
from privada.accounting.ledger import ADAPTIVE, PLANNED, ROW, all_rows_of
from privada.clipping import Clipping, refuse_mixing_layers
from privada.clipping.clips import THRESHOLD, checked
from privada.clipping.engine import not_compiled
from privada.clipping.linear_engine import LinearEngine, check_linear, curvature_of
from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError
from privada.core.randomness import make_source
from privada.core.tensors import Parameters
from privada.mechanism import Mechanism, Parts
from privada.participation import Everyone
from privada.query.account import Account
from privada.query.executor import Executor
from privada.query.feature_moments import FeatureMomentQuery
from privada.query.feature_products import FeatureProductQuery
from privada.query.gradients import GradientQuery
from privada.query.local import LocalExecutor
from privada.query.second_moments import SecondMomentQuery
from privada.train.charges import RunCharges, find_delta, open_ledger
from privada.train.dry_run import check_model, dry_run
from privada.train.modes import training_mode
from privada.train.public_training import ModelSide
from privada.train.settings import TrainSettings
from privada.train.team import Alone, Several, facts_of, team_of
from privada.updates import Controller, UpdateRule


class MethodParts(Parts, Protocol):
    """What a run has to know of a method."""

    @property
    def controller(self) -> Controller:
        """How many releases a step takes."""

    @property
    def rule(self) -> UpdateRule:
        """What is made of the releases."""


class Run:
    """Everything between the private records and the method, and what it is charged.

    Args:
        model, loss, data, settings: what was asked for.
        clip, clipping: the clip norm, and how gradients are bounded.
        parts_of: says, for a number of steps, what the method is made of.
        name, description: the method by name, and with its settings in words.
        resumed, done: the name of a resumed run, and how many releases it had made.
        multipliers: the noise of those, where it follows them.
        noise_multiplier: what a resumed run was calibrated to.
        stacklevel: from which frame warnings are, counted as `warnings.warn` does.
        team: who works on it; by default as the settings say.

    Guarantee: nothing is charged and no record reaches a release while it is put together.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Any,
        settings: TrainSettings,
        *,
        clip: float,
        parts_of: Callable[[int], MethodParts],
        name: str,
        description: str | None = None,
        resumed: str | None = None,
        done: int = 0,
        multipliers: Sequence[float] = (),
        noise_multiplier: float | None = None,
        clipping: Clipping = THRESHOLD,
        stacklevel: int = 3,
        team: Alone | Several | None = None,
    ) -> None:
        self.settings = settings
        self.team: Alone | Several = team_of(settings.executor) if team is None else team
        with self.team.alike(lambda: self._facts(loss, description or name)):
            check_model(model, loss)
            refuse_mixing_layers(model)
            checked(clipping)
            self.model = not_compiled(model)
            self.parameters = Parameters(model, self._public_side(loss, data))
            self._load(data)
            mechanism = self._mechanism(parts_of, clip, clipping)
            self._try(loss, mechanism.clipping)
            if self.parts.preconditioner.feature_products:
                self._check_solver(loss)

        def charges() -> RunCharges:
            chosen_on_the_way = mechanism.follows or settings.charged_stopping is not None
            kind = ADAPTIVE if chosen_on_the_way else PLANNED
            ledger = open_ledger(settings.ledger, settings.budget, kind)
            ledger.check_unit(self.charged_unit)
            return RunCharges(
                ledger,
                resumed or settings.run or f"{name}-{os.urandom(4).hex()}",
                mechanism,
                settings,
                find_delta(settings, ledger, self.population, stacklevel + 3),
                resumed=resumed is not None,
                done=done,
                multipliers=multipliers,
                noise_multiplier=noise_multiplier,
            )

        found = self.team.first(charges)
        said = self.team.offer(lambda: found.told())
        self.charges: RunCharges = found or RunCharges.copied(said, mechanism, settings)
        self.ledger = self.charges.ledger
        self.mechanism = self.charges.mechanism
        # how the noise follows from the releases, None if it is fixed before the first
        self.following = self.mechanism.releases.following
        self._make_queries()

    def _facts(self, loss: Loss, method: str) -> dict[str, Any]:
        """Return what has to be the same on all ranks."""
        asked = self.settings.fingerprint(method)
        asked |= {"population": self.population, "engine": self.settings.engine}
        asked |= {"delta": self.settings.delta, "run": self.settings.run}
        return facts_of(
            self.model, loss, self.records, self.units, self.tried.state, self.tried.engine,
            self.settings, asked,
        )  # fmt: skip

    def _public_side(self, loss: Loss, data: Any) -> ModelSide:
        """Return what takes gradients of public examples, which must not be the private ones."""
        return ModelSide(self.model, loss, data)

    def _load(self, data: Any) -> None:
        """Load the records, and find out which of them belong to one unit."""
        settings = self.settings
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

    def _try(self, loss: Loss, clipping: Clipping) -> None:
        """Try the model and the loss on dummy examples, before anything is charged."""
        self.tried = dry_run(
            self.model,
            loss,
            self.records,
            self.parameters,
            self.settings,
            clipping,
            self.units.rows_per_unit,
        )

    def _check_solver(self, loss: Loss) -> None:
        """Raise unless a method that asks for products of features fits all else of the run."""
        settings = self.settings
        if not isinstance(settings.sampling, Everyone):
            raise ArgumentError(
                f"Expected sampling='everyone' for a method that solves linear models, got "
                f"sampling={settings.sampling!r}. Give sampling='everyone', batch_size="
                f"{self.population} and some tens of steps."
            )
        if settings.executor is not None or self.elsewhere:
            raise ArgumentError(
                "Expected a method that solves linear models to compute sums in this process, got "
                "other processes or clients. Leave executor out, or take another method, such as "
                "pv.methods.DPAdamWOSM()."
            )
        if settings.objective.terms:
            raise ArgumentError(
                "Expected no weight_decay and no public_term with a method that solves linear "
                "models: its steps are as long as the loss of the records allows. Leave them out."
            )
        check_linear(self.model, private_data.dummy_batch(self.records).dense())
        outputs = self.parameters.layout.shapes[0][0]
        self.parameters.curvature = curvature_of(loss, outputs)
        self.tried = replace(
            self.tried, engine=LinearEngine(self.tried.engine, self.model, loss, self.parameters)
        )

    def _mechanism(
        self, parts_of: Callable[[int], MethodParts], clip: float, clipping: Clipping
    ) -> Mechanism:
        """Return the mechanism of the method, not calibrated yet."""
        settings = self.settings
        # which refuses a batch size that cannot be drawn, before parts are made for its steps
        settings.sampling.among(self.units.size, settings.batch_size, settings.population)
        self.parameters.epoch = math.ceil(self.population / settings.batch_size)
        self.steps = settings.steps_for(self.population)
        self.parts = parts_of(self.steps)
        return Mechanism.of(
            self.parts,
            self.parameters,
            participation=settings.sampling,
            units=self.units.size,
            batch_size=settings.batch_size,
            steps=self.steps,
            clip=clip,
            clipping=clipping.of_units() if self.units.grouped else clipping,
            population=settings.population,
            noise=settings.noise,
            unit=settings.unit,
        )

    def _make_queries(self) -> None:
        """Make what pays, draws, computes sums and adds noise."""
        settings = self.settings
        self.sources = {
            use: make_source(settings.seed, use) for use in ("noise", "sampling", "model")
        }
        self.noise = settings.noise.start(self.sources["noise"])
        account = Account(
            self.ledger,
            run=self.charges.run,
            limit=settings.budget,
            unit=self.charged_unit,
            adaptive=self.mechanism.follows,
            on_any_rank=settings.executor is not None,  # which says what ranks are to do
        )
        executor = self._executor()
        if settings.executor is not None:
            executor = settings.executor.over(executor)
        self.executor = executor
        self.gradients = GradientQuery(
            mechanism=self.mechanism,
            executor=executor,
            account=account,
            noise=self.noise,
            sampling_rng=self.sources["sampling"],
            parameters=self.parameters,
            units=self.units,
        )
        self._make_preliminary_queries(executor, account)

    def _make_preliminary_queries(self, executor: Executor, account: Account) -> None:
        """Make what the preconditioner asks before the first step."""
        asked: dict[str, Any] = {
            "account": account,
            "noise": self.noise,
            "rng": self.sources["sampling"],
            "population": self.population,
        }
        self.feature_moments = FeatureMomentQuery(executor=executor, **asked)
        self.second_moments: SecondMomentQuery | FeatureProductQuery
        if self.parts.preconditioner.feature_products:
            assert isinstance(executor, LocalExecutor)
            self.second_moments = FeatureProductQuery(executor=executor, **asked)
        else:
            self.second_moments = SecondMomentQuery(executor=executor, **asked)

    def _executor(self) -> Executor:
        """Return what computes clipped sums from the records."""
        self.tried.engine.clipping = self.mechanism.clipping  # as it is calibrated
        return LocalExecutor(
            records=self.records,
            engine=self.tried.engine,
            parameters=self.parameters,
            model_rng=self.sources["model"],
            units=self.units,
            state=self.tried.state,
            model=self.model,
        )

    def share_model(self) -> None:
        """Give all ranks the model of rank 0, frozen parameters and buffers too."""
        if isinstance(self.team, Several):
            self.team.share_model(self.model)

    @contextmanager
    def together(self, call: str, told: Callable[[], Any]) -> Iterator[None]:
        """Make a call of this run on all ranks at once; here, on the one that leads."""
        if isinstance(self.team, Alone):
            yield
            return
        with self.team.leading(
            call, self.parameters, self.executor, lambda: (told(), self.charges.told())
        ):
            yield

    def follow(self, call: str, take: Callable[[Any], None]) -> bool:
        """Follow rank 0 through a call, and return True; False on the rank that leads."""
        if isinstance(self.team, Alone) or self.team.leads:
            return False

        def taken(progress: Any) -> None:
            take(progress[0])
            self.charges.take(progress[1])

        with training_mode(self.model):  # as rank 0 computes its share
            self.team.follow(call, self.parameters, self.executor, taken)
        return True

    def private_data(self, data: Any) -> Any:
        """Return the private records that are here, None if they are elsewhere."""
        return None if self.elsewhere else data

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """What the promise assumes of units whose records are not in this process."""
        return ()

    @property
    def population(self) -> int:
        """The public number of units."""
        return self.settings.population or self.units.size

    @property
    def charged_unit(self) -> str:
        """What one unit of the charged events is, as the ledger knows it."""
        return all_rows_of(self.settings.unit) if self.units.grouped else ROW
