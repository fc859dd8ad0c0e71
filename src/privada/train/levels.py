"""How much noise a budget needs, of levels on a lattice."""

import math
from collections.abc import Callable

# The least and the most noise that is tried.
LEAST_LEVEL, MOST_LEVEL = 2.0**-20, 2.0**20


def least_level(
    fits: Callable[[float], bool], start: float, points_per_doubling: int
) -> float | None:
    """Return the least level that fits, looking from `start` on; None if the largest does not.

    Levels are powers of two, so many to each doubling; all above one that fits do as well.

    Example:
        >>> from privada.train.levels import least_level
        >>> least_level(lambda level: level >= 3.0, start=1.0, points_per_doubling=1)
        4.0
    """

    def at(place: int) -> float:
        return float(2.0 ** (place / points_per_doubling))

    least, most = (
        round(math.log2(each) * points_per_doubling) for each in (LEAST_LEVEL, MOST_LEVEL)
    )
    low = high = min(max(round(math.log2(start) * points_per_doubling), least), most)
    stride = 1
    if fits(at(high)):
        while fits(at(low := max(least, high - stride))):
            high, stride = low, 2 * stride
            if low == least:
                return at(least)
    else:
        while not fits(at(high := min(most, low + stride))):
            if high == most:
                return None
            low, stride = high, 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(at(middle)) else (middle, high)
    return at(high)
