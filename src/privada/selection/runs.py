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
from privada.selection.spaces import Settings
from privada.selection.split import Split
from privada.selection.state import Outcome
from privada.selection.terms import Terms
from privada.train.trainer import Trainer

_log = logging.getLogger("privada.selection")
_alone = threading.RLock()


def _new_lock() -> None:
    """In a forked child, while it has one thread: nobody here holds the lock."""
    global _alone
    _alone = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


@dataclass(frozen=True)
class Runs:
    """What runs have in common. Workers are sent it."""

    recipe: Recipe
    candidates: tuple[Settings, ...]
    terms: Terms
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

    def origin(self, run: str) -> int:
        """Return a number that the first weights of a run are drawn from."""
        return int(random_words(self.rng(f"{run} weights"), 1)[0] >> 1)

    def made(self, index: int, origin: int) -> Candidate:
        """Return a candidate as it is before training: the same for the same origin."""
        return made(self.recipe, self.candidates[index], SeededSource(origin, "weights"))

    def trainer(self, index: int, run: str, origin: int, ledger: Ledger) -> Trainer:
        """Return the trainer of one run: made, and not yet a record looked at."""
        candidate = self.made(index, origin)
        seed = None if self.seed is None else int(random_words(self.rng(f"{run} seed"), 1)[0] >> 1)
        return Trainer(
            candidate.model,
            candidate.loss,
            self.parts.train,
            method=candidate.method,
            batch_size=candidate.batch_size,
            steps=candidate.steps_on(self.parts.population),
            noise_multiplier=self.terms.sigmas[index],
            delta=self.terms.delta,
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
        return all_rows_of(self.unit) if self.parts.grouped else ROW

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
        origin = self.origin("trial")
        model = self.trainer(index, "trial", origin, Prepaid({}, self.dataset)).model
        model.eval()
        records = self.records(model)
        self.score.check(model, private_data.dummy_batch(records).dense())
        if self.parts.public and index == 0:  # they may be looked at as they are
            self.public_score(model, records, "trial")
        self.model(Outcome(index, math.nan, 0.0, _values(model), origin))

    def ready(self) -> bool:
        """Return True, in a worker: what cannot be sent there shows before anything is charged."""
        return True

    def attempt(self, number: int, index: int) -> tuple[int, Outcome]:
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

    def _attempt(self, number: int, index: int) -> tuple[int, Outcome]:
        run = f"run {number}"
        account = Prepaid(self.terms.allowance(index), self.dataset)
        origin = self.origin(run)
        trainer = self.trainer(index, run, origin, account).fit()
        model = trainer.model
        records = self.records(model)
        if self.terms.score_noise is None:
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
            released = scorer.query(model, self.terms.score_noise)
            value, std = released.value, released.std
        return number, Outcome(index, value, std, _values(model), origin)

    def untrained(self, index: int) -> Outcome:
        """Return a candidate that was never trained, for a search of no runs."""
        origin = self.origin("untrained")
        return Outcome(index, math.nan, 0.0, _values(self.made(index, origin).model), origin)

    def failed(self, index: int) -> Outcome:
        """Return the outcome of a run that failed: untrained, and no other is worse.

        Its parameters are left to its origin: to make a model here could fail as well.
        """
        worst = -math.inf if self.score.greater else math.inf
        return Outcome(index, worst, 0.0, {}, self.origin("failed"))

    def model(self, outcome: Outcome) -> nn.Module:
        """Return the model of an outcome."""
        model = self.made(outcome.candidate, outcome.origin).model
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

    def better(self, one: Outcome, other: Outcome) -> Outcome:
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
            events.encode(self.terms.event),
            self.terms.how,
            self.terms.sigmas,
            self.terms.delta,
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
