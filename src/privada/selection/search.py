"""The search: candidates are trained, scored and chosen from, for a price that is paid before."""

import copy
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, effective_n_jobs
from torch import nn

from privada.accounting import Budget, Ledger, Statement, events
from privada.accounting.events import Tally
from privada.accounting.ledger import ROW, all_rows_of
from privada.core.errors import (
    ArgumentError,
    BudgetExceeded,
    LedgerError,
    ModelError,
)
from privada.core.randomness import SeededSource, integers, make_source
from privada.core.validation import integer, printable_text
from privada.noise import GaussianNoise
from privada.participation import Participation, participation
from privada.query.account import Account
from privada.query.scores import Score, accuracy
from privada.selection import state as states
from privada.selection.candidates import Recipe, made, mechanism_of
from privada.selection.marks import Marks
from privada.selection.prices import Price
from privada.selection.runs import Runs
from privada.selection.spaces import Settings, candidates_of
from privada.selection.split import split
from privada.selection.state import Outcome, State
from privada.selection.stopping import draw_runs
from privada.selection.terms import agree

_log = logging.getLogger("privada.selection")


@dataclass(frozen=True)
class Tried:
    """One candidate's run, of a search in which every candidate runs once and all are released.

    Example:
        >>> import privada as pv, torch
        >>> pv.selection.Tried({"lr": 0.1}, 0.9, torch.nn.Linear(2, 2)).settings
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
    tried: tuple[Tried, ...]
    candidates: int
    run_charges: Tally
    statement: Statement

    def epsilon(self) -> float:
        """Return the epsilon of everything charged on the ledger, this search included."""
        return self.statement.epsilon


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
            mappings, `Grid`, `Random` or `Suggest`, or scikit-learn's `ParameterGrid`.
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
        n_jobs: how many runs go side by side, through joblib; its `parallel_config` decides where,
            on this machine by default.
        progress: show a bar. It tells the number of runs under composition only.

    Guarantee: the returned `Selection` is (epsilon, delta)-differentially private at its `price`,
    together with everything else on the ledger as its statement says. A search that is killed and
    resumed from `state` is charged once, takes no run twice and gives out one result, whoever
    copies the file.

    Edge cases: where candidates differ in cost, the dearest decides the price, and with a budget
    each gets the noise that it needs. A candidate that fails on made-up examples raises before
    anything is charged; a run that fails later, for whatever reason, counts as the worst, and so
    does one that was under way when the search was killed: what it has released is paid for. What
    a recipe returns is copied, so it may keep a model and return it again. With Poisson stopping
    there may be no run at all. How long a search takes hints at the secret number of runs, and so
    does whatever a recipe or a score prints: do not publish it. Two calls on one state at a time:
    the later one goes on, and the earlier one is refused.

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
    Hyperparameter Tuning with Renyi Differential Privacy, Theorems 2 and 6; Liu and Talwar (2019),
    Private Selection from Private Candidates, Theorem 3.4.
    """
    if not callable(recipe):
        raise ArgumentError(
            "Expected recipe to be a function of settings that returns a Candidate, got "
            f"{recipe!r}."
        )
    taking_part = participation(sampling)
    printable_text("unit", unit)
    if groups is not None and unit == "record":
        unit = "person"
    if seed is not None:
        integer("seed", seed, least=0)
    if score is None:
        score = accuracy()
    if not isinstance(score, Score):
        raise ArgumentError(
            f"Expected score to be a Score, got score={score!r}. Use pv.selection.accuracy(), "
            "bounded_loss(loss, bound) or Score(name, function, low, high)."
        )
    opened = _opened(ledger, budget, state)
    before = states.read(state)
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
    )
    opened.check_unit(all_rows_of(unit) if parts.grouped else ROW)
    charges, described, sources, private = [], [], [], True
    for each in settings:  # one at a time: models may be large
        candidate = made(recipe, each, SeededSource(0, "pool"))
        mechanism = mechanism_of(candidate, parts.population, taking_part, parts.grouped)
        charges.append(mechanism.charges_at)
        described.append(candidate.describe())
        shape_of = candidate.method.parts(1).preconditioner
        sources.append(shape_of.source)
        private = private and shape_of.private
    terms = agree(
        charges,
        how=how,
        mean=candidates,
        shape=shape,
        budget=budget,
        noise_multiplier=noise_multiplier,
        delta=delta,
        score_noise=score_noise,
        scored=not parts.public,
    )
    search = Runs(
        recipe, settings, terms, parts, score, taking_part, seed, opened.dataset, unit,
        tuple(dict.fromkeys(filter(None, sources))), private,
    )  # fmt: skip
    for index in range(len(settings)):
        search.check(index)
    fingerprint = search.fingerprint(described, opened)
    if before is not None:
        states.refuse_other(before, fingerprint, state)
    now = before or _begun(search, fingerprint)
    list(_parallel(n_jobs)([delayed(search.ready)()]))
    marks = Marks(None if state is None else opened.path, now.run)
    try:
        _pay(search, now, opened, budget, state, marks)
    except BudgetExceeded:
        if before is None:  # nothing was begun: leave nothing that tells what would have been
            states.remove(state)
            marks.remove()
        raise
    return _go_on(search, now, opened, state, marks, n_jobs, progress)


