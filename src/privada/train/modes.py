"""The mode that a model is in while it is trained."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Have a model in training mode, and afterwards in the mode in which it was."""
    before = model.training
    model.train()
    try:
        yield
    finally:
        model.train(before)
