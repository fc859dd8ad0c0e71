"""Columns of text as PyArrow keeps them: looked at once for each different cell."""

from collections.abc import Callable, Collection
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privada.tables.cells import COMMA, LARGEST_WHOLE, POINT, CellCache, number_of, translate

_SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())


def engine(part: str = "pyarrow") -> Any:
    """Return PyArrow, or a part of it, which is imported when a file is first read."""
    return import_module(part)


class TextColumn:
    """Cells as text, with None for what is missing; space around them does not count.

    Each cell stands for the same whatever the others are. Private.
    """

    ndim = 1
    dtype = np.dtype(object)

    def __init__(self, cells: Any, mark: str = POINT) -> None:
        self._cells, self.mark = cells, mark

    @property
    def cells(self) -> Any:
        """The cells, as PyArrow has them."""
        return self._cells

    @property
    def nbytes(self) -> int:
        """How many bytes the cells take."""
        return int(self._cells.nbytes)

    @property
    def shape(self) -> tuple[int]:
        """The number of cells, as arrays have it."""
        return (len(self._cells),)

    def __getitem__(self, rows: Any) -> "TextColumn":
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(len(self._cells))
            return TextColumn(self._cells.slice(start, max(0, stop - start)), self.mark)
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_:
            chosen = np.flatnonzero(chosen)
        elif chosen.dtype.kind not in "iu" or (chosen.size and chosen.min() < 0):
            chosen = np.arange(len(self._cells))[rows]
        return TextColumn(self._cells.take(_of_numbers(chosen)), self.mark)

    @classmethod
    def joined(cls, parts: "list[TextColumn]") -> "TextColumn":
        """Return the columns of several parts as one."""
        if len(parts) == 1:
            return parts[0]
        cells = [part._cells for part in parts]
        if not all(map(_is_coded, cells)):
            cells = [each.dictionary_decode() if _is_coded(each) else each for each in cells]
        return cls(engine().concat_arrays(cells), parts[0].mark)

    @cached_property
    def coded(self) -> tuple[NDArray[np.int64], list[str | None]]:
        """The different texts, and for each cell the place of its text among them."""
        found = self._cells if _is_coded(self._cells) else self._cells.dictionary_encode()
        texts, codes = found.dictionary, found.indices
        if codes.null_count:
            codes = codes.fill_null(len(texts))
        numbers = codes.to_numpy()
        # a part of a column has the texts of all of it, and those of other rows must not be seen
        used = np.flatnonzero(np.bincount(numbers, minlength=len(texts) + 1))
        places: dict[str | None, int] = {}
        kept = np.zeros(len(texts) + 1, np.int64)
        listed = texts.take(_of_numbers(used[used < len(texts)])).to_pylist()
        for place, text in zip(used, listed, strict=False):
            kept[place] = places.setdefault(text.strip(), len(places))
        if used.size and used[-1] == len(texts):
            kept[-1] = places.setdefault(None, len(places))
        return kept[numbers], list(places)

    def texts(self) -> NDArray[Any]:
        """Return the cells as text."""
        codes, values = self.coded
        held = np.empty(len(values), object)
        held[:] = values
        return held[codes]

    def tolist(self) -> list[str | None]:
        """Return the cells as text."""
        listed: list[str | None] = self.texts().tolist()
        return listed

    def numbers(
        self, missing: Collection[str], parsed: Callable[[str | None], float], name: str
    ) -> NDArray[np.float64]:
        """Return the cells as numbers; `parsed` says what those are that PyArrow does not know."""
        fast = None if _is_coded(self._cells) else self._fast_numbers(missing)
        if fast is None:
            codes, values = self.coded
            return np.asarray(translate(values, parsed, np.float64, name)[codes])
        known, absent = fast
        # whole numbers that would be rounded, infinite ones, and what is NaN to PyArrow alone
        odd = np.flatnonzero(~(np.abs(known) < LARGEST_WHOLE) & ~absent)
        if odd.size:
            known = known.copy()  # what PyArrow holds must not be written
            cells = [cell.strip() for cell in self._cells.take(_of_numbers(odd)).to_pylist()]
            known[odd] = translate(cells, CellCache(parsed).__getitem__, np.float64, name)
        return known

    def _fast_numbers(
        self, missing: Collection[str]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
        """Return the cells as PyArrow parses them, and which are missing; None if it refuses."""
        arrow, compute = engine(), engine("pyarrow.compute")
        absent_texts = arrow.array(sorted(missing), arrow.large_string())
        cells, nothing = self._cells, arrow.scalar(None, arrow.large_string())
        for trimmed in (False, True):
            if trimmed:
                cells = compute.utf8_trim(cells, _SPACES)
            found = compute.if_else(compute.is_in(cells, absent_texts), nothing, cells)
            if self.mark == COMMA and compute.any(compute.match_substring(found, ".")).as_py():
                return None
            if self.mark != POINT:
                found = compute.replace_substring(found, ",", ".")
            try:
                known = compute.cast(found, arrow.float64())
            except arrow.ArrowInvalid:
                continue
            absent = compute.is_null(known).to_numpy(zero_copy_only=False)
            return known.fill_null(float("nan")).to_numpy(zero_copy_only=False), absent
        return None


def text_column(cells: Any, mark: str = POINT) -> TextColumn:
    """Return a column of what PyArrow, or a list, has as text."""
    arrow = engine()
    if isinstance(cells, list):
        # lone halves of surrogate pairs, which JSON may have, are no UTF-8
        cells = arrow.array(cells, arrow.large_string())
    if isinstance(cells, arrow.ChunkedArray):
        cells = cells.combine_chunks()
    if cells.type != arrow.large_string():
        cells = cells.cast(arrow.large_string())
    return TextColumn(cells, mark)


def compact(column: TextColumn) -> TextColumn:
    """Return a column that keeps each different text once, if that takes half as much memory."""
    coded = column.cells.dictionary_encode()
    return TextColumn(coded, column.mark) if 2 * coded.nbytes < column.nbytes else column


def _is_coded(cells: Any) -> bool:
    return bool(engine().types.is_dictionary(cells.type))


def _of_numbers(values: NDArray[np.int64]) -> Any:
    return engine().array(values.astype(np.int64))


def release_memory() -> None:
    """Give back to the system what PyArrow has freed and kept for later."""
    engine().default_memory_pool().release_unused()


def parser(missing: Collection[str], mark: str) -> Callable[[str | None], float]:
    """Return what parses a cell."""
    known = frozenset(missing)
    return lambda cell: number_of(cell, known, mark)
