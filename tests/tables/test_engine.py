"""The engine against Python's own readers: a cell at a time, slow, and strict."""

import csv
import io
import json
import math

import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privada.core.errors import DataError
from privada.tables import Category, Classes, Ignore, Number, Range, Schema, Table, read
from privada.tables.cells import MISSING, CellError, number_of, text_of
from privada.tables.text_column import text_column

QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=[1 << 23, 40], ids=["one block", "many blocks"])
def blocks(request, monkeypatch):
    """Read in blocks of some size: what is in one must not show."""
    monkeypatch.setattr("privada.tables.formats.delimited.BLOCK", request.param)
    monkeypatch.setattr("privada.tables.formats.json_lines.BLOCK", request.param)


def plain_csv(content):
    """Return the columns of a CSV file by the csv module, None where it is refused."""
    try:
        text = content.decode()
        lines = [line + "\n" for line in text.split("\n")]
        lines[-1] = lines[-1][:-1]
        rows = list(
            csv.reader(filter(None, lines), delimiter=",", strict=True, skipinitialspace=True)
        )
    except (csv.Error, UnicodeDecodeError):
        return None
    rows = [rows[0], *(row for row in rows[1:] if row)]
    if "\0" in text or len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        return None
    return {
        name.strip(): [row[place].strip() for row in rows[1:]] for place, name in enumerate(rows[0])
    }


def plain_json(content):
    """Return the columns of JSON lines by the json module, None where they are refused."""
    try:
        records = [
            {name: text_of(value) for name, value in json.loads(line).items()}
            for line in content.decode().split("\n")
            if line.strip()
            if isinstance(json.loads(line), dict) or [][0]
        ]
    except (ValueError, IndexError, CellError):
        return None
    names = dict.fromkeys(name for record in records for name in record)
    if "\0" in content.decode() or not names:
        return None
    return {name: [record.get(name) for record in records] for name in names}


def columns_of(path):
    table, error = None, None
    try:
        table = read(path)
    except DataError as raised:
        error = raised
    if error is not None:
        assert error.__cause__ is None
        assert error.__context__ is None
        return None
    return {name: table.texts(name).tolist() for name in table.names}


cells = st.text(st.sampled_from('a1,;". -e\t\r\né\x1c\u2003\0'), max_size=6)
written = st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])


@QUICK
@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=8), quoting=written)
def test_what_the_csv_module_writes_is_read_back(tmp_path, blocks, rows, quoting):
    file = io.StringIO()
    csv.writer(file, quoting=quoting).writerows([("a", "b"), *rows])
    content = file.getvalue().encode()
    (tmp_path / "t.csv").write_bytes(content)
    expected = plain_csv(content)
    assert columns_of(tmp_path / "t.csv") == expected
    if expected is not None and quoting == csv.QUOTE_ALL:
        assert expected["a"] == [first.strip() for first, _ in rows]


@QUICK
@given(
    content=st.lists(
        st.sampled_from(
            [
                *(
                    b"1,2\n",
                    b'"x",y\n',
                    b'"a,b","c"\r\n',
                    b'"q""q",1\n',
                    b" 7 , 8\n",
                    b"\n",
                    b",\n",
                ),
                *(
                    b'x"y,1\n',
                    b', "z"\n',
                    b'1,"open\n',
                    b'1,"a"b\n',
                    b"1\n",
                    b"1,2,3\n",
                    b"\xe9,1\n",
                ),
                *(b'"a\nb",1\n', b'"a\r\nb",""\n', b"1\r2,3\n", b"\r\n", b"a,\0\n", b'""""," "\n'),
            ]
        ),
        max_size=8,
    ).map(b"".join),
    cut=st.integers(0, 2),
)
def test_whatever_is_in_a_csv_file_is_read_as_the_csv_module_does(tmp_path, blocks, content, cut):
    whole = b"a,b\n" + content
    whole = whole[: len(whole) - min(cut, len(content))]
    (tmp_path / "t.csv").write_bytes(whole)
    assert columns_of(tmp_path / "t.csv") == plain_csv(whole)


