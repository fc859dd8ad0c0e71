"""How numbers are shown: one function for each kind, used by every text, table and chart."""

import math
from decimal import Decimal

_DIGITS = 4
_DELTA_DIGITS = 3
# Below, numbers are written out with commas; from here on, as powers of ten.
_LARGE = 1e9
# Where e to the power of an epsilon says more to a reader than the epsilon.
_LEAST_POWER, _LARGEST_POWER = 1e-3, 700.0


def round_up(value: float, digits: int = _DIGITS) -> str:
    """Return a number to so many significant digits, never below its value.

    Example:
        >>> from privada.core.formatting import round_up
        >>> round_up(1.99941), round_up(2.0)
        ('2', '2')
        >>> round_up(0.123401)
        '0.1235'
    """
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    shown = f"{value:.{digits}g}"
    if float(shown) >= value:
        return shown
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{(math.floor(value / unit) + 1) * unit:.{digits}g}"


def epsilon(value: float) -> str:
    """Return an epsilon to four significant digits, never below its value.

    Example:
        >>> from privada.core.formatting import epsilon
        >>> epsilon(4.46671), epsilon(1234.5), epsilon(0.0), epsilon(float("inf"))
        ('4.467', '1,235', '0', 'infinite')
    """
    if not math.isfinite(value):
        return number(value)
    if value <= 0:
        return "0"
    shown = round_up(value)
    if 1000 <= float(shown) < _LARGE:
        return f"{math.ceil(value):,}"
    return shown


def factor(value: float) -> str:
    """Return e to the power of an epsilon, and what that is about.

    Example:
        >>> from privada.core.formatting import factor
        >>> factor(1.0), factor(0.01), factor(10.0)
        ('e^1, about 2.7 times,', 'e^0.01, about 1.01 times,', 'e^10, about 22,000 times,')
        >>> factor(0.0), factor(float("inf"))
        ('e^0 times', 'e^infinite times')
    """
    power = f"e^{epsilon(value)}"
    if not _LEAST_POWER < value < _LARGEST_POWER:
        return f"{power} times"
    times = math.exp(value)
    # near 1, two digits of what is beyond it
    rounded = float(f"{times:.2g}") if times >= 10 else 1 + float(f"{times - 1:.2g}")
    return f"{power}, about {number(rounded)} times,"


def delta(value: float) -> str:
    """Return a delta to three significant digits, never below its value.

    Example:
        >>> from privada.core.formatting import delta
        >>> delta(1e-05), delta(0.00012341)
        ('1e-05', '0.000124')
    """
    return round_up(value, _DELTA_DIGITS)


def left(limit: float, spent: float) -> str:
    """Return what is left of an epsilon, so that it and what is shown as spent make the whole.

    Example:
        >>> from privada.core.formatting import left
        >>> left(3.0, 1.23401), left(4.46671, 4.46671), left(0.1, 0.0123)
        ('1.765', '0', '0.0877')
    """
    if not math.isfinite(spent):
        return "0"
    whole, used = (Decimal(epsilon(each).replace(",", "")) for each in (limit, spent))
    return f"{max(Decimal(0), whole - used).normalize():,f}"


def number(value: float, digits: int = _DIGITS) -> str:
    """Return a number that is neither an epsilon nor a delta, to so many significant digits.

    Example:
        >>> from privada.core.formatting import number
        >>> number(0.123456), number(12000), number(1234567.0), number(float("inf"))
        ('0.1235', '12,000', '1,234,567', 'infinite')
    """
    if math.isnan(value):
        return "none"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if float(value).is_integer() and abs(value) < _LARGE:
        return f"{value:,.0f}"
    if 1000 <= abs(value) < _LARGE:
        return f"{value:,.1f}"
    return f"{value:.{digits}g}"
