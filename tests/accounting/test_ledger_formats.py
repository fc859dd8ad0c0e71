"""Ledgers of earlier versions: read as they are, upgraded as a whole or not at all, and copied."""

import contextlib
import errno
import os
import pickle
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privada.accounting import Budget, Ledger, epsilon_of, events
from privada.accounting.events import ADD_OR_REMOVE
from privada.accounting.filters import RenyiFilter
from privada.accounting.ledger.counting import KINDS
from privada.accounting.ledger.sqlite import files, formats
from privada.core.errors import BudgetExceeded, LedgerError
from tests.accounting import old_ledgers
from tests.accounting.old_ledgers import EARLIER, ONE_RUN, ROWS, TEXTS
from tests.forks import in_fork, limited
from tests.ledger_files import content, killed_at

GAUSSIAN = events.gaussian(20.0)
POISSON = events.poisson(0.01, 4.0)
TOTALS = Counter({POISSON: 370, GAUSSIAN: 3})
CHARGED = [(run, purpose, events.decode(text), n, first, last)
           for run, purpose, text, n, first, last in ROWS if n]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "patients.ledger"


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def copies(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.format-*"))


def charged(ledger: Ledger) -> list[tuple[Any, ...]]:
    return [(c.run, c.purpose, c.event, c.count, c.first, c.last) for c in ledger.charges()]


# ---------------------------------------------------------------------- one process


def of_an_earlier_kind(epsilon: float | None) -> RenyiFilter:
    """Return the filter of a ledger that does not say its kind: its budget alone fixes it."""
    return RenyiFilter.for_budget(None if epsilon is None else Budget(epsilon, 1e-5))


@pytest.mark.parametrize("make", EARLIER.values(), ids=EARLIER)
@pytest.mark.parametrize("epsilon", [1.0, None])
def test_every_format_is_read_as_it_is(
    path: Path, make: Callable[..., None], epsilon: float | None
) -> None:
    make(path, epsilon=epsilon)
    whole = path.read_bytes()
    with Ledger(path) as ledger:
        assert charged(ledger) == CHARGED
        assert ledger.totals() == TOTALS
        assert ledger.dataset == "patients"
        assert ledger.budget == (None if epsilon is None else Budget(1.0, 1e-5))
        assert ledger.kind == "adaptive"
        assert ledger.accountant == "filter"
        assert "the epsilon was recomputed" in ledger.describe()
        found = of_an_earlier_kind(epsilon).epsilon(TOTALS, 1e-5)
        assert ledger.epsilon(1e-5) == found > epsilon_of(TOTALS, 1e-5)
        assert ledger.run_epsilon("first", 1e-5) < found
        noted = "0a1b" if make in (old_ledgers.published, old_ledgers.all_together) else None
        assert ledger.published("search") == noted
        assert ledger.identity == Ledger(path).identity
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("make", EARLIER.values(), ids=EARLIER)
def test_one_run_of_every_format_is_a_plan_until_there_is_a_second(
    path: Path, make: Callable[..., None]
) -> None:
    make(path, ONE_RUN)
    whole, tally = path.read_bytes(), Counter({POISSON: 300, GAUSSIAN: 3})
    exact = epsilon_of(tally, 1e-5)
    with Ledger(path, kind="planned") as ledger:
        assert (ledger.kind, ledger.accountant) == ("planned", "pld")
        assert ledger.describe().startswith("planned: made by an earlier version, for one run")
        assert ledger.epsilon() == ledger.run_epsilon("first") == exact
        assert ledger.cost("first", {POISSON: 1}) < ledger.cost("second", {POISSON: 1})
        assert path.read_bytes() == whole
        ledger.charge({POISSON: 1}, run="first")  # a run that goes on is still one run
        assert ledger.epsilon() == epsilon_of(tally + Counter({POISSON: 1}), 1e-5)
        assert version(path) == formats.SCHEMA_VERSION
        expected = ledger.cost("second", {POISSON: 1})
        ledger.charge({POISSON: 1}, run="second")
        after = tally + Counter({POISSON: 2})
        assert ledger.epsilon() == expected == of_an_earlier_kind(1.0).epsilon(after, 1e-5)
        for opened in (ledger, Ledger(path), pickle.loads(pickle.dumps(ledger))):
            assert opened.kind == "adaptive"
            assert opened.epsilon() == expected
    with pytest.raises(LedgerError, match="to be planned, but it is adaptive"):
        Ledger(path, kind="planned")


@pytest.mark.parametrize("make", EARLIER.values(), ids=EARLIER)
def test_a_budget_that_the_filter_exceeds_allows_nothing_more_and_says_why(
    path: Path, make: Callable[..., None]
) -> None:
    """The earlier version found all runs together to fit, as if they had been planned."""
    planned = epsilon_of(TOTALS, 1e-5)
    make(path, epsilon=planned * 1.01)
    whole = path.read_bytes()
    ledger = Ledger(path)
    assert planned * 1.01 < ledger.epsilon() < 2 * planned  # it is not hidden
    assert "the epsilon was recomputed" in ledger.describe()
    assert ledger.affordable(GAUSSIAN, 5, "first") == 0
    for run in ("first", "new"):
        with pytest.raises(BudgetExceeded, match=r"by a Renyi filter now") as caught:
            ledger.charge({events.gaussian(1e4): 1}, run=run)
        assert "made by an earlier version" in str(caught.value)
    assert path.read_bytes() == whole  # a refused charge upgrades nothing


@pytest.mark.parametrize("make", EARLIER.values(), ids=EARLIER)
@pytest.mark.parametrize("write", ["charge", "refund", "publish", "lease"])
def test_the_first_write_upgrades_and_keeps_a_copy(
    path: Path, make: Callable[..., None], write: str
) -> None:
    make(path)
    before, mode, old = content(path), 0o640, version(path)
    path.chmod(mode)
    ledger = Ledger(path)
    identity = ledger.identity
    acts: dict[str, Callable[[], Any]] = {
        "charge": lambda: ledger.charge({GAUSSIAN: 1}, run="new"),
        "refund": lambda: ledger.refund(ledger.charge({GAUSSIAN: 1}, run="new")),
        "publish": lambda: ledger.publish("another search", "1"),
        "lease": lambda: ledger.lease("another search"),
    }
    acts[write]()
    new = {"charge": 1}.get(write, 0)
    assert version(path) == formats.SCHEMA_VERSION
    assert charged(ledger)[: len(CHARGED)] == CHARGED
    (copy,) = copies(path)
    assert version(copy) == old < formats.SCHEMA_VERSION
    assert content(copy) == before
    assert copy.stat().st_mode & 0o777 == path.stat().st_mode & 0o777 == mode
    assert {each.name for each in path.parent.iterdir()} == {path.name, copy.name}
    for opened in (Ledger(path), pickle.loads(pickle.dumps(ledger))):
        assert opened.totals() == TOTALS + Counter({GAUSSIAN: new})
        assert opened.identity == identity
        assert opened.budget == Budget(1.0, 1e-5)
    with Ledger(copy) as restored:  # which can be put back
        assert charged(restored) == CHARGED


def test_what_was_published_and_leased_is_kept(path: Path) -> None:
    old_ledgers.published(path)
    ledger = Ledger(path)
    ledger.check_lease("search", "c2d3")
    ledger.charge({GAUSSIAN: 1}, run="new")
    ledger.check_lease("search", "c2d3")
    ledger.publish("search", "0a1b", lease=("search", "c2d3"))
    with pytest.raises(LedgerError, match="another result"):
        Ledger(path).publish("search", "9999")


@pytest.mark.parametrize("kind", KINDS)
def test_the_present_format_needs_no_upgrade(path: Path, kind: str) -> None:
    with Ledger(path, Budget(1.0, 1e-5), kind=kind) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="new", plan={GAUSSIAN: 2})
    with Ledger(path) as ledger:
        assert ledger.kind == kind
        ledger.charge({GAUSSIAN: 1}, run="new")
    assert copies(path) == []
    assert version(path) == formats.SCHEMA_VERSION
    assert Ledger(path).totals() == Counter({GAUSSIAN: 2})


