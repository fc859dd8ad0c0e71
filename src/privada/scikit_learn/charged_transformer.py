"""What transformers share that pay for what they learn from private records."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from privada.accounting import Budget, Ledger
from privada.accounting.ledger import exists, in_words
from privada.core.errors import ArgumentError
from privada.core.validation import integer, positive
from privada.data import Units
from privada.scikit_learn.fit_registry import CloneFamily, record_fit, record_transform
from privada.scikit_learn.inputs import validated
from privada.scikit_learn.row_digests import digest
from privada.selection.planning import default_delta


class ChargedTransformer(TransformerMixin, CloneFamily, BaseEstimator, ABC):  # type: ignore[misc]
    """A transformer of numbers, what it learns from records being charged before it is learnt."""

    charges_what_it_learns = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: int | None = None,
        unit: str = "record",
    ) -> None:
        self.epsilon, self.delta, self.ledger, self.seed = epsilon, delta, ledger, seed
        self.unit = unit

    @abstractmethod
    def _learns(self) -> bool:
        """Return whether fitting asks the records."""

    @property
    def noise_is_known(self) -> bool:
        """Whether what it learns from records is not hidden, because its noise has a seed."""
        return self.seed is not None and self._learns()

    def _numbers(self, inputs: Any, *, fitting: bool) -> NDArray[Any]:
        found: NDArray[Any] = validated(
            self,
            inputs,
            reset=fitting,
            dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan",
        )
        return found

    @contextmanager
    def _query(
        self, values: NDArray[Any], units: Units, instead: str
    ) -> Iterator[tuple[Ledger, Budget, str]]:
        """Give the ledger, the budget and the name of a query to records that are noted."""
        if self.epsilon is None or self.ledger is None:
            raise ArgumentError(
                f"Expected {instead}, or epsilon= and ledger= to learn it from the records by a "
                f"charged query, got epsilon={self.epsilon!r} and ledger={_shown(self.ledger)}."
            )
        ledger = self.ledger
        if not isinstance(ledger, Ledger):
            if not isinstance(ledger, (str, os.PathLike)) or not exists(ledger):
                raise ArgumentError(
                    "Expected ledger to be a Ledger, or the path or URL of one, got "
                    f"ledger={_shown(ledger)}. "
                    "Make it first, with a budget for all that is fitted on these records: "
                    "pv.Ledger(path, pv.Budget(epsilon, delta)). Nothing was charged."
                )
            ledger = Ledger(ledger)
        usual = default_delta(units.size) if ledger.budget is None else ledger.budget.delta
        delta = usual if self.delta is None else self.delta
        budget = Budget(positive("epsilon", self.epsilon), delta)
        run = f"{type(self).__name__}-{os.urandom(4).hex()}"
        if self.seed is not None:  # not private, as what comes of it says
            integer("seed", self.seed, least=0)
            yield ledger, budget, run
            return
        seen = digest(values)
        with record_fit(seen, self._family_id(), ledger, shared=True):
            yield ledger, budget, run

    def transform(self, X: Any) -> NDArray[Any]:
        """Return the records, each changed by itself and by what is public alone."""
        check_is_fitted(self)
        values = self._numbers(X, fitting=False)
        found = self._transformed(values).astype(values.dtype, copy=False)
        record_transform(values, found)
        return found

    @abstractmethod
    def _transformed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the records, each changed by itself."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.non_deterministic = self._learns() and self.seed is None
        return tags


def _shown(ledger: Any) -> str:
    """Return a ledger, or the place of one, as an error may show it: without a password."""
    return repr(in_words(ledger) if isinstance(ledger, (str, os.PathLike)) else ledger)
