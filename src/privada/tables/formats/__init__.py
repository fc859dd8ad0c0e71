"""File formats: to add one, write a file with `chunks` and `types` here and list it in FORMATS."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from privada.core.errors import DataError
from privada.tables.files import ending
from privada.tables.formats import arrow_files, delimited, excel, json_lines, numpy_archive, text
from privada.tables.formats.building import Layout, Part, Types
from privada.tables.formats.folder import folder_of

if TYPE_CHECKING:
    from privada.tables.schema import Schema


@dataclass(frozen=True)
class Format:
    """How a table is read from a file.

    Args:
        chunks: yields the columns that a schema uses, or all, of some rows at a time. It infers
            nothing from values.
        types: returns the type of each column, from what the file declares or its first record.
        compressed: whether the file may be compressed as a whole.
        has_header: whether the names of the columns are the file's, and not those of records.
    """

    chunks: Callable[[Path, "Schema | None", Layout], Generator[Part, None, None]]
    types: Callable[[Path, Layout], Types]
    compressed: bool = True
    has_header: bool = True


_DELIMITED = Format(delimited.chunks, delimited.types)
_JSON = Format(json_lines.chunks, json_lines.types, has_header=False)
_ARROW = Format(arrow_files.ARROW.chunks, arrow_files.ARROW.types, compressed=False)

# By what a file's name ends with.
FORMATS: dict[str, Format] = {
    ".csv": _DELIMITED,
    ".tsv": _DELIMITED,
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".txt": Format(text.chunks_of_lines, text.types_of_lines),
    ".npz": Format(numpy_archive.chunks, numpy_archive.types, compressed=False),
    ".parquet": Format(arrow_files.PARQUET.chunks, arrow_files.PARQUET.types, compressed=False),
    ".feather": _ARROW,
    ".arrow": _ARROW,
    ".xlsx": Format(excel.chunks, excel.types, compressed=False),
}
_FOLDER = Format(*folder_of(FORMATS))


# What to do with files that are not read.
_ADVICE = {
    ".zip": " Unpack it first.",
    ".xls": " Save it as .xlsx.",
    ".json": " Write an object on each line, and call it .jsonl.",
}


def format_of(path: Path) -> Format:
    """Return the format of a file by its name, or that of a folder."""
    if path.is_dir():
        return _FOLDER
    found = FORMATS.get(ending(path))
    if found is None or not (found.compressed or path.suffix.lower() == ending(path)):
        advice = _ADVICE.get(path.suffix.lower(), "")
        raise DataError(
            f"Expected a file whose name ends in .csv, .tsv, .jsonl, .ndjson or .txt, alone or "
            f"with .gz, .bz2, .xz or .zst, or in .parquet, .feather, .arrow, .xlsx or .npz, or a "
            f"folder of such files or of .txt files, got {str(path)!r}.{advice}"
        )
    return found
