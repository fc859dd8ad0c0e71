"""A ledger in PostgreSQL: roles, settings of servers, damage, names, passwords and old backups."""

import os
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import privada as pv
from privada.accounting import Budget, Ledger, PostgresStorage, events
from privada.accounting.ledger import exists, grants, in_words, storage_at
from privada.accounting.ledger.postgres import connections, journal, tables
from privada.core.errors import ArgumentError, LedgerError
from tests.forks import PATIENCE
from tests.postgres_server import ADMIN, Server, make_server, shared_server

GAUSSIAN, OTHER = events.gaussian(20.0), events.poisson(0.01, 4.0)
BUDGET = Budget(2.0, 1e-5)


@pytest.fixture
def server() -> Server:
    return shared_server()


@pytest.fixture
def url(server: Server) -> str:
    return server.new()


def schema_of(url: str) -> str:
    return tables.quoted(PostgresStorage(url)._url.schema)


def charged(url: str) -> int:
    with Ledger(url) as ledger:
        return sum(charge.count for charge in ledger.charges())


# ---------------------------------------------------------------------- roles


def role_with(server: Server, url: str, name: str, **given: bool) -> str:
    """Return the URL of the same ledger for a role that has what is printed for it."""
    server.role(name)
    server.sql(*grants(url, name, **given).splitlines()[1:])
    return url.replace(f"{ADMIN}@", f"{name}@")


def test_a_job_may_charge_and_return_what_it_charged(server: Server, url: str) -> None:
    Ledger(url, BUDGET).charge({GAUSSIAN: 4}, run="a")
    job = Ledger(role_with(server, url, "trainer"))
    reservation = job.charge({GAUSSIAN: 3, OTHER: 2}, run="a")
    reservation.use(GAUSSIAN)
    job.refund(reservation)
    token = job.lease("search")
    job.publish("search", "1", lease=("search", token))
    assert job.totals() == {GAUSSIAN: 5}
    assert charged(url) == 5


NOT_ALLOWED = (
    "DELETE FROM {}.journal",
    "UPDATE {}.journal SET change = 0",
    "TRUNCATE {}.journal",
    "DROP TABLE {}.journal",
    "DROP SCHEMA {} CASCADE",
    "UPDATE {}.head SET number = 0",
    "DELETE FROM {}.head",
    "INSERT INTO {}.head VALUES (false, 0, '', '', '')",
    "UPDATE {}.facts SET value = '100' WHERE key = 'epsilon'",
    "INSERT INTO {}.facts VALUES ('a', 'b')",
    "ALTER TABLE {}.journal DISABLE TRIGGER ALL",
    "ALTER TABLE {}.journal ADD COLUMN x int",
    "DROP TRIGGER append ON {}.journal",
    "CREATE OR REPLACE FUNCTION {}.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
    "SELECT {}.digest('a')",
    "CREATE TABLE {}.mine (x int)",
    "SET session_replication_role = replica",
)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("statement", NOT_ALLOWED)
def test_a_job_or_an_auditor_may_neither_delete_nor_change(
    server: Server, url: str, statement: str, read_only: bool
) -> None:
    import psycopg

    Ledger(url, BUDGET).charge({GAUSSIAN: 4}, run="a")
    role_with(server, url, "auditor" if read_only else "trainer", read_only=read_only)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        server.sql(statement.format(schema_of(url)), user="auditor" if read_only else "trainer")
    assert charged(url) == 4


def test_an_auditor_may_read_and_not_charge(server: Server, url: str) -> None:
    Ledger(url, BUDGET).charge({GAUSSIAN: 4}, run="a")
    auditor = Ledger(role_with(server, url, "auditor", read_only=True))
    assert (auditor.totals(), auditor.budget) == ({GAUSSIAN: 4}, BUDGET)
    with pytest.raises(LedgerError, match="privada ledger grant"):
        auditor.charge({GAUSSIAN: 1}, run="a")
    assert charged(url) == 4


def test_a_role_without_rights_is_told_how_to_get_them(server: Server, url: str) -> None:
    Ledger(url, BUDGET).close()
    server.role("stranger")
    with pytest.raises(LedgerError, match="privada ledger grant"):
        Ledger(url.replace(f"{ADMIN}@", "stranger@"))
    with pytest.raises(LedgerError, match="Cannot create"):
        Ledger(server.new(user="stranger"), BUDGET)


