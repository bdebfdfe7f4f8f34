"""Driver of a subtask's part of a source.

The due split with the lowest event time is read first: no split makes another split's rows late.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from barrier_runtime.connectors.in_turn import is_in_turn
from barrier_runtime.connectors.name_set import UNMARKED
from barrier_runtime.connectors.read_range import ReadRange
from barrier_runtime.connectors.source import (
    Counting,
    DiscoveringSource,
    Discovery,
    Fetching,
    FindsAgain,
    Gathering,
    MarkingDiscovery,
    MarkingReader,
    MarkingSource,
    Preparable,
    Split,
    SplitReader,
    StagedSource,
    Waking,
)
from barrier_runtime.connectors.source_bases.ranges import PartFetcher
from barrier_runtime.coordinator.metric_table import DISCOVERY_FAILURES, SPLITS_DISCOVERED
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.event_time import EventClock, check_event_time_type, greatest_event_time_ms
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.operators.base import Capture, OperatorContext, SplitPosition
from barrier_runtime.operators.token_bucket import TokenBucket
from barrier_runtime.runtime.error_reports import raise_named, runs_users_code
from barrier_runtime.runtime.sources.ahead import (
    DAY_MS,
    FAR_MS,
    Ahead,
    Ends,
    is_remote,
    look_at_unit,
    position_of,
    tell_of_far_row,
)
from barrier_runtime.runtime.sources.assignment import (
    FinishedSplits,
    assign_discovered,
    assign_listed,
    assign_staged,
    compare_finished,
    grows,
    has_finished,
    readers_of,
    reading_subtasks,
    under_known_ids,
)
from barrier_runtime.runtime.sources.progress import (
    NO_POSITION,
    OpenSplit,
    RestoredSource,
    SourceProgress,
    SplitGap,
    SplitProgress,
)
from barrier_runtime.runtime.sources.turns import Turns
from barrier_runtime.state.errors import UNREADABLE, Corrupt, InvalidJob, Unavailable

_PREPARED_AHEAD = 32  # splits whose files are opened before the stream starts
_POLL_NS = 10_000_000  # interval of discovery, if no rows are due earlier
_POLL_WAKING_NS = 500_000_000
_WAITING_NS = 1_000_000_000  # for a split that waits for slower splits; the slot is woken when it may be read
_FOLLOWS_NS = 50_000_000  # between looks whether inputs that are read first have ended
_WAITING_AT_ONCE = 256  # splits that wait for bytes; later splits are not polled
_ENDED_AT_ONCE = 32  # splits that end without rows; each takes a fraction of a millisecond
_FOUND_AT_ONCE = 256  # discovered splits
_MORE = 4  # times as many rows of a batch for a combiner, if they take half a chunk's time at most
_REOPEN_S = 1.0  # after a failure to open a discovered split
_Place: TypeAlias = tuple[int, int, int, OpenSplit]  # `order` of the split, a unique number, and the split


class SourceDriver:
    takes_more = False  # of the chain: larger batches cost less per row

    def __init__(self) -> None:
        self._queue: list[_Place] = []
        self._turns: Turns | None = None  # splits that are read after those of the queue
        self._numbers = itertools.count()
        self._kept: dict[str, OpenSplit] = {}  # listed in snapshots
        self._kept_rows = 0
        self._unit_seen = False
        self._lingering: list[OpenSplit] = []  # finished; the reader waits for the decision on its end
        self._finished: FinishedSplits
        self._done_rows = 0
        self._done_ms = WATERMARK_MIN
        self._discovery: Discovery | None = None
        self._found: deque[Split] = deque()
        self._discovering: DiscoveringSource | None = None
        self._keeps_payloads = False
        self._keeps_unasked = False
        self._at_end: dict[str, SplitProgress] = {}  # may grow, and are read to their end so far
        self._grown: dict[str, Split] = {}  # growing splits found again while open
        self._open: set[str] = set()
        self._made: dict[str, SplitReader] = {}  # from the worker to the loop
        self._woken: set[str] = set()  # splits whose threads have called since the last poll: due at once
        self._looked_ns = 0
        self._look_again_ns = _POLL_NS
        self._told_ns = -DAY_MS * 1_000_000  # last watermark sent to the operators
        self._turn = 0
        self._ended_early = False
        self._latest: tuple[OpenSplit, int] | None = None
        self._max_drift_ms: int | None = None
        self._ahead_ms = WATERMARK_MAX  # splits with a higher event time wait for slower splits
        self._polled_ns = 0
        self._timeout_ns = 0  # of a split without rows; 0: never idle
        self._range: ReadRange | None = None
        self._fetcher = PartFetcher(lambda: self._context.wake_from_thread())
        self._ahead = Ahead(self._fetcher)
        self._held_up = False  # the last pass found only splits that wait for a store
        self._ends: Ends | None = None
        self._soonest_ns: int | None = None  # other rows are due then, from the last pass
        self._earlier_ended: Callable[[], bool] | None = None  # while inputs that are read first have not ended
        self._bucket: TokenBucket | None = None
        self._readers: frozenset[int] = frozenset()

    def open(self, context: OperatorContext, spec: SourceSpec) -> None:
        """`context.restored` has all subtasks' snapshots, because a changed list moves splits between subtasks."""
        self._spec = spec
        self.runs_users_code = runs_users_code(spec.source)
        self._timeout_ns = (spec.idle_timeout_ms or 0) * 1_000_000
        self._range = spec.range
        if self._range is not None:
            self._range.read_by(lambda: (place[-1] for place in self._queue))
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
        splits = under_known_ids(spec.splits, restored, self._where)
        if isinstance(spec.source, DiscoveringSource):
            self._discovering = spec.source
            assignment = assign_discovered(spec.source, splits, restored, *place)
        elif isinstance(spec.source, StagedSource):
            assignment = assign_staged(splits, restored, *place)
        else:
            assignment = assign_listed(splits, restored, *place, readers_of(spec.source, context.parallelism))
            if isinstance(spec.source, MarkingSource):
                compare_finished(spec.source, splits, assignment, *place[:2])
        if spec.max_rows_per_second is not None and spec.range is None:
            self._readers = reading_subtasks(spec.source, splits, restored, context.parallelism)
            self._bucket = TokenBucket(spec.max_rows_per_second, max(1, len(self._readers)))
        self._grows = grows(spec.source)
        self._keeps_payloads = isinstance(spec.source, DiscoveringSource | StagedSource)
        finds_again = isinstance(spec.source, FindsAgain) and spec.source.finds_again
        self._keeps_unasked = context.at_most_once or (self._keeps_payloads and not finds_again)
        self._discovery = assignment.discovery
        self._marking = self._discovery if isinstance(self._discovery, MarkingDiscovery) else None
        if isinstance(self._discovery, Waking):
            self._discovery.wake_by(context.wake_from_thread)
            self._look_again_ns = _POLL_WAKING_NS
        self._finished = FinishedSplits(assignment.finished, context.executor)
        if context.at_most_once:
            self._ends = Ends(context, spec.source, self._moved)
        self._done_rows, self._done_ms = assignment.done_rows, assignment.done_ms
        self._at_end = assignment.at_end
        for ended in self._at_end.values():
            self._kept_rows += ended.rows
            self._done_ms = max(self._done_ms, ended.greatest_ms)
        self._gap = SplitGap(self._timeout_ns, self._done_ms != WATERMARK_MIN)
        if is_in_turn(spec.source):
            self._turns = Turns(spec.source, context, self._where)
        prepared = 0
        for split in assignment.splits:
            progress = restored.splits.get(split.id)
            reader = self._reader(split)
            self._open.add(split.id)
            taken = OpenSplit(split, reader, progress)
            self._take_on(split, taken)
            if progress is not None and progress.position != NO_POSITION:
                self._seek(reader, split, bytes(progress.position))
            if self._ends is not None:
                self._ends.hold(taken, restored=progress is not None)
                continue
            self._ahead.add(taken)
            if taken.prepared and isinstance(reader, Preparable) and prepared < _PREPARED_AHEAD:
                reader.prepare()
                prepared += 1
        self._begin_turn()

    def wait_for_slower(self, max_drift_ms: int) -> None:
        """Before `lowest_in_job` only splits without rows are read."""
        if self.has_event_time:
            self._max_drift_ms = max_drift_ms
            self._ahead_ms = WATERMARK_MIN

    @property
    def follows_in(self) -> tuple[str, ...]:
        return self._spec.after

    def follow(self, earlier_ended: Callable[[], bool]) -> None:
        self._earlier_ended = earlier_ended

    @property
    def _follows(self) -> bool:
        if self._earlier_ended is not None and self._earlier_ended():
            self._earlier_ended = None
        return self._earlier_ended is not None

    def lowest_in_job(self, watermark_ms: int) -> None:
        """Lowest watermark. WATERMARK_MIN: not known of every split; WATERMARK_MAX: no limit."""
        if self._max_drift_ms is None:
            return
        if watermark_ms in (WATERMARK_MIN, WATERMARK_MAX):
            self._ahead_ms = watermark_ms
            return
        lowest_ms = watermark_ms + self._spec.max_out_of_orderness_ms + 1
        self._ahead_ms = min(WATERMARK_MAX, lowest_ms + self._max_drift_ms)

    @property
    def waiting_splits(self) -> int:
        return sum(1 for place in self._queue if place[0] > self._ahead_ms)

    def backlog(self) -> int | None:
        """Rows left in the unfinished splits, as far as known; None: unknown."""
        known = [each.backlogged.backlog() for *_, each in self._queue if each.backlogged and each.prepared]
        return sum(filter(None, known)) if any(rows is not None for rows in known) else None

    def poll(self, now_ns: int, max_rows: int | None = None) -> Batch | None:
        """Rows of a split that are due, or None. Never waits."""
        if self._ended_early:
            return None
        self._polled_ns = now_ns
        if self._discovery is not None:
            self._look_for_splits(self._discovery, now_ns)
            self._gap.look(bool(self._queue), now_ns)
        if self._follows:
            return None
        if self._ends is not None:
            self._ends.request()
        limit = self._spec.max_rows_per_batch
        if max_rows is not None:
            if self.takes_more:
                limit = max(limit, min(_MORE * limit, max_rows // 2))
            limit = min(limit, max_rows)
        if self._bucket is not None:
            limit = min(limit, self._bucket.tokens(now_ns))
            if limit == 0:
                return None
        in_vain: list[_Place] = []
        waiting = ended = 0
        self._held_up, self._soonest_ns = False, None
        self._fetcher.begin_pass()
        try:
            while self._queue and self._queue[0][0] <= self._ahead_ms:
                place = heapq.heappop(self._queue)
                split = place[-1]
                in_vain.append(place)
                if not split.prepared and not self._ahead.has_come(split):
                    self._held_up = True
                    if self._ahead.has_begun(split):
                        continue
                    break
                polled = self._asked(split, limit, now_ns, in_vain)
                if split.finished:
                    in_vain.pop()
                elif polled is not None:
                    in_vain[-1] = self._place(split)
                if polled is not None:
                    self._held_up = False
                    return polled
                waiting += split.waits_for_bytes
                ended += split.finished
                if ended >= _ENDED_AT_ONCE:
                    self._held_up = False
                    break
                if waiting >= _WAITING_AT_ONCE:
                    break
        except Exception as error:
            at = in_vain[-1][-1]
            raise_named(error, self._spec, self._context.subtask, at.id, at.rows)
        finally:
            if self._queue:
                for place in in_vain:
                    heapq.heappush(self._queue, place)
            else:
                heapq.heapify(in_vain)
                self._queue = in_vain
        return None

    def _asked(self, split: OpenSplit, limit: int, now_ns: int, taken: list[_Place]) -> Batch | None:
        reader = split.reader
        assert reader is not None
        if split.held:
            split.had_nothing(now_ns, self._timeout_ns)
            return None
        due_ns = self._due_ns(split.id, reader)
        if due_ns is not None and due_ns > now_ns:
            split.had_nothing(now_ns, self._timeout_ns)
            self._soonest_ns = min(due_ns, self._soonest_ns or due_ns)
            return None
        if self._range is not None:
            limit = min(limit, self._range.left(split.id, split.rows))
            if limit <= 0:
                self._begin_turn(split)
                return None
        self._latest = reached = None
        self._woken.discard(split.id)  # before the poll: a later call is for later rows
        if not split.asked:
            split.asked = True
            self._kept[split.id] = split
        polled = reader.poll(limit, now_ns)
        batch = None if polled is None else Batch(polled.rows, polled.emit_ns)
        if batch is None and split.waits_for_bytes:
            self._held_up = True
        elif batch is None or not (count := batch.count):
            batch = None
            split.had_nothing(now_ns, self._timeout_ns)
        else:
            self._turn += 1
            split.had_rows(count, self._turn, now_ns)
            self._kept_rows += count
            if self._bucket is not None:
                self._bucket.take(count)
            if self._range is not None:
                self._range.has_read(split.id, split.rows)
            self._latest = split, count
            reached = self._observe(split, batch, taken[:-1], now_ns // 1_000_000)
        if reader.finished:
            self._finish(split)
        return batch if batch is None or reached is None else batch.reaching(reached)

    def watermark(self) -> int | None:
        """Lowest watermark of the unfinished splits; None while a split has none.

        When all splits are finished, the watermark of their rows: timers due by the last rows fire before the end's.
        """
        if self._spec.event_time is None:
            return None
        if not self._queue:
            lowest = self._done_ms
        elif self._spec.idle_timeout_ms is None:
            lowest = self._queue[0][0]
        else:
            lowest = min((split.greatest_ms for split in self._counted()), default=WATERMARK_MIN)
        if lowest == WATERMARK_MIN:
            return None
        return max(WATERMARK_MIN, lowest - self._spec.max_out_of_orderness_ms - 1)

    def watermark_to_tell(self, above_ms: int, now_ns: int) -> int | None:
        interval_ns = self._spec.watermark_interval_ms * 1_000_000
        if 0 <= now_ns - self._told_ns < interval_ns and not (self.finished or (self._timeout_ns and self.idle)):
            return None  # told later, an idle source would hold event time back again
        watermark_ms = self.watermark()
        if watermark_ms is None or watermark_ms <= above_ms:
            return None
        self._told_ns = now_ns
        return watermark_ms

    def next_due_ns(self, gathering_ns: int = 0) -> int | None:
        """Time of the next poll; None: as soon as possible.

        Known if every unfinished split has a due time. Rows wait `gathering_ns` for others.
        """
        if self._ended_early or self._found:
            return None
        earliest = None if self._discovery is None else self._looked_ns + self._look_again_ns
        if earliest is not None and not self._queue and self._gap.holds:
            earliest = min(earliest, self._gap.due_ns())
        if self._follows:
            return min(self._polled_ns + _FOLLOWS_NS, earliest or self._polled_ns + _FOLLOWS_NS)
        due_ns = None if self._bucket is None else self._bucket.due_ns()
        if due_ns is not None and due_ns > self._polled_ns:
            return due_ns if earliest is None else min(earliest, due_ns)
        if self._held_up:
            soonest_ns = None if self._soonest_ns is None else self._soonest_ns + gathering_ns
            known = [each for each in (earliest, soonest_ns) if each is not None]
            return None if self._fetcher.came else min([*known, self._polled_ns + _WAITING_NS])
        for place in self._queue:
            split = place[-1]
            assert split.reader is not None
            if split.held or split.greatest_ms > self._ahead_ms:
                waits_ns = self._polled_ns + _WAITING_NS
                earliest = waits_ns if earliest is None else min(earliest, waits_ns)
                continue
            due_ns = self._due_ns(split.id, split.reader)
            if due_ns is None:
                return None
            due_ns += gathering_ns
            if self._timeout_ns and split.silent_for_ns() <= self._timeout_ns:
                due_ns = min(due_ns, split.asked_ns + self._timeout_ns // 2)  # to notice idleness in time
            earliest = due_ns if earliest is None else min(earliest, due_ns)
        return earliest

    def least_far(self) -> tuple[str, int | None]:
        """Unfinished split that holds the watermark back ("": none), with its watermark (None before a row)."""
        split: OpenSplit | None
        if self._follows:
            return "", None
        if self._spec.idle_timeout_ms is None:
            split = self._queue[0][-1] if self._queue else None
        else:
            split = min(self._counted(), key=lambda each: each.greatest_ms, default=None)
        if split is None:
            return "", None
        if split.greatest_ms == WATERMARK_MIN:
            return split.id, None
        return split.id, split.greatest_ms - self._spec.max_out_of_orderness_ms - 1

    @property
    def has_event_time(self) -> bool:
        return self._spec.event_time is not None

    @property
    def finished(self) -> bool:
        if self._ended_early:
            return True
        if self._queue or self._discovery is not None:
            return False
        return self._range is None or self._range.ends(self._context.subtask)

    def end(self) -> None:
        """Snapshots keep positions of unfinished splits, so another job can continue."""
        self._ended_early = True

    @property
    def idle(self) -> bool:
        """Returns whether no split existed, or every split was silent, for longer than the idle timeout."""
        if not self._queue:
            return self._discovery is not None and not self._gap.holds
        return self._spec.idle_timeout_ms is not None and not any(True for _ in self._counted())

    def idle_splits(self, most: int) -> tuple[list[str], int]:
        """First `most` ids of splits silent beyond the timeout, and the number of all."""
        if self._spec.idle_timeout_ms is None:
            return [], 0
        silent = [split.id for *_, split in self._queue if split.silent_for_ns() > self._timeout_ns]
        return heapq.nsmallest(most, silent), len(silent)

    def last_rows(self) -> tuple[str, int, int] | None:
        """Split, first and last row (from 0) of the batch of the last `poll`; None without a batch."""
        if self._latest is None:
            return None
        split, rows = self._latest
        return split.id, split.rows - rows, split.rows - 1

    def last_read(self) -> str:
        latest = self.last_rows()
        if latest is None:
            return ""
        split, first, last = latest
        return (
            f"source {self._spec.name!r}, split {split!r}, rows {first} to {last} (the batch it was in; counted from 0)"
        )

    @property
    def records(self) -> int:
        """Rows up to the splits' positions. A replayed row counts once."""
        return self._done_rows + self._kept_rows

    @property
    def skipped(self) -> int | None:
        """Rows passed over after failures, in all generations; None in other modes."""
        return None if self._ends is None else sum(split.skipped for split in self._kept.values())

    def reached(self) -> tuple[str, SplitPosition]:
        assert self._latest is not None
        return self._latest[0].id, position_of(self._latest[0])

    def snapshot(self, checkpoint: int) -> Capture:
        splits = {split.id: split.progress(self._keeps_payloads) for split in self._kept.values()}
        splits.update(self._at_end)
        if self._ends is not None:
            self._ends.snapshotted(checkpoint)
        progress = SourceProgress(splits, done_rows=self._done_rows, done_ms=self._done_ms)
        for split in (*self._kept.values(), *self._lingering):
            if split.listener is not None:
                split.listener.snapshotted(checkpoint)
                if split.finished and split.ended_in is None:
                    split.ended_in = checkpoint
        return self._finished.capture(progress)

    def completed(self, checkpoint: int) -> None:
        if self._ends is not None and self._ends.completed(checkpoint):
            self._context.wake()
        for split in (*self._kept.values(), *self._lingering):
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
        self._ahead.close()
        for split in (*(place[-1] for place in self._queue), *(self._turns or ()), *self._lingering):
            self._close_reader(split)
        self._queue, self._lingering = [], []
        for reader in self._made.values():
            reader.close()
        self._made = {}

    def _reader(self, split: Split) -> SplitReader:
        reader = self._spec.source.reader(split)
        if isinstance(reader, Waking):
            reader.wake_by(lambda: self._wake_for(split.id))
        if isinstance(reader, Fetching):
            reader.fetch_by(self._fetcher)
        if isinstance(reader, Gathering):
            reader.gather_for(self._context.latency_target_s)
        if isinstance(reader, Counting):
            reader.count_by(self._context.metrics.count)
        return reader

    def _wake_for(self, split_id: str) -> None:
        self._woken.add(split_id)
        self._context.wake_from_thread()

    def _moved(self, rows: int) -> None:
        self._kept_rows += rows

    def _due_ns(self, split_id: str, reader: SplitReader) -> int | None:
        return None if split_id in self._woken else reader.next_due_ns()

    def _take_on(self, split: Split, taken: OpenSplit) -> None:
        if self._turns is None:
            heapq.heappush(self._queue, self._place(taken))
        else:
            self._turns.add(split, taken)
        if taken.asked or self._keeps_unasked:
            self._kept[taken.id] = taken
            self._kept_rows += taken.rows

    def _begin_turn(self, ended: OpenSplit | None = None) -> None:
        split = None if self._turns is None else self._turns.after(ended)
        if split is not None:
            split.greatest_ms = max(split.greatest_ms, self._done_ms)  # event time goes on, as in a single split
            heapq.heappush(self._queue, self._place(split))

    def _place(self, split: OpenSplit) -> "_Place":
        return (*split.order, next(self._numbers), split)

    def _counted(self) -> Iterator[OpenSplit]:
        """Unfinished splits except silent splits; unpolled splits count."""
        every, timeout_ns = self._spec.idle_timeout_ms is None, self._timeout_ns
        return (split for *_, split in self._queue if every or split.silent_for_ns() <= timeout_ns)

    def _observe(
        self, split: OpenSplit, batch: Batch, others: list[_Place], now_ms: int
    ) -> npt.NDArray[np.int64] | None:
        spec = self._spec
        if spec.event_time is None:
            return None
        self._unit_seen = self._unit_seen or look_at_unit(self._where, spec.event_time, batch.rows)
        few = batch.few
        if few is not None and spec.detail == "none":
            greatest_ms = greatest_event_time_ms(few, spec.event_time)
            if greatest_ms <= now_ms + FAR_MS:
                split.greatest_ms = max(split.greatest_ms, greatest_ms)
                return None
        rows = batch.rows
        others_ms = WATERMARK_MAX if spec.detail == "none" else self._others_ms(others)
        clock = EventClock(spec.max_out_of_orderness_ms, spec.detail, split.greatest_ms)
        reached = clock.see(rows.column(spec.event_time), others_ms)
        if split.greatest_ms <= now_ms + FAR_MS < clock.greatest_ms:
            tell_of_far_row(self._context, self._where, split, spec.event_time, rows.column(spec.event_time), now_ms)
        split.greatest_ms = clock.greatest_ms
        return reached

    def _others_ms(self, others: list[_Place]) -> int:
        if self._spec.idle_timeout_ms is None:
            lowest = min((place[0] for place in (*self._queue[:1], *others)), default=WATERMARK_MAX)
        else:
            splits = (*self._counted(), *(split for *_, split in others if split.silent_for_ns() <= self._timeout_ns))
            lowest = min((split.greatest_ms for split in splits), default=WATERMARK_MAX)
        return max(WATERMARK_MIN, lowest - self._spec.max_out_of_orderness_ms - 1) if lowest < WATERMARK_MAX else lowest

    def _finish(self, split: OpenSplit) -> None:
        if self._ends is not None:
            raise InvalidJob(f'{self._where}: mode="at_most_once" is for splits that never end: use another mode')
        split.finished = True
        if self._range is not None and not self._grows:
            self._range.has_finished()
        self._open.discard(split.id)
        del self._kept[split.id]
        self._done_ms = max(self._done_ms, split.greatest_ms)
        if self._grows:
            reached = split.progress(self._keeps_payloads)
            self._at_end[split.id] = msgspec.structs.replace(reached, at_end=True)
        else:
            self._kept_rows -= split.rows
            self._done_rows += split.rows
            mark = split.reader.mark() if isinstance(split.reader, MarkingReader) else UNMARKED
            self._finished.add(split.id, split.size, mark)
            if self._marking is not None:
                self._marking.ended(split.id, split.size, mark)
        if split.listener is not None:
            self._lingering.append(split)
        else:
            self._close_reader(split)
        grown = self._grown.pop(split.id, None)
        if grown is not None:
            self._open.add(split.id)
            self._open_found(grown)
        self._begin_turn(split)

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

    def _look_for_splits(self, discovery: Discovery, now_ns: int) -> None:
        assert self._discovering is not None
        self._looked_ns = now_ns
        try:
            self._found.extend(discovery.found())
        except Unavailable:
            self._context.metrics.count(DISCOVERY_FAILURES)
            return
        except Exception as error:
            raise_named(error, self._spec, self._context.subtask)
        for _ in range(min(len(self._found), _FOUND_AT_ONCE)):
            split = self._found.popleft()
            owner = self._discovering.owner(split.id, self._context.parallelism)
            if self._bucket is not None and owner not in self._readers:
                self._readers |= {owner}
                self._bucket.share_with(len(self._readers), now_ns)
            if owner != self._context.subtask or not (self._range is None or self._range.knows(split.id)):
                continue
            if has_finished(split, self._finished, self._where):
                continue
            if split.id not in self._open:
                self._open.add(split.id)
                self._open_found(split)
            elif self._grows:
                self._grown[split.id] = split

    def _open_found(self, split: Split) -> None:
        """Opens a discovered split off the loop. Until then a restore discovers the split anew."""
        reached = self._at_end.get(split.id)
        ahead = len(self._queue) < _PREPARED_AHEAD and self._ends is None and self._turns is None

        def make() -> None:
            reader = self._reader(split)
            self._made[split.id] = reader
            if reached is not None:
                self._seek(reader, split, bytes(reached.position))
            if ahead and isinstance(reader, Preparable) and not is_remote(reader):  # `Ahead` prepares remote files
                reader.prepare()

        def made(_: None, error: BaseException | None) -> None:
            reader = self._made.pop(split.id, None)
            if error is None:
                assert reader is not None
                if reached is not None:
                    del self._at_end[split.id]
                    self._kept_rows -= reached.rows
                taken = OpenSplit(split, reader, reached)
                if self._ends is not None:
                    self._ends.hold(taken, restored=False)
                self._take_on(split, taken)
                self._begin_turn()
                self._ahead.add(taken)
                self._context.metrics.count(SPLITS_DISCOVERED)
                return
            if reader is not None:
                reader.close()
            if not isinstance(error, Unavailable) or self._turns is not None:  # later splits must not overtake
                raise_named(error, self._spec, self._context.subtask, split.id)
            self._context.metrics.count(DISCOVERY_FAILURES)
            self._context.call_later(_REOPEN_S, lambda: self._open_found(split))

        self._context.executor.submit(make, made)
