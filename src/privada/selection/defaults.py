"""What is taken where a user says nothing, from the public number of records alone."""

from privada.core.validation import integer

EPOCHS = (1.0, 3.0, 10.0, 30.0, 100.0)
CANDIDATES = (1, 4, 10, 40, 1000)


def default_delta(records: int) -> float:
    """Return the largest power of ten that is not above n^-1.1, and so well below 1 / n.

    Guarantee: it depends on the number of records alone, which is taken as public.

    Edge cases: never above 0.1, which is for eight records or fewer.

    Example:
        >>> from privada.selection.planning import default_delta
        >>> default_delta(60_000), default_delta(1_000)
        (1e-06, 0.0001)
    """
    records = integer("records", records, remedy="Give the number of records.")
    places = 1
    while 10 ** (10 * places) < records**11:  # in whole numbers, so that powers of ten are exact
        places += 1
    return float(f"1e-{places}")


def default_batch_sizes(records: int) -> tuple[int, ...]:
    """Return up to five powers of two, each four times the last, up to a third of the records.

    Edge cases: none is below 16, unless a third of the records is.

    Example:
        >>> from privada.selection.planning import default_batch_sizes
        >>> default_batch_sizes(60_000)
        (64, 256, 1024, 4096, 16384)
    """
    third = max(1, integer("records", records, remedy="Give the number of records.") // 3)
    top = 1 << (third.bit_length() - 1)
    return tuple(top // 4**i for i in (4, 3, 2, 1, 0) if top // 4**i >= min(16, top))
