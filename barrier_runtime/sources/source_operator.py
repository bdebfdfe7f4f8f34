"""One subtask's part of a source: its splits, which of them to read next, positions for snapshots, and the watermark.

Split i of a fixed list belongs to subtask i % parallelism; a source that discovers splits says itself whose each one
is. Of the splits that have rows due, the one whose event time is furthest behind is read first, so that no split runs
ahead and makes rows of another late.

A discovered split is part of the next snapshot from the moment it can be read; what was discovered after the snapshot
that is restored is discovered again. A subtask that has no split while it looks for some is idle, and never ends.

Sans-io apart from the readers: it is told the time.
"""

import msgspec
import pyarrow as pa

from barrier_runtime.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.event_time import check_event_time_type, event_times_ms
from barrier_runtime.graph import SourceSpec
from barrier_runtime.operators.base import Capture, OperatorContext
from barrier_runtime.sources.base import (
    DiscoveringSource,
    Discovery,
    Preparable,
    Split,
    SplitReader,
    StagedSource,
)
from barrier_runtime.sources.open_split import OpenSplit
from barrier_runtime.sources.source_progress import (
    NO_POSITION,
    SPLITS_VALUE,
    RestoredSource,
    SourceProgress,
    SplitProgress,
)
from barrier_runtime.sources.split_assignment import assign_discovered, assign_listed, assign_staged
from state.errors import UNREADABLE, Corrupt, InvalidJob, Unavailable

_PREPARED_AHEAD = 32  # splits whose files are opened before the stream starts; the rest when their turn comes
_LOOK_EVERY_NS = 10_000_000  # for discovered splits, when nothing is due before
_REOPEN_S = 1.0  # a discovered split that cannot be opened now is tried again then


