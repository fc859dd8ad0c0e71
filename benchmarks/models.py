"""The models that engines are compared on, with the sizes of the papers."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from privada.data.batch import csr


class Recurrent(nn.Module):
    """An embedding, LSTM layers and a linear layer on the last or on every state."""

    def __init__(self, lstm: type, tokens: int, width: int, outputs: int, every: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = lstm(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, outputs)
        self.every = every

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        if self.every:
            return self.out(states).transpose(1, 2)
        return self.out(states[:, -1])


class Attention(nn.Module):
    """One encoder layer, put together from a given kind of attention."""

    def __init__(self, attention: Callable[..., nn.Module], width: int, heads: int) -> None:
        super().__init__()
        self.attention = attention(width, heads, batch_first=True)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm1(x)
        x = x + self.attention(normal, normal, normal, need_weights=False)[0]
        return x + self.second(functional.relu(self.first(self.norm2(x))))


class Encoder(nn.Module):
    """A transformer encoder on tokens, with a class for each sequence."""

    def __init__(self, attention: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8_000, 256)
        self.layers = nn.Sequential(*(Attention(attention, 256, 4) for _ in range(4)))
        self.out = nn.Linear(256, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layers(self.embedding(tokens)).mean(dim=1))


def mlp(*sizes: int) -> nn.Sequential:
    """Return linear layers of the given sizes with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Sequential:
    """Return two convolutions of 64 3 x 3 filters and three linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(),
        nn.Linear(500, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, a loss and a batch. `parts` are the layers that peers have under other names."""

    name: str
    build: Callable[..., nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: nn.Module
    parts: str = ""

    def model(self, **parts: object) -> nn.Module:
        """Return a new model, by default of torch's own layers."""
        torch.manual_seed(0)
        own = {"lstm": nn.LSTM, "attention": nn.MultiheadAttention}
        if not self.parts:
            return self.build()
        return self.build(parts.get(self.parts, own[self.parts]))


def _features(batch: int, *shape: int, classes: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.rand(batch, *shape), torch.randint(classes, (batch,)))


def _sparse(batch: int, width: int, entries: int) -> Callable[[], tuple[Tensor, Tensor]]:
    def make() -> tuple[Tensor, Tensor]:
        columns = torch.rand(batch, width).topk(entries, dim=1).indices.sort(dim=1).values
        starts = torch.arange(0, (batch + 1) * entries, entries)
        rows = csr(starts, columns.reshape(-1), torch.rand(batch * entries), (batch, width))
        return rows, torch.randint(2, (batch,))

    return make


def _tokens(batch: int, length: int, tokens: int, classes: int, every: bool = False):
    def make() -> tuple[Tensor, Tensor]:
        shape = (batch, length) if every else (batch,)
        return torch.randint(tokens, (batch, length)), torch.randint(classes, shape)

    return make


def _pictures(batch: int) -> Callable[[], tuple[Tensor, Tensor]]:
    def make() -> tuple[Tensor, Tensor]:
        x = torch.rand(batch, 784)
        return x, x

    return make


CROSS = nn.CrossEntropyLoss()
CASES = [
    Case("logistic 10,000 x 2, b 64", lambda: nn.Linear(10_000, 2),
         _features(64, 10_000, classes=2), CROSS),
    Case("logistic 10,000 x 2, b 1024", lambda: nn.Linear(10_000, 2),
         _features(1024, 10_000, classes=2), CROSS),
    Case("logistic 10,000 x 2, b 64, sparse", lambda: nn.Linear(10_000, 2),
         _sparse(64, 10_000, 100), CROSS),
    Case("logistic 10,000 x 2, b 1024, sparse", lambda: nn.Linear(10_000, 2),
         _sparse(1024, 10_000, 100), CROSS),
    Case("logistic 10,000 x 500, b 64", lambda: nn.Linear(10_000, 500),
         _features(64, 10_000, classes=500), CROSS),
    Case("MLP 784-256-256-10, b 200", lambda: mlp(784, 256, 256, 10),
         _features(200, 784, classes=10), CROSS),
    Case("autoencoder, b 64",
         lambda: mlp(784, 1000, 500, 250, 30, 250, 500, 1000, 784), _pictures(64),
         nn.MSELoss()),
    Case("CNN, b 256", cnn, _features(256, 1, 28, 28, classes=10), CROSS),
    Case("IMDB LSTM, b 64", lambda lstm: Recurrent(lstm, 10_000, 64, 2, every=False),
         _tokens(64, 256, 10_000, 2), CROSS, "lstm"),
    Case("language model, b 50", lambda lstm: Recurrent(lstm, 8_000, 120, 8_000, every=True),
         _tokens(50, 35, 8_000, 8_000, every=True), CROSS, "lstm"),
    Case("transformer, b 32", Encoder, _tokens(32, 128, 8_000, 2), CROSS, "attention"),
]  # fmt: skip