def test_long_cells_are_refused_wherever_they_are(tmp_path, blocks):
    """As the csv module refuses them, whichever of the two reads the block."""
    limit = csv.field_size_limit()
    for odd in ("", 'x"y,1\n'):
        for size, fine in ((limit, True), (limit + 1, False)):
            (tmp_path / "t.csv").write_text("a,b\n" + odd + "x" * size + ",1\n" + odd)
            assert (columns_of(tmp_path / "t.csv") is not None) is fine


values = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-9, 9),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(st.characters(exclude_categories=[]), max_size=4),
    st.sampled_from(["2020-01-01", "2020-01-01 00:00:00", " 1", "true", "1.0", "\ud800", [], {}]),
)


@QUICK
@given(
    records=st.lists(st.dictionaries(st.sampled_from("abc"), values), min_size=1, max_size=6),
    escaped=st.booleans(),
)
def test_whatever_is_in_json_lines_is_read_as_the_json_module_does(
    tmp_path, blocks, records, escaped
):
    text = "".join(json.dumps(record, ensure_ascii=escaped) + "\n" for record in records)
    content = text.encode("utf-8", "surrogatepass")
    (tmp_path / "t.jsonl").write_bytes(content)
    assert columns_of(tmp_path / "t.jsonl") == plain_json(content)


@pytest.mark.parametrize(
    "content",
    [
        '{"a":1}{"a":2}\n', '{"a":\n1}\n{"a":1}{"a":2}\n', '{"a":1,"a":2}\n', '{"a":1} x\n',
        '{"a":1e400}\n', '{"a":01}\n', '{"a":NaN}\n{"a":1}\n', '{"a":9007199254740993}\n{"a":1.5}',
        '{"a":-0}\n{"a":-0.0}\n', '{"a":"x\ty"}\n', '{"a":1}\n \n{"a":2}\r\n', '{"a":1}\n{}\n',
        '{"a":"x"}\n{"a":1}\n{"a":true}\n{"a":null}', '{"":1}\n', '{"a":{"b":1}}\n{"a":1}',
        '{"a":1}\n{"a":1}]\n', '[{"a":1}\n,{"a":2}]\n', '{"a":"}\n{"}\n', '{"a":1.0}\n{"a":2}\n',
    ],
)  # fmt: skip
def test_odd_json_lines_are_read_as_the_json_module_does(tmp_path, blocks, content):
    (tmp_path / "t.jsonl").write_text(content)
    assert columns_of(tmp_path / "t.jsonl") == plain_json(content.encode())


