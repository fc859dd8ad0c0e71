"""Fixed preconditioners from public statistics of the features: frequency and size."""

from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.core.validation import not_negative, positive, printable_text, shown
from privada.core.values import State
from privada.preconditioning.diagonal import DiagonalScaling, Preconditioner


class ByFeature(Preconditioner):
    """One scale for each feature, on the layer that reads the features; `others` elsewhere.

    Example:
        >>> import torch, privada as pv
        >>> scaling = pv.preconditioning.by_feature([1.0, 0.1, 0.01], source="a public dictionary")
        >>> parameters = pv.core.tensors.Parameters(torch.nn.Linear(3, 1))
        >>> scaling.on(parameters).on(parameters).scale
        tensor([1.0000, 0.1000, 0.0100, 1.0000])
    """

    def __init__(self, scales: Tensor, others: float, layer: str | None, source: str) -> None:
        self.scales, self.source = scales, printable_text("source", source)
        self._others, self._layer = (
            others,
            None if layer is None else printable_text("layer", layer),
        )
        self._made: tuple[Parameters, DiagonalScaling] | None = None

    def init(self, parameters: Parameters) -> State:
        """Return no state; raise if the model has no layer for the scales."""
        self.on(parameters)
        return {}

    def at(self, state: State, parameters: Parameters) -> tuple[DiagonalScaling, State]:
        """Return the same scaling for every release."""
        if self._made is None or self._made[0] is not parameters:
            self._made = parameters, self.on(parameters)
        return self._made[1], state

    def on(self, parameters: Parameters) -> DiagonalScaling:
        """Return the scaling for a model."""
        weight, axis = parameters.inputs_of(len(self.scales), self._layer)
        scales: dict[str, Tensor] = {
            name: torch.tensor(self._others) for name in parameters.layout.names
        }
        scales[weight] = self.scales if axis else self.scales[:, None]
        return DiagonalScaling(scales, source=self.source)


def by_feature(
    scales: Any,
    *,
    others: float = 1.0,
    layer: str | None = None,
    source: str = "scales by feature, given by the user and declared public",
) -> ByFeature:
    """Return a preconditioner with a scale for each input feature.

    The scales go to the first linear layer with as many inputs, or the first embedding with as
    many rows, or to the one named `layer`; all other parameters have the scale `others`.

    Args:
        scales: one positive number for each feature.
        others: the scale of all other parameters.
        layer: the name of the layer; by default the first that fits.
        source: where the values come from, in words that the statement repeats.

    Returns:
        The preconditioner.

    Guarantee: the whitened sum moves by at most the clip norm, whatever the scales; provided that
    they do not depend on the private data except through releases.

    Edge cases: scales must be finite and positive. A model without such a layer is refused.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.by_feature([1.0, 0.1], source="a public dictionary")
        a public dictionary

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 1, Option 2.
    """
    vector = torch.as_tensor(_array("scales", scales))
    if vector.ndim != 1 or not bool(torch.isfinite(vector).all() and (vector > 0).all()):
        raise ArgumentError(
            "Expected scales to be one finite positive number for each feature, got a tensor of "
            f"shape {tuple(vector.shape)} with a smallest entry of "
            f"{float(vector.min()) if vector.numel() else None}. Add a small positive constant."
        )
    return ByFeature(vector.float(), positive("others", others), layer, source)


def _array(name: str, values: Any, dtype: Any = np.float64) -> NDArray[Any]:
    """Return numbers as an array."""
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
        found = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"Expected {name} to be numbers, got {name}={shown(values)}. Give an array of them."
        ) from error
    if found.dtype.kind not in "biuf":
        raise ArgumentError(
            f"Expected {name} to be numbers, got {name}={shown(values)}. Give an array of them."
        )
    return found


def _sparse(values: Any) -> bool:
    return bool(scipy.sparse.issparse(values))


def _columns(name: str, values: Any) -> tuple[Any, int]:
    """Return a matrix of public examples, dense or CSR, and how many rows it has."""
    matrix: Any = scipy.sparse.csr_array(values) if _sparse(values) else _array(name, values, None)
    if matrix.ndim != 2 or not matrix.shape[0]:
        raise ArgumentError(
            f"Expected {name} to be a matrix with a row for each public example and at least one "
            f"row, got shape {matrix.shape}."
        )
    return matrix, int(matrix.shape[0])


def _sum(matrix: Any) -> NDArray[np.float64]:
    return np.asarray(matrix.sum(axis=0), dtype=np.float64).ravel()


