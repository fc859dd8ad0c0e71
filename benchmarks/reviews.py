"""Film reviews with the settings that nobody tuned: words, and directions of public reviews.

    PRIVADA_DATA=folder python -m benchmarks.reviews

IMDB, 25,000 private reviews and 25,000 others, whose 10,000 words are the columns. The public texts
are 10,000 reviews without labels. Linear models, `PrivateClassifier(epsilon, features=...)`.
"""

import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.linear_model import LogisticRegression

import privada as pv
from benchmarks.defaults import imdb

SEEDS = (0, 1, 2)
EPSILONS = (1.0, 3.0)
RESULTS = Path(__file__).parent / "results"


def public_counts() -> Any:
    """Return the words of reviews without labels."""
    with np.load(Path(os.environ["PRIVADA_DATA"]) / "imdb_unsup10k.npz") as held:
        starts = held["unsup_indptr"].astype(np.int64)
        columns = held["unsup_indices"].astype(np.int64)
        parts = (held["unsup_data"].astype(np.float32), columns, starts)
    return scipy.sparse.csr_matrix(parts, shape=(len(starts) - 1, 10_000))


def main() -> None:
    torch.set_num_threads(1)
    data = imdb()
    (x, y), (x_test, y_test) = data.train, data.test
    directions = pv.features.LatentSemantics(public_counts())
    lines = ["| features | epsilon | accuracy |", "|---|---:|---:|"]
    for name, features in (("words", None), ("directions of public reviews", directions)):
        for epsilon in EPSILONS:
            found = []
            for seed in SEEDS:
                model = pv.PrivateClassifier(epsilon, features=features, seed=seed).fit(x, y)
                found.append(float(model.score(x_test, y_test)))
                print(name, epsilon, seed, found[-1], flush=True)
            figure = f"{statistics.median(found):.4f} ({min(found):.4f} to {max(found):.4f})"
            lines.append(f"| {name} | {epsilon:g} | {figure} |")
    with torch.no_grad():
        kept = [
            directions(torch.from_numpy(rows.toarray())).numpy()
            for rows in (x, x_test)
        ]  # fmt: skip
    for name, rows in (("words", (x, x_test)), ("directions of public reviews", kept)):
        plain = LogisticRegression(max_iter=300).fit(rows[0], y)
        lines.append(f"| {name} | none | {plain.score(rows[1], y_test):.4f} |")
    text = f"""# Film reviews, with settings that nobody tuned

Written by `python -m benchmarks.reviews`. IMDB, linear models, test accuracy; delta 1e-5; medians
of {len(SEEDS)} seeds, minimum and maximum in brackets. Words are present or not, in rows of norm 1.
The directions are 300, of 10,000 reviews without labels. Without privacy: logistic regression.

{chr(10).join(lines)}
"""
    (RESULTS / "reviews.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
