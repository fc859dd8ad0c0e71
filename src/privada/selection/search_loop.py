"""The runs of a search one after another: paid before, noted durably, resumed, and given out."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, effective_n_jobs

from privada.accounting import Budget, Ledger
from privada.core.errors import BudgetExceeded, LedgerError
from privada.core.randomness import integers
from privada.query.account import Account
from privada.selection import state as states
from privada.selection.result import Selection, result_of
from privada.selection.runs import CandidateRuns
from privada.selection.started_runs import StartedRuns
from privada.selection.state import RunOutcome, SearchState
from privada.selection.stopping import draw_runs

_log = logging.getLogger("privada.selection")


TUNING = "tuning"
"""The purpose that a search is charged for."""


def begin_state(runs: CandidateRuns, fingerprint: str, run: str | None = None) -> SearchState:
    """Draw how many runs there will be, and of which candidates."""
    plan, count = runs.plan, len(runs.candidates)
    name = f"select-{os.urandom(4).hex()}" if run is None else run
    if plan.all_released:
        draws = list(range(count))
    else:
        drawn = draw_runs(plan.expected_runs, plan.shape, runs.rng("runs"))
        draws = integers(runs.rng("draws"), count, drawn).tolist() if drawn else []
    return SearchState(fingerprint, name, draws, runs.parts.mask, noise_factor=plan.noise_factor)


@dataclass(frozen=True)
class SearchSession:
    """A search under way in this process: its runs, its state, its ledger and where it is kept.

    `path` is the file of the state, None where nothing is kept; `resumed` whether it was there.
    """

    runs: CandidateRuns
    state: SearchState
    ledger: Ledger
    path: str | os.PathLike[str] | None
    resumed: bool = False

    @cached_property
    def started(self) -> StartedRuns:
        """Which runs were begun."""
        if self.path is None:
            return StartedRuns(None, self.state.run)
        # beside a ledger that is a file: an older copy of the state does not bring older notes
        return StartedRuns(self.ledger.path or Path(self.path), self.state.run)

    def try_workers(self, n_jobs: int | None) -> None:
        """Send the runs to a worker: what cannot be sent shows before anything is charged."""
        list(_parallel(n_jobs)([delayed(self.runs.ready)()]))

    def pay(self, budget: Budget | None) -> None:
        """Charge the whole search, unless that is done.

        Raises:
            BudgetExceeded: nothing was charged; a search that is new leaves no file.
        """
        try:
            self._pay(budget)
        except BudgetExceeded:
            if not self.resumed:  # nothing was begun: leave nothing that tells what would have been
                states.remove(self.path)
                self.started.remove()
            raise

    def _pay(self, budget: Budget | None) -> None:
        # before the charge: a search that is killed in between can still be told apart
        self.state.save(self.path)
        name, event = self.state.run, self.runs.plan.event
        if any((each.run, each.event) == (name, event) for each in self.ledger.charges()):
            return
        # here alone: of a search that is paid for, notes that are gone are lost
        self.started.create()
        unit = self.runs.charged_unit
        Account(self.ledger, run=name, purpose=TUNING, limit=budget, unit=unit).charge(event)

    def label(self, number: int) -> str:
        """Return the label under which a candidate's run is given out, under composition."""
        return f"{self.state.run}, candidate {number + 1}"

    def keep_given(self) -> None:
        """Raise if something was given out that is not in the state; go on from what was.

        Once the best run is given out no other is taken: whether one were better would tell more.
        """
        now, ledger = self.state, self.ledger
        if self.runs.plan.all_released:
            given = {n: ledger.published(self.label(n)) for n in range(len(now.draws))}
            there = {n: each.digest() for n, each in now.outcomes.items()}
            known = all(each in (None, there.get(n)) for n, each in given.items())
        else:
            one = ledger.published(now.run)
            if one is None:
                return
            now.outcomes = {n: each for n, each in now.outcomes.items() if each.digest() == one}
            now.draws, now.done, known = [], set(), bool(now.outcomes)
        if not known:
            raise LedgerError(
                f"Expected search {now.run!r} to be under way, but ledger {ledger.name!r} says "
                "that results were given out that are not in this state. Resume from the file that "
                "it went on with, or begin, and pay for, a new search."
            )

    def give_out(self, held: tuple[str, str]) -> None:
        """Leave nothing on disk but what is given out, and note in the ledger what that is."""
        runs, now = self.runs, self.state
        if not now.outcomes:  # Poisson stopping drew no run
            index = int(integers(runs.rng("untrained draw"), len(runs.candidates), 1)[0])
            now.outcomes[0] = runs.untrained(index)
        self.ledger.check_lease(*held)
        # what is left on disk is what is given out: how many runs there were is gone
        now.mask = None
        if not runs.plan.all_released:
            now.draws, now.done = [], set()
        now.save(self.path)
        for number, outcome in now.outcomes.items():
            label = self.label(number) if runs.plan.all_released else now.run
            self.ledger.publish(label, outcome.digest(), lease=held)
        states.remove_drafts(self.path)
        self.started.remove()


