"""The sections of the page: each a function of the runs and ledgers that returns HTML."""

from privada.report.sections.budget import budget
from privada.report.sections.charges import charges
from privada.report.sections.membership import membership
from privada.report.sections.promise import banner, promise
from privada.report.sections.results import comparison, metrics
from privada.report.sections.terms import configuration, limits, statements
from privada.report.sections.training import training
from privada.report.sections.tuning import tuning

__all__ = [
    "banner",
    "budget",
    "charges",
    "comparison",
    "configuration",
    "limits",
    "membership",
    "metrics",
    "promise",
    "statements",
    "training",
    "tuning",
]
