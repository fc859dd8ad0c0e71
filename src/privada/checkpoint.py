"""Checkpoints: one file, written whole or not at all, that holds values and no code."""

import contextlib
import os
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from privada.core.errors import CheckpointError

_FORMAT = "privada-checkpoint"
_VERSION = 1


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
            torch.save({"format": _FORMAT, "version": _VERSION, **content}, file)
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
    """Return a checkpoint's content; refuse one that was made with other settings."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"Cannot read the checkpoint {str(path)!r}: there is no such file."
        ) from error
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"Cannot read the checkpoint {str(path)!r}: it is damaged, cut short, or not a "
            "checkpoint. Use an earlier one; the ledger still knows what was spent."
        ) from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(
            f"Cannot read the checkpoint {str(path)!r}: it is not a Privada checkpoint."
        )
    if content["version"] > _VERSION:
        raise CheckpointError(
            f"Cannot read the checkpoint {str(path)!r}: it has format {content['version']}, this "
            f"Privada reads up to {_VERSION}. Upgrade Privada."
        )
    saved = content["settings"]
    differing = [key for key in settings if saved.get(key) != settings[key]]
    if differing:
        listed = "; ".join(f"{k}: {saved.get(k)!r} there, {settings[k]!r} here" for k in differing)
        raise CheckpointError(
            f"Expected the checkpoint {str(path)!r} to be of this run, but it differs in {listed}. "
            "Resume with the settings that the run was started with."
        )
    return dict(content)
