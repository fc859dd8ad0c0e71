"""Lets the sections of our docstrings appear as such in the API reference.

Griffe knows Google's sections. Guarantee, Edge cases and Reference are our own: paragraphs that
begin with their name.
"""

import re
from typing import Any

import griffe

_OWN = re.compile(
    r"^(?P<name>Guarantee|Edge cases|Guarantee and edge cases|Reference): "
    r"(?P<text>\S.*?)(?=\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
)

# Arguments that share a description, over as many lines as their names take.
_TOGETHER = re.compile(r"^    \w+(?:,\s+\w+)+:", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """Return a docstring with its guarantee in a box and the names of other sections in bold."""
    known = re.sub(r"^Example:$", "Examples: Example:", docstring, flags=re.MULTILINE)
    joined = _TOGETHER.sub(lambda found: "    " + " ".join(found[0].split()), known)
    return _OWN.sub(_section, joined)


def _section(found: re.Match[str]) -> str:
    name, text = found["name"], found["text"]
    text = text[0].upper() + text[1:]
    if name != "Guarantee":
        return f"**{name}.** {text}"
    box = "warning" if text.startswith(("None.", "None;", "None for")) else "info"
    lines = "\n".join(f"    {line}" for line in text.splitlines())
    return f'!!! {box} "{name}"\n\n{lines}'


class Sections(griffe.Extension):
    """Rewrites each docstring as it is found."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put our sections into words that Griffe and Markdown know."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
