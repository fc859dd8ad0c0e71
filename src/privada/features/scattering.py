"""Scattering of images: averages of what wavelets find, and of what wavelets find in that."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise, product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import group_norm, pad

from privada.core.errors import ArgumentError, DataError
from privada.core.validation import integer, positive

# Of the wavelets, as kymatio and ScatNet have them: the width of the finest one in pixels, and how
# fast it oscillates.
_WIDTH, _FREQUENCY = 0.8, 0.75 * math.pi
# How many copies of a filter, either way, make it periodic.
_COPIES = 2
# Images that are worked on at a time: few enough for the processor's cache.
_IMAGES = 16


Filter = NDArray[np.float64]


class Scattering2D(nn.Module):
    """Wavelet scattering: fixed features of images, on which a linear model does well.

    An image x is averaged, S_0 = x * phi; so is the modulus of each wavelet's response to it, S_1 =
    |x * psi| * phi; and, with order 2, that of the responses of coarser wavelets to those, S_2 =
    ||x * psi| * psi'| * phi. The wavelets are Morlet's, at J scales and L angles; phi is a Gaussian
    of scale 2^J, after which one value in 2^J is kept each way. With J = 2 and L = 8, an image of
    28 x 28 pixels becomes 81 channels of 7 x 7.

    Args:
        shape: (height, width) of an image, or (channels, height, width).
        J: the number of scales.
        L: the number of angles.
        order: 1 or 2.
        norm: the Euclidean norm that rows have at most, and nearly have: the values of each order
            and scale of an image are brought to mean 0 and variance 1, and then divided by a
            constant. None leaves values as they are.

    Guarantee: nothing is learnt, and each image is transformed by itself, its norm included. So it
    costs no privacy.

    Edge cases: inputs are rows of pixels, as scikit-learn has them, or images of `shape`; outputs
    are rows. Images are mirrored at their edges. Variances below 1e-5 are not brought to 1, so that
    images without contrast have small rows.

    Example:
        >>> import torch, privada as pv
        >>> scattering = pv.features.Scattering2D((28, 28))
        >>> scattering(torch.rand(5, 784)).shape
        torch.Size([5, 3969])
        >>> pv.features.Scattering2D((3, 32, 32), norm=None).outputs
        15552

    Reference: Bruna and Mallat (2013), Invariant Scattering Convolution Networks, Section 2; Tramer
    and Boneh (2021), Differentially Private Learning Needs Better Features (or Much More Data),
    arXiv 2011.11660, Section 2, for scattering and its normalisation under differential privacy.
    """

    def __init__(
        self,
        shape: Sequence[int],
        J: int = 2,
        L: int = 8,
        *,
        order: int = 2,
        norm: float | None = 5.0,
    ) -> None:
        super().__init__()
        self.J, self.L = integer("J", J), integer("L", L)
        self.order, self.norm = _order(order), None if norm is None else positive("norm", norm)
        self.channels, *self.size = _checked_shape(shape, 2**J)
        step = 2**J
        padded = [((n + step) // step + 1) * step for n in self.size]
        extra = [(p - n) // 2 for p, n in zip(padded, self.size, strict=True)]
        self._margins = [
            extra[1], padded[1] - self.size[1] - extra[1],
            extra[0], padded[0] - self.size[0] - extra[0],
        ]  # fmt: skip
        for j in range(J):
            angles = ((L - L // 2 - 1 - turn) * math.pi / L for turn in range(L))
            wavelets = np.stack([_wavelet(padded, 2**j, angle, L) for angle in angles])
            for finer in range(max(1, j)):
                thinned = 2 ** (j - finer)  # over whose square a response is averaged
                self._keep(f"wavelets_{j}_{finer}", _folded(wavelets, 2**finer) / thinned**2)
            for side, n in zip(("rows", "columns"), padded, strict=True):
                self._keep(f"{side}_{j}", _averages(n, J, j))

    def _keep(self, name: str, values: Filter) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)

    @property
    def outputs(self) -> int:
        """How many numbers an image becomes."""
        return self.channels * sum(self._groups) * self._pixels

    @property
    def _pixels(self) -> int:
        return math.prod(n // 2**self.J for n in self.size)

    @property
    def _groups(self) -> list[int]:
        """How many channels there are of each order and scale."""
        second = [self.L**2 * (self.J - 1 - j) for j in range(self.J - 1)]
        return [1, *[self.L] * self.J, *(second if self.order == 2 else [])]

    def forward(self, images: Tensor) -> Tensor:
        """Return a row of features for each image."""
        shape = (self.channels, *self.size)
        if images.ndim < 2 or images.shape[1:].numel() != math.prod(shape):
            raise DataError(
                f"Expected images of {' x '.join(map(str, shape))} pixels, or rows of "
                f"{math.prod(shape):,}, got shape {tuple(images.shape[1:])} each. Give the shape "
                "of an image as shape."
            )
        rows = images.reshape(-1, *self.size).to(self.get_buffer("rows_0").dtype)
        starts = range(0, len(rows), _IMAGES)
        parts = [self._channels(rows[start : start + _IMAGES]) for start in starts]
        channels = self.channels, sum(self._groups), self._pixels
        each = torch.cat([rows.new_zeros(0), *parts]).reshape(len(images), *channels)
        if self.norm is None:
            return each.flatten(1)
        ends = list(accumulate(self._groups, initial=0))
        groups = [each[:, :, start:end] for start, end in pairwise(ends)]
        scaled = [group_norm(group.flatten(1, 2).flatten(1), 1).view_as(group) for group in groups]
        return torch.cat(scaled, dim=2).flatten(1) * (self.norm / math.sqrt(self.outputs))

    def extra_repr(self) -> str:
        """Return the settings."""
        shape = (self.channels, *self.size)
        return f"{shape}, J={self.J}, L={self.L}, order={self.order}, norm={self.norm}"

    def _channels(self, images: Tensor) -> Tensor:
        """Return the channels of some images of one colour, those of order 0 first."""
        images = pad(images[:, None], self._margins, mode="reflect")
        orders = [[self._averaged(images, 0)], [], []]
        spectrum = torch.fft.fft2(images)
        for j in range(self.J):
            response = self._modulus(spectrum, j, 0)
            orders[1].append(self._averaged(response, j))
            if self.order == 2 and j + 1 < self.J:
                again = torch.fft.fft2(response)[:, :, None]
                coarser = [
                    self._averaged(self._modulus(again, other, j), other)
                    for other in range(j + 1, self.J)
                ]
                orders[2].append(torch.cat(coarser, dim=2).flatten(1, 2))
        return torch.cat([channel for order in orders for channel in order], dim=1)

    def _modulus(self, spectrum: Tensor, j: int, finer: int) -> Tensor:
        """Return the modulus of the wavelets' responses at scale j to what has a spectrum."""
        wavelets, parts = self.get_buffer(f"wavelets_{j}_{finer}"), 2 ** (j - finer)
        height, width = (n // parts for n in wavelets.shape[-2:])
        total: Tensor | None = None
        # keeping one value in so many is adding up that many parts of the spectrum
        for top, left in product(range(0, parts * height, height), range(0, parts * width, width)):
            part = (..., slice(top, top + height), slice(left, left + width))
            found = spectrum[part] * wavelets[part]
            total = found if total is None else total.add_(found)
        assert total is not None
        return torch.view_as_real(torch.fft.ifft2(total)).square().sum(dim=-1).sqrt()

    def _averaged(self, values: Tensor, j: int) -> Tensor:
        """Return values at the resolution of scale j, averaged and thinned out to that of 2^J."""
        rows, columns = self.get_buffer(f"rows_{j}"), self.get_buffer(f"columns_{j}")
        return rows @ values @ columns.T


def _order(given: int) -> int:
    order = integer("order", given)
    if order > 2:
        raise ArgumentError(f"Expected order to be 1 or 2, got order={given!r}.")
    return order


def _checked_shape(shape: Sequence[int], step: int) -> tuple[int, ...]:
    """Return channels, height and width."""
    given = tuple(shape) if isinstance(shape, Iterable) else ()
    if len(given) not in (2, 3):
        raise ArgumentError(
            f"Expected shape to be (height, width) or (channels, height, width), got "
            f"shape={shape!r}."
        )
    found = tuple(integer("shape", n) for n in given)
    if min(found[-2:]) <= step:
        raise ArgumentError(
            f"Expected height and width above 2^J = {step}, got shape={shape!r}. Take fewer scales "
            "with J, or larger images."
        )
    return (1, *found) if len(found) == 2 else found


def _wavelet(size: Sequence[int], scale: int, angle: float, angles: int) -> Filter:
    """Return the spectrum, which is real, of a Morlet wavelet."""
    sigma, slant = _WIDTH * scale, 4 / angles
    places = np.meshgrid(*(np.arange(-_COPIES * n, (_COPIES + 1) * n) for n in size), indexing="ij")
    along = math.cos(angle) * places[0] + math.sin(angle) * places[1]
    across = math.cos(angle) * places[1] - math.sin(angle) * places[0]
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    wave = envelope * np.exp(1j * _FREQUENCY / scale * along)
    wave -= envelope * (wave.sum() / envelope.sum())
    copies = 2 * _COPIES + 1
    periodic = wave.reshape(copies, size[0], copies, size[1]).sum(axis=(0, 2))
    spectrum: Filter = np.fft.fft2(periodic * slant / (2 * math.pi * sigma**2)).real
    return spectrum


def _folded(spectrum: Filter, times: int, axes: Sequence[int] = (-2, -1)) -> Filter:
    """Return the lower frequencies of a spectrum along some axes, one in so many of them."""
    for axis in axes:
        n = spectrum.shape[axis]
        kept = np.ones(n)
        if times > 1:
            kept[n // (2 * times) : n // (2 * times) + n * (times - 1) // times] = 0
        parts = np.moveaxis(spectrum, axis, -1) * kept
        parts = parts.reshape(*parts.shape[:-1], times, n // times).sum(axis=-2)
        spectrum = np.moveaxis(parts, -1, axis)
    return spectrum


def _averages(n: int, scales: int, j: int) -> Filter:
    """Return the matrix that averages n / 2^j values and keeps one in 2^(scales - j) of them.

    Those at the edges, where the image was mirrored, are left out.
    """
    sigma = _WIDTH * 2 ** (scales - 1)
    places = np.arange(-_COPIES * n, (_COPIES + 1) * n)
    bell = np.exp(-(places**2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
    periodic = bell.reshape(2 * _COPIES + 1, n).sum(axis=0)
    smooth = np.fft.ifft(_folded(np.fft.fft(periodic).real, 2**j, axes=(-1,))).real
    kept = np.arange(0, n // 2**j, 2 ** (scales - j))[1:-1]
    found: Filter = smooth[(kept[:, None] - np.arange(n // 2**j)) % (n // 2**j)]
    return found
