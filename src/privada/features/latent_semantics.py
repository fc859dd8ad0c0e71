"""Directions in which words of public texts occur together."""

from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd
from torch import Tensor, nn

from privada.core.errors import ArgumentError
from privada.core.validation import integer, shown

# Which directions are found does not depend on more than the public texts.
_SEED = 0


class LatentSemantics(nn.Module):
    """Latent semantic analysis: bags of words in a few directions that public texts are rich in.

    Each word of a text counts once, weighed by the inverse root of how many public texts have it;
    the row is brought to a norm of one, projected onto the first directions of the public texts,
    as singular vectors of their matrix, and brought to a norm of one again. A linear model of some
    hundred directions has far fewer weights for noise to move than one of ten thousand words, and
    words that are rare in the private texts are known by the company they keep in the public ones.

    Args:
        public: counts of words in public texts without labels, a row for each text: a sparse matrix
            or an array. Columns are the words, in the order of the private texts'.
        dimensions: how many directions.

    Guarantee: directions and weights come from the public texts alone, and each private text is
    transformed by itself. So it costs no privacy, if those texts are public.

    Edge cases: words that no public text has are left out. A text without known words becomes a row
    of zeros. What is not above zero counts as absent.

    Example:
        >>> import numpy as np, privada as pv
        >>> public = np.random.default_rng(0).poisson(0.3, size=(200, 50))
        >>> topics = pv.features.LatentSemantics(public, dimensions=10)
        >>> topics(torch.ones(3, 50)).shape
        torch.Size([3, 10])
        >>> private = (np.random.default_rng(1).poisson(0.3, size=(400, 50)), np.arange(400) % 2)
        >>> reviews = pv.PrivateClassifier(epsilon=3.0, features=topics).fit(*private)

    Reference: Deerwester, Dumais, Furnas, Landauer and Harshman (1990), Indexing by Latent Semantic
    Analysis; Halko, Martinsson and Tropp (2011), Finding Structure with Randomness, arXiv
    0909.4061, for how directions are found.
    """

    def __init__(self, public: Any, dimensions: int = 300) -> None:
        super().__init__()
        counts = _checked(public)
        texts, words = counts.shape
        self.dimensions = integer("dimensions", dimensions)
        if self.dimensions >= min(texts, words):
            raise ArgumentError(
                f"Expected dimensions < {min(texts, words)}, the smaller of the numbers of public "
                f"texts and of words, got dimensions={dimensions}. Take fewer, or more texts."
            )
        present = (counts > 0).astype(np.float32)
        found = np.asarray(present.sum(axis=0), dtype=np.float64).ravel()
        weights = np.where(found > 0, np.sqrt(texts / np.maximum(found, 1)), 0.0)
        rows = present @ scipy.sparse.diags(weights)
        norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        rows = scipy.sparse.diags(1 / np.where(norms > 0, norms, 1)) @ rows
        *_, directions = randomized_svd(rows, self.dimensions, random_state=_SEED)
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("directions", torch.tensor(directions.T.copy(), dtype=torch.float32))

    def forward(self, counts: Tensor) -> Tensor:
        """Return the texts of a batch in the directions, as rows of norm one."""
        weighed = (counts > 0) * self.get_buffer("weights")
        return _unit(_unit(weighed) @ self.get_buffer("directions"))


def _unit(rows: Tensor) -> Tensor:
    """Return rows of norm one; those of zeros stay."""
    norms = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(norms > 0, norms, 1.0)


def _checked(public: Any) -> Any:
    """Return the public counts as a sparse matrix."""
    sparse = bool(scipy.sparse.issparse(public))
    values: Any = scipy.sparse.csr_array(public) if sparse else np.asarray(public)
    numbers: NDArray[Any] = values.data if sparse else values
    if values.ndim != 2 or numbers.dtype.kind not in "biuf" or not values.shape[0]:
        raise ArgumentError(
            "Expected public to be counts of words, a row for each public text, got "
            f"public={shown(public)}. Count them with the vocabulary of the private texts."
        )
    if numbers.size and not (np.isfinite(numbers).all() and numbers.min() >= 0):
        raise ArgumentError(
            "Expected public to be counts of words, which are finite and not below 0, got others."
        )
    return scipy.sparse.csr_array(values)
