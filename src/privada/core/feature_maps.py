"""Linear maps of the inputs of a linear layer, as they act on the gradients of its parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Features x' = x S of a linear layer, and what becomes of gradients and of steps by them.

    A flat vector over the layer's parameters has the weight first, then the bias if there is one.
    The bias is the weight of one more feature, the last, which is always 1.

    Args:
        matrix: S, with a row and a column for each feature.
        bias: whether the layer has a bias.

    Example:
        >>> import torch
        >>> from privada.core.feature_maps import FeatureMap
        >>> halves = FeatureMap(torch.diag(torch.tensor([0.5, 0.5, 1.0])), bias=True)
        >>> gradient = torch.tensor([2.0, 4.0, 6.0])  # of two weights and a bias
        >>> halves.mapped(gradient[None]), halves.restored(torch.tensor([1.0, 2.0, 6.0]))
        (tensor([[1., 2., 6.]]), tensor([0.5000, 1.0000, 6.0000]))
    """

    matrix: Tensor
    bias: bool

    @property
    def features(self) -> int:
        """The number of features that are mapped, a constant one included."""
        return int(self.matrix.shape[0])

    def of(self, inputs: Tensor) -> Tensor:
        """Return inputs with the constant feature, where there is a bias."""
        return torch.nn.functional.pad(inputs, (0, 1), value=1.0) if self.bias else inputs

    def mapped(self, rows: Tensor) -> Tensor:
        """Return gradients that come as rows in the mapped features: G S."""
        return self._times(rows, self.matrix)

    def restored(self, vector: Tensor) -> Tensor:
        """Return a step in the mapped features as one in the parameters: U S^T."""
        return self._times(vector[None], self.matrix.T)[0]

    @property
    def spread(self) -> Tensor:
        """By how much each row of the weight multiplies noise when it is restored."""
        found: Tensor = torch.linalg.vector_norm(self.matrix, dim=1)
        return found

    def spread_over(self, size: int) -> Tensor:
        """Return by how much noise in each of `size` coordinates is multiplied when restored."""
        outputs = size // self.features
        weight = self.spread[: self.features - self.bias].repeat(outputs)
        return torch.cat([weight, self.spread[-1:].repeat(outputs)]) if self.bias else weight

    def _times(self, rows: Tensor, matrix: Tensor) -> Tensor:
        return self.flat(self.by_output(rows.to(matrix.dtype)) @ matrix).to(rows.dtype)

    def by_output(self, rows: Tensor) -> Tensor:
        """Return flat vectors as one matrix each, a row for each output of the layer."""
        outputs = rows.shape[1] // self.features
        weight = rows[:, : rows.shape[1] - outputs * self.bias]
        weight = weight.reshape(len(rows), outputs, -1)
        if not self.bias:
            return weight
        return torch.cat([weight, rows[:, -outputs:, None]], dim=2)

    def flat(self, matrices: Tensor) -> Tensor:
        """Return matrices with a row for each output as flat vectors."""
        if not self.bias:
            return matrices.flatten(1)
        return torch.cat([matrices[:, :, :-1].flatten(1), matrices[:, :, -1]], dim=1)
