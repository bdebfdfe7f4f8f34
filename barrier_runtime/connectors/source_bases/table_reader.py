"""Reader of a table with versions: the newest version, then each later version's additions.

A position is a version, the number of a file in name order, and a row.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import msgspec
import pyarrow as pa
import pyarrow.types as types

from barrier_runtime.connectors.read_ahead import read_ahead
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.data.schemas import Duration, milliseconds
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.outside_errors import described
from barrier_runtime.state.versioned import Format, VersionedDecoder


def check_kept(now: pa.Schema, wanted: pa.Schema, table: str, where: str) -> None:
    for field in wanted:
        if field.name not in now.names:
            raise InvalidJob(
                f"{where}: {table} has lost column {field.name!r}: start the program again, which looks at its columns"
            )
        kind = now.field(field.name).type
        if not _is_kept(kind, field.type):
            raise InvalidJob(
                f"{where}: column {field.name!r} of {table} was {field.type} when the program started and is {kind} "
                "now: start the program again, which looks at its columns"
            )


def _is_kept(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if kind == wanted:
        return True
    if types.is_dictionary(kind):
        return _is_kept(kind.value_type, wanted)
    if types.is_nested(kind) or types.is_nested(wanted):
        return _is_kept_inside(kind, wanted)
    kinds = (types.is_integer, types.is_decimal, types.is_timestamp, types.is_time, _is_text, _is_binary)
    if types.is_timestamp(kind) and types.is_timestamp(wanted) and (kind.tz is None) != (wanted.tz is None):
        return False
    if types.is_float32(kind) and types.is_float64(wanted):
        return True
    return any(is_of(kind) and is_of(wanted) for is_of in kinds)


def _is_kept_inside(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_map(kind) and types.is_map(wanted):
        return _is_kept(kind.key_type, wanted.key_type) and _is_kept(kind.item_type, wanted.item_type)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(is_of(kind) for is_of in lists) and any(is_of(wanted) for is_of in lists):
        return _is_kept(kind.value_type, wanted.value_type)
    if not types.is_struct(kind) or not types.is_struct(wanted):
        return False
    there = {kind.field(at).name: kind.field(at).type for at in range(kind.num_fields)}
    fields = [wanted.field(at) for at in range(wanted.num_fields)]
    return all(field.name in there and _is_kept(there[field.name], field.type) for field in fields)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


log = logging.getLogger("barrier_runtime.tables")

POSITION_VERSION = 1
_MOST_ROWS = 200_000  # read ahead; a single file may exceed the bound
_FILES_AT_ONCE = 16  # read, or waiting for earlier files
_BYTES_AT_ONCE = 8 << 20  # a larger file is read alone
_POLL_NS = 1_000_000_000  # a safeguard: the thread wakes the slot
_PAUSE_S = 1.0


class TablePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Position of the next row: `row` of `file` in version `snapshot` (None: no version was read).

    `whole`: of the first version, all rows are read. `file` -1: all files were read. `mark`: of the version.
    """

    snapshot: int | None = None
    whole: bool = True
    file: int = 0
    row: int = 0
    mark: str = ""
    version: int = POSITION_VERSION


_FORMAT = Format("position of {}", POSITION_VERSION, damaged="restore an older checkpoint, or start without state")
_POSITION = VersionedDecoder(_FORMAT, msgspec.json.Decoder(TablePosition))


def period_of(every: Duration | None, where: str) -> float | None:
    if every is None:
        return None
    period_s = milliseconds(every, f"every of {where}") / 1000
    if period_s <= 0:
        raise InvalidJob(f"{where}: every={every!r}: give the time between two looks, or None")
    return period_s


