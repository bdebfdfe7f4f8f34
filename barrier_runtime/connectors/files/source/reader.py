"""What readers of files share: chunks decoded step by step, handed out in slices, at a pace if one is set.

A position is the number of rows returned, the schedule's start, what shows a changed file, which is refused, and what
the format needs to find the place again fast. A file has changed when its size differs, or its time of change *and* its
first or last 64 kB: copied files have another time. What was rewritten in the middle alone goes unnoticed.
"""

from collections.abc import Mapping
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
from barrier_runtime.state.errors import InvalidJob

ROWS_PER_CHUNK = 32_768  # decoded at once: some milliseconds of the loop's time


class FilePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: int  # rows returned so far
    size: int  # of the file, bytes
    offset: int = 0  # text formats: byte offset of the block that holds the next row …
    skip: int = 0  # … and how many rows of that block were returned
    start_ns: int | None = None  # of the schedule
    modified_ns: int = 0  # of the file, as it was listed
    ends: str = ""  # `fingerprint` of its `size` bytes; empty: not known
    blank_rows: bool = False  # `skip` counts empty lines of a CSV file of one column


_POSITION = msgspec.json.Decoder(FilePosition)


def position_of(told: bytes) -> FilePosition:
    return _POSITION.decode(told)


class FileReader:
    """Base. Subclasses decode: `next_chunk`, `at_end`, `place` (their part of a position), `go_to`, `close`."""

    grows = False  # the file may have become longer since its position was taken

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
        self.fetcher: PartFetcher | None = None  # None: requests are waited for where bytes are read
        self.fetching = False
        self._whole: tuple[pa.Schema, Mapping[str, str | None]] | None = None

    def add_columns(self, schema: pa.Schema, values: Mapping[str, str | None]) -> None:
        """Rows are to have `schema`: of it the file lacks what `values` has, the same text in each row."""
        self._whole = schema, values

    # ------------------------------------------------------------ the format

    def open(self) -> None:
        """Open the file, if it is not open. Of a remote file this waits for requests."""
        raise NotImplementedError

    def request_first(self) -> None:
        """Request the bytes of a remote file, which is open, that the first chunks need. Does not wait for them."""

    def ready(self) -> bool:
        """Where to go on is reached; False: a step towards it was done. After `prepare`. As `next_chunk`, raises
        `NotThere` for bytes of a remote file that have not come yet."""
        return True

    def next_chunk(self) -> pa.RecordBatch | None:
        """The next rows in the wanted schema; None at the end."""
        raise NotImplementedError

    def at_end(self) -> bool:
        """Nothing is left to decode."""
        raise NotImplementedError

    def place(self, pending: int) -> tuple[int, int]:
        """(offset, skip) of the next row, `pending` rows of the last chunk being left."""
        return 0, 0

    def go_to(self, position: FilePosition) -> None:
        """Continue there. The file may not be open yet."""

    def raw(self) -> Any:
        """The open file; None while it is not open."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------ SplitReader

    def prepare(self) -> None:
        """Called ahead of the first poll where possible."""
        self.open()
        if self.remote and not self._prepared:
            self._prepared = True
            self._fingerprint()  # by the thread that prepares: positions are taken on the loop
            if isinstance(raw := self.raw(), RangesFile):
                raw.forget(FIRST_BYTES, raw.size())  # its end
            self.request_first()

    def fetch_by(self, fetcher: PartFetcher) -> None:
        self.fetcher = fetcher if self.remote else None

    @property
    def finished(self) -> bool:
        return self._finished

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        try:
            self.fetching = False
            return self._poll(max_rows, now_ns)
        except NotThere:
            self.fetching = True
            return None

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
        """Empty when it is not known."""
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
