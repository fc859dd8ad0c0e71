"""Gaussian noise from a key stream, added on a lattice.

docs/noise.md explains the construction and what it protects against.
"""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privada.accounting import events
from privada.core.deprecation import renamed_argument
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource, SecureSource, uniforms
from privada.core.receipts import Receipt, check_receipt
from privada.core.validation import positive
from privada.core.values import ClippedSum, Release

# Pairs of normals made at a time, in one thread, and threads at most: each has memory of its own.
_PAIRS, _THREADS = 1 << 17, 8
# Below this the 32 bits of a uniform are followed by 53 more: one pair in 65,536.
_RARE = 1 << 16
# The lattice that releases lie on has a spacing of 2^-5 to 2^-6 standard deviations, which adds
# less than one part in ten thousand to the variance of the noise.
_LATTICE_BITS = 5
# Beyond this, or its inverse, float32 cannot hold noise in units of the lattice.
_LEAST_STD = 1e-30

_FloatArray = NDArray[np.float32]


class _Normals:
    """Normals by Box-Muller, 64 random bits to a pair, in buffers that are used again.

    The radius takes 32 bits and, where these are so small that the few values left would show,
    another 53, so that the tails are true to 10 standard deviations; the angle takes 32 bits, of
    which float32 keeps the leading 24.
    """

    def __init__(self, pairs: int) -> None:
        self._radius, self._angle, self._out = np.empty((3, pairs), np.float32)

    def halves(
        self, rng: RandomSource, count: int, std: float
    ) -> Iterator[tuple[slice, _FloatArray]]:
        """Yield `count` normals in two parts, and where each goes; one is valid until the next."""
        pairs = (count + 1) // 2
        first, second = rng.draw(8 * pairs).view(np.uint32).reshape(2, pairs)
        radius, angle, out = self._radius[:pairs], self._angle[:pairs], self._out[:pairs]
        # u = (first + 1/2) / 2^32: never 0
        np.multiply(first, np.float32(2.0**-32), out=radius, dtype=np.float32, casting="unsafe")
        radius += np.float32(2.0**-33)
        rare = np.flatnonzero(first < _RARE)
        if rare.size:
            radius[rare] = (first[rare] + uniforms(rng, rare.size)) * 2.0**-32
        np.log(radius, out=radius)
        # rounded away from zero, since the noise must not be smaller than it is said to be
        radius *= np.nextafter(np.float32(-2 * std * std), np.float32(-np.inf))
        np.sqrt(radius, out=radius)
        turn = np.float32(math.pi * 2.0**-31)
        np.multiply(second.view(np.int32), turn, out=angle, dtype=np.float32, casting="unsafe")
        np.cos(angle, out=out)
        yield slice(0, pairs), np.multiply(out, radius, out=out)
        np.sin(angle, out=out)
        yield slice(pairs, count), np.multiply(out, radius, out=out)[: count - pairs]


_buffers = threading.local()


def _normals(worker: int) -> _Normals:
    """Return the buffers of one of this thread's workers.

    They are kept: fresh memory for each draw would cost as much as the draw.
    """
    kept: list[_Normals] = _buffers.__dict__.setdefault("normals", [])
    while len(kept) <= worker:
        kept.append(_Normals(_PAIRS))
    return kept[worker]


def add_noise_(value: Tensor, std: float, rng: RandomSource) -> None:
    """Add Gaussian noise to a vector in place and round the result to a lattice.

    Value and noise are taken in units of the lattice's spacing, a power of two; their sum is
    rounded to a whole number. Floating-point addition gives a number that depends on the exact sum
    alone, and so does rounding: what is released is a function of value plus noise, a multiple of
    one power of two whatever the data, and nothing is left of the low bits by which a
    floating-point attack tells inputs apart.

    Long vectors are worked on in as many threads as torch uses, up to eight, if the bits are
    secure; seeded ones come in an order that threads would not keep.
    """
    spacing = lattice_spacing(std)

    def add(part: Tensor, noise: Iterator[tuple[slice, _FloatArray]]) -> None:
        (_add_here if part.device.type == "cpu" else _add_there)(part, noise, spacing)

    _with_normals(value, std / spacing, rng, add)


def lattice_spacing(std: float) -> float:
    """Return the spacing of the lattice that releases with noise of a standard deviation lie on."""
    return float(2.0 ** (math.floor(math.log2(std)) - _LATTICE_BITS))


def fill_normals_(vector: Tensor, std: float, rng: RandomSource) -> None:
    """Fill a float32 vector in this machine's memory with independent normals."""

    def fill(part: Tensor, noise: Iterator[tuple[slice, _FloatArray]]) -> None:
        numbers = part.numpy()
        for place, some in noise:
            numbers[place] = some

    _with_normals(vector, std, rng, fill)


def add_given_noise_(value: Tensor, noise: Tensor, spacing: float) -> None:
    """Add noise that was made before, and round the result to the lattice."""
    value.mul_(1 / spacing)
    value += noise.to(value.device, value.dtype).mul_(1 / spacing)
    value.round_().mul_(spacing)


