"""A lower bound on what many steps of sampled Gaussians cost, for removing a record.

It errs downwards wherever the accountants err upwards, and shares no code with them.

1. The real line is cut into cells, and only the cell of a release is told. That is post-processing,
   so the divergence falls, for one step and for all of them together.
2. With L the loss of all steps and z a sum of ten uniform numbers, each within a / 10 of 0,
   (1 - e^(e + a - L - z))+ is at most (1 - e^(e - L))+, since z is at most a. So

       delta(e) >= E (1 - e^(e + a - L - z))+
                 = 1 / (2 pi i) int M(s) B(s) e^(-s (e + a)) / (s (s + 1)) ds

   along any line of positive real part, where M and B are the moment generating functions of L and
   z. |B| falls with the tenth power of the frequency.
3. The trapezoidal rule adds the values at e + m w for whole m, weighted by e^(c m w). Chernoff's
   bounds on these, and the bound on what lies beyond the last frequency, are subtracted.
"""

import math

import numpy as np
from scipy.special import ndtr

_UNIFORM = 10
_PER_DEVIATION = 25
_REACH = 9.0
# what may be lost, as a fraction of delta, by each subtraction
_LOST = 1e-4


def _cells(rate: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses and the probabilities of the cells, under the data with the record."""
    edges = np.arange(-_REACH, _REACH + 1 / sigma, 1 / _PER_DEVIATION)  # in standard deviations

    def masses(mean: float) -> np.ndarray:
        below, above = ndtr(edges - mean), ndtr(mean - edges)
        inner = np.where(edges[1:] < mean, np.diff(below), -np.diff(above))
        return np.concatenate([below[:1], inner, above[-1:]])

    without, sampled = masses(0.0), masses(1 / sigma)
    told = without > 0
    without, sampled = without[told], sampled[told]
    with_record = (1 - rate) * without + rate * sampled
    return np.log1p(rate * (sampled / without - 1)), with_record


class LowerBound:
    """A bound from below on delta, for steps given as {(rate, sigma): count}."""

    def __init__(
        self,
        counts: dict[tuple[float, float], int],
        delta: float,
        about: float,
        lost: float = 3e-3,
    ) -> None:
        """Prepare to look for an epsilon near `about`, of which a fraction `lost` may be lost.

        A wrong guess costs tightness only; the less may be lost, the longer it takes.
        """
        self._steps = [(*_cells(*mechanism), n) for mechanism, n in counts.items()]
        self._delta, self._about, self._shift = delta, about, lost * about
        variance = sum(n * float(p @ loss**2) for loss, p, n in self._steps)
        tilts = math.sqrt(-2 * math.log(delta) / variance) * 2.0 ** (np.arange(-40, 25) / 4)
        logs = np.array([self._real(tilt) for tilt in tilts])
        excess = logs - tilts * (about + self._shift) - math.log(delta)
        gaps = tilts[None, :] - tilts[:, None]
        with np.errstate(divide="ignore"):
            widths = (excess - math.log(_LOST))[None, :] / np.abs(gaps)
        right = np.where(gaps > 0, widths, np.inf)
        left = np.where(gaps < 0, widths, np.inf)
        width = np.maximum(right.min(axis=1), left.min(axis=1))
        lasts = (
            _UNIFORM / self._shift * np.exp(np.minimum(excess - math.log(_LOST), 3e3) / _UNIFORM)
        )
        best = int(np.argmin(width * lasts))
        self._tilt, self._width = float(tilts[best]), float(width[best])
        # the tilts by which the aliases on either side are bounded
        self._sides = [
            (float(tilts[k]), float(logs[k]))
            for k in (int(right[best].argmin()), int(left[best].argmin()))
        ]
        spacing = 2 * math.pi / self._width
        self._points = self._tilt + 1j * spacing * np.arange(math.ceil(lasts[best] / spacing) + 1)
        self._logs = self._complex(self._points)
        self._weights = np.full(self._points.size, spacing / math.pi)
        self._weights[0] /= 2

    def _real(self, tilt: float) -> float:
        """Return log M B at a real point."""
        total = 0.0
        for loss, probability, n in self._steps:
            exponents = tilt * loss + np.log(probability)
            total += n * float(np.logaddexp.reduce(exponents))
        part = tilt * self._shift / _UNIFORM
        return total + _UNIFORM * (part + math.log(-math.expm1(-2 * part) / (2 * part)))

    def _complex(self, points: np.ndarray) -> np.ndarray:
        total = np.zeros(points.size, dtype=complex)
        for loss, probability, n in self._steps:
            # e^(s loss) - 1 at s = c + i t, without cancellation
            weights = probability * np.exp(self._tilt * loss)
            real = float(probability @ np.expm1(self._tilt * loss))
            for start in range(0, points.size, 512):
                few = slice(start, start + 512)
                half = np.outer(points.imag[few] / 2, loss)
                sine = np.sin(half)
                mean = real - 2 * (sine * sine) @ weights + 2j * ((sine * np.cos(half)) @ weights)
                total[few] += n * np.log1p(mean)
        part = points * self._shift / _UNIFORM
        return total + _UNIFORM * (part + np.log(-np.expm1(-2 * part) / (2 * part)))

    def delta(self, epsilon: float) -> float:
        """Return a number that the divergence at epsilon exceeds."""
        epsilon += self._shift
        s = self._points
        total = float(self._weights @ (np.exp(self._logs - s * epsilon) / (s * (s + 1))).real)
        for tilt, log in self._sides:
            fall = abs(tilt - self._tilt) * self._width
            total -= math.exp(log - tilt * epsilon - fall) / -math.expm1(-fall)
        # |sinh(z)| is at most cosh of its real part
        last, part = float(s[-1].imag), self._shift / _UNIFORM
        log = float(self._real(self._tilt)) - self._tilt * epsilon
        side = math.log(math.cosh(self._tilt * part) / (part * last))
        bare = log - _UNIFORM * math.log(math.sinh(self._tilt * part) / (self._tilt * part))
        total -= math.exp(bare + _UNIFORM * side) / (math.pi * last)
        return total

    def epsilon(self) -> float:
        """Return an epsilon, within a tenth below the guess, at which delta is exceeded; or 0."""
        low, high = 0.9 * self._about, self._about
        if self.delta(low) <= self._delta:
            return 0.0
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > self._delta else (low, middle)
        return low


def epsilon(
    counts: dict[tuple[float, float], int], delta: float, about: float, lost: float = 3e-3
) -> float:
    """Return an epsilon that the true one exceeds, if there is one not far below `about`."""
    return LowerBound(counts, delta, about, lost).epsilon()
