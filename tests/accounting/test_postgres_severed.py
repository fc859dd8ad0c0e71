"""Connections to PostgreSQL that break in the middle of a charge: made or not, never twice."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from privada.accounting import Budget, Ledger, Reservation, events
from privada.accounting.ledger import exists
from privada.accounting.ledger.postgres import connections
from privada.core.errors import LedgerError
from tests.forks import PATIENCE
from tests.postgres_server import Server, make_server, shared_server
from tests.severing_proxy import Cut, Proxy

pytestmark = pytest.mark.slow
GAUSSIAN = events.gaussian(200.0)
BUDGET = Budget(100.0, 1e-5)


@pytest.fixture
def server() -> Server:
    return shared_server()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


def charged(url: str) -> int:
    """Open the ledger anew, which checks all of it, and return how much is charged."""
    with Ledger(url) as ledger:
        return sum(charge.count for charge in ledger.charges())


def error_of(act: Callable[[], object]) -> str:
    """Return the words of the error that comes of something, none if it is done."""
    try:
        act()
    except LedgerError as error:
        return str(error)
    return ""


# The moment, and whether the charge is made.
MOMENTS = {
    "before anything is asked": (Cut(b"BEGIN"), True),
    "before the answer to the beginning": (Cut(b"BEGIN", 0.0, answered=True), True),
    "before the rows": (Cut(b"INSERT"), False),
    "before the answer to the rows": (Cut(b"INSERT", 0.0, answered=True), False),
    "before the rows, unnoticed by the server": (Cut(b"INSERT", linger=1.0), False),
    "before the commit": (Cut(b"COMMIT\0"), False),
    "before the commit, unnoticed by the server": (Cut(b"COMMIT\0", linger=1.0), False),
    "before the answer to the commit": (Cut(b"COMMIT\0", 0.0, answered=True), True),
    "while the commit is on its way": (Cut(b"COMMIT\0", 1.0), True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_charge_is_made_or_not_whenever_the_connection_is_cut(
    server: Server, proxy: Proxy, moment: str
) -> None:
    cut, made = MOMENTS[moment]
    direct = server.new()
    ledger = Ledger(direct.replace(f":{server.port}/", f":{proxy.port}/"), BUDGET)
    ledger.charge({GAUSSIAN: 2}, run="before")
    proxy.cut(cut)
    reservations: list[Reservation] = []
    error = error_of(lambda: reservations.append(ledger.charge({GAUSSIAN: 3}, run="cut")))
    assert error.startswith("" if made else "Cannot charge the ledger")
    assert bool(reservations) == made == (not error)
    assert proxy.cuts == 1
    assert charged(direct) == 2 + 3 * made
    assert sum(ledger.totals().values()) == 2 + 3 * made
    ledger.charge({GAUSSIAN: 1}, run="after")
    for reservation in reservations:
        reservation.use(GAUSSIAN)
        ledger.refund(reservation)
    assert charged(direct) == 3 + made == sum(ledger.totals().values())


@pytest.mark.parametrize(
    ("cut", "made"),
    [
        (Cut(b"COPY"), False),
        (Cut(b"COMMIT\0"), False),
        (Cut(b"COMMIT\0", linger=1.0), False),
        (Cut(b"COMMIT\0", 0.0, answered=True), True),
    ],
)
def test_a_ledger_is_made_or_not_whenever_the_connection_is_cut(
    server: Server, proxy: Proxy, cut: Cut, made: bool
) -> None:
    direct = server.new()
    url = direct.replace(f":{server.port}/", f":{proxy.port}/")
    proxy.cut(cut)
    said = error_of(lambda: Ledger(url, BUDGET, dataset="people").close())
    assert not said if made else "Cannot create" in said  # and not that nobody can tell
    assert proxy.cuts == 1
    assert exists(direct) is made
    with Ledger(direct, BUDGET, dataset="people") as ledger:
        assert ledger.totals() == {}


def test_a_refund_is_made_once_whenever_the_connection_is_cut(server: Server, proxy: Proxy) -> None:
    direct = server.new()
    ledger = Ledger(direct.replace(f":{server.port}/", f":{proxy.port}/"), BUDGET)
    for cut, made in MOMENTS.values():
        before = charged(direct)
        reservation = ledger.charge({GAUSSIAN: 5}, run="a")
        reservation.use(GAUSSIAN)
        proxy.cut(cut)
        if made:
            ledger.refund(reservation)
        else:
            with pytest.raises(LedgerError):
                ledger.refund(reservation)
        with pytest.raises(LedgerError, match="was returned"):
            ledger.refund(reservation)
        assert charged(direct) - before == (1 if made else 5)


def test_cut_at_random_every_charge_is_known(server: Server, proxy: Proxy) -> None:
    direct, generator = server.new(), random.Random(30)
    ledger = Ledger(direct.replace(f":{server.port}/", f":{proxy.port}/"), BUDGET)
    made = failed = 0
    while proxy.cuts < 60:
        proxy.cut_at_random(generator, 0.08)
        error = error_of(lambda: ledger.charge({GAUSSIAN: 1}, run="a"))
        assert "Cannot tell" not in error
        made, failed = made + (not error), failed + bool(error)
        proxy.calm()
        assert sum(ledger.totals().values()) == made
    assert charged(direct) == made
    assert min(made, failed) > 10


def test_what_cannot_be_found_out_is_an_error_and_stays_charged(
    server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_FOR_A_SERVER", 0.3)
    direct = server.new()
    ledger = Ledger(direct.replace(f":{server.port}/", f":{proxy.port}/"), BUDGET)
    proxy.refusing = True
    proxy.cut(Cut(b"COMMIT\0", 0.0, answered=True))
    with pytest.raises(LedgerError, match=r"Cannot tell whether .* stays charged"):
        ledger.charge({GAUSSIAN: 3}, run="a")
    with pytest.raises(LedgerError, match="Cannot charge"):
        ledger.charge({GAUSSIAN: 3}, run="a")
    proxy.refusing = False
    assert sum(ledger.totals().values()) == 3 == charged(direct)
    ledger.charge({GAUSSIAN: 1}, run="a")
    assert charged(direct) == 4


def test_sessions_that_are_ended_by_the_server_lose_no_charge(server: Server) -> None:
    """An administrator ends sessions at any moment, also within a transaction."""
    url, stop = server.new(), threading.Event()
    ledger = Ledger(url, BUDGET)
    ended = [0]

    def end() -> None:
        chance = random.Random(31)
        with server.connect() as connection:
            while not stop.is_set():
                row = connection.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE application_name = 'privada'"
                ).fetchone()
                ended[0] += row[0]
                time.sleep(chance.uniform(0.002, 0.02))

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    made = 0
    until = time.monotonic() + PATIENCE
    while ended[0] < 40 and time.monotonic() < until:
        error = error_of(lambda: ledger.charge({GAUSSIAN: 1}, run="a"))
        assert "Cannot tell" not in error
        made += not error
    stop.set()
    thread.join(PATIENCE)
    assert ended[0] >= 40
    assert charged(url) == made == sum(ledger.totals().values())


def test_a_process_that_is_gone_keeps_nobody_waiting(server: Server) -> None:
    """Killed in the middle of a charge, it leaves neither a lock nor a charge."""
    url = server.new()
    ledger = Ledger(url, BUDGET)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with Ledger(url)._storage.writing("charge") as transaction:
                transaction.add("child", "training", {GAUSSIAN: 100})
                os.write(write, b"x")
                time.sleep(PATIENCE)
        finally:
            os._exit(1)
    os.read(read, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    ledger.charge({GAUSSIAN: 1}, run="parent")
    assert charged(url) == 1


# ---------------------------------------------------------------------- the server itself


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that may be killed."""
    made = make_server()
    yield made
    made.remove()


