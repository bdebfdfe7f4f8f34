"""Base of file readers: decodes chunks, returns slices, perhaps at a pace; detects changed files.

A completely read file leaves only a mark of 24 bits: a change in about 2,000 is missed. Design:
docs/design/splits-and-discovery.md.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.files.hive import with_values
from barrier_runtime.connectors.files.source.listing import FoundFile, fingerprint, open_file
from barrier_runtime.connectors.files.source.remote import is_remote
from barrier_runtime.connectors.name_set import UNMARKED
from barrier_runtime.connectors.pacing import Schedule
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.connectors.source_bases.ranges import FIRST_BYTES, Aside, NotThere, PartFetcher, RangesFile
from barrier_runtime.coordinator.metric_table import FILES_WITH_MORE_COLUMNS, Counter
from barrier_runtime.state.errors import InvalidJob, Unavailable

_T = TypeVar("_T")


class DecodedAhead(Generic[_T]):
    """The next part of a local file, decoded by a thread while the loop processes the part before.

    Parts are decoded in order. `decode` is called by one thread at a time, again after an error.
    """

    def __init__(self, decode: Callable[[], _T]) -> None:
        self._decode = decode
        self._part: Future[_T] | None = None
        self._release: Callable[[], None] = lambda: None

    @property
    def begun(self) -> bool:
        """Returns whether `begin` was called, and `take` not since: the state of `decode` then belongs to a thread."""
        return self._part is not None

    def begin(self, fetcher: PartFetcher, size: int) -> None:
        if fetcher.reserve(size, needed=False):
            self._release = lambda: fetcher.release(size)
            self._part = fetcher.decode(self._decode)

    def take(self) -> _T:
        """Waits for a thread that decodes. Raises errors of `decode`."""
        part, self._part = self._part, None
        if part is None:
            return self._decode()
        try:
            return part.result()
        finally:
            self._release()

    def close(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            if not part.cancel():
                wait([part])
            self._release()


ROWS_PER_CHUNK = 32_768


class FilePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: int
    size: int
    offset: int = 0  # text formats: byte offset of the block of the next row,
    skip: int = 0  # and the number of returned rows of that block
    start_ns: int | None = None
    modified_ns: int = 0
    ends: str = ""  # `fingerprint` of the first `size` bytes; empty: unknown
    blank_rows: bool = False  # `skip` counts empty lines of a CSV file with a single column


_POSITION = msgspec.json.Decoder(FilePosition)


def position_of(position: bytes) -> FilePosition:
    return _POSITION.decode(position)


class FileReader:
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
        self.fetcher: PartFetcher | None = None
        self.fetching = False
        self.aside: Aside[Any] = Aside()  # for chunks that would hold the loop
        self._whole: tuple[pa.Schema, Mapping[str, str | None]] | None = None
        self._count: Callable[[Counter, int], None] | None = None
        self._leaves_out = False
        self._counted = False

    def add_columns(self, schema: pa.Schema, values: Mapping[str, str | None]) -> None:
        self._whole = schema, values

    def leaves_out(self) -> None:
        """Records unread columns, in any thread; the loop counts once."""
        self._leaves_out = True

    def open(self) -> None:
        """Waits for requests of a remote file."""
        raise NotImplementedError

    def request_first(self) -> None:
        """Requests the first bytes of an open remote file, without waiting."""

    def ready(self) -> bool:
        """True if the next rows can be decoded; False after a step towards them. Called after `prepare`.

        Like `next_chunk`, raises `NotThere` until bytes of a remote file, or chunks from `aside`, have arrived.
        """
        return True

    def next_chunk(self) -> pa.RecordBatch | None:
        raise NotImplementedError

    def at_end(self) -> bool:
        raise NotImplementedError

    def place(self, pending: int) -> tuple[int, int]:
        """(offset, skip) of the next row, with `pending` rows of the last chunk left."""
        return 0, 0

    def go_to(self, position: FilePosition) -> None:
        """The file may still be closed."""

    def raw(self) -> Any:
        raise NotImplementedError

    def close_file(self) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        self.open()
        if self.remote and not self._prepared:
            self._prepared = True
            self.own_fingerprint()  # not later: the loop must not wait when a barrier takes the position
            if isinstance(raw := self.raw(), RangesFile):
                raw.forget(FIRST_BYTES, raw.size())
            self.request_first()

    def count_by(self, count: Callable[[Counter, int], None]) -> None:
        self._count = count

    def fetch_by(self, fetcher: PartFetcher) -> None:
        self.fetcher = fetcher if self.remote else None
        self.aside.fetcher = fetcher

    def decode_next(self, ahead: DecodedAhead[Any], size: int) -> None:
        if self.aside.fetcher is not None and not self.remote and not self.at_end():
            self.own_fingerprint()  # not later: a thread then reads the file
            ahead.begin(self.aside.fetcher, size)

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
            if not self.aside.busy:
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
        modified_ns, ends = self.file.modified_ns, self.own_fingerprint()
        return msgspec.json.encode(
            FilePosition(self.row, self.file.size, offset, skip, start_ns, modified_ns, ends, True)
        )

    def mark(self) -> int:
        ends = self.own_fingerprint()
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

    def close(self) -> None:
        self.aside.after(self.close_file)

    def made_aside(self, work: Callable[[], Any]) -> Any:
        """Runs `work`, which reads the file, on a thread. Raises `NotThere` until the thread has ended."""
        self.own_fingerprint()
        return self.aside.result(work)

    def own_fingerprint(self) -> str:
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


COMPARED_AT_START = 1_000


_AT_ONCE = 16


_HALF_BITS = 12


_HALVES = 4_093  # values of half a mark, from 1; a prime


def mark_of(modified_ns: int, ends: str) -> int:
    return _half(modified_ns) << _HALF_BITS | _half(int(ends, 16))


def may_have_changed(mark: int, file: FoundFile) -> bool:
    return mark != UNMARKED and mark >> _HALF_BITS != _half(file.modified_ns)


def renewed_mark(mark: int, file: FoundFile, where: str) -> int:
    """Returns the old mark if the file cannot be read now. Raises `InvalidJob` for changed content."""
    now = content_mark(file, where)
    if now is None:
        return mark
    if _content(now) != _content(mark):
        raise InvalidJob(
            f"{where}: the file {file.url} was rewritten after it was read to its end (as many bytes, but other ones), "
            "and its rows would not be read again: bring the old file back and put new rows into a file of another "
            "name, or start without state (restore='none')"
        )
    return now


def renewed_marks(finished: Sequence[tuple[Split, int]], where: str) -> list[tuple[Split, int]]:
    files = ((split, FoundFile.of(split), mark) for split, mark in finished)
    candidates = [each for each in files if may_have_changed(each[2], each[1])][:COMPARED_AT_START]
    if not candidates:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(candidates)), thread_name_prefix="compare") as pool:
        marks = pool.map(lambda each: renewed_mark(each[2], each[1], where), candidates)
        return [(split, now) for (split, _, mark), now in zip(candidates, marks, strict=True) if now != mark]


def content_mark(file: FoundFile, where: str) -> int | None:
    """Returns None if the file is gone or is being written, which does no harm."""
    try:
        with closing(open_file(file, where)) as opened:
            return mark_of(file.modified_ns, fingerprint(opened, file.size, where))
    except (InvalidJob, Unavailable):
        return None


def _half(value: int) -> int:
    return 1 + value % _HALVES


def _content(mark: int) -> int:
    return mark & ((1 << _HALF_BITS) - 1)
