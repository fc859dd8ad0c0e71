"""Where a table comes from: a path, the URL of a database, or a frame."""

from pathlib import Path
from typing import Any

from privada.tables.database import is_url, shown
from privada.tables.files import as_path
from privada.tables.frames import is_frame


def as_source(table: Any) -> Any:
    """Return a table as `pv.tables.read` takes it: a path as a path, others as they are."""
    return table if is_url(table) or is_frame(table) else as_path("the table", table)


def source_name(table: Any) -> str:
    """Return what a table is called: the name of its file or database, "table" for a frame.

    Example:
        >>> from privada.workflows.table_source import source_name
        >>> source_name("data/patients.csv.gz"), source_name("sqlite:///clinic.db")
        ('patients.csv.gz', 'clinic.db')
    """
    if is_frame(table):
        return "table"
    if is_url(table):
        return shown(table).partition("://")[2].rstrip("/").rpartition("/")[2] or "query"
    return Path(table).resolve().name


def same_file(public: Path, private: Any) -> bool:
    """Return whether a path is that of a private table."""
    return isinstance(private, Path) and public.exists() and public.samefile(private)
