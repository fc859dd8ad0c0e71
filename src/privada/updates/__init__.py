"""Update rules and step-size controllers: post-processing of releases, at no privacy cost."""

from typing import Any

from privada.core.deprecation import renamed
from privada.core.values import State
from privada.updates.adaptive import (
    adagrad,
    adagrad_norm,
    adam,
    adam_bias_corrected,
    adam_without_second_moment,
    rmsprop,
)
from privada.updates.controllers import (
    Controller,
    Scheduled,
    StepDoubling,
    scheduled,
    step_doubling,
)
from privada.updates.learning_rates import (
    LearningRate,
    cosine,
    decaying,
    falling,
    from_torch,
    inverse_sqrt,
    warmed_up,
)
from privada.updates.projections import Ball, Box, Projection, Simplex, ball, box, simplex
from privada.updates.public_data import (
    falling_weight,
    mixed_with_public,
    public_adam,
    public_rmsprop,
    public_subspace,
)
from privada.updates.rules import ParameterStep, UpdateRule, averaged, momentum, sgd

__all__ = [
    "Ball",
    "Box",
    "Controller",
    "LearningRate",
    "ParameterStep",
    "Projection",
    "Scheduled",
    "Simplex",
    "State",
    "StepDoubling",
    "UpdateRule",
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
_FORMER = {"Move": "ParameterStep", "Rule": "UpdateRule"}


def __getattr__(name: str) -> Any:
    if name not in _FORMER:
        raise AttributeError(f"module 'privada.updates' has no attribute {name!r}")
    renamed(f"privada.updates.{name}", f"privada.updates.{_FORMER[name]}")
    return globals()[_FORMER[name]]
