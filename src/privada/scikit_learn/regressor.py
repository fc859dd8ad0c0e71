"""PrivateRegressor: private training behind fit and predict, for numbers."""

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from torch import nn

from privada.accounting import Ledger
from privada.methods import Method
from privada.scikit_learn.estimator import PrivateEstimator, refuse_weights
from privada.scikit_learn.inputs import (
    Bounds,
    bounds_of_features,
    to_unit_interval,
    without_quoting,
)


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regressor that is trained under differential privacy, by the squared error.

    Args:
        target_bounds: (low, high) of the target, known without the data: targets are clipped to
            them and mapped to [-1, 1] for training, and predictions mapped back. None takes
            targets as they are, which suits targets of about unit size.
        epsilon, delta, method, model, hidden, bounds, batch_size, epochs, lr, clip, ledger,
            preprocessing, seed, unit, progress, rows_per_unit, features, cache: as for
            `PrivateClassifier`.

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
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any, *, groups: Any = None, **unsupported: Any) -> Self:
        """Train on private records.

        With `groups`, one identifier for each row, the promise is for all rows of a person.
        """
        refuse_weights(unsupported)
        X, y = self._checked(X, y, y_numeric=True)
        targets = without_quoting(lambda: np.asarray(y, dtype=np.float64))
        self._train(X, targets, 1, nn.MSELoss(), groups)
        return self

    def _scaled_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        if self.target_bounds is not None:
            targets = to_unit_interval(targets, *self._target_range())
        return targets.astype(np.float32)[:, None]

    def _target_range(self) -> tuple[float, float]:
        """Return the bounds of the target, if there are any."""
        low, high = bounds_of_features(self.target_bounds, 1, of="target_bounds")
        return float(low[0]), float(high[0])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted target of each row."""
        # in float32 the last digits of a row's target would depend on how many rows are asked for
        found = self._outputs(X, torch.float64)[:, 0]
        if self.target_bounds is not None:
            low, high = self._target_range()
            found = low + (found + 1) / 2 * (high - low)
        return np.asarray(found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
