"""Random bits: from a key stream that the operating system keys afresh, or from a seed.

Sampling and noise both draw from a `RandomSource`; neither touches any global generator.
"""

import hashlib
import os
from typing import Final, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from privada.core.validation import integer

_BLOCK = memoryview(bytes(1 << 17))
# Up to so many bytes the operating system's are had sooner than a cipher is set up.
_SHORT = 256


def _key_stream(key: bytes, size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of the AES-256 counter-mode stream under `key`."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    stream = np.empty(size + 15, np.uint8)  # update_into asks for up to a cipher block of slack
    view = stream.data
    for start in range(0, size, len(_BLOCK)):
        count = min(len(_BLOCK), size - start)
        encryptor.update_into(_BLOCK[:count], view[start : start + count + 15])
    return stream[:size]


class RandomSource(Protocol):
    """A source of uniform random bytes. A secure one may be asked by several threads at once."""

    @property
    def secure(self) -> bool:
        """Whether the bits are unpredictable to everyone."""

    def draw(self, size: int) -> NDArray[np.uint8]:
        """Return `size` fresh uniform bytes."""


class SecureSource:
    """Bytes that nobody can predict or repeat.

    Every draw takes a fresh 256-bit key from the operating system and expands it with AES in
    counter mode, or is the operating system's own where it is short. Nothing is kept between draws,
    so nothing can be repeated by a fork, a copy, a pickle or a restart, and no file can hold the
    key. A machine restored from a snapshot relies on its operating system to renew its own
    randomness.

    Example:
        >>> from privada.core.randomness import SecureSource
        >>> len(SecureSource().draw(10))
        10
    """

    secure: Final = True

    def draw(self, size: int) -> NDArray[np.uint8]:
        """Return `size` bytes under a key of their own."""
        if size <= _SHORT:
            return np.frombuffer(bytearray(os.urandom(size)), np.uint8)
        return _key_stream(os.urandom(32), size)


class SeededSource:
    """Reproducible bytes for experiments and tests. Not private: whoever knows the seed knows all.

    Draw number k is keyed by SHA-256 of (seed, stream, k), so two streams of one seed are
    unrelated, and `position` alone restores the state.

    Example:
        >>> from privada.core.randomness import SeededSource
        >>> first, again = SeededSource(7, "noise"), SeededSource(7, "noise")
        >>> bool((first.draw(8) == again.draw(8)).all())
        True
    """

    secure: Final = False

    def __init__(self, seed: int, stream: str, position: int = 0) -> None:
        self.seed = integer("seed", seed, least=0)
        self.stream = stream
        self.position = integer("position", position, least=0)

    def draw(self, size: int) -> NDArray[np.uint8]:
        """Return the next `size` bytes of the stream."""
        label = f"privada/{self.seed}/{self.stream}/{self.position}"
        self.position += 1
        key = hashlib.sha256(label.encode()).digest()
        return _key_stream(key, size)


def make_source(seed: int | None, stream: str) -> RandomSource:
    """Return secure bits, or the named stream of a seed."""
    return SecureSource() if seed is None else SeededSource(seed, stream)


def random_words(rng: RandomSource, count: int) -> NDArray[np.uint64]:
    """Return `count` uniform 64-bit words."""
    return rng.draw(8 * count).view(np.uint64)


def uniforms(rng: RandomSource, count: int) -> NDArray[np.float64]:
    """Return `count` uniform floats in (0, 1), each of 53 random bits."""
    drawn = ((random_words(rng, count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.minimum(drawn, 1 - 2.0**-53)  # the last of them is rounded up to 1


def integers(rng: RandomSource, below: int, count: int) -> NDArray[np.int64]:
    """Return `count` integers, each exactly uniform on 0 .. below - 1, by rejection."""
    limit = np.uint64((2**64 // below) * below - 1)
    drawn = random_words(rng, count)
    while (bad := np.flatnonzero(drawn > limit)).size:
        drawn[bad] = random_words(rng, bad.size)
    return (drawn % np.uint64(below)).astype(np.int64)
