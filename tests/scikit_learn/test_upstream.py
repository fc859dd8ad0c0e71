"""What scikit-learn did to private records before an estimator sees them."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import IterativeImputer, MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression, RANSACRegressor
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV
from sklearn.pipeline import FeatureUnion, make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    maxabs_scale,
    normalize,
    robust_scale,
    scale,
)
from sklearn.random_projection import GaussianRandomProjection
from sklearn.tree import DecisionTreeClassifier

import privada as pv
from privada.scikit_learn.upstream import fingerprint, learners

X, Y = load_digits(return_X_y=True)
X, Y = X[:400], Y[:400]
QUICK = {"epsilon": 3.0, "epochs": 1.0}
LEARNT = "prepared without looking at other records"
RNG = np.random.default_rng(0)
PUBLIC = RNG.uniform(0, 16, (50, 64))

LEARN = {
    "scaler": StandardScaler(),
    "minimum and maximum": MinMaxScaler(),
    "imputer": SimpleImputer(),
    "components": PCA(5),
    "ranks": QuantileTransformer(n_quantiles=10),
    "selection": SelectKBest(k=5),
    "categories": OneHotEncoder(handle_unknown="ignore"),
    "rare categories": OneHotEncoder(categories=[range(17)] * 64, min_frequency=3),
    "rare numbers": OrdinalEncoder(categories=[range(17)] * 64, max_categories=3),
    "a bandwidth": RBFSampler(gamma="scale", n_components=5, random_state=0),
    "a pipeline": make_pipeline(Normalizer(), StandardScaler()),
    "a union": make_union(Normalizer(), StandardScaler()),
    "some columns": ColumnTransformer(
        [("some", StandardScaler(), [3, 4])], remainder="passthrough"
    ),
    "the other columns": ColumnTransformer(
        [("some", "passthrough", [3])], remainder=StandardScaler()
    ),
}
LEARN_NOTHING = {
    "a function": FunctionTransformer(np.log1p),
    "each row": Normalizer(),
    "a threshold": Binarizer(),
    "products": PolynomialFeatures(1),
    "a projection": GaussianRandomProjection(5, random_state=0),
    "a given bandwidth": RBFSampler(gamma=0.1, n_components=5, random_state=0),
    "listed categories": OneHotEncoder(categories=[range(17)] * 64),
    "numbered categories": OrdinalEncoder(categories=[range(17)] * 64),
    "a union": FeatureUnion([("left out", "drop"), ("kept", "passthrough")]),
    "what is missing": MissingIndicator(features="all"),
    "public bounds": pv.PrivateScaler(bounds=(0, 16)),
    "public constants": pv.PrivateImputer(),
    "public data": FrozenEstimator(StandardScaler().fit(PUBLIC)),
    "nothing": "passthrough",
}


@pytest.mark.parametrize("name", LEARN)
def test_transformers_that_learn_are_refused_in_a_pipeline(name):
    asked = pv.PrivateClassifier(**QUICK, ledger=pv.Ledger(None))
    with pytest.raises(pv.ArgumentError, match=LEARNT):
        make_pipeline(LEARN[name], asked).fit(X, Y)
    assert asked.ledger.totals() == {}


@pytest.mark.parametrize("name", LEARN_NOTHING)
def test_transformers_that_learn_nothing_are_not(name):
    line = make_pipeline(LEARN_NOTHING[name], pv.PrivateClassifier(**QUICK))
    assumed = " ".join(line.fit(X, Y)[-1].statement_.assumptions)
    assert ("StandardScaler" in assumed) == (name == "public data")


def test_texts():
    assert not list(learners(HashingVectorizer()))
    assert not list(learners(pv.PrivateVectorizer()))
    assert not list(learners(CountVectorizer(vocabulary=["good", "bad"])))
    assert list(learners(CountVectorizer()))
    assert list(learners(TfidfVectorizer(vocabulary=["good", "bad"])))


def test_a_transformer_of_other_origin_is_taken_to_learn():
    class Theirs:
        def fit_transform(self, x, y=None):
            return x

    assert len(list(learners(Theirs()))) == 1


def test_a_pipeline_is_found_from_within_other_estimators():
    asked = pv.PrivateClassifier(**QUICK, ledger=pv.Ledger(None))
    with pytest.raises(pv.ArgumentError, match=LEARNT):
        make_pipeline(StandardScaler(), CalibratedClassifierCV(asked, cv=2)).fit(X, Y)
    with pytest.raises(pv.ArgumentError, match=LEARNT):
        VotingClassifier([("one", make_pipeline(StandardScaler(), asked))]).fit(X, Y)
    line = make_pipeline(StandardScaler(), asked)
    line[-1].fit(X, Y)  # by itself, it gets the records as they are


def test_what_the_last_of_a_stack_gets_was_learnt_by_the_others():
    asked = pv.PrivateClassifier(**QUICK, ledger=pv.Ledger(None))
    trees = [("tree", DecisionTreeClassifier(max_depth=2))]
    with pytest.raises(pv.ArgumentError, match=f"{LEARNT}.*DecisionTreeClassifier"):
        StackingClassifier(trees, final_estimator=asked, cv=2).fit(X, Y)
    assert asked.ledger.totals() == {}
    # what others learn, beside it and not before it, is not this one's
    mixed = StackingClassifier(
        [*trees, ("one", asked)], final_estimator=LogisticRegression(max_iter=9), cv=2
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixed.fit(X, Y)
    assert asked.ledger.totals()
    # and what the private ones learn is paid for
    StackingClassifier([("one", asked)], final_estimator=clone(asked), cv=2).fit(X, Y)


def lookers(statement):
    return {each.split(",")[0] for each in statement.assumptions if "looked at records by" in each}


def test_what_looks_at_records_without_noise_is_named():
    asked = pv.PrivateClassifier(**QUICK, ledger=pv.Ledger(None))
    few, two = X[:, 18:22], Y > 4
    assert not lookers(asked.fit(few, two).statement_)
    search = GridSearchCV(asked, {"clip": [1.0]}, cv=2, error_score="raise").fit(few, two)
    assert lookers(search.best_estimator_.statement_) == {"GridSearchCV"}
    calibrated = CalibratedClassifierCV(asked, cv=2).fit(few, two).calibrated_classifiers_
    assert lookers(calibrated[0].estimator.statement_) == {"CalibratedClassifierCV"}
    tuned = TunedThresholdClassifierCV(asked, cv=2).fit(few, two)
    assert lookers(tuned.estimator_.statement_) == {"TunedThresholdClassifierCV"}
    for final, named in ((None, {"StackingClassifier"}), (clone(asked), set())):
        stack = StackingClassifier([("one", asked)], final_estimator=final, cv=2).fit(few, two)
        assert lookers(stack.estimators_[0].statement_) == named


@pytest.mark.parametrize(
    "around", [RANSACRegressor(min_samples=200, max_trials=2), IterativeImputer(max_iter=1)]
)
def test_rows_that_are_chosen_or_filled_in_by_other_rows_are_refused(around):
    asked = pv.PrivateRegressor(**QUICK, ledger=pv.Ledger(None))
    missing = np.where(np.arange(X.size).reshape(X.shape) % 31, X, np.nan)
    rows = missing if isinstance(around, IterativeImputer) else X
    with pytest.raises(pv.ArgumentError, match=f"{LEARNT}.*{type(around).__name__}"):
        around.set_params(estimator=asked).fit(rows, Y)
    assert asked.ledger.totals() == {}


def filled_in(frame):
    return frame.fillna(frame.mean())


def test_a_function_that_looks_at_other_rows_is_taken_to_learn():
    frame = pd.DataFrame(X)
    frame.columns = frame.columns.astype(str)
    for mixing in (
        scale,
        maxabs_scale,
        robust_scale,
        lambda x: x - x.mean(0),
        lambda x: x / x.max(),
    ):
        assert list(learners(FunctionTransformer(mixing).fit(X)))
    assert list(learners(FunctionTransformer(filled_in).fit(frame)))
    assert list(learners(FunctionTransformer(lambda x: x / np.maximum(1, x.max())).fit(X)))
    for plain in (
        None,
        np.sqrt,
        normalize,
        lambda x: x / 16,
        lambda x: x[:, :3] @ np.ones((3, 2)),
        lambda x: x + np.random.default_rng().normal(size=x.shape),
        lambda x: [len(each) for each in x],
        lambda x: x.upper(),
    ):
        assert not list(learners(FunctionTransformer(plain).fit(X)))
    assert not list(learners(FunctionTransformer(lambda x: x.fillna(0)).fit(frame)))
    with pytest.raises(pv.ArgumentError, match=f"{LEARNT}.*FunctionTransformer"):
        make_pipeline(FunctionTransformer(maxabs_scale), pv.PrivateClassifier(**QUICK)).fit(X, Y)


def test_what_was_done_by_hand_is_assumed_in_the_statement():
    scaled = RobustScaler().fit_transform(X)
    said = pv.PrivateClassifier(**QUICK).fit(scaled, Y).statement_.assumptions
    assert any("prepared by itself" in each for each in said)


@pytest.mark.parametrize(
    "seeded",
    [
        pv.PrivateScaler(epsilon=1.0, seed=1),
        pv.PrivateImputer("median", bounds=(0, 16), epsilon=9.0, seed=1),
    ],
)
def test_seeded_queries_do_not_come_before_a_private_fit(seeded):
    ledger = pv.Ledger(None)
    asked = pv.PrivateClassifier(**QUICK, ledger=ledger)
    line = make_pipeline(seeded.set_params(ledger=ledger), asked)
    with pytest.raises(pv.ArgumentError, match=f"seeded {type(seeded).__name__}"):
        line.fit(X, Y)
    assert not any(charge.purpose == "training" for charge in ledger.charges())
    line.set_params(privateclassifier__seed=1).fit(X, Y)
    make_pipeline(pv.PrivateScaler(bounds=(0, 16), seed=1), asked.set_params(seed=None)).fit(X, Y)


def test_targets_are_looked_at_too():
    asked = pv.PrivateRegressor(**QUICK, ledger=pv.Ledger(None))
    with pytest.raises(pv.ArgumentError, match="StandardScaler"):
        TransformedTargetRegressor(asked, transformer=StandardScaler()).fit(X, Y)
    targets = Y.astype(float)
    with pytest.raises(pv.ArgumentError, match="mean 0 and variance 1"):
        asked.fit(X, (targets - targets.mean()) / targets.std())
    with pytest.raises(pv.ArgumentError, match="mean 0 and variance 1"):
        clone(asked).set_params(target_bounds=(-3, 3)).fit(
            X, StandardScaler().fit_transform(Y[:, None])[:, 0]
        )
    TransformedTargetRegressor(asked, func=np.log1p, inverse_func=np.expm1).fit(X, Y)


# ---------------------------------------------------------------------- by the data alone


def test_columns_that_were_standardised_are_known():
    asked = pv.PrivateClassifier(**QUICK, ledger=pv.Ledger(None))
    iris = load_iris().data
    frame = pd.DataFrame(iris)
    for scaled in (
        StandardScaler().fit_transform(X),
        StandardScaler().fit_transform(X.astype(np.float32)),
        np.column_stack([X, StandardScaler().fit_transform(X)[:, 20:21]]),
    ):
        with pytest.raises(pv.ArgumentError, match="mean 0 and variance 1"):
            asked.fit(scaled, Y)
    assert fingerprint(((frame - frame.mean()) / frame.std()).to_numpy(np.float32))
    people = RNG.normal(50, 10, (300, 4))
    assert fingerprint(MinMaxScaler().fit_transform(people)) == "columns that reach from 0 to 1"


def test_columns_that_were_scaled_by_public_constants_are_not():
    signs = np.tile([[-1.0, 1.0], [1.0, -1.0]], (50, 1))
    one_hot = np.eye(10)[np.arange(200) % 10]
    for plain in (
        X,
        X / 16,
        signs,
        one_hot,
        load_diabetes(scaled=False).data,
        np.zeros((50, 2)),
        RNG.normal(size=(100_000, 20)),
        RNG.integers(0, 256, (5000, 50)) / 255,
        pv.PrivateScaler(bounds=(0, 16)).fit_transform(X),
        np.empty((0, 3)),
    ):
        assert fingerprint(plain.astype(np.float32)) is None


# ---------------------------------------------------------------------- in the statement


def test_what_is_said_to_be_public_is_in_the_statement():
    asked = pv.PrivateClassifier(**QUICK, preprocessing="public")
    line = make_pipeline(StandardScaler(), asked).fit(X, Y)
    assert line[-1].statement_.private
    assert "What StandardScaler learnt came from public data." in line[-1].statement_.assumptions
    with pytest.raises(pv.ArgumentError, match="preprocessing"):
        pv.PrivateClassifier(**QUICK, preprocessing="ignore").fit(X, Y)


def test_what_a_seeded_fit_leaves_out_is_in_the_statement():
    line = make_pipeline(StandardScaler(), pv.PrivateClassifier(**QUICK, seed=1)).fit(X, Y)
    assert any("StandardScaler" in each for each in line[-1].statement_.assumptions)
    assert not any("prepared by itself" in each for each in line[-1].statement_.assumptions)
    scaled = StandardScaler().fit_transform(X)
    direct = pv.PrivateClassifier(**QUICK, seed=1).fit(scaled, Y)
    assert any("mean 0 and variance 1" in each for each in direct.statement_.assumptions)
