"""The simulated job that joins two streams of numbered events, and its expected rows.

Even splits form the left stream, odd splits the right stream. Each stream is a source with separate event time. A row
names the events. Late rows of both sides go to a second sink, so every event is visible somewhere: joined, alone, or
late. `EventWorkload.may_be_late` decides which events may be late, as for windows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from events import EVENTS, EventSource, EventTimes, EventWorkload, in_ms

from barrier_runtime import Dataflow, Sliding, Tumbling
from barrier_runtime.connectors.sink import TwoPhaseCommitSink

Event = tuple[int, int]  # split and number

JOINED = "joined"
JOIN_KINDS = ("interval", "window", "as-of", "table")  # "table": the table's version at the left event's time
LEFT, RIGHT = "e", "f"  # names of the sources
OUT = pa.schema([(name, pa.int64()) for name in ("left", "right", "start", "last")])
_GONE = "seq % 4 = 3"  # changes of a table that delete their key
_SPLIT = 1_000_000  # the id of an event is split * _SPLIT + number; -1 stands for no event


@dataclass(frozen=True)
class Joined:
    """Settings of a join. `kind` is one of JOIN_KINDS; some settings apply to some kinds only. Times in ms."""

    kind: str
    how: str
    lower_ms: int = 0  # interval: bounds of right event time minus left event time
    upper_ms: int = 0
    tolerance_ms: int | None = None  # as-of
    exact: bool = True

    @property
    def versioned(self) -> bool:
        """True if a left event is joined with the newest right event that is not newer."""
        return self.kind in ("as-of", "table")

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Flags (left, right): the join emits the side's rows without a partner."""
        return self.how in ("left", "full", "anti"), self.how in ("right", "full")

    @property
    def one_sided(self) -> bool:
        """True if a row names the left event only."""
        return self.how in ("semi", "anti")


class JoinRow(msgspec.Struct, frozen=True):
    """One row as the sinks write it, with the ids of its events; -1 stands for no event."""

    left: int = -1
    right: int = -1
    start: int = -1  # start of the window; without windows the later event time; -1 for a late row
    last: int = -1

    @property
    def events(self) -> tuple[Event | None, Event | None]:
        return event_of(self.left), event_of(self.right)


def id_of(event: Event | None) -> int:
    return -1 if event is None else event[0] * _SPLIT + event[1]


def event_of(id: int) -> Event | None:
    return None if id < 0 else divmod(id, _SPLIT)


_JOIN_ROW = msgspec.json.Decoder(JoinRow)


