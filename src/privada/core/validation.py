"""Checks of arguments: each returns the value or says what is wrong with it and what to do."""

import math
import numbers
from collections.abc import Iterable
from typing import Any

from privada.core.errors import ArgumentError


def _fail(name: str, value: object, requirement: str, remedy: str) -> ArgumentError:
    hint = f" {remedy}" if remedy else ""
    return ArgumentError(f"Expected {name} {requirement}, got {name}={value!r}.{hint}")


def real(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _fail(name, value, "to be a number", remedy)
    if not math.isfinite(value):
        raise _fail(name, value, "to be finite", remedy)
    return float(value)


def positive(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a finite float greater than zero."""
    number = real(name, value, remedy)
    if number <= 0:
        raise _fail(name, value, "> 0", remedy)
    return number


def not_negative(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a finite float of at least zero."""
    number = real(name, value, remedy)
    if number < 0:
        raise _fail(name, value, ">= 0", remedy)
    return number


def probability(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a float strictly between zero and one."""
    number = real(name, value, remedy)
    if not 0 < number < 1:
        raise _fail(name, value, "in (0, 1)", remedy)
    return number


def fraction(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a float in [0, 1)."""
    number = real(name, value, remedy)
    if not 0 <= number < 1:
        raise _fail(name, value, "in [0, 1)", remedy)
    return number


def share(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a float in [0, 1]."""
    number = real(name, value, remedy)
    if not 0 <= number <= 1:
        raise _fail(name, value, "in [0, 1]", remedy)
    return number


def rate(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a float in (0, 1]."""
    number = real(name, value, remedy)
    if not 0 < number <= 1:
        raise _fail(name, value, "in (0, 1]", remedy)
    return number


def whole(name: str, value: Any, least: int = 1, remedy: str = "") -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _fail(name, value, "to be a whole number", remedy)
    if value < least:
        raise _fail(name, value, f">= {least}", remedy)
    return int(value)


def words(name: str, value: Any, remedy: str = "") -> str:
    """Return `value` as a plain string that is not empty and can be stored as text."""
    if not isinstance(value, str):
        raise _fail(name, value, "to be a string", remedy)
    plain = str(value)
    if not plain or not plain.isprintable():
        raise _fail(name, value, "to have printable characters only, and at least one", remedy)
    return plain


def one_of(name: str, value: Any, choices: Iterable[str], remedy: str = "") -> str:
    """Return `value` if it is one of `choices`."""
    names = tuple(choices)
    if not isinstance(value, str) or value not in names:
        listed = ", ".join(repr(choice) for choice in names)
        raise _fail(name, value, f"to be one of {listed}", remedy)
    return value
