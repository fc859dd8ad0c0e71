"""Update rules and step-size controllers: all that happens after a release, which is free."""

from privada.updates.controllers import Controller, LearningRate, scheduled
from privada.updates.rules import Rule, State, sgd

__all__ = ["Controller", "LearningRate", "Rule", "State", "scheduled", "sgd"]
