"""Thread that fetches the snapshot, then the log, into a reader's bounded buffer.

The thread replaces lost sessions without limit. While the buffer is full, the thread only sends keepalives.
"""

import contextlib
import logging
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.postgres.changes.log_session import Item, LogSession, Reached, SnapshotRows, size_of
from barrier_runtime.connectors.postgres.changes.pgoutput import Relation
from barrier_runtime.connectors.postgres.changes.position import ChangePosition, shown_lsn
from barrier_runtime.connectors.postgres.changes.rows import ChangeRowLayout
from barrier_runtime.connectors.postgres.changes.server import (
    check_publication,
    check_slot,
    connect,
    end_older_session,
    identify,
    look_at_catalog,
    look_at_slot,
)
from barrier_runtime.connectors.postgres.changes.shape import CatalogTable
from barrier_runtime.connectors.postgres.changes.snapshot import SnapshotStaging, read_chunk
from barrier_runtime.connectors.postgres.session import load_psycopg, shown_server, translated
from barrier_runtime.connectors.read_ahead import read_ahead
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.outside_errors import described
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore

log = logging.getLogger("barrier_runtime.postgres")

_MOST_BYTES = 16 << 20
_CHUNKS_AT_ONCE = 3  # of at most 8 MB
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_TELL_S = 10.0  # the server ends a session after a silent minute
_LOOK_S = 1.0
_NAME = 63
_ENDED_BY_SUCCESSOR = "57P01"
_LOST_LOG = ("55000", "58P01")
_EPOCH_US = 946_684_800_000_000


