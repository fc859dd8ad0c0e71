"""Searches on a table: what is chosen among, and what has to be known."""

import pytest

import privada as pv
from privada.core.errors import ArgumentError
from privada.workflows import TuneOptions, default_space, parse_space, tune_table
from tests.workflows.conftest import visits

QUICK = {"epsilon": 2.0, "epochs": 1, "batch_size": 50, "space": {"lr": [0.1, 1.0]}}


def test_spaces_in_words():
    assert parse_space(["lr=0.1,1", "batch-size=32", "name=a"]) == {
        "lr": [0.1, 1], "batch_size": [32], "name": ["a"],
    }  # fmt: skip
    assert default_space("dp-sgd", 100)["lr"][-1] == 30.0
    for words in ("lr", "lr=", "=1", "lr=,"):
        with pytest.raises(ArgumentError, match="name=value"):
            parse_space([words])


def test_what_is_not_known_is_not_estimated(folder):
    (folder / "visits.csv").write_text(
        "\n".join(line.partition(",")[2] for line in visits()) + "\n"
    )
    with pytest.raises(ArgumentError, match="classes of 'sick' to be known"):
        tune_table("visits.csv", TuneOptions(target="sick", **QUICK))
    named = TuneOptions(target="sick", classes=("no", "yes"), **QUICK)
    with pytest.raises(ArgumentError, match="bounds of 'age' to be known"):
        tune_table("visits.csv", named)
    with pytest.raises(ArgumentError, match="got neither"):
        tune_table("visits.csv", TuneOptions(**QUICK))


@pytest.mark.parametrize("method", ["dp-sgd", "adadps"])
def test_public_rows_say_what_the_columns_are(method, folder):
    (folder / "public.csv").write_text("\n".join(visits(300, seed=1, first=900)) + "\n")
    options = TuneOptions(
        target="sick", public="public.csv", person="patient", method=method, ledger="account",
        **QUICK,
    )  # fmt: skip
    tuned = tune_table("visits.csv", options, "best")
    said = " ".join(tuned.statement.assumptions)
    assert "rows that were declared public" in said
    assert pv.Ledger("account").epsilon() == tuned.selection.epsilon() <= 2.0
    assert "declared public" in (folder / "best" / "statement.txt").read_text()


def test_columns_of_text_alone_need_no_bounds(folder):
    lines = [line.split(",") for line in visits()]
    (folder / "text.csv").write_text("".join(f"{ward},{sick}\n" for _, _, ward, sick in lines))
    options = TuneOptions(target="sick", classes=("no", "yes"), **QUICK)
    tuned = tune_table("text.csv", options)
    assert "names and types of the columns are public" in " ".join(tuned.statement.assumptions)
