"""The randomness of models and of data sets, hidden from everyone."""

import _random
import hashlib
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from privada.core.randomness import RandomSource

# These states are one for the process. A thread that put its old state back while another runs
# would give that one masks that it knows, or has had before.
_alone = threading.RLock()
# numpy's global functions, which data sets and models use, whatever is better style.
_numpy: Any = np.random
# What random's global functions are methods of.
_python: Any = random._inst
# What numpy's global functions draw from meanwhile: their own generator is put aside as it is.
_own_numpy = np.random.MT19937(0)
_SECRET, _DIGEST = 32, 32


def _new_lock() -> None:
    """In a forked child, while it has one thread: nobody here holds the lock."""
    global _alone
    _alone = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


class HiddenStreams:
    """What the global generators of torch, numpy and random draw from during one query."""

    def __init__(self, rng: RandomSource, device: torch.device) -> None:
        drawn = rng.draw(_DIGEST + _SECRET).tobytes()
        self._start, self._secret = drawn[:_DIGEST], drawn[_DIGEST:]
        self._cuda = device if device.type == "cuda" else None

    def restart(self) -> None:
        """Put the generators where they were at the beginning of the query."""
        self._seed(self._start)

    def of_record(self, index: int) -> int:
        """Put the generators where they are for one record, and return a seed of its own.

        They depend on the secret of the query and on the record's number: on no other record.
        """
        number = index.to_bytes(8, "little")
        digest = hashlib.blake2b(number, key=self._secret, digest_size=_DIGEST).digest()
        self._seed(digest)
        return _whole(digest[24:])

    def _seed(self, digest: bytes) -> None:
        seed = _whole(digest[:8]) >> 1
        # not torch.manual_seed, which writes down the stack for devices that are not in use
        torch.default_generator.manual_seed(seed)
        if self._cuda is not None:
            with torch.cuda.device(self._cuda):
                torch.cuda.manual_seed(seed)
        _numpy.seed(_whole(digest[8:12]))
        _seed_python(_whole(digest[12:24]))


def generator_of(seed: int) -> torch.Generator:
    """Return a generator for a transform, from the seed of a record."""
    return torch.Generator().manual_seed(seed)


def _seed_python(seed: int) -> None:
    """Do as random.seed does with a whole number, in half the time."""
    _random.Random.seed(_python, seed)
    _python.gauss_next = None


def _whole(part: bytes) -> int:
    return int.from_bytes(part, "little")


@contextmanager
def hidden_generator(rng: RandomSource, device: torch.device) -> Iterator[HiddenStreams]:
    """Run random layers and data sets from states that nobody knows, then put the old ones back.

    Masks are dealt out by position in the batch. Were the states known, one record more would
    shift the masks of all that follow, and the sum could move by more than the clip norm; from
    hidden states the masks are independent of each other and of who is there. It is about the
    global generators of torch, numpy and random. Threads of one process take turns here.
    """
    devices = [device] if device.type == "cuda" else []
    with _alone, torch.random.fork_rng(devices=devices), _numpy_aside(), _python_aside():
        streams = HiddenStreams(rng, device)
        streams.restart()
        yield streams


@contextmanager
def _numpy_aside() -> Iterator[None]:
    """Keep the generator of numpy's global functions, with the normal number that it holds back."""
    kept = _numpy.get_bit_generator()
    usual = isinstance(kept, np.random.MT19937)
    state: Any = _numpy.get_state(legacy=usual)
    waiting = state[3] if usual else state["has_gauss"]
    _numpy.set_bit_generator(_own_numpy)
    try:
        yield
    finally:
        _numpy.set_bit_generator(kept)
        if waiting or kept is _own_numpy:  # the latter within another query's time
            _numpy.set_state(state)


@contextmanager
def _python_aside() -> Iterator[None]:
    """Keep the state of random's global functions."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
