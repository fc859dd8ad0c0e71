"""Column types: each is a frozen value that says what a column holds and which features it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privada.core.errors import ArgumentError
from privada.core.validation import integer, one_of, printable_text
from privada.tables.bounds import Numbers, check_bounds, to_unit_interval
from privada.tables.calendar import CYCLES, WAVES, Calendar, check_format, check_zone, iso_text
from privada.tables.cells import listed_texts


@dataclass(frozen=True)
class Number:
    """A number between bounds, mapped to [-1, 1].

    Args:
        low, high: the bounds. A value beyond them counts as the bound that it passed.
        scale: "linear", or "log" for sign(x) log(1 + |x|) before mapping.
        missing: what a missing value becomes: "low" (-1), "middle" (0), or "flag" (0, and 1 in a
            feature of its own).
        bounds: "given"; "estimate" where `estimate_bounds` is to find them; "estimated" where it
            has; or "default" where it found nothing, which is 2^20 either way on the log scale.
        bins: how many features there are beside it, by which a linear model can follow a bend: from
            `low` to `high`, evenly on the scale, stand so many points, and a value is shared
            between the two that it lies between, the more the nearer. 0 for none.

    Guarantee: features in [-1, 1], whatever the value. Those of the bins sum to 1.

    Edge cases: a missing value is in no bin.

    Example:
        >>> from privada.tables import Number
        >>> Number(low=0, high=100).unit([-5.0, 25.0, 100.0])
        array([-1. , -0.5,  1. ])
        >>> Number(low=0, high=100, bins=3).features("age")
        ['age', 'age (bin 0)', 'age (bin 1)', 'age (bin 2)']
        >>> Number(low=0, high=100, bins=3).shares([0.0, 25.0]).tolist()
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    """

    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    missing: str = "middle"
    bounds: str = "given"
    bins: int = 0

    def __post_init__(self) -> None:
        check_bounds(self.low, self.high, self.bounds, self.scale)
        one_of("missing", self.missing, ("low", "middle", "flag"))
        if integer("bins", self.bins, least=0) == 1:
            raise ArgumentError("Expected bins = 0, for none, or at least 2, got bins=1.")

    def unit(self, values: Any) -> Numbers:
        """Return values clipped to the bounds and mapped to [-1, 1]."""
        return to_unit_interval(values, self.low, self.high, self.scale)

    def features(self, column: str) -> list[str]:
        """Return the names of the features."""
        flag = [f"{column} (missing)"] if self.missing == "flag" else []
        return [column, *flag, *(f"{column} (bin {place})" for place in range(self.bins))]

    def shares(self, values: Any) -> NDArray[np.float32]:
        """Return how much of each value is in each bin; nothing of NaN is in any."""
        mapped = self.unit(values)
        rows = np.flatnonzero(~np.isnan(mapped))
        place = (mapped[rows] + 1) / 2 * (self.bins - 1)
        below = np.minimum(place.astype(np.int64), self.bins - 2)
        made = np.zeros((len(mapped), self.bins), dtype=np.float32)
        made[rows, below], made[rows, below + 1] = 1 - (place - below), place - below
        return made


@dataclass(frozen=True)
class Mixed:
    """A number or any other value: each cell is encoded as what it is itself.

    A number is clipped to bounds and mapped to [-1, 1], in a feature of its own; other text goes to
    one of some buckets, as for `Hashed`. So nobody has to know which of the two a column is, and no
    row decides it for another.

    Args:
        low, high, scale, bounds: as for `Number`.
        buckets: as for `Hashed`.

    Edge cases: a missing value is zero in all features. What looks like a number but cannot be one,
    such as an infinite one or a whole number beyond 2^53, is text.

    Example:
        >>> from privada.tables import Mixed
        >>> Mixed(low=0, high=10, buckets=2).features("grade")
        ['grade', 'grade#0', 'grade#1']
    """

    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    bounds: str = "given"
    buckets: int = 32

    def __post_init__(self) -> None:
        check_bounds(self.low, self.high, self.bounds, self.scale)
        integer("buckets", self.buckets, least=2)

    def unit(self, values: Any) -> Numbers:
        """Return values clipped to the bounds and mapped to [-1, 1]."""
        return to_unit_interval(values, self.low, self.high, self.scale)

    def features(self, column: str) -> list[str]:
        """Return the names of the features."""
        return [column, *(f"{column}#{bucket}" for bucket in range(self.buckets))]


@dataclass(frozen=True)
class Date:
    """A date, or a date and a time: its place between bounds, and parts that come again.

    Args:
        low, high: the first and the last, as text or as dates. One beyond them counts as the bound
            that it passed.
        parts: of "month", "day" (of the month), "weekday" and "hour", those that get two features
            each: the sine and the cosine of the place in their cycle.
        format: how it is written, as `datetime.strptime` takes it; by default as ISO 8601 has it.
        zone: the time zone in which parts are told, and of times that say none.
        missing: what a missing value becomes: "middle" (all zero), or "flag" (all zero, and 1 in a
            feature of its own).

    Guarantee: features in [-1, 1], whatever the value.

    Edge cases: a time with an offset is the moment that it says. A date without a time is its
    midnight. What is no date is refused.

    Example:
        >>> from privada.tables import Date
        >>> Date("2000-01-01", "2020-01-01", parts=["month"]).features("visit")
        ['visit', 'visit (month sine)', 'visit (month cosine)']
    """

    low: str
    high: str
    parts: Sequence[str] = ()
    format: str | None = None
    zone: str = "UTC"
    missing: str = "middle"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, iso_text(name, getattr(self, name)))
        if isinstance(self.parts, str) or not isinstance(self.parts, Sequence):
            raise ArgumentError(f"Expected parts to be a list, got parts={self.parts!r}.")
        for part in self.parts:
            one_of("parts", part, CYCLES)
        object.__setattr__(self, "parts", tuple(self.parts))
        if self.format is not None:
            check_format(self.format)
        check_zone(self.zone)
        one_of("missing", self.missing, ("middle", "flag"))
        if not self.calendar.first < self.calendar.last:
            raise ArgumentError(
                f"Expected low < high, got low={self.low!r}, high={self.high!r}. Give the first "
                "and the last date that are known without looking at the private table."
            )

    @property
    def calendar(self) -> Calendar:
        """What turns texts into features."""
        return Calendar(self.low, self.high, tuple(self.parts), self.format, self.zone)

    def features(self, column: str) -> list[str]:
        """Return the names of the features."""
        cycles = [f"{column} ({part} {wave})" for part in self.parts for wave in WAVES]
        return [column, *cycles, *([f"{column} (missing)"] if self.missing == "flag" else [])]


@dataclass(frozen=True)
class Category:
    """One of a list of values: a feature for each of them, 1 for the one it is.

    Args:
        values: all that are known, without looking at the private table.
        other: whether there is a feature for values that are not listed; else they are refused.

    A missing value has a feature of its own.

    Edge cases: numbers are compared as text, in which 1 and 1.0 from the schema are "1".

    Example:
        >>> from privada.tables import Category
        >>> Category(["yes", "no"], other=True).features("smoker")
        ['smoker=yes', 'smoker=no', 'smoker (other)', 'smoker (missing)']
    """

    values: Sequence[str]
    other: bool = False

    def __post_init__(self) -> None:
        remedy = 'Where the values are not known, use kind = "hashed".'
        object.__setattr__(self, "values", listed_texts("values", self.values, 1, remedy))
        _flag("other", self.other)

    def features(self, column: str) -> list[str]:
        """Return the names of the features."""
        known = [f"{column}={value}" for value in self.values]
        rest = [f"{column} (other)"] if self.other else []
        return [*known, *rest, f"{column} (missing)"]


@dataclass(frozen=True)
class Hashed:
    """Any value, sent to one of some buckets by a fixed hash: no list of values is needed.

    Args:
        buckets: how many. Values that share one cannot be told apart.

    Edge cases: a missing value is in no bucket, and all features are zero.

    Example:
        >>> from privada.tables import Hashed
        >>> Hashed(buckets=2).features("city")
        ['city#0', 'city#1']
    """

    buckets: int = 32

    def __post_init__(self) -> None:
        integer("buckets", self.buckets, least=2)

    def features(self, column: str) -> list[str]:
        """Return the names of the features."""
        return [f"{column}#{bucket}" for bucket in range(self.buckets)]


@dataclass(frozen=True)
class Text:
    """Words, as a bag: how often each occurs, in a public vocabulary or in hashed buckets.

    Args:
        features: how many features; with a vocabulary, how many of its words, from the top.
            Defaults to 4096 without, and to all words with one.
        weighting: "count"; "presence" (0 or 1); "log", 1 + log(count) where there is one; or
            "tf-idf", the count times log((1 + D) / (1 + d)) + 1 where d of D documents of
            `public_text` have the feature.
        vocabulary: a public file with a word on each line. Other words count for nothing.
        public_text: a public table, for "tf-idf": a `.txt` file with a document on each line, or
            a table with a column of this name or called "text".
        unit_norm: whether each row of words is scaled to a Euclidean norm of 1.

    Words are runs of letters and digits, an apostrophe within included, in lower case.

    Guarantee: a row depends on its own text and on files that are declared public.

    Edge cases: a missing value, or text without a known word, is zero in all features.

    Example:
        >>> from privada.tables import Text
        >>> Text(features=256, weighting="presence").unit_norm
        True
    """

    features: int | None = None
    weighting: str = "count"
    vocabulary: str | None = None
    public_text: str | None = None
    unit_norm: bool = True

    def __post_init__(self) -> None:
        if self.features is not None:
            integer("features", self.features, least=2)
        one_of("weighting", self.weighting, ("count", "presence", "log", "tf-idf"))
        for name in ("vocabulary", "public_text"):
            if getattr(self, name) is not None:
                printable_text(name, getattr(self, name), "It is the path of a public file.")
        if self.weighting == "tf-idf" and self.public_text is None:
            raise ArgumentError(
                'Expected public_text with weighting = "tf-idf", got none. How many documents have '
                "a word must not be counted in the private table: name a file of public text."
            )
        if self.weighting != "tf-idf" and self.public_text is not None:
            raise ArgumentError(
                f'Expected public_text with weighting = "tf-idf" only, got weighting='
                f"{self.weighting!r}. Remove one of them."
            )
        _flag("unit_norm", self.unit_norm)


@dataclass(frozen=True)
class Matrix:
    """A row of numbers for each record, between common bounds, divided by the larger of these.

    Args:
        width: how many numbers.
        low, high: the bounds of each. A value beyond them counts as the bound that it passed.
        sparse: whether the features are to be kept sparse. Zero must then be within the bounds.

    Guarantee: features in [-1, 1]; zero stays zero.

    Edge cases: NaN counts as zero.

    Example:
        >>> from privada.tables import Matrix
        >>> Matrix(width=2, low=0, high=255).features("pixels")
        ['pixels[0]', 'pixels[1]']
    """

    width: int
    low: float
    high: float
    sparse: bool = False

    def __post_init__(self) -> None:
        integer("width", self.width)
        check_bounds(self.low, self.high, "given", "linear")
        _flag("sparse", self.sparse)
        if self.sparse and not self.low <= 0 <= self.high:
            raise ArgumentError(
                f"Expected low <= 0 <= high with sparse = true, got low={self.low!r}, "
                f"high={self.high!r}. Else the zeros would not stay zero."
            )

    @property
    def largest(self) -> float:
        """What values are divided by."""
        return max(abs(self.low), abs(self.high))

    def features(self, column: str) -> list[str]:
        """Return the names of the features."""
        return [f"{column}[{place}]" for place in range(self.width)]


@dataclass(frozen=True)
class Ignore:
    """A column that is not used, and may be absent.

    Example:
        >>> from privada.tables import Ignore
        >>> Ignore().features("id")
        []
    """

    def features(self, column: str) -> list[str]:
        """Return no names."""
        return []


@dataclass(frozen=True)
class Person:
    """The column of identifiers: rows with one identifier are all rows of one person.

    It is never a feature. `encode` gives its values as `groups`, which a `Trainer` takes, and
    queries for bounds then protect all rows of a person. A table to predict from need not have it.

    Guarantee: nothing of an identifier gets into a feature, a name or an error.

    Edge cases: a missing identifier is refused, without a word on which row. Two spellings of one
    identifier are two persons.

    Example:
        >>> from privada.tables import Classes, Number, Person, Schema, Table, encode
        >>> columns = {"patient": Person(), "age": Number(low=0, high=100)}
        >>> schema = Schema(Classes("sick", ["no", "yes"]), columns)
        >>> table = Table({"patient": [7, 7], "age": [25, 75], "sick": ["no", "yes"]})
        >>> encode(table, schema).groups.tolist(), encode(table, schema).names
        (['7', '7'], ('age',))
    """

    def features(self, column: str) -> list[str]:
        """Return no names."""
        return []


ColumnType = Number | Mixed | Date | Category | Hashed | Text | Matrix | Ignore | Person
COLUMN_TYPES: dict[str, type[ColumnType]] = {
    "number": Number,
    "mixed": Mixed,
    "date": Date,
    "category": Category,
    "hashed": Hashed,
    "text": Text,
    "matrix": Matrix,
    "ignore": Ignore,
    "person": Person,
}


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"Expected {name} to be true or false, got {name}={value!r}.")
