"""Exactly-once rows in a table of MySQL or MariaDB (protocol: `sink_bases/sql`).

A user who may not create the table of marks, `barrier_runtime_commits`, needs SELECT, INSERT and UPDATE on it, after
another user has started the job once.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.mysql import session
from barrier_runtime.connectors.mysql.columns import MYSQL_COLUMNS, MySQLColumn
from barrier_runtime.connectors.mysql.session import Server, load_pymysql, server_of
from barrier_runtime.connectors.sink_bases.sql.columns import Fitted, checked
from barrier_runtime.connectors.sink_bases.sql.dialect import SqlTarget, StatementDialect, check_key
from barrier_runtime.connectors.sink_bases.sql.sink import Mode, SqlSink
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.rows import preview
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.versioned import Format

LAYOUT_VERSION = 1
_LAYOUT = Format(
    "{}: the table barrier_runtime_commits of the database",
    LAYOUT_VERSION,
    damaged="use another database",
    newer="use the release that made it or a newer one, or another database",
)
_COMMENT = "layout {} of barrier-runtime: which checkpoints are in the tables of this database"
_MAKE = f"""
create table if not exists barrier_runtime_commits (
    owner binary(32) primary key, job text not null, sink text not null, lineage text not null,
    checkpoint bigint not null, committed_at timestamp(6) not null default current_timestamp(6) on update
    current_timestamp(6)
) engine = InnoDB default charset = utf8mb4 comment = '{_COMMENT.format(LAYOUT_VERSION)}'
"""
_COLUMNS = """
select column_name, column_type, data_type, is_nullable, column_default, extra, generation_expression,
       character_maximum_length, character_octet_length, numeric_precision, numeric_scale, datetime_precision,
       character_set_name, collation_name