def test_a_version_that_knows_no_kinds_finds_no_seal_and_charges_nothing(path: Path) -> None:
    """Format 2 had its seal under another key: whoever has the file open since then finds none."""
    old_ledgers.all_together(path)
    Ledger(path).charge({GAUSSIAN: 1}, run="new")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        meta = dict(connection.execute("SELECT key, value FROM meta"))
    assert "sealed" not in meta
    assert "seal" not in meta


def test_a_budget_of_an_earlier_ledger_is_kept_to(path: Path) -> None:
    old_ledgers.unsealed(path, epsilon=epsilon_of(TOTALS, 1e-5) * 1.0001)
    ledger = Ledger(path)
    with pytest.raises(LedgerError, match="fit the budget"):
        ledger.charge({POISSON: 100}, run="new")
    assert version(path) == 1
    assert Ledger(path).totals() == TOTALS


def test_no_copy_is_written_over_by_another(path: Path) -> None:
    """The old file is put back, charged by the old version, and upgraded again."""
    for rows in (ROWS, ROWS[:2], ROWS):
        path.unlink(missing_ok=True)
        old_ledgers.sealed(path, rows)
        with Ledger(path) as ledger:
            ledger.charge({GAUSSIAN: 1}, run="new")
    kept = copies(path)
    assert len(kept) == 2
    assert {sum(Ledger(each).totals().values()) for each in kept} == {373, 303}


