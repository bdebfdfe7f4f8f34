"""The simulated job in event time: numbered events out of order, in windows, sessions with timers, and unique ids.

Every event is a function of split and number, as in `workload`. A window sums a bit per event, so its result shows
exactly which events the window holds; a session shows the number of its events, the first and the last. Some events are
later than the bound on disorder, and some splits fall silent for a while, or forever in an unbounded job.
`EventWorkload.may_be_late` names the only events that may be missing then.
"""

import copy
import datetime
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import (
    TTL,
    Count,
    Dataflow,
    Every,
    ListState,
    MapState,
    Session,
    Sliding,
    Tumbling,
    ValueState,
    collect_list,
    count,
    first,
    last,
    max_,
    quantile,
    sum_,
)
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.connectors.source import Polled, Split, SplitReader

KEYS = 3
BITS = 20  # per split in a window: event numbers of a split in a window never differ by a multiple of BITS
SLOW_MS = 1_000  # between events of an unbounded job after the first `count` events
FOR_EVER_MS = 3_600_000
SOURCE = "e"

EVENTS = pa.schema(
    [
        ("source", pa.string()),
        ("split", pa.int32()),
        ("seq", pa.int64()),
        ("leg", pa.int32()),  # always 0: gives rows in flight the same identity as in other workloads
        ("key", pa.string()),
        ("number", pa.int64()),  # of the key
        ("at", pa.int64()),  # event time, ms
        ("bit", pa.int64()),
        ("id", pa.int64()),
    ]
)
WINDOWS = pa.schema([(name, pa.int64()) for name in ("key", "start", "n", "mask", "update")])
GAPS = pa.schema([(name, pa.int64()) for name in ("key", "start", "n", "mask", "last", "update", "retracted")])
COUNTS = pa.schema([(name, pa.int64()) for name in ("split", "key", "start", "n", "mask", "first", "last")])
SESSIONS = pa.schema(
    [
        ("split", pa.int64()),
        ("key", pa.int64()),
        ("start", pa.int64()),
        ("n", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)
_MASKED = pa.schema([*SESSIONS, ("mask", pa.int64())])
EXPIRED = pa.schema([*_MASKED, ("update", pa.int64())])
OF_WALL_CLOCK = pa.schema([*_MASKED, ("id", pa.int64())])
WALL_TIMED = pa.schema([*_MASKED, ("id", pa.int64())])
IDS = pa.schema([("split", pa.int64()), ("first", pa.int64()), ("id", pa.int64())])


@dataclass(frozen=True)
class EventTimes:
    """Event times, arrival times and identities of the events. Times in ms."""

    splits: int
    count: int  # events of a split; of an unbounded job: events that arrive every `period_ms`
    start_ms: int  # wall-clock time at which the first events arrive
    period_ms: int
    bounded: bool
    window_ms: int
    bound_ms: int  # bound on disorder that the source declares
    disorder_ms: int  # actual disorder; more than `bound_ms` makes late rows
    idle_ms: int | None  # idle timeout
    pause_at: int | None  # event number before which split 0 pauses, forever in an unbounded job
    pause_ms: int
    gap_ms: int  # of sessions
    within_ms: int | None  # horizon of ids
    text_keys: bool
    burst_ms: int = 1  # events arrive together at multiples of this time
    batch_rows: int = 8  # at most, of a poll
    slide_ms: int | None = None  # between starts of windows; None: windows do not overlap
    lateness_ms: int = 0  # allowed lateness of windows
    window_gap_ms: int = 250  # of session windows
    gap_lateness_ms: int = 0  # allowed lateness of session windows
    gap_early_rows: int = 0  # rows between early results of session windows; 0: no early results
    clocks_jump: bool = False  # a wall-clock timer may then seem early or late
    max_drift_ms: int | None = None  # largest lead of a split over the slowest split; only without idle timeout
    gaps_of_wall_clock: bool = False  # windows by the wall clock are sessions
    decoys: int = 0  # far-ahead timers per session event, which the next event of the key deletes
    twice: bool = False  # an additional keyed step precedes the graph
    ends: tuple[int, ...] | None = None  # events per split that a drained job has read

    @property
    def all_come(self) -> bool:
        return self.bounded or self.ends is not None

    def number(self, split: int) -> int:
        """Returns the number of events of `split` that a finished job has read."""
        return self.count if self.ends is None else self.ends[split]

    def exists(self, split: int, seq: int) -> bool:
        if self.ends is not None:
            return 0 <= seq < self.ends[split]
        if seq < 0 or (self.bounded and seq >= self.count):
            return False
        return self.bounded or not self._paused(split, seq)

    def due_ms(self, split: int, seq: int) -> int:
        if not self.exists(split, seq):
            return self.start_ms + FOR_EVER_MS
        paced = -(-self._paced(seq) // self.burst_ms) * self.burst_ms
        return self.start_ms + paced + (self.pause_ms if self._paused(split, seq) else 0)

    def at_ms(self, split: int, seq: int) -> int:
        """Returns the event time, out of order by up to `disorder_ms`. A pause makes events old on arrival."""
        return self.start_ms + self._paced(seq) - self._hash("at", split, seq) % (self.disorder_ms + 1)

    def earliest_ms(self, seq: int) -> int:
        """Returns a lower bound of the event times from event `seq` on."""
        return self.start_ms + self._paced(seq) - self.disorder_ms

    def key(self, split: int, seq: int) -> int:
        return self._hash("key", split, seq) % KEYS

    def id(self, split: int, seq: int) -> int:
        """Returns the id of an event; about every fourth event repeats the id of an earlier event."""
        h = self._hash("id", split, seq)
        earlier = seq - 1 - (h >> 8) % 12
        return split * 1_000_000 + (earlier if h % 4 == 0 and earlier >= 0 else seq)

    def windows(self, split: int, seq: int) -> range:
        at, slide_ms = self.at_ms(split, seq), self.slide_ms or self.window_ms
        return range(at - at % slide_ms, at - self.window_ms, -slide_ms)

    def gap_before_ms(self, split: int, seq: int) -> int:
        return self.due_ms(split, seq) - (self.due_ms(split, seq - 1) if seq else 0)

    def bit(self, split: int, seq: int) -> int:
        return 1 << (split % 3 * BITS + seq % BITS)  # joins, which sum no bits, have more splits than fit

    def _paced(self, seq: int) -> int:
        return min(seq, self.count) * self.period_ms + max(0, seq - self.count) * SLOW_MS

    def _paused(self, split: int, seq: int) -> bool:
        return self.pause_at is not None and split == 0 and seq >= self.pause_at

    def _hash(self, what: str, split: int, seq: int) -> int:
        return zlib.crc32(f"{what}-{split}-{seq}".encode()) >> 4


@dataclass(frozen=True)
class EventSource:
    times: EventTimes
    now_ms: Callable[[], int] = field(repr=False)  # true time, whatever the clock of a process says
    name: str = SOURCE
    first: int = 0  # first split of the source, which has every `step`th split
    step: int = 1
    on_read: Callable[[int, int, int], None] = field(default=lambda split, first, end: None, repr=False)
    schema = EVENTS
    exactly_once = True

    def splits(self, parallelism: int) -> Sequence[Split]:
        its = range(self.first, self.times.splits, self.step)
        return [Split(f"{self.name}-{index}", str(index).encode()) for index in its]

    def reader(self, split: Split) -> SplitReader:
        return _EventReader(self, int(split.payload))


class _EventReader:
    def __init__(self, source: EventSource, split: int) -> None:
        self._name = source.name
        self._times = source.times
        self._reading = source.on_read
        self._now_ms = source.now_ms
        self._split = split
        self._skew_ns: int | None = None  # of the calling process's clock
        self._next = 0

    @property
    def finished(self) -> bool:
        return self._times.bounded and self._next >= self._times.count

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        times, split, now_ms = self._times, self._split, self._now_ms()
        self._skew_ns = now_ns - now_ms * 1_000_000
        end = self._next
        while end - self._next < min(max_rows, times.batch_rows) and times.due_ms(split, end) <= now_ms:
            end += 1
        if end == self._next:
            return None
        self._reading(split, self._next, end)
        rows = [self._row(seq) for seq in range(self._next, end)]
        self._next = end
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), EVENTS, strict=True)]
        return Polled(pa.RecordBatch.from_arrays(columns, schema=EVENTS), 0)

    def _row(self, seq: int) -> tuple[object, ...]:
        times, split = self._times, self._split
        key = times.key(split, seq)
        at, bit, id = times.at_ms(split, seq), times.bit(split, seq), times.id(split, seq)
        return (self._name, split, seq, 0, f"key {key}", key, at, bit, id)

    def next_due_ns(self) -> int | None:
        if self._skew_ns is None:
            return None
        return self._times.due_ms(self._split, self._next) * 1_000_000 + self._skew_ns

    def position(self) -> bytes:
        return b"%d" % self._next

    def seek(self, position: bytes) -> None:
        self._next = int(position)

    def close(self) -> None:
        """Nothing is open."""