def _opened(
    ledger: Ledger | str | os.PathLike[str] | None,
    budget: Budget | None,
    state: str | os.PathLike[str] | None,
) -> Ledger:
    if ledger is None or isinstance(ledger, Ledger):
        opened = ledger or Ledger(None, budget)
    else:
        opened = Ledger(ledger, None if Path(ledger).exists() else budget)
    if state is not None and opened.path is None:
        raise ArgumentError(
            "Expected a ledger file with state=, got a ledger in memory, which is gone with its "
            "process and could not tell whether a resumed search was paid for. Give ledger a path."
        )
    return opened


def _begun(search: Runs, fingerprint: str) -> State:
    """Draw how many runs there will be, and of which candidates."""
    terms, count = search.terms, len(search.candidates)
    run = f"select-{os.urandom(4).hex()}"
    if terms.all_released:
        draws = list(range(count))
    else:
        runs = draw_runs(terms.mean, terms.shape, search.rng("runs"))
        draws = integers(search.rng("draws"), count, runs).tolist() if runs else []
    return State(fingerprint, run, draws, search.parts.mask)


def _pay(
    search: Runs,
    now: State,
    ledger: Ledger,
    budget: Budget | None,
    path: str | os.PathLike[str] | None,
    marks: Marks,
) -> None:
    """Charge the whole search, unless that is done."""
    now.save(path)  # before the charge: a search that is killed in between can still be told apart
    event = search.terms.event
    paid = any((each.run, each.event) == (now.run, event) for each in ledger.charges())
    if not paid:
        marks.create()  # here alone: of a search that is paid for, marks that are gone are lost
        account = Account(
            ledger, run=now.run, purpose="tuning", limit=budget, unit=search.charged_unit
        )
        account.charge(event)


def _go_on(
    search: Runs,
    now: State,
    ledger: Ledger,
    path: str | os.PathLike[str] | None,
    marks: Marks,
    n_jobs: int | None,
    progress: bool,
) -> Selection:
    """Take the runs that are left, and give out the result.

    A run that was begun and is not done is lost: it has looked already, and counts as failed.
    """
    terms = search.terms
    _keep_given(search, now, ledger)  # an outdated copy takes nothing over from who goes on
    held = now.run, ledger.hold(now.run)
    _keep_given(search, now, ledger)
    begun = marks.read()

    def begin(number: int) -> None:
        with ledger.while_held(*held):
            marks.add(number)

    _log.info(
        "%s among %d candidates, %g runs %s; %s",
        terms.how,
        len(search.candidates),
        terms.price.runs,
        "in all" if terms.all_released else "expected",
        terms.price,
    )
    left = [(n, index) for n, index in enumerate(now.draws) if n not in now.done]
    lost = [(n, search.failed(index)) for n, index in left if begun is None or n in begun]
    fresh = [each for each in left if begun is not None and each[0] not in begun]
    with _bar(progress, len(now.draws), len(now.done), terms.all_released) as advance:
        for number, outcome in chain(lost, _runs(search, fresh, n_jobs, begin)):
            ledger.check_held(*held)
            _note(search, now, number, outcome)
            now.save(path)
            if terms.all_released:
                ledger.give(_label(now, number), outcome.digest(), held=held)
                _log.info(
                    "candidate %d of %d, %s: %s %.4g, noise %.2g",
                    number + 1, len(now.draws), search.candidates[outcome.candidate],
                    search.score.name, outcome.score, outcome.score_std,
                )  # fmt: skip
                advance()
    return _given_out(search, now, ledger, held, path, marks)


