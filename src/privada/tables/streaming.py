"""Tables that are larger than memory: encoded some rows at a time, into a file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from privada.core.errors import ArgumentError, DataError
from privada.tables.encoding import Encoded, encode
from privada.tables.files import Source, as_path
from privada.tables.formats import format_of
from privada.tables.formats.building import no_record
from privada.tables.reading import layout_of
from privada.tables.schema import Schema
from privada.tables.table import Table

# Features that are encoded at a time.
_NUMBERS = 1 << 22


def read_parts(
    path: Source,
    schema: Schema,
    *,
    separator: str | None = None,
    decimal: str | None = None,
) -> Iterator[Table]:
    """Yield a table some rows at a time, so that it need not fit into memory.

    Args:
        path: a file or a folder, as for `read`.
        schema: what the columns are.
        separator, decimal: as for `read`.

    Returns:
        Tables that together are what `read` returns.

    Guarantee: as for `read`. How the rows are parted does not depend on what they encode to.

    Edge cases: NumPy archives, which are arrays in memory, come as one part. An error in a later
    part comes after the parts before it.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import Classes, Number, Schema, read_parts
        >>> _ = Path("people.csv").write_text("age,sick\\n39,no\\n50,yes\\n")
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 100)})
        >>> [part.size for part in read_parts("people.csv", schema)]
        [2]
    """
    place = as_path("path", path)
    form, size = format_of(place), 0
    for part in form.chunks(place, schema, layout_of(schema, separator, decimal)):
        if part.columns and part.size:
            size += part.size
            yield Table.of_columns(part.columns)
    if not size:
        raise DataError(no_record(place))


def encode_file(
    path: Source,
    schema: Schema,
    folder: Source,
    *,
    separator: str | None = None,
    decimal: str | None = None,
) -> Encoded:
    """Return the features and targets of a file, the features in a file of their own.

    The table is read and encoded some rows at a time; dense features are written to a new file
    in `folder` and given as an array in that file (`numpy.memmap`), of which a `Trainer` reads what
    a step needs. So a table that is larger than memory can be trained on.

    Args:
        path: a file or a folder, as for `read`.
        schema: what the columns are, complete with its bounds.
        folder: where the features are written: it is made if need be. They are private, readable
            by this user alone, and stay until you delete them.
        separator, decimal: as for `read`.

    Returns:
        What `encode(read(path, schema), schema)` returns, bit for bit.

    Guarantee: as for `encode`.

    Edge cases: targets, identifiers of persons and sparse features, which words have, are kept in
    memory. A file that was begun is removed if an error ends it.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import Classes, Number, Schema, encode_file
        >>> _ = Path("people.csv").write_text("age,sick\\n25,no\\n50,yes\\n")
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 100)})
        >>> encoded = encode_file("people.csv", schema, "features")
        >>> encoded.inputs.tolist(), encoded.targets.tolist()
        ([[-0.5], [0.0]], [0, 1])
    """
    parts = _encoded_parts(path, schema, separator, decimal)
    if schema.sparse:
        found = list(parts)
        inputs: Any = scipy.sparse.vstack([part.inputs for part in found], format="csr")
    else:
        place = as_path("folder", folder)
        inputs, found = _written(place, parts, len(schema.features))
    targets = np.concatenate([part.targets for part in found])
    groups = None
    if schema.person is not None:
        groups = np.concatenate([np.asarray(part.groups, object) for part in found])
    return Encoded(inputs, targets, schema.features, groups)


def _encoded_parts(
    path: Source, schema: Schema, separator: str | None, decimal: str | None
) -> Iterator[Encoded]:
    rows = max(1, _NUMBERS // max(1, len(schema.features)))
    for part in read_parts(path, schema, separator=separator, decimal=decimal):
        for start in range(0, part.size, rows):
            yield encode(part.take(slice(start, start + rows)), schema)


def _written(
    folder: Path, parts: Iterator[Encoded], width: int
) -> tuple[NDArray[np.float32], list[Encoded]]:
    """Write features to a new file; return them as an array in it, and the parts without them."""
    found: list[Encoded] = []
    file, size = _new_file(folder), 0
    try:
        with file.open("wb") as out:
            for part in parts:
                out.write(np.ascontiguousarray(part.inputs).data)
                size += part.inputs.shape[0]
                found.append(Encoded(None, part.targets, part.names, part.groups))
        if size:
            return np.memmap(file, np.float32, "r", shape=(size, width)), found
        return np.empty((0, width), np.float32), found
    except OSError as error:
        reason = error.strerror
        file.unlink(missing_ok=True)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    raise ArgumentError(
        f"Cannot write features to {str(folder)!r}: {reason}. Make room, or give another folder."
    )


def _new_file(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"features-{os.urandom(4).hex()}.float32"
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise ArgumentError(
            f"Cannot write features to {str(folder)!r}: {error.strerror}. Give a folder that can "
            "be written."
        ) from None
    return file