class PassedOn:
    """Keyed step: the next step gets event time and idleness from many subtasks that all receive the same."""

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        yield row


class Sessions:
    """Sessions per split and key: they end after `gap_ms` of event time without an event, and clear their state.

    With `decoys` more timers wait than memory can hold beside the timers that end sessions. The next event of a key
    deletes the decoys of the previous event, so no decoy fires before all input has ended; a decoy that fires early
    emits a row that is no session."""

    n = ValueState(int, default=0)
    first = ValueState(int, default=-1)
    last = ValueState(int, default=-1)
    over = ValueState(int, default=-1)
    decoys_ms = ValueState(int, default=0)  # time of the first decoy

    def __init__(self, gap_ms: int, decoys: int = 0) -> None:
        self._gap_ms = gap_ms
        self._decoys = decoys

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> None:
        if self.n.value == 0:
            self.first.value = row["seq"]
        else:
            ctx.timers.delete(self.over.value)
        self.n.value = self.n.value + 1
        self.last.value = row["seq"]
        self.over.value = row["at"] + self._gap_ms
        ctx.timers.register(row["at"] + self._gap_ms)
        if self._decoys:
            self._set_decoys(row, ctx.timers)

    def _set_decoys(self, row: dict[str, Any], timers: Any) -> None:
        before_ms, from_ms = self.decoys_ms.value, row["at"] + FOR_EVER_MS + row["seq"] * self._decoys
        for number in range(self._decoys):
            timers.delete(before_ms + number)
            timers.register(from_ms + number)
        self.decoys_ms.value = from_ms

    def on_timer(self, key: Any, timestamp_ms: int, ctx: Any) -> Iterator[dict[str, Any]]:
        split, number = key
        if self.decoys_ms.value <= timestamp_ms < self.decoys_ms.value + self._decoys:
            return
        yield {
            "split": split,
            "key": number,
            "start": timestamp_ms,
            "n": self.n.value,
            "first": self.first.value,
            "last": self.last.value,
        }
        for state in (self.n, self.first, self.last, self.over):
            state.clear()


