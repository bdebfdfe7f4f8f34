"""Steps that follow event time row by row, and their demands on upstream steps."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, RedisUpsertSink, Tumbling, connect, count
from barrier_runtime.api.dataflow import Stream
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.event_time import StepBehind, followers_of
from barrier_runtime.state.errors import InvalidJob

MS = datetime.timedelta(milliseconds=1)
ROW = {"k": str, "t": int, "n": int}


class Timed:
    def process(self, key: str, row: Any, ctx: Any) -> None: ...
    def on_timer(self, key: str, timestamp_ms: int, ctx: Any) -> None: ...
    def on_one(self, key: str, row: Any, ctx: Any) -> None: ...
    def on_other(self, key: str, row: Any, ctx: Any) -> None: ...


class Untimed:
    def on_one(self, key: str, row: Any, ctx: Any) -> None: ...
    def on_other(self, key: str, row: Any, ctx: Any) -> None: ...


def read(flow: Dataflow, name: str = "rows") -> Stream:
    return flow.from_iterator(name, lambda part, of: [], schema=ROW, splits=1, event_time="t")


def counted(rows: Stream, column: str = "t") -> Stream:
    return rows.key_by("k").window("w", Tumbling(MS), event_time=column).aggregate(n=count())


def timed(rows: Stream) -> Stream:
    return rows.key_by("k").process("timed", Timed, event_time="t", schema=ROW)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


BEFORE: list[tuple[Any, str]] = [
    (lambda rows: counted(rows), "late"),
    (lambda rows: counted(rows.filter("n > 1").select({"k": "k", "time": "t"}), "time"), "late"),
    (lambda rows: counted(rows.map_batches(same, schema=ROW)), "late"),
    (lambda rows: counted(rows.map(lambda row: row, schema=ROW)), "rows"),
    (lambda rows: counted(rows.select({"k": "k", "t": "t - 5"})), "rows"),
    (lambda rows: counted(rows.select({"k": "k", "t": "t", "n": "n + 1"})), "late"),
    (lambda rows: counted(rows.map(lambda row: row, schema=ROW).with_watermarks("t")), "none"),
    (lambda rows: timed(rows), "every"),
    (lambda rows: rows.deduplicate("once", "k", within=MS), "every"),
    (lambda rows: rows.deduplicate("once", "k", within=None), "none"),
    (lambda rows: rows.map(lambda row: row, schema=ROW), "none"),
]


@pytest.mark.filterwarnings("ignore:flow 'f'")
@pytest.mark.parametrize(("steps", "detail"), BEFORE)
def test_a_source_tells_event_time_as_closely_as_a_step_behind_follows_it(steps: Any, detail: str) -> None:
    flow = Dataflow("f")
    steps(read(flow)).sink("out", CollectSink())
    assert followers_of(flow.plan.nodes)[0].detail == detail
    (source,) = [chain.source for chain in compile_plan(flow.plan, 1).chains if chain.source is not None]
    assert source.detail == detail


def test_the_step_that_follows_most_closely_is_named() -> None:
    flow = Dataflow("f")
    rows = read(flow)
    counted(rows).sink("windows", CollectSink())
    timed(rows).sink("timers", CollectSink())
    assert followers_of(flow.plan.nodes)[0] == StepBehind("every", "timed")


@pytest.mark.parametrize("kind", ["union", "connect", "join"])
def test_multi_input_steps_are_refused_if_later_steps_need_event_time(kind: str) -> None:
    def merged(function: type) -> Stream:
        flow = Dataflow("f")
        one, other = read(flow), read(flow, "others")
        if kind == "union":
            return one.union(other, name=kind)
        if kind == "connect":
            inputs = connect(one=one.key_by("k"), other=other.key_by("k"))
            return inputs.process(kind, function, event_time="t", schema=ROW)
        joined = one.key_by("k").join(kind, other.key_by("k"), between=(-MS, MS), event_time="t")
        return joined.select(["k", "t", "n"])

    def sink(rows: Stream, name: str) -> None:
        rows.sink(name, RedisUpsertSink("redis://host", key="k", deterministic=True))

    sink(merged(Untimed), "plain")
    sink(counted(merged(Untimed)), "windows")
    with pytest.raises(InvalidJob, match=f"in step '{kind}' .* 2 inputs interleave.* step 'timed' behind"):
        sink(timed(merged(Untimed)), "timers")
    timed(merged(Untimed)).sink("stored", RedisUpsertSink("redis://host", key="k", after_decision=True))
    if kind == "connect":
        with pytest.raises(InvalidJob, match=r"inputs interleave .*, and it follows event time"):
            sink(merged(Timed), "itself")
