"""Models for other programs: the network as ONNX or a torch program, and what its inputs are."""

import copy
import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from privada import tables
from privada.core.errors import ArgumentError, ModelError
from privada.core.version import __version__
from privada.tables.columns import COLUMN_TYPES
from privada.tables.encoding import word_weights
from privada.workflows.new_file import new_file

if TYPE_CHECKING:
    from privada.workflows.private_model import PrivateModel

ENDINGS = {"onnx": ".onnx", "pt2": ".pt2"}
INPUT = "features"
_FORMAT = 1
# How each kind of column becomes features, for those who build them without Privada.
RULES = {
    "number": "Clip to [low, high]; with scale log, take sign(x) log(1 + |x|) of the value and of "
    "both bounds; map linearly so that low is -1 and high is 1. A missing value is 0, or -1 with "
    "missing = low; with missing = flag it is 0, and 1 in the second feature, else 0. With "
    "bins > 0 so many features follow. Of a mapped value x, let p = (x + 1) / 2 * (bins - 1) and k "
    "the smaller of floor(p) and bins - 2: bin k is 1 - (p - k), bin k + 1 is p - k, the others "
    "are 0. A missing value is 0 in all.",
    "mixed": "A number, in the first feature, as for number; with other text it is 0, and the text "
    "is hashed into the other features as for hashed. A missing value is 0 everywhere.",
    "date": "The seconds since 1970 of the date, read by format or else as ISO 8601, in the time "
    "zone unless it says another; clipped to [low, high] and mapped linearly so that low is -1 and "
    "high is 1. Then for each of parts the sine and cosine of 2 pi x / period, as told in the time "
    "zone: month from 0 of 12, day of the month from 0 of 31, weekday from Monday as 0 of 7, hour "
    "with its minutes of 24. A missing value is 0 everywhere; with missing = flag, and 1 in the "
    "last feature.",
    "category": "1 in the feature of the value, 0 elsewhere. After the values come, if other is "
    "true, one feature for values that are not listed, and one for a missing value.",
    "hashed": "1 in feature h, 0 elsewhere: h is the BLAKE2b hash of 8 bytes of the UTF-8 text, "
    "read as a big-endian number, modulo buckets. A missing value is 0 everywhere.",
    "text": "How often each word occurs; words are the matches of \\w+(?:'\\w+)? in lower case. "
    "The feature of a word is its place in words, or its hash as for hashed where there are "
    "none. With weighting presence a count above 0 is 1; with log it is 1 + log(count); with "
    "tf-idf it is multiplied by weights. With unit_norm the row is divided by its Euclidean norm.",
    "matrix": "Clip to [low, high] and divide by max(|low|, |high|). NaN is 0.",
}


_AS_WRITTEN = "Text is compared as it is written, without space around it."
_CANONICAL = (
    "One value has one text: a number with a point or an exponent, and no needless zero in front, "
    "is the shortest text of its float64, without a point if it is whole and at most 2^53; -0 is "
    "0; True, TRUE, False and FALSE are true and false; a date with a time is ISO 8601 with a T, "
    "and without the time if that is midnight without an offset. All else is as it is written, "
    "without space around it. So are values that are listed."
)


class _Network(nn.Module):
    """A model of features, with a softmax at its end if asked."""

    def __init__(self, model: nn.Module, proba: bool) -> None:
        super().__init__()
        self.model, self.proba = model, proba

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.model(features)
        return torch.softmax(scores, dim=1) if self.proba else scores