class ChangeFeed:
    """Thread and buffer; `take`, `put_back` and `confirm` run on the event loop and never wait.

    `parameters`: libpq's, with secrets. `wake` is called when an item is ready.
    """

    def __init__(
        self,
        parameters: Mapping[str, str],
        staging: SnapshotStaging,
        store: ObjectStore,
        layout: ChangeRowLayout,
        at: ChangePosition,
        wake: Callable[[], None],
        where: str,
    ) -> None:
        self.failed: BarrierRuntimeError | None = None
        self.end = staging.end
        self.at_end = False
        self._parameters = parameters
        self._staging = staging
        self._store = store
        self.layout = layout
        self.at = at  # after the last buffered item
        self._tell = wake
        self.where = where
        self._name = f"barrier-runtime {staging.slot}"[:_NAME]  # as the server cuts it
        self.ids: dict[int, str] = {}
        self.tables = {table.name: at for at, table in enumerate(layout.tables)}
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._room = threading.Lock()  # guards `_bytes`
        self._confirmed = 0
        self._closing = threading.Event()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"changes {staging.slot}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ on the event loop

    @property
    def waiting(self) -> bool:
        return bool(self._items)

    def take(self) -> Item | None:
        if not self._items:
            return None
        item = self._items.popleft()
        with self._room:
            was_full = self._bytes >= _MOST_BYTES
            self._bytes -= size_of(item)
            room = was_full and self._bytes < _MOST_BYTES
        if room:
            self._ring()
        return item

    def put_back(self, item: Item) -> None:
        self._items.appendleft(item)
        with self._room:
            self._bytes += size_of(item)

    def confirm(self, lsn: int) -> None:
        """Allows the server to forget the log before `lsn`, covered by a completed checkpoint."""
        if lsn > self._confirmed:
            self._confirmed = lsn
            self._ring()

    def close(self) -> None:
        self._closing.set()
        self._ring()

    def join(self, timeout_s: float) -> bool:
        """Waits after `close`. Returns False after the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: already rung; closed: no listener
            self._bell.send(b"!")

    # ------------------------------------------------------------ on the thread

    def _run(self) -> None:
        try:
            pause_s = _FIRST_PAUSE_S
            while not self._closing.is_set() and not self.at_end:
                before = self.at
                try:
                    self._read_snapshot()
                    self._read_log()
                except Unavailable as trouble:
                    if not self._closing.is_set():
                        log.warning("%s; trying again", trouble)
                except BarrierRuntimeError as trouble:
                    self.failed = trouble
                    self._tell()
                    return
                if self.at != before:
                    pause_s = _FIRST_PAUSE_S
                if not self.at_end:
                    self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except BaseException as error:  # a bug here must not look like an idle source
            self.failed = Corrupt(
                f"{self.where}: changes cannot be read: {described(error)}. Correct the table or the source's "
                "arguments; if neither is at fault, report this with the log"
            )
            log.exception("%s: the thread that reads changes broke", self.where)
            self._tell()
        finally:
            self._bell.close()
            self._ear.close()

    def put(self, item: Item, at: ChangePosition) -> None:
        self.at = at
        with self._room:
            self._bytes += size_of(item)
        self._items.append(item)
        if len(self._items) == 1:
            self._tell()

    @property
    def _full(self) -> bool:
        return self._bytes >= _MOST_BYTES

    def _read_snapshot(self) -> None:
        staging = self._staging
        chunks = read_ahead(
            self._chunk, range(self.at.chunk or 0, staging.chunks), lambda _: 1, _CHUNKS_AT_ONCE, _CHUNKS_AT_ONCE
        )
        while self.at.chunk is not None and not self._closing.is_set():
            if self._full:
                self._wait_for(None)
                continue
            chunk, row = self.at.chunk, self.at.row
            if chunk < staging.chunks:
                rows = next(chunks)
                item = SnapshotRows(self.tables[staging.table_of(chunk)], chunk, row, rows.slice(row))
                self.put(item, ChangePosition(staging.lsn, chunk=chunk + 1))
            else:
                at = ChangePosition(staging.lsn)
                self.put(Reached(at), at)

    def _chunk(self, chunk: int) -> pa.RecordBatch:
        key = self._staging.key(chunk)
        try:
            return read_chunk(self._store.get(key), f"{key} in {self._store.url}")
        except ObjectNotFound as error:
            raise Corrupt(
                f"{self.where}: a part of the snapshot is gone ({error}): restore it from a backup, or start the job "
                "without state (restore='none'), which takes a new one"
            ) from error

    def _read_log(self) -> None:
        if self._closing.is_set() or self.is_end(self.at.lsn):
            return
        psycopg = load_psycopg()
        connection = None
        try:
            connection = connect(self._parameters, replication=True, name=self._name)
            self._check(connection)
            self._follow(connection)
        except psycopg.Error as error:
            raise self._told(error, getattr(error, "sqlstate", None)) from error
        finally:
            if connection is not None:
                with contextlib.suppress(Exception):  # only the release of the slot matters
                    connection.close()

    def _check(self, connection: Any) -> None:
        slot, lsn = self._staging.slot, self.at.lsn
        system, end_of_log = identify(connection)
        if system != self._staging.system:
            raise InvalidJob(
                f"{self.where}: {shown_server(self._parameters)} is another server than the one whose tables were "
                "read at first: correct the url, or start the job without state (restore='none')"
            )
        with self._looking() as looking:
            state = look_at_slot(looking, slot)
            check_slot(slot, state, lsn, end_of_log, self.where)
            self.ids = check_publication(looking, self._staging.publication, tuple(self.tables), self.where)
            if state is not None and state.active_pid is not None:
                end_older_session(looking, state.active_pid, self._name, slot, self.where)

    def _looking(self) -> Any:
        """Second session: the walsender takes no statement parameters."""
        return connect(self._parameters, replication=False, name=self._name)

    def look_at(self, relation: Relation) -> CatalogTable:
        with self._looking() as looking:
            now = look_at_catalog(looking, relation)
            self.ids = check_publication(looking, self._staging.publication, tuple(self.tables), self.where)
        return now

    def _follow(self, connection: Any) -> None:
        self._line = connection.pgconn
        staging = self._staging
        start = self._line.exec_(
            f'START_REPLICATION SLOT "{staging.slot}" LOGICAL {shown_lsn(self.at.lsn)} '
            f"(proto_version '1', publication_names '\"{staging.publication}\"')".encode()
        )
        if start.error_message:
            raise self._server_said(start)
        session = LogSession(self, self.at)
        self._told_at = 0.0
        while not self._closing.is_set():
            self._tell_server(session)
            if self._full:
                self._wait_for(None)
                continue
            size, data = self._line.get_copy_data(1)
            if size > 0:
                if session.message(data):
                    self._tell_server(session, now=True)
                if self.at_end:
                    return
            elif size == 0:
                if not select.select([self._line.socket], [], [], 0)[0]:
                    session.flush()
                    self._wait_for(self._line.socket)
                self._line.consume_input()
            else:
                result = self._line.get_result()
                if result is not None and result.error_message:
                    raise self._server_said(result)
                raise Unavailable(f"{self.where}: {shown_server(self._parameters)} ended the session")

    def _wait_for(self, line: int | None) -> None:
        ear = self._ear.fileno()
        ready, _, _ = select.select([ear] if line is None else [ear, line], [], [], _LOOK_S)
        if ear in ready:
            self._ear.recv(4096)

    def _tell_server(self, session: LogSession, *, now: bool = False) -> None:
        if not now and session.told == self._confirmed and time.monotonic() - self._told_at < _TELL_S:
            return
        session.told, self._told_at = self._confirmed, time.monotonic()
        clock = time.time_ns() // 1000 - _EPOCH_US
        received = max(self.at.lsn, session.received)
        self._line.put_copy_data(struct.pack(">cQQQqB", b"r", received, self._confirmed, self._confirmed, clock, 0))
        self._line.flush()

    def is_end(self, lsn: int) -> bool:
        if self.end is not None and lsn >= self.end:
            self.at_end = True
            self._tell()
        return self.at_end

    def _server_said(self, result: Any) -> BarrierRuntimeError:
        pq = load_psycopg().pq
        code = result.error_field(pq.DiagnosticField.SQLSTATE)
        return self._told(result.error_message.decode(errors="replace"), code.decode() if code else None)

    def _told(self, error: Any, code: str | None) -> BarrierRuntimeError:
        text, slot = " ".join(str(error).split()), self._staging.slot
        failure = f"{self.where}: reading slot {slot!r} failed at PostgreSQL {shown_server(self._parameters)}"
        if code in _LOST_LOG or (code == "42704" and slot in text):
            return InvalidJob(
                f"{failure}: {text}. Its log is gone: start the job without state (restore='none'), which takes a new "
                "snapshot, and raise max_slot_wal_keep_size if the server removed it"
            )
        if code == _ENDED_BY_SUCCESSOR:
            self._closing.wait(_LONGEST_PAUSE_S)  # a newer generation, which goes first
        if code == "55006":
            return Unavailable(f"{failure}: {text}")
        if isinstance(error, Exception):
            return translated(error, failure)
        if code is not None and code.startswith(("08", "53", "57", "58", "XX")):
            return Unavailable(f"{failure}: {text}")
        return InvalidJob(f"{failure}: {text} (SQLSTATE {code}). Correct the publication, or start without state")
