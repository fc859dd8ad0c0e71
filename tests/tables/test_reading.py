import bz2
import gzip
import json
import lzma
import os
import re
import shutil

import numpy as np
import pyarrow as arrow
import pytest
import scipy.sparse
from pyarrow import parquet

import privada as pv
from privada.core.errors import ArgumentError, DataError, PrivadaError
from privada.tables import (
    Classes,
    Hashed,
    Ignore,
    Number,
    Range,
    Schema,
    Text,
    column_types,
    default_bounds,
    encode,
    encode_inputs,
    estimate_bounds,
    estimate_classes,
    read,
)
from tests.datasets import data_folder

CSV = "age,job,income\n39,clerk,low\n50,?,high\n,nurse,low\n"


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refused(path, *words, schema=None, kind=DataError):
    with pytest.raises(kind) as raised:
        read(path, schema)
    said = str(raised.value)
    assert "\n" not in said
    for word in words:
        assert word in said, said
    return said


# ---------------------------------------------------------------------- CSV


def test_csv_is_read_as_text_and_as_numbers(file):
    table = read(file("t.csv", CSV))
    assert table.names == ("age", "job", "income")
    assert table.size == 3
    assert table.texts("job").tolist() == ["clerk", "?", "nurse"]
    np.testing.assert_array_equal(table.numbers("age"), [39, 50, np.nan])


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_text_files_may_be_compressed(file, ending, pack):
    assert read(file(f"t.csv{ending}", pack(CSV.encode()))).size == 3
    assert read(file(f"t.txt{ending}", pack(b"one\ntwo\n"))).size == 2
    assert read(file(f"T.JSONL{ending.upper()}", pack(b'{"a": 1}\n'))).size == 1


def test_csv_takes_quotes_spaces_crlf_blank_lines_and_a_byte_order_mark(file):
    table = read(file("t.csv", '\ufeffa, b\r\n" x, ""y""\nz ", 2\r\n\r\nw ,3\r\n'))
    assert table.names == ("a", "b")
    assert table.texts("a").tolist() == ['x, "y"\nz', "w"]
    assert table.numbers("b").tolist() == [2, 3]


def test_tabs_separate_in_tsv(file):
    assert read(file("t.tsv", "a\tb\n1,5\t2\n")).texts("a").tolist() == ["1,5"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", "", ("header", "empty file")),
        ("t.csv", "\n1,2\n", ("header", "empty line")),
        ("t.csv", "a,b\n", ("at least one record",)),
        ("t.csv", "a,b\n\n\n", ("at least one record",)),
        ("t.csv", "a,b\n1,2\n3\n", ("2 cells", "another number")),
        ("t.csv", "a,b\n1,2,3\n", ("2 cells", "another number")),
        ("t.csv", "a,b,a\n1,2,3\n", ("different names", "'a'", "1 and 3")),
        ("t.csv", "a,,b\n1,2,3\n", ("name for each column", "column 2")),
        ("t.csv", "a,b\n1,\0\n", ("NUL",)),
        ("t.csv", 'a,b\n1,"2\n', ("CSV", "quotation")),
        ("t.csv", 'a,b\n1,"2"x\n', ("CSV", "quotation")),
        ("t.csv", "1,2\n3,4\n", ("header", "only numbers")),
        ("t.csv", b"a,b\n1,caf\xe9\n", ("UTF-8", "iconv")),
        ("t.csv", bytes(range(256)) * 4, ("NUL",)),
        ("t.csv", "a\n1\n".encode("utf-16"), ("UTF-8",)),
        ("t.csv", gzip.compress(CSV.encode(), mtime=0), ("UTF-8",)),
        ("t.csv", "a\n" + "x" * 200_000 + "\n", ("131,072 characters",)),
        ("t.csv.gz", CSV, ("whole .gz file",)),
        ("t.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-12], ("whole .gz file", "cut short")),
        ("t.csv.bz2", bz2.compress(CSV.encode())[:-12], ("whole .bz2 file", "cut short")),
        ("t.csv.bz2", CSV, ("whole .bz2 file",)),
        ("t.csv.xz", lzma.compress(CSV.encode())[:-12], ("whole .xz file", "cut short")),
        ("t.csv.xz", CSV, ("whole .xz file",)),
        ("t.jsonl", "", ("at least one record",)),
        ("t.jsonl", "{}\n", ("at least one record",)),
        ("t.jsonl", "{'a': 1}\n", ("JSON object on each line",)),
        ("t.jsonl", '{"a": 1}\n[1]\n', ("JSON object on each line",)),
        ("t.jsonl", '{"a": 1}\n{"a": [1]}\n', ("nested",)),
        ("t.jsonl", "[" * 100_000, ("JSON object on each line",)),
        ("t.txt", "", ("at least one record",)),
        ("t.npz", "rubbish", ("NumPy arrays",)),
        ("t.npz", "", ("whole .npz file",)),
        ("t.xlsx", "rubbish", ("Excel workbook",)),
        ("t", "rubbish", ("ends in .csv",)),
        ("t.npz.gz", "rubbish", ("ends in .csv",)),
    ],
)
def test_rubbish_is_refused_in_one_line(file, name, content, words):
    refused(file(name, content), *words)