class Expiring:
    """State with a TTL of `gap_ms`, per split and key.

    `n` counts events with gaps below the TTL. `last` is the sum of the event numbers younger than the TTL; `mask` is
    the same sum of entries whose TTL a read restarts. Every third event reads another list, which no other event reads
    (`update`: the sum of places times elements): elements expire in the order of times, not of places."""

    n: ValueState[int]
    recent: ListState[int]
    unread: ListState[int]
    seen: MapState[int, int]

    def __init__(self, gap_ms: int) -> None:
        self.n = ValueState(int, default=0, ttl=TTL(in_ms(gap_ms)))
        self.recent = ListState(int, ttl=TTL(in_ms(gap_ms)))
        self.unread = ListState(int, ttl=TTL(in_ms(gap_ms)))
        self.seen = MapState(int, int, ttl=TTL(in_ms(gap_ms), refresh="on_read"))

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        self.n.value = self.n.value + 1
        recent, seen = sum(self.recent), sum(self.seen.values())
        unread = sum_of_places(self.unread) if looks_at_the_unread(row["seq"]) else 0
        self.recent.append(row["seq"])
        self.unread.append(row["seq"])
        self.seen[row["seq"]] = row["seq"]
        split, number = key
        return {
            "split": split,
            "key": number,
            "start": max(ctx.timestamp, ctx.watermark),
            "n": self.n.value,
            "mask": seen,
            "first": row["seq"],
            "last": recent,
            "update": unread,
        }


