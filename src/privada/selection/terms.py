"""The terms of a search: which way it goes, how much noise each run has, and what it costs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from dp_accounting import DpEvent

from privada.accounting import Budget, epsilon_of, events, rdp
from privada.accounting.calibration import least_noise
from privada.accounting.events import Items, Parallel, Selected, Tally, items_of
from privada.accounting.orders import Vector
from privada.accounting.repetition import checked_mean, liu_talwar
from privada.core.errors import ArgumentError
from privada.core.validation import not_negative, one_of, positive, probability
from privada.selection.prices import NEGATIVE_BINOMIAL, SHAPES, WAYS, Price, often_no_run, priced

# What a run releases of its training records, given its noise multiplier.
Charges = Callable[[float], Tally]
# Composition by RDP is never cheaper to charge: the ledger takes the lesser of both.
SEARCHES = tuple(way for way in WAYS if way != "compose-rdp")


@dataclass(frozen=True)
class Terms:
    """What was agreed before any data is read.

    `sigmas` has the noise multiplier of each candidate's runs; `score_noise` that of the scores,
    None where they are of public records and cost nothing; `mean` the expected number of runs.
    """

    how: str
    mean: float
    shape: float
    sigmas: tuple[float, ...]
    score_noise: float | None
    delta: float
    tallies: tuple[Items, ...]

    @property
    def all_released(self) -> bool:
        """Whether every candidate runs once and everything is released."""
        return self.how.startswith("compose")

    def allowance(self, candidate: int) -> Tally:
        """Return what a run of a candidate may release, its score included."""
        return _with_score(dict(self.tallies[candidate]), self.score_noise)

    @cached_property
    def event(self) -> DpEvent:
        """What the whole search is charged as."""
        return _event(self.how, self.tallies, self.score_noise, self.mean, self.shape)

    @cached_property
    def price(self) -> Price:
        """What the whole search costs, by itself."""
        return priced(self.how, epsilon_of({self.event: 1}, self.delta), self.delta, self.mean)


def _with_score(tally: Mapping[DpEvent, int], score_noise: float | None) -> Tally:
    total = Tally(tally)
    if score_noise is not None:
        total[events.gaussian(score_noise)] += 1
    return total


def _apart(training: Mapping[DpEvent, int], scores: Mapping[DpEvent, int]) -> Items:
    """Return the tally of training and scores on records of which none is in both."""
    if not scores:
        return items_of(training)
    return items_of({Parallel((items_of(training), items_of(scores))): 1})


def _event(
    how: str, tallies: Sequence[Items], score_noise: float | None, mean: float, shape: float
) -> DpEvent:
    score = {} if score_noise is None else {events.gaussian(score_noise): 1}
    if how.startswith("compose"):
        training: Tally = Tally()
        for tally in tallies:
            training.update(dict(tally))
        scores = {event: len(tallies) for event in score}
        return Parallel((items_of(training), items_of(scores)))
    # candidates that are charged alike are one kind of run
    kinds = dict.fromkeys(_apart(dict(tally), score) for tally in tallies)
    return Selected(tuple(kinds), float(mean), shape)


def _dearest(tallies: Sequence[Items]) -> Vector:
    kinds = dict.fromkeys(tallies)
    relation = events.common_relation(event for tally in kinds for event, _ in tally)
    return events.largest_divergence(tuple(kinds), relation)


def free_score_noise(tallies: Sequence[Items]) -> float:
    """Return the least noise with which scores cost no more, at any order, than training does.

    A record is trained on or scored, never both, so such scores add nothing to the price.
    """
    relation = events.common_relation(event for tally in tallies for event, _ in tally)
    unit = events.total_divergence({events.gaussian(1.0): 1}, relation)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = unit / _dearest(tallies)
    return float(np.sqrt(np.max(np.nan_to_num(ratios, nan=0.0)))) * (1 + 1e-9)


def _cost(how: str, event: DpEvent, tallies: Sequence[Items], mean: float, delta: float) -> float:
    """Return the epsilon by which noise is calibrated."""
    if how != "liu-talwar":
        return epsilon_of({event: 1}, delta)
    assert isinstance(event, Selected)
    one = _dearest(event.candidates)
    return liu_talwar(lambda small: rdp.to_epsilon(one, small), mean, delta)


def agree(
    charges: Sequence[Charges],
    *,
    how: str,
    mean: float | None,
    shape: float | None,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float | None,
    score_noise: float | None,
    scored: bool,
) -> Terms:
    """Return the terms of a search among candidates, of which each is charged as `charges` says.

    With a budget, each candidate's noise is the least with which the whole search would fit it if
    all candidates were like that one, times a common factor if they do not fit it together. With a
    noise multiplier, all candidates have that. "cheapest" is the way with the least noise, or the
    least epsilon, Poisson left out where it would often have no run at all; it depends on nothing
    but these arguments.
    """
    one_of("how", how, (*SEARCHES, NEGATIVE_BINOMIAL, "cheapest"))
    if (budget is None) == (noise_multiplier is None):
        raise ArgumentError(
            "Expected exactly one of budget and noise_multiplier, got "
            f"{'neither' if budget is None else 'both'}. A budget is for the search as a whole."
        )
    if budget is not None and not isinstance(budget, Budget):
        raise ArgumentError(
            f"Expected budget to be a Budget, got budget={budget!r}. Write pv.Budget(epsilon, "
            "delta)."
        )
    if (how == NEGATIVE_BINOMIAL) != (shape is not None):
        raise ArgumentError(
            f"Expected shape with how={NEGATIVE_BINOMIAL!r} and with that alone, got "
            f"how={how!r}, shape={shape!r}."
        )
    if budget is not None:
        if delta not in (None, budget.delta):
            raise ArgumentError(
                f"Expected delta to be left out or equal to the budget's ({budget.delta}), got "
                f"delta={delta!r}."
            )
        delta = budget.delta
    if delta is None:
        raise ArgumentError(
            "Expected delta, got delta=None. With noise_multiplier, give the delta at which "
            "epsilon is to be reported, well below 1 / n."
        )
    delta = probability("delta", delta)
    mean = float(len(charges)) if mean is None else checked_mean(mean)
    ways = SEARCHES if how == "cheapest" else (how,)
    if score_noise is not None:
        score_noise = positive("score_noise", score_noise) if scored else None
    found, refused = [], None
    for way in ways:
        if way.startswith("compose") and mean != len(charges):
            if how == "cheapest":
                continue
            raise ArgumentError(
                f"Expected candidates={len(charges)} or none with how={how!r}, under which each "
                f"candidate runs once, got candidates={mean:g}."
            )
        if how == "cheapest" and often_no_run(way, mean):
            continue
        law = SHAPES.get(way, 1.0) if shape is None else not_negative("shape", shape)
        try:
            found.append(
                _agreed(
                    charges, way, mean, law, budget, noise_multiplier, delta, score_noise, scored
                )
            )
        except ArgumentError as error:  # no noise is enough for this way, as for a tiny epsilon
            refused = error
    if refused is not None and not found:
        raise refused
    return min(found, key=lambda t: (sum(math.log(sigma) for sigma in t.sigmas), t.price.epsilon))


def _agreed(
    charges: Sequence[Charges],
    how: str,
    mean: float,
    shape: float,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float,
    score_noise: float | None,
    scored: bool,
) -> Terms:
    def terms(sigmas: Sequence[float], factor: float = 1.0) -> Terms:
        sigmas = tuple(factor * sigma for sigma in sigmas)
        tallies = tuple(items_of(c(sigma)) for c, sigma in zip(charges, sigmas, strict=True))
        noise = score_noise
        if scored and noise is None:
            noise = factor * free_score_noise(tallies)
        return Terms(how, mean, shape, sigmas, noise, delta, tallies)

    def cost(terms: Terms) -> float:
        return _cost(how, terms.event, terms.tallies, mean, delta)

    if noise_multiplier is not None:
        return terms([positive("noise_multiplier", noise_multiplier)] * len(charges))
    assert budget is not None
    words = f"{budget} for the whole search by {how}"
    alone: dict[Items, float] = {}
    sigmas = []
    for each in charges:
        kind = items_of(each(1.0))
        if kind not in alone:
            copies = len(charges) if how.startswith("compose") else 1

            def like(sigma: float, each: Charges = each, copies: int = copies) -> float:
                tallies = (items_of(each(sigma)),) * copies
                event = _event(how, tallies, None, mean, shape)
                return _cost(how, event, tallies, mean, delta)

            alone[kind] = least_noise(like, budget.epsilon, words)
        sigmas.append(alone[kind])
    agreed = terms(sigmas)
    if cost(agreed) <= budget.epsilon:
        return agreed
    return terms(sigmas, least_noise(lambda f: cost(terms(sigmas, f)), budget.epsilon, words))
