"""Tables in parts: on disk as in memory, and the same answers to charged queries."""

import json

import numpy as np
import pytest
import scipy.sparse

import privada as pv
from privada.core import memory
from privada.core.errors import BudgetExceeded, DataError
from privada.query import histograms
from privada.tables import (
    Classes,
    Number,
    Schema,
    SpooledTable,
    Table,
    estimate_bounds,
    estimate_classes,
    read_parts,
    refuse_overlap,
)
from privada.tables.persons import person_numbers
from privada.tables.text_column import compact, text_column

RNG = np.random.default_rng(0)
ROWS = 4000
AGES = RNG.uniform(0, 90, ROWS)
PATIENTS = [f"p{place}" for place in RNG.integers(0, 500, ROWS)]
WHOLE = Table(
    {
        "age": AGES,
        "dose": RNG.normal(0, 3, ROWS),
        "sick": np.where(AGES > 40, "yes", "no"),
        "patient": PATIENTS,
    }
)
SCHEMA = Schema(
    Classes("sick", ["no", "yes"]),
    {"age": Number(bounds="estimate"), "dose": Number(bounds="estimate")},
).with_person("patient")


def parted(table, size, tmp_path, most_bytes=0):
    parts = (table.take(slice(start, start + size)) for start in range(0, table.size, size))
    return SpooledTable(parts, folder=tmp_path, most_bytes=most_bytes)


@pytest.mark.parametrize("most_bytes", [0, 3000, None])
def test_parts_come_back_as_they_were(most_bytes, tmp_path):
    texts = ["a", None, " b ", "", "\ud800", "c"] * 5
    table = Table(
        {
            "number": [1.5, np.nan, 2**53, -0.0, 3, 4] * 5,
            "text": texts,
            "dense": np.arange(60, dtype=np.float32).reshape(30, 2),
            "flags": np.arange(30)[:, None] % 2 == 0,
            "sparse": scipy.sparse.random(30, 7, 0.3, format="csr", random_state=1),
            "cells": text_column(["x", "y", None] * 10, mark=","),
            "repeated": compact(text_column(["long text " * 9, "y"] * 15)),
        }
    )
    spooled = parted(table, 4, tmp_path, most_bytes)
    assert spooled.on_disk is (most_bytes is not None)
    assert not list(tmp_path.iterdir())
    assert (spooled.size, spooled.names) == (table.size, table.names)
    for _ in range(2):
        parts = list(spooled)
        assert [part.size for part in parts] == [4] * 7 + [2]
        numbers = np.concatenate([part.numbers("number") for part in parts])
        assert np.array_equal(numbers, table.numbers("number"), equal_nan=True)
        for name in ("text", "cells", "repeated"):
            found = [text for part in parts for text in part.texts(name).tolist()]
            assert found == table.texts(name).tolist()
        for name in ("dense", "flags"):
            matrix = np.concatenate([part.matrix(name) for part in parts])
            assert np.array_equal(matrix, table.matrix(name))
            assert matrix.dtype == table.matrix(name).dtype
        stacked = scipy.sparse.vstack([part.matrix("sparse") for part in parts])
        assert not (stacked != table.matrix("sparse")).nnz
    (first, *_) = spooled.parts(["cells", "number"])
    assert set(first.names) == {"cells", "number"}
    assert first.columns["cells"].mark == ","


