"""NumPy archives: arrays of one length, of which some may be the parts of a sparse matrix."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from privada.core.errors import DataError
from privada.tables.formats.building import Layout, Part, Types, kept_names, part_of, undamaged
from privada.tables.table import as_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema

_CSR_PARTS = ("data", "indices", "indptr", "shape")
_CSR_NOTES = ("format", "_is_array")  # which SciPy adds


@contextmanager
def _archive(path: Path) -> Iterator[dict[str, Callable[[], Any]]]:
    """Open an archive: give what loads each of its columns."""
    with (
        undamaged(path, "an archive of NumPy arrays, without Python objects"),
        path.open("rb") as file,
    ):
        archive: Any = np.load(file, allow_pickle=False)
        yield _loaders({name: partial(archive.__getitem__, name) for name in archive.files})


def _loaders(arrays: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Put the parts of sparse matrices together."""
    prefixes = [name.removesuffix("indptr") for name in arrays if name.endswith("indptr")]
    whole = [p for p in prefixes if all(p + part in arrays for part in _CSR_PARTS)]
    taken = {prefix + part for prefix in whole for part in (*_CSR_PARTS, *_CSR_NOTES)}
    plain = {name: load for name, load in arrays.items() if name not in taken}
    return plain | {p.rstrip("_.") or "data": partial(_load_sparse, arrays, p) for p in whole}


def _load_sparse(arrays: dict[str, Callable[[], Any]], prefix: str) -> Any:
    data, indices, starts, shape = (arrays[prefix + part]() for part in _CSR_PARTS)
    try:
        matrix: Any = scipy.sparse.csr_array(
            (data, indices.astype(np.int64), starts.astype(np.int64)), shape=tuple(shape)
        )
        matrix.check_format()
    except (ValueError, TypeError, AttributeError):
        raise DataError(
            f"Expected the arrays {prefix}data, {prefix}indices, {prefix}indptr and {prefix}shape "
            "to be a sparse matrix in CSR form, got parts that do not fit together."
        ) from None
    return matrix


def chunks(path: Path, schema: "Schema | None", layout: Layout) -> Generator[Part, None, None]:
    """Yield the arrays of an archive, all rows at once."""
    with _archive(path) as columns:
        found = {name: as_column(name, columns[name]()) for name in kept_names(columns, schema)}
    if found:
        yield part_of(found)


def types(path: Path, layout: Layout) -> Types:
    """Return the types of the arrays, and the widths of matrices."""
    with _archive(path) as columns:
        return {name: _array_type(load()) for name, load in columns.items()}


def _array_type(array: Any) -> str | int:
    if array.ndim == 2:
        return int(array.shape[1])
    return "number" if array.dtype.kind in "iuf" else "text"
