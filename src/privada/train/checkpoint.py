"""Checkpoints: one file, written whole or not at all, that holds values and no code."""

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from privada.core.errors import CheckpointError

# The file is this mark, the SHA-256 of what follows, and a dictionary as torch saves it.
_MARK = b"PRIVADA\x01"
_VERSION = 1
_KINDS = {
    "settings": dict,
    "run": str,
    "step": int,
    "done": int,
    "finished": bool,
    "prepared": bool,
    "shape": dict,
    "model": dict,
    "rule": dict,
    "controller": dict,
    "rates": list,
    "positions": dict,
}


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write a checkpoint so that a crash leaves the old file or the new one, never a part."""
    target = Path(path)
    try:
        handle, draft = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".new", dir=target.parent
        )
    except OSError as error:
        raise CheckpointError(
            f"Cannot write the checkpoint {str(target)!r}: {error.strerror}. "
            "Check that the folder exists and may be written."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            packed = io.BytesIO()
            torch.save({"version": _VERSION, **content}, packed)
            file.write(_MARK + hashlib.sha256(packed.getvalue()).digest())
            file.write(packed.getvalue())
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(target)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"Cannot write the checkpoint {str(target)!r}: {error}. The old one is untouched."
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(draft).unlink()


def read(path: str | os.PathLike[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Return a run's checkpoint; refuse one that was made with other settings."""
    name = str(path)
    content = load(path, _KINDS, "Trainer.save")
    saved = content["settings"]
    differing = [key for key in settings if saved.get(key) != settings[key]]
    if differing:
        listed = "; ".join(f"{k}: {saved.get(k)!r} there, {settings[k]!r} here" for k in differing)
        raise CheckpointError(
            f"Expected the checkpoint {name!r} to be of this run, but it differs in {listed}. "
            "Resume with the settings that the run was started with."
        )
    return content


def load(path: str | os.PathLike[str], kinds: Mapping[str, type], writer: str) -> dict[str, Any]:
    """Return a checkpoint's content, whose parts must be of the given kinds."""
    name = str(path)
    content = _unpack(name, _bytes_of(path))
    if content.get("version") != _VERSION:
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: it has format {content.get('version')}, this "
            f"Privada reads format {_VERSION}. Upgrade Privada."
        )
    wrong = [key for key, kind in kinds.items() if not isinstance(content.get(key), kind)]
    if wrong:
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: its parts {wrong} are missing or of another "
            f"kind. Use one that {writer} wrote."
        )
    return content


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"Cannot read the checkpoint {str(path)!r}: there is no such file."
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"Cannot read the checkpoint {str(path)!r}: {error.strerror}."
        ) from error


def _unpack(name: str, whole: bytes) -> dict[str, Any]:
    digest, packed = whole[len(_MARK) :][:32], whole[len(_MARK) + 32 :]
    if not whole.startswith(_MARK):
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: it is not a Privada checkpoint, or its "
            "beginning is damaged."
        )
    if hashlib.sha256(packed).digest() != digest:
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: it is damaged or cut short. Use an earlier "
            "one; the ledger still knows what was spent."
        )
    try:
        content = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises for what it will not load
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: it holds something other than plain values."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"Cannot read the checkpoint {name!r}: it is not a Privada one.")
    return content
