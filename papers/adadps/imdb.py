"""Li et al. (2022), Table 4: sentiment of film reviews, with token statistics from public reviews.

    PRIVADA_DATA=folder python -m papers.adadps.imdb

Logistic regression on which of 10,000 words occur in a review: 25,000 private reviews, epsilon 1.5
at delta 4e-5, examples clipped one by one. AdaDPS divides gradients by the features' root mean
squares, from 10,000 unlabelled reviews that are declared public. Learning rate and clip norm are
chosen on Amazon reviews over the same words, which are public too, so that choosing costs nothing.
The vocabulary was chosen from the private reviews, which is not private.
"""

import os
import statistics
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from torch import nn

import privada as pv
from papers.study import Settings, compare, grid, table, write

WORDS, BUDGET, BATCH, EPOCHS = 10_000, (1.5, 4e-5), 1024, 32
METHODS = ("dp-sgd", "adadps")
RATES, CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0), (0.3, 1.0, 3.0, 10.0, 30.0)


def folder() -> Path:
    """Return where the data sets are."""
    found = os.environ.get("PRIVADA_DATA")
    if not found or not (Path(found) / "imdb.npz").is_file():
        sys.exit(
            "Expected PRIVADA_DATA to name a folder with imdb.npz, imdb_unsup10k.npz and "
            f"amazon_imdbvocab.npz, got PRIVADA_DATA={found!r}. Set it and run again."
        )
    return Path(found)


def _words(parts: Mapping[str, Any], prefix: str) -> csr_matrix:
    """Return which words occur in each review."""
    starts = parts[f"{prefix}indptr"].astype(np.int64)
    columns = parts[f"{prefix}indices"].astype(np.int64)
    return csr_matrix(
        (np.ones(len(columns), np.float32), columns, starts), shape=(len(starts) - 1, WORDS)
    )


@cache
def reviews(which: str) -> tuple[csr_matrix, np.ndarray]:
    """Return the reviews and labels of "train", "test" or "amazon"."""
    if which == "amazon":
        with np.load(folder() / "amazon_imdbvocab.npz") as z:
            return _words(z, ""), z["labels"].astype(np.float32)[:, None]
    with np.load(folder() / "imdb.npz") as z:
        return _words(z, f"{which}_"), z[f"{which}_labels"].astype(np.float32)[:, None]


@cache
def side_information() -> Any:
    """Return the geometry of the public, unlabelled reviews."""
    with np.load(folder() / "imdb_unsup10k.npz") as z:
        return pv.preconditioning.feature_moments(
            _words(z, "unsup_"), eps=0.01, source="which words occur in unlabelled public reviews"
        )


def trained(
    method: str, lr: float, clip: float, x: csr_matrix, y: np.ndarray, seed: int | None
) -> pv.Trainer:
    """Return a trainer that has used up the budget. The rate is in units of the clip norm."""
    model = nn.Linear(WORDS, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    methods = {
        "dp-sgd": lambda: pv.methods.DPSGD(lr=lr / clip, clip=clip),
        "adadps": lambda: pv.methods.AdaDPS(
            lr=lr / clip, clip=clip, preconditioner=side_information()
        ),
    }
    return pv.Trainer(
        model, nn.BCEWithLogitsLoss(), (x, y), method=methods[method](), batch_size=BATCH,
        epochs=EPOCHS, budget=pv.Budget(*BUDGET), seed=seed, unit="review",
    ).fit()  # fmt: skip


def accuracy(model: nn.Module, x: csr_matrix, y: np.ndarray) -> float:
    """Return the share of reviews on the right side."""
    weight, bias = (p.detach().numpy() for p in model.parameters())
    return float(((x @ weight.T + bias > 0) == (y > 0.5)).mean())


def amazon_error(method: str, settings: Settings, seed: int) -> float:
    """Return the error on a fifth of the Amazon reviews after training on the rest."""
    x, y = reviews("amazon")
    order = np.random.default_rng(seed).permutation(len(y))
    held, rest = order[: len(y) // 5], order[len(y) // 5 :]
    run = trained(method, settings["lr"], settings["clip"], x[rest], y[rest], seed)
    return 1 - accuracy(run.model, x[held], y[held])


def imdb_error(method: str, settings: Settings, seed: int) -> float:
    """Return the error on the test reviews after private training."""
    run = trained(method, settings["lr"], settings["clip"], *reviews("train"), seed)
    return 1 - accuracy(run.model, *reviews("test"))


def error(method: str, settings: Settings, seed: int) -> float:
    """Return the error on Amazon for tuning seeds, on IMDB for the others."""
    return (amazon_error if seed >= 100 else imdb_error)(method, settings, seed)


def main() -> None:
    """Choose settings on Amazon, run them on IMDB, and write the results beside this file."""
    choices = grid(lr=RATES, clip=CLIPS)
    outcomes = compare(error, dict.fromkeys(METHODS, choices), (100,), range(5))
    shown = {o.method: 1 - statistics.median(o.figures) for o in outcomes}
    words = f"""# Sentiment of film reviews

Logistic regression on the presence of {WORDS:,} words, 25,000 private reviews, epsilon {BUDGET[0]}
at delta {BUDGET[1]:g} by privacy loss distributions, batch {BATCH}, {EPOCHS} epochs, each example
clipped. AdaDPS divides by the root mean squares of the features in 10,000 unlabelled public
reviews. Learning rate and clip norm were chosen from {len(choices)} pairs by one run each on Amazon
reviews, which are public; errors are on the 25,000 test reviews, over five seeds. Rates are in
units of the clip norm.

{table(outcomes, "test error")}

Median test accuracy: DP-SGD {shown["dp-sgd"]:.4f}, AdaDPS {shown["adadps"]:.4f}. The paper reports
0.63 and 0.80 for this epsilon, with micro-batches, for which the correct epsilon would be larger.
"""
    write(Path(__file__).parent, "imdb", words, {"test error": outcomes})


if __name__ == "__main__":
    main()
