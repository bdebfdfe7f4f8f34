"""Requirements on a PostgreSQL server whose changes are read, and its replication sessions.

A *slot* makes the server keep the log until the source confirms it; a *publication* lists the tables in the log
(docs/changes.md, "Slot and restarts").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from barrier_runtime.connectors.postgres.changes.pgoutput import Relation
from barrier_runtime.connectors.postgres.changes.position import parsed_lsn, shown_lsn
from barrier_runtime.connectors.postgres.changes.rows import ChangedTable, Form
from barrier_runtime.connectors.postgres.changes.shape import CatalogTable
from barrier_runtime.connectors.postgres.changes.values import ChangedColumn, ServerType, arrow_type
from barrier_runtime.connectors.postgres.session import CONNECTION_DEFAULTS, load_psycopg
from barrier_runtime.state.errors import InvalidJob, Unavailable

_ANEW = "start the job without state (restore='none'), which takes a new snapshot"
_OPTIONS = {"datestyle": "ISO", "timezone": "UTC", "bytea_output": "hex", "extra_float_digits": "1"}
_OPTIONS |= {"row_security": "off"}  # a policy that hides rows is an error
_OPTIONS |= {"client_encoding": "UTF8", "statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
_TABLE = """
select c.oid, c.relkind::text, c.relreplident::text, c.relpersistence::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s
"""
_COLUMNS = """
select a.attnum, a.attname, coalesce(b.typname, t.typname),
       case when t.typtype = 'd' then t.typtypmod else a.atttypmod end,
       a.attnum = any(coalesce((select i.indkey::int2[] from pg_index i where i.indrelid = a.attrelid and i.indimmediate
                                and case when %s = 'i' then i.indisreplident else i.indisprimary end), '{}'))
from pg_attribute a
join pg_type t on t.oid = a.atttypid
left join pg_type b on t.typtype = 'd' and b.oid = t.typbasetype
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' order by a.attnum
"""
_NOW = """
select a.attnum, a.attname, coalesce(b.typname, t.typname),
       case when t.typtype = 'd' then t.typtypmod else a.atttypmod end
from pg_attribute a
join pg_type t on t.oid = a.atttypid
left join pg_type b on t.typtype = 'd' and b.oid = t.typbasetype
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
"""
_TYPES = """
select t.oid::bigint, coalesce(b.typname, t.typname), t.typtype = 'd', t.typtypmod
from pg_type t left join pg_type b on t.typtype = 'd' and b.oid = t.typbasetype where t.oid = any(%s::oid[])
"""
_HEIRS = "select 1 from pg_inherits i join pg_class c on c.oid = i.inhparent where c.oid = %s and c.relkind = 'r'"
_LATE_KEY = "select 1 from pg_index i where i.indrelid = %s and i.indisprimary and not i.indimmediate"
_PUBLISHED = """
select t.schemaname || '.' || t.tablename, c.oid::bigint,
       coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') is not null
