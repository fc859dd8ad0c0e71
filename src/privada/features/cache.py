"""Features that are kept in a file, so that they are computed once."""

import hashlib
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privada.core.errors import ArgumentError

try:
    import fcntl
except ImportError:  # on Windows, where an open file cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

Rows = NDArray[np.float32]

# A file is this mark, how many rows of how many numbers follow, a digest of all that, and the rows.
_MARK = b"privada features"
_DIGEST = 32
_HEADER = len(_MARK) + 16 + _DIGEST
# Numbers that are read at a time.
_READ = 1 << 22


def private_folder(given: str | os.PathLike[str]) -> Path:
    """Return a folder that nobody else can read, which is made if there is none."""
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"Expected cache to be the path of a folder, got cache={given!r}.")
    folder = Path(given)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise _unwritable(folder, error) from None
    if os.name == "posix" and mode & 0o077:
        raise ArgumentError(
            f"Expected cache to be a folder that only you can read, got {str(folder)!r} with mode "
            f"{mode:03o}. Features are as private as the records they come from: give another "
            f"folder, which is then made, or change this one: chmod 700 {str(folder)!r}."
        )
    return folder


def _unwritable(folder: Path, error: OSError) -> ArgumentError:
    return ArgumentError(
        f"Cannot keep features in {str(folder)!r}: {error.strerror}. Make room, or give another "
        "folder as cache."
    )


def kept(file: Path, shape: tuple[int, int]) -> Rows | None:
    """Return the rows in a file, which stays on disk, or None if it has none that are whole."""
    try:
        found = np.memmap(file, np.uint8, "r")
    except (FileNotFoundError, ValueError):  # there is none, or an empty one
        return None
    except OSError as error:
        raise _unwritable(file.parent, error) from None
    header = found[:_HEADER].tobytes()
    if len(found) == _HEADER + 4 * shape[0] * shape[1] and header[:-_DIGEST] == _start(shape):
        rows = found[_HEADER:].view(np.float32).reshape(shape)
        digest = hashlib.blake2b(_start(shape), digest_size=_DIGEST)
        for start in range(0, rows.size, _READ):
            digest.update(rows.reshape(-1)[start : start + _READ].data)
        if digest.digest() == header[-_DIGEST:]:
            return rows
    warnings.warn(
        f"The features in {str(file)!r} are damaged, and are computed anew.", stacklevel=2
    )
    return None


def keep(file: Path, shape: tuple[int, int], parts: Iterator[Rows]) -> Rows:
    """Write rows to a file, all or nothing; return them as they are there."""
    _remove_abandoned(file.parent)
    try:
        unfinished = _write(file, shape, parts)
        try:
            unfinished.replace(file)
        finally:
            with suppress(FileNotFoundError):
                unfinished.unlink()
        return np.memmap(file, np.float32, "r", offset=_HEADER, shape=shape)
    except OSError as error:
        raise _unwritable(file.parent, error) from None


def _write(file: Path, shape: tuple[int, int], parts: Iterator[Rows]) -> Path:
    """Write rows to a file of another name."""
    unfinished = file.with_name(f".{file.name}.{os.urandom(4).hex()}.new")
    try:
        with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "wb") as out:
            _lock(out)
            digest = hashlib.blake2b(_start(shape), digest_size=_DIGEST)
            out.write(_start(shape) + bytes(_DIGEST))
            for part in parts:
                digest.update(part.data)
                out.write(part.data)
            out.seek(_HEADER - _DIGEST)
            out.write(digest.digest())
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        raise
    return unfinished


def _start(shape: tuple[int, int]) -> bytes:
    return _MARK + np.array(shape, "<u8").tobytes()


def _lock(file: Any) -> None:
    """Show others that a file is being written; raise BlockingIOError if somebody else does."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes left that ended while they wrote."""
    for path in folder.glob(".*.features.*.new"):
        with suppress(OSError), path.open("rb") as file:
            _lock(file)
            path.unlink()
