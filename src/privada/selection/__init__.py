"""The honest price of choosing hyper-parameters, and a search that pays it.

The names below load what they need when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from privada.core.deprecation import renamed

_NAMES = {
    "WAYS": "prices",
    "Price": "prices",
    "noise_multiplier": "prices",
    "price": "prices",
    "Candidate": "candidates",
    "Selection": "result",
    "CandidateResult": "result",
    "select": "search",
    "Grid": "spaces",
    "RandomSpace": "spaces",
    "Suggest": "spaces",
    "Trial": "spaces",
    "Coupling": "coupling",
    "Peak": "coupling",
    "coupling_grid": "coupling",
    "StepSizes": "step_sizes",
    "effective_step_sizes": "step_sizes",
    "BudgetPlan": "planning",
    "plan": "planning",
    "Score": "scores",
    "accuracy": "scores",
    "bounded_loss": "scores",
}

if TYPE_CHECKING:
    from privada.query.scores import Score, accuracy, bounded_loss
    from privada.selection.candidates import Candidate
    from privada.selection.coupling import Coupling, Peak, coupling_grid
    from privada.selection.planning import BudgetPlan, plan
    from privada.selection.prices import WAYS, Price, noise_multiplier, price
    from privada.selection.result import CandidateResult, Selection
    from privada.selection.search import select
    from privada.selection.spaces import Grid, RandomSpace, Suggest, Trial
    from privada.selection.step_sizes import StepSizes, effective_step_sizes

__all__ = [
    "WAYS",
    "BudgetPlan",
    "Candidate",
    "CandidateResult",
    "Coupling",
    "Grid",
    "Peak",
    "Price",
    "RandomSpace",
    "Score",
    "Selection",
    "StepSizes",
    "Suggest",
    "Trial",
    "accuracy",
    "bounded_loss",
    "coupling_grid",
    "effective_step_sizes",
    "noise_multiplier",
    "plan",
    "price",
    "select",
]


# Former names, which work for one minor version.
_FORMER = {"Affordable": "BudgetPlan", "Random": "RandomSpace", "Tried": "CandidateResult"}


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        renamed(f"privada.selection.{name}", f"privada.selection.{_FORMER[name]}")
        return getattr(importlib.import_module("privada.selection"), _FORMER[name])
    if name not in _NAMES:
        raise AttributeError(f"module 'privada.selection' has no attribute {name!r}")
    home = (
        "privada.query.scores" if _NAMES[name] == "scores" else f"privada.selection.{_NAMES[name]}"
    )
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
