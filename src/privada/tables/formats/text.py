"""Text: a document on each line of a file, or in each file of a folder."""

from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from privada.core.errors import DataError
from privada.tables.files import ending, lines, reading
from privada.tables.formats.building import (
    CHUNK,
    ColumnBuilder,
    Columns,
    Types,
    arrays,
    builders,
    kept_names,
)

if TYPE_CHECKING:
    from privada.tables.schema import Schema


def read_lines(path: Path, schema: "Schema | None") -> Columns:
    """Return a file's lines as the column `text`."""
    kept_names(["text"], schema)
    column = ColumnBuilder("text", False, ())
    with closing(lines(path)) as documents:
        while chunk := list(islice(documents, CHUNK)):
            column.add(chunk)
    return arrays({"text": column}, path)


def types_of_lines(path: Path) -> Types:
    """Return the type of the one column; the file is opened, and its values are not looked at."""
    with closing(lines(path)) as documents:
        next(documents, None)
    return {"text": "words"}


def _documents(path: Path) -> list[Path]:
    """Return the text files of a folder, or of its subfolders, in the order of their names."""
    with reading(path):
        files = [each for each in path.iterdir() if not each.name.startswith(".")]
        inner = [each for folder in files if folder.is_dir() for each in folder.iterdir()]
    found = sorted(each for each in [*files, *inner] if ending(each) == ".txt" and each.is_file())
    if not found:
        raise DataError(
            f"Expected .txt files in the folder {str(path)!r}, or in a subfolder for each class, "
            "got none. Give the folder around the subfolders, or one of the files."
        )
    if len({each.parent == path for each in found}) > 1:
        raise DataError(
            f"Expected the .txt files of {str(path)!r} in the folder itself or in subfolders, got "
            "both. Move those without a class elsewhere."
        )
    return found


def read_folder(path: Path, schema: "Schema | None") -> Columns:
    """Return the documents of a folder, and the names of its subfolders as `label`."""
    found = _documents(path)
    columns: dict[str, Callable[[Path], str]] = {"text": lambda each: "".join(lines(each, path))}
    if found[0].parent != path:
        columns["label"] = lambda each: each.parent.name
    made = map(builders(schema), kept_names(columns, schema))
    return {each.name: _filled(each, map(columns[each.name], found)) for each in made}


def _filled(column: ColumnBuilder, cells: Iterable[str]) -> NDArray[Any]:
    column.add(list(cells))
    return column.array()


def types_of_folder(path: Path) -> Types:
    """Return the types of the columns of a folder of documents."""
    alone = _documents(path)[0].parent == path
    return {"text": "words"} if alone else {"text": "words", "label": "text"}
