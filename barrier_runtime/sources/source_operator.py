"""One subtask's part of a source: its splits, which of them to read next, positions for snapshots, and the watermark.

Split i of the source's fixed list belongs to subtask i % parallelism. Of the splits that have rows due, the one whose
event time is furthest behind is read first, so that no split runs ahead and makes rows of another late.

Sans-io apart from the readers: it is told the time.
"""

import zlib
from typing import Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from barrier_runtime.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.event_time import check_event_time_type, event_times_ms
from barrier_runtime.graph import SourceSpec
from barrier_runtime.operators.base import Capture, OperatorContext
from barrier_runtime.snapshot_values import decode_json
from barrier_runtime.sources.base import Split, SplitReader
from state.errors import UNREADABLE, Corrupt, InvalidJob
from state.snapshot import OperatorSnapshot

SPLITS_VALUE = "splits"

_PREPARED_AHEAD = 32  # splits whose files are opened before the stream starts; the rest when their turn comes


_NO_POSITION = msgspec.Raw(b"null")


class SplitProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far one split was read."""

    rows: int  # returned so far, each once
    greatest_ms: int  # greatest event time seen
    finished: bool
    position: msgspec.Raw = _NO_POSITION  # the reader's, JSON; null once finished


class SourceProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a source's snapshot: progress by split id."""

    splits: dict[str, SplitProgress]
    version: int = 1


@runtime_checkable
class Preparable(Protocol):
    """A reader that can do its slow first step ahead of the first poll."""

    def prepare(self) -> None: ...


class _OpenSplit:
    __slots__ = ("active_ns", "finished", "greatest_ms", "id", "polled", "reader", "rows")

    def __init__(self, split: Split, reader: SplitReader | None, progress: SplitProgress | None) -> None:
        self.id = split.id
        self.reader = reader
        self.rows = progress.rows if progress else 0
        self.greatest_ms = progress.greatest_ms if progress else WATERMARK_MIN
        self.finished = reader is None
        self.polled = 0  # turn of the last poll
        self.active_ns: int | None = None  # when it last gave rows (or was first looked at)

    @property
    def order(self) -> tuple[int, int]:
        return (self.greatest_ms, self.polled)

    def progress(self) -> SplitProgress:
        position = msgspec.Raw(self.reader.position()) if self.reader is not None else _NO_POSITION
        return SplitProgress(self.rows, self.greatest_ms, self.finished, position)


