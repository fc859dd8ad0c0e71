"""The logger for a path, by its ending."""

import os
from pathlib import Path

from privada.core.errors import ArgumentError
from privada.loggers.csv_file import CSV
from privada.loggers.json_lines import JSONLines
from privada.loggers.logger import Logger
from privada.loggers.tensorboard import TensorBoard

_FILES = {".jsonl": JSONLines, ".csv": CSV}


def logger_for(path: str | os.PathLike[str]) -> Logger:
    """Return the logger for a file that ends in .jsonl or .csv, else that for TensorBoard.

    Example:
        >>> from privada.loggers.by_path import logger_for
        >>> type(logger_for("run.jsonl")).__name__, type(logger_for("runs/first")).__name__
        ('JSONLines', 'TensorBoard')
    """
    place = Path(path)
    if place.suffix.lower() not in _FILES:
        return TensorBoard(place)
    if not place.parent.is_dir() or place.is_dir():
        raise ArgumentError(
            f"Cannot write to {str(place)!r}: it is a folder, or is in none that exists. Give a "
            "file in a folder that exists."
        )
    return _FILES[place.suffix.lower()](place)
