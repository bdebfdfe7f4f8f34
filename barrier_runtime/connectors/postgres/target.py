"""The table that a PostgreSQL sink writes to: what it is, whether it can be written; and our own tables beside it.

Our tables are in the schema `barrier_runtime` of the target's database. They are made when they are not there; a role
that may not do so needs somebody else to start the job once, and USAGE on the schema and all rights to its tables.

    layout             version of these tables
    fences             highest fencing token that has opened a sink, per job, sink and lineage
    commits            highest checkpoint that is visible, per job, sink and lineage
    staged             rows that are not visible yet: parts of batches, as CSV for COPY; a row is megabytes
    prepared_commits   inserted by a prepared transaction into itself: there once that is committed
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from barrier_runtime.connectors.postgres.columns import Column
from barrier_runtime.connectors.postgres.session import load_psycopg
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.versioned import Format

LAYOUT_VERSION = 1
_LAYOUT = Format(
    "{}: the schema barrier_runtime of the database",
    LAYOUT_VERSION,
    damaged="use another database",
    newer="use the release that made them or a newer one, or another database",
)
_NUMERIC_INFINITY = 140_000  # the server's version
LAYOUT_LOCK = 0x6261_7272_6965_7201  # advisory: who creates the tables
_TABLES = """
create schema if not exists barrier_runtime;
create table barrier_runtime.layout (version int primary key);
create table barrier_runtime.fences (
    job text, sink text, lineage text, token bigint not null, primary key (job, sink, lineage)
);
create table barrier_runtime.commits (
    job text, sink text, lineage text, checkpoint bigint not null, committed_at timestamptz not null default now(),
    primary key (job, sink, lineage)
);
create table barrier_runtime.staged (
    job text, sink text, batch text, part int, lineage text not null, store text not null, token bigint not null,
    subtask int not null, data bytea not null, primary key (job, sink, batch, part)
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000
);
alter table barrier_runtime.staged alter data set storage external;
create table barrier_runtime.prepared_commits (
    job text, sink text, lineage text, subtask int, checkpoint bigint,
    primary key (job, sink, lineage, subtask, checkpoint)
);
"""
_COLUMNS = """
select a.attname, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname), e.typname,
       case when t.typtype = 'd' then t.typtypmod else a.atttypmod end,
       a.attnotnull or t.typnotnull, a.atthasdef or a.attidentity <> '' or t.typdefault is not null,
       a.attgenerated <> '' or a.attidentity = 'a', coalesce(b.typtype, t.typtype) = 'e'
from pg_attribute a
join pg_type t on t.oid = a.atttypid
left join pg_type b on t.typtype = 'd' and b.oid = t.typbasetype
left join pg_type e on coalesce(b.typcategory, t.typcategory) = 'A' and e.oid = coalesce(b.typelem, t.typelem)
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_UNIQUE = """
select array(select attname::text from pg_attribute where attrelid = indrelid
             and attnum = any((indkey::int2[])[0:indnkeyatts - 1]))
from pg_index where indrelid = %s and indisunique and indisvalid and indimmediate and indpred is null
and indexprs is null
"""
_COLLATIONS = """
select a.attname, format_type(a.atttypid, a.atttypmod), c.collname, coalesce(b.typname, t.typname)
from pg_index i
cross join lateral unnest(i.indkey::int2[], i.indcollation::oid[]) as part (number, collation_id)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = part.number
join pg_type t on t.oid = a.atttypid
left join pg_type b on t.typtype = 'd' and b.oid = t.typbasetype
left join pg_collation c on c.oid = part.collation_id
where i.indrelid = %s and i.indisunique and a.attname = any(%s)
and (not coalesce(c.collisdeterministic, true) or coalesce(b.typname, t.typname) = 'citext')
"""
_CHECKS = """
select conname, pg_get_constraintdef(oid) from pg_constraint where conrelid = %s and contype = 'c'
and conkey <@ array(select attnum from pg_attribute where attrelid = %s and attname = any(%s))
"""


@dataclass(frozen=True)
class PostgresTarget:
    """A table and its columns as they were when the sink opened."""

    schema: str
    table: str
    oid: int
    columns: tuple[Column, ...]

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.table}"


def make_layout(connection: Any, where: str) -> None:
    """Create our tables unless they are there; several may try at once. On a connection in autocommit mode: a SQL
    transaction that began before somebody else made the tables goes on believing that they are not there."""
    if _is_missing(connection):
        connection.execute("select pg_advisory_lock(%s)", (LAYOUT_LOCK,))
        with connection.transaction():
            if _is_missing(connection):
                connection.execute(_TABLES)
                connection.execute("insert into barrier_runtime.layout values (%s)", (LAYOUT_VERSION,))
        connection.execute("select pg_advisory_unlock(%s)", (LAYOUT_LOCK,))
    (version,) = connection.execute("select max(version) from barrier_runtime.layout").fetchone()
    _LAYOUT.check(version, where)


def _is_missing(connection: Any) -> bool:
    return bool(connection.execute("select to_regclass('barrier_runtime.layout') is null").fetchone()[0])


