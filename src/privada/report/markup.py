"""HTML that is safe by type: text is escaped unless it was made here."""

import html
import json
import math
from typing import Any


class Markup(str):
    """Text that is HTML already. Only this module makes it from pieces."""

    __slots__ = ()


Content = str | None
_EMPTY = ("br", "meta", "col")


def text(value: str) -> Markup:
    """Return a value as HTML: as it is if it is HTML already, else escaped.

    Example:
        >>> from privada.report.markup import text
        >>> text("<b>")
        '&lt;b&gt;'
    """
    return value if isinstance(value, Markup) else Markup(html.escape(value))


def join(*parts: Content) -> Markup:
    """Return pieces one after the other; None is nothing."""
    return Markup("".join(text(part) for part in parts if part is not None))


def element(name: str, *inside: Content, **attributes: str | float | bool | None) -> Markup:
    """Return an element. What is inside is escaped, and so are the values of attributes.

    An underscore in an attribute's name is a hyphen, and one at its end is left out; True is an
    attribute without a value, and None or False is no attribute.

    Example:
        >>> from privada.report.markup import element
        >>> element("p", "a < b", class_="words", data_value=2.0)
        '<p class="words" data-value="2.0">a &lt; b</p>'
    """
    shown = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        shown += f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'
    opening = f"<{name}{shown}>"
    return Markup(opening if name in _EMPTY else f"{opening}{join(*inside)}</{name}>")


def data(value: Any, identifier: str) -> Markup:
    """Return plain values as JSON in a script element, which nothing in them can end.

    Example:
        >>> from privada.report.markup import data
        >>> data({"name": "</script>"}, "charts")
        '<script type="application/json" id="charts">{"name": "\\\\u003c/script\\\\u003e"}</script>'
    """
    written = json.dumps(_finite(value), allow_nan=False)
    for sign in "<>&":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json" id="{identifier}">{written}</script>')


def _finite(value: Any) -> Any:
    """Return values with null where a number is not finite, which JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