def insert(server: Server, url: str, user: str, **changed: Any) -> None:
    """Add a row as a client that does as it likes would, rightly sealed unless it is changed."""
    storage = PostgresStorage(url)
    storage.open(None)
    contents = storage._contents
    assert contents is not None
    given = {
        "act": "charge", "run": "a", "purpose": "training", "event": events.encode(GAUSSIAN),
        "change": 1, "at": "now", "role": user, "token": "0",
    }  # fmt: skip
    seal = changed.pop("seal", None)
    number = changed.pop("number", contents.number + 1)
    after = changed.pop("after", contents.seal)
    row = journal.Row.after(number - 1, after, **given | changed)
    names = (*tables.COLUMNS, "seal")
    values = [str(getattr(row, name)) for name in names[:-1]] + [seal or row.seal]
    listed = ", ".join(tables.literal(each) for each in values)
    server.sql(
        f"INSERT INTO {schema_of(url)}.journal ({', '.join(names)}) VALUES ({listed})", user=user
    )


def test_a_job_that_writes_sql_itself_cannot_return_what_others_charged(
    server: Server, url: str
) -> None:
    import psycopg

    Ledger(url, BUDGET).charge({GAUSSIAN: 4}, run="a")
    job = role_with(server, url, "trainer")
    Ledger(job).charge({GAUSSIAN: 2}, run="a")
    for change in (-3, -7):
        with pytest.raises(psycopg.Error, match="returns more"):
            insert(server, url, "trainer", change=change)
    for wrong in (
        {"role": ADMIN},
        {"seal": "0" * 64},
        {"after": "0" * 64},
        {"number": 1},
        {"number": 100},
    ):
        with pytest.raises(psycopg.Error, match="does not continue"):
            insert(server, url, "trainer", **wrong)
    for act in ("state", "origin"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            insert(server, url, "trainer", act=act, value="")
    with pytest.raises(psycopg.Error):
        insert(server, url, "trainer", act="delete")
    assert charged(url) == 6
    insert(server, url, "trainer", change=-2)  # as it may
    assert charged(url) == 4


@pytest.mark.parametrize("role", ["public", "none", "é" * 32, "", "a\nb"])
def test_rights_go_to_one_role_that_the_server_knows_by_that_name(role: str) -> None:
    """`GRANT ... TO "public"` is for everybody, and a name that is too long is cut."""
    with pytest.raises(ArgumentError, match="role"):
        grants("postgresql://db/x?ledger=a", role)


def test_rights_are_printed_for_any_name() -> None:
    sql = grants("postgres://db/my%22base?ledger=it%22s", 'o"brien')
    assert 'GRANT INSERT ON "privada_it""s"."journal" TO "o""brien";' in sql
    assert 'ON DATABASE "my""base"' in sql
    with pytest.raises(ArgumentError, match="URL"):
        grants("patients.ledger", "a")
    with pytest.raises(ArgumentError, match="role"):
        grants("postgresql://db/x", "a\nb")


# ---------------------------------------------------------------------- settings


def as_role(server: Server, url: str, name: str, **settings: str) -> str:
    """Return the URL for a role that has settings of its own, and owns nothing."""
    made = role_with(server, url, name)
    for setting, value in settings.items():
        server.sql(f"ALTER ROLE {name} SET {setting} = '{value}'")
    return made


def test_a_commit_waits_for_the_disk_whatever_a_role_has_set(server: Server, url: str) -> None:
    Ledger(url, BUDGET).close()
    job = Ledger(as_role(server, url, "hasty", synchronous_commit="off"))
    with job._storage.writing("charge") as transaction:
        transaction.add("a", "training", {GAUSSIAN: 1})
        connection = job._storage._session.connected()
        shown = connection.execute("SHOW synchronous_commit").fetchone()
        assert shown == ("on",)
    assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)


def test_time_limits_of_a_role_do_not_end_a_charge(server: Server, url: str) -> None:
    import time

    Ledger(url, BUDGET).close()
    job = Ledger(
        as_role(
            server,
            url,
            "hurried",
            statement_timeout="100ms",
            lock_timeout="1ms",
            idle_in_transaction_session_timeout="50ms",
            default_transaction_isolation="serializable",
        )
    )
    other = Ledger(url)
    with job._storage.writing("charge") as transaction:
        transaction.add("a", "training", {GAUSSIAN: 1})
        time.sleep(0.3)  # as long as a price may take to work out
    import threading

    inside = threading.Event()

    def hold() -> None:
        with other._storage.writing("charge"):
            inside.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(PATIENCE)
    job.charge({GAUSSIAN: 1}, run="a")
    thread.join(PATIENCE)
    assert charged(url) == 2


def test_a_lock_that_is_held_for_long_is_an_error(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections._LOCAL, "lock_timeout", "100ms")
    first, second = Ledger(url, BUDGET), Ledger(url)
    with (
        first._storage.writing("charge"),
        pytest.raises(LedgerError, match="Another process holds it"),
    ):
        second.charge({GAUSSIAN: 1}, run="a")
    second.charge({GAUSSIAN: 1}, run="a")
    assert charged(url) == 1