from information_schema.columns where table_schema = %s and table_name = %s order by ordinal_position
"""
_UNIQUE = """
select index_name, column_name, sub_part from information_schema.statistics
where table_schema = %s and table_name = %s and non_unique = 0
"""
_JSON_VALID = re.compile(r"json_valid\(`(.+)`\)")
_AROUND_A_VALUE = 8  # bytes of a statement: quotes, a comma, the name of the character set
_log = logging.getLogger("barrier_runtime.mysql")


@dataclass(frozen=True)
class MySQLTarget(SqlTarget):
    """Table with the columns of each `unique` index. `packet`: maximum bytes of a statement."""

    unique: tuple[frozenset[str], ...]
    packet: int


class MySQLDialect(StatementDialect):
    """Dialect for a server; `call_s`: the longest wait for an answer, in seconds."""

    name = "MySQL"
    column_table = MYSQL_COLUMNS
    quote = "`"
    mark_owner = "owner = %(owner)s"
    make_mark = (
        "insert ignore into barrier_runtime_commits (owner, job, sink, lineage, checkpoint) "
        "values (%(owner)s, %(job)s, %(sink)s, %(lineage)s, 0)"
    )

    def __init__(self, server: Server, call_s: float) -> None:
        self.server = server
        self._call_s = call_s

    @property
    def place(self) -> str:
        return self.server.place

    def errors(self) -> tuple[type[Exception], ...]:
        return (load_pymysql().err.Error, RuntimeError)

    def connect(self, where: str) -> Any:
        return session.connect(self.server, self._call_s)

    def is_lost(self, error: Exception) -> bool:
        return session.is_lost(error)

    def translated(self, error: Exception, failure: str) -> BarrierRuntimeError:
        return session.translated(error, failure)

    def end(self, connection: Any) -> None:
        connection._force_close()  # a regular close may wait for a dead server

    def read_target(self, connection: Any, table: str, key: Sequence[str], where: str) -> MySQLTarget:
        database, cursor = self.server.database, connection.cursor()
        cursor.execute(
            "select table_type, engine from information_schema.tables where table_schema = %s and table_name = %s",
            (database, table),
        )
        found = cursor.fetchone()
        if found is None:
            raise InvalidJob(
                f"{where}: there is no table {table!r} in database {database!r}, or this user may not see it: create "
                "it, or correct its name"
            )
        if found[0] != "BASE TABLE" or str(found[1]).lower() != "innodb":
            raise InvalidJob(
                f"{where}: {table} is a {found[0].lower()} of the engine {found[1]}, which has no transactions: use a "
                f"table of InnoDB (ALTER TABLE {table} ENGINE = InnoDB)"
            )
        cursor.execute(_COLUMNS, (database, table))
        columns = tuple(_column(row) for row in cursor.fetchall())
        if valid := _json_columns(cursor, database, table):
            columns = tuple(replace(each, base="json") if each.name in valid else each for each in columns)
        cursor.execute(_UNIQUE, (database, table))
        indexes: dict[str, set[str]] = {}
        of_a_part = set()
        for index, column, sub_part in cursor.fetchall():
            indexes.setdefault(index, set()).add(column)
            if sub_part is not None:
                of_a_part.add(index)
        keys = [each for each in columns if each.name in key]
        _check_collations(cursor, keys, table, where)
        for each in keys:
            if not each.not_null:
                raise InvalidJob(
                    f"{where}: key column {each.name!r} of table {table} may be null, and rows with a null key never "
                    f"meet: ALTER TABLE {table} MODIFY {each.name} {each.shown} NOT NULL"
                )
        check_key(columns, (names for index, names in indexes.items() if index not in of_a_part), key, table, where)
        cursor.execute("select @@max_allowed_packet, @@innodb_flush_log_at_trx_commit")
        packet, flushing = cursor.fetchone()
        if flushing != 1:
            _log.warning(
                "%s: innodb_flush_log_at_trx_commit is %s: rows that this server has confirmed, and their mark, are "
                "lost when its machine dies. Set it to 1",
                *(where, flushing),
            )
        return MySQLTarget(table, columns, tuple(frozenset(names) for names in indexes.values()), int(packet))

    def make_marks(self, connection: Any, where: str) -> None:
        asked = "select table_comment from information_schema.tables where table_schema = %s and table_name = %s"
        given = (self.server.database, self.marks)
        found = self.execute(connection, asked, given).fetchone()
        if found is None:
            self.execute(connection, _MAKE)
            found = self.execute(connection, asked, given).fetchone()
        number = re.match(r"layout (\d+)", str(found[0]) if found else "")
        _LAYOUT.check(int(number[1]) if number else 0, where)

    def check_columns(self, target: Any, key: Sequence[str], names: Sequence[str], where: str) -> None:
        """Raises `InvalidJob` if a row of another key could be replaced: every unique index counts."""
        counted = {column.name for column in target.columns if getattr(column, "counted", False)} - set(names)
        for index in target.unique if key else ():
            if not index >= set(key) and not index & counted:
                raise InvalidJob(
                    f"{where}: table {target.shown} has another unique index, of {', '.join(sorted(index))}, and a row "
                    "that meets that one would replace the row it finds, whatever its key: drop the index or its "
                    "uniqueness, or use mode='insert'"
                )

    def checked(self, rows: pa.RecordBatch, fits: Sequence[Fitted], target: Any, where: str) -> pa.RecordBatch:
        made = checked(rows, fits, target.shown, where)
        size = pa.array([0] * made.num_rows, pa.int64())
        for values in made.columns:
            size = pc.add(size, _bytes_of(values))
        largest = pc.max(size).as_py() or 0
        if largest > target.packet // 2:  # each byte may need an escape
            row = pc.index(size, largest).as_py()
            raise InvalidJob(
                f"{where}: a row of {largest} bytes may not fit into one statement: raise max_allowed_packet of the "
                f"server ({target.packet} bytes) above twice that, or make the row smaller: {preview(rows, row)}"
            )
        return made

    def insert(self, cursor: Any, statement: str, rows: list[tuple[Any, ...]], target: Any) -> None:
        cursor.max_stmt_length = min(cursor.max_stmt_length, target.packet // 2)
        cursor.keep_last()
        cursor.executemany(statement, rows)

    def inserted(self, cursor: Any) -> None:
        cursor.send_and_commit()

    def row_statement(self, target: Any, names: Sequence[str], key: Sequence[str]) -> str:
        insert = self.insert_statement(target, names, "%s")
        if not key:
            return insert
        changed = map(self.quoted, [name for name in names if name not in key] or key)
        return f"{insert} on duplicate key update " + ", ".join(f"{name} = values({name})" for name in changed)

    def quoted(self, name: str) -> str:
        return super().quoted(name).replace("%", "%%")


def _bytes_of(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        lengths = pc.fill_null(pc.binary_length(values), 0).cast(pa.int64())
        return pc.add(lengths, _AROUND_A_VALUE)
    return pa.array([32] * len(values), pa.int64())


def _json_columns(cursor: Any, database: str, table: str) -> set[str]:
    """Columns of the type json in MariaDB: text with a CHECK."""
    cursor.execute("select version()")
    if "mariadb" not in str(cursor.fetchone()[0]).lower():
        return set()
    cursor.execute(
        "select check_clause from information_schema.check_constraints "
        "where constraint_schema = %s and table_name = %s",
        (database, table),
    )
    found = (_JSON_VALID.fullmatch(str(clause)) for (clause,) in cursor.fetchall())
    return {match[1].replace("``", "`") for match in found if match}


def _check_collations(cursor: Any, key: Sequence[MySQLColumn], table: str, where: str) -> None:
    for column in key:
        if column.tells_texts_apart:
            continue
        cursor.execute(
            "select collation_name from information_schema.collations where collation_name in "
            "('utf8mb4_0900_bin', 'utf8mb4_nopad_bin', 'utf8mb4_bin') order by collation_name = 'utf8mb4_bin'"
        )
        ((exact,), *_) = cursor.fetchall()
        raise InvalidJob(
            f"{where}: key column {column.name!r} of table {table} has the collation {column.collation}, to which "
            "different texts (in case, accents or trailing spaces) are one key, so the last of their rows would "
            f"replace the others: ALTER TABLE {table} MODIFY {column.name} {column.shown} CHARACTER SET utf8mb4 "
            f"COLLATE {exact} NOT NULL"
        )


def _column(row: Sequence[Any]) -> MySQLColumn:
    name, shown, base, nullable, default, extra, generation = row[:7]
    characters, octets, precision, scale, second_digits, charset, collation = row[7:]
    extra, base = str(extra or "").lower(), str(base).lower()
    return MySQLColumn(
        name=name,
        shown=str(shown),
        base=base,
        unsigned="unsigned" in str(shown),
        not_null=nullable == "NO",
        filled=default is not None or "auto_increment" in extra,
        counted="auto_increment" in extra,
        generated=bool(generation),
        characters=characters,
        octets=octets,
        precision=int(precision or 0),
        scale=int(scale or 0),
        second_digits=int(second_digits or 0),
        charset=charset,
        collation=collation,
    )


@kinds_checked
class MySQLSink(SqlSink):
    """Writes rows into `table`, a table of InnoDB; columns match by name, types as in docs/mysql.md.

    Needs MySQL 5.7 or MariaDB 10.3, or newer.

    `url`: `mysql://user@host:port/database`, with `?ssl_ca=/path` for TLS. Give a password by MYSQL_PWD or ~/.my.cnf,
    on every host that runs slots; a password in the url is never shown or stored.

    `mode="upsert"`: a row replaces the row with equal `key` columns, which have a unique index, are NOT NULL and, if
    text, have a binary collation. `call_s`: the longest wait for an answer, in seconds. `max_bytes_in_memory`: Arrow
    bytes of a subtask's open transaction before a part is staged early. The sink keeps marks in the table
    `barrier_runtime_commits`.

    Rows that violate the table itself (a unique or foreign key, a CHECK, a trigger) fail the commit, which is retried
    until a person has changed the table.

    >>> MySQLSink("mysql://app@db/shop", "totals", mode="upsert", key=["shop"])  # doctest: +SKIP
    """

    kind: ClassVar[str] = "mysql"

    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: Mode = "insert",
        key: str | Sequence[str] = (),
        max_bytes_in_memory: int = 32 << 20,
        call_s: float = 60.0,
    ) -> None:
        if not table or "." in table:
            raise InvalidJob(f"MySQLSink: table={table!r}: give the name of a table; the url names its database")
        if not 0 < call_s <= 86_400:
            raise InvalidJob(f"MySQLSink: call_s={call_s!r}: give seconds, up to a day")
        self._server = server_of(url)
        self.call_s = call_s
        dialect = MySQLDialect(self._server, call_s)
        super().__init__(dialect, table, mode=mode, key=key, max_bytes_in_memory=max_bytes_in_memory)

    def settings(self) -> dict[str, Any]:
        return {"url": self._server.url, **super().settings(), "call_s": self.call_s}