def feature_moments(
    features: Any,
    *,
    eps: float = 1e-3,
    others: float = 1.0,
    layer: str | None = None,
    source: str = "second moments of features of examples declared public",
) -> ByFeature:
    """Return the preconditioner of the features' root mean squares, sqrt(E[x_j^2]) + eps.

    In a generalised linear model the gradient is a multiple of the features, so these are the
    second moments of the gradient but for a factor. `features` is a matrix of public examples, one
    row each, without labels; it may be sparse.

    Args:
        features: a matrix of public examples.
        eps: added to the root mean squares.
        others: the scale of all other parameters.
        layer: the name of the layer; by default the first that fits.
        source: where the values come from, in words that the statement repeats.

    Returns:
        The preconditioner.

    Guarantee: as for `by_feature`; that the examples are public is declared.

    Edge cases: a feature that never occurs has the scale eps.

    Example:
        >>> import numpy as np, privada as pv
        >>> features = np.array([[3.0, 0.0], [4.0, 0.0]])
        >>> scaling = pv.preconditioning.feature_moments(features, eps=0.1)
        >>> scaling.scales
        tensor([3.6355, 0.1000])

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Section 5.1.1.
    """
    matrix, count = _columns("features", features)
    squares = matrix.multiply(matrix) if _sparse(matrix) else matrix * matrix
    scales = np.sqrt(_sum(squares) / count) + positive("eps", eps)
    return by_feature(scales, others=others, layer=layer, source=source)


def token_frequency(
    counts: Any,
    *,
    floor: float = 1e-4,
    power: float = 1.0,
    others: float = 1.0,
    layer: str | None = None,
    source: str = "token frequencies in text declared public",
) -> ByFeature:
    """Return scales by token frequency: the most frequent token has the scale 1.

    `counts` is a matrix with a row for each public document and a column for each token, or a
    vector of totals. The scale is (frequency / the greatest)^power, and not below `floor`.

    Args:
        counts: a matrix of public documents by tokens, or a vector of totals.
        floor: the least scale.
        power: of the relative frequency.
        others: the scale of all other parameters.
        layer: the name of the layer; by default the first that fits.
        source: where the values come from, in words that the statement repeats.

    Returns:
        The preconditioner.

    Guarantee: as for `by_feature`; that the text is public is declared.

    Edge cases: a token that never occurs has the scale `floor`.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.token_frequency([100, 10, 0], floor=0.01).scales
        tensor([1.0000, 0.1000, 0.0100])

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Section 6.1.2.
    """
    if not _sparse(counts) and np.ndim(counts) == 1:
        totals = _array("counts", counts)
    else:
        totals = _sum(_columns("counts", counts)[0])
    if not totals.size or not np.isfinite(totals).all() or totals.min() < 0 or totals.max() <= 0:
        raise ArgumentError(
            "Expected counts of tokens, none negative and not all zero, got totals between "
            f"{totals.min() if totals.size else None} and {totals.max() if totals.size else None}."
        )
    relative = (totals / totals.max()) ** positive("power", power)
    scales = np.maximum(relative, positive("floor", floor))
    return by_feature(scales, others=others, layer=layer, source=source)


def tf_idf(
    counts: Any,
    *,
    eps: float = 1e-4,
    others: float = 1.0,
    layer: str | None = None,
    source: str = "TF-IDF of tokens in text declared public",
) -> ByFeature:
    """Return scales inverse to the tokens' total TF-IDF: tokens of high TF-IDF count for more.

    `counts` is a matrix with a row for each public document and a column for each token. A token's
    TF-IDF is the sum over documents of count / length, times log10(documents / documents with it);
    the scale is its least value among tokens that have one, divided by it plus eps times the
    greatest.

    Args:
        counts: a matrix of public documents by tokens.
        eps: added to TF-IDFs, in units of the greatest.
        others: the scale of all other parameters.
        layer: the name of the layer; by default the first that fits.
        source: where the values come from, in words that the statement repeats.

    Returns:
        The preconditioner.

    Guarantee: as for `by_feature`; that the text is public is declared.

    Edge cases: a token that is in no document, or in all, has a TF-IDF of zero and the greatest
    scale. An empty document counts for nothing.

    Example:
        >>> import numpy as np, privada as pv
        >>> scaling = pv.preconditioning.tf_idf(np.array([[2, 1, 1], [2, 0, 2], [1, 0, 0]]))
        >>> bool(scaling.scales[2] < scaling.scales[0])
        True

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Section 6.1.2, where the preconditioner is inversely proportional to TF-IDF.
    """
    matrix, documents = _columns("counts", counts)
    if _sparse(matrix):
        matrix = matrix.astype(np.float64)
        lengths = np.asarray(matrix.sum(axis=1)).ravel()
        held = np.diff(matrix.tocsc().indptr)
    else:
        matrix = matrix.astype(np.float64)
        lengths, held = matrix.sum(axis=1), (matrix > 0).sum(axis=0)
    weights = 1 / np.where(lengths > 0, lengths, np.inf)
    frequency = np.asarray(matrix.T @ weights).ravel()
    weight = frequency * np.log10(documents / np.maximum(held, 1))
    if not weight.max() > 0:
        raise ArgumentError(
            "Expected counts in which some token is in some documents and not in all, got none: "
            "every TF-IDF is zero. Give more documents."
        )
    slack = not_negative("eps", eps) * weight.max()
    least = weight[weight > 0].min() + slack
    scales = np.where(weight > 0, least / np.maximum(weight + slack, least), 1.0)
    return by_feature(scales, others=others, layer=layer, source=source)
