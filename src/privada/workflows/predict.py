"""Predictions written to a file, and scores on rows that are public."""

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from privada import tables
from privada.core.errors import ArgumentError, DataError
from privada.workflows.new_file import new_file
from privada.workflows.private_model import PrivateModel

PREDICTION = "prediction"
_DIGITS = 9  # as many as a float32 has


Scores = dict[str, dict[str, float]]


def write_predictions(
    model: PrivateModel,
    rows: Any,
    output: str | os.PathLike[str] | IO[str],
    *,
    proba: bool = False,
    columns: Sequence[str] = (),
) -> int:
    """Write the prediction of each row as CSV, and return the number of rows.

    This is what `privada predict` does.

    Args:
        model: what `pv.load` returned.
        rows: what `PrivateModel.predict` takes.
        output: a new file, or one that is open for writing text.
        proba: write the probability of each class too.
        columns: columns of the rows to write in front, such as identifiers.

    Returns:
        The number of rows.

    Edge cases: a file is written whole or not at all, and one that exists is left as it is. Rows
    are read, predicted and written in batches.

    Example:
        >>> import io
        >>> import torch
        >>> from pathlib import Path
        >>> import privada as pv
        >>> schema = pv.tables.Schema(
        ...     pv.tables.Range("price", 0, 100), {"size": pv.tables.Number(0, 10)}
        ... )
        >>> model = pv.workflows.PrivateModel(torch.nn.Identity(), schema, Path())
        >>> file = io.StringIO()
        >>> rows = {"id": ["a", "b"], "size": [5, 10]}
        >>> pv.workflows.write_predictions(model, rows, file, columns=["id"])
        2
        >>> file.getvalue().split()
        ['id,prediction', 'a,50', 'b,100']
    """
    if not isinstance(output, (str, os.PathLike)):
        return _write(model, rows, output, proba, columns)
    with new_file(Path(output)) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        return _write(model, rows, file, proba, columns)


def _write(
    model: PrivateModel, rows: Any, file: IO[str], proba: bool, columns: Sequence[str]
) -> int:
    writer, count = csv.writer(file, lineterminator="\n"), 0
    for count, record in enumerate(predictions(model, rows, proba=proba, columns=columns), 1):
        if count == 1:
            writer.writerow(record)
        writer.writerow(record.values())
    return count


