"""The randomness of a model's own layers, hidden from everyone."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from privada.core.randomness import Bits, words

# Torch's state is one for the process. A thread that put its old state back while another runs
# would give that one masks that it knows, or has had before.
_alone = threading.RLock()


def _new_lock() -> None:
    """In a forked child, while it has one thread: nobody here holds the lock."""
    global _alone
    _alone = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


@contextmanager
def hidden_generator(bits: Bits, device: torch.device) -> Iterator[None]:
    """Run dropout and other random layers from a state that nobody knows, then put the old back.

    Masks are dealt out by position in the batch. Were torch's state known, one record more would
    shift the masks of all that follow, and the sum could move by more than the clip norm; from a
    hidden state the masks are independent of each other and of who is there. Threads of one process
    take turns here.
    """
    devices = [device] if device.type == "cuda" else []
    with _alone, torch.random.fork_rng(devices=devices):
        seed = int(words(bits, 1)[0] >> 1)
        # not torch.manual_seed, which writes down the stack for devices that are not in use
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed(seed)
        yield
