"""Windows and their oracle: rows sorted by key and time, cut where windows begin and end, in plain Python."""

import datetime
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from barrier_runtime import (
    Calendar,
    CollectSink,
    Count,
    Dataflow,
    Every,
    Global,
    OwnTrigger,
    Session,
    Sliding,
    TriggerResult,
    TriggerWindow,
    Tumbling,
    count,
    sum_,
)
from tests.oracle.streams import SCHEMA, Row, Stream, drawn

MS = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
KINDS = ("tumbling", "sliding", "session", "count", "global", "calendar")
BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime.datetime(2026, 3, 27, 12, tzinfo=datetime.timezone.utc)  # clocks are set forward on the 29th
SLOWER = 1_200_000  # so that some ms are some hours


class Thirds(OwnTrigger):
    """Each third row of a window emits the window's result."""

    state = {"seen": 0}
    accumulate = True

    def on_row(self, row: Row, window: TriggerWindow) -> TriggerResult | None:
        window.state["seen"] += 1
        return self.told() if window.state["seen"] % 3 == 0 else None

    def told(self) -> TriggerResult:
        return TriggerResult.FIRE


class Parts(Thirds):
    """Each third row emits the rows since the previous third row."""

    accumulate = False

    def told(self) -> TriggerResult:
        return TriggerResult.FIRE | TriggerResult.PURGE


@dataclass(frozen=True)
class Windows:
    kind: str
    size_ms: int  # of a session: the gap; of windows by count: rows
    slide_ms: int
    lateness_ms: int
    early: Every | Thirds | None
    stream: Stream
    late: bool  # late rows have an output of their own

    @property
    def inputs(self) -> dict[str, Stream]:
        return {"rows": self.stream}

    def flow(self) -> Dataflow:
        flow = Dataflow("oracle")
        rows = flow.from_iterator(
            "rows",
            lambda part, of: [],
            schema=SCHEMA,
            splits=len(self.stream.splits),
            event_time="t",
            max_out_of_orderness=self.stream.bound_ms * MS,
        )
        size, slide = self.size_ms * MS, self.slide_ms * MS
        keyed = rows.key_by("k")
        if self.kind in ("count", "global"):
            window = Count(self.size_ms, self.slide_ms) if self.kind == "count" else Global()
            keyed.window("w", window, early=self.early).aggregate(n=count(), total=sum_("v")).sink("out", CollectSink())
            return flow
        kinds: dict[str, Any] = {
            "tumbling": lambda: Tumbling(size),
            "sliding": lambda: Sliding(size, slide),
            "calendar": lambda: Calendar("day", zone="Europe/Berlin"),
        }
        timed = kinds.get(self.kind, lambda: Session(size))()
        windows = keyed.window("w", timed, event_time="t", allowed_lateness=self.lateness_ms * MS, early=self.early)
        if not self.late:  # the rows may be combined then
            windows.aggregate(n=count(), total=sum_("v")).sink("out", CollectSink())
            return flow
        results, late = windows.aggregate(late=True, n=count(), total=sum_("v"))
        results.sink("out", CollectSink())
        late.sink("late", CollectSink())
        return flow

    # ------------------------------------------------------------ expected output

    def wrong(self, out: Mapping[str, Sequence[Row]], exact: bool) -> str:
        """Faults in the rows of the sinks. `exact`: each row counts exactly once, in the windows for which the row is
        in time; otherwise windows may lack rows that are late in one order, or contain some twice.
        """
        late = {row["v"] for row in out.get("late", ())}
        given = self.stream.rows
        watermarks = self.stream.watermarks()
        by_number = {row["v"]: row for row in given}
        unjust = [number for number in late if not self._may_be_late(by_number[number], watermarks[number])]
        if unjust:
            return f"rows {unjust} are late, but behind no watermark"
        got = self._last(out["out"])
        wanted = self._wanted([row for row in given if row["v"] not in late], watermarks)
        if exact:
            return "" if got == wanted else _difference(wanted, got)
        lacking = [key for key in wanted if key not in got or got[key][0] < wanted[key][0]]
        return f"at least once, and lacking in {lacking[:5]}" if lacking else ""

    def _may_be_late(self, row: Row, watermark: int) -> bool:
        if self.kind == "session":
            return bool(row["t"] + self.size_ms + self.lateness_ms <= watermark)
        return all(self._end(start) - 1 + self.lateness_ms <= watermark for start in self._starts(row["t"]))

    def _starts(self, time: int) -> Sequence[int]:
        if self.kind == "calendar":
            return (_midnight(time, days=0),)
        last = time - time % self.slide_ms
        return range(last - self.size_ms + self.slide_ms, last + 1, self.slide_ms)

    def _end(self, start: int) -> int:
        return _midnight(start, days=1) if self.kind == "calendar" else start + self.size_ms

    def _last(self, rows: Sequence[Row]) -> dict[Any, tuple[int, int]]:
        """(rows, total) by key and window: of the last update, or of all parts together."""
        found: dict[Any, tuple[int, int, int]] = {}
        counted: dict[Any, int] = defaultdict(int)
        for row in rows:
            n, total = row["n"], row["total"] or 0
            if self.kind == "count":
                found[row["k"], counted[row["k"]]] = (0, n, total)
                counted[row["k"]] += 1
                continue
            start = (row["window_start"] - EPOCH) // MS if "window_start" in row else 0
            key, update = (row["k"], start), row.get("update", 0)
            known = found.get(key, (-1, 0, 0))
            if self.early is not None and not self.early.accumulate:
                found[key] = (update, known[1] + n, known[2] + total)
            elif update >= known[0]:
                found[key] = (update, -1 if row.get("retracted") else n, total)
        return {key: (n, total) for key, (_, n, total) in found.items() if n >= 0}

    def _wanted(self, rows: Sequence[Row], watermarks: Mapping[int, int]) -> dict[Any, tuple[int, int]]:
        of_key: dict[Any, list[Row]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row["t"]) if self.kind == "session" else rows:
            of_key[row["k"]].append(row)
        parts: dict[Any, list[int]] = defaultdict(list)
        for key, its in of_key.items():
            if self.kind == "count":
                for end in range(self.slide_ms, len(its) + 1, self.slide_ms):
                    number = end // self.slide_ms - 1
                    parts[key, number] = [row["v"] for row in its[max(0, end - self.size_ms) : end]]
            elif self.kind == "global":
                parts[key, 0] = [row["v"] for row in its]
            elif self.kind == "session":
                start = None
                for at, row in enumerate(its):
                    if start is None or row["t"] - its[at - 1]["t"] > self.size_ms:
                        start = row["t"]
                    parts[key, start].append(row["v"])
            else:
                for row in its:
                    for start in self._starts(row["t"]):
                        if self._end(start) - 1 + self.lateness_ms > watermarks[row["v"]]:
                            parts[key, start].append(row["v"])
        return {key: (len(numbers), sum(numbers)) for key, numbers in parts.items()}