def test_paths_that_cannot_be_read_are_refused(tmp_path, file):
    refused(tmp_path / "none.csv", "none.csv", "got none")
    (tmp_path / "folder.csv").mkdir()
    refused(tmp_path / "folder.csv", "folder")
    (tmp_path / "folder.npz").mkdir()
    refused(tmp_path / "folder.npz", "folder")
    refused(7, "path", kind=ArgumentError)
    closed = file("closed.csv", CSV)
    closed.chmod(0)
    if os.access(closed, os.R_OK):
        pytest.skip("this user may read everything")
    refused(closed, "ermission")


def test_errors_never_hold_what_is_in_a_cell(file):
    schema = Schema(Classes("income", ["low", "high"]), {"age": Number(0, 9), "job": Hashed()})
    path = file("t.csv", CSV.replace("50", "secret"))
    said = refused(path, "finite number", "'age'", schema=schema)
    assert "secret" not in said
    with pytest.raises(DataError) as raised:
        read(path, schema)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


def test_a_schema_decides_what_is_kept_and_how(file):
    schema = Schema(Classes("income", ["low", "high"]), {"age": Number(0, 9), "job": Ignore()})
    table = read(file("t.csv", CSV), schema)
    assert table.names == ("age", "income")
    assert table.columns["age"].dtype == np.float64
    with_price = Schema(Range("age", 0, 9), {"job": Hashed(), "income": Ignore()})
    assert read(file("t.csv", CSV), with_price).columns["age"].dtype == np.float64


def test_names_are_held_to_the_schema(file):
    few = Schema(Classes("income", ["low", "high"]), {"age": Number(0, 9)})
    lines = file("t.jsonl", json.dumps({"age": 1, "job": "x", "income": "low"}))
    refused(file("t.csv", CSV), "'job'", "[columns.job]", "ignore", schema=few)
    said = refused(lines, "every key", "[columns]", "ignore", schema=few)
    assert "job" not in said  # which may be in one record alone
    more = Schema(
        Classes("income", ["low", "high"]), {"ages": Number(0, 9), "job": Hashed(), "age": Ignore()}
    )
    refused(file("t.csv", CSV), "'ages'", "Did you mean 'age'?", schema=more)


def test_the_target_may_be_absent(file):
    schema = Schema(Classes("income", ["low", "high"]), {"age": Number(0, 9)})
    assert read(file("t.csv", "age\n3\n"), schema).names == ("age",)
    assert read(file("t.jsonl", '{"age": 3}'), schema).names == ("age",)


