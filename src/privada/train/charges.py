"""What a run may charge and has charged: its ledger, its budgets, and epsilon step by step."""

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dp_accounting import DpEvent

from privada.accounting import Budget, Ledger, epsilon_of, events
from privada.accounting.events import Tally
from privada.accounting.filters import POINTS_PER_DOUBLING
from privada.accounting.ledger import PLANNED, exists
from privada.accounting.ledger.replica import ReplicaStorage, Snapshot
from privada.core import formatting
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError
from privada.core.validation import probability, shown
from privada.core.values import State
from privada.mechanism import Mechanism
from privada.mechanism.mechanism import last_within
from privada.mechanism.releases import LEVELS_PER_DOUBLING
from privada.train.levels import MOST_LEVEL, least_level
from privada.train.settings import TrainSettings
from privada.train.state import TrainState

# Distinct points per doubling at which a run's epsilon is computed for its history.
_POINTS_PER_OCTAVE = 16


def open_ledger(
    given: Ledger | str | os.PathLike[str] | None,
    budget: Budget | None = None,
    kind: str = PLANNED,
) -> Ledger:
    """Return the ledger that a user asks for; a new one has the budget of the run.

    Args:
        given: a ledger, the path or URL of one, or None for one in memory.
        budget: what a ledger that does not exist yet is made with.
        kind: of which kind it is made.
    """
    if isinstance(given, Ledger):
        return given
    if given is None:
        return Ledger(None, budget, kind=kind)
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(
            f"Expected ledger to be a Ledger, or the path or URL of one, got ledger={shown(given)}."
        )
    return Ledger(given) if exists(given) else Ledger(given, budget, kind=kind)


def find_delta(settings: TrainSettings, ledger: Ledger, population: int, stacklevel: int) -> float:
    """Return the delta at which epsilon is reported; warn of one that protects nobody."""
    budget = settings.budget or ledger.budget
    delta = settings.delta or (None if budget is None else budget.delta)
    if delta is None:
        raise ArgumentError(
            "Expected delta, got delta=None. With noise_multiplier, give the delta at which "
            "epsilon is to be reported, well below 1 / n."
        )
    if delta >= 1 / population:
        warnings.warn(
            f"delta={delta:g} is not below 1 / n = {1 / population:.3g}: it would allow "
            "publishing a whole record now and then. Choose a smaller delta.",
            stacklevel=stacklevel,
        )
    return delta


@dataclass(frozen=True)
class Told:
    """What a rank that charges tells the others: a copy of its ledger, and its own figures."""

    held: Snapshot
    run: str
    delta: float
    noise_multiplier: float
    multipliers: list[float]
    last: int
    since: tuple[int, Tally]


