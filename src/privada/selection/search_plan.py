"""The plan of a search: which way it goes, how much noise each run has, and what it costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from dp_accounting import DpEvent

from privada.accounting import Budget, Ledger, epsilon_of, events, rdp
from privada.accounting.calibration import least_noise
from privada.accounting.events import Items, Parallel, Selected, Tally, items_of
from privada.accounting.orders import Vector
from privada.accounting.repetition import checked_mean, liu_talwar
from privada.core.errors import ArgumentError
from privada.core.validation import not_negative, one_of, positive, probability
from privada.mechanism import Mechanism
from privada.selection.prices import NEGATIVE_BINOMIAL, SHAPES, WAYS, Price, often_no_run, priced

# Composition by RDP is never cheaper to charge: the ledger takes the lesser of both.
SEARCHES = tuple(way for way in WAYS if way != "compose-rdp")


@dataclass(frozen=True)
class SearchPlan:
    """What a search will do and cost, known before any data is read.

    `noise_multipliers` has the noise of each candidate's runs; `score_noise` is that of the scores,
    None where they are of public records and cost nothing; `tallies` has what a run of each
    candidate is charged as, its score left out; `noise_factor` is by how much an adaptive ledger
    has made all noise larger; `paid` is what the same run was charged before, for other queries.
    """

    how: str
    expected_runs: float
    shape: float
    noise_multipliers: tuple[float, ...]
    score_noise: float | None
    delta: float
    tallies: tuple[Items, ...]
    noise_factor: float = 1.0
    paid: Items = ()

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
        return _event(self.how, self.tallies, self.score_noise, self.expected_runs, self.shape)

    @cached_property
    def price(self) -> Price:
        """What the whole search costs, by itself."""
        epsilon = epsilon_of({self.event: 1}, self.delta)
        return priced(self.how, epsilon, self.delta, self.expected_runs)

    @cached_property
    def run_epsilon(self) -> float:
        """What the whole search costs, with what its run was charged before."""
        return epsilon_of(Tally({self.event: 1}) + Tally(dict(self.paid)), self.delta)

    @property
    def log_noise(self) -> float:
        """The sum of the logarithms of all noise multipliers."""
        return sum(math.log(sigma) for sigma in self.noise_multipliers)


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
    how: str,
    tallies: Sequence[Items],
    score_noise: float | None,
    expected_runs: float,
    shape: float,
) -> DpEvent:
    """Return what a whole search is charged as."""
    score = {} if score_noise is None else {events.gaussian(score_noise): 1}
    if how.startswith("compose"):
        training: Tally = Tally()
        for tally in tallies:
            training.update(dict(tally))
        scores = {event: len(tallies) for event in score}
        return Parallel((items_of(training), items_of(scores)))
    # candidates that are charged alike are one kind of run
    kinds = dict.fromkeys(_apart(dict(tally), score) for tally in tallies)
    return Selected(tuple(kinds), float(expected_runs), shape)


def _most_expensive(tallies: Sequence[Items]) -> Vector:
    """Return, at each order, the divergence of the tally that costs most there."""
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
        ratios = unit / _most_expensive(tallies)
    return float(np.sqrt(np.max(np.nan_to_num(ratios, nan=0.0)))) * (1 + 1e-9)


def plan_search(
    mechanisms: Sequence[Mechanism],
    *,
    how: str,
    expected_runs: float | None,
    shape: float | None,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float | None,
    score_noise: float | None,
    scored: bool,
    ledger: Ledger | None = None,
    noise_factor: float | None = None,
    paid: Tally | None = None,
) -> SearchPlan:
    """Return the plan of a search among candidates, of which each runs one of the mechanisms.

    With a budget, each candidate's noise is the least with which the whole search would fit it if
    all candidates were like that one, times a common factor if they do not fit it together. With a
    noise multiplier, all candidates have that. "cheapest" is the way with the least noise, or the
    least epsilon, Poisson left out where it would often have no run at all; it depends on nothing
    but these arguments.

    An adaptive `ledger` counts by a filter, which takes more than the loss distributions that noise
    is calibrated by. A search that fits its budget by those alone gets the factor of noise with
    which it fits by the filter too; one that is resumed has the `noise_factor` that it began with.

    What the same run has `paid` for other queries counts within its budget, together with the
    search: noise is calibrated to what both cost jointly.
    """
    delta = _checked(how, shape, budget, noise_multiplier, delta)
    count = len(mechanisms)
    runs = float(count) if expected_runs is None else checked_mean(expected_runs)
    if score_noise is not None:
        score_noise = positive("score_noise", score_noise) if scored else None
    planner = _Planner(
        tuple(mechanisms), runs, delta, budget, noise_multiplier, score_noise, scored,
        Tally(paid or {}),
    )  # fmt: skip
    found, refused = [], None
    for way in SEARCHES if how == "cheapest" else (how,):
        if way.startswith("compose") and runs != count:
            if how == "cheapest":
                continue
            raise ArgumentError(
                f"Expected candidates={count} or none with how={how!r}, under which each "
                f"candidate runs once, got candidates={runs:g}."
            )
        if how == "cheapest" and often_no_run(way, runs):
            continue
        law = SHAPES.get(way, 1.0) if shape is None else not_negative("shape", shape)
        try:
            found.append(planner.plan(way, law))
        except ArgumentError as error:  # no noise is enough for this way, as for a tiny epsilon
            refused = error
    if refused is not None and not found:
        raise refused
    chosen = min(found, key=lambda plan: (plan.log_noise, plan.price.epsilon))
    if noise_factor is None:
        noise_factor = planner.noise_factor(chosen, ledger)
    return planner.scaled(chosen, noise_factor)


def _checked(
    how: str,
    shape: float | None,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float | None,
) -> float:
    """Return delta, and raise if an argument is wrong or missing."""
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
    return probability("delta", delta)


@dataclass(frozen=True)
class _Planner:
    """What is known before a way is chosen."""

    mechanisms: tuple[Mechanism, ...]
    expected_runs: float
    delta: float
    budget: Budget | None
    noise_multiplier: float | None
    score_noise: float | None
    scored: bool
    paid: Tally

    def plan(self, how: str, shape: float) -> SearchPlan:
        """Return the plan of one way.

        Raises:
            ArgumentError: no noise is enough for the budget.
        """
        if self.noise_multiplier is not None:
            sigma = positive("noise_multiplier", self.noise_multiplier)
            return self._with_noise(how, shape, [sigma] * len(self.mechanisms))
        assert self.budget is not None
        budget, words = self.budget, f"{self.budget} for the whole search by {how}"
        sigmas = self._each_alone(how, shape, budget, words)
        planned = self._with_noise(how, shape, sigmas)
        if self._cost(how, planned.event) <= budget.epsilon:
            return planned

        def cost(factor: float) -> float:
            return self._cost(how, self._with_noise(how, shape, sigmas, factor).event)

        return self._with_noise(how, shape, sigmas, least_noise(cost, budget.epsilon, words))

    def scaled(self, plan: SearchPlan, factor: float) -> SearchPlan:
        """Return a plan with so many times as much noise."""
        if factor == 1:
            return plan
        more = self._with_noise(plan.how, plan.shape, plan.noise_multipliers, factor)
        return replace(more, noise_factor=factor)

    def noise_factor(self, plan: SearchPlan, ledger: Ledger | None) -> float:
        """Return how many times as much noise a search needs to fit a ledger by its filter.

        One that does not even fit by loss distributions, or whose noise was given, is left as it
        is, to be refused.
        """
        limit = None if ledger is None or not ledger.adaptive else ledger.budget
        if ledger is None or limit is None or self.budget is None:
            return 1.0

        def cost(factor: float) -> float:
            return ledger.cost("a search", {self.scaled(plan, factor).event: 1})

        if cost(1.0) <= limit.epsilon:
            return 1.0
        if epsilon_of(ledger.totals() + Tally({plan.event: 1}), limit.delta) > limit.epsilon:
            return 1.0
        return least_noise(cost, limit.epsilon, f"the budget of ledger {ledger.name!r}")

    def _with_noise(
        self, how: str, shape: float, sigmas: Sequence[float], factor: float = 1.0
    ) -> SearchPlan:
        sigmas = tuple(factor * sigma for sigma in sigmas)
        tallies = tuple(
            items_of(mechanism.charges_at(sigma))
            for mechanism, sigma in zip(self.mechanisms, sigmas, strict=True)
        )
        noise = self.score_noise
        if self.scored and noise is None:
            noise = factor * free_score_noise(tallies)
        return SearchPlan(
            how, self.expected_runs, shape, sigmas, noise, self.delta, tallies,
            paid=items_of(self.paid),
        )  # fmt: skip

    def _each_alone(self, how: str, shape: float, budget: Budget, words: str) -> list[float]:
        """Return the noise of each candidate, as if all others were like it."""
        copies = len(self.mechanisms) if how.startswith("compose") else 1
        known: dict[Items, float] = {}
        found = []
        for mechanism in self.mechanisms:

            def cost(sigma: float, mechanism: Mechanism = mechanism) -> float:
                tallies = (items_of(mechanism.charges_at(sigma)),) * copies
                return self._cost(how, _event(how, tallies, None, self.expected_runs, shape))

            kind = items_of(mechanism.charges_at(1.0))
            if kind not in known:
                known[kind] = least_noise(cost, budget.epsilon, words)
            found.append(known[kind])
        return found

    def _cost(self, how: str, event: DpEvent) -> float:
        """Return the epsilon by which noise is calibrated."""
        if how != "liu-talwar":
            return epsilon_of(Tally({event: 1}) + self.paid, self.delta)
        assert isinstance(event, Selected)
        one = _most_expensive(event.candidates)
        # the theorem says nothing of other queries: epsilons and deltas are added up
        delta, before = self.delta, 0.0
        if self.paid:
            delta = self.delta / 2
            before = epsilon_of(self.paid, delta)
        searched = liu_talwar(lambda small: rdp.to_epsilon(one, small), self.expected_runs, delta)
        return before + searched