def _label(now: State, number: int) -> str:
    """Return the label under which a candidate's run is given out, under composition."""
    return f"{now.run}, candidate {number + 1}"


def _keep_given(search: Runs, now: State, ledger: Ledger) -> None:
    """Raise if something was given out that is not in the state; go on from what was.

    Once the best run is given out no other is taken: whether one were better would tell more.
    """
    if search.terms.all_released:
        labels = {number: _label(now, number) for number in range(len(now.draws))}
        given = {number: ledger.given(label) for number, label in labels.items()}
        there = {number: each.digest() for number, each in now.outcomes.items()}
        known = all(each in (None, there.get(number)) for number, each in given.items())
    else:
        one = ledger.given(now.run)
        if one is None:
            return
        now.outcomes = {n: each for n, each in now.outcomes.items() if each.digest() == one}
        now.draws, now.done, known = [], set(), bool(now.outcomes)
    if not known:
        raise LedgerError(
            f"Expected search {now.run!r} to be under way, but ledger {ledger.name!r} says that "
            "results were given out that are not in this state. Resume from the file that it went "
            "on with, or begin, and pay for, a new search."
        )


def _parallel(n_jobs: int | None) -> Parallel:
    """Return what takes runs side by side, no more of them under way than there are workers.

    It is quiet, whatever joblib's configuration says: it would count the runs. Ray's backend and
    others cannot give outcomes as they come.
    """
    given: dict[str, Any] = {
        "n_jobs": n_jobs,
        "verbose": 0,
        "pre_dispatch": "n_jobs",
        "batch_size": 1,
    }
    try:
        return Parallel(return_as="generator_unordered", **given)
    except ValueError:
        return Parallel(**given)


def _runs(
    search: Runs, left: list[tuple[int, int]], n_jobs: int | None, begin: Callable[[int], None]
) -> Iterator[tuple[int, Outcome]]:
    """Yield outcomes as they come, or in rounds where joblib's backend cannot do that.

    `begin` is called before each run. A run whose worker dies has failed, and the others go on.
    """
    waiting = deque(left)
    under_way: dict[int, int] = {}
    stopped: list[BaseException] = []

    def jobs(most: int) -> Iterator[Any]:
        for _ in range(most):
            number, index = waiting.popleft()
            try:
                begin(number)
            except BaseException as error:  # joblib would lose it, or wait for ever
                stopped.append(error)
                return
            under_way[number] = index
            yield delayed(search.attempt)(number, index)

    while waiting:
        before, parallel = len(waiting), _parallel(n_jobs)
        width = before if parallel.return_generator else max(1, effective_n_jobs(n_jobs))
        try:
            for number, outcome in parallel(jobs(min(before, width))):
                if under_way.pop(number, None) is not None:
                    yield number, outcome
        except Exception:
            if len(waiting) == before:  # no run was begun: the fault is not the data's
                raise
        if stopped:
            raise stopped[0]
        for number in list(under_way):
            yield number, search.failed(under_way.pop(number))


def _note(search: Runs, now: State, number: int, outcome: Outcome) -> None:
    """Keep an outcome; where one alone may be given out, keep none but the best."""
    now.done.add(number)
    now.outcomes[number] = outcome
    if not search.terms.all_released and len(now.outcomes) > 1:
        best = _best(search, now)
        now.outcomes = {best: now.outcomes[best]}


def _best(search: Runs, now: State) -> int:
    """Return the number of the best run, the first of those that are equal."""
    numbers = sorted(now.outcomes)
    best = numbers[0]
    for number in numbers[1:]:
        if search.better(now.outcomes[best], now.outcomes[number]) is now.outcomes[number]:
            best = number
    return best


