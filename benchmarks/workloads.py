"""The measured workloads: each in SQL, which defines the answer, and in our own DSL.

The SQL is for Spark and Flink; if Flink needs a different text for a window, `flink` has Flink's text. The SQL reads
the view `events` (`key`, `value`, `at`, `emitted`; and `ts`, the event time as a timestamp with a watermark). Every
result has a column `emitted`, the intended emission (ns) from which latency counts. A row per event has the event's
emission. A micro-batch has a row per key for all events of a batch, with the emission of the *last* event, which
flatters the engine. A row of a window has the window's end: no event that is due earlier can close the window.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import Dataflow, Tumbling, ValueState, count, sum_
from barrier_runtime.api.dataflow import Stream
from benchmarks.sliding import sliding

_SIZE, _SLIDE = timedelta(seconds=10), timedelta(seconds=2)
_NEAR = timedelta(seconds=5)
_NS_PER_MS = 1_000_000
WIDE_BYTES = 100  # of a key with state in "wide-state"


@dataclass(frozen=True)
class Workload:
    """A workload; `ours` takes the stream of events, `mode` is of Spark's streaming output.

    With a `group` the answer is the last row of each group; without it results are compared row by row."""

    name: str
    question: str
    sql: str
    flink: str  # "": not measured with Flink
    ours: Callable[[Stream], Stream]
    mode: Literal["append", "update"]
    group: tuple[str, ...] = ()
    windowed: bool = False
    input: Literal["events", "nexmark", "records", "backlog", "tables"] = "events"  # tables: events for a table
    spark_streams: bool = True  # Spark's streaming can run the SQL
    answer: tuple[str, ...] = ()  # columns to compare; () = all
    summed: str = ""  # the column whose values of a `group` are added: of windows that begin anywhere
    flink_answer: tuple[str, ...] = ()  # columns to compare of Flink's answer; () = as ours
    flink_key: tuple[str, ...] = ()  # key by which Flink's rows replace each other, without retractions
    flink_ends: bool = True  # Flink outputs all of the input; if not, Flink's sums are at most the answer's
    listed: tuple[str, str] | None = None  # (ours, Flink's): a list per group, the greatest first; Flink has rows
    per_key: float | None = None  # rows of a key in a second of a bounded input's event time; None: 100,000 of all keys

    def pace(self, keys: int) -> int:
        """Rows per second of event time of a bounded input."""
        return 100_000 if self.per_key is None else max(1, round(keys * self.per_key))

    def flow(self, read: Callable[[Dataflow], Stream]) -> tuple[Dataflow, Stream]:
        """A new flow, and the result's stream without a sink."""
        flow = Dataflow(f"bench-{self.name}")
        return flow, self.ours(read(flow))


def _keyed_count(events: Stream) -> Stream:
    return events.select(["key", "emitted"]).key_by("key").aggregate("counts", n=count())


class PythonCount:
    """The running count in a user's Python function, called for every row."""

    count = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        self.count.value += 1
        return {"key": key, "n": self.count.value, "emitted": row["emitted"]}


def _python_count(events: Stream) -> Stream:
    schema = {"key": int, "n": int, "emitted": int}
    return events.select(["key", "emitted"]).key_by("key").process("counts", PythonCount, schema=schema)


class WideState:
    """Keeps 92 bytes per key; with the key these are 100."""

    kept = ValueState(bytes, default=bytes(8))

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        n = int.from_bytes(self.kept.value[:8], "little") + 1
        self.kept.value = wide_value(key, n)
        return {"key": key, "n": n, "emitted": row["emitted"]}


def wide_value(key: int, n: int) -> bytes:
    """The count and noise, which depends on key and count alone.

    So the whole state changes with every row, and compression does not help."""
    return n.to_bytes(8, "little") + hashlib.shake_128(b"%d %d" % (key, n)).digest(WIDE_BYTES - 16)


def _wide_state(events: Stream) -> Stream:
    schema = {"key": int, "n": int, "emitted": int}
    return events.select(["key", "emitted"]).key_by("key").process("wide", WideState, schema=schema)


def _map_filter(events: Stream) -> Stream:
    columns = {"key": "key", "scaled": pc.field("value") * 3 + 1, "emitted": "emitted"}
    return events.filter(pc.field("value") < 700).select(columns)


def _emitted(stream: Stream, columns: tuple[str, ...]) -> Stream:
    """`columns`, and `emitted`: the window's end in ns."""
    end = pc.field("window_end").cast(pa.int64()) * _NS_PER_MS
    return stream.select({**{name: name for name in columns}, "emitted": end})


def _tumbling(events: Stream) -> Stream:
    windows = events.key_by("key").window("windows", Tumbling(_SIZE), event_time="at")
    return _emitted(windows.aggregate(n=count(), total=sum_("value")), ("key", "n", "total"))


def _sliding(events: Stream) -> Stream:
    windows = sliding(events, "windows", ("key",), _SIZE, _SLIDE, event_time="at", sums=("value",))
    return windows.select({"key": "key", "n": "n", "total": "value", "emitted": pc.field("end_ms") * _NS_PER_MS})


def _two_shuffles(events: Stream) -> Stream:
    per_key = events.key_by("key").window("per-key", Tumbling(_SIZE), event_time="at").aggregate(n=count())
    spread = per_key.key_by("n").window("spread", Tumbling(_SIZE), event_time="window_start").aggregate(keys=count())
    return _emitted(spread, ("n", "keys"))


def _interval_join(events: Stream) -> Stream:
    left = events.filter("value % 2 = 0").select({"key": "key", "price": "value", "at": "at", "emitted": "emitted"})
    right = events.filter("value % 2 = 1").select({"key": "key", "rate": "value", "at": "at", "emitted": "emitted"})
    joined = left.key_by("key").join("join", right.key_by("key"), between=(-_NEAR, _NEAR), event_time="at")
    emitted = "greatest(emitted, emitted_right)"
    return joined.select({"key": "key", "price": "price", "rate": "rate", "emitted": emitted})


