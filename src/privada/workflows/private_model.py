"""A model that was trained on a private table, to predict with."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from privada import models, tables
from privada.core.errors import ArgumentError, DataError, ModelError
from privada.workflows import new_rows

if TYPE_CHECKING:
    from privada.accounting import Statement

# Numbers that go into the model at a time.
_NUMBERS = 1 << 22
_STATEMENT, _SCHEMA, _CHECKPOINT = "statement.json", "schema.toml", "checkpoint"


@dataclass(frozen=True, eq=False, repr=False)
class PrivateModel:
    """A model from an output directory of `privada train` or `privada tune`; see `load`.

    Attributes:
        model: the torch module: features in, scores out.
        schema: how rows become features, and scores become predictions.
        path: the directory.
        method: how it was trained, in words.
        trained_on: the name of the file that it was trained on.

    Rows to predict from are the path of a file that `tables.read` takes, a pandas or Polars frame,
    a `tables.Table`, a dict of columns, a dict for one row or a list of such dicts. Columns that
    the model does not use are ignored, the target among them; those that it needs must be there.

    Guarantee: what is predicted follows from the model, which the statement is about, and from the
    row itself. Other rows do not matter. The rows themselves are not protected, and nothing is
    charged for them.

    Edge cases: rows are encoded and predicted in batches. An error names the column and the first
    row that is wrong, and never what is in it.

    Example: see `load`.
    """

    model: nn.Module
    schema: tables.Schema
    path: Path
    method: str | None = None
    trained_on: str | None = None

    def __repr__(self) -> str:
        used = len(new_rows.used_columns(self.schema))
        columns = "one column" if used == 1 else f"{used:,} columns"
        return f"PrivateModel({str(self.path)!r}: {self.schema.target.column!r} from {columns})"

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the probabilities; only a classifier has them."""
        if not isinstance(self.schema.target, tables.Classes):
            raise AttributeError(f"The model predicts {self._numbers}, which has no classes.")
        return np.array(self.schema.target.classes)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features that go into the model."""
        return self.schema.features

    @cached_property
    def statement(self) -> "Statement":
        """What was promised to the people whose rows the model was trained on."""
        from privada.report.statements import statement_of

        path = self.path / _STATEMENT
        try:
            return statement_of(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise ArgumentError(
                f"Cannot read the statement {str(path)!r}: {error} Restore it from a copy."
            ) from None

    @property
    def card(self) -> str:
        """The model card, as Markdown."""
        from privada.report import model_card

        return model_card(self.path)

    def predict(self, rows: Any) -> NDArray[Any]:
        """Return the class of each row, or its number where the target is one."""
        return np.concatenate([self._predicted(scores) for _, scores in self._scores(rows)])

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """Return the probability of each class, in the order of `classes_`, for each row.

        Edge cases: refused where the target is a number.
        """
        self.check_classifier()
        return np.concatenate([_softmax(scores) for _, scores in self._scores(rows)])

    def encode(self, rows: Any) -> NDArray[np.float32]:
        """Return the features of rows, as `model` takes them and an exported model does."""
        found = new_rows.batches(rows, self.schema)
        encoded = (new_rows.encode(table, self.schema, before) for before, table in found)
        return np.concatenate([_dense(each) for each in encoded])

    def export(self, path: str | os.PathLike[str], *, proba: bool = False) -> Path:
        """Write the network as .onnx or .pt2; see `privada.workflows.export_model`."""
        from privada.workflows.export import export_model

        return export_model(self, path, proba=proba)

    def check_classifier(self) -> None:
        """Raise if the model predicts numbers."""
        if not isinstance(self.schema.target, tables.Classes):
            raise ArgumentError(
                f"Expected a model of classes for probabilities, got one that predicts "
                f"{self._numbers}. Use predict."
            )

    @property
    def _numbers(self) -> str:
        return f"the numbers of {self.schema.target.column!r}"

    def outcomes(
        self, rows: Any, keep: tuple[str, ...] = ()
    ) -> Iterator[tuple[tables.Table, NDArray[Any], NDArray[np.float64] | None]]:
        """Yield rows in batches, with predictions, and with probabilities if there are classes.

        Args:
            rows: as above.
            keep: columns that the table is to have besides those that are needed, as texts.
        """
        classes = isinstance(self.schema.target, tables.Classes)
        for table, scores in self._scores(rows, keep):
            yield table, self._predicted(scores), _softmax(scores) if classes else None

    def _predicted(self, scores: NDArray[np.float64]) -> NDArray[Any]:
        target = self.schema.target
        if isinstance(target, tables.Classes):
            classes: NDArray[Any] = np.array(target.classes)[scores.argmax(axis=1)]
            return classes
        return target.restore(scores[:, 0])

    def _scores(
        self, rows: Any, keep: tuple[str, ...] = ()
    ) -> Iterator[tuple[tables.Table, NDArray[np.float64]]]:
        size = max(1, _NUMBERS // len(self.schema.features))
        for before, table in new_rows.batches(rows, self.schema, keep):
            needed = {name: table.columns[name] for name in new_rows.used_columns(self.schema)}
            plain = tables.Table.of_columns(needed, has_header=table.has_header)
            inputs = new_rows.encode(plain, self.schema, before)
            parts = [
                _run(self.model, _dense(inputs[start : start + size]))
                for start in range(0, table.size, size)
            ]
            yield table, np.concatenate(parts)


def load(folder: str | os.PathLike[str], *, trust: str | None = None) -> PrivateModel:
    """Return the model in an output directory of `privada train` or `privada tune`.

    Args:
        folder: the directory, of this version or an earlier one.
        trust: for a model of your own, its "module:factory": this module is imported and the
            function is called. No other code is run, whatever the directory says.

    Returns:
        The model, which predicts from files, frames and plain values.

    Edge cases: a run that has not ended, files that are damaged or of a newer version, weights that
    do not fit or are not finite, and a schema that does not fit the model are refused.

    Example:
        >>> from pathlib import Path
        >>> import privada as pv
        >>> rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(600)]
        >>> _ = Path("patients.csv").write_text("age,sick\\n" + "\\n".join(rows))
        >>> options = pv.workflows.TrainOptions(
        ...     epsilon=3.0, target="sick", classes=("no", "yes"), epochs=10, seed=0
        ... )
        >>> _ = pv.workflows.train_table("patients.csv", options)
        >>> model = pv.load("patients-private")
        >>> model.predict({"age": [21, 79], "name": ["Ada", "Bo"]}).tolist()
        ['no', 'yes']
        >>> model.predict_proba({"age": 79}).shape
        (1, 2)
    """
    place = Path(folder)
    if not place.is_dir():
        raise ArgumentError(
            f"Expected the output directory of a run, got {str(place)!r}, which is "
            f"{'a file' if place.exists() else 'not there'}."
        )
    if (place / _CHECKPOINT).exists() and not (place / "model.json").exists():
        raise ArgumentError(
            f"Expected a run that has ended in {str(place)!r}, got a stopped one. Go on with "
            "privada train --resume."
        )
    model, facts = models.load(place, trust)
    schema = _schema(place)
    _check_facts(place, facts, schema)
    _check_model(place, model, schema)
    method = facts.get("method")
    return PrivateModel(
        model, schema, place, method if isinstance(method, str) else None, _trained_on(place)
    )


def _trained_on(place: Path) -> str | None:
    """Return the name of the private table, None where that was not kept."""
    try:
        return str(json.loads((place / "config.json").read_text(encoding="utf-8"))["table"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _schema(place: Path) -> tables.Schema:
    path = place / _SCHEMA
    if not path.is_file():
        raise _unfit(place, f"it has no file {_SCHEMA}")
    try:
        schema = tables.Schema.read(path, version=1)  # which did not say so
    except DataError as error:  # of a vocabulary
        raise _unfit(place, f"a file that {_SCHEMA} names cannot be read. {error}") from None
    if schema.pending:
        raise _unfit(place, f"{_SCHEMA} has bounds that were not estimated")
    return schema


def _check_facts(place: Path, facts: dict[str, Any], schema: tables.Schema) -> None:
    """Raise unless the model was trained on features as the schema makes them."""
    target = schema.target
    expected = {
        "task": schema.task,
        "classes": list(target.classes) if isinstance(target, tables.Classes) else None,
        "features": list(schema.features),
    }
    for name, value in expected.items():
        if facts.get(name) != value:
            raise _unfit(place, f"the {name} in model.json and {_SCHEMA} differ")


def _check_model(place: Path, model: nn.Module, schema: tables.Schema) -> None:
    """Raise unless the model makes of features as many scores as the target needs."""
    target = schema.target
    outputs = len(target.classes) if isinstance(target, tables.Classes) else 1
    try:
        found = _run(model, np.zeros((2, len(schema.features)), np.float32)).shape
    except Exception as error:
        raise _unfit(place, f"the model fails on its features: {error}") from None
    if found != (2, outputs):
        raise _unfit(place, f"the model gives {found[1:]} scores for a row, and not {outputs}")


def _unfit(place: Path, why: str) -> ArgumentError:
    return ArgumentError(
        f"Cannot use the model in {str(place)!r}: {why}. Restore the directory from a copy, or "
        "train again."
    )


def _run(model: nn.Module, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
    first = next(model.parameters(), torch.empty(0))
    with torch.inference_mode():
        scores = model(torch.from_numpy(inputs).to(first.device, first.dtype))
    found: NDArray[np.float64] = scores.double().cpu().numpy()
    if not np.isfinite(found).all():
        raise ModelError(
            "Expected finite scores of the model, got others. Its weights are too large."
        )
    return found


def _dense(inputs: Any) -> NDArray[np.float32]:
    dense: NDArray[np.float32] = inputs if isinstance(inputs, np.ndarray) else inputs.toarray()
    return np.ascontiguousarray(dense)


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares
