"""Copies in the place of parameters, for as long as a model runs on them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def replaced(modules: Iterable[nn.Module], copies: Mapping[int, Tensor]) -> Iterator[None]:
    """Let modules use copies instead of their parameters, by the parameters' ids.

    A parameter is replaced wherever it is: tied, in a module with two names, in a loss. (torch's
    `functional_call` leaves its copies behind in modules with two names.)
    """
    places = [
        (module._parameters, name, parameter)
        for module in dict.fromkeys(modules)
        for name, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in copies
    ]
    try:
        for parameters, name, parameter in places:
            parameters[name] = copies[id(parameter)]  # type: ignore[assignment]
        yield
    finally:
        for parameters, name, parameter in places:
            parameters[name] = parameter
