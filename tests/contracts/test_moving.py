"""What every storage must do from which, and to which, a ledger can be moved."""

import contextlib
import os
import signal
import sqlite3
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import privada as pv
from privada.accounting import Budget, Ledger, PostgresStorage, SQLiteStorage, events
from privada.accounting.ledger import move
from privada.accounting.ledger.moving import Closure, MovableStorage
from privada.core.errors import BudgetExceeded, LedgerError
from tests.accounting.old_ledgers import EARLIER
from tests.forks import limited
from tests.postgres_server import shared_server

GAUSSIAN, POISSON = events.gaussian(20.0), events.poisson(0.01, 4.0)
BUDGET = Budget(2.0, 1e-5)
Make = Callable[[], MovableStorage]


def make_place(kind: str, folder: Path, name: str) -> Make:
    if kind == "SQLite file":
        return lambda: SQLiteStorage(folder / name)
    url = shared_server().new()
    return lambda: PostgresStorage(url)


KINDS = ("SQLite file", "PostgreSQL")


@pytest.fixture(params=product(KINDS, KINDS), ids=lambda pair: " to ".join(pair))
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Make, Make]:
    one, other = request.param
    return make_place(one, tmp_path, "old.ledger"), make_place(other, tmp_path, "new.ledger")


def fill(make: Make, kind: str = "adaptive") -> Ledger:
    """Return a ledger that has something of everything."""
    ledger = Ledger(make(), BUDGET, dataset="patients", kind=kind)
    if kind == "planned":
        ledger.declare({"a": {GAUSSIAN: 7}, "b": {POISSON: 100}})
        ledger.charge({GAUSSIAN: 5}, run="a")
        return ledger
    ledger.charge({POISSON: 40, GAUSSIAN: 2}, run="a")
    ledger.charge({GAUSSIAN: 1}, run="b 'with' \"quotes\" – ü", purpose="statistics")
    returned = ledger.charge({GAUSSIAN: 3}, run="all returned")
    ledger.refund(returned)
    ledger.charge({POISSON: 2}, run="a", limit=Budget(1.0, 1e-5), adaptive=True)
    token = ledger.lease("search")
    ledger.publish("search", "1a2b", lease=("search", token))
    return ledger


def told(ledger: Ledger) -> dict[str, Any]:
    """Return all that a ledger says of itself, but its place."""
    return {
        "identity": ledger.identity,
        "dataset": ledger.dataset,
        "budget": ledger.budget,
        "kind": ledger.kind,
        "unit": ledger.unit,
        "charges": ledger.charges(),
        "epsilon": ledger.epsilon(),
        "runs": {run: ledger.run_epsilon(run) for run in ledger.runs()},
        "published": ledger.published("search"),
        "declared": ledger.declared("a"),
        "words": ledger.describe(),
    }


def spendable(make: Make) -> bool:
    """Return whether something can be charged at a place."""
    if not make().exists():
        return False
    try:
        with Ledger(make()) as ledger:
            ledger.charge({GAUSSIAN: 1}, run="a")
    except BudgetExceeded:
        return True
    except LedgerError as error:
        assert "moved" in str(error) or "arriving" in str(error)  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("kind", ["adaptive", "planned"])
def test_all_of_it_is_moved_and_the_old_place_is_closed(
    places: tuple[Make, Make], kind: str
) -> None:
    old, new = places
    open_elsewhere = fill(old, kind)
    before = told(open_elsewhere)
    assert open_elsewhere.closed is None
    move(old(), new())
    with Ledger(new()) as ledger:
        assert told(ledger) == before
        assert ledger.closed is None
        ledger.charge({GAUSSIAN: 1}, run="a")
    for refused in (open_elsewhere, Ledger(old())):
        assert told(refused) == before
        assert "was moved to" in str(refused.closed)
        for act in (
            lambda refused=refused: refused.charge({GAUSSIAN: 1}, run="a"),
            lambda refused=refused: refused.lease("search"),
            lambda refused=refused: refused.publish("other", "1"),
        ):
            with pytest.raises(LedgerError, match="was moved to"):
                act()


def test_again_it_is_done_and_elsewhere_it_is_refused(
    places: tuple[Make, Make], tmp_path: Path
) -> None:
    old, new = places
    fill(old)
    move(old(), new())
    held = new()
    held.open(None)
    before = held.holdings()
    move(old(), new())
    assert held.holdings() == before
    with pytest.raises(LedgerError, match="was moved to"):
        move(old(), SQLiteStorage(tmp_path / "third.ledger"))
    assert not (tmp_path / "third.ledger").exists()
    with pytest.raises(LedgerError, match="Expected no ledger at"):
        move(new(), old())
    assert spendable(new)