def _given_out(
    search: Runs,
    now: State,
    ledger: Ledger,
    held: tuple[str, str],
    path: str | os.PathLike[str] | None,
    marks: Marks,
) -> Selection:
    terms = search.terms
    if not now.outcomes:  # Poisson stopping drew no run
        index = int(integers(search.rng("untrained draw"), len(search.candidates), 1)[0])
        now.outcomes[0] = search.untrained(index)
    ledger.check_held(*held)
    # what is left on disk is what is given out: how many runs there were is gone
    now.mask = None
    if not terms.all_released:
        now.draws, now.done = [], set()
    now.save(path)
    for number, outcome in now.outcomes.items():
        label = _label(now, number) if terms.all_released else now.run
        ledger.give(label, outcome.digest(), held=held)
    states.remove_drafts(path)
    marks.remove()
    best = now.outcomes[_best(search, now)]
    if math.isinf(best.score):
        raise ModelError(
            "Expected at least one run that does not fail, but all of them did, or were lost when "
            "the search was stopped; the search is charged and over. Train each candidate with "
            "pv.Trainer on made-up records to find out why; smaller learning rates may help."
        )
    tried = tuple(
        Tried(search.candidates[each.candidate], each.score, search.model(each))
        for _, each in sorted(now.outcomes.items())
        if terms.all_released
    )
    _log.info("best: %s", search.candidates[best.candidate])
    return Selection(
        model=search.model(best),
        settings=copy.copy(search.candidates[best.candidate]),
        score=None if best.score != best.score else best.score,
        score_std=best.score_std,
        price=terms.price,
        noise_multiplier=terms.sigmas[best.candidate],
        tried=tried,
        candidates=len(search.candidates),
        run_charges=Tally(dict(terms.tallies[best.candidate])),
        statement=_statement(search, now, ledger),
    )


def _statement(search: Runs, now: State, ledger: Ledger) -> Statement:
    terms, noise = search.terms, GaussianNoise(search.rng("noise"))
    totals = ledger.totals()
    released = (
        "every candidate runs once, and all models and scores are released"
        if terms.all_released
        else f"a random number of runs, {terms.mean:g} expected, and the best one alone is released"
    )
    number = search.parts.population
    number += 0 if search.parts.public else search.parts.scored_population
    unit, counted = search.unit, f"{search.unit}s" if search.parts.grouped else "records"
    whose = (
        f"Each {unit}: all their rows, which are those with one identifier in groups; no {unit} "
        f"has two. A look takes at most {search.parts.rows_per_unit} of them, chosen afresh, and "
        "bounds the average of their gradients, or of their scores."
        if search.parts.grouped
        else f"Each {unit} is one row of the data and shares no row with another."
    )
    listed = [
        whose,
        f"The number of {counted}, {number:,}, is public: it sets the sampling rate.",
        search.parts.words,
        "The candidates, their first parameters and the terms of the search were chosen without "
        "looking at these records, or by looks that this ledger lists.",
        "The records' names, shapes and types, and the range of labels and tokens, are public.",
    ]
    if not terms.all_released:
        listed.append(
            "How many runs there were, which candidates ran and how long it took stay secret: the "
            "price is that of the best run alone."
        )
    if ledger.path is None:
        listed.append(
            "The ledger is in memory: runs on the same data elsewhere are not counted here. Give "
            "the search a ledger file to add them up."
        )
    listed += [f"Side information: {source}." for source in search.sources]
    if not noise.secure:
        listed.append("seeded: not a private release. Everything drawn follows from a seed.")
    return Statement(
        private=noise.secure and search.private,
        dataset=ledger.dataset,
        unit=search.unit,
        relation=events.common_relation(totals),
        epsilon=ledger.epsilon(terms.delta),
        delta=terms.delta,
        run=now.run,
        run_epsilon=terms.price.epsilon,
        accountant="pld" if terms.all_released else "rdp",
        budget=ledger.budget,
        ledger="in memory: gone with this process" if ledger.path is None else ledger.name,
        method=f"selection among {len(search.candidates)} candidates by {terms.how}: {released}",
        sampling=f"{search.sampling.name}, of the {counted} that were not set apart for scores",
        noise=noise.describe(),
        progress="all runs taken",
        charges=ledger.charges(),
        assumptions=tuple(listed),
    )


@contextmanager
def _bar(shown: bool, total: int, done: int, countable: bool) -> Iterator[Callable[[], None]]:
    """Show that runs are under way; how many there are, only where that is no secret."""
    if not shown:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
    columns += [MofNCompleteColumn()] if countable else []
    with Progress(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task(
            "candidates" if countable else "searching", total=total if countable else None
        )
        bar.update(task, completed=done if countable else 0)
        yield lambda: bar.advance(task)
