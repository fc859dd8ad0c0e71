"""The tables of a ledger in PostgreSQL, and what the server itself sees to.

A ledger is one schema with three tables. `facts` never change. `journal` has a row for each charge,
each part of one that was given back, each note: rows are added, never changed, so that who charges
needs no right but to add and to read. `head` says where the journal ends; a trigger with the rights
of the ledger's owner keeps it. That trigger takes a row only if it is the next one: its seal is a
digest of the row and of the seal before it. So a charge that was worked out from anything but all
charges before it is refused by the server, whatever became of locks.
"""

import hashlib
from typing import TYPE_CHECKING, Any

from privada.accounting.ledger.postgres import connections
from privada.core.errors import LedgerError

if TYPE_CHECKING:
    import psycopg

FORMAT = 1
# The columns that a client writes, in the order in which they are sealed; then the seal.
COLUMNS = (
    "number", "act", "run", "purpose", "event", "change", "label", "value", "at", "role", "token",
)  # fmt: skip
CHARGE, PUBLISH, LEASE, ORIGIN, STATE = "charge", "publish", "lease", "origin", "state"

_TABLES = """
CREATE TABLE {schema}.facts (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {schema}.journal (
    number bigint PRIMARY KEY,
    act text NOT NULL CHECK (act IN ('charge', 'publish', 'lease', 'origin', 'state')),
    run text NOT NULL,
    purpose text NOT NULL,
    event text NOT NULL,
    change bigint NOT NULL,
    label text NOT NULL,
    value text NOT NULL,
    at text NOT NULL,
    role text NOT NULL,
    token text NOT NULL,
    seal text NOT NULL,
    key bytea NOT NULL,
    total bigint NOT NULL
);
CREATE INDEX journal_key ON {schema}.journal (key, number);
CREATE TABLE {schema}.head (
    one boolean PRIMARY KEY CHECK (one),
    number bigint NOT NULL,
    seal text NOT NULL,
    state text NOT NULL,
    origin text NOT NULL
);
"""

