"""Figures of a model on public records, each with a baseline beside it."""

from privada.metrics.classification import accuracy, auc
from privada.metrics.losses import loss
from privada.metrics.metric import Metric, whole
from privada.metrics.regression import mean_absolute_error, r2
from privada.metrics.validation import Validation

__all__ = ["Metric", "Validation", "accuracy", "auc", "loss", "mean_absolute_error", "r2", "whole"]
