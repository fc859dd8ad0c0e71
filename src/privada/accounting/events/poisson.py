"""A sum over a Poisson sample with Gaussian noise."""

from typing import Any

from dp_accounting import DpEvent, PoissonSampledDpEvent

from privada.accounting import rdp
from privada.accounting.events.gaussian import check_release, gaussian, noise_of
from privada.accounting.events.kind import ADD_OR_REMOVE, EventKind, GaussianRelease
from privada.accounting.orders import Places, Vector
from privada.core.formatting import number


def poisson(sampling_rate: float, noise_multiplier: float) -> DpEvent:
    """Return the event of one Gaussian release over a Poisson sample."""
    if sampling_rate == 1:
        return gaussian(noise_multiplier)
    return PoissonSampledDpEvent(float(sampling_rate), gaussian(noise_multiplier))


class Poisson(EventKind[PoissonSampledDpEvent]):
    """A Gaussian release over a Poisson sample, for adding or removing a record."""

    name, event = "poisson", PoissonSampledDpEvent

    def relation(self, event: PoissonSampledDpEvent) -> str:
        """Return add-or-remove-one."""
        check_release(event, noise_of(event), event.sampling_probability)
        return ADD_OR_REMOVE

    def describe(self, event: PoissonSampledDpEvent) -> str:
        """Return the event in words."""
        return (
            f"Gaussian noise, multiplier {number(noise_of(event))}, on a Poisson sample at rate "
            f"{event.sampling_probability:.6g}"
        )

    def fields(self, event: PoissonSampledDpEvent) -> dict[str, Any]:
        """Return the rate and the multiplier."""
        return {
            "sampling_rate": float(event.sampling_probability),
            "noise_multiplier": noise_of(event),
        }

    def make(self, sampling_rate: float, noise_multiplier: float) -> DpEvent:  # type: ignore[override]
        """Return the event."""
        return poisson(sampling_rate, noise_multiplier)

    def release(self, event: PoissonSampledDpEvent) -> GaussianRelease:
        """Return the rate and the multiplier."""
        return GaussianRelease(float(event.sampling_probability), noise_of(event))

    def divergence(self, event: PoissonSampledDpEvent, relation: str) -> Vector:
        """Return the divergence of the sampled Gaussian, that of removing a record: the larger."""
        return rdp.sampled_gaussian(event.sampling_probability, noise_of(event))

    def divergence_at(self, event: PoissonSampledDpEvent, relation: str, places: Places) -> Vector:
        """Return the same at some of the orders."""
        return rdp.sampled_gaussian(event.sampling_probability, noise_of(event), places)
