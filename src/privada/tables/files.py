"""Files as bytes and as lines of text: plain or compressed, UTF-8, with faults in words."""

import bz2
import codecs
import contextlib
import gzip
import importlib
import io
import lzma
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from privada.core.errors import ArgumentError, DataError

Source = str | os.PathLike[str]


def _open_zst(path: Path, mode: str) -> IO[bytes]:
    arrow = importlib.import_module("pyarrow")
    return io.BufferedReader(arrow.input_stream(str(path), compression="zstd"))


COMPRESSED: dict[str, Callable[..., IO[Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zst,
}


def as_path(name: str, path: Source) -> Path:
    """Return a path, or say what was given instead."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"Expected {name} to be the path of a file, got {name}={path!r}.")
    scheme, mark, _ = str(path).partition("://")
    if mark and scheme.isalnum() and not Path(path).exists():  # the rest may have a password
        raise ArgumentError(
            f"Expected {name} to be a file, or the URL of a database that begins with sqlite://, "
            f"duckdb:// or postgresql://, with --query, got a URL that begins with {scheme}://. "
            "Download the file first."
        )
    return Path(path)


def ending(path: Path) -> str:
    """Return what the file's name ends with, without the compression."""
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return plain.suffix.lower()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file into a DataError of one line that names the path."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"Expected a file at {str(path)!r}, got none. Check the path.") from None
    except IsADirectoryError:
        raise DataError(
            f"Expected a file at {str(path)!r}, got a folder. Give one of the files in it."
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError):
        raise DataError(_damaged(path)) from None
    except OSError as error:
        if error.errno is None:  # which is how bz2 tells
            raise DataError(_damaged(path)) from None
        raise DataError(
            f"Cannot read {str(path)!r}: {error.strerror}. Check the path and the permissions."
        ) from None


def _damaged(path: Path) -> str:
    return (
        f"Expected {str(path)!r} to be a whole {path.suffix} file, got one that is cut short, "
        "damaged or of another format. Get it again."
    )


def opened(path: Path) -> IO[bytes]:
    """Open a file that may be compressed, to be read as bytes."""
    file: IO[bytes] = COMPRESSED.get(path.suffix.lower(), open)(path, "rb")
    return file


def lines(path: Path, shown: Path | None = None) -> Generator[str, None, None]:
    """Yield the lines of a text file with their ends.

    Errors name `shown`, by default the file: where a file is one record, the folder around it.
    They do not say which line, since that would tell of a record.
    """
    name = shown or path
    with reading(name), opened(path) as file:
        for number, raw in enumerate(file):
            yield decoded_line(raw, name, first=number == 0)


def decoded_line(raw: bytes, name: Path, *, first: bool = False) -> str:
    """Return bytes as text, without the mark that some files begin with."""
    text = _decoded(raw.removeprefix(codecs.BOM_UTF8) if first else raw, name)
    refuse_nul(raw, name)
    return text


def refuse_nul(raw: bytes, name: Path) -> None:
    """Raise if there are NUL bytes."""
    if b"\0" in raw:
        raise DataError(
            f"Expected text in {str(name)!r}, got NUL bytes. It is a binary file, UTF-16 or "
            "damaged; save it as UTF-8."
        )


def _decoded(raw: bytes, name: Path) -> str:
    with contextlib.suppress(UnicodeDecodeError):
        return raw.decode()
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            f"Expected UTF-8 text in {str(name)!r}, got UTF-16. Save it as UTF-8, or convert it: "
            "iconv -f utf-16 -t utf-8."
        )
    raise DataError(
        f"Expected UTF-8 text in {str(name)!r}, got bytes that are not. If it is Latin-1, convert "
        "it: iconv -f latin1 -t utf-8."
    )


def write_text(path: Source, text: str, *, replace: bool) -> None:
    """Write a text file; unless told to replace, leave one that exists as it is."""
    place = as_path("path", path)
    try:
        with place.open("w" if replace else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise ArgumentError(
            f"Expected a path without a file, got {str(path)!r}, which exists. Give another path."
        ) from None
    except OSError as error:
        raise ArgumentError(
            f"Cannot write {str(path)!r}: {error.strerror}. Give a path that can be written."
        ) from None


def write_durably(path: Path, text: str) -> None:
    """Replace a text file so that it outlives a crash, which leaves the old one or the new one."""
    try:
        unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
        try:
            with unfinished.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            with suppress(FileNotFoundError):
                unfinished.unlink()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ArgumentError(
            f"Cannot write {str(path)!r}: {error.strerror}. Make room, or give a path that can be "
            "written."
        ) from None