def looks_at_the_unread(seq: int) -> bool:
    return seq % 3 == 0


def sum_of_places(elements: Iterable[int]) -> int:
    return sum(place * element for place, element in enumerate(elements, start=1))


class WallTimed:
    """Wall-clock timers per split and key: each event sets a timer, and about every fourth deletes the previous timer.

    A row is emitted when a timer is set (`n` 0; `id`: the event whose timer was deleted) and when a timer fires (`n` 1;
    `last`: the wall-clock time that timers see; `mask`: the true time)."""

    waiting = MapState(int, int)  # due time -> number of the event
    latest = ValueState(int, default=0)

    def __init__(self, delay_ms: int, now_ms: Callable[[], int]) -> None:
        self._delay_ms = delay_ms
        self._now_ms = now_ms

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        before, deleted = self.latest.value, -1
        if row["id"] % 4 == 0 and before in self.waiting:
            deleted = self.waiting[before]
            del self.waiting[before]
            ctx.wall_timers.delete(before)
        due_ms = max(ctx.wall_timers.now_ms + self._delay_ms, before + 1)
        ctx.wall_timers.register(due_ms)
        self.waiting[due_ms] = row["seq"]
        self.latest.value = due_ms
        yield self._row(key, due_ms, 0, row["seq"], 0, deleted)

    def on_wall_timer(self, key: Any, due_ms: int, ctx: Any) -> Iterator[dict[str, Any]]:
        seq = self.waiting.get(due_ms, -1)
        if seq >= 0:
            del self.waiting[due_ms]
        yield self._row(key, due_ms, 1, seq, ctx.wall_timers.now_ms, -1)

    def _row(self, key: Any, due_ms: int, n: int, seq: int, now_ms: int, deleted: int) -> dict[str, Any]:
        split, number = key
        values = (split, number, due_ms, n, seq, now_ms, self._now_ms(), deleted)
        return dict(zip(WALL_TIMED.names, values, strict=True))


class EventRow(msgspec.Struct, frozen=True):
    """A row as sinks write it: a window, a session, an event with a new id, or the content of expiring state."""

    split: int = -1
    key: int = -1
    start: int = (
        -1
    )  # of the window; the timer that ended the session; the time at which state was read or rows were counted
    n: int = 0
    mask: int = 0
    first: int = -1
    last: int = -1  # last event of a session; last event time of a session window
    id: int = -1
    update: int = 0  # of a window or session; of expiring state: the list that is seldom read
    retracted: int = 0  # 1: the session was merged into another session


_EVENT_ROW = msgspec.json.Decoder(EventRow)

EXPIRING = "expiring"  # drawn separately, instead of some sessions
# "gaps", session windows over all splits, is drawn separately, too
COUNTED = "counted"  # count windows, instead of some ids
COUNT_ROWS, COUNT_SLIDE = 6, 2
WALL_TIMERS = "wall-timers"  # drawn separately, instead of some windows
WALL_WINDOWS = "wall-windows"  # windows by the wall clock, instead of some windows
EVENT_GRAPHS = ("windows", "windows", "sessions", "windows-and-sessions", "unique")


