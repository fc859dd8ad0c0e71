"""Former names, which work for one minor version and say what they are called now."""

import warnings


def renamed(former: str, now: str, stacklevel: int = 3) -> None:
    """Warn that a name is a former one."""
    warnings.warn(
        f"{former} is now called {now}; the former name will be removed in the next minor version.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
