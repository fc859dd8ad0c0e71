"""Former names, which work for one minor version and say what they are called now."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def renamed(former: str, now: str, stacklevel: int = 3) -> None:
    """Warn that a name is a former one."""
    warnings.warn(
        f"{former} is now called {now}; the former name will be removed in the next minor version.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def renamed_argument(former: str, now: str) -> Callable[[_Callable], _Callable]:
    """Return a decorator by which a function or a class takes an argument by its former name too.

    Example:
        >>> import warnings
        >>> from privada.core.deprecation import renamed_argument
        >>> @renamed_argument("geometry", "preconditioner")
        ... def scale_of(preconditioner):
        ...     return preconditioner
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     scale_of(geometry=2.0), caught[0].category.__name__
        (2.0, 'DeprecationWarning')
    """

    def accept(made: _Callable) -> _Callable:
        function: Any = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if former in kwargs:
                renamed(f"The argument {former} of {made.__name__}", now)
                if now in kwargs:
                    raise TypeError(f"{made.__name__} got {former} and {now}, which are the same.")
                kwargs[now] = kwargs.pop(former)
            return function(*args, **kwargs)

        if isinstance(made, type):
            made.__init__ = wrapped  # type: ignore[misc]
            return made
        return wrapped  # type: ignore[return-value]

    return accept
