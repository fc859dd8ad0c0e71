"""Where the real data sets are, if anywhere."""

import os
from pathlib import Path

import pytest


def data_folder(file):
    """Return the folder named by PRIVADA_DATA, or skip loudly where it lacks a file."""
    folder = os.environ.get("PRIVADA_DATA")
    if not folder or not (Path(folder) / file).exists():
        pytest.skip(f"needs {file} in the folder that PRIVADA_DATA names; it is {folder!r}")
    return Path(folder)
