"""A tally as sampled Gaussian releases, and many of them as fewer that cost no less."""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.events import REPLACE, GaussianRelease, Tally
from privada.accounting.mixtures import SampledGaussian

# A rate from here on is charged as 1, which costs no less; on a grid it would lose its digits.
_NEARLY_ALL = 1 - 1e-9


def releases_of(counts: Mapping[DpEvent, int]) -> tuple[Counter[GaussianRelease], Tally]:
    """Return the Gaussian releases of a tally, and the other events."""
    releases: Counter[GaussianRelease] = Counter()
    others: Tally = Counter()
    for event, count in counts.items():
        release = events.release_of(event)
        if release is None:
            others[event] += count
        else:
            releases[release] += count
    return releases, others


def sampled_gaussians(
    releases: Mapping[GaussianRelease, int], relation: str
) -> dict[SampledGaussian, int]:
    """Return sampled Gaussians by rate and multiplier, all unsampled ones made into one.

    Gaussian releases on the same records compose exactly: their inverse variances add. Replacing
    a record moves a clipped sum by twice the clip norm, so every multiplier counts half.
    """
    replacing = relation == REPLACE
    factor = 0.5 if replacing else 1.0
    found: Counter[SampledGaussian] = Counter()
    precision, unsampled = 0.0, False
    for (rate, multiplier), count in releases.items():
        sigma = factor * multiplier
        if rate < _NEARLY_ALL:
            found[SampledGaussian(rate, sigma, replacing)] += count
        else:
            inverse = 1 / sigma if sigma else math.inf
            precision, unsampled = precision + count * inverse * inverse, True
    if unsampled:  # even where its precision underflows
        found[SampledGaussian(1.0, max(precision, 1e-300) ** -0.5, replacing)] += 1
    return dict(found)


def grouped(counts: Mapping[SampledGaussian, int], groups: int) -> dict[SampledGaussian, int]:
    """Return fewer mechanisms that cost no less: in each group, the most sampled, least noisy.

    Groups are cells of a geometric grid, so that no multiplier or rate moves by more than a
    fixed fraction. Unsampled releases, which are one mechanism already, stay apart.
    """
    apart = {m: n for m, n in counts.items() if m.rate == 1}
    counts = {m: n for m, n in counts.items() if m.rate < 1}
    if not counts:
        return apart
    replacing = next(iter(counts)).replacing
    values = np.log(np.array([(m.rate, m.sigma) for m in counts]))
    spans = np.ptp(values, axis=0)
    varying = int(np.count_nonzero(spans > 1e-12))
    cells = max(1, round(groups ** (1 / max(1, varying))))
    width = np.where(spans > 1e-12, spans / cells, 1.0)
    place = np.minimum((values - values.min(axis=0)) / width, cells - 1).astype(int)
    gathered: dict[tuple[int, ...], tuple[float, float, int]] = {}
    for cell, (m, n) in zip(map(tuple, place), counts.items(), strict=True):
        top_rate, low_sigma, total = gathered.get(cell, (m.rate, m.sigma, 0))
        gathered[cell] = max(top_rate, m.rate), min(low_sigma, m.sigma), total + n
    merged = Counter(apart)
    for rate, sigma, n in gathered.values():
        merged[SampledGaussian(rate, sigma, replacing)] += n
    return dict(merged)
