"""A PostgreSQL server of the tests' own: on a free port, in a folder of its own, as no root."""

import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.forks import PATIENCE

ADMIN = "admin"
_COUNT = itertools.count()
_STARTED: list[tuple[int, "Server"]] = []


def _binaries() -> Path | None:
    """Return the folder of the server's programs, where they are installed."""
    for found in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (found / "initdb").exists() and (found / "postgres").exists():
            return found
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def _user() -> dict[str, Any]:
    """Return as whom the server runs: not as root, which it refuses."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(each) for each in path.read_text().split()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server that can be killed and started again."""

    def __init__(self, binaries: Path, **settings: str) -> None:
        self._binaries, self._as = binaries, _user()
        self.folder = Path(tempfile.mkdtemp(prefix="privada-postgres-"))
        self.data, self.port = self.folder / "data", free_port()
        self._settings = {"max_connections": "60", "shared_buffers": "16MB", **settings}
        self._process: subprocess.Popen[bytes] | None = None
        if self._as:
            os.chown(self.folder, self._as["user"], self._as["group"])
        self._run(
            "initdb", "--pgdata", self.data, "--username", ADMIN, "--encoding=UTF8", "--locale=C",
            "--auth=trust", "--no-sync",
        )  # fmt: skip
        rules = (
            "local all all trust\n"
            "host all with_password all scram-sha-256\n"
            "host all all all trust\n"
            "local replication all trust\nhost replication all all trust\n"
        )
        (self.data / "pg_hba.conf").write_text(rules)
        self.start()

    def _run(self, program: str, *given: Any) -> None:
        told = subprocess.run(
            [self._binaries / program, *map(str, given)],
            capture_output=True,
            cwd="/",
            text=True,
            timeout=PATIENCE,
            **self._as,
        )
        assert told.returncode == 0, f"{program}: {told.stdout}{told.stderr}"

    def start(self, **settings: str) -> None:
        """Start it, and wait until it can be used."""
        given = {
            "port": str(self.port),
            "listen_addresses": "*",
            "unix_socket_directories": str(self.folder),
            **self._settings,
            **settings,
        }
        options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data, *options],
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **self._as,
            )
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            with contextlib.suppress(Exception):
                self.sql("SELECT 1")
                return
            time.sleep(0.05)
        pytest.fail("PostgreSQL did not start")

    def kill(self) -> None:
        """Kill every process of it at once, as a power cut would."""
        assert self._process is not None
        main = self._process.pid
        os.kill(main, signal.SIGSTOP)  # so that it starts no more of them
        for child in _children(main):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.kill(main, signal.SIGKILL)
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        """Stop it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------ use

    def url(
        self, ledger: str, *, user: str = ADMIN, host: str = "127.0.0.1", port: int | None = None
    ) -> str:
        return f"postgresql://{user}@{host}:{port or self.port}/postgres?ledger={ledger}"

    def new(self, **given: Any) -> str:
        """Return the URL of a ledger that there is not yet."""
        return self.url(f"{os.getpid()}-{next(_COUNT)}", **given)

    def connect(self, **given: Any) -> Any:
        import psycopg

        return psycopg.connect(
            host=str(self.folder),
            port=self.port,
            autocommit=True,
            **{"user": ADMIN, "dbname": "postgres", **given},
        )

    def sql(self, *statements: str, **given: Any) -> list[tuple[Any, ...]]:
        """Run statements as the administrator; return the rows of the last."""
        with self.connect(**given) as connection:
            for each in statements:
                cursor = connection.execute(each)
            return cursor.fetchall() if cursor.description else []

    def role(self, name: str) -> str:
        """Return a role that may log in, made if it is not there."""
        if not self.sql(f"SELECT 1 FROM pg_roles WHERE rolname = '{name}'"):
            self.sql(f'CREATE ROLE "{name}" LOGIN')
        return name


def make_server(**settings: str) -> Server:
    """Return a new server, which ends with the tests; skip where none can be had."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install privada[postgres]")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql")
    server = Server(binaries, **settings)
    _STARTED.append((os.getpid(), server))
    return server


def remove_servers() -> None:
    """End what this process has started, when its tests are over."""
    while _STARTED:
        process, server = _STARTED.pop()
        if process == os.getpid():  # and no fork of it
            server.remove()


@functools.cache
def shared_server() -> Server:
    """Return the server that all tests of this process use."""
    return make_server()
