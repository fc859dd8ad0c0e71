"""The honest price of choosing hyper-parameters, and a search that pays it.

The names below load what they need when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "WAYS": "prices",
    "Price": "prices",
    "noise_multiplier": "prices",
    "price": "prices",
    "Candidate": "candidates",
    "Selection": "search",
    "Tried": "search",
    "select": "search",
    "Grid": "spaces",
    "Random": "spaces",
    "Suggest": "spaces",
    "Trial": "spaces",
    "Coupling": "coupling",
    "Peak": "coupling",
    "coupling_grid": "coupling",
    "StepSizes": "step_sizes",
    "effective_step_sizes": "step_sizes",
    "Affordable": "planning",
    "plan": "planning",
    "Score": "scores",
    "accuracy": "scores",
    "bounded_loss": "scores",
}

if TYPE_CHECKING:
    from privada.query.scores import Score, accuracy, bounded_loss
    from privada.selection.candidates import Candidate
    from privada.selection.coupling import Coupling, Peak, coupling_grid
    from privada.selection.planning import Affordable, plan
    from privada.selection.prices import WAYS, Price, noise_multiplier, price
    from privada.selection.search import Selection, Tried, select
    from privada.selection.spaces import Grid, Random, Suggest, Trial
    from privada.selection.step_sizes import StepSizes, effective_step_sizes

__all__ = [
    "WAYS",
    "Affordable",
    "Candidate",
    "Coupling",
    "Grid",
    "Peak",
    "Price",
    "Random",
    "Score",
    "Selection",
    "StepSizes",
    "Suggest",
    "Trial",
    "Tried",
    "accuracy",
    "bounded_loss",
    "coupling_grid",
    "effective_step_sizes",
    "noise_multiplier",
    "plan",
    "price",
    "select",
]


def __getattr__(name: str) -> Any:
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
