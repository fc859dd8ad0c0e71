"""The randomness of a model's own layers, hidden from everyone."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from privada.core.randomness import Bits, words


@contextmanager
def hidden_generator(bits: Bits, device: torch.device) -> Iterator[None]:
    """Run dropout and other random layers from a state that nobody knows, then put the old back.

    Masks are dealt out by position in the batch. Were torch's state known, one record more would
    shift the masks of all that follow, and the sum could move by more than the clip norm; from a
    hidden state the masks are independent of each other and of who is there.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(words(bits, 1)[0] >> 1))
        yield
