"""The private transformers of scikit-learn pipelines."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

import privada as pv
from privada.accounting import epsilon_of
from privada.core.errors import ArgumentError, DataError, LedgerError
from privada.noise import GaussianNoise
from privada.scikit_learn import fit_registry
from privada.tables.private_bounds import estimate_bounds

RNG = np.random.default_rng(0)
AGES = np.column_stack([RNG.integers(20, 70, 20_000), RNG.uniform(0, 1000, 20_000)]).astype(float)


def new_ledger(path=None, epsilon=4.0):
    return pv.Ledger(path, pv.Budget(epsilon, 1e-6))


# None is expected to fail; those that learn nothing are deterministic.
@parametrize_with_checks(
    [
        pv.PrivateScaler(bounds=(-100, 100)),
        pv.PrivateImputer(fill_value=1.0),
        pv.PrivateVectorizer(n_features=16),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


# ---------------------------------------------------------------------- by public figures


def test_public_bounds_map_each_record_by_itself():
    scaler = pv.PrivateScaler(bounds=([20, 0], [70, 1000])).fit(AGES)
    np.testing.assert_allclose(scaler.transform([[20, 500], [99, -1]]), [[-1, 0], [1, -1]])
    one_more = pv.PrivateScaler(bounds=([20, 0], [70, 1000])).fit(np.vstack([AGES, [1e9, 1e9]]))
    np.testing.assert_array_equal(one_more.transform(AGES), scaler.transform(AGES))
    assert scaler.transform(AGES.astype(np.float32)).dtype == np.float32
    assert np.isnan(scaler.transform([[np.nan, 1.0]])[0, 0])


def test_constants_fill_in_what_is_missing():
    imputer = pv.PrivateImputer(fill_value=[40, -1]).fit([[np.nan, np.nan], [np.nan, 3.0]])
    np.testing.assert_array_equal(imputer.transform([[np.nan, 2.0]]), [[40, 2]])


def test_names_frames_and_pickles():
    frame = pd.DataFrame(AGES[:50], columns=["age", "income"])
    scaler = pv.PrivateScaler(bounds=(0, 1000)).set_output(transform="pandas")
    found = clone(scaler).fit(frame).transform(frame)
    assert list(found.columns) == ["age", "income"]
    fitted = pickle.loads(pickle.dumps(scaler.fit(frame)))
    pd.testing.assert_frame_equal(fitted.transform(frame), found)


def test_words_are_hashed_or_looked_up():
    texts = ["The good, the bad", "Ugly", "", None, float("nan")]
    by_hash = pv.PrivateVectorizer(n_features=64)
    rows = by_hash.fit_transform(texts).toarray()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [1, 1, 0, 0, 0], atol=1e-6)
    np.testing.assert_array_equal(by_hash.fit(["other"]).transform(texts[:1]).toarray(), rows[:1])
    listed = pv.PrivateVectorizer(vocabulary=["bad", "good"], ngram_range=(1, 2))
    np.testing.assert_allclose(listed.fit_transform(texts).toarray()[0], [0.5**0.5] * 2)
    assert list(listed.get_feature_names_out()) == ["bad", "good"]
    assert len(by_hash.get_feature_names_out()) == 64


@pytest.mark.parametrize("weighting", ["count", "log", "presence"])
def test_counts_of_words_are_weighed_text_by_text(weighting):
    texts = ["a bad bad bad film, a film", "good", ""]
    words = ["bad", "film", "good"]
    made = pv.PrivateVectorizer(vocabulary=words, weighting=weighting).fit_transform(texts)
    counts = np.array([[3.0, 2, 0], [0, 0, 1], [0, 0, 0]])
    other = {
        "count": TfidfTransformer(use_idf=False),
        "log": TfidfTransformer(use_idf=False, sublinear_tf=True),
        "presence": Normalizer(),
    }[weighting]
    expected = other.fit_transform(np.minimum(counts, 1) if weighting == "presence" else counts)
    expected = expected.toarray() if hasattr(expected, "toarray") else expected
    np.testing.assert_allclose(made.toarray(), expected, rtol=1e-6)


def test_words_that_cancel_out_in_a_place_leave_nothing():
    made = [pv.PrivateVectorizer(2, weighting=how) for how in ("count", "log", "presence")]
    texts = [f"{first * 2} {second * 2}" for first in "abcdef" for second in "ghijk"]
    counts, *others = (each.fit_transform(texts).toarray() for each in made)
    assert (counts == 0).all(axis=1).any()
    for other in others:
        assert np.isfinite(other).all()
        assert ((other == 0) == (counts == 0)).all()


# ---------------------------------------------------------------------- by charged queries


def test_bounds_are_estimated_at_a_charge(tmp_path):
    ledger = new_ledger(tmp_path / "people.ledger")
    scaler = pv.PrivateScaler(epsilon=1.0, ledger=ledger.path).fit(AGES)
    (charge,) = ledger.charges()
    assert (charge.purpose, charge.count) == ("statistics", 1)
    assert 0.9 < epsilon_of(ledger.totals(), ledger.budget.delta) <= 1.0
    assert ledger.epsilon() == ledger.price({charge.event: 1})
    np.testing.assert_array_equal(scaler.high_, [128, 1024])
    assert np.abs(scaler.transform(AGES)).max() <= 1


@pytest.mark.parametrize("names", [["age", "income"], ["unnamed", ""], ["x0'", "x0"]])
def test_bounds_of_columns_of_any_names(names):
    frame = pd.DataFrame(AGES, columns=names)
    scaler = pv.PrivateScaler(epsilon=1.0, ledger=new_ledger())
    np.testing.assert_array_equal(scaler.fit(frame).high_, [128, 1024])


def test_medians_are_estimated_at_a_charge():
    values = AGES.copy()
    values[::3, 0] = np.nan
    ledger = new_ledger()
    imputer = pv.PrivateImputer("median", bounds=([0, 0], [128, 1024]), epsilon=1.0, ledger=ledger)
    found = imputer.fit(values).statistics_
    # bins are 2 and 16 wide; noise of 1 / 100 of the records moves a median by less than two more
    np.testing.assert_allclose(found, np.nanmedian(values, axis=0), rtol=0.1)
    assert 0.9 < epsilon_of(ledger.totals(), ledger.budget.delta) <= 1.0
    assert not np.isnan(imputer.transform(values)).any()


def test_a_median_that_is_lost_in_the_noise_is_the_middle():
    ledger = new_ledger()
    imputer = pv.PrivateImputer("median", bounds=(0, 10), epsilon=0.5, ledger=ledger)
    values = np.full((2000, 1), np.nan)
    values[:3] = 9.0
    assert imputer.fit(values).statistics_ == [5.0]


def test_medians_of_too_few_records_are_refused_and_nothing_is_charged():
    ledger = new_ledger()
    imputer = pv.PrivateImputer("median", bounds=(0, 10), epsilon=0.5, ledger=ledger)
    with pytest.raises(pv.DataError, match=r"Expected at least \d+ records .* was not charged"):
        imputer.fit(np.full((300, 2), 9.0))
    assert ledger.totals() == {}
    assert (imputer.fit(np.full((2000, 2), 9.0)).statistics_ > 8).all()


def test_a_query_that_cannot_be_paid_reads_nothing(monkeypatch):
    ledger = new_ledger(epsilon=0.5)
    for asked in (
        pv.PrivateScaler(epsilon=1.0, ledger=ledger),
        pv.PrivateImputer("median", bounds=(0, 1), epsilon=1.0, ledger=ledger),
    ):
        with pytest.raises(pv.BudgetExceeded):
            asked.fit(AGES)
    assert ledger.totals() == {}


def test_seeds_make_queries_reproducible():
    one, two = (
        pv.PrivateImputer("median", bounds=(0, 1024), epsilon=0.2, ledger=new_ledger(), seed=3)
        for _ in range(2)
    )
    np.testing.assert_array_equal(one.fit(AGES).statistics_, two.fit(AGES).statistics_)


def test_a_pipeline_is_charged_on_one_ledger(tmp_path):
    ledger = new_ledger(tmp_path / "people.ledger", epsilon=8.0)
    line = make_pipeline(
        pv.PrivateImputer("median", bounds=(0, 1024), epsilon=0.5, ledger=ledger.path),
        pv.PrivateScaler(epsilon=1.0, ledger=ledger.path),
        pv.PrivateClassifier(epsilon=2.0, delta=1e-6, epochs=1.0, ledger=ledger.path),
    )
    targets = (AGES[:, 0] > 45).astype(int)
    found = clone(line).fit(AGES, targets)[-1]
    charged = [charge.purpose for charge in ledger.charges()]
    assert charged == ["statistics"] * 2 + ["training"] * 2  # a look at the features, and steps
    assert 2.0 < found.epsilon_ == ledger.epsilon() < 3.5
    line.set_params(privateclassifier__ledger=None)
    with pytest.raises(pv.ArgumentError, match="ledger=None behind PrivateImputer"):
        line.fit(AGES, targets)


def test_what_is_paid_before_an_estimator_is_on_its_ledger_or_named(tmp_path):
    ledger, other = new_ledger(tmp_path / "one"), new_ledger(tmp_path / "other")
    asked = pv.PrivateClassifier(epochs=0.1, delta=1e-6)

    def line():
        scaler = pv.PrivateScaler(epsilon=0.5, ledger=ledger)
        return make_pipeline(scaler, Normalizer(), asked)  # which changes all values

    with pytest.raises(pv.ArgumentError, match="ledger=None behind PrivateScaler"):
        line().fit(AGES, AGES[:, 0] > 45)
    asked.set_params(ledger=other.path)
    said = line().fit(AGES, AGES[:, 0] > 45)[-1].statement_.assumptions
    assert sum("another ledger" in each for each in said) == 1
    asked.set_params(ledger=ledger.path)
    found = line().fit(AGES, AGES[:, 0] > 45)[-1].statement_
    assert not any(str(ledger.name) in each for each in found.assumptions)
    assert found.epsilon == ledger.epsilon()


def test_rows_that_a_public_transformer_changes_are_known_again():
    targets = (AGES[:, 0] > 45).astype(int)
    pv.PrivateClassifier(epochs=1.0, bounds=(0, 1000)).fit(AGES, targets)
    line = make_pipeline(pv.PrivateScaler(bounds=(0, 1000)), pv.PrivateClassifier(epochs=1.0))
    with pytest.raises(pv.ArgumentError, match="without a ledger none would count"):
        line.fit(AGES, targets)


def test_rows_are_known_again_before_they_were_changed():
    targets = (AGES[:, 0] > 45).astype(int)
    steps = [pv.PrivateImputer(fill_value=3), pv.PrivateScaler(bounds=(0, 1000))]
    make_pipeline(*steps, pv.PrivateClassifier(epochs=1.0)).fit(AGES, targets)
    with pytest.raises(pv.ArgumentError, match="without a ledger none would count"):
        pv.PrivateClassifier(epochs=1.0, bounds=(0, 1000)).fit(AGES, targets)
    ledger = new_ledger()
    pv.PrivateScaler(epsilon=0.5, ledger=ledger).fit(AGES)
    assert {charge.purpose for charge in ledger.charges()} == {"statistics", "training"}


def test_the_query_of_the_tables_is_what_is_asked():
    """One query for bounds, wherever it is asked from."""
    columns = {"x0": AGES[:, 0], "x1": AGES[:, 1], "y": np.zeros(len(AGES))}
    schema = pv.tables.Schema(
        pv.tables.Classes("y", ["0", "1"]),
        {name: pv.tables.Number(bounds="estimate") for name in ("x0", "x1")},
    )
    ledger = new_ledger()
    found = estimate_bounds(
        pv.tables.Table(columns), schema, ledger=ledger, budget=pv.Budget(1.0, 1e-5), seed=1
    )
    scaler = pv.PrivateScaler(epsilon=1.0, delta=1e-5, ledger=new_ledger(), seed=1).fit(AGES)
    assert [found.columns[name].high for name in ("x0", "x1")] == scaler.high_.tolist()


# ---------------------------------------------------------------------- one odd record


def test_a_record_that_float32_has_no_room_for_leads_to_no_word():
    odd = AGES.copy()
    odd[3, 1], odd[4, 1] = 1e300, -1e300
    classes = (AGES[:, 0] > 45).astype(int)
    float32 = AGES.astype(np.float32)
    float32[3, 1], float32[4, 1] = 3e38, -3e38
    targets = AGES[:, 1].copy()
    targets[:2] = 1.7e308
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pv.PrivateScaler(bounds=(0, 1000)).fit_transform(odd)
        pv.PrivateImputer().fit_transform(odd)
        pv.PrivateScaler(epsilon=1.0, ledger=new_ledger()).fit(odd)
        pv.PrivateImputer("median", bounds=(0, 1), epsilon=1.0, ledger=new_ledger()).fit(odd)
        pv.PrivateClassifier(epochs=0.1, bounds=(0, 1000), ledger=new_ledger()).fit(
            float32, classes
        )
        pv.PrivateRegressor(
            epochs=0.1, bounds=(0, 1000), target_bounds=(0, 1000), ledger=new_ledger()
        ).fit(AGES, targets)


def _summed(monkeypatch, asked, rows):
    """Return what a fit adds noise to, and the sensitivity that the noise is scaled to."""
    seen = []
    release = GaussianNoise.release

    def looked_at(self, clipped, noise_multiplier, batch_size):
        seen.append((clipped.value.numpy().copy(), clipped.sensitivity))
        return release(self, clipped, noise_multiplier, batch_size)

    with monkeypatch.context() as patched:
        patched.setattr(GaussianNoise, "release", looked_at)
        asked.fit(rows)
    (found,) = seen
    return found


@pytest.mark.parametrize("kind", ["bounds", "medians"])
def test_one_record_moves_what_is_released_by_the_sensitivity_at_most(monkeypatch, kind):
    """A replay on neighbouring tables, with records of every odd kind."""
    odd = [0.0, -0.0, 5e-324, 1e-300, 1e300, -1e300, 1.7976931348623157e308, np.nan, 2.0**40, 0.5,
           64.0, np.nextafter(64.0, 0), 128.0, -1.0, 1.0]  # fmt: skip
    rows = RNG.choice(odd, (700, 5))
    rows[: len(odd)] = np.array(odd)[:, None]

    def asked():
        if kind == "bounds":
            return pv.PrivateScaler(epsilon=1.0, ledger=new_ledger())
        return pv.PrivateImputer("median", bounds=(0, 128), epsilon=1.0, ledger=new_ledger())

    whole, sensitivity = _summed(monkeypatch, asked(), rows)
    assert sensitivity == np.sqrt(5)
    moved = []
    for place in range(2 * len(odd)):
        without, stated = _summed(monkeypatch, asked(), np.delete(rows, place, axis=0))
        assert stated == sensitivity
        moved.append(np.linalg.norm(whole - without))
    assert max(moved) == pytest.approx(sensitivity, rel=1e-12)
    np.testing.assert_allclose(moved[odd.index(1e300)], sensitivity)
    assert moved[7] == 0  # missing everywhere


@pytest.mark.parametrize("analyzer", ["word", "char", "char_wb"])
def test_a_text_that_is_no_unicode_is_turned_like_any_other(analyzer):
    vectorizer = pv.PrivateVectorizer(n_features=64, analyzer=analyzer)
    texts = ["good film", "a \ud800 film \udcff", "bad film"]
    found = vectorizer.fit_transform(texts)
    assert found.shape == (3, 64)
    np.testing.assert_array_equal(
        found[[0, 2]].toarray(), vectorizer.transform([texts[0], texts[2]]).toarray()
    )


# ---------------------------------------------------------------------- rubbish


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (pv.PrivateScaler(), "epsilon= and ledger="),
        (pv.PrivateScaler(epsilon=1.0), "epsilon= and ledger="),
        (pv.PrivateScaler(epsilon=1.0, ledger="not there"), "Make it first"),
        (pv.PrivateScaler(epsilon=1.0, ledger=3), "ledger"),
        (pv.PrivateScaler(epsilon=-1.0, ledger=pv.Ledger(None)), "epsilon"),
        (pv.PrivateScaler(epsilon=1.0, ledger=pv.Ledger(None), outside=2), "outside"),
        (pv.PrivateScaler(bounds=(0, 1, 2)), "bounds"),
        (pv.PrivateScaler(bounds=3), "bounds"),
        (pv.PrivateScaler(bounds=(0, [1, 2, 3])), r"each of the 2 features.*\(3,\)"),
        (pv.PrivateScaler(bounds=(1, [2, 1])), "low < high"),
        (pv.PrivateScaler(bounds=(-1e308, 1e308)), "twice their distance finite"),
        (pv.PrivateImputer("mean"), "strategy"),
        (pv.PrivateImputer("median", epsilon=1.0, ledger=pv.Ledger(None)), "bounds"),
        (pv.PrivateImputer("median", bounds=(0, 1)), "epsilon= and ledger="),
        (pv.PrivateImputer(fill_value="x"), "fill_value"),
        (pv.PrivateImputer(fill_value=np.nan), "fill_value"),
        (pv.PrivateImputer(fill_value=[1, 2, 3]), r"fill_value.*\(3,\)"),
        (pv.PrivateVectorizer(0), "n_features"),
        (pv.PrivateVectorizer(analyzer="magic"), "analyzer"),
        (pv.PrivateVectorizer(weighting="tf-idf"), "weighting"),
    ],
)
def test_rubbish_is_refused(asked, words):
    with pytest.raises(pv.ArgumentError, match=words):
        asked.fit(AGES)
    assert not fit_registry._records


@pytest.mark.parametrize("texts", ["one text", pd.DataFrame({"text": ["one"]}), np.array(3)])
def test_what_is_no_sequence_of_texts_is_refused(texts):
    with pytest.raises(pv.ArgumentError, match="sequence of texts"):
        pv.PrivateVectorizer().fit_transform(texts)


def test_a_private_cell_is_not_quoted():
    with pytest.raises(pv.DataError) as refused:
        pv.PrivateScaler(bounds=(0, 1)).fit(pd.DataFrame({"name": ["Smith"], "age": [3]}))
    assert "Smith" not in str(refused.value)
    assert refused.value.__context__ is None
    secret = np.array([123.456, 654.321])
    for given in (secret, secret[:, None] + 1j):
        with pytest.raises(pv.DataError) as refused:
            pv.PrivateScaler(bounds=(0, 1)).fit(given)
        assert "123.4" not in str(refused.value)
        assert refused.value.__context__ is None
        with pytest.raises(pv.DataError) as refused:
            pv.PrivateClassifier().fit(given, [0, 1])
        assert "123.4" not in str(refused.value)


# ---------------------------------------------------------------------- persons


def visits(people=4000, rows=3, seed=0):
    groups = np.repeat(np.arange(people), rows)
    values = np.random.default_rng(seed).uniform(20, 70, (len(groups), 1))
    return values, groups


def learner(kind, ledger, **settings):
    how = {"epsilon": 0.5, "delta": 1e-6, "ledger": ledger, **settings}
    return (
        pv.PrivateScaler(**how)
        if kind == "scaler"
        else pv.PrivateImputer("median", bounds=(0, 128), **how)
    )


@pytest.mark.parametrize("kind", ["scaler", "imputer"])
def test_what_is_learnt_of_persons_is_charged_for_all_their_rows(kind):
    values, groups = visits()
    ledger = pv.Ledger(None, pv.Budget(2.0, 1e-6), kind="planned")
    learner(kind, ledger).fit(values, groups=groups)
    assert ledger.unit == "person (all their rows)"
    assert 0.45 < ledger.epsilon() <= 0.5
    named = pv.Ledger(None, pv.Budget(2.0, 1e-6))
    learner(kind, named, unit="patient").fit(values + 1, groups=groups)
    assert named.unit == "patient (all their rows)"


@pytest.mark.parametrize("kind", ["scaler", "imputer"])
def test_few_persons_with_many_rows_are_refused_before_the_charge(kind):
    values, _ = visits()
    ledger = pv.Ledger(None, pv.Budget(2.0, 1e-6))
    with pytest.raises(DataError, match=r"persons .* got 3\b"):
        learner(kind, ledger).fit(values, groups=np.arange(len(values)) % 3)
    assert not ledger.totals()


@pytest.mark.parametrize("kind", ["scaler", "imputer"])
def test_persons_and_rows_do_not_share_a_ledger(kind):
    values, groups = visits()
    ledger = pv.Ledger(None, pv.Budget(2.0, 1e-6))
    learner(kind, ledger).fit(values)
    with pytest.raises(LedgerError, match="different units"):
        learner(kind, ledger).fit(values, groups=groups)
    assert sum(ledger.totals().values()) == 1


def test_a_pipeline_protects_persons_only_if_every_part_does():
    values, groups = visits()
    targets = (values[:, 0] > 45).astype(int)

    def pipeline():
        ledger = pv.Ledger(None, pv.Budget(4.0, 1e-6))
        how = {"epsilon": 1.0, "delta": 1e-6, "ledger": ledger, "epochs": 0.5}
        return make_pipeline(
            pv.PrivateScaler(epsilon=0.5, delta=1e-6, ledger=ledger), pv.PrivateClassifier(**how)
        )

    both = pipeline().fit(
        values, targets, privatescaler__groups=groups, privateclassifier__groups=groups
    )
    statement = both[-1].statement_
    assert statement.unit == "person"
    ledger = both[-1].ledger
    assert 1.0 < epsilon_of(ledger.totals(), 1e-6) <= 1.5
    assert statement.epsilon == ledger.epsilon() == ledger.price(ledger.totals())
    with pytest.raises(LedgerError, match="different units"):
        pipeline().fit(values, targets, privateclassifier__groups=groups)


def test_what_learns_nothing_takes_groups_for_nothing():
    values, groups = visits(10)
    assert pv.PrivateScaler(bounds=(0, 100)).fit(values, groups=groups).low_ == [0]
    assert pv.PrivateImputer().fit(values, groups=groups).statistics_ == [0]
    assert pv.PrivateVectorizer().fit(["a"], groups=["ann"])


@pytest.mark.parametrize("kind", ["scaler", "imputer"])
def test_wrong_groups_are_refused_without_a_charge(kind):
    values, groups = visits()
    ledger = pv.Ledger(None, pv.Budget(2.0, 1e-6))
    with pytest.raises(ArgumentError, match="one identifier for each of"):
        learner(kind, ledger).fit(values, groups=groups[1:])
    with pytest.raises(ArgumentError, match="missing") as raised:
        learner(kind, ledger).fit(values, groups=["secret"] * (len(values) - 1) + [None])
    assert "secret" not in str(raised.value)
    assert not ledger.totals()
