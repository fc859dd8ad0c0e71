"""The schema of a table: what each column is, said without looking at the private values."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privada.core.errors import ArgumentError, DataError
from privada.tables import schema_file
from privada.tables.bag_of_words import Vocabulary
from privada.tables.bounds import DEFAULT_BOUND, Numbers
from privada.tables.cells import MISSING, Cell, canonical
from privada.tables.columns import (
    COLUMN_TYPES,
    Category,
    ColumnType,
    Date,
    Ignore,
    Matrix,
    Mixed,
    Number,
    Person,
    Text,
)
from privada.tables.files import Source, as_path, lines, write_text
from privada.tables.formats.building import Layout, is_number
from privada.tables.schema_file import close_match
from privada.tables.targets import Classes, Range, Target
from privada.tables.toml_writing import key

if TYPE_CHECKING:
    from privada.tables.table import Table

# What a promise rests on where a schema is used.
TOLD = "What the columns are, their bounds and classes, was said without looking at these records."
_FEATURES_OF_TEXT = 4096
_VERSIONS = (1, 2)
# Features are kept sparse from this width on, if at most one in so many can differ from zero.
_SPARSE_WIDTH, _SPARSE_SHARE = 256, 8


@dataclass(frozen=True)
class Schema:
    """What each column of a table is, and what is to be predicted.

    Args:
        target: `Classes` or `Range`.
        columns: the kind of every other column.
        missing: the texts that stand for a missing value.
        separator, decimal: how CSV files are written, where their header does not say.
        version: how values that are not numbers are compared: in version 2 one value has one text
            (1 for 1.0), in version 1, of models made before, the text that a file has.
        folder: where relative paths of public files begin.

    Guarantee: the features of a record follow from the record and the schema alone. So nothing
    leaks, provided that the schema was not made by looking at the private table.

    Edge cases: a value that also stands for a missing one, a target that is also an input, and a
    table of nothing but ignored columns are refused.

    Example:
        >>> from privada.tables import Category, Classes, Number, Schema
        >>> schema = Schema(
        ...     Classes("income", ["<=50K", ">50K"]),
        ...     {"age": Number(low=17, high=90), "sex": Category(["Female", "Male"])},
        ... )
        >>> schema.task, schema.features
        ('classification', ('age', 'sex=Female', 'sex=Male', 'sex (missing)'))
    """

    target: Target
    columns: Mapping[str, ColumnType]
    missing: Sequence[str] = MISSING
    separator: str | None = None
    decimal: str | None = None
    version: int = 2
    folder: Path = field(default=Path(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "missing", _missing_texts(self.missing))
        object.__setattr__(self, "folder", Path(self.folder))
        Layout(self.separator, self.decimal)
        if self.version not in _VERSIONS or isinstance(self.version, bool):
            raise ArgumentError(
                f"Expected version to be 1 or 2, got version={self.version!r}. Leave it out, or "
                "use the release of Privada that wrote it."
            )
        if not isinstance(self.target, (Classes, Range)):
            raise ArgumentError(
                f"Expected target to be Classes or Range, got target={self.target!r}."
            )
        for name, kind in self.columns.items():
            if not isinstance(kind, tuple(COLUMN_TYPES.values())):
                raise ArgumentError(f"Expected column {name!r} to have a kind, got {kind!r}.")
        if self.target.column in self.columns:
            raise ArgumentError(
                f"Expected the target {self.target.column!r} not to be a column as well, which "
                "would predict it from itself. Remove it from the columns."
            )
        persons = [name for name, kind in self.columns.items() if isinstance(kind, Person)]
        if len(persons) > 1:
            raise ArgumentError(
                f"Expected one column of identifiers at most, got {', '.join(map(repr, persons))}. "
                "Keep the one whose rows are to be protected together, and give the other kind = "
                '"ignore".'
            )
        if len(self.unused) == len(self.columns):
            raise ArgumentError(
                "Expected at least one column to predict from, got none that is not ignored."
            )
        self._check_missing()
        _ = self.vocabularies

    def _check_missing(self) -> None:
        listed = {n: kind.values for n, kind in self.columns.items() if isinstance(kind, Category)}
        if isinstance(self.target, Classes):
            listed[self.target.column] = self.target.classes
        for name, values in listed.items():
            for value in values:
                if value in self.missing:
                    raise ArgumentError(
                        f"Expected values of {name!r} that do not stand for a missing one, got "
                        f"{value!r}. Remove it, or list in options.missing what does."
                    )

    # ------------------------------------------------------------------ what it says

    def text(self, cell: Cell) -> Cell:
        """Return the text by which a value is compared, listed and hashed."""
        return cell if cell is None or self.version == 1 else canonical(cell)

    @cached_property
    def absent(self) -> frozenset[Cell]:
        """The texts that stand for a missing value, and None."""
        return frozenset((None, *self.missing, *map(self.text, self.missing)))

    def numbers(self, table: "Table", column: str, *, lenient: bool = False) -> Numbers:
        """Return a column of a table as numbers, NaN for what is missing in any spelling."""
        found = table.numbers(column, self.missing, lenient=lenient)
        absent = (
            [] if self.version == 1 else [float(text) for text in self.missing if is_number(text)]
        )
        return np.where(np.isin(found, absent), np.nan, found) if absent else found

    @property
    def task(self) -> str:
        """The task: "classification" or "regression"."""
        return "classification" if isinstance(self.target, Classes) else "regression"

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the encoded features."""
        return tuple(name for column in self.columns for name in self.features_of(column))

    def features_of(self, column: str) -> list[str]:
        """Return the names of the features of one column."""
        kind = self.columns[column]
        if not isinstance(kind, Text):
            return kind.features(column)
        words = self.vocabularies[column]
        if kind.vocabulary is None:
            return [f"{column}#{bucket}" for bucket in range(words.width)]
        return [f"{column}: {word}" for word in words]

    @property
    def sparse(self) -> bool:
        """Whether the encoded features are kept sparse."""
        filled = 0
        for column, kind in self.columns.items():
            if isinstance(kind, Text) or (isinstance(kind, Matrix) and kind.sparse):
                return True
            filled += most_filled(kind, column)
        return len(self.features) >= max(_SPARSE_WIDTH, _SPARSE_SHARE * filled)

    @property
    def pending(self) -> tuple[str, ...]:
        """The columns, the target's perhaps, whose bounds are still to be estimated."""
        return self._bounded("estimate")

    @property
    def defaulted(self) -> tuple[str, ...]:
        """The columns, the target's perhaps, that have default bounds since none were found."""
        return self._bounded("default")

    def _bounded(self, how: str) -> tuple[str, ...]:
        named: list[tuple[str, ColumnType | Target]] = [*self.columns.items()]
        named.append((self.target.column, self.target))
        return tuple(name for name, kind in named if getattr(kind, "bounds", "") == how)

    @property
    def ignored(self) -> frozenset[str]:
        """The columns that are not read."""
        return frozenset(n for n, kind in self.columns.items() if isinstance(kind, Ignore))

    @property
    def unused(self) -> frozenset[str]:
        """The columns that are no features: those that are ignored, and that of the persons."""
        return self.ignored if self.person is None else self.ignored | {self.person}

    @property
    def person(self) -> str | None:
        """The column that says to which person a row belongs, None if each row is a record."""
        found = (n for n, kind in self.columns.items() if isinstance(kind, Person))
        return next(found, None)

    def with_person(self, column: str) -> "Schema":
        """Return the schema with a column of identifiers, whatever it was before.

        Example:
            >>> from privada.tables import Classes, Number, Schema
            >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(low=0, high=100)})
            >>> schema.with_person("patient").person
            'patient'
        """
        if column == self.target.column:
            raise ArgumentError(
                f"Expected a person column other than the target, got {column!r}. Name the column "
                "of identifiers."
            )
        others = {n: kind for n, kind in self.columns.items() if not isinstance(kind, Person)}
        return replace(self, columns={**others, column: Person()})

    @property
    def number_columns(self) -> frozenset[str]:
        """The columns that are read as numbers."""
        inputs = frozenset(n for n, kind in self.columns.items() if isinstance(kind, Number))
        return inputs | {self.target.column} if isinstance(self.target, Range) else inputs

    @cached_property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """The features of words, for each column of text."""
        found = {}
        for name, kind in self.columns.items():
            if isinstance(kind, Text):
                words = None if kind.vocabulary is None else self._words(kind)
                width = kind.features or _FEATURES_OF_TEXT
                found[name] = Vocabulary(words, width if words is None else len(words))
        return found

    def _words(self, kind: Text) -> list[str]:
        path = self.folder / str(kind.vocabulary)
        words = [word for line in lines(path) if (word := line.strip().lower())]
        unique = list(dict.fromkeys(words))[: kind.features]
        if not unique:
            raise DataError(f"Expected a word on each line of {str(path)!r}, got none.")
        return unique

    def check(
        self, names: Collection[str], *, target: bool = True, has_header: bool = True
    ) -> None:
        """Raise unless columns of these names are what the schema lists.

        Names that are not of a header, but keys of records, are not shown.
        """
        unneeded = self.ignored if target else self.unused
        wanted = [name for name in self.columns if name not in unneeded]
        for name in [self.target.column, *wanted] if target else wanted:
            if name not in names:
                found = f"columns {', '.join(map(repr, names))}.{close_match(name, names)}"
                raise DataError(
                    f"Expected a column {name!r}, as the schema says, got "
                    f"{found if has_header else 'none. Check the name.'}"
                )
        known = {*self.columns, self.target.column}
        unknown = [name for name in names if name not in known]
        if unknown and not has_header:
            raise DataError(
                "Expected every key of the records to be in the schema, or in the first record "
                "where there is none, got some that are not. Write a schema that lists them under "
                '[columns] with a kind, which `privada schema` drafts; kind = "ignore" leaves one '
                "out."
            )
        if unknown:
            listed = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            raise DataError(
                f"Expected every column to be in the schema, got {listed} that "
                f"{'is' if len(unknown) == 1 else 'are'} not.{close_match(unknown[0], known)} Add "
                f"[columns.{key(unknown[0])}] with a kind; "
                'kind = "ignore" leaves it out.'
            )

    def with_bounds(self, found: Mapping[str, tuple[float, float] | None]) -> "Schema":
        """Return the schema with bounds that a charged query has estimated, None for none."""
        columns, target = dict(self.columns), self.target
        for name, bounds in found.items():
            kind, change = columns.get(name), _estimated(bounds)
            if isinstance(kind, (Number, Mixed)):
                columns[name] = replace(kind, **change)
            elif isinstance(target, Range) and name == target.column:
                target = replace(target, **change)
        return replace(self, columns=columns, target=target)

    @property
    def told(self) -> str:
        """What a promise rests on where records are encoded by a schema, in words."""
        return TOLD

    def training_data(
        self, table: Any, groups: Any = None, population: int | None = None
    ) -> tuple[Any, Any, int | None]:
        """Return what a `Trainer` takes of a table: its data, groups and population.

        They are the encoded records, the identifiers of a person column, if there is one, and the
        number of all records, or persons, where some may be left out.
        """
        from privada.tables.training import encoded_data  # which reads by a schema

        return encoded_data(table, self, groups, population)

    # ------------------------------------------------------------------ as a file

    @classmethod
    def read(cls, path: Source, version: int = 2) -> "Schema":
        """Return the schema in a TOML file.

        Args:
            path: the file.
            version: the version of a file that says none.

        Raises:
            ArgumentError: with the section, the key, its value, what is required and what to do.
        """
        target, columns, options = schema_file.load(path)
        options.setdefault("version", version)
        with schema_file.errors_in(f"In {str(path)!r}"):
            return cls(target, columns, **options, folder=as_path("path", path).parent)

    def to_toml(
        self, comment: str = "", folder: Source | None = None, *, versioned: bool = False
    ) -> str:
        """Return the schema as TOML, with paths as seen from a folder, and its version if asked."""
        seen = self.folder if folder is None else Path(folder)
        columns = {
            name: self._moved(kind, seen) if isinstance(kind, Text) else kind
            for name, kind in self.columns.items()
        }
        options = {name: getattr(self, name) for name in schema_file.OPTIONS}
        return schema_file.to_toml(comment, self.target, columns, options, versioned)

    def _moved(self, kind: Text, folder: Path) -> Text:
        """Return a kind with its paths as seen from another folder."""
        if folder == self.folder:
            return kind
        paths = {"vocabulary": kind.vocabulary, "public_text": kind.public_text}
        seen = {
            key: os.path.relpath(self.folder / path, folder)
            for key, path in paths.items()
            if path is not None and not Path(path).is_absolute()
        }
        return replace(kind, **seen)  # type: ignore[arg-type]

    def write(self, path: Source, comment: str = "") -> None:
        """Write the schema as a TOML file, in place of one that exists."""
        folder = as_path("path", path).parent
        write_text(path, self.to_toml(comment, folder), replace=True)


def most_filled(kind: ColumnType, column: str) -> int:
    """Return how many features of a column can differ from zero in one row, at most."""
    if isinstance(kind, Number):
        return len(kind.features(column)) - kind.bins + min(kind.bins, 2)
    return len(kind.features(column)) if isinstance(kind, (Date, Matrix)) else 1


def _estimated(bounds: tuple[float, float] | None) -> dict[str, Any]:
    if bounds is None:
        low, high = -DEFAULT_BOUND, DEFAULT_BOUND
        return {"low": low, "high": high, "scale": "log", "bounds": "default"}
    return {"low": bounds[0], "high": bounds[1], "bounds": "estimated"}


def _missing_texts(missing: Any) -> tuple[str, ...]:
    if isinstance(missing, str) or not isinstance(missing, Sequence):
        raise ArgumentError(f"Expected missing to be a list of texts, got missing={missing!r}.")
    if not all(isinstance(text, str) for text in missing):
        raise ArgumentError(f"Expected missing to be a list of texts, got missing={missing!r}.")
    return tuple(text.strip() for text in missing)
