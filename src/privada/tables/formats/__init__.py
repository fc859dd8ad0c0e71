"""File formats: to add one, write a file with `read` and `types` here and list it in FORMATS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from privada.core.errors import DataError
from privada.tables.files import ending
from privada.tables.formats import delimited, json_lines, numpy_archive, parquet, text
from privada.tables.formats.building import Columns, Types

if TYPE_CHECKING:
    from privada.tables.schema import Schema


@dataclass(frozen=True)
class Format:
    """How a table is read from a file.

    Args:
        read: returns the columns that a schema uses, or all. It infers nothing from values.
        types: returns the type of each column, from what the file declares or its first record.
        compressed: whether the file may be compressed as a whole.
        has_header: whether the names of the columns are the file's, and not those of records.
    """

    read: Callable[[Path, "Schema | None"], Columns]
    types: Callable[[Path], Types]
    compressed: bool = True
    has_header: bool = True


_DELIMITED = Format(delimited.read, delimited.types)
_JSON = Format(json_lines.read, json_lines.types, has_header=False)

# By what a file's name ends with.
FORMATS: dict[str, Format] = {
    ".csv": _DELIMITED,
    ".tsv": _DELIMITED,
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".txt": Format(text.read_lines, text.types_of_lines),
    ".npz": Format(numpy_archive.read, numpy_archive.types, compressed=False),
    ".parquet": Format(parquet.read, parquet.types, compressed=False),
}
_FOLDER = Format(text.read_folder, text.types_of_folder)


def format_of(path: Path) -> Format:
    """Return the format of a file by its name, or that of a folder."""
    if path.is_dir():
        return _FOLDER
    found = FORMATS.get(ending(path))
    if found is None or not (found.compressed or path.suffix.lower() == ending(path)):
        raise DataError(
            f"Expected a file whose name ends in .csv, .tsv, .jsonl, .ndjson or .txt, alone or "
            f"with .gz, .bz2 or .xz, or in .npz or .parquet, or a folder of .txt files, got "
            f"{str(path)!r}."
        )
    return found
