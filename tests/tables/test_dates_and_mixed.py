import math
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privada as pv
from privada.core.errors import ArgumentError, DataError
from privada.tables import (
    Classes,
    Date,
    Hashed,
    Ignore,
    Mixed,
    Number,
    Schema,
    Table,
    column_types,
    encode_inputs,
    estimate_bounds,
    infer_schema,
    schema_template,
)
from privada.tables.bag_of_words import hash_bucket

YES_NO = Classes("y", ["no", "yes"])


def inputs(kind, values, **options):
    return encode_inputs(Table({"x": values}), Schema(YES_NO, {"x": kind}, **options))


# ---------------------------------------------------------------------- dates


def test_dates_are_placed_between_their_bounds():
    kind = Date("2000-01-01", "2000-01-05", missing="flag")
    made = inputs(
        kind, ["2000-01-01", "2000-01-02", "2000-01-03T00:00Z", "1900-01-01", "2999-01-01"]
    )
    assert made.dtype == np.float32
    assert made[:, 0].tolist() == [-1, -0.5, 0, -1, 1]
    assert made[:, 1].tolist() == [0] * 5
    assert inputs(kind, ["?", None, "", "2000-01-02"])[:3].tolist() == [[0, 1]] * 3


def test_parts_are_places_in_cycles():
    kind = Date("2000-01-01", "2100-01-01", parts=["month", "day", "weekday", "hour"])
    made = inputs(kind, ["2024-04-01 06:00", None])
    quarter, start = (1, 0), (0, 1)  # of a circle: sine, cosine; that day was a Monday
    expected = [*quarter, *start, *start, *quarter]
    np.testing.assert_allclose(made[0, 1:], expected, atol=1e-6)
    assert made[1].tolist() == [0] * 9
    assert kind.features("x")[1:3] == ["x (month sine)", "x (month cosine)"]


def test_a_time_with_an_offset_is_told_in_the_zone_of_the_column():
    hour = Date("2000-01-01", "2100-01-01", parts=["hour"], zone="Europe/Berlin")
    made = inputs(hour, ["2024-07-01T12:00+02:00", "2024-07-01T10:00Z", "2024-07-01 12:00"])
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])
    noon = [0, -1]
    np.testing.assert_allclose(made[0, 1:], noon, atol=1e-6)


def test_dates_may_be_written_in_another_way():
    kind = Date("2000-01-01", "2000-01-05", format="%d.%m.%Y")
    assert inputs(kind, ["03.01.2000"]).tolist() == [[0]]
    with pytest.raises(DataError, match="a date in column 'x'"):
        inputs(kind, ["2000-01-03"])


@settings(deadline=None)
@given(st.lists(st.text(max_size=12) | st.dates().map(str), min_size=1, max_size=6))
def test_features_of_dates_are_bounded_and_errors_say_nothing(values):
    kind = Date("1990-01-01", "2020-01-01", parts=["month", "weekday"], zone="Asia/Tokyo")
    error = None
    try:
        made = inputs(kind, values)
    except DataError as raised:
        error = raised
    if error is not None:
        assert str(error).startswith("Expected a date in column 'x', got something else.")
        assert error.__cause__ is error.__context__ is None
        return
    assert np.abs(made).max() <= 1
    for place, value in enumerate(values):
        assert np.array_equal(inputs(kind, [value])[0], made[place])


@given(st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)), st.integers(-14, 14))
def test_the_place_of_a_moment_is_that_of_its_timestamp(moment, offset):
    kind = Date("1990-01-01", "2030-01-01")
    told = moment.replace(tzinfo=UTC).astimezone(
        datetime.now(UTC).astimezone().tzinfo if offset == 0 else _zone(offset)
    )
    low, high = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1990, 2030))
    seconds = min(max(moment.replace(tzinfo=UTC).timestamp(), low), high)
    expected = (seconds - low) / (high - low) * 2 - 1
    assert inputs(kind, [told.isoformat()])[0, 0] == pytest.approx(expected, abs=1e-6)


def _zone(hours):
    from datetime import timezone

    return timezone(timedelta(hours=hours))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"low": "?"}, "low to be a date"),
        ({"high": 7}, "high to be a date"),
        ({"low": "2030-01-01"}, "low < high"),
        ({"parts": "month"}, "parts to be a list"),
        ({"parts": ["year"]}, "parts"),
        ({"zone": "Mars/Phobos"}, "time zone"),
        ({"zone": "../etc"}, "time zone"),
        ({"format": "day"}, "strptime"),
        ({"format": "%Q"}, "strptime"),
        ({"missing": "low"}, "missing"),
    ],
)
def test_faults_of_dates(options, words):
    with pytest.raises(ArgumentError, match=words):
        Date(**{"low": "2000-01-01", "high": "2020-01-01", **options})