def test_a_server_that_is_killed_forgets_no_charge(own_server: Server) -> None:
    url, chance = own_server.new(), random.Random(32)
    ledger, made, unknown = Ledger(url, BUDGET), [0], [0]
    stop = threading.Event()

    def charge() -> None:
        while not stop.is_set():
            error = error_of(lambda: ledger.charge({GAUSSIAN: 1}, run="a"))
            made[0] += not error
            unknown[0] += "Cannot tell" in error

    thread = threading.Thread(target=charge, daemon=True)
    thread.start()
    try:
        for _ in range(4):
            before, until = made[0], time.monotonic() + PATIENCE
            while made[0] < before + 5 and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.05))
            own_server.kill()
            own_server.start()
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert unknown[0] == 0
    assert made[0] >= 20
    assert charged(url) == made[0] == sum(ledger.totals().values())


def test_a_server_that_stays_away_is_an_error(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_FOR_A_SERVER", 0.5)
    url = own_server.new()
    ledger = Ledger(url, BUDGET)
    ledger.charge({GAUSSIAN: 1}, run="a")
    own_server.kill()
    for act in (
        lambda: ledger.charge({GAUSSIAN: 1}, run="a"),
        ledger.totals,
        lambda: Ledger(url),
    ):
        with pytest.raises(LedgerError, match="Check that the server runs"):
            act()
    own_server.start()
    assert sum(ledger.totals().values()) == 1
    ledger.charge({GAUSSIAN: 1}, run="a")
    assert charged(url) == 2
