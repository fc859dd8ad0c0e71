"""To add a query, write one file: how many units there are, with noise."""

import torch

from privada.accounting import events
from privada.clipping.scores import bounded_sum
from privada.core.randomness import SecureSource
from privada.noise import GaussianNoise


class CountQuery:
    """Charge, add up a one for each unit, add noise, release."""

    def __init__(self, units, account, rng=None):
        self._units, self._account = units, account
        self._noise = GaussianNoise(SecureSource() if rng is None else rng)

    def release(self, noise_multiplier):
        receipt = self._account.pay(events.gaussian(noise_multiplier))
        ones = torch.ones(self._units.size)
        counted = bounded_sum([ones], 1.0, torch.device("cpu"))
        return float(self._noise.release(counted, receipt, batch_size=1.0).value)