def test_dates_are_kept_in_a_schema_file(tmp_path):
    kind = Date(date(2000, 1, 1), datetime(2020, 1, 1, 5), parts=["hour"], zone="Europe/Berlin")
    Schema(YES_NO, {"x": kind}).write(tmp_path / "s.toml")
    assert Schema.read(tmp_path / "s.toml").columns == {"x": kind}
    toml = '[target]\ncolumn = "y"\nclasses = ["no", "yes"]\n[columns.x]\nkind = "date"\n'
    (tmp_path / "s.toml").write_text(toml + "low = 2000-01-01\nhigh = 2020-01-01T05:00:00\n")
    assert Schema.read(tmp_path / "s.toml").columns["x"].high == "2020-01-01T05:00:00"
    (tmp_path / "s.toml").write_text(toml + 'low = "?"\nhigh = "?"\n')
    with pytest.raises(ArgumentError, match="low to be filled in"):
        Schema.read(tmp_path / "s.toml")


def test_dates_are_inferred_from_public_values():
    def kind(values):
        table = Table({"x": values * 10, "n": [1, 2] * 10, "y": ["no", "yes"] * 10})
        return infer_schema(table, target="y", public=True).columns["x"]

    assert kind(["2011-02-03", "2019-12-31"]) == Date(
        "2011-01-01", "2020-01-01", ["month", "weekday"]
    )
    assert kind(["2011-02-03 10:00", "?"]).parts == ("month", "weekday", "hour")
    assert not isinstance(kind(["2011-02-03", "soon"]), Date)


# ---------------------------------------------------------------------- a number or any other value


def test_each_cell_is_a_number_or_in_a_bucket_by_itself():
    made = inputs(Mixed(0, 10, buckets=4), ["5", "a", None, "1e999", "99", "?", "10.0"])
    assert made[:, 0].tolist() == [0, 0, 0, 0, 1, 0, 1]
    assert made[:, 1:].sum(axis=1).tolist() == [0, 1, 0, 1, 0, 0, 0]
    assert made[1, 1 + hash_bucket("a", 4)] == 1


@given(
    st.lists(
        st.sampled_from(["1", "-3", "a", "b ", "?", "", "inf", "9007199254740993", "1e3"])
        | st.none(),
        min_size=1,
    )
)
def test_no_row_decides_how_another_is_encoded(values):
    kind = Mixed(-5, 5, "log", buckets=3)
    made = inputs(kind, values)
    for place, value in enumerate(values):
        assert np.array_equal(inputs(kind, [value])[0], made[place])
    assert np.abs(made).max() <= 1


def test_wide_mixed_columns_are_kept_sparse_and_say_the_same():
    values = ["5", "a", None, "-7"]
    wide = inputs(Mixed(-10, 10, buckets=500), values)
    assert wide.toarray()[:, 0].tolist() == [0.5, 0, 0, pytest.approx(-0.7)]
    assert wide.toarray()[:, 1:].sum(axis=1).tolist() == [0, 1, 0, 0]


def test_their_bounds_are_estimated_from_the_numbers_among_them():
    values = [*map(str, range(20, 70)), "unknown"] * 800
    table = Table({"x": values, "y": ["no", "yes"] * (len(values) // 2)})
    schema = Schema(YES_NO, {"x": Mixed(bounds="estimate")})
    assert schema.pending == ("x",)
    ledger = pv.Ledger(None, pv.Budget(1.0, 1e-6))
    found = estimate_bounds(table, schema, ledger=ledger, noise_multiplier=20.0)
    assert (found.columns["x"].low, found.columns["x"].high) == (16, 128)
    assert found.columns["x"].bounds == "estimated"
    assert math.isclose(encode_inputs(table, found)[0, 0], (20 - 16) / 56 - 1, abs_tol=1e-6)


@pytest.mark.parametrize("first", ["", "?", "NA", "NaN"])
def test_a_first_cell_that_is_missing_decides_nothing(tmp_path, first):
    path = tmp_path / "t.csv"
    path.write_text(f"n,d,y\n{first},2020-01-01,no\n39,x,yes\n")
    assert column_types(path) == {"n": "unknown", "d": "date", "y": "text"}
    assert 'kind = "mixed"\nlow = "?"' in schema_template(path, target="y")
    assert 'kind = "date"\nlow = "?"' in schema_template(path, target="y")


def test_other_kinds_stay_as_they_were():
    schema = Schema(YES_NO, {"x": Number(0, 1), "z": Hashed(2), "i": Ignore()})
    assert schema.features == ("x", "z#0", "z#1")
