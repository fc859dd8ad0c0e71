"""The files beside and at a ledger's path: made whole in one step, and copied before an upgrade."""

import contextlib
import errno
import hashlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from privada.accounting.ledger.sqlite import connections
from privada.core.errors import LedgerError

# A draft is finished within milliseconds; one that is this much older than another is left over.
SECONDS_FOR_A_DRAFT = 3600.0


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path, so that a change of folder does not change the ledger."""
    if str(path) == ":memory:":
        raise LedgerError("Expected a path, got ':memory:'. Give None for one in memory.")
    try:
        found = Path(path).absolute()
        found.stat()
    except FileNotFoundError:
        pass
    except NotADirectoryError as error:
        raise LedgerError(
            f"Cannot open the ledger {str(path)!r}: {error.strerror}. "
            "Check that the folder exists and may be written."
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise LedgerError(
            f"Cannot open the ledger {str(path)!r}: {error}. Give the path of a file that "
            "may be written."
        ) from error
    return found


@contextlib.contextmanager
def _draft(path: Path, doing: str, name: str) -> Iterator[Path]:
    """Give an empty file beside the ledger, which is gone at the end unless it was renamed."""
    try:
        handle, made = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise LedgerError(
            f"Cannot {doing} the ledger {name!r}: {error.strerror}. "
            "Check that the folder exists and may be written."
        ) from error
    draft = Path(made)
    try:
        remove_old_drafts(path, draft)
        yield draft
    except (sqlite3.Error, OSError) as error:
        raise connections.in_words(error, doing, name) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def create(path: Path, name: str, write: Callable[[sqlite3.Connection], None]) -> None:
    """Make the file whole in one step: a half-written ledger never stands at its path."""
    with _draft(path, "create", name) as draft:
        with contextlib.closing(connections.connect(str(draft))) as connection:
            write(connection)
        with contextlib.suppress(FileExistsError):  # another process was first: use its file
            _link(draft, path, name)


def _link(draft: Path, path: Path, name: str) -> None:
    """Give a finished draft the ledger's name, unless that is taken: in one step."""
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise LedgerError(
            f"Cannot create the ledger {name!r}: its file system has no hard links "
            f"({error.strerror}), without which two processes could each make it. Keep the "
            "ledger on a local disk that has them, such as ext4, XFS, APFS or NTFS."
        ) from error


def keep_copy(path: Path, name: str, version: int) -> Path:
    """Copy the ledger, as it was last committed, beside itself; return where to.

    The copy of `patients.ledger` is `patients.ledger.format-1-` and the first eight digits of the
    digest of its bytes, so that no copy is ever written over by a different one. It is durable, and
    appears whole or not at all.

    The ledger is read by a connection of SQLite's: to read the file itself, and close it, would
    drop the locks that this process has on it.
    """
    with _draft(path, "copy", name) as draft:
        place = f"file:{quote(str(path))}?mode=ro"
        with (
            contextlib.closing(sqlite3.connect(place, uri=True)) as source,
            contextlib.closing(connections.connect(str(draft))) as target,
        ):
            source.backup(target)
        digest = hashlib.sha256(draft.read_bytes()).hexdigest()[:8]
        copy = path.with_name(f"{path.name}.format-{version}-{digest}")
        draft.chmod(path.stat().st_mode & 0o777)
        draft.replace(copy)
        _sync_folder(path.parent)
    return copy


def _sync_folder(folder: Path) -> None:
    """Have the disk keep the names in a folder, where folders can be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _drafts(path: Path) -> list[Path]:
    """Return what creations of this ledger, under way or killed, have in its folder."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}\.new(-journal)?")
    return [each for each in path.parent.iterdir() if name.fullmatch(each.name)]


def remove_old_drafts(path: Path, draft: Path) -> None:
    """Remove what killed creations left behind; both ages are by the file system's clock.

    A creation that is under way for so long after all finds its draft gone, and says so.
    """
    with contextlib.suppress(OSError):
        now = draft.stat().st_mtime
        for each in _drafts(path):
            with contextlib.suppress(OSError):
                if now - each.stat().st_mtime > SECONDS_FOR_A_DRAFT:
                    each.unlink()


def remove_other_name(path: Path) -> None:
    """Remove the draft's name of this very file, which a creation killed at its end leaves."""
    with contextlib.suppress(OSError):
        if path.stat().st_nlink > 1:
            for each in _drafts(path):
                if each.samefile(path):
                    each.unlink(missing_ok=True)


def find(path: Path) -> tuple[int, int] | None:
    """Return which file is at the path, by its device and number, whatever leads there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
