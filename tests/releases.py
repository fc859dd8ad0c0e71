"""Receipts and releases for tests of what noise and rules do with them."""

from functools import cache
from typing import Any

from torch import Tensor

from privada.accounting import Ledger, events
from privada.core.receipts import Receipt
from privada.core.values import Release


def paid(noise_multiplier: float = 1.0, count: int = 1) -> Receipt:
    """Return the receipt of Gaussian releases over all records."""
    event = events.gaussian(noise_multiplier)
    return Ledger(None).charge({event: count}, run="test").use(event, count)


@cache
def _one_receipt() -> Receipt:
    return paid()


def released(value: Tensor, noise_std: float, batch_size: float, **restored: Any) -> Release:
    """Return a release with the given value, as if noise had made it."""
    return Release(value, noise_std, batch_size, _one_receipt(), **restored)
