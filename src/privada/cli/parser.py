"""The parser under Typer, whichever release of the two is installed."""

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.models import ArgumentInfo

if TYPE_CHECKING:
    import click.exceptions as errors
else:
    # Typer has a copy of Click from 0.26 on, whose errors are of other classes.
    errors = import_module(typer.BadParameter.__module__)

__all__ = ["errors", "with_arguments_described"]


def with_arguments_described(command: Any) -> Any:
    """Return a command, or a group of them, whose arguments have their help.

    Click from 8.5 on has a help of its own for arguments, with which Typer's is lost before 0.26.
    """
    for each in getattr(command, "commands", {}).values():
        with_arguments_described(each)
    said = inspect.signature(command.callback).parameters if command.callback else {}
    for parameter in command.params:
        if parameter.param_type_name == "argument" and parameter.help is None:
            declared = getattr(said[parameter.name].annotation, "__metadata__", ())
            found = (each.help for each in declared if isinstance(each, ArgumentInfo))
            parameter.help = next(found, None)
    return command
