"""PostgreSQL tables as streams of changes: a snapshot, then the log (logical replication).

The log is one sequence in commit order, hence a single split.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.postgres.changes import snapshot
from barrier_runtime.connectors.postgres.changes.feed import ChangeFeed
from barrier_runtime.connectors.postgres.changes.log_session import PART_BYTES, PART_ROWS, LoggedRows, SnapshotRows
from barrier_runtime.connectors.postgres.changes.position import (
    ChangePosition,
    decode_position,
    encode_position,
    parsed_lsn,
    shown_lsn,
)
from barrier_runtime.connectors.postgres.changes.rows import ChangedTable, ChangeRowLayout, Form
from barrier_runtime.connectors.postgres.changes.server import (
    check_server,
    connect,
    drop_publication,
    drop_slot,
    identify,
    look_at_slot,
    make_publication,
    read_table,
    server_time_us,
)
from barrier_runtime.connectors.postgres.session import digest, load_psycopg, parameters_of, shown_server, translated
from barrier_runtime.connectors.source import Polled, SourceSettings, Split
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths

_POLL_NS = 1_000_000_000  # rows wake the slot earlier
_NAME = 63  # bytes of a name on the server


@kinds_checked
@dataclass(frozen=True)
class PostgresChangesSource(SourceSettings):
    """Changes of `tables` ("orders" or "shop.orders"; without a schema: public) of a PostgreSQL database.

    `url`: as for `PostgresSink`. The server needs `wal_level = logical`, the user REPLICATION and SELECT.

    Unless `snapshot=False`, existing rows of all tables at one moment come first; then every change since, in commit
    order. `form="changes"`: columns `op` (r, c, u, d, t), `changed_at`, `lsn`, `xid`, structs `before` and `after`,
    `unchanged`. `form="upsert"`: the table's columns, `deleted` and `changed_at`, as `table_join` needs them. A stream
    of several tables has a struct per table; `read_postgres_changes` separates them.

    `slot`, `publication`: names on the server; by default each job and source has its own, made when the job starts
    without state and dropped when the job has finished. A slot keeps the server's log: drop the slot when you abandon
    the job. A named `publication` must have the tables, or is created.

    `as_text`: columns to read as PostgreSQL writes them. `unchanged`: if the log lacks a large value of an upsert
    (tables without REPLICA IDENTITY FULL), "fail" ends the job, "null" makes the value null. `until="current"`: the
    stream ends with the commits before the first start of the job.

    >>> flow.source("orders", PostgresChangesSource("postgresql://app@db/shop", ["orders"]))  # doctest: +SKIP
    """

    url: str = field(repr=False)  # may hold a password
    tables: str | Sequence[str]
    _: KW_ONLY
    form: Form = "changes"
    snapshot: bool = True
    slot: str | None = None
    publication: str | None = None
    as_text: Sequence[str] = ()
    unchanged: Literal["fail", "null"] = "fail"
    until: Literal["current"] | None = None

    def named(self, name: str) -> "PostgresChanges":
        """Reads the catalog. Raises `InvalidJob` if changes cannot be read, `Unavailable` without a server."""
        where = f"source {name!r}"
        if self.form not in ("changes", "upsert") or self.unchanged not in ("fail", "null"):
            raise InvalidJob(
                f"{where}: form={self.form!r}, unchanged={self.unchanged!r}: form is 'changes' or 'upsert', unchanged "
                "'fail' or 'null'"
            )
        if self.until not in (None, "current"):
            raise InvalidJob(f"{where}: until={self.until!r}: use 'current', or None")
        if not self.tables:
            raise InvalidJob(f"{where}: tables={self.tables!r}: give the name of a table, or a list of names")
        listed = [self.tables] if isinstance(self.tables, str) else self.tables
        tables = [table if "." in table else f"public.{table}" for table in listed]
        if len(set(tables)) < len(tables):
            raise InvalidJob(f"{where}: tables={self.tables!r}: a table is named twice")
        for given in (self.slot, self.publication):
            if given is not None and not (0 < len(given.encode()) <= _NAME and '"' not in given and "'" not in given):
                raise InvalidJob(f"{where}: {given!r} is not a name of a slot or publication: up to {_NAME} bytes")
        return PostgresChanges(name, self, tables, where)


class PostgresChanges:
    exactly_once = True
    positions_in = "changes of PostgreSQL"

    def __init__(self, name: str, given: PostgresChangesSource, tables: Sequence[str], where: str) -> None:
        self._name = name
        self._where = where
        self._given = given
        parameters, secrets = parameters_of(given.url)
        self._shown = shown_server(parameters)
        self._parameters = {**parameters, **secrets}
        self.tables: tuple[ChangedTable, ...] = self._asked(
            "looking at the tables",
            lambda connection: tuple(
                read_table(connection, table, given.as_text, given.form, where) for table in tables
            ),
        )
        self.layout = ChangeRowLayout(self.tables, given.form, unchanged_as_null=given.unchanged == "null", where=where)
        self._staged: tuple[str, snapshot.SnapshotStaging] | None = None

    @property
    def schema(self) -> pa.Schema:
        return self.layout.schema

    @property
    def endless(self) -> bool:
        return self._given.until is None

    def __repr__(self) -> str:
        return f"changes of {', '.join(table.name for table in self.tables)} at {self._shown}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        if self._staged is None:
            return [Split("not-staged")]
        storage, staging = self._staged
        payload = snapshot.SnapshotPlace(storage, staging.record_key)
        return [Split(f"changes-{staging.id}", msgspec.json.encode(payload))]

    def reader(self, split: Split) -> "ChangesReader":
        payload = snapshot.decode_place(split.payload, f"{self._where}: split {split.id}")
        store = open_store(payload.storage)
        record = get_or_none(store, payload.record)
        if record is None:
            raise InvalidJob(
                f"{self._where}: {payload.record} in {store.url} is gone, which says what slot is read: restore it "
                "from a backup, or start the job without state (restore='none')"
            )
        staging = snapshot.decode_staging(record, f"{self._where}: {payload.record}")
        return ChangesReader(self._parameters, staging, store, self.layout, self._where)

    # ------------------------------------------------------------ in the driver

    def stage(self, job: str, storage: str, *, fresh: bool) -> None:
        store, paths = open_store(storage), Paths(job)
        url = storage if storage.startswith(("s3://", "s3a://")) else store.url
        current = paths.staged_source_current(self._name)
        found = None if fresh else get_or_none(store, current)
        if found is None:
            staging = self._begin(store, paths, job, url, fresh)
        else:
            staging = snapshot.decode_staging(found, f"{self._where}: {current} in {store.url}")
        if [table.name for table in staging.tables] != [table.name for table in self.tables]:
            raise InvalidJob(
                f"{self._where}: job {job!r} reads {', '.join(table.name for table in staging.tables)} from its slot: "
                "read other tables by a source of another name, or start without state (restore='none')"
            )
        if staging.form != self.layout.form:
            raise InvalidJob(
                f"{self._where}: job {job!r} has positions in rows of form={staging.form!r}: keep that form, or start "
                "without state (restore='none')"
            )
        self._staged = (url, staging)

    def unstage(self, job: str, storage: str) -> None:
        store, paths = open_store(storage), Paths(job)
        current = paths.staged_source_current(self._name)
        listed = [found.key for found in store.list(paths.staged_source_prefix(self._name))]
        kept = (current, self._staged[1].record_key if self._staged else current)
        store.delete([key for key in listed if key not in kept])
        if self._staged is not None:
            staging, given = self._staged[1], self._given

            def drop(connection: Any) -> None:
                if given.slot is None:
                    drop_slot(connection, staging.slot)
                if given.publication is None:
                    drop_publication(connection, staging.publication)

            self._asked("dropping slot and publication", drop)

    def _begin(self, store: ObjectStore, paths: Paths, job: str, url: str, fresh: bool) -> snapshot.SnapshotStaging:
        id = snapshot.new_id()
        ours = f"barrier_{digest(job, url, self._name)}"
        slot = self._given.slot or f"{ours}_{id[:8]}"
        publication = self._given.publication or ours
        prefix = snapshot.staging_prefix(paths, self._name, id)
        self._asked("preparing", lambda connection: self._prepare(connection, ours, publication))
        made = False
        try:
            with self._connected(replication=True) as replication:
                system, _ = identify(replication)
                taken_us = self._asked("asking for the time", server_time_us)
                lsn, name = self._made_slot(replication, slot)
                made = name is not None
                tables = [snapshot.StagedTable(table.name, 0, 0) for table in self.tables]
                end = None
                with self._connected(replication=False) as connection:
                    if name is not None and self._given.snapshot:
                        where = self._where
                        tables = snapshot.copy_tables(connection, name, self.tables, store, prefix, where)
                    if self._given.until is not None:
                        end = _end_of_log(connection)
            form = self.layout.form
            staging = snapshot.SnapshotStaging(
                *(id, system, slot, publication, lsn, taken_us, end, prefix, form, tables)
            )
            data, current = msgspec.json.encode(staging), paths.staged_source_current(self._name)
            store.put(staging.record_key, data)
            if fresh:
                store.put(current, data)
            elif store.put_if_absent(current, data) is not PutOutcome.CREATED:
                raise Unavailable(
                    f"{self._where}: another driver has begun job {job!r} at the same time: start the program again"
                )
        except BaseException as error:
            if made:
                self._asked("dropping the slot", lambda connection: drop_slot(connection, slot))
            if isinstance(error, load_psycopg().Error):
                raise translated(error, f"{self._where}: taking a snapshot failed at {self._shown}") from error
            raise
        return staging

    def _prepare(self, connection: Any, ours: str, publication: str) -> None:
        check_server(connection, self._where)
        abandoned = "select slot_name from pg_replication_slots where slot_name like %s and not active"
        for (slot,) in connection.execute(abandoned, (ours.replace("_", r"\_") + r"\_%",)).fetchall():
            drop_slot(connection, slot)
        names = [table.name for table in self.tables]
        make_publication(connection, publication, names, ours=publication == ours, where=self._where)

    def _made_slot(self, replication: Any, slot: str) -> tuple[int, str | None]:
        """Start of the slot's log, and name of the snapshot; None for an existing slot."""
        if self._given.slot is not None:
            with self._connected(replication=False) as connection:
                state = look_at_slot(connection, slot)
            if state is not None and self._given.snapshot:
                raise InvalidJob(
                    f"{self._where}: there is a slot {slot!r} already, and a snapshot needs a new one: if nobody needs "
                    f"it, select pg_drop_replication_slot('{slot}'), or go on from where it is with snapshot=False"
                )
            if state is not None:
                return state.confirmed, None
        row = replication.execute(f'CREATE_REPLICATION_SLOT "{slot}" LOGICAL pgoutput EXPORT_SNAPSHOT').fetchone()
        return parsed_lsn(row[1]), str(row[2])

    def _connected(self, *, replication: bool) -> Any:
        return connect(self._parameters, replication=replication, name=f"barrier-runtime {self._name}"[:_NAME])

    def _asked(self, what: str, work: Callable[[Any], Any]) -> Any:
        psycopg = load_psycopg()
        try:
            with self._connected(replication=False) as connection:
                return work(connection)
        except psycopg.Error as error:
            raise translated(error, f"{self._where}: {what} failed at PostgreSQL {self._shown}") from error


