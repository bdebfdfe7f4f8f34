"""The table that a MySQL sink writes to: what it is, and whether it can be written; and our own table beside it.

`barrier_runtime_commits`, in the target's database, has a row per job, sink and lineage: the last checkpoint whose rows
are in the target. It moves in the transaction that writes the rows. It is made when it is not there; a user that may
not create tables needs somebody else to start the job once, and SELECT, INSERT and UPDATE on it.
"""

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from barrier_runtime.connectors.mysql.columns import TableColumn
from barrier_runtime.connectors.sink_bases.decided_batch import DecidedBatch
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.versioned import Format

COMMITS = "barrier_runtime_commits"
LAYOUT_VERSION = 1
_LAYOUT = Format(
    "{}: the table barrier_runtime_commits of the database",
    LAYOUT_VERSION,
    damaged="use another database",
    newer="use the release that made it or a newer one, or another database",
)
_COMMENT = "layout {} of barrier-runtime: which checkpoints are in the tables of this database"
_MAKE = f"""
create table if not exists {COMMITS} (
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
_log = logging.getLogger("barrier_runtime.mysql")


@dataclass(frozen=True)
class MySQLTarget:
    """A table as it was when the sink opened. `unique`: the columns of each unique index; `packet`: bytes that a
    statement may have."""

    table: str
    columns: tuple[TableColumn, ...]
    unique: tuple[frozenset[str], ...]
    packet: int

    def check_key(self, key: Sequence[str], names: Sequence[str], where: str) -> None:
        """Raises `InvalidJob` where a row with columns `names` could replace another one than that of its key: MySQL
        replaces what any unique index finds."""
        counted = {column.name for column in self.columns if column.counted} - set(names)
        for index in self.unique:
            if not index >= set(key) and not index & counted:
                raise InvalidJob(
                    f"{where}: table {self.table} has another unique index, of {', '.join(sorted(index))}, and a row "
                    "that meets that one would replace the row it finds, whatever its key: drop the index or its "
                    "uniqueness, or use mode='insert'"
                )


def read_target(cursor: Any, database: str, table: str, key: Sequence[str], where: str) -> MySQLTarget:
    """Look the table up and check all that can be known without rows. `key` is empty for inserts. Raises
    `InvalidJob`."""
    cursor.execute(
        "select table_type, engine from information_schema.tables where table_schema = %s and table_name = %s",
        (database, table),
    )
    found = cursor.fetchone()
    if found is None:
        raise InvalidJob(
            f"{where}: there is no table {table!r} in database {database!r}, or this user may not see it: create it, "
            "or correct its name"
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
    _check_collations(cursor, [each for each in columns if each.name in key], table, where)
    _check_key(
        columns, {frozenset(names) for index, names in indexes.items() if index not in of_a_part}, key, table, where
    )
    cursor.execute("select @@max_allowed_packet, @@innodb_flush_log_at_trx_commit")
    packet, flushing = cursor.fetchone()
    if flushing != 1:
        _log.warning(
            "%s: innodb_flush_log_at_trx_commit is %s: rows that this server has confirmed, and their mark, are lost "
            "when its machine dies. Set it to 1",
            *(where, flushing),
        )
    return MySQLTarget(table, columns, tuple(frozenset(names) for names in indexes.values()), int(packet))


def _json_columns(cursor: Any, database: str, table: str) -> set[str]:
    """Of MariaDB: columns of the type json, which it has as text with a CHECK."""
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


def _check_key(
    columns: Sequence[TableColumn], unique: set[frozenset[str]], key: Sequence[str], table: str, where: str
) -> None:
    if not key:
        return
    there = {column.name: column for column in columns}
    for name in key:
        if name not in there:
            raise InvalidJob(f"{where}: table {table} has no key column {name!r}; it has {', '.join(there)}")
        if not there[name].not_null:
            raise InvalidJob(
                f"{where}: key column {name!r} of table {table} may be null, and rows with a null key never meet: "
                f"ALTER TABLE {table} MODIFY {name} {there[name].shown} NOT NULL"
            )
    if frozenset(key) not in unique:
        listed = ", ".join(key)
        raise InvalidJob(
            f"{where}: table {table} has no unique index of exactly {listed}: ALTER TABLE {table} ADD PRIMARY KEY "
            f"({listed}), or ADD UNIQUE ({listed})"
        )


def _check_collations(cursor: Any, key: Sequence[TableColumn], table: str, where: str) -> None:
    """Texts that differ in case, accents or the like are one key to most collations, and the last row would stay."""
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


def _column(row: Sequence[Any]) -> TableColumn:
    name, shown, base, nullable, default, extra, generation = row[:7]
    characters, octets, precision, scale, second_digits, charset, collation = row[7:]
    extra, base = str(extra or "").lower(), str(base).lower()
    return TableColumn(
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


# ------------------------------------------------------------ what is visible


def make_commits(cursor: Any, database: str, where: str) -> None:
    """Our table, unless it is there; several may try at once. Raises `Corrupt` for one of a newer release."""
    asked = "select table_comment from information_schema.tables where table_schema = %s and table_name = %s"
    cursor.execute(asked, (database, COMMITS))
    found = cursor.fetchone()
    if found is None:
        cursor.execute(_MAKE)
        cursor.execute(asked, (database, COMMITS))
        found = cursor.fetchone()
    number = re.match(r"layout (\d+)", str(found[0]) if found else "")
    _LAYOUT.check(int(number[1]) if number else 0, where)


class DeliveryMark:
    """The last checkpoint of one lineage whose rows are in the target. `known`: never more than the row of our table
    says, which only rises."""

    def __init__(self, job: str, sink: str, lineage: str) -> None:
        self._names = (job, sink, lineage)
        self._owner = hashlib.sha256("\x00".join(self._names).encode()).digest()
        self.is_there = False
        self.known = 0

    def make(self, cursor: Any) -> None:
        """The row, unless it is there. In a transaction of its own: two that insert it at once would deadlock later."""
        cursor.execute(
            f"insert ignore into {COMMITS} (owner, job, sink, lineage, checkpoint) values (%s, %s, %s, %s, %s)",
            (self._owner, *self._names, self.known),
        )
        self.looked_up(cursor)
        self.is_there = True

    def looked_up(self, cursor: Any) -> int:
        cursor.execute(f"select checkpoint from {COMMITS} where owner = %s", (self._owner,))
        found = cursor.fetchone()
        if found is None:
            self.is_there = False
            raise Unavailable(f"{COMMITS} has lost the row of job {self._names[0]!r}: the next attempt makes it again")
        self.known = max(self.known, int(found[0]))
        return self.known

    def raised(self, cursor: Any, batches: Sequence[DecidedBatch]) -> list[DecidedBatch]:
        """Those of `batches`, oldest first, that this transaction has to write; if there are any, it has raised the row
        to the last of them, and nobody else raises it before the transaction ends."""
        while due := [batch for batch in batches if batch.checkpoint > self.known]:
            changed = cursor.execute(
                f"update {COMMITS} set checkpoint = %s where owner = %s and checkpoint = %s",
                (due[-1].checkpoint, self._owner, self.known),
            )
            if changed:
                return due
            self.looked_up(cursor)  # somebody else has raised it
        return []