from pg_publication_tables t
join pg_publication p on p.pubname = t.pubname
join pg_namespace n on n.nspname = t.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
where t.pubname = %s
"""
_SLOT = """
select plugin, database, wal_status, confirmed_flush_lsn::text, active_pid, temporary
from pg_replication_slots where slot_name = %s
"""


def connect(parameters: Mapping[str, str], *, replication: bool, name: str) -> Any:
    psycopg = load_psycopg()
    given = {**CONNECTION_DEFAULTS, **parameters, "application_name": name}
    options = " ".join(f"-c {option}={value}" for option, value in _OPTIONS.items())
    given["options"] = f"{given.get('options', '')} {options}".strip()
    if replication:
        given["replication"] = "database"
    return psycopg.connect(**given, autocommit=True, prepare_threshold=None)


def read_table(connection: Any, name: str, as_text: Sequence[str], form: Form, where: str) -> ChangedTable:
    schema, _, table = name.partition(".")
    found = connection.execute(_TABLE, (schema, table)).fetchone()
    if found is None:
        raise InvalidJob(f"{where}: there is no table {name}: create it, or correct tables= (schema.table)")
    oid, kind, identity, persistence = found
    if kind not in ("r", "p") or persistence != "p":
        raise InvalidJob(
            f"{where}: {name} is not an ordinary table, so the log does not have its changes: name a table"
        )
    if connection.execute(_HEIRS, (oid,)).fetchone() is not None:
        raise InvalidJob(
            f"{where}: other tables inherit from {name}, so it shows rows whose changes the log has under the names of "
            "those: name a table from which none inherits (partitions are no such tables)"
        )
    if form == "upsert" and connection.execute(_LATE_KEY, (oid,)).fetchone() is not None:
        raise InvalidJob(
            f"{where}: the primary key of {name} is deferrable, so one statement may swap the keys of rows, which no "
            "order of upserts can say: use form='changes', or make the key NOT DEFERRABLE"
        )
    rows = connection.execute(_COLUMNS, (identity, oid)).fetchall()
    has_key = any(key for *_, key in rows)
    if identity == "n" or (identity == "d" and not has_key):
        raise InvalidJob(
            f"{where}: table {name} has nothing that identifies its rows, and the server refuses updates of such a "
            f"table when it is published: ALTER TABLE {name} ADD PRIMARY KEY (…), or REPLICA IDENTITY FULL"
        )
    names = [column for _, column, *_ in rows]
    for column in as_text:
        table_of, _, last = column.rpartition(".")
        if (table_of in ("", name) and last in names) or (table_of and table_of != name):
            continue
        raise InvalidJob(f"{where}: as_text has {column!r}, which table {name} has not; it has {', '.join(names)}")
    text = {column.rpartition(".")[2] for column in as_text if column.rpartition(".")[0] in ("", name)}
    return ChangedTable(
        name,
        tuple(
            ChangedColumn(
                column,
                arrow_type("text" if column in text else base, typmod),
                bool(key) or not has_key,
                number,
                ServerType(base, typmod),
                column in text,
            )
            for number, column, base, typmod, key in rows
        ),
        identity,
    )


def look_at_catalog(connection: Any, relation: Relation) -> CatalogTable:
    found = connection.execute("select relreplident::text from pg_class where oid = %s", (relation.id,)).fetchone()
    columns = connection.execute(_NOW, (relation.id,)).fetchall()
    wanted = [column.type for column in relation.columns]
    types = {oid: of for oid, *of in connection.execute(_TYPES, (wanted,)).fetchall()}
    known = {}
    for column in relation.columns:
        if column.type in types:
            base, domain, typmod = types[column.type]
            known[column.type, column.typmod] = ServerType(base, typmod if domain else column.typmod)
    named = {number: (name, ServerType(base, typmod)) for number, name, base, typmod in columns}
    return CatalogTable(found[0] if found is not None else "", named, known)


def check_server(connection: Any, where: str) -> None:
    (level,) = connection.execute("show wal_level").fetchone()
    if level != "logical":
        raise InvalidJob(
            f"{where}: the server's wal_level is {level!r}, so its log does not have the rows: set wal_level = logical "
            "and restart the server"
        )


def make_publication(connection: Any, name: str, tables: Sequence[str], *, ours: bool, where: str) -> None:
    """Creates the publication if missing. `ours`: an existing publication is set to `tables`."""
    sql = load_psycopg().sql
    listed = sql.SQL(", ").join(sql.Identifier(*table.split(".", 1)) for table in tables)
    if connection.execute("select 1 from pg_publication where pubname = %s", (name,)).fetchone() is None:
        connection.execute(
            sql.SQL("create publication {} for table {} with (publish_via_partition_root = true)").format(
                sql.Identifier(name), listed
            )
        )
        return
    if ours:
        connection.execute(sql.SQL("alter publication {} set table {}").format(sql.Identifier(name), listed))
    check_publication(connection, name, tables, where)


def check_publication(connection: Any, name: str, tables: Sequence[str], where: str) -> dict[int, str]:
    """Ids of `tables` on the server. Raises `InvalidJob` if the publication omits changes."""
    operations = ("insert", "update", "delete", "truncate")
    listed = ", ".join(f"pub{each}" for each in operations)
    published = connection.execute(f"select {listed} from pg_publication where pubname = %s", (name,)).fetchone()
    if published is None:
        raise InvalidJob(f"{where}: the publication {name!r} is gone, so changes may have been left out: {_ANEW}")
    if not all(published):
        raise InvalidJob(
            f"{where}: publication {name!r} leaves out "
            f"{', '.join(each for each, there in zip(operations, published, strict=True) if not there)}: "
            f"ALTER PUBLICATION {name} SET (publish = '{', '.join(operations)}')"
        )
    found = {table: (oid, partial) for table, oid, partial in connection.execute(_PUBLISHED, (name,)).fetchall()}
    missing = ", ".join(table for table in tables if table not in found)
    if missing:
        raise InvalidJob(
            f"{where}: publication {name!r} has not {missing}: ALTER PUBLICATION {name} ADD TABLE {missing}. If it was "
            f"there and is renamed, or was dropped and made again, changes may have been left out: {_ANEW}"
        )
    partial = ", ".join(table for table in tables if found[table][1])
    if partial:
        raise InvalidJob(
            f"{where}: publication {name!r} has only some rows or columns of {partial}: ALTER PUBLICATION {name} SET "
            "TABLE … without WHERE and without a list of columns"
        )
    return {found[table][0]: table for table in tables}


@dataclass(frozen=True)
class ReplicationSlot:
    """Slot; the server may have forgotten the log up to `confirmed`."""

    plugin: str | None
    database: str | None
    wal_status: str | None
    confirmed: int
    active_pid: int | None


def look_at_slot(connection: Any, slot: str) -> ReplicationSlot | None:
    row = connection.execute(_SLOT, (slot,)).fetchone()
    if row is None:
        return None
    plugin, database, wal_status, confirmed, active_pid, _ = row
    return ReplicationSlot(plugin, database, wal_status, parsed_lsn(confirmed) if confirmed else 0, active_pid)


def check_slot(slot: str, state: ReplicationSlot | None, lsn: int, end_of_log: int, where: str) -> None:
    if state is None:
        raise InvalidJob(
            f"{where}: the replication slot {slot!r} is gone (dropped, or the server that took over did not have it), "
            f"and with it the changes since {shown_lsn(lsn)}: {_ANEW}"
        )
    if state.plugin != "pgoutput":
        raise InvalidJob(f"{where}: the slot {slot!r} is of plugin {state.plugin!r}, not pgoutput: name another slot")
    if state.wal_status == "lost":
        raise InvalidJob(
            f"{where}: the server has removed the log that slot {slot!r} needed (max_slot_wal_keep_size): {_ANEW}, and "
            "raise that setting"
        )
    if state.confirmed > lsn:
        raise InvalidJob(
            f"{where}: slot {slot!r} was confirmed up to {shown_lsn(state.confirmed)}, and this state is at "
            f"{shown_lsn(lsn)}: the changes between them are gone. Either another program reads the slot (give each "
            f"its own), or an older state was restored: {_ANEW}"
        )
    if end_of_log < lsn:
        raise InvalidJob(
            f"{where}: the server's log ends at {shown_lsn(end_of_log)}, and changes up to {shown_lsn(lsn)} were read: "
            f"a failover or a backup has lost them. {_ANEW[0].upper()}{_ANEW[1:]}"
        )


def identify(connection: Any) -> tuple[str, int]:
    system, _, end, _ = connection.execute("IDENTIFY_SYSTEM").fetchone()
    return str(system), parsed_lsn(end)


def end_older_session(connection: Any, pid: int, name: str, slot: str, where: str) -> None:
    """Ends an older session of this source. Always raises `Unavailable`, for a retry."""
    ours = connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where pid = %s and application_name = %s", (pid, name)
    ).fetchone()
    raise Unavailable(
        f"{where}: slot {slot!r} is in use by session {pid}"
        + (", of an earlier generation, and was told to end" if ours else ": end it, or take another slot")
    )


def server_time_us(connection: Any) -> int:
    """Microseconds since 1970, by the server clock that also dates commits."""
    (now,) = connection.execute("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").fetchone()
    return int(now)


def drop_slot(connection: Any, slot: str) -> None:
    connection.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", (slot,)
    )


def drop_publication(connection: Any, name: str) -> None:
    sql = load_psycopg().sql
    connection.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(name)))
