"""PrivateVectorizer: counts of words, by hashing or by a public vocabulary."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.preprocessing import normalize

from privada.core.errors import ArgumentError
from privada.core.validation import integer, one_of
from privada.tables.bag_of_words import logarithms


def _text(value: Any) -> str:
    """Return a text that can be hashed, whatever a record has: an exception would tell of it."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


class PrivateVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns texts into counts of words, by hashing or by a public vocabulary.

    A row has a norm of 1: the counts of a text's words, each in a place that its hash gives, with a
    sign that it gives too, or that the vocabulary gives.

    Args:
        n_features: the number of places for hashes.
        vocabulary: words that were listed without looking at the private texts, in the order of
            the features, or a mapping from word to place. Others are left out. None hashes.
        ngram_range: the least and the greatest number of words that are counted together.
        lowercase: whether case is ignored.
        analyzer: "word", or "char" and "char_wb" for parts of words, as for scikit-learn's own.
        weighting: "log", which makes 1 + log(count) of a count, with the sign before it; "count";
            or "presence", which makes 1 of it.

    Guarantee: each text is turned by itself, and fitting looks at none: no vocabulary and no
    inverse document frequency comes from private texts. Nothing is charged.

    Edge cases: what is not text, such as a missing value, counts as an empty text, whose row is
    zero; half of a surrogate pair, which is no character, counts as a question mark. Different
    words may share a place; signs make them cancel out as often as add up.

    Example:
        >>> import privada as pv
        >>> words = pv.PrivateVectorizer(vocabulary=["good", "bad"])
        >>> words.fit_transform(["A good film", "Bad, bad film"]).toarray()
        array([[1., 0.],
               [0., 1.]], dtype=float32)
        >>> pv.PrivateVectorizer(n_features=1024).fit_transform(["A good film", None]).shape
        (2, 1024)

    Reference: Weinberger et al. (2009), Feature Hashing for Large Scale Multitask Learning,
    Section 2.
    """

    charges_what_it_learns = True

    def __init__(
        self,
        n_features: int = 4096,
        *,
        vocabulary: Sequence[str] | Mapping[str, int] | None = None,
        ngram_range: tuple[int, int] = (1, 1),
        lowercase: bool = True,
        analyzer: str = "word",
        weighting: str = "log",
    ) -> None:
        self.n_features, self.vocabulary = n_features, vocabulary
        self.ngram_range, self.lowercase, self.analyzer = ngram_range, lowercase, analyzer
        self.weighting = weighting

    def _counter(self) -> Any:
        one_of("analyzer", self.analyzer, ("word", "char", "char_wb"))
        one_of("weighting", self.weighting, ("log", "count", "presence"))
        how = {
            "ngram_range": self.ngram_range,
            "lowercase": self.lowercase,
            "analyzer": self.analyzer,
            "dtype": np.float32,
        }
        if self.vocabulary is not None:
            return CountVectorizer(vocabulary=self.vocabulary, **how)
        size = integer("n_features", self.n_features)
        return HashingVectorizer(n_features=size, norm=None, **how)

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Check the settings; neither the texts nor the groups are looked at."""
        self._counter()
        return self

    def transform(self, X: Any) -> Any:
        """Return a sparse row for each text."""
        if isinstance(X, str) or getattr(X, "ndim", 1) != 1:
            raise ArgumentError(
                f"Expected a sequence of texts, got one {type(X).__name__}. Put a single text in a "
                "list, and take one column of a table."
            )
        texts = [_text(each) for each in X]
        rows = self._counter().transform(texts)
        rows.eliminate_zeros()  # of words whose signs cancel out
        if self.weighting == "presence":
            rows.data = np.sign(rows.data)
        if self.weighting == "log":
            rows.data = logarithms(rows.data)
        return normalize(rows, copy=False)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the words of the vocabulary, or the numbers of the places."""
        if self.vocabulary is not None:
            counter = self._counter()
            counter.fit([])
            return np.asarray(counter.get_feature_names_out())
        size = integer("n_features", self.n_features)
        return np.array([f"privatevectorizer{place}" for place in range(size)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit = False
        return tags