def test_a_key_that_no_record_has_is_missing_in_each(file):
    schema = Schema(Classes("income", ["low", "high"]), {"age": Number(0, 9), "job": Hashed()})
    table = read(file("t.jsonl", '{"income": "low"}\n'), schema)
    assert table.texts("job").tolist() == [None]
    np.testing.assert_array_equal(table.numbers("age"), [np.nan])


@pytest.mark.parametrize(
    "cell", ["9007199254740993", "-9007199254740993", "1" * 400, "+99999999999999999999"]
)
def test_huge_integers_are_refused_as_numbers_and_kept_as_text(file, cell):
    path = file("t.csv", f"id,y\n{cell},a\n")
    schema = Schema(Classes("y", ["a", "b"]), {"id": Number(0, 1)})
    assert cell not in refused(path, "2^53", "'id'", schema=schema)
    assert read(path).texts("id").tolist() == [cell]
    lines = file("t.jsonl", json.dumps({"id": int(cell), "y": "a"}))
    assert cell not in refused(lines, "2^53", "'id'", schema=schema)


@pytest.mark.parametrize("cell", ["x", "1_000", "inf", "-Infinity", "1e999", "0x10", "١٢", "--1"])
def test_what_is_no_finite_number_is_refused_as_one(file, cell):
    table = read(file("t.csv", f"a,b\n1,2\n{cell},3\n"))
    with pytest.raises(DataError, match="finite number in column 'a'"):
        table.numbers("a")
    np.testing.assert_array_equal(table.numbers("a", lenient=True), [1, np.nan])


def _records(odd, place):
    """Return the lines of a file of records, one of them odd."""
    plain = {"age": "3", "job": "x", "income": "low"}
    return [odd if number == place else plain for number in range(9)]


def _odd_files(tmp_path, place):
    """Write files in which one record is wrong, each in its own way; it has a secret in it."""
    header, plain = "age,job,income\n", "3,x,low\n"

    def csv(odd):
        return header + "".join(odd if number == place else plain for number in range(9))

    def lines(odd):
        return "\n".join(map(json.dumps, _records(odd, place)))

    wrong = {
        "long.csv": csv("3,x,low,secret\n"),
        "short.csv": csv("secret\n"),
        "number.csv": csv("secret,x,low\n"),
        "huge.csv": csv("9007199254740993731,x,low\n"),
        "quote.csv": csv('3,"secret"x,low\n'),
        "latin.csv": csv("3,secret\xe9,low\n").encode("latin1"),
        "binary.csv": csv("3,secret\0,low\n"),
        "key.jsonl": lines({"age": "3", "secret": "x"}),
        "keys.jsonl": lines({f"secret {n}": "x" for n in range(9)}),
        "nested.jsonl": lines({"age": "3", "secret": ["x"]}),
        "deep.jsonl": lines({"age": ["secret"]}),
        "array.jsonl": lines(["secret"]),
        "number.jsonl": lines({"age": "secret"}),
        "huge.jsonl": lines({"age": 9007199254740993731}),
    }
    for name, content in wrong.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        yield path
    headless = tmp_path / "headless.csv"
    headless.write_text("secret 731,x,high\n" + plain)
    yield headless
    folder = tmp_path / "folder"
    for number in range(9):
        document = folder / "low" / f"{'secret 731' if number == place else number}.txt"
        document.parent.mkdir(parents=True, exist_ok=True)
        document.write_bytes(b"secret \xe9" if number == place else b"plain")
    yield folder


