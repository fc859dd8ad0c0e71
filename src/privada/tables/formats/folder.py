"""Folders: documents, or tables of one format with the same columns, one after the other."""

from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privada.core.errors import DataError
from privada.tables.files import ending, reading
from privada.tables.formats import text
from privada.tables.formats.building import Layout, Part, Types

if TYPE_CHECKING:
    from privada.tables.schema import Schema


def _tables_in(path: Path, known: Callable[[str], bool]) -> list[Path]:
    """Return the tables of a folder in the order of their names, none if it holds documents."""
    with reading(path):
        files = sorted(
            each for each in path.iterdir() if each.is_file() and not each.name.startswith(".")
        )
    found = [each for each in files if ending(each) != ".txt" and known(ending(each))]
    if len({ending(each) for each in found}) > 1 or (found and len(found) < len(files)):
        raise DataError(
            f"Expected the folder {str(path)!r} to have tables of one format and nothing else, got "
            "several formats, or other files beside them. Move the others elsewhere."
        )
    return found


def chunks(
    path: Path, schema: "Schema | None", layout: Layout, formats: dict[str, Any]
) -> Generator[Part, None, None]:
    """Yield the columns of the tables in a folder, or of its documents."""
    found = _tables_in(path, formats.__contains__)
    if not found:
        yield from text.chunks_of_folder(path, schema, layout)
        return
    first: set[str] | None = None
    for each in found:
        form = formats[ending(each)]
        for part in form.chunks(each, schema, layout):
            names = {*part.columns}
            first = names if first is None else first
            if form.has_header and names != first:
                raise DataError(
                    f"Expected the tables in {str(path)!r} to have the same columns, got others "
                    "in some. Give them the same header."
                )
            yield part


def types(path: Path, layout: Layout, formats: dict[str, Any]) -> Types:
    """Return the types of the first table of a folder, or of its documents."""
    found = _tables_in(path, formats.__contains__)
    if not found:
        return text.types_of_folder(path, layout)
    made: Types = formats[ending(found[0])].types(found[0], layout)
    return made


def folder_of(formats: dict[str, Any]) -> tuple[Any, Any]:
    """Return what reads folders of files in some formats."""
    return partial(chunks, formats=formats), partial(types, formats=formats)
