"""Mistakes on the command line, each in one line: what was expected, what was given, what to do."""

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privada.cli.parser import errors

if TYPE_CHECKING:
    import click

_NUMBERS = {
    "integer": ("a whole number", " Write it in digits, such as 1000."),
    "float": ("a number", " Write it with a point, such as 0.5 or 1e-5."),
}
_NUMBERS["number"] = _NUMBERS["float"]
# Where an option is not called what the library calls its argument.
_OPTIONS = {"classes": "--class", "space": "--set", "batch_sizes": "--batch-size"}


def usage_in_words(error: errors.UsageError, asked: Sequence[str]) -> str:
    """Return what is wrong with the words of a command, and where its help is."""
    context = error.ctx
    path = f"privada {asked[0]}" if context is None else " ".join(context.command_path.split())
    return f"{_said(error, context, path)} Try {path} --help."


def _said(error: errors.UsageError, context: "click.Context | None", path: str) -> str:
    message = error.format_message().strip()
    if isinstance(error, errors.NoSuchOption):
        near = "".join(f" Did you mean {name}?" for name in (error.possibilities or ())[:1])
        return f"Expected an option of {path}, got {error.option_name}.{near}"
    if isinstance(error, errors.MissingParameter) and error.param is not None:
        return f"Expected {_name(error.param)}, got none."
    if isinstance(error, errors.BadOptionUsage) and "requires an argument" in message:
        return f"Expected a value after {error.option_name}, got none."
    number = re.match(
        r"(?:'(.*)' is not|.*) a valid (integer|float|number)", error.message, re.DOTALL
    )
    if isinstance(error, errors.BadParameter) and error.param is not None and number:
        what, remedy = _NUMBERS[number[2]]
        got = "something else" if number[1] is None else repr(number[1])
        return f"Expected {_name(error.param)} to be {what}, got {got}.{remedy}"
    extra = re.match(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", message, re.DOTALL)
    if extra:
        return f"Expected no further words, got {extra[1]!r}. Options begin with two dashes."
    unknown = re.match(r"No such command '(.*?)'", message, re.DOTALL)
    list_commands = getattr(context and context.command, "list_commands", None)
    if unknown and list_commands is not None:
        known = list_commands(context)
        near = "".join(
            f" Did you mean {name}?" for name in difflib.get_close_matches(unknown[1], known, 1)
        )
        return f"Expected one of {', '.join(known)}, got {unknown[1]!r}.{near}"
    return " ".join(message.split())


def _name(parameter: "click.Parameter") -> str:
    """Return an option with its dashes, an argument in capitals."""
    if parameter.param_type_name == "option":
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.name or "").upper()


def error_in_words(words: str, asked: Sequence[str]) -> str:
    """Return the words of an error with options spelt as they were given, and with a remedy.

    Args:
        words: what the library says, which calls arguments by their Python names.
        asked: the words of the command line.

    Example:
        >>> from privada.cli.mistakes import error_in_words
        >>> error_in_words("Expected lr > 0, got lr=-1.0.", ["train", "t.csv", "--lr", "-1"])
        'Expected --lr > 0, got -1.0. privada train --help says more.'
    """
    given = {word.partition("=")[0] for word in asked if word.startswith("--")}
    found = re.match(r"Expected (\w+) ", words)
    if found:
        name = found[1]
        option = _OPTIONS.get(name, "--" + name.replace("_", "-"))
        if option in given:
            words = f"Expected {option} {words[found.end() :]}".replace(f"got {name}=", "got ", 1)
    if not re.search(r"[.:;] ", words) and asked and not asked[0].startswith("-"):
        words = f"{words} privada {asked[0]} --help says more."
    return words
