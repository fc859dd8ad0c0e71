"""A sum over a sample of fixed size with Gaussian noise."""

from typing import Any

from dp_accounting import DpEvent, SampledWithoutReplacementDpEvent

from privada.accounting import rdp
from privada.accounting.events.gaussian import check_release, gaussian, noise_of, per_change
from privada.accounting.events.kind import REPLACE, EventKind, GaussianRelease
from privada.accounting.orders import Places, Vector
from privada.core.formatting import number


def fixed_size(population: int, batch_size: int, noise_multiplier: float) -> DpEvent:
    """Return the event of one Gaussian release over a fixed-size sample without replacement."""
    return SampledWithoutReplacementDpEvent(population, batch_size, gaussian(noise_multiplier))


def _rate(event: SampledWithoutReplacementDpEvent) -> float:
    return float(event.sample_size / max(1, event.source_dataset_size))


class FixedSize(EventKind[SampledWithoutReplacementDpEvent]):
    """A Gaussian release over a sample of fixed size, for replacing a record."""

    name, event = "fixed-size", SampledWithoutReplacementDpEvent

    def relation(self, event: SampledWithoutReplacementDpEvent) -> str:
        """Return replace-one."""
        check_release(event, noise_of(event), _rate(event))
        return REPLACE

    def describe(self, event: SampledWithoutReplacementDpEvent) -> str:
        """Return the event in words."""
        return (
            f"Gaussian noise, multiplier {number(noise_of(event))}, on {event.sample_size} of "
            f"{event.source_dataset_size} records drawn without replacement"
        )

    def fields(self, event: SampledWithoutReplacementDpEvent) -> dict[str, Any]:
        """Return the sizes and the multiplier."""
        return {
            "population": int(event.source_dataset_size),
            "batch_size": int(event.sample_size),
            "noise_multiplier": noise_of(event),
        }

    def make(self, population: int, batch_size: int, noise_multiplier: float) -> DpEvent:  # type: ignore[override]
        """Return the event."""
        return fixed_size(population, batch_size, noise_multiplier)

    def release(self, event: SampledWithoutReplacementDpEvent) -> GaussianRelease:
        """Return the rate and the multiplier."""
        return GaussianRelease(_rate(event), noise_of(event))

    def divergence(self, event: SampledWithoutReplacementDpEvent, relation: str) -> Vector:
        """Return the bound for fixed-size samples, with half the multiplier."""
        return rdp.fixed_size_gaussian(_rate(event), per_change(noise_of(event), relation))

    def divergence_at(
        self, event: SampledWithoutReplacementDpEvent, relation: str, places: Places
    ) -> Vector:
        """Return the same at some of the orders."""
        return rdp.fixed_size_gaussian(_rate(event), per_change(noise_of(event), relation), places)
