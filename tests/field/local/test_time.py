"""Event time of the real world: backlogs, whole batches, rules, and the end of the input."""

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrier_runtime import (
    BroadcastState,
    CollectSink,
    Dataflow,
    RedisUpsertSink,
    Tumbling,
    ValueState,
    connect,
    count,
)
from barrier_runtime.api.dataflow import Stream
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.errors import InvalidJob

MS, HOUR = datetime.timedelta(milliseconds=1), 3_600_000
CLICK = {"k": str, "t": int, "n": int}
CLICKS = [{"k": "ann", "t": t, "n": n} for n, t in enumerate((0, 4_000, 5_000, 30_000, 60_000))]


def rows_of(flow: Dataflow, rows: Sequence[dict[str, Any]], name: str = "rows", schema: Any = CLICK) -> Stream:
    """A backlog: all rows are present at the start, and arrive as a batch."""
    return flow.from_iterator(name, lambda part, of: list(rows), schema=schema, splits=1, event_time="t")


class Sessions:
    """The example of docs/time.md: the number of a user's clicks before ten seconds without a click."""

    clicks = ValueState(int, default=0)
    due = ValueState(int, default=0)

    def process(self, user: str, row: dict[str, Any], ctx: Any) -> None:
        ctx.timers.delete(self.due.value)
        self.clicks.value += 1
        self.due.value = ctx.timestamp + 10_000
        ctx.timers.register(self.due.value)

    def on_timer(self, user: str, timestamp_ms: int, ctx: Any) -> Any:
        yield {"user": user, "clicks": self.clicks.value}
        self.clicks.clear()


class PerKey:
    state = {"seen": "int64"}

    def process_groups(self, keys: Any, batch: pa.RecordBatch, state: Any) -> pa.RecordBatch:
        state["seen"][keys.of_row] += 1
        return batch


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([batch, batch]) if len(batch) else batch


WHOLE_BATCHES: dict[str, tuple[Callable[[Stream], Stream], list[int]]] = {
    "map_batches": (lambda rows: rows.map_batches(lambda batch: batch, schema=CLICK), [3, 1, 1]),
    "fewer rows": (
        lambda rows: rows.map_batches(lambda batch: batch.filter(pc.not_equal(batch["n"], 1)), schema=CLICK),
        [2, 1, 1],
    ),
    "more rows": (lambda rows: rows.map_batches(twice, schema=CLICK), [6, 2, 2]),
    "one to one": (lambda rows: rows.map_batches(lambda batch: batch, schema=CLICK, one_to_one=True), [3, 1, 1]),
    "process_groups": (lambda rows: rows.key_by("k").process_groups("groups", PerKey, schema=CLICK), [3, 1, 1]),
    "lookup": (
        lambda rows: rows.lookup("x", lambda keys: [{"x": 1} for _ in keys], key="n", schema={"x": int}),
        [3, 1, 1],
    ),
}


# Source: our own trial
@pytest.mark.slow
def test_the_last_millisecond_of_a_window_that_is_over_is_late_in_a_backlog_too() -> None:
    flow, out, late = Dataflow("field"), CollectSink(), CollectSink()
    rows = rows_of(flow, [{"k": "a", "t": t, "n": t} for t in (1_000, 999)])
    windows = rows.key_by("k").window("w", Tumbling(1_000 * MS), event_time="t")
    counted, behind = windows.aggregate(n=count(), late=True)
    counted.sink("out", out)
    behind.sink("late", late)
    flow.run_local(parallelism=1)
    assert ([row["n"] for row in out.rows()], [row["t"] for row in late.rows()]) == ([1], [999])


# Source: our own trial
@pytest.mark.parametrize("step", WHOLE_BATCHES)
def test_sessions_behind_whole_batches_are_closed_in_between(step: str) -> None:
    made, expected = WHOLE_BATCHES[step]
    flow, out = Dataflow("field"), CollectSink()
    sessions = made(rows_of(flow, CLICKS)).key_by("k")
    sessions.process("sessions", Sessions, event_time="t", schema={"user": str, "clicks": int}).sink("out", out)
    flow.run_local(parallelism=1)
    assert [row["clicks"] for row in out.rows()] == expected


