"""What columns hold, in short words such as "number:0..120", where no schema says it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from privada.core.errors import ArgumentError
from privada.core.validation import integer
from privada.tables.calendar import PUBLIC_DATES
from privada.tables.columns import (
    Category,
    ColumnType,
    Date,
    Hashed,
    Ignore,
    Matrix,
    Mixed,
    Number,
    Person,
    Text,
)
from privada.tables.schema_file import close_match, errors_in

# What a column holds: a column type, or words that `column_type` understands.
Kind = ColumnType | str

FORMS = (
    "number, number:LOW..HIGH, mixed, mixed:LOW..HIGH, date, date:FIRST..LAST, date:FORMAT, "
    "category:VALUE,VALUE, hashed, hashed:BUCKETS, text, text:FEATURES or ignore"
)
# Types of columns that are called otherwise than what they hold.
KIND_OF_TYPE: Mapping[str | int, str] = {"unknown": "mixed", "words": "text", "text": "hashed"}
# The parts of dates that nobody has chosen.
USUAL_PARTS = ("month", "weekday")


def column_kinds(given: Mapping[str, Kind] | Sequence[str]) -> dict[str, Kind]:
    """Return what columns hold by their names, from words such as "age=number:0..120".

    Args:
        given: such words, or a mapping from names to kinds.

    Returns:
        The kinds, all of which `column_type` understands.
    """
    listed = [given] if isinstance(given, str) else given
    kinds = dict(listed) if isinstance(listed, Mapping) else _of_words(listed)
    for name, kind in kinds.items():
        column_type(name, kind, lambda _: None)
    return kinds


def _of_words(words: Sequence[str]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for word in words:
        name, equals, kind = (part.strip() for part in word.partition("="))
        if not equals or not name or not kind:
            raise ArgumentError(
                f"Expected --column NAME=KIND, got {word!r}. Write --column zip=hashed; KIND is "
                f"{FORMS}."
            )
        if name in found:
            raise ArgumentError(f"Expected each column once in --column, got {name!r} twice.")
        found[name] = kind
    return found


def column_type(name: str, kind: Kind, bare: Callable[[str], Any]) -> Any:
    """Return the type of a column, or what `bare` makes of a word that says no more.

    Args:
        name: the column, for errors.
        kind: the type itself; or its word, perhaps with a colon and what it needs.
        bare: makes something of a word without anything else.
    """
    if isinstance(kind, (Matrix, Person)):
        raise ArgumentError(
            f"Expected column {name!r} to be of another kind than a matrix, which needs a schema, "
            f"or a person, which --person names, got {kind!r}."
        )
    if not isinstance(kind, str):
        if isinstance(kind, ColumnType):
            return kind
        raise ArgumentError(
            f"Expected the kind of column {name!r} to be a column type such as tables.Mixed(...), "
            f"or one of {FORMS}, got {kind!r}."
        )
    word, colon, rest = (part.strip() for part in kind.partition(":"))
    if word not in _MAKERS:
        raise ArgumentError(
            f"Expected --column {name}=KIND with one of {FORMS}, got "
            f"{kind!r}.{close_match(word, _MAKERS)}"
        )
    if not colon:
        return bare(word)
    with errors_in(f"In --column {name}={kind}"):
        return _MAKERS[word](rest)


def usual_type(name: str, kind: Kind) -> ColumnType:
    """Return the type of a column of whose values nothing is known: bounds are left to a query."""

    def bare(word: str) -> ColumnType:
        if word == "category":
            raise ArgumentError(
                f"Expected the values of category {name!r}, got none. List them, as in --column "
                f"{name}=category:yes,no, or take hashed, which needs no list."
            )
        return _USUAL[word]()

    made: ColumnType = column_type(name, kind, bare)
    return made


def refuse_unknown(kinds: Mapping[str, Kind], names: Sequence[str], target: str) -> None:
    """Raise unless the columns that kinds are given for are inputs of a table.

    Args:
        kinds: what is said.
        names: the columns of the table that are neither a person's nor to be predicted.
        target: what is to be predicted.
    """
    for name in kinds:
        if name == target:
            raise ArgumentError(
                f"Expected --column with other columns than the target, got {name!r}. --class or "
                "--regression says what the target is."
            )
        if name not in names:
            raise ArgumentError(
                f"Expected --column with a column of the table that is neither the target nor "
                f"--person, got {name!r}.{close_match(name, names)}"
            )


# ---------------------------------------------------------------------- words


def _ends(text: str) -> tuple[str, str]:
    low, dots, high = (part.strip() for part in text.partition(".."))
    if not dots or not low or not high:
        raise ArgumentError(f"Expected LOW..HIGH, such as 0..120, got {text!r}.")
    return low, high


def _numbers(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, _ends(text))
    except ValueError:
        raise ArgumentError(
            f"Expected LOW..HIGH in numbers, such as 0..120, got {text!r}."
        ) from None
    return low, high


def _date(text: str) -> Date:
    ends, mark, rest = text.partition("%")
    bounds = _ends(ends.removesuffix(":")) if ends else PUBLIC_DATES
    return Date(*bounds, parts=USUAL_PARTS, format=mark + rest or None)


def _category(text: str) -> Category:
    values = [part.strip() for part in text.split(",")]
    if not all(values):
        raise ArgumentError(f"Expected values with commas between them, got {text!r}.")
    return Category(values, other=True)


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ArgumentError(f"Expected {name} to be a whole number, got {text!r}.")
    return integer(name, int(text), least=2)


def _nothing(text: str) -> ColumnType:
    raise ArgumentError(f"Expected ignore alone, got {text!r} after it.")


_MAKERS: dict[str, Callable[[str], ColumnType]] = {
    "number": lambda text: Number(*_numbers(text)),
    "mixed": lambda text: Mixed(*_numbers(text)),
    "date": _date,
    "category": _category,
    "hashed": lambda text: Hashed(_whole("BUCKETS", text)),
    "text": lambda text: Text(features=_whole("FEATURES", text)),
    "ignore": _nothing,
}
_USUAL: dict[str, Callable[[], ColumnType]] = {
    "number": lambda: Number(bounds="estimate"),
    "mixed": lambda: Mixed(bounds="estimate"),
    "date": lambda: Date(*PUBLIC_DATES, parts=USUAL_PARTS),
    "hashed": Hashed,
    "text": Text,
    "ignore": Ignore,
}
