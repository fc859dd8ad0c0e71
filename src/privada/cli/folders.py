"""Folders of results: written whole, or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privada.cli.charges import holds_charges
from privada.core.errors import ArgumentError

LEDGER = "ledger"


def refuse_taken(folder: Path) -> None:
    """Raise if a folder for results is there already, or cannot be made."""
    if folder.exists():
        advice = "Give another --output."
        if holds_charges(folder / LEDGER):
            path = str(folder / LEDGER)
            advice = (
                "Keep it: its ledger says what was spent on these records. Go on with a stopped "
                f"run by --resume, or give another --output and --ledger {path}, which adds up."
            )
        raise ArgumentError(f"Expected a new folder, got {str(folder)!r}, which exists. {advice}")
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}."):
            pass
    except OSError as error:
        raise ArgumentError(
            f"Cannot write to {str(folder)!r}: {error.strerror}. Check that the folder around it "
            "exists and may be written."
        ) from error


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft that becomes the folder at the end, and is removed if something fails."""
    refuse_taken(folder)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield draft
        draft.chmod(0o755)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