# Source: our own trial
def test_an_id_every_two_hours_is_new_each_time_in_a_backlog() -> None:
    flow, out = Dataflow("field"), CollectSink()
    rows = rows_of(flow, [{"k": "a", "t": 2 * n * HOUR, "n": n} for n in range(10)])
    rows.deduplicate("once", "k", within=datetime.timedelta(hours=1)).sink("out", out)
    flow.run_local(parallelism=1)
    assert [row["n"] for row in out.rows()] == list(range(10))


# Source: our own trial
def test_rows_that_a_function_moves_back_are_late_in_a_backlog_too() -> None:
    flow, out, late = Dataflow("field"), CollectSink(), CollectSink()
    rows = rows_of(flow, [{"k": "a", "t": t, "n": t} for t in (10, 50, 60)])
    earlier = rows.map(lambda row: {**row, "t": row["t"] - 45 * (row["n"] == 60)}, schema=CLICK)
    counted, too_late = (
        earlier.key_by("k").window("w", Tumbling(20 * MS), event_time="t").aggregate(late=True, n=count())
    )
    counted.sink("out", out)
    too_late.sink("late", late)
    flow.run_local(parallelism=1)
    assert [row["n"] for row in late.rows()] == [60]
    assert [row["n"] for row in out.rows()] == [1, 1]


class Priced:
    price = BroadcastState(str, int)

    def on_prices(self, row: dict[str, Any], ctx: Any) -> None:
        self.price[row["k"]] = row["n"]

    def on_orders(self, key: str, row: dict[str, Any], ctx: Any) -> None:
        ctx.timers.register(row["t"] + HOUR)

    def on_timer(self, key: str, timestamp_ms: int, ctx: Any) -> Any:
        yield {"k": key, "n": self.price.get(key, 0)}


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_rules_that_wait_for_a_barrier_are_valid_before_the_last_timers(parallelism: int) -> None:
    flow, out = Dataflow("field"), CollectSink()
    orders, prices = rows_of(flow, CLICKS[:2], "orders"), rows_of(flow, [{"k": "ann", "t": 0, "n": 5}], "prices")
    inputs = connect(orders=orders.key_by("k"), prices=prices.broadcast("barrier"))
    inputs.process("priced", Priced, schema={"k": str, "n": int}).sink("out", out)
    flow.run_local(parallelism=parallelism)
    assert [row["n"] for row in out.rows()] == [5, 5]


class AtOnce:
    def process(self, key: str, row: dict[str, Any], ctx: Any) -> None:
        ctx.wall_timers.register(1)  # as soon as may be, which is when the input has ended already

    def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Any:
        yield {"k": key, "t": 10, "n": 1}


# Source: our own trial
def test_wall_clock_timers_due_at_the_end_come_before_the_last_watermark() -> None:
    """The timers' rows would otherwise be after the end of event time, where no window takes rows."""
    flow, out = Dataflow("field"), CollectSink()
    told = rows_of(flow, CLICKS[:1]).key_by("k").process("at-once", AtOnce, schema=CLICK)
    told.key_by("k").window("w", Tumbling(20 * MS), event_time="t").aggregate(n=count()).sink("out", out)
    flow.run_local(parallelism=1)
    assert [row["n"] for row in out.rows()] == [1]


# Source: our own trial
def test_days_of_utc_plus_8_are_windows_of_a_negative_offset() -> None:
    flow, out = Dataflow("field"), CollectSink()
    rows = rows_of(flow, [{"k": "a", "t": t * HOUR, "n": 0} for t in (15, 16, 39, 40)])
    days = rows.key_by("k").window(
        "days", Tumbling(datetime.timedelta(days=1), offset=datetime.timedelta(hours=-8)), event_time="t"
    )
    days.aggregate(n=count()).sink("out", out)
    flow.run_local(parallelism=1)
    assert [(row["window_start"].hour, row["n"]) for row in out.rows()] == [(16, 1), (16, 2), (16, 1)]


