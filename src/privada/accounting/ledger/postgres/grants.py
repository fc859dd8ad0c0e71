"""The rights that roles need on a ledger, as SQL for its owner to run."""

from privada.accounting.ledger.postgres import tables
from privada.accounting.ledger.postgres.urls import LONGEST_NAME, LedgerURL, is_url
from privada.core.errors import ArgumentError
from privada.core.validation import printable_text, shown

_TABLES = ("facts", "head", "journal")


def grants(url: str, role: str, *, read_only: bool = False) -> str:
    """Return the SQL that lets a role charge a ledger, or only read it.

    Args:
        url: the ledger's.
        role: a role of the database, such as that of a training job or of an auditor.
        read_only: whether it may only read.

    Guarantee: whoever has these rights and no others may add charges, and give back what the same
    role has charged; it cannot change, remove or empty what is stored, nor open a ledger that is
    closed. What others granted to the role before is taken back.

    Edge cases: nothing is run, and the server is not asked whether the role exists. A role that
    owns the ledger, owns the database or is a superuser is not held by this.

    Example:
        >>> from privada.accounting.ledger import grants
        >>> sql = grants("postgresql://db.example/clinic?ledger=patients", "trainer")
        >>> print(sql.splitlines()[-1])
        GRANT INSERT ON "privada_patients"."journal" TO "trainer";
    """
    if not is_url(url):
        raise ArgumentError(
            f"Expected the URL of a ledger in PostgreSQL, got {shown(url)}. A file has the rights "
            "that the file system gives."
        )
    found, to = LedgerURL.read(url), tables.quoted(_checked(role))
    schema = tables.quoted(found.schema)
    listed = ", ".join(f'{schema}."{table}"' for table in _TABLES)
    may = "read" if read_only else "charge and read"
    lines = [
        f"-- {role} may {may} the ledger {found.name}",
        f"GRANT CONNECT ON DATABASE {tables.quoted(found.database)} TO {to};",
        f"REVOKE ALL ON SCHEMA {schema} FROM {to};",
        f"REVOKE ALL ON {listed} FROM {to};",
        f"GRANT USAGE ON SCHEMA {schema} TO {to};",
        f"GRANT SELECT ON {listed} TO {to};",
    ]
    if not read_only:
        lines.append(f'GRANT INSERT ON {schema}."journal" TO {to};')
    return "\n".join(lines)


def _checked(role: str) -> str:
    """Return the name of a role if PostgreSQL takes it as the name of that one role."""
    if printable_text("role", role) in ("public", "none"):  # also in quotation marks
        raise ArgumentError(
            f"Expected role to be one role of the database, got role={role!r}, which stands for "
            "all roles or for none. Give each job and each auditor a role of its own."
        )
    if len(role.encode()) > LONGEST_NAME:
        raise ArgumentError(
            f"Expected role to have at most {LONGEST_NAME} bytes, got {len(role.encode())}, "
            f"role={role!r}: PostgreSQL would cut it, and give the rights to another role. Give "
            "the name as the server has it."
        )
    return role