def test_without_the_lock_the_server_still_takes_one_of_two(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen the same charges: what the second has worked out does not hold any more."""
    Ledger(url, BUDGET).charge({GAUSSIAN: 1}, run="a")
    first, second = Ledger(url), Ledger(url)
    monkeypatch.setattr(tables, "lock", lambda _: "")

    def both() -> None:
        with second._storage.writing("charge") as transaction:
            first.charge({GAUSSIAN: 2}, run="a")
            transaction.add("b", "training", {GAUSSIAN: 4})

    with pytest.raises(LedgerError, match="does not continue what the ledger holds"):
        both()
    second.charge({GAUSSIAN: 8}, run="b")
    assert charged(url) == 11 == sum(first.totals().values())


def test_an_interrupt_after_the_commit_is_counted_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privada.accounting.ledger.postgres.journal import Contents

    ledger, add = Ledger(url, BUDGET), Contents.add

    def interrupted(self: Contents, row: journal.Row) -> None:
        add(self, row)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Contents, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.charge({GAUSSIAN: 3}, run="a")
    assert sum(ledger.totals().values()) == 3 == charged(url)
    ledger.charge({GAUSSIAN: 1}, run="a")
    assert charged(url) == 4


def test_two_interrupts_leave_nothing_of_a_charge_behind(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes before the first has ended the transaction, in which rows were written."""
    ledger = Ledger(url, BUDGET)
    session = ledger._storage._session
    with monkeypatch.context() as interrupted:
        interrupted.setattr(session, "commit", _interrupt)
        interrupted.setattr(session, "end", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            ledger.charge({GAUSSIAN: 3}, run="a")
    assert ledger.totals() == {}
    ledger.charge({OTHER: 1}, run="b")
    assert ledger.totals() == {OTHER: 1}
    assert charged(url) == 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_where_transactions_may_only_read_nothing_is_charged(server: Server, url: str) -> None:
    Ledger(url, BUDGET).charge({GAUSSIAN: 1}, run="a")
    job = Ledger(as_role(server, url, "reader", default_transaction_read_only="on"))
    with pytest.raises(LedgerError, match="default_transaction_read_only"):
        job.charge({GAUSSIAN: 1}, run="a")
    assert sum(job.totals().values()) == 1


def test_nothing_is_prepared_or_set_for_a_session(server: Server, url: str) -> None:
    """As with a pool that gives each transaction another session."""
    ledger = Ledger(url, BUDGET)
    for _ in range(12):
        ledger.charge({GAUSSIAN: 1}, run="a")
    connection = ledger._storage._session.connected()
    prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert prepared == (0,)
    connection.execute("DISCARD ALL")
    ledger.charge({GAUSSIAN: 1}, run="a")
    locks = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    assert locks.fetchone() == (0,)


def test_a_clock_that_goes_back_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(url, BUDGET)
    for at in ("2030-01-01T00:00:00+00:00", "1970-01-01T00:00:00+00:00"):
        monkeypatch.setattr(journal, "now", lambda at=at: at)
        ledger.charge({GAUSSIAN: 2}, run="a")
    assert charged(url) == 4 == sum(ledger.totals().values())


# ---------------------------------------------------------------------- damage


def by_hand(server: Server, url: str, *statements: str) -> None:
    """Do what an administrator can, past all triggers."""
    schema = schema_of(url)
    server.sql(
        "SET session_replication_role = replica", *(each.format(schema) for each in statements)
    )


DAMAGE = {
    "a count": "UPDATE {0}.journal SET change = 1 WHERE number = 3",
    "a run": "UPDATE {0}.journal SET run = 'b' WHERE number = 3",
    "a date": "UPDATE {0}.journal SET at = '' WHERE number = 3",
    "an event": "UPDATE {0}.journal SET event = 'x' WHERE number = 3",
    "a total": "UPDATE {0}.journal SET total = 100 WHERE number = 3",
    "a key": "UPDATE {0}.journal SET key = '' WHERE number = 3",
    "a total of no charge": "UPDATE {0}.journal SET total = 1 WHERE number = 2",
    "a seal": "UPDATE {0}.journal SET seal = '' WHERE number = 3",
    "a row in the middle": "DELETE FROM {0}.journal WHERE number = 3",
    "the last row": "DELETE FROM {0}.journal WHERE number = (SELECT max(number) FROM {0}.journal)",
    "all rows": "DELETE FROM {0}.journal",
    "the first rows": "DELETE FROM {0}.journal WHERE number < 4",
    "the budget": "UPDATE {0}.facts SET value = '100.0' WHERE key = 'epsilon'",
    "a fact": "DELETE FROM {0}.facts WHERE key = 'kind'",
    "all facts": "DELETE FROM {0}.facts",
    "the head": "UPDATE {0}.head SET number = number - 1",
    "the head's seal": "UPDATE {0}.head SET seal = (SELECT seal FROM {0}.journal WHERE number = 3)",
    "no head": "DELETE FROM {0}.head",
    "the state": "UPDATE {0}.head SET state = 'moved'",
    "the origin": "UPDATE {0}.head SET origin = ''",
    "two rows exchanged": "UPDATE {0}.journal SET number = 100 WHERE number = 3; "
    "UPDATE {0}.journal SET number = 3 WHERE number = 4; "
    "UPDATE {0}.journal SET number = 4 WHERE number = 100",
    "a table": "DROP TABLE {0}.journal",
    "the facts' table": "DROP TABLE {0}.facts",
    "the head's table": "DROP TABLE {0}.head",
    "all tables": "DROP TABLE {0}.journal, {0}.facts, {0}.head",
    "a column": "ALTER TABLE {0}.journal DROP COLUMN total",
    "another column": "ALTER TABLE {0}.journal ADD COLUMN x int",
    "a column's type": "ALTER TABLE {0}.journal ALTER COLUMN change TYPE numeric",
    "another table": "CREATE TABLE {0}.x ()",
    "a trigger": "DROP TRIGGER append ON {0}.journal",
    "a trigger that is off": "ALTER TABLE {0}.journal DISABLE TRIGGER append",
    "a rule": "CREATE RULE r AS ON INSERT TO {0}.journal DO INSTEAD NOTHING",
    "a function": "CREATE OR REPLACE FUNCTION {0}.keep() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN RETURN NEW; END'",
    "rows that are hidden": "ALTER TABLE {0}.journal ENABLE ROW LEVEL SECURITY",
    "a table without a log": "ALTER TABLE {0}.journal SET UNLOGGED",
    "another format": "UPDATE {0}.facts SET value = '99' WHERE key = 'format'",
}


def damaged_ledger(url: str) -> Ledger:
    ledger = Ledger(url, BUDGET)
    ledger.charge({GAUSSIAN: 4}, run="a")
    ledger.charge({OTHER: 3}, run="a")
    ledger.publish("search", "1")
    return ledger


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_refused_when_it_is_opened(server: Server, url: str, what: str) -> None:
    damaged_ledger(url).close()
    by_hand(server, url, DAMAGE[what])
    for act in (lambda: Ledger(url), lambda: Ledger(url, BUDGET), lambda: storage_at(url).open({})):
        with pytest.raises(LedgerError, match=r"Cannot (open|use) the ledger"):
            act()


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_while_it_is_open_is_never_fewer_charges(
    server: Server, url: str, what: str
) -> None:
    """What this process knows of, it goes on counting, or refuses to go on."""
    ledger = damaged_ledger(url)
    before = ledger.totals()
    by_hand(server, url, DAMAGE[what])
    for act in (lambda: ledger.charge({GAUSSIAN: 1}, run="a"), ledger.totals):
        try:
            act()
        except LedgerError:
            continue
        assert before <= ledger._charged.totals


def test_an_administrator_who_forgets_is_stopped_by_the_triggers(server: Server, url: str) -> None:
    import psycopg

    damaged_ledger(url)
    for statement in (
        "UPDATE {}.journal SET change = 0",
        "DELETE FROM {}.journal",
        "TRUNCATE {}.journal",
        "UPDATE {}.facts SET value = '9'",
        "TRUNCATE {}.facts",
        "UPDATE {}.head SET number = 0",
        "DELETE FROM {}.head",
    ):
        with pytest.raises(psycopg.Error, match="a ledger only grows"):
            server.sql(statement.format(schema_of(url)))
    assert charged(url) == 7


def test_a_ledger_that_was_made_anew_is_another(server: Server, url: str) -> None:
    ledger = damaged_ledger(url)
    sent = pickle.dumps(ledger)
    server.sql(f"DROP SCHEMA {schema_of(url)} CASCADE")
    with pytest.raises(LedgerError):
        ledger.charge({GAUSSIAN: 1}, run="a")
    other = Ledger(url, BUDGET)
    for _ in range(6):
        for act in (
            lambda: ledger.charge({GAUSSIAN: 1}, run="a"),
            ledger.totals,
            lambda: pickle.loads(sent),
        ):
            with pytest.raises(LedgerError):
                act()
        other.charge({GAUSSIAN: 1}, run="a")
    assert charged(url) == 6


def test_a_schema_of_something_else_is_no_ledger(server: Server, url: str) -> None:
    schema = schema_of(url)
    server.sql(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.mine (x int)")
    with pytest.raises(LedgerError, match="holds other things"):
        Ledger(url, BUDGET)
    server.sql(f"DROP TABLE {schema}.mine")  # one that is empty may have been made for it
    Ledger(url, BUDGET).charge({GAUSSIAN: 1}, run="a")
    assert charged(url) == 1


# ---------------------------------------------------------------------- restored and copied


def dump(server: Server, url: str) -> str:
    program = server._binaries / "pg_dump"
    return subprocess.run(
        [program, "-h", server.folder, "-p", str(server.port), "-U", ADMIN, "-n", schema_of(url),
         "postgres"],
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    ).stdout  # fmt: skip


def restore(server: Server, text: str, database: str) -> None:
    subprocess.run(
        ["psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", server.folder, "-p", str(server.port), "-U",
         ADMIN, database],
        input=text, text=True, check=True, timeout=PATIENCE, capture_output=True,
    )  # fmt: skip


def refused_until_accepted(url: str, opened: Ledger | None = None) -> None:
    """Check that a ledger is read and not charged until its owner accepts it."""
    held = charged(url)
    for ledger in (Ledger(url), *([] if opened is None else [opened])):
        with pytest.raises(LedgerError, match="restored from a backup, copied, or taken over"):
            ledger.charge({GAUSSIAN: 1}, run="a")
    assert charged(url) == held
    assert pv.workflows.accept_ledger(url)
    assert not pv.workflows.accept_ledger(url)
    Ledger(url).charge({GAUSSIAN: 1}, run="a")
    assert charged(url) == held + 1


def test_a_backup_that_is_restored_over_it_is_noticed(server: Server, url: str) -> None:
    ledger = damaged_ledger(url)
    text = dump(server, url)
    ledger.charge({GAUSSIAN: 5}, run="a")
    server.sql(f"DROP SCHEMA {schema_of(url)} CASCADE")
    restore(server, text, "postgres")
    with pytest.raises(LedgerError, match="lost rows"):
        ledger.totals()
    assert charged(url) == 7
    refused_until_accepted(url)


@pytest.mark.parametrize("how", ["dumped", "template"])
def test_a_copy_of_the_database_is_noticed(server: Server, url: str, how: str) -> None:
    import psycopg

    with damaged_ledger(url):
        pass
    name = f"copy_{os.getpid()}_{how}"
    if how == "dumped":
        server.sql(f"CREATE DATABASE {name}")
        restore(server, dump(server, url), name)
    else:
        server.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres' "
            "AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(
            host=str(server.folder), port=server.port, user=ADMIN, dbname="template1",
            autocommit=True,
        ) as connection:  # fmt: skip
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'"
            )
            connection.execute(f"CREATE DATABASE {name} TEMPLATE postgres")
    refused_until_accepted(url.replace("/postgres?", f"/{name}?"))
    Ledger(url).charge({GAUSSIAN: 1}, run="a")  # the first one goes on


@pytest.fixture
def standby(server: Server) -> Iterator[Server]:
    """A server that follows the first one."""
    made = make_server()
    made.stop()
    subprocess.run(["rm", "-rf", str(made.data)], check=True)
    made._run(
        "pg_basebackup", "-h", server.folder, "-p", server.port, "-U", ADMIN, "-D", made.data,
        "-R", "--no-sync", "-c", "fast",
    )  # fmt: skip
    made.start()
    yield made
    made.remove()


def test_a_standby_is_read_and_charged_once_it_took_over_and_was_accepted(
    server: Server, standby: Server, url: str
) -> None:
    damaged_ledger(url).close()
    behind = url.replace(f":{server.port}/", f":{standby.port}/")
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            assert charged(behind) == 7
            break
        except (LedgerError, AssertionError):
            time.sleep(0.1)
    ledger = Ledger(behind)
    with pytest.raises(LedgerError, match="is a standby"):
        ledger.charge({GAUSSIAN: 1}, run="a")
    with pytest.raises(LedgerError):
        Ledger(behind.replace("ledger=", "ledger=new"), BUDGET)
    standby.sql("SELECT pg_promote()")
    refused_until_accepted(behind, ledger)


def test_a_physical_backup_is_noticed_if_the_server_recovers_from_it(
    server: Server, url: str
) -> None:
    """And not if it is started as it is: then it is the same server as far as it can tell."""
    damaged_ledger(url).close()
    made = make_server()
    made.stop()
    subprocess.run(["rm", "-rf", str(made.data)], check=True)
    made._run(
        "pg_basebackup", "-h", server.folder, "-p", server.port, "-U", ADMIN, "-D", made.data,
        "--no-sync", "-c", "fast",
    )  # fmt: skip
    restored = url.replace(f":{server.port}/", f":{made.port}/")
    made.start()
    Ledger(restored).charge({GAUSSIAN: 1}, run="a")  # which docs/team_ledger.md warns of
    made.stop()
    (made.data / "recovery.signal").touch()
    made.start(restore_command="false")
    until = time.monotonic() + PATIENCE
    while made.sql("SELECT pg_is_in_recovery()") == [(True,)] and time.monotonic() < until:
        time.sleep(0.1)
    refused_until_accepted(restored)
    made.remove()


# ---------------------------------------------------------------------- servers


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    made = make_server()
    yield made
    made.remove()


def test_a_server_that_may_forget_is_read_and_not_charged(own_server: Server) -> None:
    url = own_server.new()
    Ledger(url, BUDGET).charge({GAUSSIAN: 1}, run="a")
    own_server.stop()
    own_server.start(fsync="off")
    ledger = Ledger(url)
    assert sum(ledger.totals().values()) == 1
    with pytest.raises(LedgerError, match="fsync = off"):
        ledger.charge({GAUSSIAN: 1}, run="a")
    own_server.stop()
    own_server.start(full_page_writes="off")
    with pytest.warns(UserWarning, match="full_page_writes = off"):
        ledger.charge({GAUSSIAN: 1}, run="a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.charge({GAUSSIAN: 1}, run="a")
    own_server.stop()
    own_server.start()
    assert charged(url) == 3


def test_what_is_not_there_is_an_error_in_words(server: Server, url: str) -> None:
    from tests.postgres_server import free_port

    Ledger(url, BUDGET).close()
    cases = {
        url.replace(f":{server.port}/", f":{free_port()}/"): "Check that the server runs",
        url.replace("127.0.0.1", "no-such-host.invalid"): "name of the host",
        url.replace("/postgres?", "/nothing?"): "createdb|Make the database",
        url.replace(f"{ADMIN}@", "nobody_at_all@"): "Make the database or the role",
        f"{url}&sslmode=require": "sslmode",
    }
    for wrong, words in cases.items():
        with pytest.raises(LedgerError, match=words):
            Ledger(wrong, BUDGET)
    with pytest.raises(LedgerError, match="there is none in that database"):
        storage_at(server.new()).open(None)


def test_a_database_of_another_encoding_is_refused(server: Server) -> None:
    name = f"latin_{os.getpid()}"
    server.sql(
        f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    with pytest.raises(LedgerError, match="LATIN1"):
        Ledger(server.new().replace("/postgres?", f"/{name}?"), BUDGET)


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "two words",
        'o\'brien "q"',
        "100%",
        "%s {0} {schema}",
        "Münster-日本",
        "a" * 55,
        "A;--",
    ],
)
def test_a_ledger_may_have_any_name_that_fits(server: Server, name: str) -> None:
    from urllib.parse import quote

    url = server.url(quote(name, safe=""))
    server.sql(f"DROP SCHEMA IF EXISTS {schema_of(url)} CASCADE")
    with Ledger(url, BUDGET) as ledger:
        assert ledger.dataset == name
        ledger.charge({GAUSSIAN: 2}, run="a")
        ledger.publish("search", "1")
    assert charged(url) == 2
    role_with(server, url, "trainer")
    assert charged(url.replace(f"{ADMIN}@", "trainer@")) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "printable"), ("a" * 56, "55 bytes"), ("%C3%BC" * 28, "55 bytes"), ("a%00b", "printable"),
     ("%20a", "printable"), ("a$b", "printable"), ("a&ledger=b", "got 2"), ("%FF", "got another")],
)  # fmt: skip
def test_a_name_that_postgresql_would_change_is_refused(name: str, words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        Ledger(f"postgresql://db/x?ledger={name}")


def test_ledgers_of_one_database_are_apart(server: Server) -> None:
    one, other = server.new(), server.new()
    Ledger(one, BUDGET, dataset="a").charge({GAUSSIAN: 1}, run="a")
    Ledger(other, BUDGET, dataset="b").charge({GAUSSIAN: 2}, run="a")
    assert (charged(one), charged(other)) == (1, 2)
    with pytest.raises(LedgerError, match="belongs to 'a'"):
        Ledger(one, dataset="b")


def test_runs_may_have_long_and_odd_names(url: str) -> None:
    names = ["x" * 100_000, "o'brien", 'a"b', "100% {0} %s", "日本", "$privada$", "\\x00"]
    ledger = Ledger(url, BUDGET)
    for name in names:
        ledger.charge({GAUSSIAN: 2}, run=name).use(GAUSSIAN)
        ledger.refund(ledger.charge({GAUSSIAN: 1}, run=name))
        ledger.publish(f"label {name}", "1")
    assert list(Ledger(url).runs()) == names
    assert charged(url) == 2 * len(names)
    with pytest.raises(ArgumentError, match="printable"):
        ledger.charge({GAUSSIAN: 2}, run="a\x00b")


# ---------------------------------------------------------------------- passwords and URLs

SECRET = "s3cret%40word"


@pytest.fixture
def with_password(server: Server, url: str) -> str:
    """Return the URL of a role that needs its password."""
    Ledger(url, BUDGET).close()
    role_with(server, url, "with_password")
    server.sql("ALTER ROLE with_password PASSWORD 's3cret@word'")
    return url.replace(f"{ADMIN}@", f"with_password:{SECRET}@")


def test_a_password_works_and_is_never_shown(
    server: Server, with_password: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ledger = Ledger(with_password)
    ledger.charge({GAUSSIAN: 1}, run="a")
    shown = [repr(ledger), ledger.name, in_words(with_password), repr(ledger._storage._url)]
    shown.append(grants(with_password, "a"))
    wrong = with_password.replace(SECRET, "wr0ngsecret")
    for bad in (
        wrong,
        with_password.replace("/postgres?", "/nothing?"),
        with_password + "&no_such=1",
        with_password.replace(str(server.port), "x"),
        with_password.replace("127.0.0.1", "[127"),
        "postgresql://a:s3cret%zz@db/x",
        f"postgresql:///postgres?password={SECRET}&host=127.0.0.1&port=1",
    ):
        with pytest.raises(LedgerError) as error:
            Ledger(bad)
        shown.append(str(error.value))
        assert error.value.__cause__ is None
    assert all("s3cret" not in each and "wr0ng" not in each for each in shown), shown
    bare = with_password.replace(f":{SECRET}", "")
    with pytest.raises(LedgerError, match="PGPASSWORD"):
        Ledger(bare)
    monkeypatch.setenv("PGPASSWORD", "s3cret@word")
    assert charged(bare) == 1
    monkeypatch.delenv("PGPASSWORD")
    kept = tmp_path / "pass"
    kept.write_text("*:*:*:with_password:s3cret@word\n")
    kept.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(kept))
    assert charged(bare) == 1


def test_a_password_is_in_nothing_that_a_run_writes(
    with_password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(600)]
    Path("patients.csv").write_text("age,sick\n" + "\n".join(rows))
    options = pv.workflows.TrainOptions(
        epsilon=1.0, delta=1e-5, target="sick", classes=("no", "yes"), epochs=1,
        ledger=with_password,
    )  # fmt: skip
    trained = pv.workflows.train_table("patients.csv", options, "out")
    assert trained.statement.ledger == in_words(with_password)
    again = pv.workflows.TrainOptions(
        epsilon=2.0, delta=1e-5, target="sick", classes=("no", "yes"), epochs=1,
        ledger=with_password,
    )  # fmt: skip
    with pytest.raises(pv.PrivadaError) as error:
        pv.workflows.train_table("patients.csv", again, "more")
    assert "s3cret" not in str(error.value)
    page = pv.workflows.write_report(["out"], "page.html", ledger=with_password)
    written = [page, *(each for each in Path("out").rglob("*") if each.is_file())]
    assert len(written) > 5
    for each in written:
        assert b"s3cret" not in each.read_bytes(), each
    found = pv.workflows.ledger_contents(with_password)
    assert {each["purpose"] for each in found["charges"]} >= {"training"}
    assert not (tmp_path / "out" / "ledger").exists()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("postgres://db/x", "postgresql://db/x"),
        ("postgresql://a:b@db:5433/x?ledger=l", "postgresql://db:5433/x?ledger=l"),
        ("postgresql://a:b?c@db/x?sslmode=require&ledger=l", "postgresql://db/x?ledger=l"),
        ("postgresql:///x?host=/run/pg&ledger=l", "postgresql://%2Frun%2Fpg/x?ledger=l"),
        ("postgresql://[::1]:5432/x", "postgresql://[::1]:5432/x"),
        ("postgresql://a,b:5433/x", "postgresql://a,b:5433/x"),
        ("postgresql://", "postgresql:///"),
        ("postgresql:///?ledger=two%20words", "postgresql:///?ledger=two words"),
    ],
)
def test_a_url_is_shown_by_its_place_alone(given: str, name: str) -> None:
    assert PostgresStorage(given).name == name


