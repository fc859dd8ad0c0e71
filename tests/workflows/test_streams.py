"""Rows and features on disk: the same model, the same charges, and nothing left behind."""

import errno
import json
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import privada as pv
from privada import tables
from privada.core.errors import ArgumentError, DataError, PrivadaError
from privada.tables import array_files, spooling
from privada.workflows import TrainOptions, TuneOptions, row_storage, train_table, tune_table
from tests.forks import PATIENCE

ROWS = 3000
ASKED = TrainOptions(epsilon=4.0, target="sick", epochs=1, seed=3)
SCHEMA = """
[target]
column = "sick"
classes = ["no", "yes"]
[columns.age]
kind = "number"
bounds = "estimate"
[columns.dose]
kind = "number"
low = 0
high = 9
scale = "log"
[columns.ward]
kind = "hashed"
buckets = {buckets}
[columns.patient]
kind = "hashed"
"""


def lines(rows=ROWS):
    """Return a table in which a patient's visits are far apart."""
    rng = np.random.default_rng(0)
    ages, doses = rng.uniform(0, 90, rows), rng.integers(0, 9, rows)
    return [
        "patient,age,dose,ward,sick",
        *(
            f"p{i % 700},{age:.2f},{dose},w{i % 50},{'yes' if age + dose > 50 else 'no'}"
            for i, (age, dose) in enumerate(zip(ages, doses, strict=True))
        ),
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with t.csv, which is read and encoded in many parts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("privada.tables.formats.delimited.BLOCK", 1 << 13)
    monkeypatch.setattr("privada.tables.streaming._ROWS", 500)
    monkeypatch.setattr("privada.tables.streaming._NUMBERS", 2000)
    (tmp_path / "t.csv").write_text("\n".join(lines()) + "\n")
    for name, buckets in (("dense", 8), ("sparse", 400)):
        (tmp_path / f"{name}.toml").write_text(SCHEMA.format(buckets=buckets))
    return tmp_path


def outcome(trained):
    """Return all that a run gives: its model, its charges and its schema."""
    return (
        {name: value.tolist() for name, value in trained.trainer.model.state_dict().items()},
        sorted((c.purpose, str(c.event), c.count) for c in trained.trainer.ledger.charges()),
        (trained.output / "schema.toml").read_text(),
        trained.statement.epsilon,
    )


def slow_ones(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


WAYS = {
    "nothing but the target": {},
    "persons": {"person": "patient"},
    "a schema with bounds to be found": {"target": None, "schema": "dense.toml"},
    "sparse features": {"target": None, "schema": "sparse.toml"},
    "sparse features of persons": {"target": None, "schema": "sparse.toml", "person": "patient"},
    "classes that are named": {"classes": ("no", "yes"), "person": "patient"},
    "public rows": {"public_rows": "ward=w7", "person": "patient"},
    "text": {"text": ("ward",)},
}


SLOW_WAYS = ("classes that are named", "text", "sparse features")


@pytest.mark.parametrize(
    "way", [*(way for way in WAYS if way not in SLOW_WAYS), *slow_ones(*SLOW_WAYS)]
)
def test_the_result_is_the_same_bit_for_bit(way, folder):
    asked = replace(ASKED, **WAYS[way])
    found = [
        outcome(train_table("t.csv", replace(asked, stream=stream), name))
        for stream, name in ((True, "a"), (False, "b"))
    ]
    assert found[0] == found[1]


def test_it_is_what_a_trainer_makes_of_the_table_as_a_whole(folder):
    """An oracle: one read, one encode, one trainer, and no parts."""
    (folder / "s.toml").write_text((folder / "dense.toml").read_text().replace(
        'bounds = "estimate"', "low = 0\nhigh = 128"))  # fmt: skip
    made = train_table("t.csv", replace(ASKED, target=None, schema="s.toml", stream=True), "a")
    schema = tables.Schema.read("s.toml")
    whole = tables.encode(tables.read("t.csv", schema), schema)
    assert np.array_equal(made.data.train[0], whole.inputs)
    assert np.array_equal(made.data.train[1], whole.targets)
    assert isinstance(made.data.train[0], np.memmap)
    model = made.architecture.build()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    trainer = pv.Trainer(
        model, torch.nn.CrossEntropyLoss(), whole.data, method=made.trainer.method, seed=3,
        batch_size=made.trainer.batch_size, epochs=1, budget=pv.Budget(4.0, 1e-4), run="x",
    ).fit()  # fmt: skip
    assert torch.equal(trainer.model.weight, made.trainer.model.weight)


@pytest.mark.parametrize(
    "source", ["frame", "jsonl", "database", *slow_ones("parquet", "folder", "gzip")]
)
def test_every_source_streams(source, folder):
    frame = pd.read_csv("t.csv")
    given, options = folder / "other", ASKED
    if source == "frame":
        given = frame
    elif source == "database":
        with sqlite3.connect("t.db") as connection:
            frame.to_sql("t", connection, index=False)
        connection.close()
        given, options = "sqlite:///t.db", replace(ASKED, query="select * from t")
    elif source == "folder":
        given.mkdir()
        for place in range(3):
            frame[place * 1000 : place * 1000 + 1000].to_csv(given / f"{place}.csv", index=False)
    else:
        write = {"parquet": frame.to_parquet, "gzip": frame.to_csv}.get(source)
        given = folder / {"parquet": "o.parquet", "gzip": "o.csv.gz", "jsonl": "o.jsonl"}[source]
        if write is None:
            frame.to_json(given, orient="records", lines=True)
        else:
            write(given, index=False)
    streamed = train_table(given, replace(options, stream=True), "a")
    expected = train_table("t.csv", replace(ASKED, stream=False), "b")
    assert outcome(streamed)[0] == outcome(expected)[0]


def test_it_is_decided_by_the_memory_that_there_is(folder, monkeypatch):
    monkeypatch.setattr(row_storage, "available_memory", lambda: 1 << 40)
    assert not isinstance(train_table("t.csv", ASKED, "a").data.train[0], np.memmap)
    monkeypatch.setattr(row_storage, "available_memory", lambda: 1 << 20)
    assert isinstance(train_table("t.csv", ASKED, "b").data.train[0], np.memmap)
    assert not isinstance(
        train_table("t.csv", replace(ASKED, stream=False), "c").data.train[0], np.memmap
    )
    monkeypatch.setattr(row_storage, "available_memory", lambda: None)
    assert not isinstance(train_table("t.csv", ASKED, "d").data.train[0], np.memmap)


def test_nothing_private_has_a_name(folder, monkeypatch):
    seen = []

    def looked(*arguments, real=pv.Trainer.step):
        seen.append(sorted(str(p.relative_to(folder)) for p in folder.rglob("*")))
        return real(*arguments)

    monkeypatch.setattr(pv.Trainer, "step", looked)
    before = {each.name for each in folder.iterdir()}
    made = train_table("t.csv", replace(ASKED, stream=True), "a")
    assert {name.partition("/")[0] for name in seen[0]} == before | {"a"}
    assert not [name for name in seen[0] if name.endswith((".bin", ".arrow"))]
    kept = Path(made.data.train[0].place).stat()
    assert kept.st_mode & 0o077 == 0
    assert kept.st_nlink == 0


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("p1,12,secret,w1,no", "number in column 'dose'"),
        ("p1,12,3,w1", "5 cells in each line"),
        (",12,3,w1,no", "identifier in every row"),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_before_any_charge(row, words, stream, folder):
    """It is in a late part; there is no difference to a table in memory."""
    listed = lines()
    listed.insert(2900, row)
    (folder / "t.csv").write_text("\n".join(listed) + "\n")
    with pytest.raises(DataError, match=words) as raised:
        train_table("t.csv", replace(ASKED, person="patient", stream=stream), "a")
    assert "secret" not in str(raised.value)
    assert not (folder / "a").exists()


@pytest.mark.parametrize("stream", [True, False])
def test_a_class_of_one_late_row_is_refused_before_any_charge(stream, folder):
    (folder / "t.csv").write_text("\n".join([*lines(), "p1,12,3,w1,perhaps"]) + "\n")
    with pytest.raises(DataError, match="one of the classes"):
        train_table("t.csv", replace(ASKED, classes=("no", "yes"), stream=stream), "a")
    assert not (folder / "a").exists()


def test_one_row_is_treated_as_in_memory(folder):
    (folder / "t.csv").write_text("\n".join(lines(1)) + "\n")
    words = []
    for stream in (True, False):
        with pytest.raises(PrivadaError) as raised:
            train_table("t.csv", replace(ASKED, stream=stream), "a")
        words.append(str(raised.value))
        assert not (folder / "a").exists()
    assert words[0] == words[1]


class Full:
    """A disk on which there is no room left after some bytes."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def write(self, data):
        self._room -= len(memoryview(data).cast("B"))
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("what", ["rows", "features"])
@pytest.mark.parametrize("schema", ["dense.toml", "sparse.toml"])
def test_a_full_disk_is_said_before_any_charge(what, schema, folder, monkeypatch):
    module = spooling if what == "rows" else array_files
    real = module.unnamed_file
    monkeypatch.setattr(module, "unnamed_file", lambda place: Full(real(place), 5000))
    before = {each.name for each in folder.iterdir()}
    asked = replace(ASKED, target=None, schema=schema, stream=True)
    with pytest.raises(ArgumentError, match=f"Cannot write {what} .*No space left.*--scratch"):
        train_table("t.csv", asked, "a")
    assert {each.name for each in folder.iterdir()} == before


def test_room_is_taken_before_any_charge(folder, monkeypatch):
    def no_room(file, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(array_files.os, "posix_fallocate", no_room)
    for schema in ("dense.toml", "sparse.toml"):
        with pytest.raises(ArgumentError, match="Cannot write features"):
            train_table("t.csv", replace(ASKED, target=None, schema=schema, stream=True), "a")
        assert not (folder / "a").exists()


def test_a_scratch_folder_that_is_not_there_is_named(folder):
    with pytest.raises(ArgumentError, match="Cannot write rows to 'nowhere'"):
        train_table("t.csv", replace(ASKED, stream=True, scratch="nowhere"), "a")
    assert not (folder / "a").exists()


_KILLED = """
import os, signal, sys
from privada import Trainer
from privada.workflows import TrainOptions, train_table

def killed(self, real=Trainer.step):
    if self.steps_done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self)

Trainer.step = killed
train_table("t.csv", TrainOptions(epsilon=4.0, target="sick", epochs=1, stream=True), "a")
"""


def test_a_killed_run_leaves_no_rows_and_goes_on(folder):
    before = {each.name for each in folder.iterdir()}
    ended = subprocess.run([sys.executable, "-c", _KILLED], timeout=PATIENCE)
    assert ended.returncode == -signal.SIGKILL
    assert {each.name for each in folder.iterdir()} == before | {"a"}
    text = b"".join(p.read_bytes() for p in Path("a").iterdir() if p.is_file())
    assert b"p699" not in text
    asked = TrainOptions(epsilon=4.0, target="sick", epochs=1, stream=True)
    assert train_table("t.csv", asked, "a", resume=True).statement.epsilon <= 4.0


@pytest.mark.slow
def test_processes_map_one_file(folder):
    asked = replace(ASKED, classes=("no", "yes"), person="patient", stream=True)
    alone = train_table("t.csv", asked, "a")
    # a second run in this process has helpers of its own, for which it is the first
    for place in ("b", "c"):
        together = train_table("t.csv", asked, place, processes=2)
        assert torch.allclose(
            alone.trainer.model.weight, together.trainer.model.weight, atol=1e-5, rtol=1e-4
        )


@pytest.mark.slow
def test_a_search_takes_a_table_on_disk(folder):
    asked = TuneOptions(
        epsilon=4.0, target="sick", epochs=1, space={"lr": [0.1, 1.0]}, seed=1, candidates=2
    )
    found = [
        tune_table("t.csv", replace(asked, stream=stream), name).selection
        for stream, name in ((True, "a"), (False, "b"))
    ]
    assert found[0].settings == found[1].settings
    assert torch.equal(found[0].model.weight, found[1].model.weight)


def test_settings_are_written_without_what_was_not_said(folder):
    train_table("t.csv", ASKED, "a")
    assert not {"stream", "scratch"} & set(json.loads(Path("a/config.json").read_text()))
