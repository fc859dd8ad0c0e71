import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfTransformer

import privada as pv
from privada.core.errors import ArgumentError, DataError
from privada.tables import (
    Category,
    Classes,
    Hashed,
    Ignore,
    Matrix,
    Number,
    Range,
    Schema,
    Table,
    Text,
    encode,
    encode_inputs,
    infer_schema,
    read,
)
from privada.tables.bag_of_words import hash_bucket, tokenize
from tests.datasets import data_folder

YES_NO = Classes("y", ["no", "yes"])


def inputs(kind, values, **options):
    """Encode one column."""
    made = encode_inputs(Table({"x": values}), Schema(YES_NO, {"x": kind}, **options))
    return made.toarray() if scipy.sparse.issparse(made) else made


# ---------------------------------------------------------------------- numbers


def test_numbers_are_clipped_and_mapped():
    made = inputs(Number(0, 100), [0, 25, 50, 100, -7, 1e300, None])
    assert made.dtype == np.float32
    assert made[:, 0].tolist() == [-1, -0.5, 0, 1, -1, 1, 0]


@pytest.mark.parametrize(
    ("missing", "row"), [("low", [-1.0]), ("middle", [0.0]), ("flag", [0.0, 1.0])]
)
def test_missing_numbers(missing, row):
    made = inputs(Number(0, 4, missing=missing), ["?", "nan", None, "2"])
    assert made[:3].tolist() == [row] * 3
    assert made[3].tolist() == [0.0] * len(row)


def test_bins_share_a_value_between_the_two_points_that_it_lies_between():
    made = inputs(Number(0, 100, bins=5), [0, 25, 30, 99, -7, 1e300, None])
    assert made[:, 1:] == pytest.approx(
        np.array(
            [
                [1, 0, 0, 0, 0],
                [0, 1, 0, 0, 0],
                [0, 0.8, 0.2, 0, 0],
                [0, 0, 0, 0.04, 0.96],
                [1, 0, 0, 0, 0],
                [0, 0, 0, 0, 1],
                [0, 0, 0, 0, 0],
            ]
        ),
        abs=1e-6,
    )
    assert made[:, :1].tolist() == inputs(Number(0, 100), [0, 25, 30, 99, -7, 1e300, None]).tolist()


def test_bins_stand_evenly_on_the_scale_and_go_with_a_flag():
    made = inputs(Number(-99, 99, "log", "flag", bins=3), [0, 9, None])
    assert made == pytest.approx(
        np.array([[0, 0, 0, 1, 0], [0.5, 0, 0, 0.5, 0.5], [0, 1, 0, 0, 0]])
    )
    names = Schema(YES_NO, {"x": Number(0, 1, missing="flag", bins=2)}).features
    assert names == ("x", "x (missing)", "x (bin 0)", "x (bin 1)")


@given(
    st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 40),
    st.sampled_from(["linear", "log"]),
    st.lists(st.floats(allow_infinity=False), max_size=5),
)  # fmt: skip
def test_a_row_has_at_most_two_bins_which_sum_to_one_and_hold_its_value(
    low, span, bins, scale, held
):
    try:
        kind = Number(low, low + span, scale, bins=bins)
    except ArgumentError:
        assume(False)
    made = inputs(kind, [*held, None])
    shares, known = made[:, 1:].astype(float), ~np.isnan([*held, np.nan])
    assert shares.min() >= 0
    assert ((shares > 0).sum(axis=1) <= 2).all()
    assert shares.sum(axis=1) == pytest.approx(known.astype(float), abs=1e-6)
    # the points are evenly between -1 and 1, so that the value is their average
    assert shares @ np.linspace(-1, 1, bins) == pytest.approx(made[:, 0].astype(float), abs=1e-5)


@pytest.mark.parametrize("bins", [1, -1, 2.5, "8", None, True])
def test_a_number_of_bins_that_cannot_be_is_refused(bins):
    with pytest.raises(ArgumentError, match="bins"):
        Number(0, 1, bins=bins)


def test_the_log_scale_is_odd_and_keeps_the_bounds():
    made = inputs(Number(-99, 99, scale="log"), [-99, -9, 0, 9, 99])[:, 0]
    np.testing.assert_allclose(made, [-1, -0.5, 0, 0.5, 1], atol=1e-6)


