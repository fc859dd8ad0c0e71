"""Which entries of a record are sequences whose type does not say how long they are."""

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Subset

from privada.core.structure import target_of


def without_length(dataset: Any, record: Any) -> list[str]:
    """Return the names of entries of a row that are sequences of no declared length.

    They follow from the types alone, which are public: those that a Hugging Face data set declares
    for its columns, or Python's lists, where nothing is declared.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if target_of(record) is None:
        return []
    declared = _declared(dataset)
    return [
        str(name)
        for name, value in record.items()
        if (_varies(declared[name]) if name in declared else isinstance(value, list))
    ]


def _declared(dataset: Any) -> Mapping[str, Any]:
    """Return the types of columns, where rows are as they say."""
    found = getattr(dataset, "features", None)
    style = getattr(dataset, "format", None)
    custom = isinstance(style, Mapping) and style.get("type") == "custom"
    return found if isinstance(found, Mapping) and not custom else {}


def _varies(kind: Any) -> bool:
    """Return whether values of a type may have several lengths."""
    if isinstance(kind, Mapping):
        return any(_varies(each) for each in kind.values())
    if isinstance(kind, (list, tuple)):
        return True
    shape = getattr(kind, "shape", None)
    if isinstance(shape, (list, tuple)):
        return None in shape
    inner = getattr(kind, "feature", None)
    if inner is None:  # a number, a class, a text or an image
        return False
    length = getattr(kind, "length", -1)
    return not isinstance(length, int) or length < 0 or _varies(inner)
