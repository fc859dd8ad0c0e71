"""The result of a search: what is given out of it, and the statement of what it cost."""

import copy
import logging
import math
from dataclasses import dataclass

from torch import nn

from privada.accounting import Ledger, Statement, events
from privada.accounting.events import Tally
from privada.accounting.statement import IN_MEMORY
from privada.core.errors import ModelError
from privada.noise import GaussianNoise
from privada.selection.prices import Price
from privada.selection.runs import CandidateRuns
from privada.selection.spaces import Settings
from privada.selection.state import RunOutcome, SearchState
from privada.train import bill

_log = logging.getLogger("privada.selection")


@dataclass(frozen=True)
class CandidateResult:
    """One candidate's run, of a search in which every candidate runs once and all are released.

    Example:
        >>> import privada as pv, torch
        >>> pv.selection.CandidateResult({"lr": 0.1}, 0.9, torch.nn.Linear(2, 2)).settings
        {'lr': 0.1}
    """

    settings: Settings
    score: float
    model: nn.Module


@dataclass(frozen=True)
class Selection:
    """The outcome of a search: the best model, and what it cost to find.

    Attributes:
        model: the best model, trained on the records that were not set apart.
        settings: its settings.
        score: its score, with noise; None if the number of runs was drawn as 0, which Poisson
            stopping allows, and the model is untrained.
        score_std: the standard deviation of the noise in a score; 0 on public records.
        price: what the search costs by itself.
        noise_multiplier: the noise of the best model's run.
        tried: every candidate's run, under composition; nothing else may be known of the others.
        candidates: how many there were to choose from.
        run_charges: what one run of the best settings is charged as, its score left out.

    Guarantee: all of it together is (epsilon, delta)-differentially private as `statement` says.

    Example:
        >>> import privada as pv, torch
        >>> def recipe(clip):
        ...     return pv.selection.Candidate(
        ...         torch.nn.Linear(3, 1), torch.nn.MSELoss(), pv.methods.DPAdam(clip=clip),
        ...         batch_size=50, steps=2,
        ...     )
        >>> found = pv.selection.select(
        ...     recipe, (torch.zeros(500, 3), torch.zeros(500, 1)), space={"clip": [0.1, 1.0]},
        ...     score=pv.selection.bounded_loss(torch.nn.MSELoss(), 1.0),
        ...     budget=pv.Budget(1.0, 1e-4), how="compose-pld",
        ... )
        >>> [each.settings["clip"] for each in found.tried], found.price.how
        ([0.1, 1.0], 'compose-pld')
    """

    model: nn.Module
    settings: Settings
    score: float | None
    score_std: float
    price: Price
    noise_multiplier: float
    tried: tuple[CandidateResult, ...]
    candidates: int
    run_charges: Tally
    statement: Statement

    def epsilon(self) -> float:
        """Return the epsilon of everything charged on the ledger, this search included."""
        return self.statement.epsilon


def result_of(runs: CandidateRuns, now: SearchState, best: RunOutcome, ledger: Ledger) -> Selection:
    """Return the result of a search whose outcomes are given out.

    Raises:
        ModelError: all runs failed.
    """
    if math.isinf(best.score):
        raise ModelError(
            "Expected at least one run that does not fail, but all of them did, or were lost when "
            "the search was stopped; the search is charged and over. Train each candidate with "
            "pv.Trainer on dummy records to find out why; smaller learning rates may help."
        )
    plan = runs.plan
    tried = tuple(
        CandidateResult(runs.candidates[each.candidate], each.score, runs.model(each))
        for _, each in sorted(now.outcomes.items())
        if plan.all_released
    )
    _log.info("best: %s", runs.candidates[best.candidate])
    return Selection(
        model=runs.model(best),
        settings=copy.copy(runs.candidates[best.candidate]),
        score=None if best.score != best.score else best.score,
        score_std=best.score_std,
        price=plan.price,
        noise_multiplier=plan.noise_multipliers[best.candidate],
        tried=tried,
        candidates=len(runs.candidates),
        run_charges=Tally(dict(plan.tallies[best.candidate])),
        statement=_statement(runs, now.run, ledger),
    )


def _statement(runs: CandidateRuns, run: str, ledger: Ledger) -> Statement:
    """Return the statement of a search that is done."""
    plan, noise = runs.plan, GaussianNoise(runs.rng("noise"))
    released = (
        "every candidate runs once, and all models and scores are released"
        if plan.all_released
        else f"a random number of runs, {plan.expected_runs:g} expected, and the best one alone is "
        "released"
    )
    return Statement(
        private=noise.secure and runs.private,
        dataset=ledger.dataset,
        unit=runs.unit,
        relation=events.common_relation(ledger.totals()),
        epsilon=ledger.epsilon(plan.delta),
        delta=plan.delta,
        run=run,
        run_epsilon=plan.run_epsilon,
        accountant="rdp" if not (plan.all_released or ledger.adaptive) else ledger.accountant,
        budget=ledger.budget,
        ledger=IN_MEMORY if not ledger.durable else ledger.name,
        method=f"selection among {len(runs.candidates)} candidates by {plan.how}: {released}",
        sampling=f"{runs.sampling.name}, of the {_counted(runs)} that were not set apart for "
        "scores",
        noise=noise.describe(),
        progress="all runs taken",
        charges=ledger.charges(),
        assumptions=tuple(_assumptions(runs, ledger, noise.secure)),
        seeded=not noise.secure,
        kind=ledger.kind,
        counting=ledger.describe(),
    )


def _counted(runs: CandidateRuns) -> str:
    """Return what is drawn and counted, in words."""
    return f"{runs.unit}s" if runs.parts.grouped else "records"


def _assumptions(runs: CandidateRuns, ledger: Ledger, secure: bool) -> list[str]:
    """Return what the promise of a search rests on."""
    unit, parts = runs.unit, runs.parts
    number = parts.population + (0 if parts.public else parts.scored_population)
    rows = parts.rows_per_unit if parts.grouped else None
    listed = [
        bill.whose(unit, rows, "their gradients, or of their scores"),
        bill.public_number(_counted(runs), number),
        parts.words,
        "The candidates, their first parameters and the terms of the search were chosen without "
        "looking at these records, or by looks that this ledger lists.",
        bill.STRUCTURE,
    ]
    if not isinstance(parts.train, tuple | list):
        listed.append(bill.one_by_one(unit))
    if not runs.plan.all_released:
        listed.append(
            "How many runs there were, which candidates ran and how long it took stay secret: the "
            "price is that of the best run alone."
        )
    if not ledger.durable:
        listed.append(bill.in_memory("the search"))
    listed += [each for source in runs.sources for each in bill.side_information(source)]
    if not secure:
        listed.append("seeded: not a private release. Everything drawn follows from a seed.")
    return listed