@given(
    st.floats(-1e300, 1e300),
    st.floats(1e-9, 1e300),
    st.sampled_from(["linear", "log"]),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_number_is_always_within_one(low, span, scale, value):
    try:
        kind = Number(low, low + span, scale)
    except ArgumentError:
        assume(False)
    made = inputs(kind, [value])
    assert -1 <= made[0, 0] <= 1


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
    st.sampled_from(["linear", "log"]),
    st.floats(0, 1),
)
def test_targets_are_restored(low, span, scale, share):
    target = Range("y", low, low + span, scale)
    value = low + share * span
    assert target.restore(target.unit([value]))[0] == pytest.approx(value, abs=1e-6 * (1 + span))
    assert target.restore([-9.0, 9.0]) == pytest.approx([low, low + span])


# ---------------------------------------------------------------------- categories


def test_categories_have_a_feature_each_and_missing_ones_their_own():
    made = inputs(Category(["a", "b"], other=True), ["b", "?", "z", "a", None])
    assert made.argmax(axis=1).tolist() == [1, 3, 2, 0, 3]
    assert made.sum(axis=1).tolist() == [1] * 5


def test_an_unseen_value_is_refused_without_being_told():
    with pytest.raises(DataError, match="values that the schema lists in column 'x'") as e:
        inputs(Category(["a"]), ["a", "secret"])
    assert "secret" not in str(e.value)
    assert "other = true" in str(e.value)


def test_numbers_are_categories_by_their_text():
    assert inputs(Category([1, 2]), np.array([2.0, 1.0])).argmax(axis=1).tolist() == [1, 0]


def test_hashed_values_have_the_bucket_of_their_text():
    made = inputs(Hashed(8), ["a", "b", "a", None, "?"])
    assert made[0].argmax() == hash_bucket("a", 8)
    assert np.array_equal(made[0], made[2])
    assert made.sum(axis=1).tolist() == [1, 1, 1, 0, 0]
    assert hash_bucket("a", 2**40) == 0x395B66422F  # printf a | b2sum -l 64


# ---------------------------------------------------------------------- text

DOCUMENTS = ["Good, good film; it's GOOD", "bad film", "", None, "unheard-of"]


def test_words():
    assert tokenize("Don't STOP—café 42_x 'quoted'") == ["don't", "stop", "café", "42_x", "quoted"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "words.txt").write_text("good\nbad\nfilm\nit's\n")
    (tmp_path / "public.txt").write_text("a good film\na bad film\na film\n")
    return tmp_path


def test_words_are_counted_in_a_public_vocabulary(folder):
    plain = {"vocabulary": "words.txt", "unit_norm": False}
    counts = inputs(Text(**plain), DOCUMENTS, folder=folder)
    assert counts.tolist() == [[3, 0, 1, 1], [0, 1, 1, 0], [0] * 4, [0] * 4, [0] * 4]
    presence = inputs(Text(**plain, weighting="presence"), DOCUMENTS, folder=folder)
    assert presence.tolist() == np.minimum(counts, 1).tolist()
    logarithms = inputs(Text(**plain, weighting="log"), DOCUMENTS, folder=folder)
    expected = TfidfTransformer(norm=None, use_idf=False, sublinear_tf=True)
    np.testing.assert_allclose(logarithms, expected.fit_transform(counts).toarray(), rtol=1e-6)


def test_tf_idf_is_scikit_learn_s_with_public_frequencies(folder):
    public = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0]])
    plain = inputs(Text(vocabulary="words.txt", unit_norm=False), DOCUMENTS, folder=folder)
    for unit, norm in ((True, "l2"), (False, None)):
        kind = Text(
            vocabulary="words.txt", weighting="tf-idf", public_text="public.txt", unit_norm=unit
        )
        expected = TfidfTransformer(norm=norm).fit(public).transform(plain).toarray()
        np.testing.assert_allclose(inputs(kind, DOCUMENTS, folder=folder), expected, rtol=1e-6)


def test_public_text_may_be_a_column_of_a_table(folder):
    (folder / "public.csv").write_text("x,other\na good film,1\na bad film,2\na film,3\n")
    (folder / "text.csv").write_text("text,other\na good film,1\na bad film,2\na film,3\n")
    made = [
        inputs(
            Text(vocabulary="words.txt", weighting="tf-idf", public_text=name),
            DOCUMENTS,
            folder=folder,
        )
        for name in ("public.txt", "public.csv", "text.csv")
    ]
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])
    (folder / "none.csv").write_text("other\n1 2 3\n")
    kind = Text(weighting="tf-idf", public_text="none.csv")
    with pytest.raises(DataError, match="Expected a column 'text'"):
        inputs(kind, DOCUMENTS, folder=folder)


def test_words_are_hashed_without_a_vocabulary():
    made = inputs(Text(features=16, unit_norm=False), ["a b a", "\ud800"])
    expected = np.zeros(16)
    for word in ("a", "b", "a"):
        expected[hash_bucket(word, 16)] += 1
    assert made[0].tolist() == expected.tolist()