def predictions(
    model: PrivateModel, rows: Any, *, proba: bool = False, columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield for each row the columns to keep, the prediction and, if asked, the probabilities."""
    if proba:
        model.check_classifier()
    classes = list(model.classes_) if proba else []
    added = [PREDICTION, *(f"probability_{each}" for each in classes)]
    taken = [name for name in columns if name in added or columns.count(name) > 1]
    if taken:
        raise ArgumentError(
            f"Expected columns to keep that are named once and are none of {', '.join(added)}, "
            f"got {taken[0]!r}."
        )
    for table, found, probabilities in model.outcomes(rows, tuple(columns)):
        kept = [table.texts(name) for name in columns]
        for row, value in enumerate(found.tolist()):
            record = dict(zip(columns, (texts[row] for texts in kept), strict=True))
            record[PREDICTION] = _rounded(value)
            if proba and probabilities is not None:
                values = map(_rounded, probabilities[row].tolist())
                record.update(zip(added[1:], values, strict=True))
            yield record


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


# ---------------------------------------------------------------------- scores


def score(model: PrivateModel, rows: Any, *, public: bool = False) -> Scores:
    """Return how a model does on rows that have the target: value and baseline, by metric.

    For classes these are the accuracy and, where there are two, the area under the ROC curve; for
    numbers, the coefficient of determination R^2 and the root mean squared error. The baseline is
    the most common class of these rows, or their mean.

    Args:
        model: what `pv.load` returned.
        rows: what `PrivateModel.predict` takes, with the target's column.
        public: declares that the rows are public, or not protected by any promise. A score is a
            look at the rows, is exact, and is not charged.

    Guarantee: none for the rows that are scored. On rows that are protected a score has to be
    charged, as `privada tune` does.

    Edge cases: refused without `public`, and for a file that has the name of the private table
    that the model was trained on. A row of a class that the model does not know counts as wrong.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> import privada as pv
        >>> schema = pv.tables.Schema(
        ...     pv.tables.Range("price", 0, 100), {"size": pv.tables.Number(0, 10)}
        ... )
        >>> model = pv.workflows.PrivateModel(torch.nn.Identity(), schema, Path())
        >>> rows = {"size": [2, 4, 9], "price": [20, 50, 80]}
        >>> found = pv.workflows.score(model, rows, public=True)["R^2"]
        >>> round(found["value"], 3), found["baseline"]
        (0.889, 0.0)
    """
    if public is not True:
        raise ArgumentError(
            "Expected rows that are declared public for a score, got no declaration. A score is an "
            "exact look at the rows that nothing is charged for: declare public=True, or --public "
            "on the command line, if the rows are public or not protected. Never do so for rows "
            "that the model was trained on."
        )
    _refuse_private_table(model, rows)
    target = model.schema.target
    outcomes = [
        (table, found, chances) for table, found, chances in model.outcomes(rows, (target.column,))
    ]
    predicted = np.concatenate([found for _, found, _ in outcomes])
    if isinstance(target, tables.Range):
        parts = [model.schema.numbers(table, target.column) for table, _, _ in outcomes]
        return _scores_of_numbers(np.concatenate(parts), predicted, target.column)
    names = {model.schema.text(name): name for name in target.classes}
    cells = [cell for table, _, _ in outcomes for cell in table.texts(target.column)]
    texts = [model.schema.text(cell) for cell in cells]
    if any(text in model.schema.absent for text in texts):
        raise _no_target(target.column)
    truth = np.array([names.get(text, text) for text in texts], dtype=object)
    chances = [each for _, _, each in outcomes if each is not None]
    return _scores_of_classes(truth, predicted, np.concatenate(chances), tuple(target.classes))


def _refuse_private_table(model: PrivateModel, rows: Any) -> None:
    """Raise for a file that is called as the private table was."""
    if isinstance(rows, (str, os.PathLike)) and Path(rows).name == model.trained_on:
        raise ArgumentError(
            f"Expected public rows for a score, got {str(rows)!r}, which is called as the private "
            "table is that the model was trained on. Its exact score would reveal private rows. "
            "If it is another table, give it another name."
        )


def _no_target(column: str) -> DataError:
    return DataError(
        f"Expected a target in every row of column {column!r} for a score, got a missing one. "
        "Remove rows without one."
    )


def _scores_of_classes(
    truth: Any, predicted: Any, chances: Any, classes: tuple[str, ...]
) -> Scores:
    _, counts = np.unique(truth.astype(str), return_counts=True)
    right = float(np.mean(truth.astype(str) == predicted))
    found = {"accuracy": _beside(right, float(counts.max() / len(truth)))}
    if len(classes) == 2 and set(truth) == set(classes):
        area = _area(truth == classes[1], chances[:, 1])
        found["area under the ROC curve"] = _beside(area, 0.5)
    return found


def _area(second: Any, chances: Any) -> float:
    """Return the share of pairs of both classes that are in the right order, ties by half."""
    _, places, ties = np.unique(chances, return_inverse=True, return_counts=True)
    ranks, count = (np.cumsum(ties) - (ties - 1) / 2)[places], int(second.sum())
    above = float(ranks[second].sum()) - count * (count + 1) / 2
    return above / (count * (len(second) - count))


def _scores_of_numbers(truth: Any, predicted: Any, column: str) -> Scores:
    if np.isnan(truth).any():
        raise _no_target(column)
    error = float(np.mean((truth - predicted) ** 2))
    spread = float(np.var(truth))
    found = {"R^2": _beside(1 - error / spread, 0.0)} if spread > 0 else {}
    return found | {"root mean squared error": _beside(error**0.5, spread**0.5)}


def _beside(value: float, baseline: float) -> dict[str, float]:
    return {"value": value, "baseline": baseline}
