"""Loggers that add lines to a text file."""

import os
from pathlib import Path
from typing import IO

from privada.core.errors import ArgumentError
from privada.core.validation import shown
from privada.loggers.logger import Logger
from privada.train.callbacks import TrainingEvent


class TextFileLogger(Logger):
    """A logger whose file is opened to add lines to it, each of which is passed on at once."""

    def __init__(self, path: str | os.PathLike[str], *, every: int | None = None) -> None:
        super().__init__(every=every)
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(f"Expected path to be that of a file, got path={shown(path)}.")
        self._path = Path(path)
        self._file: IO[str] | None = None

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._path

    def end(self, event: TrainingEvent) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        """Open the file, and return whether it is empty."""
        try:
            self._file = self._path.open("a", encoding="utf-8", newline="\n")
            return self._file.tell() == 0
        except OSError as error:
            raise ArgumentError(
                f"Cannot write to {str(self._path)!r}: {error.strerror}. Check that the folder "
                "exists and may be written."
            ) from error

    def _add(self, text: str) -> None:
        """Add text, and pass it on."""
        assert self._file is not None
        self._file.write(text)
        self._file.flush()
