"""The query for classes: noisy counts of texts, of which those above a threshold are released."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privada.accounting import events
from privada.core.validation import probability
from privada.data import Indices
from privada.query.histograms import Bins, HistogramQuery, chosen_of_blocks

# The texts of some rows: for each row its place among them, and the texts.
Coded = tuple[NDArray[np.int64], Sequence[str | None]]
# Releases are rounded to a lattice whose spacing is at most this share of the noise.
_SPACING = 1 / 32


def threshold(failure: float) -> float:
    """Return the least noisy count of a class that is released, in standard deviations above 1.

    One unit more or less can make one class appear, or two where it is replaced. The noise on the
    count of either passes this with a probability of half the `failure`.
    """
    return -float(ndtri(probability("failure", failure) / 2)) + _SPACING


def _chosen(rows: Indices, blocks: Iterable[Coded]) -> Iterator[Coded]:
    """Yield, for each block, the chosen rows' places among its texts, and the texts."""
    sized = ((len(codes), (codes, texts)) for codes, texts in blocks)
    for places, (codes, texts) in chosen_of_blocks(rows, sized):
        yield codes[places], texts


def release_classes(
    query: HistogramQuery, read: Callable[[], Iterable[Coded]], failure: float
) -> list[str]:
    """Return the classes whose noisy count of units is above a threshold, sorted.

    Args:
        query: what is paid and what is protected.
        read: yields the class of each row, some rows after the others, as the place of its text
            among some texts, and these, with None for no class; it is called twice, after the
            charge.
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

    def bins(rows: Indices) -> tuple[Iterator[list[Bins]], int]:
        found: set[str | None] = set()
        for chosen, texts in _chosen(rows, read()):
            found.update(texts[place] for place in np.unique(chosen).tolist())
        known.extend(sorted(text for text in found if text is not None))
        places: dict[str | None, int] = {text: place for place, text in enumerate(known)}
        blocks = (
            [np.array([places.get(text, -1) for text in texts], np.int64)[chosen]]
            for chosen, texts in _chosen(rows, read())
        )
        return blocks, len(known)

    release = query.release(bins, events.Failure(failure))
    shown = release.value.numpy() > 1 + threshold(failure) * release.noise_std
    return [known[place] for place in np.flatnonzero(shown)]
