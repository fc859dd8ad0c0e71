"""The recommendation of a plan: a rule of thumb about noise, and its reasons in words."""

import math
from collections.abc import Iterable

from privada.accounting.budget import Budget
from privada.selection.budget_plan import (
    PlannedRun,
    PlannedSearch,
    Recommendation,
    steps_in_words,
)
from privada.selection.defaults import default_delta
from privada.selection.prices import often_no_run

# The recommendation's rule: noise this close to the least counts as good as the least,
NEAR = 1.10
# an optimiser should have this many steps to make,
ENOUGH_STEPS = 500
# and a larger search is called cheap when it needs so little more noise than the smallest.
CHEAP = 1.25


def choose_run(settings: tuple[PlannedRun, ...]) -> PlannedRun:
    """Return the run that `plan`'s rule prefers."""
    least = min(each.run_noise for each in settings)
    near = [each for each in settings if each.run_noise <= NEAR * least]
    enough = [each for each in near if each.steps >= ENOUGH_STEPS]
    if enough:
        return min(enough, key=lambda each: (each.epochs, each.run_noise))
    return min(near, key=lambda each: (-each.steps, each.epochs))


def _cheapest(searches: Iterable[PlannedSearch], count: int) -> PlannedSearch | None:
    """Return the search among so many candidates that needs the least noise, if one can be had."""
    able = [
        s
        for s in searches
        if s.candidates == count
        and s.noise_multiplier is not None
        and not often_no_run(s.how, count)
    ]
    return min(able, key=lambda s: s.noise_multiplier or math.inf, default=None)


def recommend(
    records: int,
    budget: Budget,
    settings: tuple[PlannedRun, ...],
    chosen: PlannedRun,
    searches: tuple[PlannedSearch, ...],
    adaptive_noise: float,
) -> Recommendation:
    """Return the chosen run, a search if one can be had, and what is to be said of them."""
    best = {each: _cheapest(searches, each) for each in sorted({s.candidates for s in searches})}
    able = {count: search for count, search in best.items() if count > 1 and search is not None}
    few = able[min(able)] if able else None
    reasons = [
        *_about_run(settings, chosen),
        f"On an adaptive ledger, on which later runs may be chosen in the light of this one, it "
        f"needs {adaptive_noise / chosen.noise_multiplier:.3g} times the noise, "
        f"{adaptive_noise:.4g}.",
        *_about_searches(able, searches, few),
    ]
    warnings = []
    if chosen.steps < ENOUGH_STEPS:
        warnings.append(
            f"{steps_in_words(chosen.steps)} may be too few to train. Give a smaller batch size or "
            "more epochs."
        )
    norm = chosen.run_noise_norm
    if norm is not None and norm >= 1:
        warnings.append(
            f"Over the whole run the noise is {norm:.3g} times as long as all clipped gradients "
            "can be at most. Train fewer parameters, for instance the last layers of a public "
            "model, or get more records or a larger budget."
        )
    bound = 1 / records
    if budget.delta >= bound:
        warnings.append(
            f"delta={budget.delta:g} is not below 1 / n = {bound:.3g}: it would allow publishing a "
            f"whole record now and then. Choose a smaller delta, for instance "
            f"{default_delta(records):g}."
        )
    reasons.append("This is a rule of thumb about noise, not a promise of accuracy.")
    return Recommendation(chosen, few, tuple(reasons), tuple(warnings))


def _about_run(settings: tuple[PlannedRun, ...], chosen: PlannedRun) -> list[str]:
    least = min(settings, key=lambda each: each.run_noise)
    found = [
        f"Train for {chosen}: {steps_in_words(chosen.steps)} at a noise multiplier of "
        f"{chosen.noise_multiplier:.4g}."
    ]
    words = (
        f"Over the run the noise in one coordinate is {chosen.run_noise:.3g} of what the clipped "
        "gradients can add up to"
    )
    if chosen == least:
        found.append(f"{words}, the least of the table.")
    else:
        found.append(
            f"{words}, {chosen.run_noise / least.run_noise - 1:.1%} above the least of the table, "
            f"which is {least}, {steps_in_words(least.steps)}."
        )
    if chosen.parameters is not None:
        found.append(
            f"Over {chosen.parameters:,} parameters its norm is {chosen.run_noise_norm:.3g} of the "
            f"clip norm, and in a single step {chosen.step_noise_norm:.3g} times the clip norm."
        )
    return found


def _about_searches(
    able: dict[int, PlannedSearch], searches: tuple[PlannedSearch, ...], few: PlannedSearch | None
) -> list[str]:
    """Return what to say of tuning; `able` has the cheapest search for each number above one."""
    if few is None:
        return []
    found = [
        f"The best of {few.candidates:,} costs least by {few.how}: {few.times:.3g} times the noise "
        f"of one run, {few.noise_multiplier:.4g}, keeps the search within the budget."
    ]
    if few.one_at_most > 0:
        found[-1] += (
            " The number of runs is then random, and the best model alone is released; "
            f"{_chance(few)}."
        )
    composed = next(s for s in searches if (s.how, s.candidates) == ("compose-pld", few.candidates))
    if few.how != composed.how and composed.times is not None:
        found.append(
            f"To make all {few.candidates} runs and look at all of them, compose-pld needs "
            f"{composed.times:.3g} times the noise."
        )
    most = few.noise_multiplier or math.inf
    cheap = [s for s in able.values() if (s.noise_multiplier or math.inf) <= CHEAP * most]
    many = max(cheap, key=lambda s: s.candidates)
    if many != few:
        more = (many.noise_multiplier or math.inf) / most - 1
        found.append(
            f"Once a search is paid for, more candidates cost little: {many.candidates:,} by "
            f"{many.how} need {more:.0%} more noise than {few.candidates:,}; {_chance(many)}."
        )
    advice = (
        "dp-adam at its usual learning rate of 0.001, and dp-adam-wosm, needed no search for the "
        "learning rate on the data of Mohapatra et al. (2022): choose among 4 clip norms, not "
        "among 40 pairs of learning rate and clip norm"
    )
    if 4 in able and 40 in able:
        four, forty = (able[k].noise_multiplier or math.inf for k in (4, 40))
        advice += f", and each run has {1 - four / forty:.0%} less noise"
    found.append(advice + ".")
    found.append(
        "Searches are priced for training; scores on records set apart cost nothing beside it."
    )
    return found


def _chance(search: PlannedSearch) -> str:
    return f"with probability {search.one_at_most:.1%} there is one run or none"
