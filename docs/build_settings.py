"""How the gallery's notebooks are run when the site is built; a hook of MkDocs."""

import os
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def on_config(config: Any) -> None:
    """Give each kernel one thread, and keep what notebooks drew for as long as the library stays.

    The models are small: on two busy cores a notebook took ten times as long with two threads as
    with one. The plugin's own cache looks at a notebook alone, and would show what an older library
    computed.
    """
    for name in _THREADS:
        os.environ.setdefault(name, "1")
    cache = _ROOT / ".cache" / "mkdocs-jupyter"
    kept = cache / _library()
    for old in cache.glob("*"):
        if old != kept:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    config.plugins["mkdocs-jupyter"].config["cache_dir"] = str(kept)


def _library() -> str:
    """Return a digest of the library's code."""
    digest = blake2b(digest_size=8)
    source = _ROOT / "src" / "privada"
    for path in sorted(source.rglob("*.py")):
        digest.update(path.relative_to(source).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
