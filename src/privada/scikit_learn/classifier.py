"""PrivateClassifier: private training behind fit and predict, for classes."""

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import nn

from privada.accounting import Ledger
from privada.core.errors import ArgumentError
from privada.methods import Method
from privada.scikit_learn.estimator import PrivateEstimator, refuse_weights
from privada.scikit_learn.inputs import Bounds


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A classifier that is trained under differential privacy.

    Args:
        epsilon, delta: what the fit may cost. By default delta is the largest power of ten not
            above n^-1.1.
        method: a method, its name, or None for DPAdamWOSM with a learning rate that follows from
            the number of steps.
        model: "linear", "mlp" or "module:factory".
        hidden: widths of the hidden layers of an "mlp".
        bounds: (low, high), numbers or one for each feature, known without the data: inputs are
            clipped to them and mapped to [-1, 1]. None takes inputs as they are.
        batch_size, epochs, lr, clip: as for `Trainer` and the method; chosen from n where left out.
        classes: all classes there can be. None takes those that occur, and counts them as public.
        ledger: a `Ledger`, or the path or URL of one, on which fits add up. None pays for a single
            fit: a second one on the same rows is refused.
        preprocessing: "check" refuses records that were prepared by what was learnt from private
            records, such as by a StandardScaler before this in a Pipeline. "public" says that it
            was learnt from public data, and the statement says so.
        seed: makes the fit reproducible, and not private. It is not named random_state, because
            ensembles of scikit-learn set each random_state that they find.
        unit: what one record stands for, in the statement's words.
        progress: show a bar.
        rows_per_unit: with `fit(X, y, groups=...)`, how many rows of a person a step looks at, at
            most; 8 by default.
        features: a torch module that each row goes through before the model, in training and in
            prediction, such as `pv.features.Scattering2D`, or an encoder that was trained on public
            data. It takes rows of numbers, within the bounds, and begins with `nn.Unflatten(1, (3,
            32, 32))` to make images of them; its weights stay as they are.
        cache: a folder in which the features of the private rows are kept, as for
            `pv.features.extract`. None keeps them in memory during the fit.

    Attributes:
        statement_: what was promised, what it cost and what it rests on.
        epsilon_: the epsilon of everything on the ledger when the fit was done. Of an ensemble, the
            ledger has the sum.
        model_: the torch module, features included. classes_, n_features_in_, history_ and others
            as usual.

    Guarantee: the fitted estimator is (epsilon, delta)-differentially private as `statement_` says.
    Without a ledger, no second fit in the process looks at the same rows, and none of the estimator
    itself or a clone of it at any: ensembles, searches and cross-validation of scikit-learn need a
    ledger, as does a fit in a process that another one started. A ledger that is given later is
    first charged for what was fitted on the same rows without one.

    Edge cases: sample weights, and ensembles that repeat rows (AdaBoost, bagging with
    bootstrap=True), are refused. The number of records, shapes and classes are public. Rows are the
    same if more than 1 in 100 have equal values at equal places in float32, or if a whole column or
    all targets are the same; rows that were changed in between are not recognised otherwise, nor
    are fits in other processes. A seeded fit is neither counted nor refused. Sparse inputs stay
    sparse with bounds that are symmetric, as (-1, 1); with others they are made dense, beyond 1 GiB
    row by row, which is slow.

    Example:
        >>> import privada as pv
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> digits = pv.PrivateClassifier(epsilon=2.0, bounds=(0, 16)).fit(x, y)
        >>> digits.epsilon_ <= 2.0, digits.predict(x[:3]).shape
        (True, (3,))

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Section 6, for the default method.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        method: Method | str | None = None,
        model: str = "linear",
        hidden: Sequence[int] = (64,),
        bounds: Bounds = None,
        batch_size: float | None = None,
        epochs: float | None = None,
        lr: float | None = None,
        clip: float | None = None,
        classes: Sequence[Any] | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        preprocessing: str = "check",
        seed: int | None = None,
        unit: str = "record",
        progress: bool = False,
        rows_per_unit: int | None = None,
        features: nn.Module | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            epsilon, delta=delta, method=method, model=model, hidden=hidden, bounds=bounds,
            batch_size=batch_size, epochs=epochs, lr=lr, clip=clip, ledger=ledger,
            preprocessing=preprocessing, seed=seed, unit=unit, progress=progress,
            rows_per_unit=rows_per_unit, features=features, cache=cache,
        )  # fmt: skip
        self.classes = classes

    def fit(self, X: Any, y: Any, *, groups: Any = None, **unsupported: Any) -> Self:
        """Train on private records.

        With `groups`, one identifier for each row, the promise is for all rows of a person.
        """
        refuse_weights(unsupported)
        X, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, numbers = self._numbered(y)
        self._train(X, numbers, len(self.classes_), nn.CrossEntropyLoss(), groups)
        return self

    def _numbered(self, labels: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        classes = np.unique(labels if self.classes is None else np.asarray(self.classes))
        if len(classes) < 2:
            raise ValueError(
                f"Expected at least 2 classes, got {len(classes)} class: one class leaves nothing "
                "to learn. Give classes= if others can occur."
            )
        numbers = np.searchsorted(classes, labels)
        numbers = np.minimum(numbers, len(classes) - 1)
        if not np.array_equal(classes[numbers], labels):
            raise ArgumentError(
                f"Expected labels among classes={self.classes!r}, got others. List all classes "
                "there can be."
            )
        return classes, numbers.astype(np.int64)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class, in the order of `classes_`."""
        scores = self._outputs(X).astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        exponentials = np.exp(scores)
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest class of each row."""
        scores = self._outputs(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags
