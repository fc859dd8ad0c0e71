"""The two values that carry the guarantee from the data to the model."""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class ClippedSum:
    """A sum over a batch in which each record's part has a norm of at most `sensitivity`.

    Guarantee: adding or removing one record moves `value` by at most `sensitivity` in Euclidean
    norm. The value itself is private; only a noise source may turn it into a `Release`. Only
    `privada.clipping` makes one.

    Example:
        >>> import torch
        >>> from privada import ClippedSum
        >>> ClippedSum(torch.tensor([0.6, 0.8]), sensitivity=1.0)
        ClippedSum(<private>, sensitivity=1.0)

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """

    value: Tensor
    sensitivity: float

    def __repr__(self) -> str:
        return f"ClippedSum(<private>, sensitivity={self.sensitivity})"


@dataclass(frozen=True)
class Release:
    """A clipped sum with Gaussian noise: public from here on, whatever is done with it.

    `value` is the noisy sum in the whitened space, `noise_std` the standard deviation of the
    noise in each of its coordinates, `batch_size` the public expected number of terms in the sum:
    the batch size, or the number of micro-batches. Only `privada.noise` makes one.

    Guarantee: everything computed from releases alone is post-processing and costs nothing.

    Example:
        >>> import torch
        >>> from privada import ClippedSum
        >>> from privada.noise import GaussianNoise
        >>> clipped = ClippedSum(torch.zeros(2), sensitivity=3.0)
        >>> release = GaussianNoise().release(clipped, noise_multiplier=1.5, batch_size=10)
        >>> release.noise_std, release.gradient.shape
        (4.5, torch.Size([2]))

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy,
    Proposition 2.1.
    """

    value: Tensor
    noise_std: float
    batch_size: float
    scale: Tensor | None = None
    shift: Tensor | None = None

    @property
    def gradient(self) -> Tensor:
        """The released estimate of the average gradient, restored where the geometry says so."""
        mean = self.value / self.batch_size
        if self.scale is not None:
            mean.mul_(self.scale)
        return mean if self.shift is None else mean.add_(self.shift)

    def move(self, factor: float) -> tuple[Tensor, float]:
        """Return `factor` times `gradient` as a vector and what to multiply it with.

        Where nothing is restored that is the value itself, which is not copied.
        """
        if self.scale is None and self.shift is None:
            return self.value, factor / self.batch_size
        return self.gradient, factor

    @property
    def gradient_std(self) -> Tensor | float:
        """The standard deviation of the noise in each coordinate of `gradient`."""
        std = self.noise_std / self.batch_size
        return std if self.scale is None else std * self.scale

    def restored(self, scale: Tensor | None, shift: Tensor | None) -> "Release":
        """Return this release with the scale and shift that undo the whitening."""
        return replace(self, scale=scale, shift=shift)
