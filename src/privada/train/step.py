"""One step: pay, draw, clip, add noise, update."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from privada.accounting import events
from privada.core.errors import DistributedError, PrivadaError
from privada.core.values import Release
from privada.query.account import Ahead
from privada.train.next_noise import next_event
from privada.train.run import Run
from privada.train.state import TrainState


def first_state(run: Run) -> TrainState:
    """Return the state before the first step."""
    parts, parameters = run.parts, run.parameters
    return TrainState(
        preconditioner=parts.preconditioner.init(parameters),
        clip=run.mechanism.clipping.init(run.mechanism.clip),
        rule=parts.rule.init(parameters),
        controller=parts.controller.init(parameters),
        noise={} if run.following is None else run.following.init(),
        level=run.mechanism.noise_multiplier,
    )


def take_step(run: Run, state: TrainState) -> tuple[TrainState, float]:
    """Take one step of the method; return the state after it, and the learning rate.

    The controller asks for as many releases as a step takes, and moves the parameters by what the
    update rule makes of them.

    Raises:
        BudgetExceeded: the ledger cannot pay for it; nothing has changed.
    """
    asked = _Releases(run, state)
    parts = run.parts
    with counting_what_is_lost(run, state.releases):
        rule, controller, lr = parts.controller.iterate(
            asked, parts.rule, run.parameters, state.rule, state.controller, state.step
        )
    return replace(asked.state, step=state.step + 1, rule=rule, controller=controller), lr


def release_gradient(run: Run, state: TrainState) -> tuple[Release, TrainState]:
    """Return one release of the gradient, and the state after it."""
    number, query, clipping = state.releases, run.gradients, run.mechanism.clipping
    run.charges.check_left(number)
    scaling, preconditioner = run.parts.preconditioner.at(state.preconditioner, run.parameters)
    clip = clipping.norm(state.clip)

    objective = run.settings.objective
    public = objective.gradient(run.model, run.parameters) if objective.terms else None
    ahead: Ahead = partial(run.charges.ahead, number)
    if run.following is None:
        event = run.mechanism.event_from(number)
    else:
        event, ahead, state = next_event(run, state)
    flat = query.lay_out(scaling)

    receipt = query.pay(event, ahead, number)
    if run.following is not None:
        run.charges.multipliers.append(events.multiplier(event))
    drawn = query.draw(number)
    clipped = query.clipped_sum(drawn, flat, clip)
    release = scaling.restore(query.add_noise(clipped, receipt), flat)

    preconditioner = run.parts.preconditioner.seen(release, preconditioner)
    clips = clipping.seen(release, state.clip)
    if public is not None:
        release = release.plus(scaling.precondition(public, flat))
    noise = state.noise if run.following is None else run.following.seen(release, state.noise)
    return release, replace(
        state, releases=number + 1, preconditioner=preconditioner, clip=clips, noise=noise
    )


def prepare(run: Run, state: TrainState) -> TrainState:
    """Return the state after the releases that come before the first step, if there are any."""
    if state.prepared:
        return state
    asked = _Preliminary(run, state.releases)
    with counting_what_is_lost(run, state.releases):
        found = run.parts.preconditioner.prepare(state.preconditioner, run.parameters, asked)
    return replace(state, prepared=True, releases=asked.made, preconditioner=found)


@contextmanager
def counting_what_is_lost(run: Run, start: int) -> Iterator[None]:
    """Count what was charged for a step that is not finished, and plan the run anew for it.

    Nothing is planned anew for a charge that was refused.
    """
    try:
        yield
    except BaseException as error:
        with suppress(PrivadaError):  # what cannot be given back stays charged
            run.gradients.account.refund_unused()
        with suppress(PrivadaError):
            run.charges.abort_step(start)
            if not isinstance(error, PrivadaError) or isinstance(error, DistributedError):
                run.charges.plan_anew(start)
        raise


class _Releases:
    """The releases of one step, as its controller asks for them."""

    def __init__(self, run: Run, state: TrainState) -> None:
        self._run, self.state = run, state

    def __call__(self) -> Release:
        release, self.state = release_gradient(self._run, self.state)
        return release


class _Preliminary:
    """The releases over all units before the first step, as a preconditioner asks for them."""

    def __init__(self, run: Run, made: int) -> None:
        self._run, self.made = run, made

    def __call__(self, bound: float, noise_multiplier: float) -> Release:
        mechanism = self._run.mechanism
        noise = mechanism.releases.preliminary(noise_multiplier, mechanism.noise_multiplier)
        release = self._run.second_moments.release(bound, noise, self._ahead())
        self.made += 1
        return release

    def features(self, noise_multiplier: float, accepts: Callable[[int], object]) -> Release:
        release = self._run.feature_moments.release(noise_multiplier, accepts, self._ahead())
        self.made += 1
        return release

    def _ahead(self) -> Ahead:
        self._run.charges.check_left(self.made)
        return partial(self._run.charges.ahead, self.made)