def test_errors_are_the_same_whichever_record_is_wrong_and_whatever_is_in_it(tmp_path):
    """So that they tell that there is one, and nothing more."""
    schema = Schema(Classes("income", ["low", "high"]), {"age": Number(0, 9), "job": Hashed()})
    documents = Schema(Classes("label", ["low", "high"]), {"text": Hashed()})
    said = []
    for place in (1, 7):
        found = []
        (tmp_path / "data").mkdir()
        for path in _odd_files(tmp_path / "data", place):
            with pytest.raises(DataError) as raised:
                read(path, documents if path.is_dir() else schema)
            error = raised.value
            assert error.__cause__ is None
            for each in (error, error.__context__):
                assert not re.search(r"secret|731|row \d|line \d", repr(each)), path
            found.append(str(raised.value))
        said.append(found)
        shutil.rmtree(tmp_path / "data")
    assert said[0] == said[1]
    assert len(said[0]) == 16


# ---------------------------------------------------------------------- JSON lines


def test_json_lines_take_missing_keys_null_and_all_plain_types(file, monkeypatch):
    monkeypatch.setattr("privada.tables.formats.json_lines.BLOCK", 1)
    content = '{"a": 1, "b": "x "}\n\n{"a": 1.0, "c": true}\n{"a": null, "b": NaN, "d": 2.5}\n'
    table = read(file("t.ndjson", content))
    assert table.texts("a").tolist() == ["1", "1", None]
    assert table.texts("b").tolist() == ["x", None, None]
    assert table.texts("c").tolist() == [None, "true", None]
    np.testing.assert_array_equal(table.numbers("d"), [np.nan, np.nan, 2.5])


def test_true_is_not_one_whatever_came_before(file):
    table = read(file("t.jsonl", '{"a": 1}\n{"a": true}\n{"a": 1.0}\n'))
    assert table.texts("a").tolist() == ["1", "true", "1"]


# ---------------------------------------------------------------------- lines of text


def test_text_has_a_document_on_each_line(file):
    table = read(file("t.txt", "To be, or not\n\nto be"))
    assert table.names == ("text",)
    assert table.texts("text").tolist() == ["To be, or not", "", "to be"]


# ---------------------------------------------------------------------- NumPy archives


def test_archives_hold_numbers_text_and_matrices(tmp_path):
    sparse = scipy.sparse.csr_array(np.eye(3))
    np.savez(
        tmp_path / "t.npz",
        age=np.array([1, 2, 3], dtype=np.uint8),
        job=np.array(["a", "b", "c"]),
        raw=np.array([b"a", b"b", b"c"]),
        old=np.array([True, False, True]),
        pixels=np.ones((3, 4), dtype=np.uint8),
        words_data=sparse.data,
        words_indices=sparse.indices,
        words_indptr=sparse.indptr,
        words_shape=sparse.shape,
    )
    table = read(tmp_path / "t.npz")
    assert set(table.names) == {"age", "job", "raw", "old", "pixels", "words"}
    assert table.numbers("age").tolist() == [1, 2, 3]
    assert table.texts("age").tolist() == ["1", "2", "3"]
    assert table.texts("raw").tolist() == ["a", "b", "c"]
    assert table.texts("old").tolist() == ["true", "false", "true"]
    assert table.matrix("pixels").shape == (3, 4)
    assert np.array_equal(table.matrix("words").toarray(), np.eye(3))


def test_scipy_s_own_files_are_a_column_called_data(tmp_path):
    scipy.sparse.save_npz(tmp_path / "t.npz", scipy.sparse.csr_array(np.eye(3)))
    assert read(tmp_path / "t.npz").names == ("data",)


def test_archives_that_are_no_table_are_refused(tmp_path):
    def saved(**arrays):
        np.savez(tmp_path / "t.npz", **arrays)
        return tmp_path / "t.npz"

    refused(saved(a=np.zeros(2), b=np.zeros(3)), "one length", "'a' has 2", "'b' has 3")
    refused(saved(a=np.zeros(0)), "at least one record")
    refused(saved(a=np.zeros((2, 2, 2))), "shape (2, 2, 2)")
    refused(saved(a=np.array(3)), "shape ()")
    refused(saved(a=np.zeros(2, dtype="datetime64[D]")), "datetime64")
    refused(saved(a=np.array([{}, {}], dtype=object)), "Python objects")
    parts = {"data": np.ones(1), "indices": np.array([9]), "indptr": np.array([0, 1])}
    refused(saved(**parts, shape=np.array([1, 2])), "CSR")
    refused(saved(**parts, shape=np.array([7])), "CSR")
    np.save(tmp_path / "t.npy", np.zeros(3))
    (tmp_path / "t.npy").rename(tmp_path / "t.npz")
    refused(tmp_path / "t.npz", "NumPy arrays")


