"""Base of readers of files: decodes chunk by chunk and returns slices, possibly at a pace.

A position contains the number of rows returned, the schedule's start, facts that identify the file, and the format's
fast path to the place. A changed file is refused: another size, or another time of change as well as other first or
last 64 kB, because copied files have another time. Changes in the middle alone are not detected.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.files.hive import with_values
from barrier_runtime.connectors.files.source.comparing import mark_of
from barrier_runtime.connectors.files.source.listing import FoundFile, fingerprint, open_file
from barrier_runtime.connectors.files.source.remote import is_remote
from barrier_runtime.connectors.name_set import UNMARKED
from barrier_runtime.connectors.pacing import Schedule
from barrier_runtime.connectors.source import Polled
from barrier_runtime.connectors.source_bases.part_fetcher import PartFetcher
from barrier_runtime.connectors.source_bases.ranges import FIRST_BYTES, NotThere, RangesFile
from barrier_runtime.coordinator.metric_table import FILES_WITH_MORE_COLUMNS, Counter
from barrier_runtime.state.errors import InvalidJob

ROWS_PER_CHUNK = 32_768  # takes some milliseconds of the loop to decode


class FilePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: int  # rows returned so far
    size: int  # of the file, bytes
    offset: int = 0  # text formats: byte offset of the block of the next row …
    skip: int = 0  # … and the number of rows of that block that were returned
    start_ns: int | None = None  # of the schedule
    modified_ns: int = 0  # of the file when it was listed
    ends: str = ""  # `fingerprint` of the first `size` bytes; empty: not known
    blank_rows: bool = False  # `skip` counts empty lines of a CSV file with a single column


_POSITION = msgspec.json.Decoder(FilePosition)


def position_of(told: bytes) -> FilePosition:
    return _POSITION.decode(told)


class FileReader:
    """Base class; subclasses implement `next_chunk`, `at_end`, `place`, `go_to` and `close`."""

    grows = False  # the file may be longer than when the position was taken

    def __init__(self, where: str, file: FoundFile, schema: pa.Schema, rows_per_second: float | None) -> None:
        self.where = f"{where}, file {file.url}"
        self.file = file
        self.schema = schema
        self.row = 0
        self._schedule = Schedule(rows_per_second) if rows_per_second is not None else None
        self._pending: pa.RecordBatch | None = None
        self._finished = False
        self._prepared = False
        self._ends = ""
        self.remote = is_remote(file.url)
        self.fetcher: PartFetcher | None = None  # None: reads wait for their requests
        self.fetching = False
        self._whole: tuple[pa.Schema, Mapping[str, str | None]] | None = None
        self._count: Callable[[Counter, int], None] | None = None
        self._leaves_out = False
        self._counted = False

    def add_columns(self, schema: pa.Schema, values: Mapping[str, str | None]) -> None:
        """Adds columns of `schema` that the file lacks; each has the same text of `values` in every row."""
        self._whole = schema, values

    def leaves_out(self) -> None:
        """Tells that the file has columns that are not read. Any thread; counted once, by the loop."""
        self._leaves_out = True

    # ------------------------------------------------------------ the format

    def open(self) -> None:
        """Opens the file if it is closed; waits for requests of a remote file."""
        raise NotImplementedError

    def request_first(self) -> None:
        """Requests the bytes of the first chunks of an open remote file, without waiting."""

    def ready(self) -> bool:
        """True if the next rows can be decoded; False after a step towards them. Called after `prepare`.

        Like `next_chunk`, raises `NotThere` until bytes of a remote file have arrived.
        """
        return True

    def next_chunk(self) -> pa.RecordBatch | None:
        """Returns the next rows in the wanted schema; None at the end."""
        raise NotImplementedError

    def at_end(self) -> bool:
        """True if no rows are left to decode."""
        raise NotImplementedError

    def place(self, pending: int) -> tuple[int, int]:
        """Returns (offset, skip) of the next row, with `pending` rows of the last chunk left."""
        return 0, 0

    def go_to(self, position: FilePosition) -> None:
        """Continues at `position`. The file may still be closed."""

    def raw(self) -> Any:
        """Returns the open file; None while it is closed."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------ SplitReader

    def prepare(self) -> None:
        """Opens the file; called before the first poll if possible."""
        self.open()
        if self.remote and not self._prepared:
            self._prepared = True
            self._fingerprint()  # in this thread, because the loop takes positions
            if isinstance(raw := self.raw(), RangesFile):
                raw.forget(FIRST_BYTES, raw.size())  # the end of the file
            self.request_first()

    def count_by(self, count: Callable[[Counter, int], None]) -> None:
        self._count = count

    def fetch_by(self, fetcher: PartFetcher) -> None:
        self.fetcher = fetcher if self.remote else None

    @property
    def finished(self) -> bool:
        return self._finished

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        try:
            self.fetching = False
            polled = self._poll(max_rows, now_ns)
        except NotThere:
            self.fetching = True
            return None
        if self._leaves_out and not self._counted and self._count is not None:
            self._counted = True
            self._count(FILES_WITH_MORE_COLUMNS, 1)
        return polled

    def _poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if self._finished:
            return None
        emit_ns = now_ns
        if self._schedule is not None:
            self._schedule.begin(now_ns, self.row)
            max_rows = min(max_rows, self._schedule.due_rows(self.row, now_ns))
            if max_rows == 0:
                return None
            emit_ns = self._schedule.due_ns(self.row)
        chunk = self._pending
        while chunk is None or not chunk.num_rows:
            self.prepare()
            if not self.ready():
                return None
            if self.at_end():
                self._finished = True
                return None
            chunk = self.next_chunk()
            if chunk is None:
                self._finished = True
                return None
        rows = chunk.slice(0, max_rows)
        self._pending = chunk.slice(max_rows) if chunk.num_rows > max_rows else None
        self.row += rows.num_rows
        self._finished = self._pending is None and self.at_end()
        if self._whole is not None:
            rows = with_values(rows, *self._whole, self.where)
        return Polled(rows, emit_ns)

    def next_due_ns(self) -> int | None:
        return None if self._schedule is None else self._schedule.next_due_ns(self.row)

    def position(self) -> bytes:
        offset, skip = self.place(self._pending.num_rows if self._pending is not None else 0)
        start_ns = self._schedule.start_ns if self._schedule is not None else None
        modified_ns, ends = self.file.modified_ns, self._fingerprint()
        return msgspec.json.encode(
            FilePosition(self.row, self.file.size, offset, skip, start_ns, modified_ns, ends, True)
        )

    def mark(self) -> int:
        ends = self._fingerprint()
        return mark_of(self.file.modified_ns, ends) if ends else UNMARKED

    def seek(self, position: bytes) -> None:
        found = position_of(position)
        longer = found.size < self.file.size
        if found.size != self.file.size and not (self.grows and longer):
            raise InvalidJob(
                f"{self.where}: it had {found.size} bytes at the checkpoint and has {self.file.size} now, so row "
                f"{found.row} is not where it was: restore the old file, or start without state (restore='none')"
            )
        if found.ends and (longer or found.modified_ns != self.file.modified_ns):
            self._check_content(found)
        self._ends = "" if longer else found.ends
        self.row = found.row
        if self._schedule is not None:
            self._schedule.start_ns = found.start_ns
        self.go_to(found)

    def _fingerprint(self) -> str:
        """Returns the fingerprint; "" if not known."""
        if not self._ends and (raw := self.raw()) is not None:
            self._ends = fingerprint(raw, self.file.size, self.where)
        return self._ends

    def _check_content(self, found: FilePosition) -> None:
        with closing(open_file(self.file, self.where, grows=self.grows)) as opened:
            ends = fingerprint(opened, found.size, self.where)
        if ends != found.ends:
            raise InvalidJob(
                f"{self.where}: what it holds was changed since the checkpoint, so row {found.row} is not where it "
                "was: restore the old file and put new rows into a file of another name, or start without state "
                "(restore='none')"
            )
