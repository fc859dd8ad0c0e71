"""Files of JSON in a folder of results."""

import json
from pathlib import Path
from typing import Any

from privada.core.errors import ArgumentError


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds, None if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArgumentError(
            f"Cannot read {str(path)!r}: {error.strerror}. Check the permissions."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"Expected JSON in {str(path)!r}, got something that is damaged or of another format."
        ) from error
