"""Arrays that grow by rows, in memory or in files, and do not fit into memory in the end."""

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from privada.tables.files import Source, as_path
from privada.tables.spooling import no_room, unnamed_file

# What a file system says that cannot take room ahead.
_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class _OnDisk(np.memmap):
    """An array in a file. Another process that it is sent to opens the file, and copies nothing."""

    place: str | None = None

    def __reduce__(self) -> Any:
        if self.place is None:  # a part of one, or in a file that has no name
            return np.array(self).__reduce__()
        return _opened, (self.place, self.dtype.str, self.shape)


def _opened(place: str | IO[bytes], dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    if not np.prod(shape):
        return np.empty(shape, dtype)
    return _OnDisk(place, dtype, "r", shape=shape)


class ArrayFiles:
    """Where arrays are written to: files in a folder, with names or without.

    Args:
        folder: where the files are; it is made if need be.
        named: whether they have names, and stay. Others are gone with the arrays in them.

    What is written under a name takes the place of what was written under it before.
    """

    def __init__(self, folder: Source, *, named: bool = False) -> None:
        self.folder, self._named = as_path("folder", folder), named
        self._files: dict[str, IO[bytes]] = {}
        self._paths: dict[str, Path] = {}

    def reserve(self, sizes: dict[str, int]) -> None:
        """Take the room for files of some sizes now, where that can be done."""
        for name, size in sizes.items():
            file = self._file(name)
            with _in_words(self.folder):
                if size and hasattr(os, "posix_fallocate"):
                    _reserve(file, size)

    def growing(self, name: str, dtype: Any, width: int | None = None) -> "GrowingArray":
        """Return an array without rows, each of `width` numbers or of one."""
        file, path = self._file(name), self._paths.get(name)
        file.seek(0)
        return GrowingArray(file, dtype, width, self.folder, path)

    def remove(self) -> None:
        """Remove the files."""
        for path in self._paths.values():
            path.unlink(missing_ok=True)

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            with _in_words(self.folder):
                if self._named:
                    self.folder.mkdir(parents=True, exist_ok=True)
                self._files[name] = self._new(name) if self._named else unnamed_file(self.folder)
        return self._files[name]

    def _new(self, name: str) -> IO[bytes]:
        path = self.folder / f"{name}-{os.urandom(4).hex()}.bin"
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        self._paths[name] = path
        return os.fdopen(made, "w+b")


def _reserve(file: IO[bytes], size: int) -> None:
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise


class GrowingArray:
    """An array of which rows are written to a file."""

    def __init__(
        self, file: IO[bytes], dtype: Any, width: int | None, folder: Path, path: Path | None
    ) -> None:
        self._file, self._dtype, self._folder, self._path = file, np.dtype(dtype), folder, path
        self._row: tuple[int, ...] = () if width is None else (width,)
        self.rows = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Write rows."""
        found = np.ascontiguousarray(rows, dtype=self._dtype)
        with _in_words(self._folder):
            self._file.write(found.data)
        self.rows += len(found)

    def array(self) -> NDArray[Any]:
        """Return what was written."""
        with _in_words(self._folder):
            self._file.flush()
        shape = (self.rows, *self._row)
        found = _opened(self._file, self._dtype, shape)
        if isinstance(found, _OnDisk):
            found.place = self._place()
            found.held = self._file  # type: ignore[attr-defined]
        return found

    def _place(self) -> str | None:
        """Return how another process of this machine and user can open the file."""
        if self._path is not None:
            return str(self._path.resolve())
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}" if sys.platform == "linux" else None


@contextlib.contextmanager
def _in_words(folder: Path) -> Any:
    """Say that there is no room, or no right, without a traceback that leads to a row."""
    reason = ""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
    if reason:
        raise no_room("features", folder, reason)