def continue_search(session: SearchSession, n_jobs: int | None, progress: bool) -> Selection:
    """Take the runs that are left, and give out the result.

    A run that was begun and is not done is lost: it has looked already, and counts as failed.
    """
    runs, now, ledger = session.runs, session.state, session.ledger
    session.keep_given()  # an outdated copy takes nothing over from who goes on
    held = now.run, ledger.lease(now.run)
    session.keep_given()
    begun = session.started.read()

    def begin(number: int) -> None:
        with ledger.while_leased(*held):
            session.started.add(number)

    _log_start(runs)
    left = [(n, index) for n, index in enumerate(now.draws) if n not in now.done]
    lost = [(n, runs.failed(index)) for n, index in left if begun is None or n in begun]
    fresh = [each for each in left if begun is not None and each[0] not in begun]
    everything = runs.plan.all_released
    with _bar(progress, len(now.draws), len(now.done), everything) as advance:
        for number, outcome in chain(lost, _outcomes(runs, fresh, n_jobs, begin)):
            ledger.check_lease(*held)
            note(runs, now, number, outcome)
            now.save(session.path)
            if everything:
                ledger.publish(session.label(number), outcome.digest(), lease=held)
                _log_outcome(runs, number, len(now.draws), outcome)
                advance()
    session.give_out(held)
    return result_of(runs, now, now.outcomes[best_run(runs, now)], ledger)


def _log_start(runs: CandidateRuns) -> None:
    plan = runs.plan
    _log.info(
        "%s among %d candidates, %g runs %s; %s",
        plan.how,
        len(runs.candidates),
        plan.price.runs,
        "in all" if plan.all_released else "expected",
        plan.price,
    )


def _log_outcome(runs: CandidateRuns, number: int, count: int, outcome: RunOutcome) -> None:
    """Log an outcome, where all of them are released."""
    _log.info(
        "candidate %d of %d, %s: %s %.4g, noise %.2g",
        number + 1, count, runs.candidates[outcome.candidate], runs.score.name, outcome.score,
        outcome.score_std,
    )  # fmt: skip


def note(runs: CandidateRuns, now: SearchState, number: int, outcome: RunOutcome) -> None:
    """Keep an outcome; where one alone may be given out, keep none but the best."""
    now.done.add(number)
    now.outcomes[number] = outcome
    if not runs.plan.all_released and len(now.outcomes) > 1:
        best = best_run(runs, now)
        now.outcomes = {best: now.outcomes[best]}


def best_run(runs: CandidateRuns, now: SearchState) -> int:
    """Return the number of the best run, the first of those that are equal."""
    numbers = sorted(now.outcomes)
    best = numbers[0]
    for number in numbers[1:]:
        if runs.better(now.outcomes[best], now.outcomes[number]) is now.outcomes[number]:
            best = number
    return best


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


def _outcomes(
    runs: CandidateRuns,
    left: list[tuple[int, int]],
    n_jobs: int | None,
    begin: Callable[[int], None],
) -> Iterator[tuple[int, RunOutcome]]:
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
            yield delayed(runs.attempt)(number, index)

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
            yield number, runs.failed(under_way.pop(number))


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
