"""Bags of words: what the words are, which feature each one has, and how much it weighs."""

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

_WORD = re.compile(r"\w+(?:'\w+)?")


def tokenize(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return _WORD.findall(text.lower())


def hash_bucket(value: str, buckets: int) -> int:
    """Return the bucket of a text: a fixed hash, the same on every machine."""
    digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets


class Vocabulary(dict[str, int]):
    """The feature of each word: its place in a list, or its bucket where there is no list.

    A word that is not in the list has the feature -1.
    """

    def __init__(self, known: Iterable[str] | None, width: int) -> None:
        super().__init__({} if known is None else {word: i for i, word in enumerate(known)})
        self._hashed, self.width = known is None, width

    def __missing__(self, word: str) -> int:
        if not self._hashed:
            return -1
        place = self[word] = hash_bucket(word, self.width)
        return place

    def counts(self, texts: Iterable[str | None]) -> Any:
        """Return how often each feature occurs in each text, as CSR."""
        feature: Callable[[str], int] = self.__getitem__
        places, ends = array("q"), array("q", [0])
        for text in texts:
            places.extend(map(feature, tokenize(text or "")))
            ends.append(len(places))
        found = np.frombuffer(places, dtype=np.int64) if places else np.empty(0, np.int64)
        known = found >= 0
        starts = np.concatenate([[0], np.cumsum(known)])[np.frombuffer(ends, dtype=np.int64)]
        matrix: Any = scipy.sparse.csr_array(
            (np.ones(int(starts[-1]), dtype=np.float32), found[known], starts),
            shape=(len(ends) - 1, self.width),
        )
        matrix.sum_duplicates()
        return matrix


def inverse_frequencies(counts: Any) -> NDArray[np.float32]:
    """Return log((1 + D) / (1 + d)) + 1 where d of D documents have the feature."""
    documents, width = counts.shape
    held = np.bincount(counts.indices, minlength=width)
    return np.asarray(np.log((1 + documents) / (1 + held)) + 1, dtype=np.float32)


def logarithms(counts: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return sign(count) (1 + log |count|) of counts that are not 0."""
    return np.asarray(np.sign(counts) * (1 + np.log(np.abs(counts))), dtype=np.float32)


def weighted(
    counts: Any, weighting: str, weights: NDArray[np.float32] | None, unit_norm: bool
) -> Any:
    """Return counts, presences or logarithms, with weights, and scaled to a norm of 1 if asked."""
    if weighting == "presence":
        counts.data[:] = 1
    if weighting == "log":
        counts.data = logarithms(counts.data)
    if weights is not None:
        counts.data *= weights[counts.indices]
    if unit_norm:
        squares = np.add.reduceat(np.append(counts.data**2, 0), counts.indptr[:-1])
        norms = np.sqrt(np.where(np.diff(counts.indptr) > 0, squares, 1))
        counts.data /= np.repeat(norms, np.diff(counts.indptr)).astype(np.float32)
    return counts
