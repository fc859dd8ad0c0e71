"""The report: one page for people, in one file that needs nothing else; and a model's card."""

from privada.report.card import model_card, write_model_card
from privada.report.entries import Entry
from privada.report.page import write

__all__ = ["Entry", "model_card", "write", "write_model_card"]
