"""Dates and times as numbers: a place between public bounds, and places in cycles."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from privada.core.errors import ArgumentError
from privada.core.validation import printable_text
from privada.tables.cells import CellError

# What comes again, and how many of it there are until it does.
CYCLES = {"month": 12, "day": 31, "weekday": 7, "hour": 24}
WAVES = ("sine", "cosine")
# Between these a date is placed where nothing is known of a column.
PUBLIC_DATES = ("1950-01-01", "2050-01-01")

_NO_DATE = CellError(
    "a date",
    "Correct it, list it under options.missing of a schema, or say what the column holds: "
    '--column "{column}=date:%d.%m.%Y", or format in a schema, says how dates are written, '
    '--column "{column}=hashed" takes any text.',
)


def iso_text(name: str, value: Any) -> str:
    """Return a bound as ISO 8601 text, or say what is wrong with it."""
    text = value.isoformat() if isinstance(value, date) else value
    try:
        datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"Expected {name} to be a date such as 2020-12-31, got {name}={value!r}. Give bounds "
            "that are known without looking at the private table."
        ) from None
    return str(text)


def check_format(format: Any) -> None:
    """Raise unless dates can be written and parsed in a format."""
    printable_text("format", format)
    day = datetime(2000, 2, 1, tzinfo=UTC)
    try:
        if "%" in format and datetime.strptime(day.strftime(format), format):
            return
    except (ValueError, re.error):
        pass
    raise ArgumentError(
        f'Expected a format such as "%d.%m.%Y", as strptime takes it, got format={format!r}.'
    )


def check_zone(zone: Any) -> None:
    """Raise unless a time zone is known."""
    printable_text("zone", zone)
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError):  # which ZoneInfoNotFoundError is
        pass
    else:
        return
    raise ArgumentError(
        f'Expected a time zone such as "Europe/Berlin", got zone={zone!r}. Where no time zones are '
        "installed, pip install tzdata."
    )


@dataclass(frozen=True)
class Calendar:
    """What turns the text of a date into features, by public bounds and a time zone."""

    low: str
    high: str
    parts: tuple[str, ...]
    format: str | None
    zone: str

    @cached_property
    def _here(self) -> ZoneInfo:
        return ZoneInfo(self.zone)

    @cached_property
    def first(self) -> float:
        """The lower bound, in seconds."""
        return self._local(datetime.fromisoformat(self.low)).timestamp()

    @cached_property
    def last(self) -> float:
        """The upper bound, in seconds."""
        return self._local(datetime.fromisoformat(self.high)).timestamp()

    def _local(self, moment: datetime) -> datetime:
        """Return a moment as it is told in the time zone."""
        if moment.tzinfo is None:
            return moment.replace(tzinfo=self._here)
        return moment.astimezone(self._here)

    def features(self, text: str) -> tuple[float, ...]:
        """Return the features of a date; raise a CellError, which holds no text, if it is none."""
        try:
            if self.format is None:
                moment = datetime.fromisoformat(text)
            else:
                moment = datetime.strptime(text, self.format)
            local = self._local(moment)
            seconds = local.timestamp()
        except (ValueError, OverflowError):
            raise _NO_DATE from None
        share = (min(max(seconds, self.first), self.last) - self.first) / (self.last - self.first)
        place = min(max(share * 2 - 1, -1.0), 1.0)
        return (place, *(wave for part in self.parts for wave in _waves(part, local)))

    def all_features(self, texts: list[str | None]) -> NDArray[np.float32]:
        """Return the features of dates, zero for what is missing."""
        nothing = (0.0,) * (1 + 2 * len(self.parts))
        rows = [nothing if text is None else self.features(text) for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), len(nothing))


def _waves(part: str, moment: datetime) -> tuple[float, float]:
    place: float = {
        "month": moment.month - 1,
        "day": moment.day - 1,
        "weekday": moment.weekday(),
        "hour": moment.hour + moment.minute / 60,
    }[part]
    angle = 2 * math.pi * place / CYCLES[part]
    return math.sin(angle), math.cos(angle)
