"""Text: a document on each line of a file, or in each file of a folder."""

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from privada.core.errors import DataError
from privada.tables.files import ending, lines, reading
from privada.tables.formats.building import Layout, Part, Types, kept_names, part_of
from privada.tables.text_column import text_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema

# Documents that are read at a time.
_DOCUMENTS = 1 << 14


def chunks_of_lines(
    path: Path, schema: "Schema | None", layout: Layout
) -> Generator[Part, None, None]:
    """Yield a file's lines as the column `text`, some at a time."""
    kept_names(["text"], schema)
    with closing(lines(path)) as documents:
        while chunk := list(islice(documents, _DOCUMENTS)):
            yield part_of({"text": text_column(chunk)})


def types_of_lines(path: Path, layout: Layout) -> Types:
    """Return the type of the one column; the file is opened, and its values are not looked at."""
    with closing(lines(path)) as documents:
        next(documents, None)
    return {"text": "words"}


def documents_in(path: Path) -> list[Path]:
    """Return the text files of a folder, or of its subfolders, in the order of their names."""
    with reading(path):
        files = [each for each in path.iterdir() if not each.name.startswith(".")]
        inner = [each for folder in files if folder.is_dir() for each in folder.iterdir()]
    found = sorted(each for each in [*files, *inner] if ending(each) == ".txt" and each.is_file())
    if not found:
        raise DataError(
            f"Expected .txt files in the folder {str(path)!r}, or in a subfolder for each class, "
            "or tables of one format, got none. Give the folder around the subfolders, or one of "
            "the files."
        )
    if len({each.parent == path for each in found}) > 1:
        raise DataError(
            f"Expected the .txt files of {str(path)!r} in the folder itself or in subfolders, got "
            "both. Move those without a class elsewhere."
        )
    return found


def chunks_of_folder(
    path: Path, schema: "Schema | None", layout: Layout
) -> Generator[Part, None, None]:
    """Yield the documents of a folder, and the names of its subfolders as `label`."""
    found = documents_in(path)
    columns: dict[str, Callable[[Path], str]] = {"text": lambda each: "".join(lines(each, path))}
    if found[0].parent != path:
        columns["label"] = lambda each: each.parent.name
    kept = kept_names(columns, schema)
    rest = iter(found)
    while chunk := list(islice(rest, _DOCUMENTS)):
        yield part_of({name: text_column(list(map(columns[name], chunk))) for name in kept})


def types_of_folder(path: Path, layout: Layout) -> Types:
    """Return the types of the columns of a folder of documents."""
    alone = documents_in(path)[0].parent == path
    return {"text": "words"} if alone else {"text": "words", "label": "text"}
