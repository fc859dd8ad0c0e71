"""What filling up batches costs: `python -m benchmarks.padding`.

Batches of a Poisson number of records are read and clipped, filled up and as they are, in turns in
one process. Processor time; the ratio is the median over the turns.
"""

import statistics
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from privada import data
from privada.clipping.engine import make_engine
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.data.dummies import make_dummies
from privada.preconditioning import FlatScaling

TURNS, WARM = 60, 4


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.LSTM(64, 64, batch_first=True), nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rows(x)[0][:, -1])


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(), nn.Flatten(), nn.Linear(800, 10),
    )  # fmt: skip


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(2048, 2))


# name, model, shape of an input, records in a batch, classes
CASES = (
    ("linear, 10,000 features", lambda: nn.Linear(10_000, 2), (10_000,), 64, 2),
    ("linear, 10,000 features", lambda: nn.Linear(10_000, 2), (10_000,), 256, 2),
    ("perceptron", perceptron, (784,), 64, 10),
    ("perceptron", perceptron, (784,), 256, 10),
    ("convolutional", convolutional, (1, 28, 28), 256, 10),
    ("LSTM over 32 steps", Last, (32, 64), 64, 2),
    ("encoder over 32 tokens", encoder, (32, 64), 32, 2),
)


def ratio(model: nn.Module, shape: tuple[int, ...], size: int, classes: int) -> tuple[float, ...]:
    """Return milliseconds filled up, as they are, and the median of their ratios."""
    first = Batch(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64))
    engine = make_engine(
        "one-pass", model, functional.cross_entropy, Parameters(model), make_dummies(first),
        expected=size,
    )  # fmt: skip
    padding, count = engine.padding, 4 * size
    given = torch.randn(count, *shape), torch.randint(classes, (count,))
    records = data.load(given, torch.float32, torch.device("cpu"))
    draw, times = np.random.default_rng(0), {True: [], False: []}
    for turn in range(TURNS):
        indices = np.flatnonzero(draw.random(count) < 0.25)
        for filled in (True, False) if turn % 2 else (False, True):
            engine.padding = padding if filled else None
            begun = time.process_time()
            batch, _ = records.read(indices, None, engine.padding)
            engine.clipped_sum(batch, FlatScaling(None, None), 1.0)
            times[filled].append(time.process_time() - begun)
    pairs = list(zip(times[True], times[False], strict=True))[WARM:]
    each = [1e3 * statistics.median(column) for column in zip(*pairs, strict=True)]
    return *each, statistics.median(a / b for a, b in pairs)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| model | batch | filled up, ms | as it is, ms | ratio |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, build, shape, size, classes in CASES:
        filled, plain, found = ratio(build(), shape, size, classes)
        print(f"| {name} | {size} | {filled:.2f} | {plain:.2f} | {found:.2f} |", flush=True)


if __name__ == "__main__":
    main()