@pytest.mark.parametrize("make", EARLIER.values(), ids=EARLIER)
def test_a_copy_that_cannot_be_made_keeps_all_as_it_is(
    path: Path, make: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(path)
    before = content(path)
    ledger = Ledger(path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(LedgerError, match="Cannot copy the ledger"):
            ledger.charge({GAUSSIAN: 1}, run="new")
    assert content(path) == before
    assert list(path.parent.iterdir()) == [path]
    ledger.charge({GAUSSIAN: 1}, run="new")
    assert len(copies(path)) == 1
    assert Ledger(path).totals() == TOTALS + Counter({GAUSSIAN: 1})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM meta WHERE key = 'created'", "facts"),
        ("UPDATE meta SET value = 7 WHERE key = 'nothing'; INSERT INTO meta VALUES ('x', 'y')",
         "facts"),
        ("UPDATE charges SET event = '{}' WHERE id = 1", "text of an event"),
        ("UPDATE charges SET count = 'many' WHERE id = 1", "not a number"),
        ("CREATE TABLE other (x)", "tables"),
        ("CREATE TRIGGER t AFTER INSERT ON charges BEGIN DELETE FROM charges; END", "tables"),
        ("PRAGMA user_version = 0", "no format"),
        ("PRAGMA user_version = 2", "damaged"),
    ],
)  # fmt: skip
def test_a_damaged_ledger_of_the_first_format_is_refused(
    path: Path, damage: str, said: str
) -> None:
    old_ledgers.unsealed(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.executescript(damage)
    with pytest.raises(LedgerError, match=said):
        Ledger(path)
    assert list(path.parent.iterdir()) == [path]


def test_damage_since_it_was_opened_is_not_copied_and_not_sealed(path: Path) -> None:
    old_ledgers.sealed(path)
    ledger = Ledger(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE charges SET count = count - 1 WHERE id = 1")
    with pytest.raises(LedgerError, match="does not match its seal"):
        ledger.charge({GAUSSIAN: 1}, run="new")
    assert copies(path) == []
    assert version(path) == 1


def test_the_first_version_that_has_the_file_open_can_charge_nothing_more(path: Path) -> None:
    """By the SQL of its charge, in the file as it is after the upgrade."""
    old_ledgers.unsealed(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("SELECT * FROM charges").fetchall()
        Ledger(path).charge({GAUSSIAN: 1}, run="new")
        with pytest.raises(sqlite3.IntegrityError, match="seal"):
            connection.execute(
                "INSERT INTO charges (run, purpose, event, count, first, last) "
                "VALUES ('old', 'training', ?, 1, '', '') ON CONFLICT (run, purpose, event) "
                "DO UPDATE SET count = count + excluded.count, last = excluded.last",
                (TEXTS[1],),
            )
    assert Ledger(path).totals() == TOTALS + Counter({GAUSSIAN: 1})


# ---------------------------------------------------------------------- texts of events


@pytest.mark.parametrize("text", [*TEXTS, old_ledgers.FIXED_SIZE])
def test_texts_of_events_of_every_version_are_read(path: Path, text: str) -> None:
    event = events.decode(text)
    assert events.encode(event) == text
    old_ledgers.sealed(path, (("a", "training", text, 2, "", ""),), epsilon=None)
    with Ledger(path) as ledger:
        assert ledger.totals() == Counter({event: 2})
        assert ledger.epsilon(1e-5) == epsilon_of({event: 2}, 1e-5) > 0
        ledger.charge({event: 1}, run="a")  # in the same row
    (charge,) = Ledger(path).charges()
    assert charge.count == 3


def test_a_multiplier_that_was_written_as_a_whole_number_is_the_same_event(path: Path) -> None:
    text = old_ledgers.WHOLE_NUMBER
    assert events.decode(text) == GAUSSIAN
    assert events.common_relation([events.decode(text), POISSON]) == ADD_OR_REMOVE
    old_ledgers.unsealed(path, (("a", "training", text, 2, "", ""),))
    with Ledger(path) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="a")
    assert Ledger(path).totals() == Counter({GAUSSIAN: 3})


# ---------------------------------------------------------------------- kills and races


def many(number: int = 300) -> tuple[old_ledgers.Row, ...]:
    """Return rows that fill several pages, so that an upgrade writes before it commits."""
    return tuple(
        (f"run {place}", "training", TEXTS[1], place + 1, "", "") for place in range(number)
    )


def check_whole(path: Path, before: list[str], totals: Counter[Any]) -> bool:
    """Check that the ledger is as before or upgraded, and every copy whole; return if it is new."""
    with Ledger(path) as ledger:
        found = ledger.totals()
    assert found in (totals, totals + Counter({GAUSSIAN: 1}))
    new = version(path) == formats.SCHEMA_VERSION
    if not new:
        assert found == totals
        assert content(path) == before
    for copy in copies(path):
        assert content(copy) == before
    if new:
        assert len(copies(path)) == 1
    return new


@pytest.mark.parametrize("make", [old_ledgers.unsealed, old_ledgers.published])
def test_an_upgrade_that_is_killed_at_any_statement_loses_nothing(
    path: Path, make: Callable[..., None]
) -> None:
    rows = many()
    make(path, rows, epsilon=None)
    before, totals = content(path), Counter({GAUSSIAN: sum(row[3] for row in rows)})
    statement, kills = 1, 0
    # one row each is inserted in most statements: the first and the last ones are tried one by one
    while killed_at(path, statement, lambda ledger: ledger.charge({GAUSSIAN: 1}, run="new")):
        kills += 1
        assert not check_whole(path, before, totals)  # a kill is before the commit
        statement += 1 if not 30 <= statement < 330 else 50
    assert kills > 25
    assert check_whole(path, before, totals)
    assert Ledger(path).totals() == totals + Counter({GAUSSIAN: 1})


def test_an_upgrade_that_is_killed_at_any_moment_loses_nothing(path: Path) -> None:
    rows = many(100)
    totals, outcomes = Counter({GAUSSIAN: sum(row[3] for row in rows)}), Counter()
    moments = random.Random(1)
    for _ in range(25):
        for each in path.parent.iterdir():
            each.unlink()
        old_ledgers.published(path, rows, epsilon=None)
        before = content(path)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            limited()
            ledger = Ledger(path)
            os.write(writer, b"x")
            ledger.charge({GAUSSIAN: 1}, run="new")
            os._exit(0)
        os.read(reader, 1)
        time.sleep(moments.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
        outcomes[check_whole(path, before, totals)] += 1
        with Ledger(path) as ledger:  # whoever comes next goes on
            held = ledger.totals()
            ledger.charge({GAUSSIAN: 1}, run="next")
            assert ledger.totals() == held + Counter({GAUSSIAN: 1})
    assert sum(outcomes.values()) == 25


@pytest.mark.parametrize("make", EARLIER.values(), ids=EARLIER)
def test_processes_that_open_it_at_once_upgrade_it_once(
    path: Path, make: Callable[..., None]
) -> None:
    make(path, epsilon=None)
    before = content(path)
    reader, writer = os.pipe()
    children = []
    for place in range(4):
        child = os.fork()
        if child == 0:
            try:
                limited()
                os.close(writer)
                ledger = Ledger(path)
                os.read(reader, 1)  # until the parent lets all of them go
                for _ in range(5):
                    ledger.charge({GAUSSIAN: 1}, run=f"child {place}")
                assert ledger.totals()[GAUSSIAN] >= 8
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    os.close(reader)
    time.sleep(0.2)
    os.close(writer)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * 4
    assert Ledger(path).totals() == TOTALS + Counter({GAUSSIAN: 20})
    (copy,) = copies(path)
    assert content(copy) == before
    assert {each.name for each in path.parent.iterdir()} == {path.name, copy.name}


def test_two_ledgers_of_one_process_go_on_after_the_upgrade(path: Path) -> None:
    """The copy is read by SQLite: to open and close the file would drop this process's locks."""
    old_ledgers.sealed(path)
    first, second = Ledger(path), Ledger(path)
    first.charge({GAUSSIAN: 1}, run="first")
    second.charge({GAUSSIAN: 1}, run="second")
    assert first.totals() == second.totals() == TOTALS + Counter({GAUSSIAN: 2})


def test_the_file_stays_locked_while_it_is_copied(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_ledgers.sealed(path)
    true, found = files.keep_copy, []

    def locked() -> None:
        with (
            contextlib.closing(sqlite3.connect(path, timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")

    def copied(*given: Any) -> Path:
        result = true(*given)
        found.append(in_fork(locked))
        return result

    monkeypatch.setattr(files, "keep_copy", copied)
    Ledger(path).charge({GAUSSIAN: 1}, run="new")
    assert found == [0]