def _with_normals(
    value: Tensor,
    std: float,
    rng: RandomSource,
    act: Callable[[Tensor, Iterator[tuple[slice, _FloatArray]]], None],
) -> None:
    """Let `act` have each part of a vector and the normals for it, in several threads."""
    width = 2 * _PAIRS
    threads = min(torch.get_num_threads(), _THREADS) if rng.secure else 1
    workers = max(1, min(threads, value.numel() // width))
    parts = workers * math.ceil(value.numel() / (workers * width))
    width = max(1, math.ceil(value.numel() / max(1, parts)))
    normals = [_normals(worker) for worker in range(workers)]

    def work(worker: int) -> None:
        with np.errstate(all="ignore"):  # whatever was set: an exception would tell of the value
            for start in range(worker * width, value.numel(), workers * width):
                part = value[start : start + width]
                act(part, normals[worker].halves(rng, part.numel(), std))

    if workers == 1:
        work(0)
        return
    with ThreadPoolExecutor(workers - 1) as pool:
        others = [pool.submit(work, worker) for worker in range(1, workers)]
        work(0)
        for other in others:
            other.result()


def _add_here(part: Tensor, noise: Iterator[tuple[slice, _FloatArray]], spacing: float) -> None:
    """Add noise to a vector and round it to the lattice.

    By NumPy, which has vector instructions for this on every processor, and none of torch's threads
    beside ours.
    """
    numbers = part.detach().numpy()
    numbers *= numbers.dtype.type(1 / spacing)
    for place, some in noise:
        numbers[place] += some
    np.rint(numbers, out=numbers)
    numbers *= numbers.dtype.type(spacing)


def _add_there(part: Tensor, noise: Iterator[tuple[slice, _FloatArray]], spacing: float) -> None:
    """Add noise to a vector on another device and round it to the lattice."""
    part.mul_(1 / spacing)
    for place, some in noise:
        part[place] += torch.from_numpy(some).to(part.device, part.dtype)
    part.round_().mul_(spacing)


@renamed_argument("bits", "rng")
class GaussianNoise:
    """The source of noise: turns a clipped sum into a release.

    Guarantee: the noise has standard deviation multiplier x sensitivity: the multiplier of the
    event that was paid, and the sensitivity that the sum itself carries. It is unpredictable when
    `bits` are secure, and no two draws repeat, across processes, forks and restarts. Releases lie
    on a lattice that does not depend on the data.

    Edge cases: a multiplier of zero is refused; there is no release without noise. So is noise that
    float32 has no room for, below 1e-30 or above 1e30.

    Example:
        >>> from privada.noise import GaussianNoise
        >>> GaussianNoise().secure
        True

    Reference: Box and Muller (1958); Mironov (2012), On Significance of the Least Significant
    Bits for Differential Privacy.
    """

    def __init__(self, rng: RandomSource | None = None) -> None:
        self.rng: RandomSource = SecureSource() if rng is None else rng

    @property
    def secure(self) -> bool:
        """Whether the noise is unpredictable."""
        return self.rng.secure

    def describe(self) -> str:
        """Return the source in words."""
        if self.secure:
            return (
                "Gaussian, from AES-256 in counter mode, keyed afresh by the operating system for "
                "every draw; releases are rounded to a lattice"
            )
        return "seeded: not a private release"

    def release(self, clipped: ClippedSum, receipt: Receipt, batch_size: float) -> Release:
        """Return the clipped sum with the noise that was paid for; its buffer is used.

        The receipt is spent. Its event says the multiplier.
        """
        std = paid_std(clipped, receipt)
        receipt.spend()
        add_noise_(clipped.value, std, self.rng)
        return made_release(clipped, std, receipt, batch_size)


def paid_std(clipped: ClippedSum, receipt: Receipt) -> float:
    """Return the standard deviation that was paid for: multiplier x sensitivity.

    Raises:
        ArgumentError: it is no receipt, or there is no such noise.
    """
    check_receipt(receipt)
    multiplier, sensitivity = events.multiplier(receipt.event), clipped.sensitivity
    if not (multiplier > 0 and sensitivity > 0):
        positive("noise_multiplier", multiplier)
        positive("sensitivity", sensitivity)
    std = multiplier * sensitivity
    if not _LEAST_STD <= std <= 1 / _LEAST_STD:
        raise ArgumentError(
            f"Expected noise with a standard deviation between {_LEAST_STD:g} and "
            f"{1 / _LEAST_STD:g}, which float32 has room for, got {std:g} = noise_multiplier x "
            "sensitivity. Choose another clip norm, and scale the loss if gradients are so."
        )
    return std


def made_release(clipped: ClippedSum, std: float, receipt: Receipt, batch_size: float) -> Release:
    """Return what noise was added to as a release; extra coordinates are taken apart."""
    value, statistics = clipped.value, None
    if clipped.extra:
        value, statistics = value[: -clipped.extra], value[-clipped.extra :]
    return Release(value, std, batch_size, receipt, statistics=statistics)
