"""scikit-learn estimators: private training behind fit and predict."""

import inspect
import math
import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from privada import defaults
from privada.accounting import Budget, Ledger, Statement
from privada.core.errors import ArgumentError
from privada.core.randomness import make_bits
from privada.core.validation import whole
from privada.methods import Method
from privada.models import Architecture
from privada.noise.hidden import hidden_generator
from privada.selection.planning import default_delta
from privada.training import Trainer

_CHUNK = 8192
Bounds = tuple[Any, Any] | None


class _Private(BaseEstimator):  # type: ignore[misc]
    """What both estimators share."""

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
        ledger: Ledger | str | os.PathLike[str] | None = None,
        random_state: int | None = None,
        unit: str = "record",
        progress: bool = False,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.method, self.model, self.hidden = method, model, hidden
        self.bounds, self.batch_size, self.epochs = bounds, batch_size, epochs
        self.lr, self.clip, self.ledger = lr, clip, ledger
        self.random_state, self.unit, self.progress = random_state, unit, progress

    # ------------------------------------------------------------------ fitting

    def _train(self, inputs: Any, targets: NDArray[Any], outputs: int, loss: nn.Module) -> None:
        records = int(inputs.shape[0])
        seed = self.random_state
        if seed is not None:
            seed = whole("random_state", seed, least=0)
        chosen = self._settings(records)
        hidden = tuple(int(width) for width in self.hidden) if self.model == "mlp" else ()
        self.architecture_ = Architecture(self.model, int(inputs.shape[1]), outputs, hidden)
        with hidden_generator(make_bits(seed, "weights"), torch.device("cpu")):
            module = self.architecture_.build()
        budget = Budget(self.epsilon, default_delta(records) if self.delta is None else self.delta)
        trainer = Trainer(
            module,
            loss,
            (inputs, targets),
            method=chosen.method,
            batch_size=chosen.batch_size,
            epochs=chosen.epochs,
            budget=budget,
            ledger=self.ledger,
            seed=seed,
            unit=self.unit,
        ).fit(progress=self.progress)
        self.model_ = module.eval()
        self.method_, self.batch_size_ = chosen.method, chosen.batch_size
        self.n_steps_, self.noise_multiplier_ = trainer.steps, trainer.noise_multiplier
        self.history_ = trainer.history
        self.statement_: Statement = trainer.statement()
        self.epsilon_ = self.statement_.epsilon

    def _settings(self, records: int) -> defaults.Defaults:
        given = {"batch": self.batch_size, "epochs": self.epochs}
        if isinstance(self.method, Method):
            if self.lr is not None or self.clip is not None:
                raise ArgumentError(
                    "Expected lr and clip to be left out where method is a method with settings of "
                    f"its own, got lr={self.lr!r}, clip={self.clip!r}. Set them in the method."
                )
            usual = defaults.settings(records, **given)
            return defaults.Defaults(self.method, usual.batch_size, usual.epochs)
        usual = defaults.settings(records, clip=self.clip, lr=self.lr, **given)
        if self.method is None or self.method == "dp-adam-wosm":
            return usual
        method = defaults.named(self.method, lr=self.lr, clip=self.clip)
        return defaults.Defaults(method, usual.batch_size, usual.epochs)

    def _inputs(self, inputs: Any, *, fitting: bool) -> Any:
        """Return checked inputs, brought into the bounds if there are any."""
        checked = validate_data(self, inputs, reset=fitting, accept_sparse="csr", dtype=np.float32)
        if self.bounds is None:
            return checked
        low, high = (np.asarray(bound, dtype=np.float64) for bound in self.bounds)
        if not np.all(np.isfinite(low) & np.isfinite(high)) or not np.all(low < high):
            raise ArgumentError(
                f"Expected bounds=(low, high) with low < high everywhere, got {self.bounds!r}."
            )
        if hasattr(checked, "toarray"):
            raise ArgumentError(
                "Expected bounds=None with sparse inputs, which mapping to [-1, 1] would make "
                "dense. Scale them yourself, without looking at other records."
            )
        scaled = 2 * (np.clip(checked, low, high) - low) / (high - low) - 1
        return np.asarray(scaled, dtype=np.float32)

    def _refuse_free_search(self) -> None:
        """Raise if scikit-learn's own search fits this without a ledger that adds it all up."""
        if self.ledger is not None:
            return
        frame = inspect.currentframe()
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).startswith("sklearn.model_selection"):
                raise ArgumentError(
                    "Expected a ledger, got ledger=None within a search or cross-validation of "
                    "scikit-learn, which fits many times: each fit looks at the data, and without "
                    "a ledger none would count the others. Give ledger= a file with a budget for "
                    "all fits together, or use pv.selection.select, which is much cheaper."
                )
            frame = frame.f_back

    # ------------------------------------------------------------------ predicting

    def _outputs(self, inputs: Any) -> NDArray[Any]:
        check_is_fitted(self, "model_")
        checked = self._inputs(inputs, fitting=False)
        found = []
        with torch.no_grad():
            for start in range(0, checked.shape[0], _CHUNK):
                some = checked[start : start + _CHUNK]
                dense = some.toarray() if hasattr(some, "toarray") else some
                found.append(self.model_(torch.from_numpy(np.ascontiguousarray(dense))).numpy())
        return np.concatenate(found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags


def _refuse_weights(given: dict[str, Any]) -> None:
    if given:
        raise ArgumentError(
            f"Expected fit(X, y) alone, got {', '.join(sorted(given))}. Weights would let one "
            "record count for several, which the guarantee does not cover. Leave them out."
        )


class PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
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
        ledger: a `Ledger` or the path of one, on which fits add up; by default one in memory.
        random_state: makes the fit reproducible, and not private.
        unit: what one record stands for, in the statement's words.
        progress: show a bar.

    Attributes:
        statement_: what was promised, what it cost and what it rests on.
        epsilon_: the epsilon of everything on the ledger.
        model_: the torch module. classes_, n_features_in_, history_ and others as usual.

    Guarantee: the fitted estimator is (epsilon, delta)-differentially private as `statement_` says.
    Within scikit-learn's searches and cross-validation it is refused without a ledger.

    Edge cases: sample weights are refused. The number of records, shapes and classes are public.

    Example:
        >>> import privada as pv
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> digits = pv.PrivateClassifier(epsilon=2.0, bounds=(0, 16)).fit(x, y)
        >>> digits.epsilon_ <= 2.0, digits.predict(x[:3]).shape
        (True, (3,))

    Reference: The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection (001),
    Section 6, for the default method.
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
        random_state: int | None = None,
        unit: str = "record",
        progress: bool = False,
    ) -> None:
        super().__init__(
            epsilon, delta=delta, method=method, model=model, hidden=hidden, bounds=bounds,
            batch_size=batch_size, epochs=epochs, lr=lr, clip=clip, ledger=ledger,
            random_state=random_state, unit=unit, progress=progress,
        )  # fmt: skip
        self.classes = classes

    def fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train on private records."""
        _refuse_weights(unsupported)
        self._refuse_free_search()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float32)
        check_classification_targets(y)
        inputs = self._inputs(X, fitting=False)
        self.classes_, numbers = self._numbered(y)
        self._train(inputs, numbers, len(self.classes_), nn.CrossEntropyLoss())
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


class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """A regressor that is trained under differential privacy, by the squared error.

    Args:
        target_bounds: (low, high) of the target, known without the data: targets are clipped to
            them and mapped to [-1, 1] for training, and predictions mapped back. None takes
            targets as they are, which suits targets of about unit size.
        epsilon, delta, method, model, hidden, bounds, batch_size, epochs, lr, clip, ledger,
            random_state, unit, progress: as for `PrivateClassifier`.

    Attributes, guarantee and edge cases: as for `PrivateClassifier`.

    Example:
        >>> import privada as pv
        >>> from sklearn.datasets import load_diabetes
        >>> x, y = load_diabetes(return_X_y=True)
        >>> sick = pv.PrivateRegressor(epsilon=3.0, bounds=(-0.2, 0.2), target_bounds=(0, 350))
        >>> sick.fit(x, y).epsilon_ <= 3.0
        True

    Reference: as for `PrivateClassifier`.
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
        target_bounds: Bounds = None,
        batch_size: float | None = None,
        epochs: float | None = None,
        lr: float | None = None,
        clip: float | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        random_state: int | None = None,
        unit: str = "record",
        progress: bool = False,
    ) -> None:
        super().__init__(
            epsilon, delta=delta, method=method, model=model, hidden=hidden, bounds=bounds,
            batch_size=batch_size, epochs=epochs, lr=lr, clip=clip, ledger=ledger,
            random_state=random_state, unit=unit, progress=progress,
        )  # fmt: skip
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train on private records."""
        _refuse_weights(unsupported)
        self._refuse_free_search()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float32, y_numeric=True)
        targets = np.asarray(y, dtype=np.float64)
        if self.target_bounds is not None:
            low, high = self._target_range()
            targets = 2 * (np.clip(targets, low, high) - low) / (high - low) - 1
        inputs = self._inputs(X, fitting=False)
        self._train(inputs, targets.astype(np.float32)[:, None], 1, nn.MSELoss())
        return self

    def _target_range(self) -> tuple[float, float]:
        """Return the bounds of the target, if there are any."""
        assert self.target_bounds is not None
        low, high = map(float, self.target_bounds)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ArgumentError(
                f"Expected target_bounds=(low, high) with low < high, got {self.target_bounds!r}."
            )
        return low, high

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted target of each row."""
        found = self._outputs(X)[:, 0].astype(np.float64)
        if self.target_bounds is not None:
            low, high = self._target_range()
            found = low + (found + 1) / 2 * (high - low)
        return np.asarray(found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