@pytest.mark.parametrize(
    "given",
    [
        Path("postgresql://ana:s3cret@db/x"),
        Path("POSTGRES://ana:s3cret@db/x"),
        "POSTGRESQL://ana:s3cret@db/x",
        "postgresql+psycopg://ana:s3cret@db/x?ledger=a",
        "postgresql:/ana:s3cret@db/x",
        " postgresql://ana:s3cret@db/x",
        "psql://ana:s3cret@db/x",
        "mysql://ana:s3cret@db/x",
    ],
)
def test_what_is_almost_a_url_is_refused_and_not_shown(given: str | Path) -> None:
    """As if it were a path, it would be in errors, and a file of that name might be made."""
    for use in (
        Ledger,
        exists,
        in_words,
        pv.workflows.ledger_contents,
        lambda url: grants(url, "x"),
    ):
        with pytest.raises(LedgerError, match="postgresql://") as refused:
            use(given)
        assert "s3cret" not in str(refused.value)


def test_paths_that_are_not_like_urls_stay_paths(tmp_path: Path) -> None:
    for name in ("postgres.ledger", "a:b.ledger", "C:\\a.ledger"):
        Ledger(tmp_path / name).close()
        assert (tmp_path / name).exists()
    assert in_words("C:/ledgers/a.ledger") == "C:/ledgers/a.ledger"


