"""Ranges of columns from noisy histograms: what is said here is computed from a release alone.

A histogram has bins that do not depend on the data: sign times powers of two, and one for what is
next to zero. With few records no single bin stands out of the noise, so runs of bins are looked at
together, both signs at once where that fits better, and what all columns have in common is used as
a prior for each.
"""

import math

import numpy as np
from numpy.typing import NDArray

from privada.query.bounds import LEAST, POWERS, Numbers, edges

# Numbers that people write down are mostly between 2^-10 and 2^20; others are so much rarer.
_USUAL, _RARE = (-10, 20), 0.05
# How likely values are to be of one sign or of both, before anything is seen.
_SIGNS = {"positive": 0.5, "negative": 0.1, "both": 0.4}
# Values are looked for in runs of up to so many powers of two; each power costs so much.
_LONGEST, _COST = 8, 0.5
# A run must be likelier than none, before a column counts as found, by one nat for so many records
# over the noise's standard deviation, and by ten at most: where there are few records, a good guess
# is better than none, and where there are many, what is there is certain.
_PER_NAT, _MOST_NATS = 10.0, 10.0
# Next to what was found, a bin counts from one standard deviation of the noise on, with many
# records from four on: it takes two in a hundred records to be worth a wider range. The square
# grows by _GAP with each power of two between, up to _FAR deviations, which noise hardly reaches.
_NEAR, _SURE, _PER_DEVIATION, _GAP, _FAR = 1.0, 4.0, 50.0, 4.0, 5.0
# Zero is as far away as one power of two between. The other sign counts if, over the powers that
# were found, its sum is so many deviations of the noise on it, or as many as a bin needs.
_ZERO, _MIRROR = 1, 2.0

_STARTS, _ENDS = np.array(
    [(a, b) for a in range(POWERS) for b in range(a + 1, min(POWERS, a + _LONGEST) + 1)]
).T
_LENGTHS = _ENDS - _STARTS


def find_ranges(
    counts: Numbers, noise_std: float, records: int, outside: float
) -> list[tuple[float, float] | None]:
    """Return the range of each column, None where nothing stands out of the noise.

    Args:
        counts: a noisy histogram in each row.
        noise_std: the standard deviation of the noise on each count.
        records: how many records were counted.
        outside: the share of records that may be beyond each bound.
    """
    prior, ratio = _prior(counts, noise_std), records / noise_std
    return [_range(column, noise_std, prior, ratio, outside) for column in counts]


def _by_sign(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return the counts of positive and of negative numbers, by magnitude."""
    return counts[..., POWERS + 1 :], counts[..., :POWERS][..., ::-1]


def _prior(counts: Numbers, noise_std: float) -> Numbers:
    """Return how likely each power of two is: half from what is usual, half from all columns."""
    powers = np.arange(POWERS) + LEAST
    usual = np.where((powers >= _USUAL[0]) & (powers < _USUAL[1]), 1.0, _RARE)
    usual = usual / usual.sum()
    positive, negative = _by_sign(counts.sum(axis=0))
    noise = noise_std * math.sqrt(2 * len(counts))
    seen = np.convolve(np.maximum(positive + negative - noise, 0.0), [0.25, 0.5, 0.25], "same")
    return np.asarray(usual if not seen.any() else (usual + seen / seen.sum()) / 2)


def _runs(values: Numbers) -> Numbers:
    """Return the sum over each run of powers."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(sums[_ENDS] - sums[_STARTS])


def _range(
    counts: Numbers, noise_std: float, prior: Numbers, ratio: float, outside: float
) -> tuple[float, float] | None:
    score = counts / noise_std
    positive, negative = _by_sign(score)
    near = min(max(ratio / _PER_DEVIATION, _NEAR), _SURE)
    kept = _likeliest(positive, negative, prior, min(ratio / _PER_NAT, _MOST_NATS))
    zero = bool(score[POWERS] > math.sqrt(near**2 + _ZERO * _GAP))
    if kept is None:
        return (0.0, 1.0) if score[POWERS] > _FAR else None
    _grow(kept, np.stack([positive, negative]), near)
    chosen = np.concatenate([kept[1][::-1], [zero], kept[0]])
    return _cut(np.where(chosen, np.maximum(counts, 0.0), 0.0), outside)


def _likeliest(
    positive: Numbers, negative: Numbers, prior: Numbers, least: float
) -> NDArray[np.bool_] | None:
    """Return the run of powers that best explains a column, for each sign; None if none does.

    A run's evidence is that of its sum against the noise on it, and the prior of where it is.
    """
    places = np.log(_runs(prior) / _LENGTHS) - _COST * _LENGTHS
    seen = {"positive": (positive, 1), "negative": (negative, 1), "both": (positive + negative, 2)}
    most, kept = least, None
    for sign, (score, terms) in seen.items():
        evidence = np.maximum(_runs(score), 0.0) ** 2 / (2 * terms * _LENGTHS)
        evidence += places + math.log(_SIGNS[sign])
        best = int(np.argmax(evidence))
        if evidence[best] > most:
            most, kept = evidence[best], np.zeros((2, POWERS), dtype=bool)
            rows = {"positive": [0], "negative": [1], "both": [0, 1]}[sign]
            kept[rows, _STARTS[best] : _ENDS[best]] = True
    return kept


def _grow(kept: NDArray[np.bool_], score: Numbers, near: float) -> None:
    """Add the other sign, and bins that stand out, the more easily the nearer they are."""
    powers = np.arange(POWERS)
    found = kept.any(axis=0)
    kept[score[:, found].sum(axis=1) > max(_MIRROR, near) * math.sqrt(found.sum())] |= found
    while True:
        gap = np.full((2, POWERS), np.inf)
        for sign in (0, 1):
            if kept[sign].any():
                gap[sign] = np.abs(powers[:, None] - np.flatnonzero(kept[sign])).min(axis=1) - 1
        needed = np.minimum(_FAR**2, near**2 + _GAP * gap)
        added = ~kept & (score > 0) & (score**2 > needed)
        if not added.any():
            return
        kept |= added


def _cut(counts: Numbers, outside: float) -> tuple[float, float] | None:
    """Return bounds that leave a share of the counts outside at each end."""
    if not counts.any():
        return None
    share = np.cumsum(counts)
    share /= share[-1]  # not their sum, which is rounded otherwise: the last is 1
    first = int(np.argmax(share > outside))
    last = int(np.argmax(share >= 1 - outside))
    low, high = edges(first)[0], edges(max(first, last))[1]
    return (low, high) if low < high else (0.0, 1.0)
