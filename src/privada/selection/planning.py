"""What a budget affords, before any data is read: noise, searches and a recommendation."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from privada.accounting import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.calibration import Estimate, estimate, least_noise
from privada.accounting.events import Tally
from privada.accounting.filters import RenyiFilter
from privada.accounting.repetition import stopping_rate
from privada.core.errors import ArgumentError
from privada.core.validation import integer, positive
from privada.participation import Participation, participation
from privada.participation.cyclic import charges_for, steps_of_a_charge
from privada.selection.budget_plan import (
    BudgetPlan,
    PlannedRun,
    PlannedSearch,
    Recommendation,
)
from privada.selection.defaults import CANDIDATES, EPOCHS, default_batch_sizes, default_delta
from privada.selection.prices import WAYS, in_each_way, noise_for, priced
from privada.selection.recommendation import choose_run, recommend

__all__ = [
    "CANDIDATES",
    "BudgetPlan",
    "PlannedRun",
    "PlannedSearch",
    "Recommendation",
    "default_batch_sizes",
    "default_delta",
    "plan",
]

_Number = TypeVar("_Number", int, float)


def plan(
    *,
    records: int,
    budget: Budget,
    parameters: int | None = None,
    batch_sizes: Iterable[int] | None = None,
    epochs: Iterable[float] | None = None,
    candidates: Iterable[int] = CANDIDATES,
    sampling: str | Participation = "poisson",
) -> BudgetPlan:
    """Return what a budget affords: the noise of single runs, the price of searches, and advice.

    Each pair of a batch size B and a number of epochs is a run of T = ceil(epochs n / B) steps,
    whose noise is calibrated to the whole budget. The advice follows a rule. Runs whose noise is
    within 10% of the least in the table count as good. Among them those of 500 steps or more are
    preferred, then the fewest epochs, which cost the least work, and for equal work the least
    noise. If none of them has so many steps, it is the one that has most. Searches are priced for
    runs like that one.

    Args:
        records: the number of records, or of persons if persons are protected.
        budget: what is to be spent.
        parameters: how many parameters are trained; it scales the norm of the noise and does not
            change the choice.
        batch_sizes: expected numbers of records in a step.
        epochs: how long to train.
        candidates: numbers of candidates to choose among.
        sampling: who takes part in a step, as for `Trainer`.

    Returns:
        The runs, the searches and the recommendation.

    Guarantee: all of it is computed from public quantities; no data is read, nothing is charged.
    Runs made as listed cost at most the budget. The advice is a rule of thumb about noise: it
    promises no accuracy.

    Edge cases: without `batch_sizes` there are up to five powers of two below a third of the
    records; without `epochs` they are 1, 3, 10, 30 and 100. Repeated entries count once. A way that
    cannot reach the budget with any noise has no multiplier. A delta of 1 / n or more is warned
    about in the recommendation. With very many records the rule asks for much work: give only what
    can be computed. Prices are those of training; scores on records that no candidate is trained on
    cost nothing beside it, as `select` makes them.

    Example:
        >>> import privada as pv
        >>> from privada.selection import plan
        >>> afforded = plan(
        ...     records=60_000, budget=pv.Budget(1.0, 1e-6), batch_sizes=[256, 1024],
        ...     epochs=[10, 30], candidates=[4, 40],
        ... )
        >>> advice = afforded.recommendation
        >>> advice.setting.batch_size, advice.setting.epochs, advice.search.how
        (1024, 10.0, 'repeat-logarithmic')

    Reference: Sander, Stock and Sablayrolles (2023), TAN Without a Burn, arXiv 2210.03403, for the
    noise; Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Sections 4 and 5, for the search.
    """
    records = integer("records", records, remedy="Give the number of records.")
    if not isinstance(budget, Budget):
        raise ArgumentError(
            f"Expected budget to be a Budget, got budget={budget!r}. Give Budget(epsilon, delta)."
        )
    if parameters is not None:
        parameters = integer("parameters", parameters, remedy="Give the number that is trained.")
    sizes = _sorted(
        "batch_sizes",
        default_batch_sizes(records)
        if batch_sizes is None
        else (_checked_size(each, records) for each in batch_sizes),
    )
    passes = _sorted(
        "epochs", (positive("epochs", each) for each in (EPOCHS if epochs is None else epochs))
    )
    counts = _sorted("candidates", (integer("candidates", each) for each in candidates))
    afforded = _BudgetArithmetic(records, budget, parameters, participation(sampling))
    settings = tuple(afforded.run(size, duration) for size in sizes for duration in passes)
    chosen = choose_run(settings)
    adaptive = afforded.adaptive_noise(chosen)
    searches = tuple(search for count in counts for search in afforded.searches(chosen, count))
    return BudgetPlan(
        records=records,
        budget=budget,
        parameters=parameters,
        sampling=afforded.sampling.name,
        settings=settings,
        whole_noise=afforded.noise(records, 1) / records,
        searches=searches,
        recommendation=recommend(records, budget, settings, chosen, searches, adaptive),
        adaptive_noise=adaptive,
    )


@dataclass(frozen=True)
class _BudgetArithmetic:
    """The arithmetic of a budget: what runs and searches cost, and how much noise they need."""

    records: int
    budget: Budget
    parameters: int | None
    sampling: Participation

    def charges(self, batch_size: int, steps: int) -> Callable[[float], Tally]:
        """Return what `Trainer` would be charged for a run of so many steps, by its noise.

        As `privada.mechanism` says it of constant noise, without the engine that makes the steps.
        """
        sampler = self.sampling.among(self.records, batch_size)
        count = charges_for(steps, steps_of_a_charge(sampler))
        return lambda sigma: Counter({sampler.event(sigma): count})

    def noise(self, batch_size: int, steps: int) -> float:
        """Return the noise multiplier of a run that spends the whole budget."""
        charges, delta = self.charges(batch_size, steps), self.budget.delta
        return least_noise(
            lambda sigma: epsilon_of(charges(sigma), delta),
            self.budget.epsilon,
            f"epsilon={self.budget.epsilon} at delta={delta}",
            self._estimate(batch_size, steps),
        )

    def _estimate(self, batch_size: int, steps: int) -> Estimate:
        return estimate(
            sampling_rate=batch_size / self.records,
            steps=steps,
            delta=self.budget.delta,
            sampling=self.sampling.name,
        )

    def run(self, batch_size: int, epochs: float) -> PlannedRun:
        """Return a run that spends the whole budget."""
        steps = math.ceil(epochs * self.records / batch_size)
        return PlannedRun(batch_size, epochs, steps, self.noise(batch_size, steps), self.parameters)

    def adaptive_noise(self, run: PlannedRun) -> float:
        """Return the noise multiplier that a run needs on an adaptive ledger with this budget."""
        charges, budget = self.charges(run.batch_size, run.steps), self.budget

        def cost(noise_multiplier: float) -> float:
            tally = charges(noise_multiplier)
            return RenyiFilter.for_budget(budget, tally).epsilon(tally, budget.delta)

        return least_noise(cost, budget.epsilon, f"{budget} on an adaptive ledger")

    def searches(self, run: PlannedRun, count: int) -> list[PlannedSearch]:
        """Return the price of a search among so many runs like one, in each way."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        charges = self.charges(run.batch_size, run.steps)
        costs = in_each_way(charges(run.noise_multiplier), count, delta)
        about = self._estimate(run.batch_size, count * run.steps)
        found = []
        for how in WAYS:
            noise: float | None
            try:
                noise = noise_for(charges, count, epsilon, delta, how, about)
            except ArgumentError:  # no amount of noise reaches the budget
                noise = None
            times = None if noise is None else noise / run.noise_multiplier
            released = priced(how, costs[how], delta, count).released
            chance = _one_at_most(how, count)
            found.append(PlannedSearch(how, count, noise, times, costs[how], chance, released))
        return found


def _checked_size(value: int, records: int) -> int:
    size = integer("batch_size", value)
    if size > records:
        raise ArgumentError(
            f"Expected batch_size <= records, got batch_size={size} with records={records}. Give "
            "the expected number of records in a step."
        )
    return size


def _sorted(name: str, values: Iterable[_Number]) -> list[_Number]:
    found = sorted(set(values))
    if not found:
        raise ArgumentError(f"Expected at least one of {name}, got none. Leave it out or give one.")
    return found


def _one_at_most(how: str, count: int) -> float:
    """Return the chance that a search among so many candidates makes one run or none."""
    if how == "repeat-poisson":
        return math.exp(-count) * (1 + count)
    if count == 1:
        return 1.0
    if how.startswith("compose"):
        return 0.0
    if how == "repeat-logarithmic":
        gamma = stopping_rate(count, 0.0)
        return (1 - gamma) / -math.log(gamma)
    return 1 / count  # a coin of this rate ends the search