def draw_windows(rng: random.Random, exact_late: bool) -> Windows:
    """Draws windows. `exact_late`: the late rows are the same in each order of rows, so some may be late."""
    kind = rng.choice(KINDS)
    size_ms = rng.choice((20, 50, 120))
    slide_ms = rng.choice((size_ms, size_ms // 2, size_ms // 5)) if kind == "sliding" else size_ms
    if kind == "count":
        size_ms, slide_ms = rng.choice(((1, 1), (3, 3), (4, 2), (6, 1)))
    lateness_ms = rng.choice((0, 0, 40, 300)) if kind in ("tumbling", "sliding", "session", "calendar") else 0
    early: Every | Thirds | None = None
    if kind != "count":
        accumulate = kind == "session" or rng.random() < 0.6
        by_time = Every(rng.choice((7, 30)) * MS, accumulate=accumulate)
        early = rng.choice((None, None, by_time, Every(rows=rng.choice((1, 3)), accumulate=accumulate)))
        if kind != "session" and rng.random() < 0.25:
            early = rng.choice((Thirds(), Thirds(), Parts()))
            lateness_ms = lateness_ms if early.accumulate else 0  # a late row emits all rows since the last part
    splits = 1 if exact_late or kind == "count" else rng.randint(1, 3)
    far_ms = 0
    if exact_late and kind in ("tumbling", "sliding", "calendar"):
        far_ms = rng.choice((30, 200, 2_000))
    stream = drawn(rng, rng.choice((5, 40, 120)), splits, far_ms)
    if kind == "calendar":
        stream, lateness_ms = _slower(stream), lateness_ms * SLOWER
        if isinstance(early, Every) and early.interval is not None:
            early = Every(early.interval * SLOWER, accumulate=early.accumulate)
    late = splits > 1 or far_ms > 0
    return Windows(kind, size_ms, slide_ms, lateness_ms, early, stream, late)


def _midnight(time: int, days: int) -> int:
    """Midnight of a time's day in Berlin, some days later."""
    day = (EPOCH + time * MS).astimezone(BERLIN).date() + datetime.timedelta(days=days)
    return (datetime.datetime(day.year, day.month, day.day, tzinfo=BERLIN) - EPOCH) // MS


def _slower(stream: Stream) -> Stream:
    """The same rows, hours apart, around a change of clocks."""
    begin = (SPRING - EPOCH) // MS
    splits = [tuple({**row, "t": begin + row["t"] * SLOWER} for row in split) for split in stream.splits]
    return Stream(tuple(splits), stream.bound_ms * SLOWER)


def _difference(wanted: Mapping[Any, Any], got: Mapping[Any, Any]) -> str:
    keys = [key for key in {**wanted, **got} if wanted.get(key) != got.get(key)]
    return "; ".join(f"{key}: wanted {wanted.get(key)}, got {got.get(key)}" for key in keys[:5])