# The digest of texts, each after its length, so that no two lists of texts run together.
_DIGEST = """
    SELECT sha256(convert_to(string_agg(octet_length(each)::text || ':' || each, '' ORDER BY place),
        'UTF8')) FROM unnest(fields) WITH ORDINALITY AS t (each, place)
"""
_APPEND = """
DECLARE
    last record;
    before bigint;
BEGIN
    SELECT number, seal, state INTO STRICT last FROM {schema}.head FOR UPDATE;
    IF NEW.number IS DISTINCT FROM last.number + 1
        OR NEW.role IS DISTINCT FROM session_user::text
        OR NEW.seal IS DISTINCT FROM encode({schema}.digest(
            last.seal, NEW.number::text, NEW.act, NEW.run, NEW.purpose, NEW.event,
            NEW.change::text, NEW.label, NEW.value, NEW.at, NEW.role, NEW.token), 'hex')
    THEN
        RAISE EXCEPTION 'what is written does not continue what the ledger holds'
            USING ERRCODE = 'PV001';
    END IF;
    IF NEW.act IN ('origin', 'state') THEN
        IF NOT pg_has_role(session_user, current_user, 'MEMBER') THEN
            RAISE EXCEPTION 'only its owner may do that to a ledger'
                USING ERRCODE = 'insufficient_privilege';
        END IF;
    ELSIF last.state <> '' THEN
        RAISE EXCEPTION 'the ledger is closed: %', last.state USING ERRCODE = 'PV002';
    END IF;
    NEW.total := 0;
    IF NEW.act = 'charge' THEN
        NEW.key := {schema}.digest(NEW.act, NEW.role, NEW.run, NEW.purpose, NEW.event);
        SELECT total INTO before FROM {schema}.journal WHERE key = NEW.key
            ORDER BY number DESC LIMIT 1;
        NEW.total := coalesce(before, 0) + NEW.change;
        IF NEW.total < 0 THEN
            RAISE EXCEPTION 'the role % returns more of run % than it has charged',
                NEW.role, NEW.run USING ERRCODE = 'PV003';
        END IF;
    ELSE
        NEW.key := {schema}.digest(NEW.act, NEW.label);
        IF NEW.act = 'publish' AND EXISTS (SELECT FROM {schema}.journal WHERE key = NEW.key) THEN
            RAISE EXCEPTION 'something is published under that label' USING ERRCODE = 'PV001';
        END IF;
    END IF;
    UPDATE {schema}.head SET number = NEW.number, seal = NEW.seal,
        state = CASE NEW.act WHEN 'state' THEN NEW.value ELSE state END,
        origin = CASE NEW.act WHEN 'origin' THEN NEW.value ELSE origin END;
    RETURN NEW;
END
"""
_KEEP = """
BEGIN
    RAISE EXCEPTION 'a ledger only grows: % of % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'PV004';
END
"""
_RULES = """
CREATE FUNCTION {schema}.digest(VARIADIC fields text[]) RETURNS bytea LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp AS $privada${digest}$privada$;
CREATE FUNCTION {schema}.append() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $privada${append}$privada$;
CREATE FUNCTION {schema}.keep() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $privada${keep}$privada$;
CREATE TRIGGER append BEFORE INSERT ON {schema}.journal
    FOR EACH ROW EXECUTE FUNCTION {schema}.append();
CREATE TRIGGER keep BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.journal
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.keep();
CREATE TRIGGER keep BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.facts
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.keep();
CREATE TRIGGER keep BEFORE DELETE OR TRUNCATE ON {schema}.head
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.keep();
CREATE TRIGGER keep_changes BEFORE UPDATE ON {schema}.head
    FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION {schema}.keep();
REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
"""
# Where the data are: the server, how often it was recovered or took over from another, the database
# and the table. A backup that is restored, a copy of a database and a standby that takes over each
# differ in one of them.
_ORIGIN = """CASE WHEN pg_is_in_recovery() THEN '' ELSE
    (SELECT system_identifier::text FROM pg_control_system())
    || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
    || '/' || (SELECT oid::text FROM pg_database WHERE datname = current_database())
    || '/' || {table}::regclass::oid::text END"""
_HEAD = """SELECT number, seal, state, origin, session_user::text, pg_is_in_recovery(),
    current_setting('transaction_read_only'), current_setting('fsync'),
    current_setting('full_page_writes'), {origin} FROM {schema}.head"""

# What there is in the schema, each in one line of text; it must be what `create` makes.
_STRUCTURE = """
SELECT concat_ws(' ', 'table', relname, relkind, relpersistence, relhasrules, relrowsecurity)
    FROM pg_class WHERE relnamespace = {oid} AND relkind <> 'c'
UNION ALL SELECT concat_ws(' ', 'column', relname, attnum, attname,
    format_type(atttypid, atttypmod), attnotnull, attisdropped)
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
    WHERE relnamespace = {oid} AND relkind NOT IN ('i', 'c') AND attnum > 0
UNION ALL SELECT concat_ws(' ', 'trigger', relname, tgname, proname, tgtype, tgenabled,
    tgqual IS NOT NULL, p.pronamespace)
    FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid JOIN pg_proc p ON p.oid = tgfoid
    WHERE relnamespace = {oid} AND NOT tgisinternal
UNION ALL SELECT concat_ws(' ', 'function', proname, prosecdef, array_to_string(proconfig, ';'),
    prosrc) FROM pg_proc WHERE pronamespace = {oid}
"""
_ORDINARY = {"facts": ("key", "value"), "journal": (*COLUMNS, "seal", "key", "total")}
_TYPES = {"number": "bigint", "change": "bigint", "total": "bigint", "key": "bytea"}


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a constant of SQL."""
    return "'" + text.replace("'", "''") + "'"


def digest(*fields: str) -> str:
    """Return the digest of texts that the server computes too, in hexadecimal digits."""
    joined = b"".join([b"%d:%b" % (len(each), each) for each in map(str.encode, fields)])
    return hashlib.sha256(joined).hexdigest()


def lock_key(schema: str) -> int:
    """Return the number of the lock that whoever writes to a ledger takes first."""
    found = hashlib.sha256(f"privada ledger {schema}".encode()).digest()
    return int.from_bytes(found[:8], "big", signed=True)


def lock(schema: str) -> str:
    """Return the statement that takes that lock until the transaction ends, also by its death."""
    return f"SELECT pg_advisory_xact_lock({lock_key(schema)}); "


def head(schema: str) -> str:
    """Return the query for where a ledger's journal ends, and how its server is set."""
    return _HEAD.format(schema=quoted(schema), origin=origin(schema))


