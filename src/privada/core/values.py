"""The two values that carry the guarantee from the data to the model."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from privada.core.errors import ArgumentError
from privada.core.feature_maps import FeatureMap
from privada.core.receipts import Receipt, check_receipt

# What update rules, controllers and preconditioners keep between steps: plain numbers, strings and
# tensors, so that a checkpoint can hold it without code.
State = dict[str, Any]


@dataclass(frozen=True)
class ClippedSum:
    """A sum over a batch in which each record's part has a norm of at most `sensitivity`.

    Guarantee: adding or removing one record moves `value` by at most `sensitivity` in Euclidean
    norm. The value itself is private; only a noise source may turn it into a `Release`. Only
    `privada.clipping` makes one. Sums over records that are not shared add up, by `+`, to a sum of
    the same sensitivity. The last `extra` coordinates are statistics beside the sum, such as a
    count, which `sensitivity` covers too.

    Example:
        >>> import torch
        >>> from privada import ClippedSum
        >>> ClippedSum(torch.tensor([0.6, 0.8]), sensitivity=1.0)
        ClippedSum(<private>, sensitivity=1.0)
        >>> parts = [ClippedSum(torch.tensor([0.6, 0.8]), sensitivity=1.0) for _ in range(2)]
        >>> parts[0] + parts[1]
        ClippedSum(<private>, sensitivity=1.0)

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """

    value: Tensor
    sensitivity: float
    extra: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.extra <= self.value.numel():
            raise ArgumentError(
                f"Expected at most {self.value.numel()} extra coordinates, as many as the sum has, "
                f"got extra={self.extra}."
            )

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """Return the sum over the records of both, which must share none.

        A record is in one of the two, so that it moves the result by no more than it moved that
        one. This is what sums that are computed in parts, or on several machines, rest on.
        """
        if not isinstance(other, ClippedSum):
            return NotImplemented
        if self.value.shape != other.value.shape or self.value.dtype != other.value.dtype:
            raise ArgumentError(
                f"Expected sums of one shape and type to add up, got {tuple(self.value.shape)} "
                f"{self.value.dtype} and {tuple(other.value.shape)} {other.value.dtype}."
            )
        if self.extra != other.extra:
            raise ArgumentError(
                f"Expected sums with as many extra coordinates to add up, got {self.extra} and "
                f"{other.extra}. Make both with the same clipping."
            )
        largest = max(self.sensitivity, other.sensitivity)
        return replace(self, value=self.value + other.value, sensitivity=largest)

    def __repr__(self) -> str:
        return f"ClippedSum(<private>, sensitivity={self.sensitivity})"


@dataclass(frozen=True)
class Release:
    """A clipped sum with Gaussian noise: public from here on, whatever is done with it.

    `value` is the noisy sum in the whitened space, `noise_std` the standard deviation of the
    noise in each of its coordinates, `batch_size` the public expected number of terms in the sum:
    the batch size, or the number of micro-batches. `receipt` says which event paid for it. Only
    `privada.noise` makes one. `statistics` are the extra coordinates of the sum, with the same
    noise; None if there are none. `public` is the gradient of what the objective adds without
    looking at records, such as weight decay. `features` maps what was released in other features of
    a linear layer back to its parameters. `step` is what steps in units of the noise are multiplied
    by, where a preconditioner says so.

    Guarantee: there is none without the receipt of a charge. Everything computed from releases
    alone is post-processing and costs nothing.

    Example:
        >>> import privada as pv, torch
        >>> from privada.accounting import events
        >>> event = events.gaussian(1.5)
        >>> receipt = pv.Ledger(None).charge({event: 1}, run="first").use(event)
        >>> clipped = pv.ClippedSum(torch.zeros(2), sensitivity=3.0)
        >>> release = pv.noise.GaussianNoise().release(clipped, receipt, batch_size=10)
        >>> release.noise_std, release.gradient.shape
        (4.5, torch.Size([2]))

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy,
    Proposition 2.1.
    """

    value: Tensor
    noise_std: float
    batch_size: float
    receipt: Receipt = field(repr=False)
    scale: Tensor | None = None
    shift: Tensor | None = None
    public: Tensor | None = None
    statistics: Tensor | None = None
    features: FeatureMap | None = None
    step: float = 1.0

    def __post_init__(self) -> None:
        check_receipt(self.receipt)

    @property
    def gradient(self) -> Tensor:
        """The released estimate of the gradient: of the records' average, and of public terms."""
        return self.with_public_term(self.private_gradient)

    @property
    def private_gradient(self) -> Tensor:
        """The part that comes from the records, restored where the geometry says so."""
        mean = self.value / self.batch_size
        if self.scale is not None:
            mean.mul_(self.scale)
        if self.features is not None:
            mean = self.features.restored(mean)
        return mean if self.shift is None else mean.add_(self.shift)

    def with_public_term(self, direction: Tensor) -> Tensor:
        """Return what a rule has made of the private part, with the gradient of public terms."""
        return direction if self.public is None else direction.add_(self.public)

    def move(self, factor: float) -> tuple[Tensor, float]:
        """Return `factor` times `gradient` as a vector and what to multiply it with.

        Where nothing is restored that is the value itself, which is not copied.
        """
        if all(x is None for x in (self.scale, self.shift, self.public, self.features)):
            return self.value, factor / self.batch_size
        return self.gradient, factor

    @property
    def gradient_std(self) -> Tensor | float:
        """The standard deviation of the noise in each coordinate of `gradient`."""
        std = self.noise_std / self.batch_size
        if self.features is not None:
            return std * self.features.spread_over(self.value.numel())
        return std if self.scale is None else std * self.scale

    @property
    def noise_square(self) -> float:
        """The expected squared norm of the noise in `gradient`."""
        std = self.gradient_std
        if isinstance(std, float):
            return self.value.numel() * std * std
        return float(std.double().square().sum())

    def restored(self, scale: Tensor | None, shift: Tensor | None) -> "Release":
        """Return this release with the scale and shift that undo the whitening."""
        return replace(self, scale=scale, shift=shift)

    def restored_by(self, features: FeatureMap) -> "Release":
        """Return this release with the map of features that undoes theirs."""
        return replace(self, features=features)

    def plus(self, public: Tensor) -> "Release":
        """Return this release with the gradient of a public term beside it."""
        return replace(self, public=public)
