"""Settings that nobody tuned, against DP-SGD that was: accuracy at one epsilon on real data.

    PRIVADA_DATA=folder python -m benchmarks.defaults

With the word `again`, only the first column is measured again: when the defaults have changed.

Linear models throughout. Four columns: `PrivateClassifier(epsilon=1)` as it is; DP-SGD with the
best of 18 pairs of learning rate and clip norm, as if looking at the results of 18 runs cost
nothing; the same search paid for within epsilon 1; and logistic regression without privacy. Batch
size and epochs are the defaults' for all. Test records are taken as public.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression
from torch import nn

import privada as pv
from privada import defaults, tables
from privada.selection.planning import default_delta

EPSILON = 1.0
GRID = {"lr": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0), "clip": (0.1, 0.5, 1.0)}
SEEDS = (0, 1, 2)
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Data:
    """Private records and public test records: inputs and class numbers."""

    train: tuple[Any, np.ndarray]
    test: tuple[Any, np.ndarray]
    about: str

    @property
    def classes(self) -> int:
        return int(self.train[1].max()) + 1


def folder() -> Path:
    found = os.environ.get("PRIVADA_DATA")
    if not found or not (Path(found) / "adult.csv.gz").is_file():
        sys.exit(f"Expected PRIVADA_DATA to name the folder of data sets, got {found!r}.")
    return Path(found)


# ---------------------------------------------------------------------- data sets


def adult() -> Data:
    table = tables.read(folder() / "adult.csv.gz")
    test = np.asarray(table.texts("split") == "test", dtype=bool)
    public = table.take(test)
    schema = tables.infer_schema(public, target="income", public=True)
    train = tables.encode(table.take(~test), schema).data
    return Data(train, tables.encode(public, schema).data, "census records; income above 50,000")


def mnist() -> Data:
    with np.load(folder() / "mnist.npz") as z:
        train, test = (
            (z[f"x_{part}"].reshape(-1, 784).astype(np.float32) / 255, z[f"y_{part}"].astype(int))
            for part in ("train", "test")
        )
    return Data(train, test, "images of digits; ten classes")


def _words(z: Any, prefix: str) -> Any:
    """Return rows of words, each 1 where it occurs, scaled to a norm of 1."""
    starts = z[f"{prefix}indptr"].astype(np.int64)
    held = np.ones(len(z[f"{prefix}indices"]), dtype=np.float32)
    norms = np.sqrt(np.maximum(1, np.diff(starts))).astype(np.float32)
    held /= np.repeat(norms, np.diff(starts))
    width = len(z["vocab"].tobytes().decode().split("\n")) if "vocab" in z else 10_000
    columns = z[f"{prefix}indices"].astype(np.int64)
    return scipy.sparse.csr_matrix((held, columns, starts), shape=(len(starts) - 1, width))


def imdb() -> Data:
    with np.load(folder() / "imdb.npz") as z:
        train, test = (
            (_words(z, f"{part}_"), z[f"{part}_labels"].astype(int)) for part in ("train", "test")
        )
    return Data(train, test, "film reviews; liked or not")


def _split(inputs: Any, labels: np.ndarray, about: str) -> Data:
    """Return four fifths as private records and the rest as public ones."""
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = np.sort(order[: len(labels) // 5]), np.sort(order[len(labels) // 5 :])
    return Data((inputs[train], labels[train]), (inputs[test], labels[test]), about)


def amazon() -> Data:
    with np.load(folder() / "amazon_imdbvocab.npz") as z:
        return _split(_words(z, ""), z["labels"].astype(int), "product reviews; liked or not")


def enron() -> Data:
    with np.load(folder() / "enron.npz") as z:
        return _split(_words(z, ""), z["labels"].astype(int), "e-mails; spam or not")


def stackexchange() -> Data:
    with np.load(folder() / "stackexchange_users.npz") as z:
        _, sites = np.unique(z["site"], return_inverse=True)
        return _split(_words(z, ""), sites, "posts; which of six sites. A record is a post")


DATA: dict[str, Callable[[], Data]] = {
    "Adult": adult, "MNIST": mnist, "IMDB": imdb, "Amazon": amazon, "Enron": enron,
    "Stack Exchange": stackexchange,
}  # fmt: skip


# ---------------------------------------------------------------------- contenders


def _right(model: nn.Module, data: tuple[Any, np.ndarray]) -> float:
    inputs, labels = data
    dense = inputs.toarray() if scipy.sparse.issparse(inputs) else inputs
    with torch.no_grad():
        return float((model(torch.from_numpy(dense)).argmax(dim=1).numpy() == labels).mean())


def untuned(data: Data, seed: int) -> float:
    """Return the accuracy of the classifier with nothing but an epsilon."""
    torch.set_num_threads(1)
    fitted = pv.PrivateClassifier(EPSILON, seed=seed).fit(*data.train)
    return _right(fitted.model_, data.test)


def _candidate(data: Data, lr: float, clip: float, records: int) -> pv.selection.Candidate:
    usual = defaults.settings(records)
    model = nn.Linear(data.train[0].shape[1], data.classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    method = pv.methods.DPSGD(lr=lr, clip=clip)
    return pv.selection.Candidate(
        model, nn.CrossEntropyLoss(), method, usual.batch_size, epochs=usual.epochs
    )


def _trained(data: Data, rows: Any, lr: float, clip: float, seed: int) -> nn.Module:
    inputs, labels = data.train
    made = _candidate(data, lr, clip, len(rows))
    budget = pv.Budget(EPSILON, default_delta(len(labels)))
    pv.Trainer(
        made.model, made.loss, (inputs[rows], labels[rows]), method=made.method,
        batch_size=made.batch_size, epochs=made.epochs, budget=budget, seed=seed,
    ).fit()  # fmt: skip
    return made.model


def scored(data: Data, lr: float, clip: float) -> float:
    """Return the accuracy of a pair on a tenth of the private records, set apart, without noise."""
    torch.set_num_threads(1)
    inputs, labels = data.train
    order = np.random.default_rng(1).permutation(len(labels))
    apart, rest = order[: len(labels) // 10], np.sort(order[len(labels) // 10 :])
    model = _trained(data, rest, lr, clip, seed=100)
    return _right(model, (inputs[apart], labels[apart]))


def tuned_for_nothing(data: Data, lr: float, clip: float, seed: int) -> float:
    """Return the test accuracy of the best pair, trained on all private records."""
    torch.set_num_threads(1)
    return _right(_trained(data, np.arange(len(data.train[1])), lr, clip, seed), data.test)


def tuned_and_paid(data: Data, seed: int) -> float:
    """Return the test accuracy of what a search finds that costs epsilon as a whole."""
    torch.set_num_threads(1)
    records = len(data.train[1])
    found = pv.selection.select(
        lambda lr, clip: _candidate(data, lr, clip, records),
        data.train,
        space=GRID,
        validation=0.1,
        budget=pv.Budget(EPSILON, default_delta(records)),
        seed=seed,
        n_jobs=1,
    )
    return _right(found.model, data.test)


def without_privacy(data: Data) -> float:
    fitted = LogisticRegression(max_iter=300, C=1.0).fit(*data.train)
    return float(fitted.score(*data.test))


# ---------------------------------------------------------------------- the table


def measured(name: str) -> dict[str, Any]:
    """Return one row of the table."""
    began = time.perf_counter()
    data = DATA[name]()
    pairs = [(lr, clip) for lr in GRID["lr"] for clip in GRID["clip"]]
    with Parallel(n_jobs=2) as run:
        plain = run(delayed(untuned)(data, seed) for seed in SEEDS)
        scores = run(delayed(scored)(data, *pair) for pair in pairs)
        best = pairs[int(np.argmax(scores))]
        free = run(delayed(tuned_for_nothing)(data, *best, seed) for seed in SEEDS)
        paid = run(delayed(tuned_and_paid)(data, seed) for seed in SEEDS)
    row = {
        "data": name,
        "about": data.about,
        "records": len(data.train[1]),
        "features": int(data.train[0].shape[1]),
        "defaults": plain,
        "DP-SGD, tuned for nothing": free,
        "DP-SGD, tuned and paid": paid,
        "best pair": best,
        "without privacy": without_privacy(data),
        "seconds": time.perf_counter() - began,
    }
    print(json.dumps(row), flush=True)
    return row


def page(rows: list[dict[str, Any]]) -> str:
    columns = ("defaults", "DP-SGD, tuned for nothing", "DP-SGD, tuned and paid")
    lines = [
        f"| data | records x features | {' | '.join(columns)} | without privacy |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        figures = [
            f"{statistics.median(row[name]):.4f} ({min(row[name]):.4f} to {max(row[name]):.4f})"
            for name in columns
        ]
        lines.append(
            f"| {row['data']}: {row['about']} | {row['records']:,} x {row['features']:,} | "
            f"{' | '.join(figures)} | {row['without privacy']:.4f} |"
        )
    grid = " and ".join(f"{name} {', '.join(map(str, GRID[name]))}" for name in GRID)
    return f"""# Defaults against tuned DP-SGD

