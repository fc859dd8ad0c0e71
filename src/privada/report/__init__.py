"""The report: one page for people, in one file that needs nothing else."""

from privada.report.entries import Entry
from privada.report.page import write

__all__ = ["Entry", "write"]
