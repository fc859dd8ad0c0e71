"""A SuperLink and SuperNodes as processes over loopback, and an app that `privada` has written."""

import datetime
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from privada.workflows import new_federated_app

SCRIPTS = Path(sys.executable).parent
PATIENCE = 240.0


def free_port() -> int:
    """Return a port of loopback that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def make_app(folder: Path, **settings: object) -> Path:
    """Write an app with other settings, and return its folder."""
    new_federated_app(folder)
    project = folder / "pyproject.toml"
    text = project.read_text()
    for name, value in settings.items():
        key = name.replace("_", "-")
        text, found = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert found == 1, key
    project.write_text(text)
    return folder


class Link:
    """Commands of Flower's with a home of their own, and processes that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.home = folder / "home"
        self.home.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.env = {
            **os.environ,
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        """Start a process, whose output goes to a file of that name."""
        with (self.folder / f"{name}.log").open("wb") as log:
            made = subprocess.Popen(
                [str(SCRIPTS / str(words[0])), *map(str, words[1:])],
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(made)
        return made

    def log(self, name: str) -> str:
        """Return what a process has said so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def call(self, *words: object) -> str:
        """Run one of Flower's commands to its end, and return what it says."""
        done = subprocess.run(
            [str(SCRIPTS / str(words[0])), *map(str, words[1:])],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def connect(self, *lines: str) -> None:
        """Write where the SuperLink is, as the connection `link`."""
        address = f'[superlink.link]\naddress = "127.0.0.1:{self.port}"'
        (self.home / "config.toml").write_text("\n".join([address, *lines]) + "\n")


@contextmanager
def flower(folder: Path) -> Iterator[Link]:
    """Yield a link; all of its processes are killed at the end."""
    made = Link(folder)
    try:
        yield made
    finally:
        for each in made.processes:
            kill(each)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that descend from it, in groups of their own as well."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    doomed = {process.pid}
    while found := {pid for pid, parent in pairs if parent in doomed} - doomed:
        doomed |= found
    kill(process)
    for pid in doomed - {process.pid}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for(what: Callable[[], object], why: Callable[[], str] = str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.2)


def listening(port: int) -> bool:
    """Return whether a port of loopback answers."""
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def make_certificates(folder: Path) -> dict[str, Path]:
    """Write a certificate authority, and a certificate of it for 127.0.0.1."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: x509.Name, key: ec.EllipticCurvePublicKey, authorised: bool):
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(authorised, None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
                critical=False,
            )
        )
        if not authorised:
            own = [
                x509.DNSName("localhost"),
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            ]
            made = made.add_extension(x509.SubjectAlternativeName(own), critical=False)
        return made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    texts = {
        "ca": certificate(name, authority.public_key(), True),
        "server": certificate(own, server.public_key(), False),
        "key": server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    }
    for stem, text in texts.items():
        (folder / f"{stem}.pem").write_bytes(text)
    return {stem: folder / f"{stem}.pem" for stem in texts}


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Write the private and the public key of a SuperNode."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return private, public