# Source: our own trial
def test_a_join_refuses_the_least_64_bit_number_as_a_time() -> None:
    flow, out = Dataflow("field"), CollectSink()
    rows = rows_of(flow, [{"k": "a", "t": -(2**63), "n": 0}])
    others = rows_of(flow, CLICKS, "others")
    joined = rows.key_by("k").join("both", others.key_by("k"), between=(-MS, MS), event_time="t")
    joined.sink("out", out)
    with pytest.raises(JobFailed, match="'both': a row has the event time -9223372036854775808 ms"):
        flow.run_local(parallelism=1)


# Source: our own trial
def test_timers_behind_a_union_are_refused_before_a_sink_that_relies_on_replays() -> None:
    flow = Dataflow("field")
    both = rows_of(flow, CLICKS, "one").union(rows_of(flow, CLICKS, "other"))
    told = both.key_by("k").process("sessions", Sessions, event_time="t", schema={"user": str, "clicks": int})
    with pytest.raises(
        InvalidJob, match=r"in step 'union' before it the rows of 2 inputs interleave.*'sessions' behind"
    ):
        told.sink("out", RedisUpsertSink("redis://host", key="user", deterministic=True))
    told.sink("out", CollectSink())
    assert "'sessions' behind it follows event time row by row, so another run may give other rows" in flow.explain()


# Source: our own trial
def test_rules_that_count_from_the_row_on_are_refused_before_a_replaying_sink() -> None:
    flow = Dataflow("field")
    orders, prices = rows_of(flow, CLICKS, "orders").key_by("k"), rows_of(flow, CLICKS, "prices")
    by_row = connect(orders=orders, prices=prices.broadcast()).process("priced", Priced, schema={"k": str, "n": int})
    with pytest.raises(InvalidJob, match=r"in step 'priced' before it a row sees what of input 'prices' has come"):
        by_row.sink("out", RedisUpsertSink("redis://host", key="k", deterministic=True))


# Source: our own trial
def test_a_plan_says_which_steps_take_a_batch_in_parts() -> None:
    flow = Dataflow("field")
    rows = rows_of(flow, CLICKS).map_batches(lambda batch: batch, schema=CLICK)
    rows.sink("plain", CollectSink())
    assert "rows of one event time at a time" not in flow.explain()
    told = rows.key_by("k").process("sessions", Sessions, event_time="t", schema={"user": str, "clicks": int})
    told.sink("out", CollectSink())
    assert "rows of one event time at a time: 'sessions' follows event time row by row" in flow.explain()


# Source: our own trial
def test_a_function_of_batches_that_moves_times_back_is_warned_of() -> None:
    flow, out = Dataflow("field"), CollectSink()
    moved = rows_of(flow, CLICKS).map_batches(
        lambda batch: batch.set_column(1, "t", pc.subtract(batch["t"], 50_000)), schema=CLICK
    )
    moved.key_by("k").window("w", Tumbling(20 * MS), event_time="t").aggregate(n=count()).sink("out", out)
    with pytest.warns(
        UserWarning, match=r"gives rows whose event time 't' is earlier .* with_watermarks\('t'\) behind"
    ):
        flow.run_local(parallelism=1)


# Source: our own trial
def test_a_function_that_is_not_one_to_one_is_refused() -> None:
    flow, out = Dataflow("field"), CollectSink()
    rows_of(flow, CLICKS).map_batches(twice, schema=CLICK, name="double", one_to_one=True).sink("out", out)
    with pytest.raises(JobFailed, match="'double' returned 10 rows for 5, and one_to_one=True"):
        flow.run_local(parallelism=1)