class RunCharges:
    """The charges of one run: those that are planned, and those that its ledger holds.

    Args:
        ledger: what is charged.
        run: the name under which it is.
        mechanism: what the run does, not calibrated yet.
        settings: what was asked for.
        delta: at which epsilon is reported.
        resumed: whether the run goes on from a checkpoint.
        done: how many releases it had made by then.
        multipliers: those of the releases that a resumed run has made, where its noise follows
            them.
        noise_multiplier: what a resumed run was calibrated to; what the ledger holds has changed
            since.

    Guarantee: a run that its own budget or that of the ledger cannot pay for is refused before the
    first look. The ledger holds each charge to both budgets all the same.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: str,
        mechanism: Mechanism,
        settings: TrainSettings,
        delta: float,
        *,
        resumed: bool = False,
        done: int = 0,
        multipliers: Sequence[float] = (),
        noise_multiplier: float | None = None,
    ) -> None:
        self.ledger, self.run, self.delta = ledger, run, delta
        self._budget, self._stopping = settings.budget, settings.charged_stopping
        # of a run whose noise follows its releases: the multiplier of each step's releases so far
        self.multipliers = list(multipliers)
        if mechanism.follows or self._stopping is not None:
            self._refuse_planned()
        self.mechanism = self._calibrated(mechanism, noise_multiplier or settings.noise_multiplier)
        self._last = mechanism.releases.total
        self._check_continues(resumed, done)
        self._last = self._within_own_budget(done)
        if resumed:
            self.plan_anew(done)
        self._check_affordable(resumed, done)
        # the release from which on the run keeps to its plan, and what the ledger held before it
        self._since: tuple[int, Tally] = (done, ledger.totals())
        self._epsilons: dict[int, float] = {}
        self._checkpoint_after: int | None = None

    # ------------------------------------------------------------------ elsewhere

    def told(self) -> Told:
        """Return what ranks that do not charge have to know to report."""
        return Told(
            Snapshot.of(self.ledger),
            self.run,
            self.delta,
            self.mechanism.noise_multiplier,
            list(self.multipliers),
            self._last,
            self._since,
        )

    @classmethod
    def copied(cls, told: Told, mechanism: Mechanism, settings: TrainSettings) -> "RunCharges":
        """Return a copy to report from, on a rank that does not charge; its ledger refuses to."""
        copy = cls.__new__(cls)
        copy.ledger = Ledger(ReplicaStorage(told.held))
        copy.run, copy.delta = told.run, told.delta
        copy._budget, copy._stopping = settings.budget, settings.charged_stopping
        copy.mechanism = mechanism.with_noise(told.noise_multiplier)
        copy._checkpoint_after = None
        copy.take(told)
        return copy

    def take(self, told: Told) -> None:
        """Renew a copy."""
        storage = self.ledger._storage
        assert isinstance(storage, ReplicaStorage)
        storage.renew(told.held)
        self.multipliers, self._last = list(told.multipliers), told.last
        self._since = told.since
        self._epsilons = {}

    # ------------------------------------------------------------------ before the first step

    def _calibrated(self, mechanism: Mechanism, noise_multiplier: float | None) -> Mechanism:
        """Return the mechanism with the noise that was asked for, or that the budget allows."""
        if noise_multiplier is not None:
            return mechanism.with_noise(float(noise_multiplier))
        budget = self._budget
        assert budget is not None
        # what comes beside the steps: queries before them, and scores on the way
        paid = self.own_tally() - self.own_tally("training") - self.own_tally("validation")
        paid += self.scores(0, mechanism.releases.steps)
        # those whose noise is a part of the run's own are calibrated with it
        first = 0 if mechanism.releases.relative else mechanism.releases.before(0)
        before = epsilon_of(paid + mechanism.charges(0, first), self.delta)
        if before >= budget.epsilon:
            raise BudgetExceeded(
                f"Expected something to be left of {budget} for the steps, got an "
                f"epsilon of {formatting.epsilon(before)} for what comes before or beside them: "
                f"{first} releases of second moments, and {events.release_count(paid)} others of "
                f"run {self.run!r}, such as queries before it and scores on the way. Give them "
                f"more noise, or make fewer. {self._uncharged()}"
            )
        if mechanism.follows:
            return mechanism.with_noise(self._first_level(mechanism))
        return self._fitted(mechanism.calibrated(budget, paid))

    def _fitted(self, mechanism: Mechanism) -> Mechanism:
        """Return a mechanism with a little more noise, if an adaptive ledger needs it.

        A filter counts more than the loss distributions that the noise was calibrated by. A run
        that does not even fit by those is left as it is, to be refused.
        """
        limit, scores = self.ledger.budget, self.scores(0, mechanism.releases.steps)
        plan = mechanism.charges() + scores
        if limit is None or not self.ledger.adaptive:
            return mechanism
        if self.ledger.cost(self.run, plan) <= limit.epsilon:
            return mechanism
        if epsilon_of(self.ledger.totals() + plan, limit.delta) > limit.epsilon:
            return mechanism
        # a filter counts on a lattice of multipliers: factors there, times levels there, stay there
        coarse = replace(mechanism, releases=mechanism.releases.coarser(POINTS_PER_DOUBLING))

        def fits(level: float) -> bool:
            return self.ledger.cost(self.run, coarse.charges_at(level) + scores) <= limit.epsilon

        level = least_level(fits, mechanism.noise_multiplier, POINTS_PER_DOUBLING)
        return mechanism if level is None else mechanism.with_noise(level)

    def _refuse_planned(self) -> None:
        """Raise if the ledger allows nothing that is found on the way."""
        if not self.ledger.adaptive:
            raise LedgerError(
                f"Expected an adaptive ledger for what is chosen in the light of releases, such as "
                f"noise that follows them or an early end, got {self.ledger!r}, which is a planned "
                "one. Make one by pv.Ledger(path, budget), or leave ledger out. "
                f"{self._uncharged()}"
            )

    def _first_level(self, mechanism: Mechanism) -> float:
        """Return the noise with which all releases are forecast to use up the budget."""
        schedule, done = mechanism.releases.following, mechanism.releases.before(0)
        assert schedule is not None
        before = mechanism.charges(0, done)
        level = self.fitted_level(mechanism, schedule.init(), done, 1.0, before)
        if level is None:
            raise BudgetExceeded(
                f"Expected some noise to be enough for {self._budget}, got a run of "
                f"{mechanism.releases.total} releases that does not fit it with a multiplier of "
                f"{MOST_LEVEL:g}. Take fewer steps. {self._uncharged()}"
            )
        return level

    def fitted_level(
        self,
        mechanism: Mechanism,
        state: State,
        done: int,
        level: float,
        before: Tally | None = None,
    ) -> float | None:
        """Return the least noise at which what is left of a run is forecast to fit its budgets.

        Args:
            mechanism: what the run does.
            state: that of the schedule that follows the releases.
            done: how many releases were made.
            level: where to start looking.
            before: what else is to be charged.

        Returns:
            The multiplier where the factor is 1; None if there is none. `level` itself for a run
            without a budget.
        """
        if self._budget is None:
            return level
        left = mechanism.releases.total - done
        step = mechanism.releases.step_of(done)
        beside = (before or Counter()) + self.scores(step, mechanism.releases.steps)

        def fits(tried: float) -> bool:
            ahead = mechanism.releases.forecast(mechanism.event, tried, state, left)
            return self._fits(ahead + beside)

        return least_level(fits, level, LEVELS_PER_DOUBLING)

    def _fits(self, added: Tally) -> bool:
        """Return whether the run's own budget and that of the ledger allow a further charge."""
        own, whole = self._budget, self.ledger.budget
        if own is not None and not self.ledger.run_cost(self.run, added, own) <= own.epsilon:
            return False
        return whole is None or self.ledger.cost(self.run, added) <= whole.epsilon

    def _check_continues(self, resumed: bool, done: int) -> None:
        """Raise unless the ledger holds the steps that a run goes on from, a new one no step."""
        own = self.own_tally("training")
        if own and not resumed:
            raise ArgumentError(
                f"Expected run to be the name of a new run, got run={self.run!r}, under which "
                f"{self.ledger!r} holds {sum(own.values())} releases. Give another name, or resume."
            )
        if not self._holds(own, self.planned(0, done)):
            raise LedgerError(
                f"Expected the ledger that run {self.run!r} was charged to, got {self.ledger!r}, "
                f"which does not hold its first {done} releases. Resume with the ledger file "
                "that the run was started with; one in memory is gone with its process."
            )

    def _holds(self, own: Tally, made: Tally) -> bool:
        """Return whether the ledger holds at least what a run has made, wherever turns began."""
        if self.mechanism.turns > 1:
            return own.total() >= made.total()
        return made <= own

    def _within_own_budget(self, done: int) -> int:
        """Return the number of releases after which the run will have used up its own budget.

        That is all of them, unless a crash or an old checkpoint has made it pay for some twice. It
        is a plan: what other processes charge to the same run is known to the ledger alone, which
        holds each charge to the budget.
        """
        if self._budget is None or self.mechanism.follows:
            return self._last
        # what is left may cost more than planned: a turn that was cut off is not gone on with
        if self.own_tally("training") + self.planned(done, -1) == self.planned(0, -1):
            return self._last
        return self.mechanism.affordable(self._budget, self.own_tally(), done)

    def plan_anew(self, done: int) -> None:
        """Declare a run anew after an interruption, if what it has lost makes its plan too short.

        A run with a budget of its own ends earlier then. On an adaptive ledger nothing is planned.
        """
        declared = self.ledger.declared(self.run)
        if declared is None or self.own_tally() + self.planned(done, -1) <= declared:
            return
        self._last = self._within_own_budget(done)
        self.ledger.replan(self.run, self.planned(done, -1))

    def _check_affordable(self, resumed: bool, done: int) -> None:
        """Raise before the first step if the ledger cannot pay for the whole run.

        A resumed run may have lost a block of charges to a crash: one more step is enough for it.
        """
        plan = self.planned(done, 1 if resumed else -1)
        if not resumed:
            plan += self.scores(0, self.mechanism.releases.steps)
        self.ledger.check_declared(self.run)
        budget = self.ledger.budget
        if budget is None or not plan or self.mechanism.follows:
            return  # the noise of what follows is fitted on the way
        cost = self.ledger.cost(self.run, plan)
        if cost <= budget.epsilon:
            return
        spent = self.ledger.epsilon()
        raise BudgetExceeded(
            f"Expected the run to fit the budget of {self.ledger!r}, but "
            f"{formatting.epsilon(spent)} is spent and the run's {sum(plan.values())} releases "
            f"would make it {formatting.epsilon(cost)}. Take fewer steps, more noise or a "
            f"smaller batch. {self._uncharged()}"
        )

    def scores(self, start: int, end: int) -> Tally:
        """Return what the scores of early stopping from one step to another are charged as."""
        found: Tally = Counter()
        return found if self._stopping is None else self._stopping.charges(start, end)

    def _uncharged(self) -> str:
        """Say that nothing was charged, or nothing more if the run was charged before."""
        return "Nothing more was charged." if self.own_tally() else "Nothing was charged."

    # ------------------------------------------------------------------ step by step

    def planned(self, start: int, count: int) -> Tally:
        """Return the tally of `count` releases from release `start` on, all left for -1.

        Where the noise follows the releases, those that were made are as they were, and the others
        as forecast before the first.
        """
        end = self._last if count < 0 else min(self._last, start + count)
        if not self.mechanism.follows:
            return self.mechanism.charges(start, end)
        first = self.mechanism.releases.before(0)
        made = self.multipliers[max(0, start - first) : max(0, end - first)]
        found = self.mechanism.charges(start, max(start, min(end, first)))
        found.update(map(self.mechanism.event, made))
        known = max(start, first + len(self.multipliers))
        if end > known:
            found += self.mechanism.charges(known, end)
        return found

    def expected_steps(self, state: TrainState) -> int:
        """Return after how many steps the run is expected to end: with its plan or its budget."""
        releases, done = self.mechanism.releases, state.releases
        if not self.mechanism.follows:
            return releases.step_of(self._last)

        def fits(end: int) -> bool:
            return self._fits(
                releases.forecast(self.mechanism.event, state.level, state.noise, end - done)
                + self.scores(releases.step_of(done), releases.step_of(end))
            )

        return releases.step_of(last_within(fits, done, releases.total))

    def multiplier(self, step: int) -> float:
        """Return the noise multiplier of a step that was taken, counted from 0."""
        if not self.mechanism.follows:
            return self.mechanism.multiplier(step)
        releases = self.mechanism.releases
        return self.multipliers[releases.before(step) - releases.before(0)]

    def following(self, state: TrainState, event: DpEvent, count: int) -> Tally:
        """Return the next releases of a run whose noise follows them, all left for -1.

        The next `count` are taken to have the noise of the first of them: what is not used is given
        back when the noise changes. All that are left are as forecast.
        """
        left = self._last - state.releases
        if count >= 0:
            return Counter({event: max(1, min(count, left, state.fit_level_at - state.releases))})
        ahead = self.mechanism.releases.forecast(
            self.mechanism.event, state.level, state.noise, left - 1
        )
        return ahead + Counter({event: 1})

    def ahead(self, done: int, count: int) -> Tally:
        """Return the next releases, those before the next checkpoint at most, all left for -1.

        What is reserved and lost in a crash is then no more than what is taken again.
        """
        if count > 0 and self._checkpoint_after is not None:
            count = min(count, max(1, self._checkpoint_after - done))
        return self.planned(done, count)

    def next_checkpoint(self, step: int | None) -> None:
        """Say after how many steps the next checkpoint is, None for no checkpoint."""
        releases = self.mechanism.releases
        self._checkpoint_after = (
            None if step is None else releases.before(min(step, releases.steps))
        )

    def check_left(self, done: int) -> None:
        """Raise if the run's own budget ends before the next release."""
        if done >= self._last:
            raise BudgetExceeded(
                f"Expected the run to keep to its own budget, {self._budget}, which ends "
                f"after {self._last} releases: some were charged twice, for a crash or because an "
                "old checkpoint was resumed. Nothing more was charged and no data was read."
            )

    def abort_step(self, start: int) -> None:
        """Go on from release `start` anew; what was charged for what is lost stays charged."""
        del self.multipliers[max(0, start - self.mechanism.releases.before(0)) :]
        self._since = start, self.ledger.totals()
        self._epsilons.clear()

    # ------------------------------------------------------------------ the bill

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger."""
        return self.ledger.epsilon(self.delta if delta is None else probability("delta", delta))

    def epsilon_after(self, step: int, exactly: bool = False) -> float:
        """Return the epsilon of what was charged before and of this run's first `step` steps.

        Unless `exactly`, of up to a sixteenth more releases: an upper bound that is computed for
        a few hundred steps only, however long the run is. It never falls from one step to the next.
        """
        releases = self.mechanism.releases
        count = releases.before(step)
        if not exactly and count > 2 * _POINTS_PER_OCTAVE:
            grain = 2 ** (count.bit_length() - _POINTS_PER_OCTAVE.bit_length())
            count = min(-(-count // grain) * grain, max(count, releases.total))
        if count not in self._epsilons:
            self._epsilons[count] = self.ledger.price(self._charged_by(count), self.delta)
        return self._epsilons[count]

    def _charged_by(self, count: int) -> Tally:
        """Return what the ledger holds when the first `count` releases are made, or more."""
        since, held = self._since
        if count >= since:
            step_of = self.mechanism.releases.step_of
            ahead = self.planned(since, count - since) + self.scores(step_of(since), step_of(count))
            return held + ahead
        made = self.planned(0, since)
        if not made <= held:  # turns began elsewhere than planned
            return held
        return held - made + self.planned(0, count)

    def run_epsilon(self, done: int, paid: int) -> float:
        """Return the epsilon of this run alone, as it was planned; 0 before its first charge.

        `done` releases were made, and those up to `paid` are paid for. A run that is ended early
        counts as if it had not been: somebody may have looked.
        """
        own = self.own_tally()
        if not own:
            return 0.0
        if self.mechanism.follows:  # nothing was planned: what it was charged counts
            if self._budget is not None and self._budget.delta == self.delta:
                return self.ledger.run_cost(self.run, {}, self._budget)
            return self.ledger.run_epsilon(self.run, self.delta)
        if self.ledger.declared(self.run):  # of its plans, if it was planned anew, the dearest
            return self.ledger.run_epsilon(self.run, self.delta)
        releases = self.mechanism.releases
        ahead = self.planned(paid, -1) + self.scores(releases.step_of(done), releases.steps)
        return epsilon_of(own + ahead, self.delta)

    def own_tally(self, purpose: str | None = None) -> Tally:
        """Return what this run has been charged, for one purpose or for all."""
        own: Tally = Counter()
        for charge in self.ledger.charges():
            if charge.run == self.run and purpose in (None, charge.purpose):
                own[charge.event] += charge.count
        return own
