"""CSV and TSV files: a header with the names of the columns, and rows of one width.

PyArrow parses what is plainly written. It takes more than it should, such as a quotation mark that
is never closed; so each block is checked first, and one that is not plain is left to Python's csv
module, whose strict rules are what counts.
"""

import csv
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from privada.core.errors import DataError
from privada.tables.files import decoded_line, ending, opened, reading, refuse_nul
from privada.tables.formats.building import (
    BLOCK,
    SEPARATORS,
    Columns,
    Layout,
    Part,
    Types,
    cell_type,
    is_number,
    kept_names,
    missing_texts,
    no_record,
    number_names,
    part_of,
)
from privada.tables.text_column import compact, engine, parser, text_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema

# Rows that Python's csv module parses at a time.
_ROWS = 1 << 14
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


def separator_of(header: str, path: Path, layout: Layout) -> str:
    """Return what separates cells, by the header alone: what it has most of outside quotes."""
    if layout.separator is not None:
        return layout.separator
    if ending(path) == ".tsv":
        return "\t"
    outside = "".join(header.split('"')[::2])
    return max(SEPARATORS, key=outside.count)


class _Delimited:
    """A file that is open: its header has been read, and its rows follow."""

    def __init__(self, file: IO[bytes], path: Path, layout: Layout) -> None:
        self._file, self._path = file, path
        first = decoded_line(file.readline(), path, first=True)
        self._separator = separator_of(first, path, layout)
        self.mark = layout.mark(self._separator)
        self.names = self._checked_header(
            next(self._records(self._lines(filter(None, [first]))), None)
        )

    def _lines(self, held: Iterable[str]) -> Iterator[str]:
        """Yield lines that were read before, and the file's."""
        yield from held
        for line in iter(self._file.readline, b""):
            yield decoded_line(line, self._path)

    def _records(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """Yield rows as the csv module parses them; an empty line is an empty row."""
        found = csv.reader(lines, delimiter=self._separator, strict=True, skipinitialspace=True)
        try:
            yield from found
        except csv.Error:
            pass
        else:
            return
        raise DataError(
            f"Expected cells and quotation marks as CSV has them in {str(self._path)!r}, got "
            "something else. Check that quotation marks are closed, and doubled within a cell, "
            f"and that no cell has more than {csv.field_size_limit():,} characters."
        )

    def _checked_header(self, header: list[str] | None) -> list[str]:
        path = self._path
        if not header:
            raise DataError(
                f"Expected a header with the names of the columns in {str(path)!r}, got "
                f"{'an empty file' if header is None else 'an empty line'}."
            )
        names = [name.strip() for name in header]
        if len(names) == 1 and any(
            each in names[0] for each in SEPARATORS[1:] if each != self._separator
        ):
            raise DataError(
                f"Expected columns separated by {self._separator!r} in {str(path)!r}, got one "
                "column with another separator in its name. Give the one that the file has: "
                "--separator, or separator in [options] of the schema."
            )
        if all(is_number(name, self.mark) for name in names):
            raise DataError(
                f"Expected a header with the names of the columns in {str(path)!r}, got only "
                "numbers in the first line. Put a line with the names above."
            )
        for number, name in enumerate(names, 1):
            if not name:
                raise DataError(
                    f"Expected a name for each column of {str(path)!r}, got none for column "
                    f"{number}."
                )
            if name in names[: number - 1]:
                raise DataError(
                    f"Expected different names for the columns of {str(path)!r}, got {name!r} for "
                    f"columns {names.index(name) + 1} and {number}. Rename one."
                )
        return names

    def first(self) -> list[str] | None:
        """Return the first record."""
        return next(self._rows(self._lines(())), None)

    def _rows(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """Yield rows, all of one width."""
        for row in self._records(lines):
            if len(row) == len(self.names):
                yield row
            elif row:
                raise DataError(self._other_width())

    def _other_width(self) -> str:
        return (
            f"Expected {len(self.names)} cells in each line of {str(self._path)!r}, as in the "
            "header, got another number. Quote cells that contain separators."
        )

    def tables(self, kept: list[str]) -> Iterator[dict[str, Any]]:
        """Yield the cells of some columns, a block of rows at a time."""
        held = b""
        while block := self._file.read(BLOCK):
            held += block
            end = _last_record(held)
            if end == 0 and len(held) < 4 * BLOCK:
                continue
            whole, rest = held[:end], held[end:]
            if end == 0 or not self._plain(whole):
                yield from self._one_by_one(kept, held)
                return
            yield from self._parsed(whole, kept)
            held = rest
        if held and self._plain(held):
            yield from self._parsed(held, kept)
        else:
            yield from self._one_by_one(kept, held)

    def _plain(self, block: bytes) -> bool:
        """Return whether PyArrow and the csv module read the same in a block."""
        refuse_nul(block, self._path)
        decoded_line(block, self._path)
        if block.count(b"\r") != block.count(b"\r\n"):
            return False
        codes = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(codes == _NEWLINE)
        longest = np.diff(ends, prepend=-1, append=codes.size).max()
        return bool(longest < csv.field_size_limit()) and self._quoted_plainly(codes)

    def _quoted_plainly(self, codes: Any) -> bool:
        """Return whether quotation marks are around whole cells, or doubled within these."""
        quotes = np.flatnonzero(codes == _QUOTE)
        if not quotes.size:
            return True
        if quotes.size % 2:
            return False
        ends = np.zeros(256, dtype=bool)
        ends[[ord(self._separator), _NEWLINE, _QUOTE]] = True
        opened, closed = quotes[::2], quotes[1::2]
        before = codes[opened[opened > 0] - 1]
        after = codes[closed[closed < codes.size - 1] + 1]
        # a return is before a newline, here
        return bool(ends[before].all() and (ends[after] | (after == _RETURN)).all())

    def _parsed(self, block: bytes, kept: list[str]) -> list[dict[str, Any]]:
        """Return the cells of a block that PyArrow parses, in a list that is empty for no row."""
        arrow, reader = engine(), engine("pyarrow.csv")
        text, found = arrow.large_string(), None
        try:
            found = reader.read_csv(
                arrow.BufferReader(block),
                reader.ReadOptions(
                    column_names=self.names,
                    block_size=max(1 << 20, len(block)),
                    use_threads=False,  # each of which would keep memory of its own
                ),
                reader.ParseOptions(delimiter=self._separator, newlines_in_values=b'"' in block),
                reader.ConvertOptions(
                    include_columns=kept,
                    column_types=dict.fromkeys(kept, text),
                    strings_can_be_null=False,
                    check_utf8=False,
                ),
            )
        except arrow.ArrowInvalid:
            if not block.strip(b"\r\n"):
                return []
        if found is None:  # said outside the handler, where no traceback leads to a row
            raise DataError(self._other_width())
        return [{name: found.column(name) for name in kept}] if found.num_rows else []

    def _one_by_one(self, kept: list[str], held: bytes) -> Iterator[dict[str, Any]]:
        """Yield the cells of the rows that are left, as the csv module parses them."""
        lines = (decoded_line(line, self._path) for line in self._raw_lines(held))
        rows = self._rows(lines)
        places = {name: self.names.index(name) for name in kept}
        while chunk := list(islice(rows, _ROWS)):
            columns = list(zip(*chunk, strict=True))
            yield {name: list(columns[place]) for name, place in places.items()}

    def _raw_lines(self, held: bytes) -> Iterator[bytes]:
        """Yield the lines of what was read before and of what follows."""
        lines = list(BytesIO(held))
        cut = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        return chain(lines, filter(None, [cut + self._file.readline()]), self._file)


def _last_record(held: bytes) -> int:
    """Return where the last whole record of some bytes ends, if quotes are as they should be."""
    if b'"' not in held:
        return held.rfind(b"\n") + 1
    codes = np.frombuffer(held, np.uint8)
    ends = np.flatnonzero(codes == _NEWLINE)
    outside = np.searchsorted(np.flatnonzero(codes == _QUOTE), ends) % 2 == 0
    return int(ends[outside][-1]) + 1 if outside.any() else 0


def chunks(path: Path, schema: "Schema | None", layout: Layout) -> Generator[Part, None, None]:
    """Yield the columns of a CSV or TSV file, some rows at a time."""
    with reading(path), closing(opened(path)) as file:
        source = _Delimited(file, path, layout)
        header = source.names
        if schema is not None and {*schema.columns, schema.target.column}.isdisjoint(header):
            # a file without a header has a record in its place, and its cells for names
            raise DataError(
                f"Expected a header in {str(path)!r} with the columns that the schema lists, got "
                "none of them. Put a line with the names above the records, or give the schema of "
                "this file."
            )
        numbers, missing = number_names(schema), frozenset(missing_texts(schema))
        parsed = parser(missing, source.mark)
        for cells in source.tables(kept_names(header, schema)):
            columns: Columns = {}
            for name in list(cells):  # each is let go when it is no longer needed
                column = text_column(cells.pop(name), source.mark)
                number = name in numbers
                columns[name] = column.numbers(missing, parsed, name) if number else compact(column)
            yield part_of(columns)


def types(path: Path, layout: Layout) -> Types:
    """Return the types of the cells of the first record."""
    with reading(path), closing(opened(path)) as file:
        source = _Delimited(file, path, layout)
        header, first, mark = source.names, source.first(), source.mark
    if first is None:
        raise DataError(no_record(path))
    return {name: cell_type(cell, mark) for name, cell in zip(header, first, strict=True)}