def export_model(
    model: "PrivateModel", path: str | os.PathLike[str], *, proba: bool = False
) -> Path:
    """Write the network for other programs, and beside it what its inputs are.

    Its input `features` is float32 with a row for each record and a column for each of
    `feature_names`; the number of rows is free. Its output is `scores`, or `probabilities`. The
    file beside it, of the same name and .json, says how the columns of a table become features, and
    how a score becomes a prediction.

    Args:
        model: what `pv.load` returned.
        path: a new file: .onnx, or .pt2 for a program of torch.export.
        proba: end with a softmax, so that the output is the probability of each class.

    Returns:
        The path.

    Edge cases: ONNX needs the extra "export". A model of one's own that torch cannot export is
    refused. Other endings, files that exist, and probabilities of a model of numbers are refused.

    Example:
        >>> import json
        >>> import torch
        >>> from pathlib import Path
        >>> import privada as pv
        >>> schema = pv.tables.Schema(
        ...     pv.tables.Range("price", 0, 100), {"size": pv.tables.Number(0, 10)}
        ... )
        >>> model = pv.workflows.PrivateModel(torch.nn.Linear(1, 1).eval(), schema, Path())
        >>> place = pv.workflows.export_model(model, "price.pt2")
        >>> torch.export.load(place).module()(torch.zeros(5, 1)).shape
        torch.Size([5, 1])
        >>> json.loads(Path("price.pt2.json").read_text())["columns"]["size"]["high"]
        10
    """
    place = Path(path)
    if place.suffix not in ENDINGS.values():
        raise ArgumentError(
            f"Expected a file that ends in {' or '.join(ENDINGS.values())}, got {str(place)!r}."
        )
    if proba:
        model.check_classifier()
    write = _write_onnx if place.suffix == ENDINGS["onnx"] else _write_program
    description = describe(model, proba=proba)
    words = json.dumps(description, indent=2)
    with new_file(place.with_name(f"{place.name}.json")) as beside, new_file(place) as draft:
        write(_program(model, proba), draft, description["output"], words)
        beside.write_text(words + "\n", encoding="utf-8")
    return place


def describe(model: "PrivateModel", *, proba: bool = False) -> dict[str, Any]:
    """Return as plain values what the features are, and what an exported network gives."""
    schema, target = model.schema, model.schema.target
    columns: dict[str, Any] = {}
    start = 0
    for name, kind in schema.columns.items():
        if name in schema.unused:
            continue
        width = len(schema.features_of(name))
        columns[name] = {**_settings(name, kind, schema), "first": start, "features": width}
        start += width
    classes = isinstance(target, tables.Classes)
    meaning = (
        "one output for each class, in this order; the largest is the prediction"
        if classes
        else "one output in [-1, 1], which is mapped back as rules.number maps it there; beyond "
        "these, the bounds"
    )
    kinds = {column["kind"] for column in columns.values()}
    if not classes:
        kinds.add("number")
    return {
        "format": _FORMAT,
        "privada": __version__,
        "task": schema.task,
        "input": INPUT,
        "output": "probabilities" if proba else "scores",
        "target": {**asdict(target), "meaning": meaning},
        "missing": list(schema.missing),
        "texts": _AS_WRITTEN if schema.version == 1 else _CANONICAL,
        "columns": columns,
        "rules": {kind: words for kind, words in RULES.items() if kind in kinds},
        "features": list(schema.features),
    }


def _settings(name: str, kind: Any, schema: tables.Schema) -> dict[str, Any]:
    """Return the kind of a column with its settings; of text, words in place of files."""
    kinds = {made: word for word, made in COLUMN_TYPES.items()}
    found = {"kind": kinds[type(kind)], **asdict(kind)}
    if isinstance(kind, tables.Text):
        for file in ("vocabulary", "public_text"):
            found.pop(file)
        found["words"] = list(schema.vocabularies[name]) if kind.vocabulary is not None else None
        weights = word_weights(name, kind, schema)
        found["weights"] = None if weights is None else weights.tolist()
    return found


# ---------------------------------------------------------------------- formats


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what torch says about its own parts while it exports."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _program(model: "PrivateModel", proba: bool) -> Any:
    network = _Network(copy.deepcopy(model.model), proba).float().eval()
    rows = torch.export.Dim("rows", min=1)
    example = torch.zeros(2, len(model.feature_names))
    try:
        with _quiet():
            return torch.export.export(network, (example,), dynamic_shapes={INPUT: {0: rows}})
    except Exception as error:
        raise ModelError(
            f"Expected a model that torch.export takes, got one that it refuses: "
            f"{str(error).splitlines()[0]}. Make its forward plain tensor code, for any number of "
            "rows."
        ) from error


def _write_program(program: Any, draft: Path, output: str, words: str) -> None:
    with _quiet():
        torch.export.save(program, draft, extra_files={"privada.json": words})


def _write_onnx(program: Any, draft: Path, output: str, words: str) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise ArgumentError(
            "Expected the packages onnx and onnxscript for a file that ends in .onnx, got none. "
            'Install them: pip install "privada[export]". Or export to .pt2, which needs neither.'
        ) from None
    with _quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[INPUT],
            output_names=[output],
            dynamic_shapes={INPUT: {0: "rows"}},
            verbose=False,
        )
        assert made is not None
        made.model.metadata_props["privada"] = words
        made.save(draft)
