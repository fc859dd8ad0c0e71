"""Writing TOML: as much of it as a schema needs."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(name: str) -> str:
    """Return a name as a key."""
    return name if _BARE.fullmatch(name) else _text(name)


def value(content: Any) -> str:
    """Return a string, a number, a truth value or a list of them."""
    if isinstance(content, bool):
        return "true" if content else "false"
    if isinstance(content, str):
        return _text(content)
    if isinstance(content, (list, tuple)):
        items = [value(item) for item in content]
        line = f"[{', '.join(items)}]"
        return line if len(line) < _WIDTH else "[\n" + "".join(f"    {i},\n" for i in items) + "]"
    number = float(content)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def document(comment: str, sections: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Return sections, each with its header and its keys, under a comment."""
    said = "".join(f"# {line}\n" for line in comment.splitlines())
    parts = [
        f"[{header}]\n" + "".join(f"{key(name)} = {value(held)}\n" for name, held in keys.items())
        for header, keys in sections
    ]
    return "\n".join([said, *parts] if said else parts)