_END = "unix_millis(window.end) * 1000000 AS emitted"
_FLINK_END = "UNIX_TIMESTAMP(CAST(window_end AS STRING)) * 1000000000 AS emitted"
_TUMBLE = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECOND))"
_HOP = "TABLE(HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"

KEYED_COUNT = Workload(
    "keyed-count",
    "running count per key",
    "SELECT key, count(*) AS n, max(emitted) AS emitted FROM events GROUP BY key",
    "SELECT `key`, COUNT(*) AS n, MAX(emitted) AS emitted FROM events GROUP BY `key`",
    _keyed_count,
    "update",
    group=("key",),
)
MAP_FILTER = Workload(
    "map-filter",
    "stateless map and filter",
    "SELECT key, value * 3 + 1 AS scaled, emitted FROM events WHERE value < 700",
    "SELECT `key`, `value` * 3 + 1 AS scaled, emitted FROM events WHERE `value` < 700",
    _map_filter,
    "append",
)
PYTHON_COUNT = dataclasses.replace(
    KEYED_COUNT, name="python-count", question="running count per key in a row-wise Python function", ours=_python_count
)
WIDE_STATE = dataclasses.replace(
    KEYED_COUNT, name="wide-state", question="running count per key, with 100 bytes of state each", ours=_wide_state
)
TUMBLING = Workload(
    "tumbling",
    "count and sum per key in windows of 10 s",
    f"SELECT key, count(*) AS n, sum(value) AS total, {_END} FROM events GROUP BY key, window(ts, '10 seconds')",
    f"SELECT `key`, COUNT(*) AS n, SUM(`value`) AS total, {_FLINK_END} FROM {_TUMBLE} "
    "GROUP BY `key`, window_start, window_end",
    _tumbling,
    "append",
    windowed=True,
)
SLIDING = Workload(
    "sliding",
    "count and sum per key in windows of 10 s every 2 s",
    f"SELECT key, count(*) AS n, sum(value) AS total, {_END} FROM events "
    "GROUP BY key, window(ts, '10 seconds', '2 seconds')",
    f"SELECT `key`, COUNT(*) AS n, SUM(`value`) AS total, {_FLINK_END} FROM {_HOP} "
    "GROUP BY `key`, window_start, window_end",
    _sliding,
    "append",
    windowed=True,
)
TWO_SHUFFLES = Workload(
    "two-shuffles",
    "how many keys have n events in a window: two aggregates, one after the other",
    f"SELECT n, count(*) AS keys, {_END} FROM (SELECT key, window AS w, count(*) AS n FROM events "
    "GROUP BY key, window(ts, '10 seconds')) GROUP BY n, window(w, '10 seconds')",
    f"SELECT n, COUNT(*) AS `keys`, {_FLINK_END} FROM (SELECT `key`, window_start, window_end, COUNT(*) AS n "
    f"FROM {_TUMBLE} GROUP BY `key`, window_start, window_end) GROUP BY n, window_start, window_end",
    _two_shuffles,
    "append",
    windowed=True,
)

INTERVAL_JOIN = Workload(
    "interval-join",
    "rows of two streams with equal keys within 5 s of each other: one for each row, in the mean",
    "SELECT l.key, l.value AS price, r.value AS rate, greatest(l.emitted, r.emitted) AS emitted FROM events l "
    "JOIN events r ON l.key = r.key AND r.at BETWEEN l.at - 5000 AND l.at + 5000 "
    "WHERE l.value % 2 = 0 AND r.value % 2 = 1",
    "SELECT l.`key`, l.`value` AS price, r.`value` AS rate, GREATEST(l.emitted, r.emitted) AS emitted FROM events l "
    "JOIN events r ON l.`key` = r.`key` AND r.ts BETWEEN l.ts - INTERVAL '5' SECOND AND l.ts + INTERVAL '5' SECOND "
    "WHERE MOD(l.`value`, 2) = 0 AND MOD(r.`value`, 2) = 1",
    _interval_join,
    "append",
    per_key=0.2,
)

COPY = Workload(
    "copy",
    "rows as they are",
    "SELECT key, value, at, emitted FROM events",
    "SELECT `key`, `value`, `at`, emitted FROM events",
    lambda events: events,
    "append",
    input="tables",
)

ROWWISE = ("python-count", "wide-state")
"""Workloads in which a Python function sees every row."""


def _all() -> dict[str, Workload]:
    from benchmarks.backlog_workloads import WORKLOADS as BACKLOGS
    from benchmarks.nexmark_queries import QUERIES
    from benchmarks.real_time_workloads import WORKLOADS

    mine = (KEYED_COUNT, PYTHON_COUNT, WIDE_STATE, MAP_FILTER, TUMBLING, SLIDING, TWO_SHUFFLES, INTERVAL_JOIN, COPY)
    return {workload.name: workload for workload in (*mine, *QUERIES, *WORKLOADS, *BACKLOGS)}


def workload(name: str) -> Workload:
    """Raises KeyError with the existing names."""
    known = _all()
    if name not in known:
        raise KeyError(f"no workload {name!r}: {', '.join(known)}")
    return known[name]


def names(input: Literal["events", "nexmark"] | None = None) -> list[str]:
    """All names, or those that read `input`. Nexmark exists as a bounded input only.

    Workloads over `records`, `backlog` and `tables` have commands of their own and are not listed."""
    inputs = ("events", "nexmark") if input is None else (input,)
    return [name for name, known in _all().items() if known.input in inputs]