def test_keys_that_parts_lack_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("privada.tables.formats.json_lines.BLOCK", 40)
    records = [{"a": 1} if place < 9 else {"a": 2, "b": "x"} for place in range(20)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    spooled = SpooledTable(read_parts(tmp_path / "t.jsonl"), folder=tmp_path, most_bytes=0)
    assert not spooled.has_header
    assert repr(spooled) == "SpooledTable(20 rows)"
    found = [text for part in spooled for text in part.texts("b").tolist()]
    assert found == [None] * 9 + ["x"] * 11


def test_parts_without_rows_count_for_nothing(tmp_path):
    empty = WHOLE.take(slice(0, 0))
    spooled = SpooledTable([empty, WHOLE.take(slice(0, 3)), empty], folder=tmp_path, most_bytes=0)
    assert [part.size for part in spooled] == [3]
    with pytest.raises(DataError, match="at least one record"):
        SpooledTable([empty, empty], folder=tmp_path)


def test_a_part_shows_none_of_the_texts_of_other_rows():
    """They may be of rows that were left out, and must not be refused or told of."""
    column = compact(text_column(["yes", "no", "secret"] * 40))
    kept = column[np.arange(120) % 3 != 2]
    assert sorted(kept.coded[1]) == ["no", "yes"]
    assert column[0:1].coded[1] == ["yes"]
    assert column[0:0].coded[1] == []
    again = type(column).joined([kept, text_column(["no", None])])
    assert again.tolist() == [*kept.tolist(), "no", None]
    both = type(column).joined([column[0:2], compact(text_column(["new"] * 50 + ["yes"]))])
    assert both.tolist() == ["yes", "no"] + ["new"] * 50 + ["yes"]


# ---------------------------------------------------------------------- charged queries


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000, 9999])
def test_answers_are_those_of_the_whole(groups, size, tmp_path):
    schema = (
        SCHEMA if groups else Schema(SCHEMA.target, {**SCHEMA.columns, "patient": Number(0, 1)})
    )
    rows = WHOLE if size > 1 else WHOLE.take(slice(0, 600))
    spooled, answers = parted(rows, size, tmp_path), []
    for table in (rows, spooled):
        ledger = pv.Ledger(None)
        bounds = estimate_bounds(table, schema, ledger=ledger, noise_multiplier=5.0, seed=1)
        people = person_numbers(table, "patient", ()) if groups else None
        classes = estimate_classes(
            table, "sick", ledger=ledger, noise_multiplier=5.0, seed=1, groups=people
        )
        answers.append((bounds, classes, ledger.totals(), ledger.unit))
    assert answers[0] == answers[1]


def test_a_person_in_many_parts_moves_the_sum_by_one_row(tmp_path, monkeypatch):
    """What is released is seen before noise is added, whoever is left out."""
    sums, real = [], histograms._sum_over

    def seen(*given):
        sums.append(real(*given))
        return sums[-1]

    monkeypatch.setattr(histograms, "_sum_over", seen)
    people = np.array(["one"] * 900 + PATIENTS[900:])  # all over the first parts
    RNG.shuffle(people)
    rows = Table({**WHOLE.columns, "patient": people})
    for table in (rows, rows.take(people != "one")):
        spooled = parted(table, 100, tmp_path)
        estimate_bounds(spooled, SCHEMA, ledger=pv.Ledger(None), noise_multiplier=1.0, seed=1)
    whole, without = sums
    assert whole.sensitivity == without.sensitivity == np.sqrt(2)
    assert float(whole.value.sum() - without.value.sum()) == 2  # one row in each of two histograms


def test_nothing_is_read_when_the_budget_is_spent(tmp_path, monkeypatch):
    spooled = parted(WHOLE, 1000, tmp_path)
    schema = Schema(SCHEMA.target, {**SCHEMA.columns, "patient": Number(0, 1)})
    monkeypatch.setattr(SpooledTable, "parts", lambda *_: pytest.fail("a value was read"))
    ledger = pv.Ledger(None, pv.Budget(0.1, 1e-6))
    with pytest.raises(BudgetExceeded):
        estimate_bounds(spooled, schema, ledger=ledger, noise_multiplier=1.0)
    with pytest.raises(BudgetExceeded):
        estimate_classes(spooled, "sick", ledger=ledger, noise_multiplier=1.0)
    assert not ledger.totals()


def test_persons_are_numbered_as_they_first_occur(tmp_path):
    expected = {name: place for place, name in enumerate(dict.fromkeys(PATIENTS))}
    found = person_numbers(parted(WHOLE, 13, tmp_path), "patient", ())
    assert found.tolist() == [expected[name] for name in PATIENTS]


def test_copies_are_found_in_parts(tmp_path):
    spooled = parted(WHOLE, 300, tmp_path)
    refuse_overlap(Table({**WHOLE.columns, "age": AGES + 1, "dose": AGES}), spooled)
    with pytest.raises(DataError, match="shares too many"):
        refuse_overlap(WHOLE.take(RNG.permutation(ROWS)[:200]), spooled)


# ---------------------------------------------------------------------- how much memory there is


def test_limits_of_the_process_count():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    whole = memory.available_memory()
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, before[1]))
        assert memory.available_memory() <= min(whole, 8 << 30) + (64 << 20)
        assert memory._of_process()[0] < 8 << 30
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_limits_of_control_groups_count(tmp_path):
    words = {"memory.max": "1000\n", "memory.current": "700\n"}
    for name, text in words.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("anon 400\nactive_file 100\ninactive_file 150\n")
    assert memory._of_group(tmp_path, "memory.max", "memory.current", "") == [550]
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._of_group(tmp_path, "memory.max", "memory.current", "") == []
