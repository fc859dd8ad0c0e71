"""A public table that is the private one, or rows of it, is refused."""

import numpy as np
import pytest
import scipy.sparse

from privada.core.errors import DataError
from privada.tables import Classes, Ignore, Number, Schema, Table, read, refuse_overlap
from tests.datasets import data_folder

AGES = np.random.default_rng(0).uniform(0, 100, 400).round(3)
PRIVATE = Table({"age": AGES, "ward": list("abcd") * 100, "sick": ["no", "yes"] * 200})


def _texts(table, form):
    columns = {name: table.columns[name] for name in reversed(table.names)}
    columns["age"] = [form.format(age) for age in AGES]
    return Table(columns)


SAME = {
    "itself": PRIVATE,
    "in another order": PRIVATE.take(np.random.default_rng(1).permutation(400)),
    "a part": PRIVATE.take(slice(100, 200)),
    "written in another way": _texts(PRIVATE, " {:.6f} "),
    "written as powers": _texts(PRIVATE, "{:.9e}"),
    "in half the bytes": Table({**PRIVATE.columns, "age": AGES.astype(np.float32)}),
    "without a column": Table({k: PRIVATE.columns[k] for k in ("sick", "age")}),
    "with a column more": Table({**PRIVATE.columns, "id": range(400)}),
}


@pytest.mark.parametrize("kind", SAME)
def test_rows_of_the_private_table_are_refused(kind):
    with pytest.raises(DataError, match="other records than the private") as raised:
        refuse_overlap(SAME[kind], PRIVATE)
    assert not any(character.isdigit() for character in str(raised.value))


def test_columns_that_are_ignored_do_not_count():
    schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 100), "id": Ignore()})
    private = Table({"age": AGES, "sick": PRIVATE.columns["sick"], "id": range(400)})
    public = Table({**private.columns, "id": range(400, 800)})
    refuse_overlap(public, private)  # as far as anyone can know
    with pytest.raises(DataError):
        refuse_overlap(public, private, schema)


def test_long_numbers_that_differ_are_not_taken_for_one():
    ids = 10**9 + np.arange(400)  # which are seven numbers in float32
    for form in (lambda some: some, lambda some: list(map(str, some))):
        private = Table({"id": form(ids), "sick": ["no", "yes"] * 200})
        refuse_overlap(Table({"id": form(ids + 400), "sick": ["no", "yes"] * 200}), private)
        with pytest.raises(DataError):
            refuse_overlap(private.take(slice(0, 100)), private)


def test_missing_values_are_one_value():
    cells = [None, "?", "", "NA"]
    private = Table({"a": cells * 100, "b": range(400)})
    with pytest.raises(DataError):
        refuse_overlap(Table({"a": cells[::-1] * 100, "b": range(400)}), private)


def test_matrices_are_compared_dense_and_sparse():
    values = np.random.default_rng(0).integers(0, 3, (400, 5)).astype(float) * AGES[:, None]
    sparse = scipy.sparse.csr_matrix(values[:200])
    with pytest.raises(DataError):
        refuse_overlap(Table({"m": sparse}), Table({"m": values}))
    with pytest.raises(DataError):
        refuse_overlap(Table({"m": sparse.astype(np.float32)}), Table({"m": values}))
    refuse_overlap(Table({"m": sparse}), Table({"m": values[200:]}))


def test_other_tables_pass():
    for other in (
        Table({**PRIVATE.columns, "age": AGES + 0.0005}),
        Table({"ward": list("abcd") * 90, "sick": ["no", "yes"] * 180}),  # few kinds of rows
        Table({"weight": AGES}),
        PRIVATE.take(slice(0, 19)),
    ):
        refuse_overlap(other, PRIVATE)


def test_adult_s_halves_share_rows_by_chance_alone():
    whole = read(data_folder("adult.csv.gz") / "adult.csv.gz")
    split = whole.texts("split")
    columns = [name for name in whole.names if name != "split"]
    for names in (columns, [name for name in columns if name not in ("fnlwgt", "age")]):
        some = Table({name: whole.columns[name] for name in names})
        private, public = some.take(split == "train"), some.take(split == "test")
        refuse_overlap(public, private)
        with pytest.raises(DataError):
            refuse_overlap(private.take(slice(0, 5000)), private)
