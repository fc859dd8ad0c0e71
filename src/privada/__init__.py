"""Privada: train PyTorch models under differential privacy, with an honest bill.

The names below load what they need when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from privada.core.version import __version__ as __version__

_MODULES = (
    "accounting",
    "audit",
    "clipping",
    "execute",
    "features",
    "federated",
    "geometry",
    "huggingface",
    "loggers",
    "mechanism",
    "methods",
    "metrics",
    "noise",
    "objective",
    "participation",
    "preconditioning",
    "sampling",
    "selection",
    "tables",
    "updates",
    "workflows",
)
_NAMES = {
    "Budget": "privada.accounting",
    "Ledger": "privada.accounting",
    "Statement": "privada.accounting",
    "ClippedSum": "privada.core.values",
    "Public": "privada.core.public_examples",
    "Receipt": "privada.core.receipts",
    "Release": "privada.core.values",
    "GradientQuery": "privada.query.gradients",
    "Callback": "privada.train.callbacks",
    "EarlyStopping": "privada.train.stopping",
    "Evaluation": "privada.train.evaluations",
    "StopTraining": "privada.train.callbacks",
    "TrainingEvent": "privada.train.callbacks",
    "Validation": "privada.metrics.validation",
    "PrivateClassifier": "privada.scikit_learn.classifier",
    "PrivateImputer": "privada.scikit_learn.imputer",
    "PrivateLoop": "privada.train.loop",
    "PrivateRegressor": "privada.scikit_learn.regressor",
    "PrivateScaler": "privada.scikit_learn.scaler",
    "PrivateVectorizer": "privada.scikit_learn.vectorizer",
    "Trainer": "privada.train.trainer",
    "usable_records": "privada.train.usable",
    "load": "privada.workflows.private_model",
    "adas": "privada.train.public_training",
    "pad_to": "privada.data",
    "warm_start": "privada.train.public_training",
    "ArgumentError": "privada.core.errors",
    "BudgetExceeded": "privada.core.errors",
    "CheckpointError": "privada.core.errors",
    "DataError": "privada.core.errors",
    "DistributedError": "privada.core.errors",
    "EventError": "privada.core.errors",
    "LedgerError": "privada.core.errors",
    "ModelError": "privada.core.errors",
    "PrivadaError": "privada.core.errors",
    "PrivateValueError": "privada.core.errors",
}

if TYPE_CHECKING:
    from privada import (
        accounting,
        audit,
        clipping,
        execute,
        features,
        federated,
        huggingface,
        loggers,
        mechanism,
        methods,
        metrics,
        noise,
        objective,
        participation,
        preconditioning,
        selection,
        tables,
        updates,
        workflows,
    )
    from privada import (
        geometry as geometry,
    )
    from privada.accounting import Budget, Ledger, Statement
    from privada.core.errors import (
        ArgumentError,
        BudgetExceeded,
        CheckpointError,
        DataError,
        DistributedError,
        EventError,
        LedgerError,
        ModelError,
        PrivadaError,
        PrivateValueError,
    )
    from privada.core.public_examples import Public
    from privada.core.receipts import Receipt
    from privada.core.values import ClippedSum, Release
    from privada.data import pad_to
    from privada.metrics.validation import Validation
    from privada.query.gradients import GradientQuery
    from privada.scikit_learn.classifier import PrivateClassifier
    from privada.scikit_learn.imputer import PrivateImputer
    from privada.scikit_learn.regressor import PrivateRegressor
    from privada.scikit_learn.scaler import PrivateScaler
    from privada.scikit_learn.vectorizer import PrivateVectorizer
    from privada.train.callbacks import Callback, StopTraining, TrainingEvent
    from privada.train.evaluations import Evaluation
    from privada.train.loop import PrivateLoop
    from privada.train.public_training import adas, warm_start
    from privada.train.stopping import EarlyStopping
    from privada.train.trainer import Trainer
    from privada.train.usable import usable_records
    from privada.workflows.private_model import load

__all__ = [
    "ArgumentError",
    "Budget",
    "BudgetExceeded",
    "Callback",
    "CheckpointError",
    "ClippedSum",
    "DataError",
    "DistributedError",
    "EarlyStopping",
    "Evaluation",
    "EventError",
    "GradientQuery",
    "Ledger",
    "LedgerError",
    "ModelError",
    "PrivadaError",
    "PrivateClassifier",
    "PrivateImputer",
    "PrivateLoop",
    "PrivateRegressor",
    "PrivateScaler",
    "PrivateValueError",
    "PrivateVectorizer",
    "Public",
    "Receipt",
    "Release",
    "Statement",
    "StopTraining",
    "Trainer",
    "TrainingEvent",
    "Validation",
    "accounting",
    "adas",
    "audit",
    "clipping",
    "execute",
    "features",
    "federated",
    "huggingface",
    "load",
    "loggers",
    "mechanism",
    "methods",
    "metrics",
    "noise",
    "objective",
    "pad_to",
    "participation",
    "preconditioning",
    "selection",
    "tables",
    "updates",
    "usable_records",
    "warm_start",
    "workflows",
]

_FORMER = {"Gate": "GradientQuery"}
_ELSEWHERE = {
    "PrivacyEngine": ", which is Opacus's. In its place pv.PrivateLoop(model, optimizer, loss, "
    "data, clip=, batch_size=, epochs=, budget=) gives model, optimizer, criterion and loader."
}


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        from privada.core.deprecation import renamed

        renamed(f"privada.{name}", f"privada.{_FORMER[name]}")
        return __getattr__(_FORMER[name])
    if name in _MODULES:
        return importlib.import_module(f"privada.{name}")
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'privada' has no attribute {name!r}{_ELSEWHERE.get(name, '')}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
