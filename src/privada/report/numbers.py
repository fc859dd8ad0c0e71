"""Numbers and moments as people read them."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from privada.core import formatting
from privada.report.markup import Markup, element, join, text

_TIMES_TEN = re.compile(r"\b(\d+(?:\.\d+)?)e([+-])0*(\d+)\b|\be\^(\d+(?:,\d{3})*(?:\.\d+)?)")


def superscript(words: str) -> Markup:
    """Return words with powers set as powers.

    Example:
        >>> from privada.report.numbers import superscript
        >>> superscript("e^2, about 7.4 times, at 1e-05")
        'e<sup>2</sup>, about 7.4 times, at 10<sup>−5</sup>'
    """
    parts, end = [], 0
    for found in _TIMES_TEN.finditer(words):
        parts.append(text(words[end : found.start()]))
        factor, sign, power, of_e = found.groups()
        if of_e:
            parts.append(join("e", element("sup", of_e)))
        else:
            lead = "" if factor == "1" else f"{factor} × "
            minus = "−" if sign == "-" else ""
            parts.append(join(f"{lead}10", element("sup", f"{minus}{power}")))
        end = found.end()
    return join(*parts, words[end:])


def moment(value: str) -> Markup:
    """Return a moment of the ledger's, to the minute; words that are none as they are.

    Example:
        >>> from privada.report.numbers import moment
        >>> moment("2026-01-31T12:34:56+00:00")
        '<time datetime="2026-01-31T12:34:56+00:00"><span>2026-01-31</span> 12:34</time>'
    """
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return text(value)
    day = element("span", f"{read:%Y-%m-%d}")
    return element("time", day, f" {read:%H:%M}", datetime=value)


def plain(value: Any) -> str:
    """Return a setting in words, as it was given.

    Example:
        >>> from privada.report.numbers import plain
        >>> plain(0.1), plain(2.0), plain([1, 2]), plain(None), plain(True)
        ('0.1', '2', '1, 2', 'none', 'yes')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(each) for each in value) or "none"
    if isinstance(value, dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


# Kinds of numbers that a configuration may hold; other settings are shown as they were given.
_KINDS: dict[str, Callable[[float], str]] = {
    "epsilon": formatting.epsilon,
    "delta": formatting.delta,
    "noise multiplier": formatting.number,
}


def spaced(name: str) -> str:
    """Return the name of a setting in words.

    Example:
        >>> from privada.report.numbers import spaced
        >>> spaced("noise_multiplier")
        'noise multiplier'
    """
    return name.replace("_", " ")


def setting(name: str, value: Any) -> str:
    """Return a setting as the rest of the page shows its kind.

    Example:
        >>> from privada.report.numbers import setting
        >>> setting("noise_multiplier", 1.23456789), setting("lr", 0.123456), setting("delta", 1e-5)
        ('1.235', '0.123456', '1e-05')
    """
    kind = _KINDS.get(spaced(name))
    if kind is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return plain(value)
    return kind(value)