def test_a_cut_archive_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "t.npz", a=np.arange(10_000))
    whole = (tmp_path / "t.npz").read_bytes()
    (tmp_path / "t.npz").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "t.npz", "NumPy arrays")
    spoilt = bytearray(whole)
    spoilt[len(whole) // 2] ^= 0xFF
    (tmp_path / "t.npz").write_bytes(bytes(spoilt))
    refused(tmp_path / "t.npz", "t.npz")


def test_an_array_of_another_length_may_be_ignored(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros(2), y=np.zeros(2), words=np.zeros(7))
    schema = Schema(Range("y", 0, 1), {"x": Number(0, 1), "words": Ignore()})
    assert read(tmp_path / "t.npz", schema).names == ("x", "y")


def test_enron_is_read_as_a_sparse_matrix_and_labels():
    path = data_folder("enron.npz") / "enron.npz"
    schema = Schema(
        Classes("labels", [0, 1]), {"data": Ignore(), "vocab": Ignore(), "also": Hashed()}
    )
    refused(path, "'also'", schema=schema)
    assert column_types(path)["data"] == 5000


# ---------------------------------------------------------------------- Parquet


def test_parquet_is_read(tmp_path, file):
    columns = {
        "age": arrow.array([39, None, 50]),
        "id": arrow.array([1, 2, 2**62]),
        "height": arrow.array([1.5, None, float("nan")], arrow.float32()),
        "job": arrow.array(["a ", None, "b"]).dictionary_encode(),
        "old": arrow.array([True, False, None]),
        "born": arrow.array([0, 1, None], arrow.date32()),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    table = read(tmp_path / "t.parquet")
    np.testing.assert_array_equal(table.numbers("age"), [39, np.nan, 50])
    assert table.texts("id").tolist() == ["1", "2", str(2**62)]
    np.testing.assert_array_equal(table.numbers("height"), [1.5, np.nan, np.nan])
    assert table.texts("job").tolist() == ["a", None, "b"]
    assert table.texts("old").tolist() == ["true", "false", None]
    assert table.texts("born").tolist() == ["1970-01-01", "1970-01-02", None]
    assert column_types(tmp_path / "t.parquet") == {
        "age": "number",
        "id": "number",
        "height": "number",
        "job": "text",
        "old": "text",
        "born": "date",
    }
    parquet.write_table(arrow.table({"a": [[1], [2]], "b": [1, 2]}), tmp_path / "n.parquet")
    refused(tmp_path / "n.parquet", "'a'", "list")
    refused(file("r.parquet", "rubbish"), "Parquet file")
    refused(tmp_path / "none.parquet", "got none")


# ---------------------------------------------------------------------- folders


def test_a_folder_of_text_has_its_subfolders_as_labels(tmp_path):
    for name, texts in {"good": ["a fine film\nindeed", "nice"], "bad": ["dull"]}.items():
        (tmp_path / name).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / name / f"{number}.txt").write_text(text)
        (tmp_path / name / "notes.pdf").write_bytes(b"\xff")
    (tmp_path / ".hidden").mkdir()
    table = read(tmp_path)
    assert table.texts("text").tolist() == ["dull", "a fine film\nindeed", "nice"]
    assert table.texts("label").tolist() == ["bad", "good", "good"]
    assert column_types(tmp_path) == {"text": "words", "label": "text"}
    assert read(tmp_path / "good").names == ("text",)
    assert column_types(tmp_path / "good") == {"text": "words"}
    schema = Schema(Classes("label", ["bad", "good"]), {"text": Text(features=8)})
    assert encode(read(tmp_path, schema), schema).targets.tolist() == [0, 1, 1]
    (tmp_path / "alone.txt").write_text("neither")
    refused(tmp_path, "both")


def test_a_folder_without_text_is_refused(tmp_path):
    refused(tmp_path, "folder")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.csv").write_text("x\n1\n")
    refused(tmp_path, "folder")
    (tmp_path / "a" / "c.txt").write_bytes(b"\xff\xfe")
    refused(tmp_path, "UTF-8")


# ---------------------------------------------------------------------- types


def test_types_are_those_of_the_first_record_alone(file):
    path = file("t.csv", b"a,b,c\n1,x,?\nx,1,2\n\xff")
    with pytest.raises(DataError):
        read(path)
    assert column_types(path) == {"a": "number", "b": "text", "c": "unknown"}
    lines = file("t.jsonl", '{"a": 1, "b": "x", "c": null, "d": true}\nrubbish')
    assert column_types(lines) == {"a": "number", "b": "text", "c": "unknown", "d": "text"}
    assert column_types(file("t.txt", "some words\n")) == {"text": "words"}
    path = file("w.csv", "a,b\nfour words are few,but five words are text\n1,2\n")
    assert column_types(path) == {"a": "text", "b": "words"}
    with pytest.raises(DataError, match="at least one record"):
        column_types(file("t.csv", "a,b\n"))


def test_adult_is_read():
    path = data_folder("adult.csv.gz") / "adult.csv.gz"
    table = read(path)
    assert table.size == 48_842
    assert len(table.names) == 16
    assert (table.numbers("age").min(), table.numbers("age").max()) == (17, 90)
    assert (table.texts("workclass") == "?").sum() == 2799
    assert table.take(table.texts("split") == "train").size == 32_561


def test_without_a_schema_no_error_shows_a_key_of_one_record(tmp_path):
    """Names of JSON lines are those that records have, and one may be one record's alone."""
    path = tmp_path / "t.jsonl"
    records = [{"age": age % 70, "sick": "yes"} for age in range(200)]
    records[137] = {**records[137], "Smith": 1}
    path.write_text("\n".join(map(json.dumps, records)))
    schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(bounds="estimate")})
    other = Schema(Classes("sick", ["no", "yes"]), {"weight": Number(0, 1)})
    ledger = pv.Ledger(None, pv.Budget(1.0, 1e-3))
    for table in (read(path), read(path).take(slice(100, 200))):
        for look in (
            lambda table: encode(table, default_bounds(schema)),
            lambda table: encode_inputs(table, default_bounds(schema)),
            lambda table: encode(table, other),
            lambda table: estimate_bounds(table, schema, ledger=ledger, noise_multiplier=1.0),
            lambda table: estimate_classes(table, "x", ledger=ledger, noise_multiplier=1.0),
            lambda table: table.numbers("x"),
        ):
            with pytest.raises(ValueError) as raised:
                look(table)
            assert "Smith" not in str(raised.value)
            assert "137" not in str(raised.value)
        assert "Smith" not in repr(table)
    assert not ledger.charges()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("https://me:secret@host/t.csv", "begins with https://. Download the file first"),
        ("t.zip", "Unpack it first"),
        ("t.xls", "Save it as .xlsx"),
        ("t.json", "an object on each line"),
        ("wide.csv", "got UTF-16. Save it as UTF-8"),
    ],
)
def test_what_to_do_with_other_files_is_said(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide.csv").write_bytes("a,b\n1,2\n".encode("utf-16"))
    with pytest.raises(PrivadaError, match=words) as raised:
        read(name)
    assert "secret" not in str(raised.value)