class EventWorkload:
    """A job in event time. `graph`: from EVENT_GRAPHS, or EXPIRING, WALL_TIMERS, WALL_WINDOWS, COUNTED, "gaps"."""

    audited = False

    def __init__(
        self,
        graph: str,
        times: EventTimes,
        now_ms: Callable[[], int],
        out: Callable[[], TwoPhaseCommitSink],
        side: Callable[[], TwoPhaseCommitSink],
        unaligned: bool,
    ) -> None:
        self.graph = graph
        self.unaligned = unaligned
        self.times = times
        self._now_ms = now_ms
        self._out = out
        self._side = side
        self.watches: list[Callable[[int, int, int], None]] = []  # called before events are read
        self._indexed: list[int] = [0] * times.splits  # events of each split that are in `_of_window`
        self._of_window: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._greatest: list[list[int]] = [[] for _ in range(times.splits)]  # greatest event time up to each event

    # ------------------------------------------------------------ the job

    @property
    def reading(self) -> Callable[[int, int, int], None]:
        """Function that readers call before they return events `first` to `end` (exclusive) of a split.

        A method would be copied together with the object."""

        def reading(split: int, first: int, end: int) -> None:
            for watch in self.watches:
                watch(split, first, end)

        return reading

    @property
    def shows_event_time(self) -> bool:
        return self.graph != "unique"

    @property
    def sinks(self) -> dict[str, str]:
        if self.graph == "windows-and-sessions":
            return {"out": "windows", "side": "sessions"}
        return {"out": self.graph}

    def flow(self, job: str) -> Dataflow:
        times = self.times
        flow = Dataflow(job)
        events = flow.source(
            SOURCE,
            EventSource(times, self._now_ms, on_read=self.reading),
            event_time="at",
            max_out_of_orderness=in_ms(times.bound_ms),
            idle_timeout=None if times.idle_ms is None else in_ms(times.idle_ms),
        )
        if times.twice and self.graph != "unique":  # "unique" needs events in the order of their numbers
            events = events.key_by("number").process("passed", PassedOn, schema=EVENTS, event_time="at")
        for sink, shows in self.sinks.items():
            make = {
                "windows": self._windows,
                "gaps": self._gaps,
                "sessions": self._sessions,
                "unique": self._unique,
                EXPIRING: self._expiring,
                WALL_TIMERS: self._wall_timed,
                WALL_WINDOWS: self._wall_windows,
                COUNTED: self._counted,
            }[shows]
            make(events).sink(sink, self._out() if sink == "out" else self._side())
        return flow

    def _windows(self, events: Any) -> Any:
        keys = ("key", "number") if self.times.text_keys else ("number",)
        size, slide_ms = in_ms(self.times.window_ms), self.times.slide_ms
        window = Tumbling(size) if slide_ms is None else Sliding(size, in_ms(slide_ms))
        windows = events.key_by(*keys).window(
            "windows", window, event_time="at", allowed_lateness=in_ms(self.times.lateness_ms)
        )
        return windows.aggregate(n=count(), mask=sum_("bit")).map_batches(_plain_windows, schema=WINDOWS)

    def _gaps(self, events: Any) -> Any:
        keys = ("key", "number") if self.times.text_keys else ("number",)
        window = Session(in_ms(self.times.window_gap_ms))
        rows = self.times.gap_early_rows
        sessions = events.key_by(*keys).window(
            "gaps",
            window,
            event_time="at",
            allowed_lateness=in_ms(self.times.gap_lateness_ms),
            early=Every(rows=rows) if rows else None,
        )
        if self.times.text_keys:  # list and sketch, stored as bytes, give the same results
            mask, last = collect_list("seq", limit=100_000), quantile("at", 1.0)
        else:
            mask, last = sum_("seq"), max_("at")
        return sessions.aggregate(n=count(), mask=mask, last=last).map_batches(_plain_gaps, schema=GAPS)

    def _sessions(self, events: Any) -> Any:
        return events.key_by("split", "number").process(
            "sessions", Sessions(self.times.gap_ms, self.times.decoys), schema=SESSIONS, event_time="at"
        )

    def _expiring(self, events: Any) -> Any:
        return events.key_by("split", "number").process(
            "expiring", Expiring(self.times.gap_ms), schema=EXPIRED, event_time="at"
        )

    def _wall_timed(self, events: Any) -> Any:
        timed = WallTimed(self.times.gap_ms, self._now_ms)
        return events.key_by("split", "number").process("wall-timed", timed, schema=WALL_TIMED)

    def _wall_windows(self, events: Any) -> Any:
        size, slide_ms = in_ms(self.times.window_ms), self.times.slide_ms
        window: Any = Tumbling(size) if slide_ms is None else Sliding(size, in_ms(slide_ms))
        if self.times.gaps_of_wall_clock:
            window = Session(in_ms(self.times.window_gap_ms))
        windows = events.key_by("split", "number").window("windows", window, clock="processing")
        told = windows.aggregate(n=count(), seqs=collect_list("seq", limit=100_000))
        return told.map_batches(_EventsOfWindows(self._now_ms), schema=OF_WALL_CLOCK)

    def _counted(self, events: Any) -> Any:
        windows = events.key_by("split", "number").window("counted", Count(COUNT_ROWS, slide=COUNT_SLIDE))
        its = {"mask": sum_("seq"), "first": first("seq"), "last": last("seq")}
        counts = windows.aggregate(start=max_("at"), n=count(), **its)
        return counts.map_batches(_plain_counts, schema=COUNTS)

    def _unique(self, events: Any) -> Any:
        within = None if self.times.within_ms is None else in_ms(self.times.within_ms)
        return events.deduplicate("unique", "id", within=within).map_batches(_plain_ids, schema=IDS)

    @staticmethod
    def rows_in(data: bytes) -> list[EventRow]:
        return [_EVENT_ROW.decode(line) for line in data.splitlines()]

    @staticmethod
    def row_of(row: dict[str, Any]) -> EventRow:
        return EventRow(**row)

    # ------------------------------------------------------------ the expected rows

    def drained(self, positions: Mapping[tuple[str, int], int]) -> "EventWorkload":
        """Returns the workload of a job that has read exactly `positions` events per (source, split)."""
        read = {split: rows for (_, split), rows in positions.items()}
        ended = copy.copy(self)
        ended.times = replace(self.times, ends=tuple(read.get(split, 0) for split in range(self.times.splits)))
        ended._indexed, ended._of_window = [0] * self.times.splits, defaultdict(list)
        return ended

    def events_of(self, key: int, start: int) -> list[tuple[int, int]]:
        """Returns (split, seq) of all events of a key in the window that begins at `start`."""
        times = self.times
        for split in range(times.splits):
            while times.earliest_ms(self._indexed[split]) < start + times.window_ms and times.exists(
                split, self._indexed[split]
            ):
                seq = self._indexed[split]
                for each in times.windows(split, seq):
                    self._of_window[times.key(split, seq), each].append((split, seq))
                self._indexed[split] += 1
        return self._of_window.get((key, start), [])

    def windows(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Returns all windows of a bounded job: (key, start) -> events."""
        self.events_of(0, self.times.start_ms + FOR_EVER_MS)
        return dict(self._of_window)

    def between(self, key: int, from_ms: int, to_ms: int) -> list[tuple[int, int]]:
        """Returns (split, seq) of all events of a key between two event times, both inclusive."""
        times, found = self.times, []
        for split in range(times.splits):
            seq = 0
            while times.exists(split, seq) and times.earliest_ms(seq) <= to_ms:
                if times.key(split, seq) == key and from_ms <= times.at_ms(split, seq) <= to_ms:
                    found.append((split, seq))
                seq += 1
        return found

    def may_be_behind(self, split: int, seq: int) -> bool:
        """Returns whether the watermark may have passed the event's time by more than the allowed lateness of sessions.

        Otherwise every session that the event touches still existed."""
        return self.may_be_late(split, seq, self.times.at_ms(split, seq) + self.times.gap_lateness_ms)

    def greatest_ms(self, split: int, seq: int) -> int:
        """Returns the greatest event time of the split before event `seq`."""
        known = self._greatest[split]
        while len(known) < seq:
            known.append(max(known[-1] if known else 0, self.times.at_ms(split, len(known))))
        return known[seq - 1] if seq else 0

    def was_idle(self, split: int, seq: int) -> bool:
        """Returns whether the split may have been idle before event `seq`: the watermark then ignores its events."""
        times = self.times
        if times.idle_ms is None:
            return False
        pause = times.pause_at if split == 0 and times.pause_at is not None and seq >= times.pause_at else None
        slow = seq > times.count and times.idle_ms <= SLOW_MS
        return slow or (pause is not None and times.gap_before_ms(split, pause) > times.idle_ms)

    def may_be_late(self, split: int, seq: int, last_ms: int) -> bool:
        """Returns whether the watermark may have reached `last_ms` when event `seq` arrived; its own time counts, too.

        The watermark does not pass an idle split without other splits."""
        passed = self.was_idle(split, seq) and (self.times.splits > 1 or self.unaligned)
        return passed or self.has_come(split, seq, last_ms)

    def has_come(self, split: int, seq: int, at_ms: int) -> bool:
        """Returns whether the split's own watermark has reached `at_ms` with event `seq`."""
        return self.greatest_ms(split, seq + 1) - self.times.bound_ms - 1 >= at_ms


class _EventsOfWindows:
    """A row per window and event: `start` and `last` are the window's bounds, `mask` is the time of its result."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        now_ms = self._now_ms()
        rows = [
            (row["split"], row["number"], _ms(row["window_start"]), row["n"], seq, _ms(row["window_end"]), now_ms, -1)
            for row in batch.to_pylist()
            for seq in row["seqs"]
        ]
        return pa.RecordBatch.from_pylist(
            [dict(zip(OF_WALL_CLOCK.names, row, strict=True)) for row in rows], schema=OF_WALL_CLOCK
        )


def _ms(at: datetime.datetime) -> int:
    return round(at.timestamp() * 1_000)


def in_ms(milliseconds: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=milliseconds)


def _plain_windows(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column("number"), batch.column("window_start").cast(pa.int64()), batch.column("n")]
    told = "update" in batch.schema.names
    updates = batch.column("update") if told else pa.array([0] * len(batch), pa.int64())
    return pa.RecordBatch.from_arrays([*columns, batch.column("mask"), updates], schema=WINDOWS)


def _plain_gaps(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column("number"), batch.column("window_start").cast(pa.int64()), batch.column("n")]
    mask, last = batch.column("mask"), batch.column("last").cast(pa.int64())
    if pa.types.is_list(mask.type):
        mask = pa.array([sum(numbers or ()) for numbers in mask.to_pylist()], pa.int64())
    names, none = batch.schema.names, pa.array([0] * len(batch), pa.int64())
    update = batch.column("update") if "update" in names else none
    retracted = batch.column("retracted").cast(pa.int64()) if "retracted" in names else none
    mask, last = pc.fill_null(mask, 0), pc.fill_null(last, -1)  # a retracted session has no rows
    return pa.RecordBatch.from_arrays([*columns, mask, last, update, retracted], schema=GAPS)


def _plain_counts(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column("split").cast(pa.int64()), batch.column("number")]
    columns += [batch.column(name) for name in ("start", "n", "mask", "first", "last")]
    return pa.RecordBatch.from_arrays(columns, schema=COUNTS)


def _plain_ids(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column("split").cast(pa.int64()), batch.column("seq"), batch.column("id")]
    return pa.RecordBatch.from_arrays(columns, schema=IDS)
