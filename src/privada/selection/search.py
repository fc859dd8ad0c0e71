"""The search: candidates are trained, scored and chosen from, for a price that is paid before."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from privada.accounting import Budget, Ledger
from privada.accounting.events import Tally
from privada.accounting.ledger import PLANNED
from privada.core.errors import ArgumentError
from privada.core.randomness import SeededSource, make_source
from privada.core.ranks import refuse_several
from privada.core.validation import integer, printable_text
from privada.mechanism import Mechanism
from privada.participation import Participation, participation
from privada.query.scores import Score, accuracy
from privada.selection import state as states
from privada.selection.candidates import Recipe, made, mechanism_of
from privada.selection.result import CandidateResult, Selection
from privada.selection.runs import CandidateRuns, charged_unit
from privada.selection.search_loop import TUNING, SearchSession, begin_state, continue_search
from privada.selection.search_plan import plan_search
from privada.selection.spaces import Settings, candidates_of
from privada.selection.split import Split, split
from privada.selection.state import SearchState
from privada.train.charges import open_ledger

__all__ = ["CandidateResult", "Selection", "select"]


def select(
    recipe: Recipe,
    data: Any,
    *,
    space: Any,
    validation: Any = 0.2,
    score: Score | None = None,
    how: str = "cheapest",
    candidates: float | None = None,
    shape: float | None = None,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    score_noise: float | None = None,
    sampling: str | Participation = "poisson",
    ledger: Ledger | str | os.PathLike[str] | None = None,
    seed: int | None = None,
    unit: str = "record",
    groups: Any = None,
    rows_per_unit: int | None = None,
    state: str | os.PathLike[str] | None = None,
    run: str | None = None,
    population: int | None = None,
    n_jobs: int | None = None,
    progress: bool = False,
) -> Selection:
    """Train candidates privately, score them privately, and return the best, at an honest price.

    The whole search is charged to the ledger before the first run. Within it, no run can release
    more than was paid for.

    Args:
        recipe: a function of settings that returns a `Candidate`.
        data: the private records, as for `Trainer`.
        space: the candidates' settings: a mapping of names to lists (every combination), a list of
            mappings, `Grid`, `RandomSpace` or `Suggest`, or scikit-learn's `ParameterGrid`.
        validation: what candidates are scored on: a share of the records, drawn by a coin for
            each; row numbers of `data`; records that are not in `data`; or `pv.Public` records,
            whose scores cost nothing.
        score: `accuracy()`, `bounded_loss(loss, bound)` or a `Score` of your own.
        how: a way of `WAYS`, or "cheapest", decided from public quantities alone. Under
            "compose-pld" each candidate runs once and everything is released. Under the others a
            random number of runs draw candidates with replacement, and the best run's model and
            score alone are released. "liu-talwar" stops by a coin after each run; its noise is
            calibrated by that theorem, and the ledger is charged by the tighter analysis of the
            same coin. "repeat-negative-binomial" takes a `shape`.
        candidates: the expected number of runs, by default the number of candidates.
        budget: what the search as a whole may cost; the noise is calibrated to it.
        noise_multiplier: the noise of every run instead, with the `delta` to report epsilon at.
        score_noise: the noise multiplier of scores. By default the least with which they cost
            nothing beside training: a record is trained on or scored, never both.
        sampling, ledger, seed, unit: as for `Trainer`.
        groups: one identifier for each row of `data`: the promise is then for all rows of a person,
            not for a row, and a candidate's `batch_size` counts persons. Whole persons are set
            apart for scores; a person's score is the average over some of their rows.
        rows_per_unit: how many rows of a person a step, or a score, looks at, at most, by default
            8; they are chosen afresh each time.
        state: a file to go on from when the search was killed. It is private until the search is
            done, and needs a ledger file.
        run: the name that the search is charged under, by default one of its own. What the ledger
            holds under it already, such as queries for bounds, counts within the budget; together
            they cost at most that.
        population: the public number of records, or of persons, where some were left out of `data`
            in a way that depends on the records; `validation` is then a share.
        n_jobs: how many runs go side by side, through joblib; its `parallel_config` decides where,
            on this machine by default.
        progress: show a bar. It tells the number of runs under composition only.

    Returns:
        The best model, its settings and its score, with the price and the statement of the search.

    Guarantee: the returned `Selection` is (epsilon, delta)-differentially private at its `price`,
    together with everything else on the ledger as its statement says. A search that is killed and
    resumed from `state` is charged once, takes no run twice and gives out one result, whoever
    copies the file.

    On a ledger that is made for the search, all of it is declared before the first run. One that
    exists is charged as it counts: by a filter, if it is adaptive, for which noise may have to be a
    little more than the budget alone would ask for.

    Edge cases: where candidates differ in cost, the most expensive one decides the price, and with
    a budget each gets the noise that it needs. A candidate that fails on dummy examples raises
    before anything is charged; a run that fails later, for whatever reason, counts as the worst,
    and so does one that was under way when the search was killed: what it has released is paid for.
    What a recipe returns is copied, so it may keep a model and return it again. With Poisson
    stopping there may be no run at all. How long a search takes hints at the secret number of runs,
    and so does whatever a recipe or a score prints: do not publish it. Two calls on one state at a
    time: the later one goes on, and the earlier one is refused.

    Example:
        >>> import privada as pv, torch
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> def recipe(lr, clip):
        ...     return pv.selection.Candidate(
        ...         torch.nn.Linear(64, 10), torch.nn.CrossEntropyLoss(),
        ...         pv.methods.DPSGD(lr=lr, clip=clip), batch_size=100, epochs=2,
        ...     )
        >>> found = pv.selection.select(
        ...     recipe, (x / 16, y), space={"lr": [0.5, 2.0], "clip": [1.0]},
        ...     budget=pv.Budget(3.0, 1e-4), how="repeat-geometric",
        ... )
        >>> found.epsilon() <= 3.0, sorted(found.settings)
        (True, ['clip', 'lr'])

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Section 3; Papernot and Steinke (2022),
    Hyperparameter Tuning with Renyi Differential Privacy, arXiv 2110.03620, Theorems 2 and 6; Liu
    and Talwar (2019), Private Selection from Private Candidates, arXiv 1811.07971, Theorem 3.4.
    """
    session = prepare_search(
        recipe,
        data,
        space=space,
        validation=validation,
        score=score,
        how=how,
        candidates=candidates,
        shape=shape,
        budget=budget,
        noise_multiplier=noise_multiplier,
        delta=delta,
        score_noise=score_noise,
        sampling=sampling,
        ledger=ledger,
        seed=seed,
        unit=unit,
        groups=groups,
        rows_per_unit=rows_per_unit,
        state=state,
        run=run,
        population=population,
        n_jobs=n_jobs,
    )
    session.pay(budget)
    return continue_search(session, n_jobs, progress)


def prepare_search(
    recipe: Recipe,
    data: Any,
    *,
    space: Any,
    validation: Any = 0.2,
    score: Score | None = None,
    how: str = "cheapest",
    candidates: float | None = None,
    shape: float | None = None,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    score_noise: float | None = None,
    sampling: str | Participation = "poisson",
    ledger: Ledger | str | os.PathLike[str] | None = None,
    seed: int | None = None,
    unit: str = "record",
    groups: Any = None,
    rows_per_unit: int | None = None,
    state: str | os.PathLike[str] | None = None,
    run: str | None = None,
    population: int | None = None,
    n_jobs: int | None = None,
) -> SearchSession:
    """Return a search that `select` would pay for next: planned, and tried on dummy examples.

    Guarantee: nothing is charged, and no record is looked at. What can be wrong has been raised.
    """
    refuse_several(
        "a search",
        "Start it in one process; its runs go side by side with n_jobs, or on a cluster.",
    )
    taking_part = participation(sampling)
    unit, score = _checked(recipe, score, seed, unit, groups)
    opened = _opened(ledger, budget, state)
    before = states.read(state)
    if run is not None:
        printable_text("run", run)
    name = run if before is None else before.run
    if run not in (None, name):
        raise ArgumentError(
            f"Expected run to be {name!r}, under which the search in {os.fspath(state or '')!r} "
            f"was begun, got run={run!r}. Leave it out or give that."
        )
    settings = tuple(candidates_of(space))
    parts = split(
        data,
        validation,
        taking_part,
        lambda: make_source(seed, "split"),
        None if before is None else before.mask,
        groups=groups,
        rows_per_unit=rows_per_unit,
        unit=unit,
        population=None if population is None else integer("population", population),
    )
    opened.check_unit(charged_unit(unit, parts.grouped))
    described = _described(recipe, settings, parts, taking_part, unit)
    plan = plan_search(
        described.mechanisms,
        how=how,
        expected_runs=candidates,
        shape=shape,
        budget=budget,
        noise_multiplier=noise_multiplier,
        delta=delta,
        score_noise=score_noise,
        scored=not parts.public,
        ledger=opened,
        noise_factor=None if before is None else before.noise_factor,
        paid=_paid(opened, name),
    )
    runs = CandidateRuns(
        recipe, settings, plan, parts, score, taking_part, seed, opened.dataset, unit,
        described.sources, described.private,
    )  # fmt: skip
    session = _checked_session(runs, described.words, opened, before, state, name)
    session.try_workers(n_jobs)
    return session


def dry_run_search(
    recipe: Recipe, data: Any, *, ledger: Ledger, budget: Budget, **asked: Any
) -> Tally:
    """Return what `select` would charge, and raise what it would raise, on a copy of its ledger.

    A copy that is not a planned ledger is charged; a planned one is asked when it is declared.
    """
    session = prepare_search(recipe, data, ledger=ledger, budget=budget, **asked)
    if ledger.kind != PLANNED:
        session.pay(budget)
    return Tally({session.runs.plan.event: 1})


def _paid(ledger: Ledger, run: str | None) -> Tally:
    """Return what a run was charged before its search, for queries."""
    total = Tally()
    for each in ledger.charges() if run is not None else ():
        if each.run == run and each.purpose != TUNING:
            total[each.event] += each.count
    return total


def _checked_session(
    runs: CandidateRuns,
    words: list[str],
    ledger: Ledger,
    before: SearchState | None,
    path: str | os.PathLike[str] | None,
    run: str | None,
) -> SearchSession:
    """Return a search that is ready to be paid, whose candidates run on dummy examples."""
    for index in range(len(runs.candidates)):
        runs.check(index)
    fingerprint = runs.fingerprint(words, ledger)
    if before is not None:
        states.refuse_other(before, fingerprint, path)
    begun = before or begin_state(runs, fingerprint, run)
    return SearchSession(runs, begun, ledger, path, resumed=before is not None)


def _checked(
    recipe: Recipe, score: Score | None, seed: int | None, unit: str, groups: Any
) -> tuple[str, Score]:
    """Return what one unit is called and the score, and raise if an argument is wrong."""
    if not callable(recipe):
        raise ArgumentError(
            "Expected recipe to be a function of settings that returns a Candidate, got "
            f"{recipe!r}."
        )
    if seed is not None:
        integer("seed", seed, least=0)
    printable_text("unit", unit)
    unit = "person" if groups is not None and unit == "record" else unit
    if score is None:
        return unit, accuracy()
    if not isinstance(score, Score):
        raise ArgumentError(
            f"Expected score to be a Score, got score={score!r}. Use pv.selection.accuracy(), "
            "bounded_loss(loss, bound) or Score(name, function, low, high)."
        )
    return unit, score


def _opened(
    ledger: Ledger | str | os.PathLike[str] | None,
    budget: Budget | None,
    state: str | os.PathLike[str] | None,
) -> Ledger:
    """Return the ledger; a search that may be resumed needs one that outlives the process."""
    opened = open_ledger(ledger, budget)
    if state is not None and not opened.durable:
        raise ArgumentError(
            "Expected a ledger file with state=, got a ledger in memory, which is gone with its "
            "process and could not tell whether a resumed search was paid for. Give ledger a path."
        )
    return opened


class _Described(NamedTuple):
    """What is known of all candidates before any of them runs."""

    mechanisms: list[Mechanism]
    words: list[str]
    sources: tuple[str, ...]
    private: bool


def _described(
    recipe: Recipe,
    settings: Sequence[Settings],
    parts: Split,
    taking_part: Participation,
    unit: str,
) -> _Described:
    """Return what each candidate's run will do, and what its method knows of the records."""
    mechanisms, words, sources, private = [], [], [], True
    for each in settings:  # one at a time: models may be large
        candidate = made(recipe, each, SeededSource(0, "pool"))
        mechanisms.append(
            mechanism_of(candidate, parts.population, taking_part, grouped=parts.grouped, unit=unit)
        )
        words.append(candidate.describe())
        method = candidate.method.parts(1)
        sources += [method.preconditioner.source, method.rule.source]
        private = private and method.preconditioner.private
    return _Described(mechanisms, words, tuple(dict.fromkeys(filter(None, sources))), private)
