"""Gaussian noise from a key stream, added on a lattice.

docs/noise.md explains the construction and what it protects against.
"""

import math
import threading

import torch
from torch import Tensor

from privada.core.randomness import Bits, SecureBits, uniforms
from privada.core.validation import positive
from privada.core.values import ClippedSum, Release

# Pairs of normals made at a time: few enough for the cache, enough for the threads.
_PAIRS = 1 << 18
# Below this the 31 leading bits of a uniform are followed by 53 more: one pair in a million.
_RARE = 1 << 11
# The lattice that releases lie on has a spacing of 2^-5 to 2^-6 standard deviations, which adds
# less than one part in ten thousand to the variance of the noise.
_LATTICE_BITS = 5


class _Normals:
    """Standard normals by Box-Muller, 64 random bits to a pair, in buffers that are used again.

    The radius takes 38 bits and, where these are so small that the few values left would show,
    another 53, so that the tails are true to 10 standard deviations; the angle takes 24 bits, which
    is all that float32 can tell apart.
    """

    def __init__(self, pairs: int) -> None:
        self._low = torch.empty(pairs, dtype=torch.int32)
        self._radius = torch.empty(pairs)
        self._angle = torch.empty(pairs)
        self._out = torch.empty(2 * pairs)
        self._scratch = torch.empty(2 * pairs)

    def scratch(self, like: Tensor) -> Tensor:
        """Return memory for a vector of the shape and kind of `like`."""
        if (like.dtype, like.device) != (self._scratch.dtype, self._scratch.device):
            self._scratch = torch.empty_like(self._scratch, dtype=like.dtype, device=like.device)
        return self._scratch[: like.numel()]

    def draw(self, bits: Bits, count: int) -> Tensor:
        """Return `count` normals, valid until the next draw."""
        pairs = (count + 1) // 2
        first, second = torch.from_numpy(bits.draw(8 * pairs)).view(torch.int32).view(2, pairs)
        low, radius, angle = self._low[:pairs], self._radius[:pairs], self._angle[:pairs]
        # u = (31 bits) / 2^31 + (odd byte) / 2^39: never 0, and small values, which make the
        # tails, keep their low bits
        torch.bitwise_and(second, 0xFF, out=low)
        angle.copy_(low.bitwise_or_(1))
        radius.copy_(first.bitwise_and_(0x7FFFFFFF))
        radius.add_(angle, alpha=2.0**-8).mul_(2.0**-31)
        if bool(first.amin() < _RARE):
            rare = torch.nonzero(first < _RARE).squeeze(1)
            finer = torch.from_numpy(uniforms(bits, rare.numel()))
            radius[rare] = ((first[rare].double() + finer) * 2.0**-31).float()
        radius.log_().mul_(-2).sqrt_()
        angle.copy_(second.bitwise_right_shift_(8)).add_(0.5).mul_(math.pi * 2.0**-23)
        out = self._out[: 2 * pairs].view(2, pairs)
        torch.cos(angle, out=out[0])
        torch.sin(angle, out=out[1])
        return out.mul_(radius).view(-1)[:count]


_buffers = threading.local()


def _normals_of_thread() -> _Normals:
    """Return this thread's buffers: fresh memory for each draw would cost as much as the draw."""
    if not hasattr(_buffers, "normals"):
        _buffers.normals = _Normals(_PAIRS)
    normals: _Normals = _buffers.normals
    return normals


def add_noise_(value: Tensor, std: float, bits: Bits) -> None:
    """Add Gaussian noise to a vector in place and round the result to a lattice.

    The value is split into a lattice point and a remainder, which is exact; noise and remainder
    are added and rounded to the lattice; the points are added as whole numbers. So releases are
    multiples of one power of two whatever the data, and nothing is left of the low bits by which
    a floating-point attack tells inputs apart.
    """
    spacing = 2.0 ** (math.floor(math.log2(std)) - _LATTICE_BITS)
    normals = _normals_of_thread()
    for start in range(0, value.numel(), 2 * _PAIRS):
        part = value[start : start + 2 * _PAIRS]
        noise = normals.draw(bits, part.numel()).to(part.device, part.dtype)
        point = torch.round(part.mul_(1 / spacing), out=normals.scratch(part))
        part.sub_(point).add_(noise, alpha=std / spacing).round_().add_(point).mul_(spacing)


class GaussianNoise:
    """The source of noise: turns a clipped sum into a release.

    Guarantee: the noise has standard deviation multiplier x sensitivity, the sensitivity that the
    sum itself carries; it is unpredictable when `bits` are secure, and no two draws repeat, across
    processes, forks and restarts. Releases lie on a lattice that does not depend on the data.

    Edge cases: a multiplier of zero is refused; there is no release without noise.

    Example:
        >>> from privada.noise import GaussianNoise
        >>> GaussianNoise().secure
        True

    Reference: Box and Muller (1958); Mironov (2012), On Significance of the Least Significant Bits
    for Differential Privacy.
    """

    def __init__(self, bits: Bits | None = None) -> None:
        self.bits: Bits = SecureBits() if bits is None else bits

    @property
    def secure(self) -> bool:
        """Whether the noise is unpredictable."""
        return self.bits.secure

    def describe(self) -> str:
        """Return the source in words."""
        if self.secure:
            return (
                "Gaussian, from AES-256 in counter mode, keyed afresh by the operating system for "
                "every draw; releases are rounded to a lattice"
            )
        return "seeded: not a private release"

    def release(self, clipped: ClippedSum, noise_multiplier: float, batch_size: float) -> Release:
        """Return the clipped sum with noise; its buffer is used and must not be kept."""
        std = positive("noise_multiplier", noise_multiplier) * positive(
            "sensitivity", clipped.sensitivity
        )
        add_noise_(clipped.value, std, self.bits)
        return Release(clipped.value, std, batch_size)