def test_without_psycopg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError, match=r"pip install 'privada\[postgres\]'"):
        Ledger("postgresql://db/x")


def test_psycopg_is_loaded_for_a_url_alone() -> None:
    program = "import sys, privada as pv; pv.Ledger(None); print('psycopg' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout == "False\n", told.stderr


# ---------------------------------------------------------------------- whoever takes a path


def make_trainer(**given: Any) -> pv.Trainer:
    return pv.Trainer(
        torch.nn.Linear(3, 2),
        torch.nn.CrossEntropyLoss(),
        (torch.ones(60, 3), torch.arange(60) % 2),
        method=pv.methods.DPSGD(lr=0.1),
        batch_size=6,
        steps=10,
        **given,
    )


def test_a_trainer_takes_a_url(url: str) -> None:
    trainer = make_trainer(ledger=url, budget=BUDGET).fit()
    assert trainer.ledger.kind == "planned"
    assert charged(url) == 10
    assert trainer.statement().ledger == in_words(url)
    with pytest.raises(pv.PrivadaError, match="declared"):
        make_trainer(ledger=url, budget=BUDGET)


def test_an_estimator_takes_a_url(url: str) -> None:
    x, y = torch.rand(200, 3).numpy(), (torch.arange(200) % 2).numpy()
    Ledger(url, Budget(4.0, 1e-5)).close()
    estimator = pv.PrivateClassifier(
        epsilon=1.0, delta=1e-5, classes=[0, 1], ledger=url, epochs=1, preprocessing="public"
    )
    estimator.fit(x, y)
    held = charged(url)
    estimator.fit(x, y)
    assert charged(url) == 2 * held > 0
    scaler = pv.PrivateScaler(epsilon=0.1, ledger=url)
    scaler.fit(x)
    assert charged(url) > 2 * held


