"""New files: written whole, or not at all."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privada.core.errors import ArgumentError


@contextmanager
def new_file(place: Path) -> Iterator[Path]:
    """Yield the path of a draft that becomes the file at the end, and is removed on failure.

    A file that exists is left as it is. The draft's name has the same ending.
    """
    if place.exists() or place.is_symlink():
        raise ArgumentError(
            f"Expected a new file, got {str(place)!r}, which exists. Give another path, or remove "
            "it."
        )
    draft = place.with_name(f".{place.stem}.{os.urandom(4).hex()}.new{place.suffix}")
    try:
        draft.touch(exist_ok=False)
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.rename(place)
    except OSError as error:
        raise ArgumentError(
            f"Cannot write {str(place)!r}: {error.strerror or error}. Make room, or give a path "
            "that can be written."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
