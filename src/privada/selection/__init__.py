"""The honest price of choosing hyper-parameters, and a search that pays it."""

from privada.scores import Score, accuracy, bounded_loss
from privada.selection.candidates import Candidate
from privada.selection.prices import WAYS, Price, noise_multiplier, price
from privada.selection.search import Selection, Tried, select
from privada.selection.spaces import Grid, Random, Suggest, Trial

__all__ = [
    "WAYS",
    "Candidate",
    "Grid",
    "Price",
    "Random",
    "Score",
    "Selection",
    "Suggest",
    "Trial",
    "Tried",
    "accuracy",
    "bounded_loss",
    "noise_multiplier",
    "price",
    "select",
]