class SourceDriver:
    """`open` once (may block), then `poll` for ever; `snapshot` and `completed` at any time."""

    def __init__(self) -> None:
        self._splits: list[OpenSplit] = []  # without those that were discovered and have ended
        self._active: list[OpenSplit] = []
        self._lingering: list[OpenSplit] = []  # ended, with a reader that is to hear that this is decided
        self._gone: dict[str, SplitProgress] = {}  # finished splits that are no longer listed
        self._done: list[str] = []  # discovered splits that have ended
        self._done_rows = 0
        self._done_ms = WATERMARK_MIN
        self._discovery: Discovery | None = None
        self._discovering: DiscoveringSource | None = None
        self._keeps_payloads = False
        self._own: set[str] = set()  # ids of all splits that ever came to this subtask
        self._made: dict[str, SplitReader] = {}  # readers of found splits on their way from the worker to the loop
        self._looked_ns = 0
        self._turn = 0
        self._latest: tuple[OpenSplit, int] | None = None  # split and rows of the batch returned last

    def open(self, context: OperatorContext, spec: SourceSpec) -> None:
        """Open readers at their restored positions. `context.restored` should hold the snapshots of *all* subtasks of
        this source: a changed list of splits moves splits between subtasks."""
        self._spec = spec
        self._context = context
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
        restored = RestoredSource(context.restored, context.subtask, context.parallelism, self._where)
        place = (context.subtask, context.parallelism, self._where)
        if isinstance(spec.source, DiscoveringSource):
            self._discovering = spec.source
            assignment = assign_discovered(spec.source, spec.splits, restored, *place)
        elif isinstance(spec.source, StagedSource):
            assignment = assign_staged(spec.splits, restored, *place)
        else:
            assignment = assign_listed(spec.splits, restored, *place)
        self._keeps_payloads = isinstance(spec.source, DiscoveringSource | StagedSource)
        self._discovery = assignment.discovery
        self._gone, self._done = assignment.gone, assignment.done
        self._done_rows, self._done_ms = assignment.done_rows, assignment.done_ms
        self._own = {*self._done, *(split.id for split in assignment.splits)}
        prepared = 0
        for split in assignment.splits:
            progress = restored.splits.get(split.id)
            if split.id in restored.done or (progress is not None and progress.finished):
                self._splits.append(OpenSplit(split, None, progress))
                continue
            reader = spec.source.reader(split)
            opened = OpenSplit(split, reader, progress)
            self._splits.append(opened)
            self._active.append(opened)
            if progress is not None and progress.position != NO_POSITION:
                self._seek(reader, split, bytes(progress.position))
            if isinstance(reader, Preparable) and prepared < _PREPARED_AHEAD:
                reader.prepare()
                prepared += 1

    def poll(self, now_ns: int, max_rows: int | None = None) -> Batch | None:
        """Rows of one split that are there (and due) now; None when there are none. Never waits."""
        if self._discovery is not None:
            self._look_for_splits(self._discovery, now_ns)
        limit = max_rows or self._spec.max_rows_per_batch
        candidates = self._active if len(self._active) == 1 else sorted(self._active, key=lambda split: split.order)
        for split in candidates:
            reader = split.reader
            assert reader is not None
            due_ns = reader.next_due_ns()
            if due_ns is not None and due_ns > now_ns:
                split.had_nothing(now_ns, self._timeout_ns)
                continue
            if split.rests(now_ns):
                continue
            self._latest = None
            polled = reader.poll(limit, now_ns)
            if polled is None or not polled.rows.num_rows:
                split.had_nothing(now_ns, self._timeout_ns)
            else:
                self._turn += 1
                split.had_rows(polled.rows.num_rows, self._turn, now_ns)
                self._latest = split, polled.rows.num_rows
                self._observe(split, polled.rows)
            if reader.finished:
                self._finish(split)
            if polled is not None and polled.rows.num_rows:
                return Batch(polled.rows, polled.emit_ns)
        return None

    def watermark(self) -> int | None:
        """Lowest watermark of the unfinished splits; None while one of them has none. WATERMARK_MAX when all are
        done; while more are looked for, that of those which are done."""
        if self.finished:
            return WATERMARK_MAX
        if self._spec.event_time is None:
            return None
        if self._active:
            lowest = min((split.greatest_ms for split in self._counted()), default=WATERMARK_MIN)
        else:
            lowest = self._done_ms
        if lowest == WATERMARK_MIN:
            return None
        return lowest - self._spec.max_out_of_orderness_ms - 1

    def next_due_ns(self) -> int | None:
        """When the next row is due, if every unfinished split knows that, or when to look for splits again; None =
        poll as soon as possible."""
        earliest = None if self._discovery is None else self._looked_ns + _LOOK_EVERY_NS
        for split in self._active:
            assert split.reader is not None
            due_ns = split.reader.next_due_ns()
            if due_ns is None:
                return None
            if split.silent_ns is not None and split.silent_for_ns() <= self._timeout_ns and self._timeout_ns:
                due_ns = min(due_ns, split.asked_ns + self._timeout_ns // 2)  # to notice in time that it is idle
            due_ns = max(due_ns, split.rests_ns)
            earliest = due_ns if earliest is None else min(earliest, due_ns)
        return earliest

    @property
    def finished(self) -> bool:
        return not self._active and self._discovery is None

    @property
    def idle(self) -> bool:
        """There is no split, but may be one later; or each has been silent for longer than the idle timeout."""
        if not self._active:
            return self._discovery is not None
        return self._spec.idle_timeout_ms is not None and not self._counted()

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
        return self._done_rows + sum(split.rows for split in self._splits)

    def snapshot(self, checkpoint: int) -> Capture:
        splits = {split.id: split.progress(self._keeps_payloads) for split in self._splits}
        progress = SourceProgress({**self._gone, **splits}, self._done, self._done_rows, self._done_ms)
        for split in (*self._active, *self._lingering):
            if split.listener is not None:
                split.listener.snapshotted(checkpoint)
                if split.finished and split.ended_in is None:
                    split.ended_in = checkpoint
        return Capture(values={SPLITS_VALUE: msgspec.json.encode(progress)})

    def completed(self, checkpoint: int) -> None:
        """`checkpoint` is decided."""
        for split in (*self._active, *self._lingering):
            if split.listener is not None:
                split.listener.completed(checkpoint)
        for split in self._lingering:
            if split.ended_in is not None and split.ended_in <= checkpoint:
                self._close_reader(split)
        self._lingering = [split for split in self._lingering if split.reader is not None]

    def close(self) -> None:
        if self._discovery is not None:
            self._discovery.close()
            self._discovery = None
        for split in (*self._active, *self._lingering):
            self._close_reader(split)
        self._active, self._lingering = [], []
        for reader in self._made.values():
            reader.close()
        self._made = {}

    # ------------------------------------------------------------ inside

    def _counted(self) -> list[OpenSplit]:
        """Unfinished splits that may hold the watermark back: all but those that were asked and had nothing for longer
        than the idle timeout. One that was not asked, because others come first or nothing is read at all, counts."""
        if self._spec.idle_timeout_ms is None:
            return self._active
        return [split for split in self._active if split.silent_for_ns() <= self._timeout_ns]

    @property
    def _timeout_ns(self) -> int:
        return (self._spec.idle_timeout_ms or 0) * 1_000_000

    def _observe(self, split: OpenSplit, rows: pa.RecordBatch) -> None:
        if self._spec.event_time is None:
            return
        times = rows.column(self._spec.event_time)
        if times.null_count:
            times = times.drop_null()
        if len(times):
            split.greatest_ms = max(split.greatest_ms, int(event_times_ms(times).max()))

    def _finish(self, split: OpenSplit) -> None:
        split.finished = True
        self._active = [other for other in self._active if other is not split]
        if self._discovering is not None:
            self._splits = [other for other in self._splits if other is not split]
            self._done.append(split.id)
            self._done_rows += split.rows
            self._done_ms = max(self._done_ms, split.greatest_ms)
        if split.listener is not None:
            self._lingering.append(split)
        else:
            self._close_reader(split)

    def _close_reader(self, split: OpenSplit) -> None:
        if split.reader is not None:
            split.reader.close()
            split.reader = None

    def _seek(self, reader: SplitReader, split: Split, position: bytes) -> None:
        try:
            reader.seek(position)
        except UNREADABLE as error:
            raise Corrupt(
                f"{self._where}: the position of split {split.id!r} in its snapshot is not readable ({error}): restore "
                "an intact copy of the checkpoint, or another one"
            ) from error

    # ------------------------------------------------------------ discovery

    def _look_for_splits(self, discovery: Discovery, now_ns: int) -> None:
        assert self._discovering is not None
        self._looked_ns = now_ns
        try:
            found = discovery.found()
        except Unavailable:
            self._context.report.count("discovery_failures")
            return
        for split in found:
            owner = self._discovering.owner(split.id, self._context.parallelism)
            if owner == self._context.subtask and split.id not in self._own:
                self._own.add(split.id)
                self._open_found(split)

    def _open_found(self, split: Split) -> None:
        """Off the loop. Until it is done the split is in no snapshot, and would be found again after a restore."""

        def make() -> None:
            reader = self._spec.source.reader(split)
            self._made[split.id] = reader
            if isinstance(reader, Preparable) and len(self._active) < _PREPARED_AHEAD:
                reader.prepare()

        def made(_: None, error: BaseException | None) -> None:
            reader = self._made.pop(split.id, None)
            if error is None:
                opened = OpenSplit(split, reader, None)
                self._splits.append(opened)
                self._active.append(opened)
                self._context.report.count("splits_discovered")
                return
            if reader is not None:
                reader.close()
            if not isinstance(error, Unavailable):
                raise error
            self._context.report.count("discovery_failures")
            self._context.call_later(_REOPEN_S, lambda: self._open_found(split))

        self._context.lane.submit(make, made)
