"""The runs of a search: what they have in common, and how one is made, trained and scored."""

import hashlib
import logging
import math
import os
import re
import threading
import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from privada import data as private_data
from privada.accounting import Ledger, events
from privada.accounting.ledger import ROW, Prepaid, all_rows_of
from privada.core.errors import (
    ArgumentError,
    ModelError,
)
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import SeededSource, make_source, random_words
from privada.noise import GaussianNoise
from privada.participation import Participation
from privada.query.account import Account
from privada.query.scores import Score, Scorer, public_score
from privada.selection.candidates import Candidate, Recipe, made
from privada.selection.search_plan import SearchPlan
from privada.selection.spaces import Settings
from privada.selection.split import Split
from privada.selection.state import RunOutcome
from privada.train.trainer import Trainer

_log = logging.getLogger("privada.selection")
_alone = threading.RLock()


def _new_lock() -> None:
    """In a forked child, while it has one thread: nobody here holds the lock."""
    global _alone
    _alone = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


def charged_unit(unit: str, grouped: bool) -> str:
    """Return what one unit of the charged events is, as the ledger knows it."""
    return all_rows_of(unit) if grouped else ROW


@dataclass(frozen=True)
class CandidateRuns:
    """What runs have in common. Workers are sent it."""

    recipe: Recipe
    candidates: tuple[Settings, ...]
    plan: SearchPlan
    parts: Split
    score: Score
    sampling: Participation
    seed: int | None
    dataset: str
    unit: str
    sources: tuple[str, ...]
    private: bool

    def rng(self, stream: str) -> Any:
        """Return the random bits of a stream."""
        return make_source(self.seed, stream)

    def init_seed(self, run: str) -> int:
        """Return a number that the first weights of a run are drawn from."""
        return int(random_words(self.rng(f"{run} weights"), 1)[0] >> 1)

    def made(self, index: int, init_seed: int) -> Candidate:
        """Return a candidate as it is before training: the same for the same seed."""
        return made(self.recipe, self.candidates[index], SeededSource(init_seed, "weights"))

    def trainer(self, index: int, run: str, init_seed: int, ledger: Ledger) -> Trainer:
        """Return the trainer of one run: made, and not yet a record looked at."""
        candidate = self.made(index, init_seed)
        seed = None if self.seed is None else int(random_words(self.rng(f"{run} seed"), 1)[0] >> 1)
        return Trainer(
            candidate.model,
            candidate.loss,
            self.parts.train,
            method=candidate.method,
            batch_size=candidate.batch_size,
            steps=candidate.steps_on(self.parts.population),
            noise_multiplier=self.plan.noise_multipliers[index],
            delta=self.plan.delta,
            sampling=self.sampling,
            population=None if self.sampling.fixed_count else self.parts.population,
            ledger=ledger,
            seed=seed,
            unit=self.unit,
            engine=candidate.engine,
            groups=self.parts.train_groups,
            rows_per_unit=self.parts.rows_per_unit,
        )

    @property
    def charged_unit(self) -> str:
        """What one unit of the charged events is, as the ledger knows it."""
        return charged_unit(self.unit, self.parts.grouped)

    def scored_units(self, records: private_data.Records) -> private_data.Units:
        """Return whose the scored records are."""
        parts = self.parts
        grouped = parts.scored_groups is not None
        return private_data.units_of(
            records.size, parts.scored_groups, parts.rows_per_unit if grouped else None
        )

    def records(self, model: nn.Module) -> private_data.Records:
        """Return the records that scores are of."""
        first = next(each for each in model.parameters() if each.requires_grad)
        public = self.parts.public
        return private_data.load(self.parts.scored, first.dtype, first.device, public=public)

    def public_score(self, model: nn.Module, records: private_data.Records, run: str) -> float:
        """Return a model's score on public records."""
        with hidden_generator(self.rng(f"{run} model"), next(model.parameters()).device):
            return public_score(self.score, model, records)

    def check(self, index: int) -> None:
        """Raise what can be wrong with a candidate, before anything is charged."""
        init_seed = self.init_seed("trial")
        model = self.trainer(index, "trial", init_seed, Prepaid({}, self.dataset)).model
        model.eval()
        records = self.records(model)
        self.score.check(model, private_data.dummy_batch(records).dense())
        if self.parts.public and index == 0:  # they may be looked at as they are
            self.public_score(model, records, "trial")
        self.model(RunOutcome(index, math.nan, 0.0, _values(model), init_seed))

    def ready(self) -> bool:
        """Return True, in a worker: what cannot be sent there shows before anything is charged."""
        return True

    def attempt(self, number: int, index: int) -> tuple[int, RunOutcome]:
        """Run one candidate within what was paid for it, and return its outcome.

        Threads of one process take turns: torch has one state of random numbers for all of them.
        Warnings were given when the candidate was tried; here they would tell that it runs. A run
        that fails, for whatever reason, has the worst score there is: to stop for it would tell of
        a run that is not the best, and to take it again would look twice on one charge.
        """
        with _alone, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self._attempt(number, index)
            except KeyboardInterrupt:  # the user's, and no record's
                raise
            except BaseException:  # ours as well: whether a run diverges depends on the records
                pass
        return number, self.failed(index)

    def _attempt(self, number: int, index: int) -> tuple[int, RunOutcome]:
        run = f"run {number}"
        account = Prepaid(self.plan.allowance(index), self.dataset)
        init_seed = self.init_seed(run)
        trainer = self.trainer(index, run, init_seed, account).fit()
        model = trainer.model
        records = self.records(model)
        if self.plan.score_noise is None:
            value, std = self.public_score(model, records, run), 0.0
        else:
            scorer = Scorer(
                records,
                self.score,
                population=self.parts.scored_population,
                account=Account(account, run=run, purpose="validation", unit=self.charged_unit),
                noise=GaussianNoise(self.rng(f"{run} score")),
                model_rng=self.rng(f"{run} model"),
                units=self.scored_units(records),
                sampling_rng=self.rng(f"{run} rows"),
            )
            released = scorer.query(model, self.plan.score_noise)
            value, std = released.value, released.std
        return number, RunOutcome(index, value, std, _values(model), init_seed)

    def untrained(self, index: int) -> RunOutcome:
        """Return a candidate that was never trained, for a search of no runs."""
        init_seed = self.init_seed("untrained")
        return RunOutcome(
            index, math.nan, 0.0, _values(self.made(index, init_seed).model), init_seed
        )

    def failed(self, index: int) -> RunOutcome:
        """Return the outcome of a run that failed: untrained, and no other is worse.

        Its parameters follow from its seed: to make a model here could fail as well.
        """
        worst = -math.inf if self.score.greater else math.inf
        return RunOutcome(index, worst, 0.0, {}, self.init_seed("failed"))

    def model(self, outcome: RunOutcome) -> nn.Module:
        """Return the model of an outcome."""
        model = self.made(outcome.candidate, outcome.init_seed).model
        if not outcome.parameters:
            return model
        try:
            model.load_state_dict(outcome.parameters)
        except RuntimeError as error:
            raise ArgumentError(
                "Expected a recipe that makes the same model each time it is called with the same "
                f"settings, but what one was trained to does not fit the next: {error}"
            ) from error
        return model

    def better(self, one: RunOutcome, other: RunOutcome) -> RunOutcome:
        """Return the better of two outcomes, the first of two that are equal."""
        ahead = other.score > one.score if self.score.greater else other.score < one.score
        return other if ahead else one

    def fingerprint(self, described: list[str], ledger: Ledger) -> str:
        """Return a digest of everything that decides the search, none of it private.

        Functions are known by their names: where they lie in memory changes with the process.
        """
        facts = (
            self.candidates,
            described,
            events.encode(self.plan.event),
            self.plan.how,
            self.plan.noise_multipliers,
            self.plan.delta,
            self.parts.population,
            self.parts.scored_population,
            self.parts.words,
            (self.score.name, self.score.low, self.score.high, self.score.greater),
            self.sampling.name,
            self.seed,
            self.dataset,
            ledger.identity,
        )
        if self.parts.grouped:
            facts = (*facts, self.unit, self.parts.rows_per_unit)  # type: ignore[assignment]
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(facts))
        return hashlib.sha256(text.encode()).hexdigest()


def _values(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's parameters and buffers."""
    found = model.state_dict()
    others = [name for name, value in found.items() if not isinstance(value, Tensor)]
    if others:
        raise ModelError(
            f"Expected a model whose state is tensors alone, got {others}, which could carry "
            "anything of the data. Remove get_extra_state."
        )
    return {name: value.detach().cpu().clone() for name, value in found.items()}
