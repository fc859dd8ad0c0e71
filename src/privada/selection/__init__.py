"""The honest price of choosing hyper-parameters."""

from privada.selection.prices import WAYS, Price, noise_multiplier, price

__all__ = ["WAYS", "Price", "noise_multiplier", "price"]
