"""What a run asks of public records that it is evaluated on."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


class Metric(Protocol):
    """A figure by its name."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def greater(self) -> bool:
        """Whether more is better."""


class PublicScores(Protocol):
    """Evaluates a model on public records."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """What is measured; early stopping goes by the first."""

    @property
    def baselines(self) -> Mapping[str, float]:
        """What a model reaches that gives every record the same output."""

    def values(self) -> dict[str, float]:
        """Return the figures of the model as it is."""


@runtime_checkable
class Validates(Protocol):
    """Public records that a run is evaluated on, such as a `pv.Validation`."""

    @property
    def every(self) -> int | None:
        """How many steps lie between two evaluations."""

    def describe(self) -> str:
        """Return the settings in words."""

    def on(self, model: Any, loss: Any, private: Sequence[Any], load: Any) -> PublicScores:
        """Return what evaluates a model on the records, which must not be the private ones."""