class SourceDriver:
    """`open` once (may block), then `poll` for ever; `snapshot` at any time."""

    def __init__(self) -> None:
        self._splits: list[_OpenSplit] = []
        self._active: list[_OpenSplit] = []
        self._gone: dict[str, SplitProgress] = {}  # finished splits that are no longer listed
        self._turn = 0
        self._latest: tuple[_OpenSplit, int] | None = None  # split and rows of the batch returned last

    def open(self, context: OperatorContext, spec: SourceSpec) -> None:
        """Open readers at their restored positions. `context.restored` should hold the snapshots of *all* subtasks of
        this source: a changed list of splits moves splits between subtasks."""
        self._spec = spec
        self._where = f"source {spec.name!r}, subtask {context.subtask}"
        if spec.event_time is not None:
            if spec.event_time not in spec.source.schema.names:
                raise InvalidJob(
                    f"source {spec.name!r}: there is no event-time column {spec.event_time!r}: "
                    f"it has {', '.join(spec.source.schema.names)}"
                )
            check_event_time_type(
                spec.source.schema.field(spec.event_time).type, spec.event_time, f"source {spec.name!r}"
            )
        mine = [split for i, split in enumerate(spec.splits) if i % context.parallelism == context.subtask]
        known = self._restored(context, {split.id for split in mine})
        prepared = 0
        for split in mine:
            progress = known.get(split.id)
            if progress is not None and progress.finished:
                self._splits.append(_OpenSplit(split, None, progress))
                continue
            reader = spec.source.reader(split)
            if progress is not None and progress.position != _NO_POSITION:
                self._seek(reader, split, bytes(progress.position))
            if isinstance(reader, Preparable) and prepared < _PREPARED_AHEAD:
                reader.prepare()
                prepared += 1
            opened = _OpenSplit(split, reader, progress)
            self._splits.append(opened)
            self._active.append(opened)

    def poll(self, now_ns: int, max_rows: int | None = None) -> Batch | None:
        """Rows of one split that are there (and due) now; None when there are none. Never waits."""
        limit = max_rows or self._spec.max_rows_per_batch
        candidates = self._active if len(self._active) == 1 else sorted(self._active, key=lambda split: split.order)
        for split in candidates:
            reader = split.reader
            assert reader is not None
            if split.active_ns is None:
                split.active_ns = now_ns
            due_ns = reader.next_due_ns()
            if due_ns is not None and due_ns > now_ns:
                continue
            self._latest = None
            polled = reader.poll(limit, now_ns)
            if polled is not None and polled.rows.num_rows:
                self._turn += 1
                split.polled = self._turn
                split.active_ns = now_ns
                split.rows += polled.rows.num_rows
                self._latest = split, polled.rows.num_rows
                self._observe(split, polled.rows)
            if reader.finished:
                self._finish(split)
            if polled is not None and polled.rows.num_rows:
                return Batch(polled.rows, polled.emit_ns)
        return None

    def watermark(self) -> int | None:
        """Lowest watermark of the unfinished splits; None while one of them has none. WATERMARK_MAX when all are
        done."""
        if not self._active:
            return WATERMARK_MAX
        if self._spec.event_time is None:
            return None
        lowest = min((split.greatest_ms for split in self._counted()), default=WATERMARK_MIN)
        if lowest == WATERMARK_MIN:
            return None
        return lowest - self._spec.max_out_of_orderness_ms - 1

    def next_due_ns(self) -> int | None:
        """When the next row is due, if every unfinished split knows that; None = poll as soon as possible."""
        earliest: int | None = None
        for split in self._active:
            assert split.reader is not None
            due_ns = split.reader.next_due_ns()
            if due_ns is None:
                return None
            earliest = due_ns if earliest is None else min(earliest, due_ns)
        return earliest

    @property
    def finished(self) -> bool:
        return not self._active

    @property
    def idle(self) -> bool:
        """Every unfinished split has been silent for longer than the idle timeout."""
        return bool(self._active) and self._spec.idle_timeout_ms is not None and not self._counted()

    def last_read(self) -> str:
        """Where the batch came from that `poll` returned last, for messages. Empty when that call returned none."""
        if self._latest is None:
            return ""
        split, rows = self._latest
        return (
            f"source {self._spec.name!r}, split {split.id!r}, rows {split.rows - rows} to {split.rows - 1} "
            "(the batch it was in; counted from 0)"
        )

    @property
    def records(self) -> int:
        """Rows of this subtask's splits up to their positions: each counted once, however often it was replayed."""
        return sum(split.rows for split in self._splits)

    def snapshot(self, checkpoint: int) -> Capture:
        progress = SourceProgress({**self._gone, **{split.id: split.progress() for split in self._splits}})
        return Capture(values={SPLITS_VALUE: msgspec.json.encode(progress)})

    def close(self) -> None:
        for split in self._active:
            if split.reader is not None:
                split.reader.close()
                split.reader = None
        self._active = []

    # ------------------------------------------------------------ inside

    def _counted(self) -> list[_OpenSplit]:
        """Unfinished splits that may hold the watermark back."""
        timeout_ms = self._spec.idle_timeout_ms
        if timeout_ms is None:
            return self._active
        latest_ns = max((split.active_ns or 0 for split in self._active), default=0)
        return [
            split
            for split in self._active
            if split.active_ns is None or latest_ns - split.active_ns <= timeout_ms * 1_000_000
        ]

    def _observe(self, split: _OpenSplit, rows: pa.RecordBatch) -> None:
        if self._spec.event_time is None:
            return
        times = rows.column(self._spec.event_time)
        if times.null_count:
            times = times.drop_null()
        if len(times):
            split.greatest_ms = max(split.greatest_ms, int(event_times_ms(times).max()))

    def _finish(self, split: _OpenSplit) -> None:
        assert split.reader is not None
        split.reader.close()
        split.reader = None
        split.finished = True
        self._active = [other for other in self._active if other is not split]

    def _seek(self, reader: SplitReader, split: Split, position: bytes) -> None:
        try:
            reader.seek(position)
        except UNREADABLE as error:
            raise Corrupt(
                f"{self._where}: the position of split {split.id!r} in its snapshot is not readable ({error}): restore "
                "an intact copy of the checkpoint, or another one"
            ) from error

    def _restored(self, context: OperatorContext, mine: set[str]) -> dict[str, SplitProgress]:
        listed = {split.id for split in self._spec.splits}
        known: dict[str, SplitProgress] = {}
        complete = _covers_all(context.restored)
        for snapshot in context.restored:
            progress = decode_json(
                snapshot.values[SPLITS_VALUE], SourceProgress, f"{self._where}, state of subtask {snapshot.subtask}"
            )
            own = snapshot.subtask == context.subtask and snapshot.parallelism == context.parallelism
            for split, reached in progress.splits.items():
                known[split] = reached
                if split in listed:
                    if own and not complete and split not in mine:
                        raise InvalidJob(
                            f"{self._where}: split {split!r} now belongs to another subtask, because the list of "
                            "splits changed: restore with the same files, or add files whose names sort last"
                        )
                elif not reached.finished:
                    raise InvalidJob(
                        f"{self._where}: split {split!r} was read up to row {reached.rows} but is not there any more: "
                        "bring it back (the same file; for generated rows the same parallelism, or a fixed splits=), "
                        "or start without state (restore='none')"
                    )
                elif own or (complete and zlib.crc32(split.encode()) % context.parallelism == context.subtask):
                    self._gone[split] = reached
        return known


def _covers_all(snapshots: tuple[OperatorSnapshot, ...]) -> bool:
    """Whether these are the snapshots of all subtasks of the source."""
    return bool(snapshots) and {snapshot.subtask for snapshot in snapshots} == set(range(snapshots[0].parallelism))
