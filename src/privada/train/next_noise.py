"""The noise of the next release, where it follows from the releases so far."""

from dataclasses import replace
from functools import partial

from dp_accounting import DpEvent

from privada.core.validation import positive
from privada.query.account import Ahead
from privada.train.run import Run
from privada.train.state import TrainState

# How often noise that follows the releases is fitted to the budget: so many times in a run, and
# after each one in so many of the releases that are left.
_FITS, _FITS_AT_THE_END = 64, 8


def next_event(run: Run, state: TrainState) -> tuple[DpEvent, Ahead, TrainState]:
    """Return what the next release is charged as, what those after it will be, and the state.

    The noise is fitted to the budget anew now and then.
    """
    if state.releases >= state.fit_level_at:
        run.gradients.account.refund_unused()
        state = fit_level(run, state)
    multiplier = run.mechanism.releases.following_multiplier(state.level, state.noise)
    event = run.mechanism.event(multiplier)
    return event, partial(run.charges.following, state, event), state


def fit_level(run: Run, state: TrainState) -> TrainState:
    """Return the state with the noise for the rest of the run.

    The schedule makes it of what is forecast to fit the budget. If none is enough the noise stays,
    and the ledger refuses what does not fit.
    """
    done, total = state.releases, run.mechanism.releases.total
    fitted = run.charges.fitted_level(run.mechanism, state.noise, done, state.level)
    assert run.following is not None
    level = state.level
    if fitted is not None:
        level = positive("paced", run.following.paced(level, fitted))
    later = max(1, min(total // _FITS, (total - done) // _FITS_AT_THE_END))
    return replace(state, level=level, fit_level_at=done + later)
