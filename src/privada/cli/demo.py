"""The demonstration: DP-SGD on data that ships with scikit-learn."""

from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits

import privada as pv


@dataclass(frozen=True)
class Demo:
    """What the demonstration did."""

    trainer: pv.Trainer
    accuracy: float
    train_size: int
    test_size: int


def run_demo(
    *,
    epsilon: float,
    delta: float,
    epochs: float,
    batch_size: float,
    ledger: Path | None,
    progress: bool,
) -> Demo:
    """Train a linear classifier of digits privately, and test it on digits taken as public."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32) / 16  # pixels are 0 .. 16 by definition
    targets = torch.tensor(labels)
    test = torch.arange(len(targets)) % 5 == 0
    model = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    trainer = pv.Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        (inputs[~test], targets[~test]),
        method=pv.methods.DPSGD(lr=2.0, clip=1.0),
        batch_size=batch_size,
        epochs=epochs,
        budget=pv.Budget(epsilon, delta),
        ledger=ledger,
    ).fit(progress=progress)
    with torch.no_grad():
        right = model(inputs[test]).argmax(dim=1) == targets[test]
    return Demo(trainer, float(right.float().mean()), int((~test).sum()), int(test.sum()))
