"""Parts shared by the tests of PostgreSQL's changes: private tables, sources staged by hand, and their readers."""

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from barrier_runtime.connectors.postgres.changes.source import ChangesReader, PostgresChanges, PostgresChangesSource
from tests.waiting import until


class ChangedTables:
    """Tables of a single test, an administrator's session, and the sources that read the tables."""

    def __init__(self, url: str, storage: Path) -> None:
        self.url = url
        self.storage = str(storage)
        self.connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self.made: list[PostgresChanges] = []

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement)

    def table(self, columns: str = "id int primary key, v text") -> str:
        name = f"changed_{uuid.uuid4().hex[:8]}"
        self.execute(f"create table {name} ({columns})")
        return name

    def source(self, *tables: str, staged: bool = True, **options: Any) -> PostgresChanges:
        source = PostgresChangesSource(self.url, tables, **options).named("changes")
        self.made.append(source)
        if staged:
            source.stage(f"job-{uuid.uuid4().hex[:8]}", self.storage, fresh=False)
        return source

    def slot_of(self, source: PostgresChanges) -> str:
        assert source._staged is not None
        return source._staged[1].slot

    def confirmed(self, source: PostgresChanges) -> int:
        """Bytes of the log up to which the server may forget."""
        row = self.connection.execute(
            "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = %s",
            (self.slot_of(source),),
        ).fetchone()
        assert row is not None, "the slot is gone"
        return int(row[0])

    def close(self) -> None:
        with contextlib.closing(psycopg.connect(self.url, autocommit=True)) as connection:
            for source in self.made:
                if source._staged is None:
                    continue
                slot = source._staged[1].slot

                def gone(slot: str = slot) -> bool:
                    connection.execute(
                        "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
                        "where slot_name = %s and not active",
                        (slot,),
                    )
                    rows = connection.execute("select 1 from pg_replication_slots where slot_name = %s", (slot,))
                    return rows.fetchone() is None

                until(gone, f"slot {slot} was free")
                connection.execute(f'drop publication if exists "{source._staged[1].publication}"')
        self.connection.close()


@contextlib.contextmanager
def reading(source: PostgresChanges, position: bytes | None = None) -> Iterator[ChangesReader]:
    """A private reader; the end closes the reader and the session."""
    reader = source.reader(source.splits(1)[0])
    if position is not None:
        reader.seek(position)
    reader.prepare()
    try:
        yield reader
    finally:
        reader.close()
        assert reader._feed is not None
        assert reader._feed.join(60), "the reader's thread did not end"


def rows_from(reader: ChangesReader, count: int, most: int | None = None) -> list[dict[str, Any]]:
    """The next `count` rows. `most`: maximum rows per poll."""
    rows: list[dict[str, Any]] = []

    def enough() -> bool:
        polled = reader.poll(min(most or count, count - len(rows)), time.time_ns())
        if polled is not None:
            rows.extend(polled.rows.to_pylist())
        return len(rows) >= count

    until(enough, f"{count} rows had come")
    return rows


def all_rows(reader: ChangesReader) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def over() -> bool:
        polled = reader.poll(1000, time.time_ns())
        if polled is not None:
            rows.extend(polled.rows.to_pylist())
        return reader.finished

    until(over, "the reader had finished")
    return rows


def told(rows: Sequence[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """(op, before, after) of form "changes"."""
    return [(row["op"], row["before"], row["after"]) for row in rows]
