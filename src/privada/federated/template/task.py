"""What is learnt, and where the records are: change this file for a task of your own."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

PUBLIC = 397  # digits that no client has, on which the server evaluates the model
LOSS = nn.CrossEntropyLoss()


def make_model() -> nn.Module:
    """Return the model that the clients train."""
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def load_records(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    """Return the records of a client: here its share of scikit-learn's handwritten digits."""
    inputs, targets = _digits()
    return inputs[PUBLIC + partition :: partitions], targets[PUBLIC + partition :: partitions]


def load_public_records() -> tuple[Tensor, Tensor]:
    """Return the records at the server, which have to be public and of nobody's client."""
    inputs, targets = _digits()
    return inputs[:PUBLIC], targets[:PUBLIC]


def _digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    inputs = torch.tensor(data.data, dtype=torch.float32) / 16
    return inputs[order], torch.tensor(data.target)[order]