Written by `python -m benchmarks.defaults`. Test accuracy of linear models at epsilon {EPSILON:g},
delta the largest power of ten not above n^-1.1; medians of {len(SEEDS)} seeds, minimum and maximum
in brackets. All have the same batch size and number of epochs. DP-SGD chooses among {grid}: free of
charge, by accuracy without noise on a tenth of the private records, which is not private; or
charged, all runs and scores within the one epsilon (`pv.selection.select`). The vocabularies of the
texts were chosen from the texts themselves, and Adult's bounds and categories come from its test
records.

{chr(10).join(lines)}
"""


def measured_again(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the defaults as they are now."""
    data = DATA[row["data"]]()
    plain = Parallel(n_jobs=2)(delayed(untuned)(data, seed) for seed in SEEDS)
    return row | {"defaults": plain}


def main() -> None:
    if sys.argv[1:] == ["again"]:
        kept = json.loads((RESULTS / "defaults.json").read_text())
        rows = [measured_again(row) for row in kept]
    else:
        rows = [measured(name) for name in sys.argv[1:] or DATA]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "defaults.json").write_text(json.dumps(rows, indent=2) + "\n")
    (RESULTS / "defaults.md").write_text(page(rows))
    print(page(rows))


if __name__ == "__main__":
    main()
