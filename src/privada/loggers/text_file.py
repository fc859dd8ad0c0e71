"""A text file that lines are added to."""

import os
from pathlib import Path
from typing import IO

from privada.core.errors import ArgumentError
from privada.core.validation import shown


class TextFile:
    """A file that is opened to add lines to it, each of which is passed on at once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(f"Expected path to be that of a file, got path={shown(path)}.")
        self.path = Path(path)
        self._file: IO[str] | None = None

    def open(self) -> bool:
        """Open the file, and return whether it is empty."""
        try:
            self._file = self.path.open("a", encoding="utf-8", newline="\n")
            return self._file.tell() == 0
        except OSError as error:
            raise ArgumentError(
                f"Cannot write to {str(self.path)!r}: {error.strerror}. Check that the folder "
                "exists and may be written."
            ) from error

    def write(self, text: str) -> None:
        """Add text, and pass it on."""
        assert self._file is not None
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            self._file.close()
            self._file = None
