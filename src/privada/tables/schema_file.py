"""The schema as a file: TOML with a section for the target and for each column."""

import difflib
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING as REQUIRED
from dataclasses import fields
from typing import Any

from privada.core.errors import ArgumentError
from privada.core.validation import one_of
from privada.tables.cells import MISSING
from privada.tables.columns import COLUMN_TYPES, ColumnType
from privada.tables.files import Source, as_path
from privada.tables.targets import Classes, Range, Target
from privada.tables.toml_writing import document, key

# Keys of [options], and what they are where they are left out.
OPTIONS: dict[str, Any] = {"missing": MISSING, "separator": None, "decimal": None, "version": 2}


def load(path: Source) -> tuple[Target, dict[str, ColumnType], dict[str, Any]]:
    """Return the target, the columns and the options in a TOML file.

    Raises:
        ArgumentError: with the section, the key, its value, what is required and what to do.
    """
    held = _toml(path)
    whole = f"In {str(path)!r}"
    _refuse_unknown(whole, held, ("target", "columns", "options"))
    target = _target(_section(whole, held, "target"), str(path))
    columns = _section(whole, held, "columns")
    options = _section(whole, held, "options") if "options" in held else {}
    _refuse_unknown(f"In [options] of {str(path)!r}", options, tuple(OPTIONS))
    types = {
        name: _column_type(name, _section(whole, columns, name), str(path)) for name in columns
    }
    return target, types, options


def to_toml(
    comment: str,
    target: Target,
    columns: Mapping[str, ColumnType],
    options: Mapping[str, Any],
    versioned: bool = False,
) -> str:
    """Return a schema as TOML, with its version also where it is the usual one, if asked."""
    sections: list[tuple[str, Mapping[str, Any]]] = [("target", _keys(target))]
    said = {
        name: value
        for name, value in options.items()
        if value != OPTIONS[name] or (versioned and name == "version")
    }
    if said:
        sections.append(("options", said))
    for name, kind in columns.items():
        sections.append((f"columns.{key(name)}", section_of(kind)))
    return document(comment, sections)


def section_of(kind: ColumnType) -> dict[str, Any]:
    """Return the keys of a column's section."""
    names = {each: name for name, each in COLUMN_TYPES.items()}
    return {"kind": names[type(kind)], **_keys(kind)}


def close_match(name: str, known: Iterable[str]) -> str:
    """Return a question about the known name that is nearest to one, if there is any."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def _keys(value: Any) -> dict[str, Any]:
    """Return the fields of a kind or a target that differ from what they are by default."""
    held = {each.name: (getattr(value, each.name), each.default) for each in fields(value)}
    return {name: now for name, (now, usual) in held.items() if usual is REQUIRED or now != usual}


def _toml(path: Source) -> dict[str, Any]:
    place = as_path("path", path)
    try:
        return tomllib.loads(place.read_bytes().decode())
    except OSError as error:
        raise ArgumentError(
            f"Cannot read the schema {str(path)!r}: {error.strerror}. Draft one with "
            "privada schema."
        ) from None
    except UnicodeDecodeError:
        raise ArgumentError(
            f"Expected the schema {str(path)!r} to be UTF-8 text, got other bytes."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(
            f"Expected the schema {str(path)!r} to be TOML, got: {error}. Put text in "
            "quotation marks, and each column in a section of its own."
        ) from None


def _section(where: str, held: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = held.get(name)
    if not isinstance(found, dict):
        example = '[target] with column = "..." and classes = [...]'
        remedy = example if name == "target" else "[columns.age] with kind = ..., for each column"
        got = "none" if found is None else f"{name} = {found!r}"
        raise ArgumentError(f"{where}: expected a section {name!r}, got {got}. Write {remedy}.")
    return found


def _refuse_unknown(where: str, held: Iterable[str], known: Collection[str]) -> None:
    for name in held:
        if name not in known:
            listed = ", ".join(known)
            raise ArgumentError(
                f"{where}: expected keys among {listed}, got {name!r}.{close_match(name, known)}"
            )


def _target(held: dict[str, Any], path: str) -> Target:
    where = f"In [target] of {path!r}"
    made: type[Target] = Classes if "classes" in held else Range
    if made is Range and not {"low", "high", "bounds"} & set(held):
        _refuse_unknown(where, held, ("column", "classes", "low", "high", "scale", "bounds"))
        raise ArgumentError(
            f"{where}: expected classes = [...] for classification, or low and high for "
            "regression, got neither. They say what the task is."
        )
    return _made(made, where, held)  # type: ignore[no-any-return]


def _column_type(name: str, held: dict[str, Any], path: str) -> ColumnType:
    where = f"In [columns.{key(name)}] of {path!r}"
    with errors_in(where):
        kind = COLUMN_TYPES[one_of("kind", held.get("kind"), COLUMN_TYPES)]
    given = {key: value for key, value in held.items() if key != "kind"}
    return _made(kind, where, given)  # type: ignore[no-any-return]


def _made(kind: type[Any], where: str, held: dict[str, Any]) -> Any:
    known = [each.name for each in fields(kind)]
    _refuse_unknown(where, held, known or ["kind"])
    for name, value in held.items():
        if value == "?" and name in ("low", "high", "classes", "values"):
            estimable = name in ("low", "high") and "bounds" in known
            other = ', or write bounds = "estimate" in place of both' if estimable else ""
            raise ArgumentError(
                f'{where}: expected {name} to be filled in, got "?". Give what is known without '
                f"looking at the private table{other}."
            )
    needed = [each.name for each in fields(kind) if each.default is REQUIRED]
    absent = [name for name in needed if name not in held]
    if absent:
        raise ArgumentError(f"{where}: expected the key {absent[0]!r}, got none. Add it.")
    with errors_in(where):
        return kind(**held)


@contextmanager
def errors_in(where: str) -> Iterator[None]:
    """Say in an ArgumentError where in a file it arose."""
    try:
        yield
    except ArgumentError as error:
        words = str(error)
        raise ArgumentError(f"{where}: {words[0].lower()}{words[1:]}") from None
