"""The URL of a ledger: where its database is, and which of the ledgers in it is meant."""

import os
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from privada.accounting.ledger.postgres.driver import driver
from privada.core.errors import LedgerError

SCHEMES = ("postgresql://", "postgres://")
SCHEMA = "privada"
# What PostgreSQL cuts names to, without a word to the client.
LONGEST_NAME = 63
_FORM = (
    "Write postgresql://user@host:port/database?ledger=name, with %40 for an @ and %2F for a / in "
    "names and passwords."
)
_SECRETS = ("password", "sslpassword")


# What was meant as a URL: of another program or spelling, or made a path, which loses a slash.
_LIKE_A_URL = re.compile(r"\s*([a-z][\w+.-]+://|postgres[\w+.-]*:)", re.IGNORECASE)


def is_url(place: object) -> bool:
    """Return whether this is the URL of a ledger in PostgreSQL, and not a path.

    Raises:
        LedgerError: it is neither, but a URL of another kind. It is not shown, as it may hold a
            password.
    """
    if isinstance(place, str) and place.startswith(SCHEMES):
        return True
    text = os.fspath(place) if isinstance(place, os.PathLike) else place
    if isinstance(text, str) and _LIKE_A_URL.match(text):
        raise LedgerError(
            "Expected the URL of a ledger as a string that begins with postgresql://, or a path, "
            f"got a URL of another kind, or one that was made a path. {_FORM}"
        )
    return False


@dataclass(frozen=True)
class LedgerURL:
    """A URL that libpq reads, and `ledger=name` among its parameters.

    Attributes:
        text: the URL as it was given; it may hold a password.
        conninfo: the URL as libpq takes it.
        ledger: the name of the ledger in the database, None for the one without a name.
        parameters: what libpq reads in it.
    """

    text: str = field(repr=False)
    conninfo: str = field(repr=False)
    ledger: str | None
    parameters: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, text: str) -> "LedgerURL":
        """Return a URL in its parts.

        Raises:
            LedgerError: it is none, or names no ledger that there can be.
        """
        psycopg = driver()
        scheme, _, rest = text.partition("://")
        # as libpq does: what is before an @ may have a question mark in it
        user = re.match(r"[^@/]*@", rest)
        at = rest.find("?", user.end() if user else 0)
        place, query = (rest, "") if at < 0 else (rest[:at], rest[at + 1 :])
        asked = [each for each in query.split("&") if each]
        names = [each for each in asked if each.partition("=")[0] == "ledger"]
        kept = "&".join(each for each in asked if each not in names)
        if len(names) > 1:
            raise LedgerError(f"Expected one ledger= in the URL of a ledger, got {len(names)}.")
        conninfo = f"{scheme}://{place}{'?' if kept else ''}{kept}"
        try:
            ledger = unquote(names[0].partition("=")[2], errors="strict") if names else None
            parameters = psycopg.conninfo.conninfo_to_dict(conninfo)
        except (psycopg.Error, ValueError):
            # nothing of it is shown: libpq quotes what it cannot read, passwords too
            raise LedgerError(f"Expected the URL of a ledger, got another. {_FORM}") from None
        return cls(text, conninfo, _checked(ledger), parameters)

    @property
    def schema(self) -> str:
        """The PostgreSQL schema that holds the ledger, and nothing else."""
        return SCHEMA if self.ledger is None else f"{SCHEMA}_{self.ledger}"

    @property
    def database(self) -> str:
        """The name of the database, as libpq finds it if the URL does not say."""
        known = {**self.parameters}
        for each, variable in (("user", "PGUSER"), ("dbname", "PGDATABASE")):
            known.setdefault(each, os.environ.get(variable))
        return str(known["dbname"] or known["user"] or os.environ.get("USER", ""))

    @property
    def name(self) -> str:
        """The place in words: host, database and ledger; neither user nor password."""
        hosts = str(self.parameters.get("host") or self.parameters.get("hostaddr") or "").split(",")
        ports = str(self.parameters.get("port") or "").split(",")
        ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
        where = ",".join(
            f"{_host(host)}{':' if port else ''}{port}"
            for host, port in zip(hosts, ports, strict=True)
        )
        which = "" if self.ledger is None else f"?ledger={quote(self.ledger, safe=' ')}"
        database = quote(str(self.parameters.get("dbname") or ""), safe="")
        return f"postgresql://{where}/{database}{which}"

    def without_secrets(self, words: str) -> str:
        """Return words in which neither the URL nor a password of it occurs."""
        secrets = [str(self.parameters[each]) for each in _SECRETS if self.parameters.get(each)]
        for secret in (self.text, self.conninfo, *secrets):
            for each in (secret, quote(secret, safe="")):
                words = words.replace(each, "***")
        return words


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="")


def _checked(ledger: str | None) -> str | None:
    """Return the name of a ledger if PostgreSQL can keep it as it is."""
    if ledger is None:
        return None
    most = LONGEST_NAME - len(f"{SCHEMA}_")
    if not ledger.isprintable() or ledger != ledger.strip() or not ledger or "$" in ledger:
        raise LedgerError(
            f"Expected ledger= in the URL of a ledger to have printable characters and no $, got "
            f"{ledger!r}. Give it a name, such as ?ledger=patients."
        )
    if len(ledger.encode()) > most:
        raise LedgerError(
            f"Expected ledger= in the URL of a ledger to have at most {most} bytes, got "
            f"{len(ledger.encode())}: {ledger[:most]!r}... Give a shorter name."
        )
    return ledger