numbers = st.one_of(
    st.text(st.sampled_from("0123456789+-.eE,_ nafity"), max_size=8),
    st.floats().map(repr),
    st.integers(-(2**80), 2**80).map(str),
    st.sampled_from([*MISSING, "nan(1)", "1e-400", "0x1p3", "1f", "infinity", "\u0661", "\x1c1"]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(numbers | st.none(), min_size=1, max_size=5), st.sampled_from([".", ",", "either"]))
def test_cells_are_the_numbers_that_python_says(cells, mark):
    def oracle(cell):
        try:
            return number_of(cell and cell.strip(), MISSING, mark)
        except CellError:
            return "refused"

    expected = [oracle(cell) for cell in cells]
    table = Table.of_columns({"x": text_column(cells, mark)})
    lenient = [math.nan if each == "refused" else each for each in expected]
    assert np.array_equal(table.numbers("x", lenient=True), lenient, equal_nan=True)
    if "refused" in expected:
        with pytest.raises(DataError, match="column 'x'") as raised:
            table.numbers("x")
        assert raised.value.__context__ is None
    else:
        assert np.array_equal(table.numbers("x"), expected, equal_nan=True)


@given(st.lists(st.sampled_from(["a", " a", "b ", "1", None, ""]), min_size=1), st.data())
def test_columns_of_text_behave_as_arrays_do(cells, data):
    column, stripped = text_column(cells), [cell and cell.strip() for cell in cells]
    assert column.tolist() == stripped
    size = len(cells)
    rows = data.draw(st.lists(st.integers(-size, size - 1)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    held = np.array(stripped, object)
    assert column[rows].tolist() == held[np.array(rows, int)].tolist()
    assert column[mask].tolist() == held[mask].tolist()
    for piece in (slice(1, 3), slice(None), slice(None, None, 2), slice(-2, None), slice(3, 1)):
        assert column[piece].tolist() == held[piece].tolist()
    codes, found = column.coded
    assert [found[code] for code in codes] == stripped
    assert len(set(found)) == len(found)


# ---------------------------------------------------------------------- how CSV is written


def written_csv(tmp_path, content):
    (tmp_path / "t.csv").write_text(content)
    return tmp_path / "t.csv"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_header_says_what_separates_cells(tmp_path, separator):
    rows = [["age", "town", '"a;b"'], ["1", '"x,y;z"', "|".join("") or "w"]]
    path = written_csv(tmp_path, "\n".join(separator.join(row) for row in rows) + "\n")
    assert read(path).texts("town").tolist() == ["x,y;z"]
    assert read(path).names == ("age", "town", "a;b")


def test_no_row_says_what_separates_cells(tmp_path):
    path = written_csv(tmp_path, "a,b\n" + "1;2;3,x\n" * 9)
    assert read(path).texts("a").tolist() == ["1;2;3"] * 9


def test_a_separator_may_be_given_and_stays_with_the_schema(tmp_path):
    path = written_csv(tmp_path, "a;b,c\n1;x,2\n")
    assert read(path, separator=",").names == ("a;b", "c")
    assert read(path, separator=";").names == ("a", "b,c")
    schema = Schema(Range("a", 0, 9), {"b,c": Category(["x,2"])}, separator=";", decimal=",")
    schema.write(tmp_path / "s.toml")
    assert Schema.read(tmp_path / "s.toml") == schema
    assert read(path, Schema.read(tmp_path / "s.toml")).numbers("a").tolist() == [1]
    for wrong in ({"separator": "x"}, {"decimal": ";"}):
        with pytest.raises(ValueError, match="Expected"):
            read(path, **wrong)
        with pytest.raises(ValueError, match="Expected"):
            Schema(Range("a", 0, 9), {"b": Category(["x"])}, **wrong)


def test_the_decimal_mark_is_each_cell_s_own_where_semicolons_separate(tmp_path):
    path = written_csv(tmp_path, "a;b\n1,5;x\n2.5;y\n;z\n-,5e1;\n")
    assert read(path).numbers("a").tolist()[:2] == [1.5, 2.5]
    assert read(path).numbers("a").tolist()[3] == -5
    assert read(path).texts("a").tolist()[0] == "1,5"
    schema = Schema(Classes("b", ["x", "y", "z"]), {"a": Number(0, 9)})
    assert read(path, schema).numbers("a").tolist()[:2] == [1.5, 2.5]
    with pytest.raises(DataError, match="finite number"):
        read(path, decimal=",").numbers("a")
    with pytest.raises(DataError, match="finite number"):
        read(path, decimal=".").numbers("a")
    for both in ("1.234,5", "1,234.5", "1,2,3"):
        with pytest.raises(DataError, match="finite number"):
            read(written_csv(tmp_path, f"a;b\n{both};x\n")).numbers("a")
    comma = written_csv(tmp_path, 'a,b\n"1,5",x\n')
    assert read(comma, decimal=",").numbers("a").tolist() == [1.5]
    with pytest.raises(DataError, match="finite number"):
        read(comma).numbers("a")


# ---------------------------------------------------------------------- other files


def test_zst_is_read_and_damage_is_told(tmp_path):
    packed = arrow.compress(b"a,b\n1,x\n" * 1, codec="zstd", asbytes=True)
    (tmp_path / "t.csv.zst").write_bytes(packed)
    assert read(tmp_path / "t.csv.zst").texts("b").tolist() == ["x"]
    for wrong in (packed[:-3], b"rubbish"):
        (tmp_path / "t.csv.zst").write_bytes(wrong)
        with pytest.raises(DataError, match=r"whole \.zst file"):
            read(tmp_path / "t.csv.zst")


ROWS = {"age": [39, None, 50], "job": ["a ", None, "b"], "id": [1, 2, 2**62], "w": [0.5, 1.0, None]}


@pytest.mark.parametrize("name", ["t.feather", "t.arrow", "s.arrow", "t.parquet"])
def test_arrow_and_feather_files_are_read(tmp_path, name):
    from pyarrow import feather, ipc, parquet

    table = arrow.table(ROWS)
    feather.write_feather(table, tmp_path / "t.feather")
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    with ipc.new_file(tmp_path / "t.arrow", table.schema) as file:
        file.write_table(table, 1)
    with ipc.new_stream(tmp_path / "s.arrow", table.schema) as file:
        file.write_table(table, 2)
    found = read(tmp_path / name)
    np.testing.assert_array_equal(found.numbers("age"), [39, np.nan, 50])
    assert found.texts("job").tolist() == ["a", None, "b"]
    assert found.texts("id").tolist() == ["1", "2", str(2**62)]
    assert found.texts("w").tolist() == ["0.5", "1", None]
    for wrong in (b"rubbish", b"", (tmp_path / name).read_bytes()[:-20]):
        (tmp_path / name).write_bytes(wrong)
        with pytest.raises(DataError, match="to be a"):
            read(tmp_path / name)


def test_excel_workbooks_are_read(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    from datetime import date, datetime

    book = openpyxl.Workbook()
    for row in (
        ["age", "job", "born", "old"],
        [39, " clerk", date(1970, 1, 2), True],
        [None, None, None, None],
        [1.5, "39", datetime(1970, 1, 2, 3, 4), None],
    ):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    table = read(tmp_path / "t.xlsx")
    assert table.texts("age").tolist() == ["39", "1.5"]
    assert table.texts("job").tolist() == ["clerk", "39"]
    assert table.texts("born").tolist() == ["1970-01-02T00:00:00", "1970-01-02T03:04:00"]
    assert table.texts("old").tolist() == ["true", None]
    schema = Schema(
        Classes("job", ["clerk", "39"]), {"age": Number(0, 9), "born": Ignore(), "old": Ignore()}
    )
    assert read(tmp_path / "t.xlsx", schema).numbers("age").tolist() == [39, 1.5]
    book.active["F3"] = "secret"
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match="4 cells in each row") as raised:
        read(tmp_path / "t.xlsx")
    assert "secret" not in str(raised.value)


def test_a_folder_of_tables_is_one_table(tmp_path):
    for name, content in {"b": "x,y\n3,c\n", "a": "y,x\na,1\nb,2\n"}.items():
        (tmp_path / f"{name}.csv").write_text(content)
    table = read(tmp_path)
    assert table.numbers("x").tolist() == [1, 2, 3]
    assert table.texts("y").tolist() == ["a", "b", "c"]
    (tmp_path / "c.csv").write_text("x,z\n1,2\n")
    with pytest.raises(DataError, match="same columns"):
        read(tmp_path)
    (tmp_path / "c.csv").rename(tmp_path / "c.txt")
    with pytest.raises(DataError, match="one format"):
        read(tmp_path)
    (tmp_path / "c.txt").rename(tmp_path / "c.jsonl")
    with pytest.raises(DataError, match="one format"):
        read(tmp_path)
