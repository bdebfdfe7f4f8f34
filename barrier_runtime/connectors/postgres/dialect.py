"""PostgreSQL dialect: catalog of a table, checks by the server, commits by COPY.

The sink's tables are in the schema `barrier_runtime`. A role that may not create them needs USAGE on the schema and all
rights to its tables, after another role has started the job once.
"""

import contextlib
import itertools
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from barrier_runtime.connectors.postgres import session
from barrier_runtime.connectors.postgres.columns import POSTGRES_COLUMNS, Column
from barrier_runtime.connectors.postgres.session import Copy, load_psycopg, shown_server
from barrier_runtime.connectors.sink_bases.sql.dialect import MOST_ROWS, Dialect, SqlTarget, check_key
from barrier_runtime.connectors.sink_bases.write_ahead_committable import StagedRows
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.versioned import Format

LAYOUT_VERSION = 2
_LAYOUT = Format(
    "{}: the schema barrier_runtime of the database",
    LAYOUT_VERSION,
    damaged="use another database",
    newer="use the release that made them or a newer one, or another database",
)
_CALL_S = 600.0
_NUMERIC_INFINITY = 140_000  # first server version with infinite `numeric` values
LAYOUT_LOCK = 0x6261_7272_6965_7201  # advisory lock while the tables are created
_ELSEWHERE = "barrier_runtime: the mark is elsewhere"
_TABLES = """
create schema if not exists barrier_runtime;
create table barrier_runtime.layout (version int primary key);
create table barrier_runtime.commits (
    job text, sink text, lineage text, checkpoint bigint not null, committed_at timestamptz not null default now(),
    primary key (job, sink, lineage)
);
"""
_COLUMNS = """
select a.attname, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname),
       a.attnotnull or t.typnotnull, a.atthasdef or a.attidentity <> '' or t.typdefault is not null,
       a.attgenerated <> '' or a.attidentity = 'a', e.typname,
       case when t.typtype = 'd' then t.typtypmod else a.atttypmod end, coalesce(b.typtype, t.typtype) = 'e'
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


_TEMPORARY: WeakKeyDictionary[Any, Sequence[str]] = WeakKeyDictionary()  # connection -> columns of its temporary table


@dataclass(frozen=True)
class PostgresTarget(SqlTarget):
    schema: str
    table: str
    oid: int

    @property
    def identifier(self) -> Any:
        return load_psycopg().sql.Identifier(self.schema, self.table)


class PostgresDialect(Dialect):
    """Dialect for a server with libpq's `parameters`; `secrets` are never shown.

    After `call_s` seconds the client cuts a unit of work: a stalled server does not enforce its own timeouts.
    """

    name = "PostgreSQL"
    column_table = POSTGRES_COLUMNS
    marks = "barrier_runtime.commits"
    make_mark = (
        "insert into barrier_runtime.commits (job, sink, lineage, checkpoint) "
        "values (%(job)s, %(sink)s, %(lineage)s, 0) on conflict do nothing"
    )

    def __init__(
        self,
        parameters: Mapping[str, str],
        secrets: Mapping[str, str],
        schema: str,
        statement_timeout_s: float,
        call_s: float | None = None,
    ) -> None:
        self.parameters = parameters
        self.schema = schema
        self._secrets = secrets
        self._statement_timeout_s = statement_timeout_s
        self._call_s = call_s or max(_CALL_S, 10 * statement_timeout_s)
        self.layout = LAYOUT_VERSION

    @property
    def place(self) -> str:
        return shown_server(self.parameters)

    def errors(self) -> tuple[type[Exception], ...]:
        return (load_psycopg().Error,)

    def connect(self, where: str) -> Any:
        return session.connect({**self.parameters, **self._secrets}, self._statement_timeout_s, where)

    def is_lost(self, error: Exception) -> bool:
        return session.is_lost(error)

    def translated(self, error: Exception, failure: str) -> BarrierRuntimeError:
        return session.translated(error, failure)

    @contextlib.contextmanager
    def bounded(self, connection: Any) -> Iterator[None]:
        watch = threading.Timer(self._call_s, session.cut, (connection,))
        watch.daemon = True
        watch.start()
        try:
            yield
        except BaseException:
            self.end(connection)  # under the watch: closing may wait for a stalled server
            raise
        finally:
            watch.cancel()

    def read_target(self, connection: Any, table: str, key: Sequence[str], where: str) -> PostgresTarget:
        shown = f"{self.schema}.{table}"
        kind = connection.execute(
            "select c.oid, c.relkind::text, row_security_active(c.oid), has_any_column_privilege(c.oid, 'insert'), "
            "has_any_column_privilege(c.oid, 'update') and has_any_column_privilege(c.oid, 'select'), "
            "has_database_privilege(current_database(), 'temporary'), current_user "
            "from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s",
            (self.schema, table),
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
                f"{where}: row-level security is active on {shown} for user {user}, which excludes COPY: use the "
                "table's owner or a role with BYPASSRLS"
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
        columns = tuple(replace(Column(*row), infinities=infinities) for row in rows)
        unique = [names for (names,) in connection.execute(_UNIQUE, (oid,)).fetchall()]
        check_key(columns, unique, key, shown, where)
        _check_collations(connection, oid, key, shown, where)
        return PostgresTarget(shown, columns, self.schema, table, oid)

    def make_marks(self, connection: Any, where: str) -> None:
        if _is_missing(connection):
            connection.execute("select pg_advisory_lock(%s)", (LAYOUT_LOCK,))
            with connection.transaction():
                if _is_missing(connection):
                    connection.execute(_TABLES)
                    connection.execute("insert into barrier_runtime.layout values (%s)", (LAYOUT_VERSION,))
            connection.execute("select pg_advisory_unlock(%s)", (LAYOUT_LOCK,))
        (self.layout,) = connection.execute("select max(version) from barrier_runtime.layout").fetchone()
        _LAYOUT.check(self.layout, where)

    def check_rows(
        self, connection: Any, target: PostgresTarget, key: Sequence[str], columns: Sequence[str], data: bytes
    ) -> None:
        session.exchange(connection, [self._temporary(connection, target, key, columns)], [[data]])

    def deliver(
        self,
        connection: Any,
        target: Any,
        key: Sequence[str],
        raising: Mapping[str, Any],
        objects: Sequence[StagedRows],
        read: Iterable[Sequence[pa.RecordBatch]],
    ) -> bool:
        staged = (rows for each in read for rows in each)
        first = next(staged)
        columns = columns_of(first)

        def copied(rows: pa.RecordBatch) -> bytes:
            if columns_of(rows) != columns:  # a group of several checkpoints is then halved
                raise InvalidJob(f"rows of columns {columns} and {columns_of(rows)} cannot be in one commit")
            data: bytes = rows.column(0)[0].as_buffer()
            return data

        everything = map(copied, itertools.chain([first], staged))
        windows = _windows(objects)
        copies = (itertools.islice(everything, count) for count in windows)
        return self.copy_in(connection, target, key, raising, columns, copies, len(windows))

    def copy_in(
        self,
        connection: Any,
        target: PostgresTarget,
        key: Sequence[str],
        raising: Mapping[str, Any],
        columns: Sequence[str],
        copies: Iterable[Iterable[bytes]],
        count: int,
        more: Sequence[tuple[Any, Mapping[str, Any] | None]] = (),
    ) -> bool:
        """Raises the mark, copies `count` windows of CSV and runs `more`, in one message.

        `statement_timeout` bounds a window. Returns False if another process has moved the mark.
        """
        one_window: list[Any] = [Copy(target.identifier, columns)]
        if key:
            one_window = [
                self._temporary(connection, target, key, columns, ordered=True),
                (_upsert(target.identifier, columns, key), None),
                ("truncate pg_temp.barrier_runtime_check", None),
            ]
        raise_mark = (
            f"with raised as ({self.raise_mark} returning 1) "
            f"select case when count(*) = 1 then 1 else ('{_ELSEWHERE}' || count(*))::int end from raised"
        )
        try:
            session.exchange(connection, [(raise_mark, raising), *one_window * count, *more], copies)
        except load_psycopg().errors.InvalidTextRepresentation as error:
            if _ELSEWHERE not in str(error):
                raise
            return False
        return True

    def _temporary(
        self,
        connection: Any,
        target: PostgresTarget,
        key: Sequence[str],
        columns: Sequence[str],
        *,
        ordered: bool = False,
    ) -> Copy:
        if _TEMPORARY.get(connection) != columns:
            connection.execute("drop table if exists pg_temp.barrier_runtime_check")
            make_check_table(connection, target, columns, key)
            if ordered:
                connection.execute(
                    "alter table pg_temp.barrier_runtime_check "
                    "add column barrier_runtime_order bigint generated always as identity"
                )
            _TEMPORARY[connection] = columns
        return Copy(load_psycopg().sql.Identifier("pg_temp", "barrier_runtime_check"), columns)


def staged_csv(data: bytes, columns: Sequence[str]) -> pa.RecordBatch:
    schema = pa.schema([pa.field("csv", pa.large_binary())], {"columns": json.dumps(list(columns))})
    return pa.RecordBatch.from_arrays([pa.array([data], pa.large_binary())], schema=schema)


def columns_of(staged: pa.RecordBatch) -> list[str]:
    names: list[str] = json.loads(staged.schema.metadata[b"columns"])
    return names


def _windows(objects: Sequence[StagedRows]) -> list[int]:
    windows: list[int] = []
    rows = 0
    for each in objects:
        rows += each.rows
        if not windows or rows > MOST_ROWS:
            windows.append(0)
            rows = each.rows
        windows[-1] += 1
    return windows


def _is_missing(connection: Any) -> bool:
    return bool(connection.execute("select to_regclass('barrier_runtime.layout') is null").fetchone()[0])


def _check_collations(connection: Any, oid: int, key: Sequence[str], shown_table: str, where: str) -> None:
    for column, shown, collation, base in connection.execute(_COLLATIONS, (oid, list(key))).fetchall():
        kind = "text" if base == "citext" else shown
        raise InvalidJob(
            f"{where}: key column {column!r} of table {shown_table} is {shown}"
            f"{f' with the collation {collation}' if base != 'citext' else ''}, to which different texts are one key, "
            f"so the last of their rows would replace the others: ALTER TABLE {shown_table} ALTER COLUMN {column} "
            f'TYPE {kind} COLLATE "C"'
        )


def make_check_table(connection: Any, target: PostgresTarget, columns: Sequence[str], key: Sequence[str]) -> None:
    """Creates `pg_temp.barrier_runtime_check` with the types, NOT NULL and CHECK of `target`."""
    sql = load_psycopg().sql
    check, identifier = sql.Identifier("pg_temp", "barrier_runtime_check"), sql.Identifier
    execute = connection.execute
    execute(
        sql.SQL("create temporary table barrier_runtime_check (like {}) on commit delete rows").format(
            target.identifier
        )
    )
    for column in target.columns:
        if column.name not in columns:
            execute(sql.SQL("alter table {} drop column {}").format(check, identifier(column.name)))
    for column_name in key:
        execute(sql.SQL("alter table {} alter {} set not null").format(check, identifier(column_name)))
    for name, definition in execute(_CHECKS, (target.oid, target.oid, list(columns))).fetchall():
        execute(sql.SQL("alter table {} add constraint {} ").format(check, identifier(name)) + sql.SQL(definition))


def _upsert(into: Any, columns: Sequence[str], key: Sequence[str]) -> Any:
    sql = load_psycopg().sql
    listed, keys = (sql.SQL(", ").join(map(sql.Identifier, names)) for names in (columns, key))
    others = [name for name in columns if name not in key]
    changes = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
    action = sql.SQL("do update set ") + changes if others else sql.SQL("do nothing")
    return sql.SQL(
        "insert into {into} ({listed}) select distinct on ({keys}) {listed} from pg_temp.barrier_runtime_check "
        "order by {keys}, barrier_runtime_order desc on conflict ({keys}) {action}"
    ).format(into=into, listed=listed, keys=keys, action=action)
