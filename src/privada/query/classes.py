"""The query for classes: noisy counts of texts, of which those above a threshold are released."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtri

from privada.accounting import events
from privada.core.validation import probability
from privada.data import Indices
from privada.query.histograms import Bins, HistogramQuery

# Releases are rounded to a lattice whose spacing is at most this share of the noise.
_SPACING = 1 / 32


def threshold(failure: float) -> float:
    """Return the least noisy count of a class that is released, in standard deviations above 1.

    One unit more or less can make one class appear, or two where it is replaced. The noise on the
    count of either passes this with a probability of half the `failure`.
    """
    return -float(ndtri(probability("failure", failure) / 2)) + _SPACING


def release_classes(
    query: HistogramQuery, read: Callable[[], Sequence[str | None]], failure: float
) -> list[str]:
    """Return the classes whose noisy count of units is above a threshold, sorted.

    Args:
        query: what is paid and what is protected.
        read: returns the class of each row, None for none; it is called after the charge.
        failure: the probability with which a class of one unit may be revealed, which is charged
            too, as `events.Failure`.

    Guarantee: the counted classes are those of the chosen rows alone, one for each unit. So a unit
    adds 1 to one count, and makes at most one class appear, however many classes its rows have.

    Raises:
        BudgetExceeded: before any value is read.
        LedgerError: before any value is read.

    Reference: Korolova et al. (2009), Releasing Search Queries and Clicks Privately, Algorithm 1,
    for noisy counts above a threshold.
    """
    known: list[str] = []

    def bins(rows: Indices) -> tuple[list[Bins], int]:
        texts = read()
        chosen = [texts[row] for row in rows.tolist()]
        known.extend(sorted({text for text in chosen if text is not None}))
        places = {text: place for place, text in enumerate(known)}
        found = np.array([-1 if text is None else places[text] for text in chosen], dtype=np.int64)
        return [found], len(known)

    release = query.release(bins, events.Failure(failure))
    shown = release.value.numpy() > 1 + threshold(failure) * release.noise_std
    return [known[place] for place in np.flatnonzero(shown)]