class JoinWorkload(EventWorkload):
    def __init__(
        self,
        joined: Joined,
        times: EventTimes,
        now_ms: Callable[[], int],
        out: Callable[[], TwoPhaseCommitSink],
        side: Callable[[], TwoPhaseCommitSink],
        unaligned: bool,
    ) -> None:
        super().__init__(JOINED, times, now_ms, out, side, unaligned)
        self.joined = joined

    # ------------------------------------------------------------ the job

    @property
    def sinks(self) -> dict[str, str]:
        return {"out": JOINED, "side": "late"}

    @property
    def shows_event_time(self) -> bool:
        """True if the job emits rows as long as events arrive."""
        return self.joined.how == "full" or (any(self.joined.keeps) and self.times.pause_at is None)

    def flow(self, job: str) -> Dataflow:
        times, joined = self.times, self.joined
        flow = Dataflow(job)
        keys = ("key", "number") if times.text_keys else ("number",)
        left_events, right_events = (
            flow.source(
                name,
                EventSource(times, self._now_ms, name, first, 2, self.reading),
                event_time="at",
                max_out_of_orderness=in_ms(times.bound_ms),
                idle_timeout=None if times.idle_ms is None else in_ms(times.idle_ms),
            )
            for first, name in enumerate((LEFT, RIGHT))
        )
        left, right = left_events.key_by(*keys), right_events.key_by(*keys)
        common: dict[str, Any] = {"event_time": "at", "how": joined.how, "late": True}
        if joined.kind == "interval":
            bounds = in_ms(joined.lower_ms), in_ms(joined.upper_ms)
            found, late_left, late_right = left.join(JOINED, right, between=bounds, **common)
        elif joined.kind == "window":
            size, slide_ms = in_ms(times.window_ms), times.slide_ms
            window = Tumbling(size) if slide_ms is None else Sliding(size, in_ms(slide_ms))
            found, late_left, late_right = left.window_join(JOINED, right, window, **common)
        elif joined.kind == "table":
            table = right_events.select({**{name: name for name in EVENTS.names}, "gone": _GONE}).key_by(*keys)
            found, late_left, late_right = left.table_join(JOINED, table, deleted="gone", **common)
        else:
            tolerance = None if joined.tolerance_ms is None else in_ms(joined.tolerance_ms)
            found, late_left, late_right = left.asof_join(
                JOINED, right, tolerance=tolerance, exact=joined.exact, **common
            )
        found.map_batches(_plain, schema=OUT).sink("out", self._out())
        late = [rows.map_batches(_plain_late, schema=OUT) for rows in (late_left, late_right)]
        late[0].union(late[1]).sink("side", self._side())
        return flow

    @staticmethod
    def rows_in(data: bytes) -> list[Any]:
        return [_JOIN_ROW.decode(line) for line in data.splitlines()]

    @staticmethod
    def row_of(row: dict[str, Any]) -> Any:
        return JoinRow(**row)

    # ------------------------------------------------------------ the oracle

    def at_ms(self, event: Event) -> int:
        return self.times.at_ms(*event)

    def starts(self, event: Event) -> list[int]:
        """Starts of the event's windows; for joins without windows [0]."""
        return list(self.times.windows(*event)) if self.joined.kind == "window" else [0]

    def place(self, row: JoinRow) -> int:
        return row.start if self.joined.kind == "window" else 0

    def certain(self, event: Event, start: int = 0) -> bool:
        """Returns whether the event cannot have been late (for a window join: for the window from `start` on)."""
        last_ms = start + self.times.window_ms - 1 if self.joined.kind == "window" else self.at_ms(event)
        return not self.may_be_late(*event, last_ms)

    def belong(self, left: Event, right: Event, start: int = 0) -> bool:
        """Returns whether the events may form a row (of an as-of join: if no newer version exists)."""
        times, joined = self.times, self.joined
        if left[0] % 2 or not right[0] % 2 or not (times.exists(*left) and times.exists(*right)):
            return False
        if times.key(*left) != times.key(*right):
            return False
        if joined.kind == "window":
            return start in self.starts(left) and start in self.starts(right)
        later_ms = self.at_ms(right) - self.at_ms(left)
        if joined.kind == "table":
            return later_ms <= 0
        if joined.kind == "interval":
            return joined.lower_ms <= later_ms <= joined.upper_ms
        within = joined.tolerance_ms is None or -later_ms <= joined.tolerance_ms
        return within and (later_ms <= 0 if joined.exact else later_ms < 0)

    def deletes(self, event: Event) -> bool:
        """Returns whether the event is a change of a table that deletes its key."""
        return self.joined.kind == "table" and event[0] % 2 == 1 and event[1] % 4 == 3

    def surely_has(self, left: Event) -> list[Event]:
        """Returns versions of which the left event is joined with one, or with a newer one, whatever was late.

        Empty if the left event may have no partner."""
        versions = list(self.partners(left))
        certain = [each for each in versions if self.certain(each)]
        newest_ms = max(map(self.at_ms, certain), default=0)
        last = [each for each in certain if self.at_ms(each) == newest_ms]
        may_delete = [each for each in versions if self.deletes(each) and self.at_ms(each) >= newest_ms]
        return [] if may_delete else last

    def partners(self, event: Event, start: int = 0) -> Iterator[Event]:
        """Returns all events of the other side that belong to the event, including deletions from a table."""
        reach_ms = max(self.joined.upper_ms, -self.joined.lower_ms, self.times.window_ms)
        is_right = event[0] % 2
        for split in range(1 - is_right, self.times.splits, 2):
            seq = 0
            while self.times.exists(split, seq) and self.times.earliest_ms(seq) <= self.at_ms(event) + reach_ms:
                other = split, seq
                if self.belong(other, event, start) if is_right else self.belong(event, other, start):
                    yield other
                seq += 1

    def events(self) -> Iterator[Event]:
        for split in range(self.times.splits):
            for seq in range(self.times.number(split)):
                yield split, seq


def _id(batch: pa.RecordBatch, suffix: str) -> pa.Array:
    split, seq = batch.column(f"split{suffix}").cast(pa.int64()), batch.column(f"seq{suffix}")
    return pc.fill_null(pc.add(pc.multiply(split, _SPLIT), seq), -1)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    left = _id(batch, "")
    both = "split_right" in batch.schema.names
    right = _id(batch, "_right") if both else pa.array([-1] * len(batch), pa.int64())
    if "window_start" in batch.schema.names:
        start = batch.column("window_start").cast(pa.int64())
    else:
        start = pc.max_element_wise(batch.column("at"), batch.column("at_right")) if both else batch.column("at")
    return pa.RecordBatch.from_arrays([left, right, start, start], schema=OUT)


def _plain_late(batch: pa.RecordBatch) -> pa.RecordBatch:
    none = pa.array([-1] * len(batch), pa.int64())
    is_left = pc.equal(batch.column("source"), LEFT)
    ids = _id(batch, "")
    columns = [pc.if_else(is_left, ids, none), pc.if_else(is_left, none, ids), none, none]
    return pa.RecordBatch.from_arrays(columns, schema=OUT)
