"""What is asked of `privada train`, on the command line and in a file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from privada.core.errors import ArgumentError


@dataclass(frozen=True)
class Wanted:
    """What was asked for: the options of the command, and the names in a configuration file."""

    epsilon: float
    target: str | None = None
    schema: str | None = None
    classes: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    delta: float | None = None
    method: str | None = None
    model: str = "linear"
    hidden: tuple[int, ...] = (64,)
    batch_size: float | None = None
    epochs: float | None = None
    lr: float | None = None
    clip: float | None = None
    public: str | None = None
    public_rows: str | None = None
    unit: str = "record"
    ledger: str | None = None
    when_lost: str = "refuse"
    seed: int | None = None


def merged(config: Path | None, given: Mapping[str, Any]) -> Wanted:
    """Return what a configuration file and the command line say; the latter has the last word."""
    said: dict[str, Any] = {}
    if config is not None:
        try:
            said = tomllib.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArgumentError(
                f"Cannot read the configuration {str(config)!r}: {error}."
            ) from error
    names = {each.name for each in fields(Wanted)}
    found = {key.replace("-", "_"): value for key, value in said.items()}
    if "class" in found:  # as the option is called
        found["classes"] = found.pop("class")
    unknown = sorted(set(found) - names)
    if unknown:
        raise ArgumentError(
            f"Expected the names of options in {str(config)!r}, got {', '.join(unknown)}. Known: "
            f"{', '.join(sorted(names))}."
        )
    found |= {key: value for key, value in given.items() if value not in (None, (), [])}
    for name in ("classes", "text", "hidden"):
        if name in found:
            value = found[name]
            found[name] = tuple(value) if isinstance(value, list | tuple) else (value,)
    if "epsilon" not in found:
        raise ArgumentError("Expected epsilon, got none. Give --epsilon, or write it in --config.")
    return Wanted(**found)
