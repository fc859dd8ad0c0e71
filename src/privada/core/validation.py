"""Checks of arguments: each returns the value or says what is wrong with it and what to do."""

import math
import numbers
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from privada.core.errors import ArgumentError

_LONGEST = 80
_FEW = 3


def _arrays() -> tuple[Any, ...]:
    """Return the kinds of arrays that can be around; torch is not loaded for this."""
    torch = sys.modules.get("torch")
    return (np.ndarray,) if torch is None else (np.ndarray, torch.Tensor)


def shown(value: Any) -> str:
    """Return a value as an error may show it: in full if it is a setting, never what it holds.

    What holds data, such as a tensor that was given in the wrong place, is named by its type and
    its size.

    Example:
        >>> import torch
        >>> from privada.core.validation import shown
        >>> shown(0.5), shown("fast"), shown(torch.ones(2, 3)), shown([1.0, 2.0])
        ('0.5', "'fast'", 'a Tensor of shape (2, 3)', 'a list of 2')
        >>> shown(torch.optim.SGD)
        'the class SGD'
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    if isinstance(value, _arrays()):
        return f"{_a(kind)} of shape {tuple(value.shape)}"
    setting = value is None or isinstance(value, (numbers.Number, np.generic, str, bytes))
    if isinstance(value, (list, tuple)) and len(value) <= _FEW:
        setting = all(isinstance(each, str) for each in value)
    if setting:
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return f"{_a(kind)} of {len(value)}"
    return _a(kind)


def _a(kind: str) -> str:
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _fail(name: str, value: object, requirement: str, remedy: str) -> ArgumentError:
    hint = f" {remedy}" if remedy else ""
    return ArgumentError(f"Expected {name} {requirement}, got {name}={shown(value)}.{hint}")


def _scalar(name: str, value: Any, requirement: str, remedy: str) -> Any:
    """Return the number in a tensor or an array without dimensions, other values as they are."""
    if not isinstance(value, _arrays()) or value.ndim > 0:
        return value
    if getattr(value, "requires_grad", False):
        remedy = remedy or f"Give {name}.item(), a number that is not trained."
        raise _fail(name, value, requirement, remedy)
    return value.item()


def _number(value: Any) -> Any:
    """Return a value that was found to be a number as an error shows it."""
    return value.item() if isinstance(value, _arrays()) else value


def real(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a finite float.

    A number of NumPy's and a tensor without dimensions are numbers; one that is trained is not.
    """
    number = _scalar(name, value, "to be a number", remedy)
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise _fail(name, value, "to be a number", remedy)
    try:
        found = float(number)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise _fail(name, number, "to be finite", remedy)
    return found


def positive(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a finite float greater than zero."""
    number = real(name, value, remedy)
    if number <= 0:
        raise _fail(name, _number(value), "> 0", remedy)
    return number


def not_negative(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a finite float of at least zero."""
    number = real(name, value, remedy)
    if number < 0:
        raise _fail(name, _number(value), ">= 0", remedy)
    return number


def probability(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a float strictly between zero and one."""
    number = real(name, value, remedy)
    if not 0 < number < 1:
        raise _fail(name, _number(value), "in (0, 1)", remedy)
    return number


def fraction(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a float in [0, 1)."""
    number = real(name, value, remedy)
    if not 0 <= number < 1:
        raise _fail(name, _number(value), "in [0, 1)", remedy)
    return number


def share(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a float in [0, 1]."""
    number = real(name, value, remedy)
    if not 0 <= number <= 1:
        raise _fail(name, _number(value), "in [0, 1]", remedy)
    return number


def rate(name: str, value: Any, remedy: str = "") -> float:
    """Return `value` as a float in (0, 1]."""
    number = real(name, value, remedy)
    if not 0 < number <= 1:
        raise _fail(name, _number(value), "in (0, 1]", remedy)
    return number


def integer(name: str, value: Any, least: int = 1, remedy: str = "") -> int:
    """Return `value` as an int of at least `least`."""
    number = _scalar(name, value, "to be a whole number", remedy)
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise _fail(name, value, "to be a whole number", remedy)
    if number < least:
        raise _fail(name, number, f">= {least}", remedy)
    return int(number)


def flag(name: str, value: Any, remedy: str = "") -> bool:
    """Return `value` as a bool: True or False, not what merely counts as one of them."""
    if not isinstance(value, (bool, np.bool_)):
        raise _fail(name, value, "to be True or False", remedy)
    return bool(value)


def instance(name: str, value: Any, kinds: Any, requirement: str, remedy: str = "") -> Any:
    """Return `value` if it is of one of some kinds; `requirement` says so in words."""
    if not isinstance(value, kinds):
        raise _fail(name, value, requirement, remedy)
    return value


def printable_text(name: str, value: Any, remedy: str = "") -> str:
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
