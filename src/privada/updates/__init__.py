"""Update rules and step-size controllers: all that happens after a release, which is free."""

from privada.updates.adaptive import (
    adagrad,
    adagrad_norm,
    adam,
    adam_bias_corrected,
    adam_without_second_moment,
    rmsprop,
)
from privada.updates.controllers import Controller, scheduled, step_doubling
from privada.updates.learning_rates import (
    LearningRate,
    cosine,
    decaying,
    falling,
    from_torch,
    inverse_sqrt,
    warmed_up,
)
from privada.updates.projections import Projection, ball, box, simplex
from privada.updates.public_data import (
    falling_weight,
    mixed_with_public,
    public_adam,
    public_rmsprop,
    public_subspace,
)
from privada.updates.rules import Move, Rule, State, averaged, momentum, sgd

__all__ = [
    "Controller",
    "LearningRate",
    "Move",
    "Projection",
    "Rule",
    "State",
    "adagrad",
    "adagrad_norm",
    "adam",
    "adam_bias_corrected",
    "adam_without_second_moment",
    "averaged",
    "ball",
    "box",
    "cosine",
    "decaying",
    "falling",
    "falling_weight",
    "from_torch",
    "inverse_sqrt",
    "mixed_with_public",
    "momentum",
    "public_adam",
    "public_rmsprop",
    "public_subspace",
    "rmsprop",
    "scheduled",
    "sgd",
    "simplex",
    "step_doubling",
    "warmed_up",
]