def read_target(connection: Any, schema: str, table: str, key: Sequence[str], where: str) -> PostgresTarget:
    """Look the table up and check all that can be known without rows. `key` is empty for inserts. Raises
    `InvalidJob`."""
    shown = f"{schema}.{table}"
    kind = connection.execute(
        "select c.oid, c.relkind::text, row_security_active(c.oid), has_any_column_privilege(c.oid, 'insert'), "
        "has_any_column_privilege(c.oid, 'update') and has_any_column_privilege(c.oid, 'select'), "
        "has_database_privilege(current_database(), 'temporary'), current_user "
        "from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s",
        (schema, table),
    ).fetchone()
    if kind is None:
        (database,) = connection.execute("select current_database()").fetchone()
        raise InvalidJob(
            f"{where}: there is no table {shown} in database {database!r}: create it, or correct table= and schema="
        )
    oid, relation, row_security, may_insert, may_update, may_stage, user = kind
    if relation not in ("r", "p"):
        raise InvalidJob(f"{where}: {shown} is not a table (it may be a view or a foreign table): name a table")
    if row_security:
        raise InvalidJob(
            f"{where}: row-level security is active on {shown} for user {user}, which excludes COPY: use the table's "
            "owner or a role with BYPASSRLS"
        )
    if not may_insert or (key and not may_update):
        rights = "INSERT, UPDATE, SELECT" if key else "INSERT"
        raise InvalidJob(f"{where}: user {user} may not write to {shown}: GRANT {rights} ON {shown} TO {user}")
    if not may_stage:
        raise InvalidJob(
            f"{where}: user {user} may not make temporary tables, in which rows are checked before they count: "
            f"GRANT TEMPORARY ON DATABASE … TO {user}"
        )
    infinities = connection.info.server_version >= _NUMERIC_INFINITY
    rows = connection.execute(_COLUMNS, (oid,)).fetchall()
    target = PostgresTarget(schema, table, oid, tuple(replace(Column(*row), infinities=infinities) for row in rows))
    if key:
        _check_key(connection, target, key, where)
    return target


def _check_key(connection: Any, target: PostgresTarget, key: Sequence[str], where: str) -> None:
    names = [column.name for column in target.columns]
    for column in key:
        if column not in names:
            raise InvalidJob(
                f"{where}: the key column {column!r} is not in table {target.shown}, which has {', '.join(names)}"
            )
    unique = [set(row[0]) for row in connection.execute(_UNIQUE, (target.oid,)).fetchall()]
    if set(key) not in unique:
        listed = ", ".join(key)
        raise InvalidJob(
            f"{where}: mode='upsert' with key=({listed}) needs a unique index on exactly these columns, and table "
            f"{target.shown} has none (partial, deferrable and expression indexes do not count): "
            f"ALTER TABLE {target.shown} ADD UNIQUE ({listed})"
        )
    for column, shown, collation, base in connection.execute(_COLLATIONS, (target.oid, list(key))).fetchall():
        kind = "text" if base == "citext" else shown
        raise InvalidJob(
            f"{where}: key column {column!r} of table {target.shown} is {shown}"
            f"{f' with the collation {collation}' if base != 'citext' else ''}, to which different texts are one key, "
            f"so the last of their rows would replace the others: ALTER TABLE {target.shown} ALTER COLUMN {column} "
            f'TYPE {kind} COLLATE "C"'
        )


def make_check_table(connection: Any, target: PostgresTarget, columns: Sequence[str], key: Sequence[str]) -> None:
    """A temporary table `pg_temp.barrier_runtime_check` that takes exactly the rows that `target` would, as far as
    types, NOT NULL and CHECK constraints go. It never holds rows for longer than a transaction and is not logged."""
    sql = load_psycopg().sql
    check, identifier = sql.Identifier("pg_temp", "barrier_runtime_check"), sql.Identifier
    execute = connection.execute
    execute(
        sql.SQL("create temporary table barrier_runtime_check (like {}) on commit delete rows").format(
            identifier(target.schema, target.table)
        )
    )
    for column in target.columns:
        if column.name not in columns:
            execute(sql.SQL("alter table {} drop column {}").format(check, identifier(column.name)))
    for column_name in key:
        execute(sql.SQL("alter table {} alter {} set not null").format(check, identifier(column_name)))
    for name, definition in execute(_CHECKS, (target.oid, target.oid, list(columns))).fetchall():
        execute(sql.SQL("alter table {} add constraint {} ").format(check, identifier(name)) + sql.SQL(definition))


def copy_into(connection: Any, table: Any, columns: Sequence[str], parts: Sequence[bytes]) -> None:
    """`COPY table (columns) FROM STDIN`; `table`: a `psycopg.sql.Identifier`."""
    sql = load_psycopg().sql
    statement = sql.SQL("copy {} ({}) from stdin (format csv, encoding 'UTF8')").format(
        table, sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), 1 << 18):
                copy.write(view[start : start + (1 << 18)])
