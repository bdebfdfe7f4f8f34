"""The job of a soak: the main job's two shuffles, Kafka on both sides, windows and a join, exactly once.

Numbered records (`chaos.workload`) are counted by key and go to the topic `counted`. The same job reads that topic
again: windows of groups go to JSON lines, and the join of every tenth record with the record itself, after the way
through Kafka, goes to the topic `joined`. All results follow from the rows of `counted`, which `judge` checks.
"""

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import Dataflow, JsonlSink, KafkaSink, Tumbling, count, sum_
from tests.integration.chaos.workload import KEYS, SPLITS, Count

JOB = "soak"
WINDOWS = "windows"
WINDOW_S = 10
INTERVAL_S = 1.0  # of checkpoints
JOINED_EVERY = 10  # a record of so many is joined
PARTITIONS = 2
_NEAR = timedelta(seconds=1)  # record times in Kafka are milliseconds
_ROW = {"value": int, "key": int, "group": int, "due_ns": int, "n": int}


def counted_topic(job: str) -> str:
    return f"{job}-counted"


def joined_topic(job: str) -> str:
    return f"{job}-joined"


def build(job: str, bootstrap: str, target: str, rows_per_second: float, rows: int | None, late_s: float) -> Dataflow:
    """`late_s`: longer than a restart, because records of several splits mix in a partition."""
    flow = Dataflow(job)
    made = flow.rate("records", rows_per_second, rows, keys=KEYS, splits=SPLITS, event_time="intended_at")
    records = made.with_columns(due_ns=_ns("intended_at"))
    counted = records.key_by("key").process("count", Count, schema=_ROW)
    timed = counted.with_columns(at=_timestamp("due_ns"))
    topic = counted_topic(job)
    timed.sink("to-counted", KafkaSink(bootstrap, topic, key="key", timestamp="at"))
    again = flow.read_kafka(
        "again",
        bootstrap,
        topic,
        group=job,
        key=None,
        value="json",
        schema=_ROW,
        metadata=("timestamp",),
        event_time="timestamp",
        max_out_of_orderness=timedelta(seconds=late_s),
    )
    windows = again.key_by("group").window("window", Tumbling(timedelta(seconds=WINDOW_S)), event_time="timestamp")
    windows.aggregate(n=count(), total=sum_("value")).sink(WINDOWS, JsonlSink(target))
    few = f"value % {JOINED_EVERY} = 0"
    left = records.filter(few).select(["value", "intended_at"]).key_by("value")
    right = again.filter(few).select(["value", "n", "timestamp"]).key_by("value")
    joined = left.join("join", right, between=(-_NEAR, _NEAR), event_time=("intended_at", "timestamp"))
    joined.select(["value", "n"]).sink("to-joined", KafkaSink(bootstrap, joined_topic(job), key="value"))
    return flow


def _ns(column: str) -> pc.Expression:
    return pc.field(column).cast(pa.int64())


def _timestamp(column: str) -> pc.Expression:
    return pc.field(column).cast(pa.timestamp("ns", "UTC"))