class TableHistory(Protocol):
    """Versions and files of a table. Blocks. Raises `InvalidJob` or `Unavailable`."""

    def refresh(self) -> None: ...

    def current(self) -> int | None:
        """Number of the newest version; None if the table was never written."""
        ...

    def following(self, after: int) -> int | None:
        """Number of the version that follows `after`, or None."""
        ...

    def mark(self, version: int) -> str:
        """Text that a version of this number gets in no other table; "" if unknown."""
        ...

    def files(self, version: int, *, whole: bool) -> Sequence[Any]:
        """Files in a fixed order: of all rows (`whole`), or of the rows that the version added."""
        ...

    def size(self, file: Any) -> int:
        """Approximate bytes of a stored file."""
        ...

    def rows(self, file: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
        """Rows in file order with the columns of `schema`. Thread-safe for the last version listed."""
        ...


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Rows from the position `at` (None: `at` is reached), and the position `after` them."""

    rows: pa.RecordBatch | None
    at: TablePosition
    after: TablePosition


@dataclass(repr=False, eq=False)
class TableRows:
    """Source of a table's rows.

    `table` and `then`: texts of `explain` for the table and later rows. `positions_in`: names the table. `place`: the
    table in `TwoPhaseCommitSink.places`.
    """

    table: str
    split: str
    history: Callable[[], TableHistory]
    schema: pa.Schema
    period_s: float | None
    where: str
    then: str = "what is appended to it"
    positions_in: str = ""
    place: str = ""
    exactly_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.positions_in = self.positions_in or self.table

    def __repr__(self) -> str:
        return self.table + ("" if self.period_s is None else f", and {self.then}")

    @property
    def endless(self) -> bool:
        return self.period_s is not None

    def reads_from(self, place: str) -> bool:
        return self.endless and place == self.place

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(self.split)]

    def reader(self, split: Split) -> "TableReader":
        return TableReader(self.history, self.schema, self.period_s, self.where)


class TableReader:
    def __init__(
        self, history: Callable[[], TableHistory], schema: pa.Schema, period_s: float | None, where: str
    ) -> None:
        self._make_history = history
        self._schema = schema
        self._period_s = period_s
        self._where = where
        self._at = TablePosition()
        self._ahead: deque[_Ahead] = deque()
        self._rows = 0
        self._room = threading.Condition()
        self._over = False  # after the last row of a finite stream
        self._failed: BarrierRuntimeError | None = None
        self._finished = False
        self._closed = False
        self._wake: Callable[[], None] = lambda: None
        self._polled_ns = 0
        self._thread: threading.Thread | None = None
        self._put_to = self._at  # after the rows that the thread has put

    @property
    def finished(self) -> bool:
        return self._finished

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def prepare(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(self._at,), name="table", daemon=True)
            self._thread.start()

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.prepare()
        self._polled_ns = now_ns
        over = self._over  # read first: all rows before the end are in `_ahead` then
        while self._ahead:
            with self._room:
                ahead = self._ahead.popleft()
                if ahead.rows is None:
                    self._at = ahead.after
                    continue
                rows = ahead.rows.slice(0, max_rows)
                self._rows -= rows.num_rows
                if rows.num_rows < ahead.rows.num_rows:
                    at = msgspec.structs.replace(ahead.at, row=ahead.at.row + rows.num_rows)
                    self._ahead.appendleft(_Ahead(ahead.rows.slice(rows.num_rows), at, ahead.after))
                    self._at = at
                else:
                    self._at = ahead.after
                self._room.notify()
            return Polled(rows, now_ns)
        if self._failed is not None:
            raise self._failed
        self._finished = over
        return None

    def next_due_ns(self) -> int | None:
        return None if self._thread is None or self._ahead else self._polled_ns + _POLL_NS

    def position(self) -> bytes:
        return msgspec.json.encode(self._at)

    def seek(self, position: bytes) -> None:
        self._at = _POSITION.decode(position, self._where)

    def close(self) -> None:
        with self._room:
            self._closed = True
            self._room.notify()

    def join(self, timeout_s: float) -> bool:
        """Waits after `close`. Returns False after `timeout_s`."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    # ------------------------------------------------------------ on the thread

    def _run(self, at: TablePosition) -> None:
        history: TableHistory | None = None
        self._put_to = at
        try:
            while not self._closed:
                try:
                    if history is None:
                        history = self._make_history()
                    else:
                        history.refresh()
                    at = self._read(history, at)
                    if self._period_s is None:
                        self._over = True
                        self._wake()
                        return
                    self._rest(self._period_s)
                except Unavailable as trouble:
                    if not self._closed:
                        log.warning("%s; trying again", trouble)
                    at = self._put_to
                    self._rest(_PAUSE_S)
        except BarrierRuntimeError as error:
            self._failed = error
        except Exception as error:  # must not look like a table without new rows
            log.exception("%s: the thread that reads the table broke", self._where)
            self._failed = InvalidJob(
                f"{self._where}: the table cannot be read: {described(error)}. Correct the table or the source's "
                "arguments; if neither is at fault, report this with the log"
            )
        self._wake()

    def _read(self, history: TableHistory, at: TablePosition) -> TablePosition:
        """Reads everything after `at`. Rows put before an `Unavailable` stay valid."""
        while not self._closed:
            if at.snapshot is None:
                newest = history.current()
                if newest is None:
                    return at
                at = TablePosition(newest, mark=history.mark(newest))
            elif at.file < 0:
                following = history.following(at.snapshot)
                if following is None or self._period_s is None:
                    return at
                self._check_same(history, at)
                at = TablePosition(following, whole=False, mark=history.mark(following))
            else:
                at = self._read_snapshot(history, at)
        return at

    def _read_snapshot(self, history: TableHistory, at: TablePosition) -> TablePosition:
        assert at.snapshot is not None
        self._check_same(history, at)
        tasks = history.files(at.snapshot, whole=at.whole)[at.file :]
        read = partial(history.rows, schema=self._schema)
        files = read_ahead(read, tasks, history.size, _FILES_AT_ONCE, _BYTES_AT_ONCE)
        for number, batches in enumerate(files, at.file):
            if self._closed:
                return at
            first = at.row if number == at.file else 0
            after = msgspec.structs.replace(at, file=number + 1, row=0)
            row = 0
            for batch in batches:
                begin = max(0, min(batch.num_rows, first - row))
                if begin < batch.num_rows:
                    place = msgspec.structs.replace(at, file=number, row=row + begin)
                    behind = msgspec.structs.replace(place, row=row + batch.num_rows)
                    self._put(_Ahead(batch.slice(begin), place, behind))
                row += batch.num_rows
            self._put(_Ahead(None, after, after))
        end = msgspec.structs.replace(at, file=-1, row=0)
        self._put(_Ahead(None, end, end))
        return end

    def _check_same(self, history: TableHistory, at: TablePosition) -> None:
        assert at.snapshot is not None
        mark = history.mark(at.snapshot) if at.mark else ""
        if mark and mark != at.mark:
            raise InvalidJob(
                f"{self._where}: version {at.snapshot} of the table is another one than was read: the table was made "
                "anew or restored from a backup. Start the job without state (restore='none'), which reads the table "
                "as it is"
            )

    def _put(self, ahead: _Ahead) -> None:
        with self._room:
            while self._rows >= _MOST_ROWS and not self._closed:
                self._room.wait()
            self._ahead.append(ahead)
            self._rows += 0 if ahead.rows is None else ahead.rows.num_rows
            self._put_to = ahead.after
        self._wake()

    def _rest(self, seconds: float) -> None:
        with self._room:
            self._room.wait_for(lambda: self._closed, seconds)
