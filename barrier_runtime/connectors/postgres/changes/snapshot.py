"""Snapshot of the tables as the job begins; the driver copies the rows into the job's storage, once.

The server exports a snapshot of the moment at which the slot's log begins. The export ends with the session that made
the slot: restarted slots could not read the rows from the server again.

    1 publication · 2 slot · 3 objects `<id>/<n>.parquet` · 4 `<id>/staging.json` · 5 `current.json`

| the driver dies ...  | then                                                                     |
|----------------------|--------------------------------------------------------------------------|
| before 5             | the next run starts again, and drops the slot or refuses that of `slot=` |
| after 5              | the next run finds `current.json` and copies nothing                     |
| two drivers at once  | the second to write `current.json` drops its slot and raises             |
"""

import io
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from barrier_runtime.connectors.postgres.changes.rows import ChangedTable
from barrier_runtime.connectors.postgres.changes.values import from_text
from barrier_runtime.connectors.postgres.session import load_psycopg
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import Format, VersionedDecoder

STAGING_VERSION = 1
_CHUNK_BYTES = 8 << 20  # bytes of text
_CHUNK_ROWS = 65_536


class StagedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    chunks: int
    rows: int


class SnapshotStaging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record of a staged snapshot.

    `taken_us`: by the server clock, before everything in the log. `lsn`: start of the slot's log; `end`: where reading
    ends, or None. `prefix` begins the keys of the objects.
    """

    id: str
    system: str
    slot: str
    publication: str
    lsn: int
    taken_us: int
    end: int | None
    prefix: str
    form: str  # positions count rows of this form
    tables: list[StagedTable]
    version: int = STAGING_VERSION

    def key(self, chunk: int) -> str:
        return f"{self.prefix}{chunk:08d}.parquet"

    @property
    def record_key(self) -> str:
        return f"{self.prefix}staging.json"

    @property
    def chunks(self) -> int:
        return sum(table.chunks for table in self.tables)

    def table_of(self, chunk: int) -> str:
        for table in self.tables:
            if chunk < table.chunks:
                return table.name
            chunk -= table.chunks
        raise IndexError(chunk)


_FORMAT = Format("{}", STAGING_VERSION, damaged="bring back an intact copy, or start without state (restore='none')")
_STAGING = VersionedDecoder(_FORMAT, msgspec.json.Decoder(SnapshotStaging))


class SnapshotPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Location of a staging's record, stored in a split."""

    storage: str
    record: str
    version: int = STAGING_VERSION


_PLACE = VersionedDecoder(_FORMAT, msgspec.json.Decoder(SnapshotPlace))


def decode_place(data: bytes, where: str) -> SnapshotPlace:
    return _PLACE.decode(data, where)


def decode_staging(data: bytes, where: str) -> SnapshotStaging:
    return _STAGING.decode(data, where)


def new_id() -> str:
    return uuid.uuid4().hex


def staging_prefix(paths: Paths, source: str, id: str) -> str:
    return paths.staged_source_file(source, id, "x").removesuffix("x")


def copy_tables(
    connection: Any, snapshot: str, tables: Sequence[ChangedTable], store: ObjectStore, prefix: str, where: str
) -> list[StagedTable]:
    """Copies the tables, read in the exported `snapshot`, into objects."""
    staged, chunk = [], 0
    sql = load_psycopg().sql
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))
        for table in tables:
            first, rows = chunk, 0
            for batch in _batches(connection, table, where):
                data = io.BytesIO()
                pq.write_table(pa.Table.from_batches([batch]), data)
                store.put(f"{prefix}{chunk:08d}.parquet", data.getvalue())
                chunk += 1
                rows += batch.num_rows
            staged.append(StagedTable(table.name, chunk - first, rows))
    return staged


def read_chunk(data: bytes, where: str) -> pa.RecordBatch:
    try:
        table = pq.read_table(io.BytesIO(data), use_threads=False).combine_chunks()
    except (pa.ArrowInvalid, OSError) as error:
        raise _FORMAT.unreadable(error, where) from error
    return table.to_batches()[0]


def _batches(connection: Any, table: ChangedTable, where: str) -> Iterator[pa.RecordBatch]:
    """Yields chunks of whole rows: the server sends single rows."""
    sql = load_psycopg().sql
    statement = sql.SQL("copy (select {} from {}) to stdout (format csv, force_quote *)").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        sql.Identifier(*table.name.split(".", 1)),
    )
    rows: list[bytes] = []
    size = 0
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for data in copy:
            rows.append(bytes(data))
            size += len(data)
            if size >= _CHUNK_BYTES or len(rows) >= _CHUNK_ROWS:
                yield _parsed(b"".join(rows), table, where)
                rows, size = [], 0
    if rows:
        yield _parsed(b"".join(rows), table, where)


def _parsed(text: bytes, table: ChangedTable, where: str) -> pa.RecordBatch:
    names = [column.name for column in table.columns]
    rows = pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    where = f"{where}, table {table.name}"
    columns = [from_text(rows.column(column.name).combine_chunks(), column, where) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([(c.name, c.type) for c in table.columns]))