def test_rows_of_words_have_norm_one_or_zero():
    norms = np.linalg.norm(inputs(Text(), DOCUMENTS), axis=1)
    np.testing.assert_allclose(norms, [1, 1, 0, 0, 1], rtol=1e-6)


# ---------------------------------------------------------------------- matrices


@pytest.mark.parametrize("given_sparse", [False, True])
@pytest.mark.parametrize("kept_sparse", [False, True])
def test_matrices_are_clipped_and_divided(given_sparse, kept_sparse):
    values = np.array([[0, 5.0, np.nan], [-9, 20, 0], [0, 0, 0]])
    column = scipy.sparse.csr_array(values) if given_sparse else values
    schema = Schema(YES_NO, {"x": Matrix(3, -5, 10, sparse=kept_sparse)})
    made = encode_inputs(Table({"x": column}), schema)
    assert scipy.sparse.issparse(made) is kept_sparse
    dense = made.toarray() if kept_sparse else made
    assert dense.tolist() == [[0, 0.5, 0], [-0.5, 1, 0], [0, 0, 0]]


def test_the_parts_of_an_entry_count_together():
    twice = scipy.sparse.csr_array((np.ones(2), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    for sparse in (False, True):
        assert inputs(Matrix(1, 0, 1, sparse=sparse), twice).tolist() == [[1]]


@pytest.mark.parametrize("sparse", [False, True])
def test_faults_of_matrices(sparse):
    kind = Matrix(2, -1, 1, sparse=sparse)
    with pytest.raises(DataError, match="2 numbers for each record in column 'x', got 3"):
        inputs(kind, np.zeros((1, 3)))
    with pytest.raises(DataError, match="an infinite one"):
        inputs(kind, np.array([[0, 0], [1, 1], [0, np.inf], [1, 1]]))


# ---------------------------------------------------------------------- targets


def test_targets_have_the_types_that_losses_want():
    table = Table({"x": [1, 2], "y": ["yes", "no"], "z": [0, 10]})
    classes = Schema(YES_NO, {"x": Number(0, 9), "z": Ignore()})
    assert encode(table, classes).targets.tolist() == [1, 0]
    assert encode(table, classes).targets.dtype == np.int64
    numbers = Schema(Range("z", 0, 10), {"x": Number(0, 9), "y": Ignore()})
    encoded = encode(table, numbers)
    assert encoded.targets.tolist() == [[-1], [1]]
    assert encoded.targets.dtype == np.float32
    assert encoded.data == (encoded.inputs, encoded.targets)


@pytest.mark.parametrize(
    ("target", "cell", "words"),
    [
        (YES_NO, "?", "a target in column 'y'"),
        (YES_NO, "secret", "one of the classes that the schema lists in column 'y'"),
        (Range("y", 0, 1), "", "a target in every row of column 'y'"),
        (Range("y", 0, 1), "secret", "a finite number in column 'y'"),
    ],
)
def test_faults_of_targets_have_their_row(target, cell, words):
    first = "no" if target is YES_NO else "1"
    table = Table({"x": [1, 2], "y": [first, cell]})
    with pytest.raises(DataError, match=words) as raised:
        encode(table, Schema(target, {"x": Number(0, 9)}))
    assert "secret" not in str(raised.value)


def test_columns_are_held_to_the_schema():
    schema = Schema(YES_NO, {"x": Number(0, 9)})
    with pytest.raises(DataError, match="Expected a column 'y'"):
        encode(Table({"x": [1]}), schema)
    with pytest.raises(DataError, match="Expected a column 'x'"):
        encode_inputs(Table({"y": ["no"]}), schema)
    with pytest.raises(DataError, match=r"got 'a', 'b', 'c', 'd', 'e', \.\.\. that are not"):
        encode_inputs(Table({name: [1] for name in "xabcdef"}), schema)


def test_bounds_that_are_not_estimated_are_refused():
    table = Table({"x": [1], "y": [1]})
    for schema in (
        Schema(Classes("y", [1, 2]), {"x": Number(bounds="estimate")}),
        Schema(Range("y", bounds="estimate"), {"x": Hashed()}),
    ):
        with pytest.raises(ArgumentError, match="estimate_bounds"):
            encode(table, schema)
    with pytest.raises(ArgumentError, match="restore"):
        Range("y", bounds="estimate").restore([0])
    with pytest.raises(ArgumentError, match="estimate_bounds"):
        Range("y", bounds="estimate").unit([0])


# ---------------------------------------------------------------------- each row by itself

cells = st.sampled_from(["", "?", "1", "01", "1.0", "2.5", "-7", "a", " a", "a b", "NaN", "true"])
numbers = st.sampled_from(["", "?", "NaN", "1", "01", "1.0", "2.5", "-7", "1e3"])
rows = st.fixed_dictionaries(
    {"n": numbers, "c": cells, "h": cells, "t": cells, "y": st.sampled_from(["no", "yes"])}
)
ALONE = {
    "n": Number(-2, 5, missing="flag", bins=4),
    "c": Category(["1", "a"], other=True),
    "h": Hashed(4),
    "t": Text(features=8),
}
DENSE = {name: kind for name, kind in ALONE.items() if name != "t"} | {"t": Ignore()}


def as_csv(path, records):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)


def as_json(path, records):
    """Write cells as numbers, truth values or nothing at all where they can be."""

    def plain(cell):
        try:
            return json.loads(cell)
        except ValueError:
            return cell

    lines = [{k: plain(v) for k, v in record.items() if v} for record in records]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def dense(matrix):
    return matrix.toarray() if scipy.sparse.issparse(matrix) else matrix


@pytest.mark.parametrize(("write", "name"), [(as_csv, "t.csv"), (as_json, "t.jsonl")])
@pytest.mark.parametrize("columns", [ALONE, DENSE], ids=["sparse", "dense"])
@pytest.mark.parametrize("with_schema", [True, False])
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(records=st.lists(rows, min_size=1, max_size=6))
def test_a_row_is_encoded_the_same_whatever_the_others_are(
    tmp_path, write, name, columns, with_schema, records
):
    schema = Schema(YES_NO, columns)

    def encoded(some):
        write(tmp_path / name, some)
        if with_schema:
            return encode(read(tmp_path / name, schema), schema)
        table = read(tmp_path / name)
        absent = {column: [None] * table.size for column in columns if column not in table.names}
        return encode(Table({**table.columns, **absent}), schema)

    together = encoded(records)
    for i, record in enumerate(records):
        alone = encoded([record])
        assert np.array_equal(dense(alone.inputs)[0], dense(together.inputs)[i])
        assert alone.targets[0] == together.targets[i]


@given(
    st.lists(st.floats(-1e6, 1e6, width=32) | st.just(math.nan), min_size=1, max_size=8),
    st.integers(0, 7),
)
def test_that_holds_for_numbers_and_words_in_arrays_too(values, place):
    schema = Schema(YES_NO, {"n": Number(-10, 1000, "log", bins=8), "c": Hashed(16), "t": Text()})
    texts = [f"{value} " * (1 + i) for i, value in enumerate(values)]
    table = Table({"n": np.array(values), "c": np.array(values), "t": texts})
    place %= len(values)
    whole = encode_inputs(table, schema).toarray()
    assert np.array_equal(whole[place], encode_inputs(table.take([place]), schema).toarray()[0])


# ---------------------------------------------------------------------- real data


def test_adult_is_encoded_and_trained_on():
    table = read(data_folder("adult.csv.gz") / "adult.csv.gz")
    drafted = infer_schema(table, target="income", public=True)
    schema = replace(drafted, columns={**drafted.columns, "split": Ignore()})
    train = encode(table.take(table.texts("split") == "train"), schema)
    assert train.inputs.shape == (32_561, len(schema.features))
    assert np.abs(train.inputs).max() == 1
    assert train.targets.sum() == 7841
    model = torch.nn.Linear(len(schema.features), 2)
    method = pv.methods.DPSGD(lr=4.0, clip=1.0)
    loss, budget = torch.nn.CrossEntropyLoss(), pv.Budget(1.0, 1e-6)
    pv.Trainer(
        model, loss, train.data, method=method, batch_size=2048, epochs=4, budget=budget, seed=0
    ).fit()
    test = encode(table.take(table.texts("split") == "test"), schema)
    with torch.no_grad():
        right = model(torch.from_numpy(test.inputs)).argmax(dim=1).numpy() == test.targets
    assert right.mean() > 0.83


def test_enron_is_encoded_sparse():
    path = data_folder("enron.npz") / "enron.npz"
    schema = Schema(
        Classes("labels", [0, 1]),
        {"data": Matrix(5000, 0, 10, sparse=True), "vocab": Ignore()},
    )
    encoded = encode(read(path, schema), schema)
    assert encoded.inputs.shape == (5172, 5000)
    assert encoded.inputs.dtype == np.float32
    assert encoded.inputs.max() == 1
    assert encoded.inputs.nnz == 339_673