def test_back_again_with_another_name(places: tuple[Make, Make], tmp_path: Path) -> None:
    old, new = places
    before = told(fill(old))
    back = SQLiteStorage(tmp_path / "back.ledger")
    move(old(), new())
    move(new(), back)
    with Ledger(tmp_path / "back.ledger") as ledger:
        assert told(ledger) == before
        ledger.charge({GAUSSIAN: 1}, run="a")
    assert not spendable(old)
    assert not spendable(new)


def test_what_is_not_there_damaged_or_taken_is_refused(places: tuple[Make, Make]) -> None:
    old, new = places
    with pytest.raises(LedgerError):
        move(old(), new())
    assert not new().exists()
    fill(old)
    Ledger(new(), Budget(1.0, 1e-5), dataset="others").charge({GAUSSIAN: 1}, run="other")
    with pytest.raises(LedgerError, match="Expected no ledger at"):
        move(old(), new())
    assert spendable(old)
    assert spendable(new)


STEPS = ("receive", "close_for", "admit_charges")


class Stopped(BaseException):
    """What no handler of errors catches by accident."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_stopped_between_any_two_steps_never_both_can_be_charged(
    places: tuple[Make, Make], step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = places
    before = told(fill(old))
    source, target = old(), new()
    stopped = source if step == "close_for" else target
    true = getattr(stopped, step)

    def act(*given: Any) -> None:
        if when == "after":
            true(*given)
        raise Stopped

    monkeypatch.setattr(stopped, step, act)
    with pytest.raises(Stopped):
        move(source, target)
    reached = STEPS.index(step) + (when == "after")
    with Ledger(old()) as ledger:
        assert told(ledger) == before
    assert (spendable(old), spendable(new)) == (reached < 2, reached == 3)
    # charged in between where it could be: the next attempt brings that too
    move(old(), new())
    assert (spendable(old), spendable(new)) == (False, True)
    with Ledger(new()) as ledger:
        assert ledger.identity == before["identity"]
        spent = sum(c.count for c in ledger.charges())
    assert spent - sum(c.count for c in before["charges"]) in (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(6))
def test_killed_at_any_moment_never_both_can_be_charged(
    places: tuple[Make, Make], place: int
) -> None:
    """By a signal, before or after each step, with whatever is half-way on its way to the disk."""
    old, new = places
    before = fill(old).totals()
    child = os.fork()
    if child == 0:
        try:
            limited()
            source, target = old(), new()
            stopped = source if place in (2, 3) else target
            step = STEPS[place // 2]
            true = getattr(stopped, step)

            def act(*given: Any) -> None:
                if place % 2:
                    true(*given)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(stopped, step, act)
            move(source, target)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (spendable(old) and spendable(new))
    move(old(), new())
    assert (spendable(old), spendable(new)) == (False, True)
    assert before <= Ledger(new()).totals()


def test_a_charge_in_the_middle_of_a_move_is_not_lost(
    places: tuple[Make, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = places
    other = fill(old)
    source, target = old(), new()
    true = source.close_for

    def close_for(*given: Any) -> None:
        other.charge({GAUSSIAN: 1}, run="meanwhile")
        true(*given)

    monkeypatch.setattr(source, "close_for", close_for)
    with pytest.raises(LedgerError, match="charged in the meantime"):
        move(source, target)
    assert (spendable(old), spendable(new)) == (True, False)
    move(old(), new())
    assert "meanwhile" in Ledger(new()).runs()


def test_what_has_arrived_is_never_removed(places: tuple[Make, Make]) -> None:
    old, _ = places
    fill(old)
    storage = old()
    storage.open(None)
    with pytest.raises(LedgerError, match="it has arrived"):
        storage.discard()
    with pytest.raises(LedgerError, match="it is not closed"):
        storage.admit_charges(Closure(False, "elsewhere", "0" * 64))
    assert spendable(old)


def test_a_new_place_that_is_gone_is_not_made_again(places: tuple[Make, Make]) -> None:
    """It may have been charged before it was lost."""
    old, new = places
    fill(old)
    move(old(), new())
    made = new()
    if isinstance(made, SQLiteStorage):
        assert made.path is not None
        made.path.unlink()
    else:
        name = shared_server().sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'privada%'")
        schema = f"privada_{made.dataset}"
        assert (schema,) in name
        shared_server().sql(f'DROP SCHEMA "{schema}" CASCADE')
    with pytest.raises(LedgerError, match="where there is none now"):
        move(old(), new())
    assert not spendable(old)


def test_a_checkpoint_goes_on_with_the_new_place(places: tuple[Make, Make], tmp_path: Path) -> None:
    import torch

    old, new = places

    def trainer(storage: MovableStorage, resume: Path | None = None) -> pv.Trainer:
        return pv.Trainer(
            torch.nn.Linear(3, 2),
            torch.nn.CrossEntropyLoss(),
            (torch.ones(60, 3), torch.arange(60) % 2),
            method=pv.methods.DPSGD(lr=0.1),
            batch_size=6,
            steps=10,
            noise_multiplier=4.0,
            ledger=Ledger(storage, BUDGET),
            resume=resume,
        )

    first = trainer(old())
    for _ in range(4):
        first.step()
    first.save(tmp_path / "run.pt")
    move(old(), new())
    with pytest.raises(LedgerError, match="was moved to"):
        first.fit()
    second = trainer(new(), tmp_path / "run.pt").fit()
    assert second.steps_done == 10
    assert sum(second.ledger.totals().values()) == 10


@pytest.mark.parametrize("odd", ["a\nb.ledger", "caf\udce9.ledger"])
def test_a_path_that_the_other_place_cannot_keep_is_refused(tmp_path: Path, odd: str) -> None:
    """Half moved, it could neither be charged nor be moved to its end."""
    there, plain = tmp_path / odd, tmp_path / "plain.ledger"
    for old, new in ((there, plain), (plain, there)):
        Ledger(old, BUDGET).close()
        with pytest.raises(LedgerError, match="Rename it"):
            move(SQLiteStorage(old), SQLiteStorage(new))
        assert not new.exists()
        assert spendable(lambda place=old: SQLiteStorage(place))
        old.unlink()


def test_in_memory_nothing_is_moved(tmp_path: Path) -> None:
    memory = SQLiteStorage(None)
    with pytest.raises(LedgerError, match="in memory"):
        move(memory, SQLiteStorage(tmp_path / "new.ledger"))
    old = SQLiteStorage(tmp_path / "old.ledger")
    Ledger(tmp_path / "old.ledger", BUDGET).close()
    with pytest.raises(LedgerError, match="in memory"):
        move(old, SQLiteStorage(None))
    assert spendable(lambda: SQLiteStorage(tmp_path / "old.ledger"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", EARLIER.values(), ids=EARLIER)
def test_a_file_of_an_earlier_version_is_moved_as_it_is(
    tmp_path: Path, make: Callable[..., None], kind: str
) -> None:
    path, new = tmp_path / "old.ledger", make_place(kind, tmp_path, "new.ledger")
    make(path, epsilon=3.0)
    before = told(Ledger(path))
    move(SQLiteStorage(path), new())
    with Ledger(new()) as ledger:
        assert told(ledger) == before
    assert told(Ledger(path)) == before
    assert not spendable(lambda: SQLiteStorage(path))
    with contextlib.closing(sqlite3.connect(path)) as connection:  # which earlier ones refuse
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)


def test_a_closed_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    """Whichever bits flip, it is not open again."""
    path = tmp_path / "old.ledger"
    Ledger(path, BUDGET).close()
    move(SQLiteStorage(path), SQLiteStorage(tmp_path / "new.ledger"))
    for statement in (
        "PRAGMA user_version = 3",
        "DELETE FROM meta WHERE key = 'state'",
        "UPDATE meta SET value = '' WHERE key = 'state'",
        "DELETE FROM meta WHERE key = 'sealed and closed'",
        "UPDATE meta SET key = 'sealed with its kind' WHERE key = 'sealed and closed'",
        "PRAGMA user_version = 3; UPDATE meta SET key = 'sealed with its kind' "
        "WHERE key = 'sealed and closed'; DELETE FROM meta WHERE key = 'state'",
    ):
        copy = tmp_path / "copy.ledger"
        copy.write_bytes(path.read_bytes())
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.executescript(statement)
        with pytest.raises(LedgerError):
            Ledger(copy).charge({GAUSSIAN: 1}, run="a")
