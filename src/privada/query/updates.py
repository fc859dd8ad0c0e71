"""The query of a device's own update: pay, train, bound, add noise, release."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from dp_accounting import DpEvent
from torch import Tensor

from privada.accounting import Ledger, events
from privada.accounting.ledger import all_rows_of
from privada.clipping import threshold
from privada.core.validation import integer, positive
from privada.core.values import Release
from privada.noise import GaussianNoise
from privada.preconditioning import FlatScaling
from privada.query.account import Account


def update_event(noise_multiplier: float) -> DpEvent:
    """Return what one update is charged as: replacing its records moves it by twice the clip norm.

    Example:
        >>> from privada.query.updates import update_event
        >>> update_event(3.0)
        GaussianDpEvent(noise_multiplier=1.5)
    """
    return events.gaussian(0.5 * positive("noise_multiplier", noise_multiplier))


@dataclass(frozen=True)
class UpdateQuery:
    """What one device sends of its own update, where the server is not trusted.

    Args:
        ledger: the device's own, which pays.
        clip: the clip norm C.
        noise_multiplier: the noise's standard deviation over C.
        releases: how many updates the device will ever send.
        run: the name under which they are charged.
        unit: what the device stands for.

    Guarantee: an update is private by itself, against everybody, for replacing all records of the
    device by any others. That moves a clipped update by up to 2 C, so an update is charged as a
    Gaussian release with half the noise multiplier. The charge is durable before a record is read.

    Edge cases: an update that is not finite counts as zero.

    Example:
        >>> import privada as pv, torch
        >>> from privada.query.updates import UpdateQuery
        >>> query = UpdateQuery(
        ...     pv.Ledger(None), clip=1.0, noise_multiplier=1e-4, releases=5, run="first"
        ... )
        >>> found = query.release(lambda: torch.tensor([3.0, 4.0]))
        >>> [round(x, 2) for x in found.value.tolist()]
        [0.6, 0.8]

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 3, lines 7 and 8.
    """

    ledger: Ledger
    clip: float
    noise_multiplier: float
    releases: int
    run: str
    unit: str = "client"

    def __post_init__(self) -> None:
        positive("clip", self.clip)
        positive("noise_multiplier", self.noise_multiplier)
        integer("releases", self.releases)

    def release(self, train: Callable[[], Tensor]) -> Release:
        """Pay, let the device train, and return its bounded update with noise.

        `train` returns the update as one vector. It is called after the charge.

        Raises:
            BudgetExceeded: before the device trains.
            LedgerError: before the device trains.
        """
        event = update_event(self.noise_multiplier)

        def ahead(count: int) -> Mapping[DpEvent, int]:
            return {event: self.releases if count < 0 else 1}

        account = Account(self.ledger, run=self.run, unit=all_rows_of(self.unit))
        receipt = account.pay(event, ahead=ahead)
        update = train()
        clipping, total = threshold(), torch.zeros_like(update)
        statistics = clipping.no_statistics(total.device)
        clipping.add_rows(
            total, statistics, [update[None]], None, FlatScaling(None, None), self.clip
        )
        clipped = clipping.clipped(total, statistics, self.clip)
        replaceable = replace(clipped, sensitivity=2 * clipped.sensitivity)
        return GaussianNoise().release(replaceable, receipt, 1.0)