def origin(schema: str) -> str:
    """Return the expression for where the data of a ledger are now."""
    return _ORIGIN.format(table=literal(f"{quoted(schema)}.journal"))


def _expected(schema: str, oid: int) -> list[str]:
    """Return what there must be in a schema."""
    lines = [
        *(f"table {each} r p f f" for each in ("facts", "head", "journal")),
        *(f"table {each}_pkey i p f f" for each in ("facts", "head", "journal")),
        "table journal_key i p f f",
        f"trigger head keep keep 42 O f {oid}",
        f"trigger head keep_changes keep 18 O t {oid}",
        f"trigger facts keep keep 58 O f {oid}",
        f"trigger journal keep keep 58 O f {oid}",
        f"trigger journal append append 7 O f {oid}",
    ]
    columns: dict[str, tuple[str, ...]]
    columns = {**_ORDINARY, "head": ("one", "number", "seal", "state", "origin")}
    for table, names in columns.items():
        for place, column in enumerate(names, start=1):
            kind = "boolean" if column == "one" else "text"
            if table != "facts":
                kind = _TYPES.get(column, kind)
            lines.append(f"column {table} {place} {column} {kind} t f")
    path = "search_path=pg_catalog, pg_temp"
    append = _APPEND.format(schema=quoted(schema))
    lines.append(f"function append t {path} {append}")
    lines.append(f"function digest f {path} {_DIGEST}")
    lines.append(f"function keep f {path} {_KEEP}")
    return sorted(lines)


def find(connection: "psycopg.Connection[Any]", schema: str) -> int | None:
    """Return the number of a ledger's schema; None if there is none, or one with nothing in it."""
    row = connection.execute(
        "SELECT oid, EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid) OR EXISTS "
        "(SELECT FROM pg_proc WHERE pronamespace = n.oid) FROM pg_namespace n WHERE nspname = %s",
        (schema,),
    ).fetchone()
    return int(row[0]) if row is not None and row[1] else None


def check(connection: "psycopg.Connection[Any]", schema: str, oid: int, name: str) -> None:
    """Raise unless the tables, and what the server sees to, are those of a ledger."""
    found = sorted(line for (line,) in connection.execute(_STRUCTURE.format(oid=oid).encode()))
    if found == _expected(schema, oid):
        return
    if not any(line.startswith(("table journal ", "table head ")) for line in found):
        raise LedgerError(
            f"Cannot open the ledger {name!r}: the schema {schema!r} of the database holds other "
            "things, or what is left of one. Give the ledger's own name, or restore it."
        )
    raise connections.damaged(name, "its tables, triggers or functions are not those of a ledger")


def make(connection: "psycopg.Connection[Any]", schema: str) -> None:
    """Make the tables of a ledger, within a transaction that fills them and then guards them."""
    row = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
    if row is None:
        connection.execute(f"CREATE SCHEMA {quoted(schema)}".encode())
    connection.execute(_TABLES.format(schema=quoted(schema)).encode())


def guard(connection: "psycopg.Connection[Any]", schema: str) -> None:
    """Make what sees to the tables from now on, and take all rights on them from everybody."""
    name = quoted(schema)
    bodies = {"digest": _DIGEST, "append": _APPEND.format(schema=name), "keep": _KEEP}
    connection.execute(_RULES.format(schema=name, **bodies).encode())