def test_a_search_on_it_keeps_its_notes_beside_the_state(url: str, tmp_path: Path) -> None:
    from privada.selection.search_loop import StartedRuns

    kept: list[StartedRuns] = []
    create = StartedRuns.create

    def noting(self: StartedRuns) -> None:
        kept.append(self)
        create(self)
        assert self.path is not None
        assert self.path.exists()

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 3, generator=generator)

    def recipe(lr: float) -> pv.selection.Candidate:
        return pv.selection.Candidate(
            model=torch.nn.Linear(3, 2),
            loss=torch.nn.CrossEntropyLoss(),
            method=pv.methods.DPSGD(lr=lr),
            batch_size=20,
            steps=5,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StartedRuns, "create", noting)
        found = pv.selection.select(
            recipe, (x, (x.sum(dim=1) > 0).long()), space={"lr": [0.1, 1.0]}, how="compose-pld",
            budget=Budget(2.0, 1e-4), ledger=url, state=tmp_path / "search.state",
        )  # fmt: skip
    assert len(found.tried) == 2
    assert [each.path.parent for each in kept if each.path] == [tmp_path]
    assert [each.name for each in tmp_path.iterdir()] == ["search.state"]
    with Ledger(url) as ledger:
        assert [(charge.purpose, charge.count) for charge in ledger.charges()] == [("tuning", 1)]


def test_a_run_that_charges_nothing_leaves_no_ledger(url: str, tmp_path: Path) -> None:
    rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(600)]
    (tmp_path / "patients.csv").write_text("age,sick\n" + "\n".join(rows))
    options = pv.workflows.TrainOptions(
        epsilon=1.0, target="sick", classes=("no", "yes"), ledger=url, batch_size=1e9
    )
    with pytest.raises(pv.PrivadaError):
        pv.workflows.train_table(tmp_path / "patients.csv", options, tmp_path / "out")
    assert not storage_at(url).exists()
    assert not (tmp_path / "out").exists()