def _end_of_log(connection: Any) -> int:
    """Position after all commits so far. Adds a message, by which a reader passes this position."""
    (end,) = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    connection.execute("select pg_logical_emit_message(true, 'barrier-runtime', 'end')")
    return parsed_lsn(end)


class ChangesReader:
    def __init__(
        self,
        parameters: dict[str, str],
        staging: snapshot.SnapshotStaging,
        store: ObjectStore,
        layout: ChangeRowLayout,
        where: str,
    ) -> None:
        self._parameters = parameters
        self._staging = staging
        self._store = store
        self._layout = layout
        self._where = where
        self._at = ChangePosition(staging.lsn, chunk=0)
        self._feed: ChangeFeed | None = None
        self._covered: deque[tuple[int, int]] = deque()  # checkpoint, and the position that it covers
        self._wake: Callable[[], None] = lambda: None
        self._polled_ns = 0
        self._finished = False

    @property
    def finished(self) -> bool:
        return self._finished

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def prepare(self) -> None:
        if self._feed is None:
            self._feed = ChangeFeed(
                *(self._parameters, self._staging, self._store, self._layout, self._at, self._wake, self._where)
            )

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.prepare()
        feed = self._feed
        assert feed is not None
        self._polled_ns = now_ns
        most = min(max_rows, PART_ROWS)
        over = feed.at_end  # read first: all rows before the end are then in the buffer
        parts, count, size = list[pa.RecordBatch](), 0, 0
        while count < most and size < PART_BYTES:
            item = feed.take()
            if item is None:
                self._finished = over
                break
            if isinstance(item, SnapshotRows):
                parts = [self._of_snapshot(item, feed, max_rows)]
                break
            if isinstance(item, LoggedRows):
                if item.rows.num_rows > most - count:
                    item, rest = item.split(most - count)
                    feed.put_back(rest)
                parts.append(item.rows)
                count += item.rows.num_rows
                size += item.rows.nbytes
            self._at = item.at
        if not parts and feed.failed is not None and not feed.waiting:
            raise feed.failed
        return Polled(_together(parts), now_ns) if any(part.num_rows for part in parts) else None

    def _of_snapshot(self, item: SnapshotRows, feed: ChangeFeed, max_rows: int) -> pa.RecordBatch:
        """Returns rows of the snapshot, all of which precede the log's."""
        rows = item.rows.slice(0, max_rows)
        if rows.num_rows < item.rows.num_rows:
            rest = SnapshotRows(item.table, item.chunk, item.first + rows.num_rows, item.rows.slice(rows.num_rows))
            feed.put_back(rest)
            self._at = ChangePosition(self._staging.lsn, chunk=item.chunk, row=rest.first)
        else:
            self._at = ChangePosition(self._staging.lsn, chunk=item.chunk + 1)
        return self._layout.of_snapshot(item.table, rows, self._staging.taken_us, self._staging.lsn)

    def next_due_ns(self) -> int | None:
        if self._feed is None or self._feed.waiting:
            return None
        return self._polled_ns + _POLL_NS

    def position(self) -> bytes:
        return encode_position(self._at)

    def seek(self, position: bytes) -> None:
        self._at = decode_position(position, self._where)
        if self._at.lsn < self._staging.lsn:
            raise InvalidJob(
                f"{self._where}: the checkpoint is at {shown_lsn(self._at.lsn)}, before the slot's beginning: restore "
                "another one"
            )

    def snapshotted(self, checkpoint: int) -> None:
        self._covered.append((checkpoint, self._at.lsn))

    def completed(self, checkpoint: int) -> None:
        lsn = None
        while self._covered and self._covered[0][0] <= checkpoint:
            lsn = self._covered.popleft()[1]
        if lsn is not None and self._feed is not None:
            self._feed.confirm(lsn)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()


def _together(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    (batch,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return batch
