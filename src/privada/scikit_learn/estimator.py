"""What the estimators share: settings, the account of a fit, training and predicting."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import Dataset

from privada import defaults
from privada.accounting import Budget, Ledger, Statement
from privada.accounting.ledger import exists, in_words
from privada.core.errors import ArgumentError
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import make_source
from privada.core.validation import integer, one_of
from privada.data import units_of
from privada.features import Scattering2D, extract
from privada.methods import Method, PrivateNewton
from privada.models import Architecture
from privada.scikit_learn import upstream
from privada.scikit_learn.fit_registry import CloneFamily, has_unpaid_fits, record_fit
from privada.scikit_learn.inputs import Bounds, bounds_of_features, to_unit_interval, validated
from privada.scikit_learn.row_digests import Digest, digest
from privada.selection.planning import default_delta
from privada.train.charges import open_ledger
from privada.train.trainer import Trainer

# Rows that are predicted at a time, and with an encoder before the model.
_CHUNK, _ENCODED = 8192, 256
# Up to so many values, 1 GiB of them, sparse rows are made dense at once.
_DENSE = 1 << 28


class PrivateEstimator(CloneFamily, BaseEstimator):  # type: ignore[misc]
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
        features: nn.Module | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.method, self.model, self.hidden = method, model, hidden
        self.bounds, self.batch_size, self.epochs = bounds, batch_size, epochs
        self.lr, self.clip, self.ledger = lr, clip, ledger
        self.preprocessing, self.seed = preprocessing, seed
        self.unit, self.progress = unit, progress
        self.rows_per_unit = rows_per_unit
        self.features, self.cache = features, cache

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
        seen = digest(inputs, targets) if seed is None else None
        targets = self._scaled_targets(targets)
        budget = Budget(self.epsilon, default_delta(records) if self.delta is None else self.delta)
        chosen = self._settings(records, int(inputs.shape[1]), outputs, budget)
        hidden = self._widths() if self.model == "mlp" else ()
        data = self._scaled_pair(inputs, targets)
        with self._account(seen, budget) as (ledger, others):
            width = int(inputs.shape[1])
            if self.features is not None:
                data = extract(self.features, data, cache=self.cache)
                width = data[0].shape[1]
                chosen = self._settings(records, width, outputs, budget)
            self.architecture_ = Architecture(self.model, width, outputs, hidden)
            with hidden_generator(make_source(seed, "weights"), torch.device("cpu")):
                module = self.architecture_.build()
            trainer = Trainer(
                module,
                loss,
                data,
                method=chosen.method,
                batch_size=chosen.batch_size,
                epochs=chosen.epochs,
                sampling=chosen.sampling,
                budget=budget,
                ledger=ledger,
                seed=seed,
                unit=self.unit,
                groups=groups,
                rows_per_unit=rows_per_unit,
            ).fit(progress=self.progress)
        if self.features is not None:
            module = nn.Sequential(deepcopy(self.features).float(), nn.Flatten(), module)
        self.model_ = module.eval()
        self.method_, self.batch_size_ = chosen.method, chosen.batch_size
        self.n_steps_, self.noise_multiplier_ = trainer.steps, trainer.noise_multiplier
        # what the steps were, alone: the history itself holds on to the private records
        self.history_ = trainer.history[:]
        said = trainer.statement()
        self.statement_: Statement = replace(
            said,
            assumptions=(
                *said.assumptions,
                *prepared,
                *self._encoder_in_words(),
                *map(_elsewhere, others),
                *self._as_of_now(),
            ),
        )
        self.epsilon_ = self.statement_.epsilon

    def _encoder_in_words(self) -> list[str]:
        if self.features is None or isinstance(self.features, Scattering2D):
            return []
        return [
            f"Features were computed by {type(self.features).__name__}, which was made without "
            "these records."
        ]

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
    def _account(self, seen: Digest | None, budget: Budget) -> Iterator[tuple[Ledger, list[str]]]:
        """Give the ledger of this fit, and the names of others that hold looks at the same rows."""
        if seen is None:  # seeded: not private, and says so
            yield open_ledger(self.ledger, budget), []
            return
        kin, before = self._family_id(), list(upstream.charged())
        if before and self.ledger is None:
            raise ArgumentError(
                f"Expected a ledger, got ledger=None behind {type(before[0]).__name__}, which "
                "charges what it learns from the same records to a ledger. Give both the same one."
            )
        place = self.ledger if isinstance(self.ledger, (str, os.PathLike)) else None
        if place is not None and not exists(place) and has_unpaid_fits(seen, kin):
            raise ArgumentError(
                f"Expected a ledger with a budget for all fits on these rows, got ledger="
                f"{in_words(place)!r}, which is new and would have that of this fit, while "
                "some were fitted before in this process with ledger=None. Make it first: "
                "pv.Ledger(path, pv.Budget(epsilon, delta)). Nothing was charged."
            )
        ledger = open_ledger(self.ledger, budget)
        with record_fit(seen, kin, ledger, shared=self.ledger is not None) as others:
            for each in before:
                other = open_ledger(each.ledger, budget)
                if other.identity != ledger.identity and other.name not in others:
                    others.append(other.name)
            yield ledger, others

    def _settings(
        self, records: int, features: int, outputs: int, budget: Budget
    ) -> defaults.Defaults:
        if self.method == PrivateNewton.name:
            return defaults.newton(
                records, features, outputs, budget, batch=self.batch_size, epochs=self.epochs,
                clip=self.clip, lr=self.lr,
            )  # fmt: skip
        usual = defaults.settings(
            records, batch=self.batch_size, epochs=self.epochs, clip=self.clip, lr=self.lr,
            numbers=outputs == 1, linear=self.model == "linear", budget=budget,
        )  # fmt: skip
        if isinstance(self.method, Method):
            if self.lr is not None or self.clip is not None:
                raise ArgumentError(
                    "Expected lr and clip to be left out where method is a method with settings of "
                    f"its own, got lr={self.lr!r}, clip={self.clip!r}. Set them in the method."
                )
            if isinstance(self.method, PrivateNewton):
                found = defaults.newton(
                    records, features, outputs, budget, batch=self.batch_size, epochs=self.epochs
                )
                return replace(found, method=self.method)
            return defaults.Defaults(self.method, usual.batch_size, usual.epochs)
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
        found = validated(self, *given, accept_sparse="csr", dtype=np.float32, **how)
        if isinstance(found, tuple):
            return _canonical(found[0]), *found[1:]
        return _canonical(found)

    def _limits(self, features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the bounds as a number for each feature."""
        if self.bounds is None:
            return None
        return bounds_of_features(self.bounds, features)

    def _scaled(self, dense: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows brought into the bounds and mapped to [-1, 1], if there are any."""
        found = self._limits(dense.shape[1])
        return np.asarray(
            dense if found is None else to_unit_interval(dense, *found), dtype=np.float32
        )

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
            values = to_unit_interval(inputs.data, low[inputs.indices], high[inputs.indices])
            parts = (values.astype(np.float32), inputs.indices, inputs.indptr)
            return type(inputs)(parts, shape=inputs.shape), targets
        if math.prod(inputs.shape) <= _DENSE:
            return self._scaled(inputs.toarray()), targets
        return _SparseRows(inputs, targets, self._scaled)

    # ------------------------------------------------------------------ predicting

    def _outputs(self, inputs: Any, dtype: torch.dtype = torch.float32) -> NDArray[Any]:
        """Return what the model makes of each row, computed in a type."""
        check_is_fitted(self, "model_")
        checked = self._checked(inputs, reset=False)
        model, encoder, chunk = self.model_, None, _CHUNK
        if isinstance(model, nn.Sequential) and self.features is not None:
            encoder, model, chunk = model[:-1], model[-1], _ENCODED
        model = model if dtype == torch.float32 else deepcopy(model).to(dtype)
        found = []
        with torch.no_grad():
            for start in range(0, checked.shape[0], chunk):
                some = checked[start : start + chunk]
                dense = some.toarray() if hasattr(some, "toarray") else some
                rows = torch.from_numpy(np.ascontiguousarray(self._scaled(dense)))
                rows = rows if encoder is None else encoder(rows)
                found.append(model(rows.to(dtype)).numpy())
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


def refuse_weights(given: dict[str, Any]) -> None:
    """Raise if a fit is given more than records, targets and groups."""
    if given:
        raise ArgumentError(
            f"Expected fit(X, y) alone, got {', '.join(sorted(given))}. Weights would let one "
            "record count for several, which the guarantee does not cover. Leave them out."
        )
