"""A sum over all records with Gaussian noise."""

import math
from typing import Any

from dp_accounting import DpEvent, GaussianDpEvent

from privada.accounting import rdp
from privada.accounting.events.kind import EITHER, REPLACE, EventKind, GaussianRelease
from privada.accounting.orders import Places, Vector
from privada.core.errors import EventError
from privada.core.formatting import number


def gaussian(noise_multiplier: float) -> DpEvent:
    """Return the event of one Gaussian release over all records."""
    return GaussianDpEvent(float(noise_multiplier))


def noise_of(event: DpEvent) -> float:
    """Return the noise multiplier of what a sampled event samples; raise if it is no Gaussian."""
    if not isinstance(event.event, GaussianDpEvent):
        raise EventError(
            f"Expected a sample of which a Gaussian release is made, got {event!r}. Express the "
            "query by one."
        )
    return float(event.event.noise_multiplier)


def check_release(event: DpEvent, noise_multiplier: float, sampling_rate: float) -> None:
    """Raise unless the numbers of a release are such that accountants can compare its cost."""
    # a NaN would compare as neither within a budget nor beyond it
    if not (0 <= noise_multiplier < math.inf and 0 < sampling_rate <= 1):
        raise EventError(
            f"Expected a finite noise multiplier of at least 0 and a sampling rate in (0, 1], got "
            f"{event!r}."
        )


def per_change(noise_multiplier: float, relation: str) -> float:
    """Return the noise over what one change of the data moves the sum by.

    A multiplier is over the clip norm, by which adding or removing a record moves a clipped sum.
    Replacing one moves it by twice that.
    """
    return 0.5 * noise_multiplier if relation == REPLACE else noise_multiplier


class Gaussian(EventKind[GaussianDpEvent]):
    """A Gaussian release over all records: private in either relation."""

    name, event = "gaussian", GaussianDpEvent

    def relation(self, event: GaussianDpEvent) -> str:
        """Return that it is either."""
        check_release(event, event.noise_multiplier, 1.0)
        return EITHER

    def describe(self, event: GaussianDpEvent) -> str:
        """Return the event in words."""
        return f"Gaussian noise, multiplier {number(event.noise_multiplier)}, on all records"

    def fields(self, event: GaussianDpEvent) -> dict[str, Any]:
        """Return the multiplier."""
        return {"noise_multiplier": float(event.noise_multiplier)}

    def make(self, noise_multiplier: float) -> DpEvent:  # type: ignore[override]
        """Return the event."""
        return gaussian(noise_multiplier)

    def release(self, event: GaussianDpEvent) -> GaussianRelease:
        """Return a release at a rate of 1."""
        return GaussianRelease(1.0, float(event.noise_multiplier))

    def divergence(self, event: GaussianDpEvent, relation: str) -> Vector:
        """Return order / (2 multiplier^2), with half the multiplier for replacing a record."""
        return rdp.sampled_gaussian(1.0, per_change(event.noise_multiplier, relation))

    def divergence_at(self, event: GaussianDpEvent, relation: str, places: Places) -> Vector:
        """Return the same at some of the orders."""
        return rdp.sampled_gaussian(1.0, per_change(event.noise_multiplier, relation), places)
