"""Symmetric matrices as vectors with the same norm."""

import math

import torch
from torch import Tensor


def folded(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, row by row, with the matrix's norm.

    What is off the diagonal is multiplied by sqrt(2), so that the Euclidean norm of the vector is
    the Frobenius norm of the matrix.

    Example:
        >>> import torch
        >>> from privada.core.symmetric import folded, unfolded
        >>> matrix = torch.tensor([[1.0, 2.0], [2.0, 3.0]])
        >>> folded(matrix).norm().isclose(matrix.norm()).item()
        True
        >>> unfolded(folded(matrix), 2).allclose(matrix)
        True
    """
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns] * _weights(rows, columns, math.sqrt(2), matrix.dtype)


def unfolded(vector: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix of so many rows that `folded` makes a vector of."""
    rows, columns = torch.triu_indices(size, size)
    matrix = torch.zeros((size, size), dtype=vector.dtype)
    matrix[rows, columns] = vector * _weights(rows, columns, math.sqrt(0.5), vector.dtype)
    return matrix + matrix.triu(1).T


def _weights(rows: Tensor, columns: Tensor, off: float, dtype: torch.dtype) -> Tensor:
    return torch.full(rows.shape, off, dtype=dtype).masked_fill_(rows == columns, 1.0)
