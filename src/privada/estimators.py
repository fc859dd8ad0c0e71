"""scikit-learn estimators: private training behind fit and predict."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import Dataset

from privada import defaults, fits, upstream
from privada.accounting import Budget, Ledger, Statement
from privada.core.errors import ArgumentError
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import make_source
from privada.core.validation import integer, one_of
from privada.data import units_of
from privada.methods import Method
from privada.models import Architecture
from privada.preprocessing import Bounds, checked, limits, mapped, unquoted
from privada.selection.planning import default_delta
from privada.train.trainer import Trainer

_CHUNK = 8192
# Up to so many values, 1 GiB of them, sparse rows are made dense at once.
_DENSE = 1 << 28


class _Private(fits.Kin, BaseEstimator):  # type: ignore[misc]
    """What both estimators share."""

    charges_what_it_learns = True

    @property
    def noise_is_known(self) -> bool:
        """Whether what it learns from records is not hidden, because its noise has a seed."""
        return self.seed is not None

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
        preprocessing: str = "check",
        seed: int | None = None,
        unit: str = "record",
        progress: bool = False,
        rows_per_unit: int | None = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.method, self.model, self.hidden = method, model, hidden
        self.bounds, self.batch_size, self.epochs = bounds, batch_size, epochs
        self.lr, self.clip, self.ledger = lr, clip, ledger
        self.preprocessing, self.seed = preprocessing, seed
        self.unit, self.progress = unit, progress
        self.rows_per_unit = rows_per_unit

    # ------------------------------------------------------------------ fitting

    def _train(
        self,
        inputs: Any,
        targets: NDArray[Any],
        outputs: int,
        loss: nn.Module,
        groups: Any,
    ) -> None:
        rows_per_unit = None if groups is None else self.rows_per_unit
        records = units_of(int(inputs.shape[0]), groups, rows_per_unit).size
        seed = None if self.seed is None else integer("seed", self.seed, least=0)
        prepared = self._preparation(inputs, targets)
        seen = fits.digest(inputs, targets) if seed is None else None
        targets = self._scaled_targets(targets)
        chosen = self._settings(records)
        hidden = self._widths() if self.model == "mlp" else ()
        self.architecture_ = Architecture(self.model, int(inputs.shape[1]), outputs, hidden)
        with hidden_generator(make_source(seed, "weights"), torch.device("cpu")):
            module = self.architecture_.build()
        budget = Budget(self.epsilon, default_delta(records) if self.delta is None else self.delta)
        data = self._scaled_pair(inputs, targets)
        with self._account(seen, budget) as (ledger, others):
            trainer = Trainer(
                module,
                loss,
                data,
                method=chosen.method,
                batch_size=chosen.batch_size,
                epochs=chosen.epochs,
                budget=budget,
                ledger=ledger,
                seed=seed,
                unit=self.unit,
                groups=groups,
                rows_per_unit=rows_per_unit,
            ).fit(progress=self.progress)
        self.model_ = module.eval()
        self.method_, self.batch_size_ = chosen.method, chosen.batch_size
        self.n_steps_, self.noise_multiplier_ = trainer.steps, trainer.noise_multiplier
        self.history_ = trainer.history
        said = trainer.statement()
        self.statement_: Statement = replace(
            said,
            assumptions=(
                *said.assumptions,
                *prepared,
                *map(_elsewhere, others),
                *self._as_of_now(),
            ),
        )
        self.epsilon_ = self.statement_.epsilon

    def _as_of_now(self) -> list[str]:
        if self.ledger is None:
            return []
        return [
            "What the ledger was charged after this fit, as for others of the same ensemble, is "
            "not in this figure: the ledger has the sum of all."
        ]

    def _preparation(self, inputs: Any, targets: NDArray[Any]) -> list[str]:
        """Return what is assumed of how the records were prepared; raise if that was a look."""
        one_of("preprocessing", self.preprocessing, ("check", "public"))
        upstream.refuse_repeated_rows()
        columns = [] if hasattr(inputs, "toarray") else [inputs]
        if targets.dtype.kind == "f":
            columns.append(targets[:, None])
        return upstream.assumptions(
            type(self).__name__,
            columns,
            public=self.preprocessing == "public",
            private=self.seed is None,
        )

    @contextmanager
    def _account(
        self, seen: fits.Digest | None, budget: Budget
    ) -> Iterator[tuple[Ledger, list[str]]]:
        """Give the ledger of this fit, and the names of others that hold looks at the same rows."""
        if seen is None:  # seeded: not private, and says so
            yield _open(self.ledger, budget), []
            return
        kin, before = self._kin(), list(upstream.charged())
        if before and self.ledger is None:
            raise ArgumentError(
                f"Expected a ledger, got ledger=None behind {type(before[0]).__name__}, which "
                "charges what it learns from the same records to a ledger. Give both the same one."
            )
        new = isinstance(self.ledger, (str, os.PathLike)) and not Path(self.ledger).exists()
        if new and fits.unpaid(seen, kin):
            raise ArgumentError(
                f"Expected a ledger with a budget for all fits on these rows, got ledger="
                f"{str(self.ledger)!r}, which is new and would have that of this fit, while some "
                "were fitted before in this process with ledger=None. Make it first: "
                "pv.Ledger(path, pv.Budget(epsilon, delta)). Nothing was charged."
            )
        ledger = _open(self.ledger, budget)
        with fits.counted(seen, kin, ledger, shared=self.ledger is not None) as others:
            for each in before:
                other = _open(each.ledger, budget)
                if other.identity != ledger.identity and other.name not in others:
                    others.append(other.name)
            yield ledger, others

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

    def _widths(self) -> tuple[int, ...]:
        if isinstance(self.hidden, str) or not isinstance(self.hidden, Iterable):
            raise ArgumentError(
                f"Expected hidden to be widths, such as (64,), got hidden={self.hidden!r}."
            )
        return tuple(integer("hidden", width) for width in self.hidden)

    def _checked(self, *given: Any, **how: Any) -> Any:
        found = checked(self, *given, accept_sparse="csr", dtype=np.float32, **how)
        if isinstance(found, tuple):
            return _canonical(found[0]), *found[1:]
        return _canonical(found)

    def _limits(self, features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the bounds as a number for each feature."""
        if self.bounds is None:
            return None
        return limits(self.bounds, features)

    def _scaled(self, dense: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows brought into the bounds and mapped to [-1, 1], if there are any."""
        found = self._limits(dense.shape[1])
        return np.asarray(dense if found is None else mapped(dense, *found), dtype=np.float32)

    def _scaled_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the targets as the loss takes them."""
        return targets

    def _scaled_pair(self, inputs: Any, targets: NDArray[Any]) -> Any:
        """Return the records as a trainer takes them, within the bounds."""
        found = self._limits(inputs.shape[1])
        if not hasattr(inputs, "toarray"):
            return self._scaled(inputs), targets
        if found is None:
            return inputs, targets
        low, high = found
        if np.array_equal(low, -high):  # then zero stays zero
            values = mapped(inputs.data, low[inputs.indices], high[inputs.indices])
            parts = (values.astype(np.float32), inputs.indices, inputs.indptr)
            return type(inputs)(parts, shape=inputs.shape), targets
        if math.prod(inputs.shape) <= _DENSE:
            return self._scaled(inputs.toarray()), targets
        return _SparseRows(inputs, targets, self._scaled)

    # ------------------------------------------------------------------ predicting

    def _outputs(self, inputs: Any) -> NDArray[Any]:
        check_is_fitted(self, "model_")
        checked = self._checked(inputs, reset=False)
        found = []
        with torch.no_grad():
            for start in range(0, checked.shape[0], _CHUNK):
                some = checked[start : start + _CHUNK]
                dense = some.toarray() if hasattr(some, "toarray") else some
                scaled = np.ascontiguousarray(self._scaled(dense))
                found.append(self.model_(torch.from_numpy(scaled)).numpy())
        return np.concatenate(found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.seed is None
        return tags


class _SparseRows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a sparse matrix, each made dense and scaled when it is asked for."""

    def __init__(
        self, inputs: Any, targets: NDArray[Any], scaled: Callable[[Any], NDArray[np.float32]]
    ) -> None:
        self._inputs, self._targets, self._scaled = inputs, torch.from_numpy(targets), scaled

    def __len__(self) -> int:
        return int(self._inputs.shape[0])

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        row = self._scaled(self._inputs[[place]].toarray())[0]
        return torch.from_numpy(row), self._targets[place]


def _open(given: Ledger | str | os.PathLike[str] | None, budget: Budget) -> Ledger:
    """Return the ledger that a fit is charged to: the one given, or one of its own."""
    if isinstance(given, Ledger):
        return given
    if given is None:
        return Ledger(None, budget)
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(
            f"Expected ledger to be a Ledger or the path of one, got ledger={given!r}."
        )
    return Ledger(given, None if Path(given).exists() else budget)


def _canonical(inputs: Any) -> Any:
    """Return rows in which no cell is given in several parts, as it may be in a sparse matrix."""
    if not hasattr(inputs, "toarray") or inputs.has_canonical_format:
        return inputs
    summed = inputs.copy()
    summed.sum_duplicates()
    return summed


def _elsewhere(name: str) -> str:
    return (
        f"Some of these rows were also fitted in this process on another ledger, {name!r}, whose "
        "charges are not counted here."
    )


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
        ledger: a `Ledger` or the path of one, on which fits add up. None pays for a single fit: a
            second one on the same rows is refused.
        preprocessing: "check" refuses records that were prepared by what was learnt from private
            records, such as by a StandardScaler before this in a Pipeline. "public" says that it
            was learnt from public data, and the statement says so.
        seed: makes the fit reproducible, and not private. It is not named random_state, because
            ensembles of scikit-learn set each random_state that they find.
        unit: what one record stands for, in the statement's words.
        progress: show a bar.
        rows_per_unit: with `fit(X, y, groups=...)`, how many rows of a person a step looks at, at
            most; 8 by default.

    Attributes:
        statement_: what was promised, what it cost and what it rests on.
        epsilon_: the epsilon of everything on the ledger when the fit was done. Of an ensemble, the
            ledger has the sum.
        model_: the torch module. classes_, n_features_in_, history_ and others as usual.

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
    ) -> None:
        super().__init__(
            epsilon, delta=delta, method=method, model=model, hidden=hidden, bounds=bounds,
            batch_size=batch_size, epochs=epochs, lr=lr, clip=clip, ledger=ledger,
            preprocessing=preprocessing, seed=seed, unit=unit, progress=progress,
            rows_per_unit=rows_per_unit,
        )  # fmt: skip
        self.classes = classes

    def fit(self, X: Any, y: Any, *, groups: Any = None, **unsupported: Any) -> Self:
        """Train on private records.

        With `groups`, one identifier for each row, the promise is for all rows of a person.
        """
        _refuse_weights(unsupported)
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


class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """A regressor that is trained under differential privacy, by the squared error.

    Args:
        target_bounds: (low, high) of the target, known without the data: targets are clipped to
            them and mapped to [-1, 1] for training, and predictions mapped back. None takes
            targets as they are, which suits targets of about unit size.
        epsilon, delta, method, model, hidden, bounds, batch_size, epochs, lr, clip, ledger,
            preprocessing, seed, unit, progress: as for `PrivateClassifier`.

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
    ) -> None:
        super().__init__(
            epsilon, delta=delta, method=method, model=model, hidden=hidden, bounds=bounds,
            batch_size=batch_size, epochs=epochs, lr=lr, clip=clip, ledger=ledger,
            preprocessing=preprocessing, seed=seed, unit=unit, progress=progress,
            rows_per_unit=rows_per_unit,
        )  # fmt: skip
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any, *, groups: Any = None, **unsupported: Any) -> Self:
        """Train on private records.

        With `groups`, one identifier for each row, the promise is for all rows of a person.
        """
        _refuse_weights(unsupported)
        X, y = self._checked(X, y, y_numeric=True)
        targets = unquoted(lambda: np.asarray(y, dtype=np.float64))
        self._train(X, targets, 1, nn.MSELoss(), groups)
        return self

    def _scaled_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        if self.target_bounds is not None:
            targets = mapped(targets, *self._target_range())
        return targets.astype(np.float32)[:, None]

    def _target_range(self) -> tuple[float, float]:
        """Return the bounds of the target, if there are any."""
        low, high = limits(self.target_bounds, 1, of="target_bounds")
        return float(low[0]), float(high[0])

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
