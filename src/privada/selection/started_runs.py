"""Which runs of a search were begun: noted durably before each, so that none is taken twice."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from privada.core.errors import LedgerError


class StartedRuns:
    """The numbers of the runs that were begun, in a hidden file while a search is on.

    It is beside the ledger; beside the state of the search if the ledger is not a file.

    The ledger itself must not be written to for each run: how many there are is a secret. The file
    is readable by its owner alone and is removed when the search is over.

    Args:
        beside: the path of the ledger or of the state; None where nothing can be resumed and
            nothing is kept.
        run: the name of the search.

    Guarantee: when `add` returns, the mark survives a crash.

    Edge cases: a file that is gone, damaged or cut short within a mark says nothing, and `read`
    returns None: every run may have been begun. Notes that somebody takes away whole, as
    by putting an older copy in its place, are not missed.

    Example:
        >>> from pathlib import Path
        >>> from privada.selection.started_runs import StartedRuns
        >>> marks = StartedRuns(Path("patients.ledger"), "select-1a2b3c4d")
        >>> marks.create()
        >>> marks.add(3)
        >>> marks.read()
        {3}
        >>> marks.remove()
    """

    def __init__(self, beside: Path | None, run: str) -> None:
        self._run = run
        self.path = None if beside is None else beside.with_name(f".{beside.name}.{run}.begun")

    def create(self) -> None:
        """Make the file, and leave one that is there as it is."""
        if self.path is None:
            return
        with self._writing():
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def add(self, number: int) -> None:
        """Note that a run is about to begin."""
        if self.path is None:
            return
        with self._writing():
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                mark = self._mark(number).encode()
                if os.write(handle, mark) != len(mark):
                    raise OSError("the disk took a part of it")
                os.fsync(handle)
            finally:
                os.close(handle)

    def read(self) -> set[int] | None:
        """Return the numbers of the runs that were begun, None if that cannot be known."""
        if self.path is None:
            return set()
        try:
            found = self.path.read_bytes().decode("ascii").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError):
            return None
        heads = [each.split(" ")[0] for each in found]
        numbers = {int(head) for head in heads if head.isdecimal()}
        whole = [self._mark(int(head)) if head.isdecimal() else "" for head in heads]
        return numbers if found == whole else None

    def remove(self) -> None:
        """Remove the file."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    def _mark(self, number: int) -> str:
        check = hashlib.sha256(f"{self._run} {number}".encode()).hexdigest()[:16]
        return f"{number} {check}\n"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerError(
                f"Cannot note in {str(self.path)!r} that a run begins: {error}. Without the note "
                "it could be taken twice; it was not begun. Check the folder and the disk."
            ) from error
