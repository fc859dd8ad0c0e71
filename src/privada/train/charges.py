"""What a run may charge and has charged: its ledger, its budgets, and epsilon step by step."""

import os
import warnings
from collections import Counter
from pathlib import Path

from privada.accounting import Budget, Ledger, epsilon_of, events
from privada.accounting.events import Tally
from privada.core import formatting
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError
from privada.core.validation import probability, shown
from privada.mechanism import Mechanism
from privada.train.settings import TrainSettings

# Distinct points per doubling at which a run's epsilon is computed for its history.
_POINTS_PER_OCTAVE = 16


def open_ledger(
    given: Ledger | str | os.PathLike[str] | None, budget: Budget | None = None
) -> Ledger:
    """Return the ledger that a user asks for; a new one has the budget of the run.

    Args:
        given: a ledger, the path of one, or None for one in memory.
        budget: what a ledger that does not exist yet is made with.
    """
    if isinstance(given, Ledger):
        return given
    if given is None:
        return Ledger(None, budget)
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(
            f"Expected ledger to be a Ledger or the path of one, got ledger={shown(given)}."
        )
    return Ledger(given, None if Path(given).exists() else budget)


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
    ) -> None:
        self.ledger, self.run, self.delta = ledger, run, delta
        self._budget = settings.budget
        self.mechanism = self._calibrated(mechanism, settings.noise_multiplier)
        self._last = mechanism.releases.total
        self._check_continues(resumed, done)
        self._last = self._within_own_budget(done)
        self._check_affordable(resumed, done)
        # what the ledger holds beside the steps that a resumed run goes on from
        self._before: Tally = ledger.totals() - self.planned(0, done)
        self._epsilons: dict[int, float] = {}
        self._checkpoint_after: int | None = None

    # ------------------------------------------------------------------ before the first step

    def _calibrated(self, mechanism: Mechanism, noise_multiplier: float | None) -> Mechanism:
        """Return the mechanism with the noise that was asked for, or that the budget allows."""
        if noise_multiplier is not None:
            return mechanism.with_noise(float(noise_multiplier))
        budget = self._budget
        assert budget is not None
        paid = self.own_tally() - self.own_tally("training")
        first = mechanism.releases.before(0)
        before = epsilon_of(paid + mechanism.charges(0, first), self.delta)
        if before >= budget.epsilon:
            raise BudgetExceeded(
                f"Expected something to be left of {budget} for the first step, got an "
                f"epsilon of {formatting.epsilon(before)} for what comes before it: "
                f"{first} releases of second moments, and {events.release_count(paid)} "
                f"that run {self.run!r} was charged for already. Give them more noise or "
                f"fewer rounds. {self._uncharged()}"
            )
        return mechanism.calibrated(budget, paid)

    def _check_continues(self, resumed: bool, done: int) -> None:
        """Raise unless the ledger holds the steps that a run goes on from, a new one no step."""
        own = self.own_tally("training")
        if own and not resumed:
            raise ArgumentError(
                f"Expected run to be the name of a new run, got run={self.run!r}, under which "
                f"{self.ledger!r} holds {sum(own.values())} releases. Give another name, or resume."
            )
        if any(own[event] < count for event, count in self.planned(0, done).items()):
            raise LedgerError(
                f"Expected the ledger that run {self.run!r} was charged to, got {self.ledger!r}, "
                f"which does not hold its first {done} releases. Resume with the ledger file "
                "that the run was started with; one in memory is gone with its process."
            )

    def _within_own_budget(self, done: int) -> int:
        """Return the number of releases after which the run will have used up its own budget.

        That is all of them, unless a crash or an old checkpoint has made it pay for some twice. It
        is a plan: what other processes charge to the same run is known to the ledger alone, which
        holds each charge to the budget.
        """
        if self._budget is None or self.own_tally("training") == self.planned(0, done):
            return self._last
        return self.mechanism.affordable(self._budget, self.own_tally(), done)

    def _check_affordable(self, resumed: bool, done: int) -> None:
        """Raise before the first step if the ledger cannot pay for the whole run.

        A resumed run may have lost a block of charges to a crash: one more step is enough for it.
        """
        plan = self.planned(done, 1 if resumed else -1)
        budget = self.ledger.budget
        if budget is None or not plan:
            return
        cost = epsilon_of(self.ledger.totals() + plan, budget.delta)
        if cost <= budget.epsilon:
            return
        spent = self.ledger.epsilon()
        raise BudgetExceeded(
            f"Expected the run to fit the budget of {self.ledger!r}, but "
            f"{formatting.epsilon(spent)} is spent and the run's {sum(plan.values())} releases "
            f"would make it {formatting.epsilon(cost)}. Take fewer steps, more noise or a "
            f"smaller batch. {self._uncharged()}"
        )

    def _uncharged(self) -> str:
        """Say that nothing was charged, or nothing more if the run was charged before."""
        return "Nothing more was charged." if self.own_tally() else "Nothing was charged."

    # ------------------------------------------------------------------ step by step

    def planned(self, start: int, count: int) -> Tally:
        """Return the tally of `count` releases from release `start` on, all left for -1."""
        end = self._last if count < 0 else min(self._last, start + count)
        return self.mechanism.charges(start, end)

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

    def abort_step(self, start: int, done: int) -> None:
        """Count what was released for a step that was not finished beside the plan.

        The step starts anew the next time; what it was charged for stays charged.
        """
        self._before += self.planned(start, done - start)
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
            tally = self._before + self.planned(0, count)
            self._epsilons[count] = epsilon_of(tally, self.delta)
        return self._epsilons[count]

    def own_tally(self, purpose: str | None = None) -> Tally:
        """Return what this run has been charged, for one purpose or for all."""
        own: Tally = Counter()
        for charge in self.ledger.charges():
            if charge.run == self.run and purpose in (None, charge.purpose):
                own[charge.event] += charge.count
        return own
