"""Update rules and step-size controllers: all that happens after a release, which is free."""

from privada.updates.adaptive import adagrad, adam, adam_without_second_moment, rmsprop
from privada.updates.controllers import Controller, LearningRate, scheduled
from privada.updates.rules import Rule, State, momentum, sgd

__all__ = [
    "Controller",
    "LearningRate",
    "Rule",
    "State",
    "adagrad",
    "adam",
    "adam_without_second_moment",
    "momentum",
    "rmsprop",
    "scheduled",
    "sgd",
]
