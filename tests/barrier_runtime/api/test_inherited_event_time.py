"""Event time is named at the source; windows, joins and functions inherit the column."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from barrier_runtime import TTL, CollectSink, Dataflow, InvalidJob, Stream, Tumbling, ValueState, connect, count, sum_
from barrier_runtime.api.dataflow import KeyedStream

SCHEMA = {"k": str, "at": int, "v": int}
ROWS = [{"k": "ab"[at % 2], "at": at * 20_000, "v": at} for at in range(30)]
MINUTE = Tumbling(timedelta(minutes=1))


def read(flow: Dataflow, name: str = "in", **times: Any) -> Stream:
    given: dict[str, Any] = {"event_time": "at", **times}
    return flow.from_iterator(name, lambda index, of: iter(ROWS), schema=SCHEMA, splits=1, **given)


def results(make: Callable[[Dataflow, dict[str, Any]], Stream], **given: Any) -> list[dict[str, Any]]:
    flow, out = Dataflow("times"), CollectSink()
    make(flow, given).sink("out", out)
    flow.run_local(parallelism=1)
    return sorted(out.rows(), key=repr)


class Recent:
    """Numbers the rows of a key within a minute."""

    seen = ValueState(int, default=0, ttl=TTL(timedelta(minutes=1), clock="event"))

    def process(self, key: str, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield {"k": key, "n": self.seen.value, "at": ctx.timestamp}


def copied(row: Any) -> dict[str, Any]:
    return dict(row)


STEPS: dict[str, Callable[[Dataflow, dict[str, Any]], Stream]] = {
    "window": lambda flow, time: read(flow).key_by("k").window("w", MINUTE, **time).aggregate(n=count()),
    "window_all": lambda flow, time: read(flow).window_all("w", MINUTE, **time).aggregate(n=count()),
    "behind a function": lambda flow, time: (
        read(flow).map(copied, schema=SCHEMA).key_by("k").window("w", MINUTE, **time).aggregate(n=count())
    ),
    "union": lambda flow, time: (
        read(flow).union(read(flow, "more")).key_by("k").window("w", MINUTE, **time).aggregate(n=count())
    ),
    "join": lambda flow, time: (
        read(flow).key_by("k").join("j", read(flow, "b").key_by("k"), between=(0, timedelta(seconds=20)), **time)
    ),
    "window_join": lambda flow, time: (
        read(flow).key_by("k").window_join("j", read(flow, "b").key_by("k"), MINUTE, **time)
    ),
    "asof_join": lambda flow, time: read(flow).key_by("k").asof_join("j", read(flow, "b").key_by("k"), **time),
    "process": lambda flow, time: (
        read(flow).key_by("k").process("p", Recent, schema={"k": str, "n": int, "at": int}, **time)
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_inherits_the_event_time_of_the_source(step: str) -> None:
    inherited = results(STEPS[step])
    assert inherited
    assert inherited == results(STEPS[step], event_time="at")


def test_the_column_is_followed_through_a_new_name() -> None:
    def renamed(flow: Dataflow, time: dict[str, Any]) -> Stream:
        rows = read(flow).rename(at="moment").select({"k": "k", "when": "moment"})
        return rows.key_by("k").window("w", MINUTE, **time).aggregate(n=count())

    assert results(renamed) == results(renamed, event_time="when")


def test_windows_of_results_of_windows_count_them_by_start() -> None:
    def nested(size: Tumbling) -> Callable[[Dataflow, dict[str, Any]], Stream]:
        def make(flow: Dataflow, time: dict[str, Any]) -> Stream:
            by_key = read(flow).key_by("k").window("w", MINUTE).aggregate(n=count())
            return by_key.window_all("all", size, **time).aggregate(n=sum_("n"), rows=count())

        return make

    for size in (MINUTE, Tumbling(timedelta(minutes=5))):
        assert results(nested(size)) == results(nested(size), event_time="window_start")
    uneven = Tumbling(timedelta(seconds=90))
    assert results(nested(uneven)) == results(nested(uneven), event_time="window_end")


def test_late_rows_inherit_the_event_time_of_the_rows_of_the_window() -> None:
    late = read(Dataflow("late")).key_by("k").window("w", MINUTE).aggregate(late=True, n=count()).late
    assert late.key_by("k")._keyed_input().event_time("window 'x'", MINUTE) == "at"


class Both:
    seen = ValueState(int, default=0, ttl=TTL(timedelta(minutes=1), clock="event"))

    def on_left(self, key: str, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield {"k": key, "n": self.seen.value, "at": ctx.timestamp}

    on_right = on_left


@pytest.mark.parametrize("given", [{}, {"event_time": {"left": "at"}}])
def test_connected_inputs_inherit_their_event_times(given: dict[str, Any]) -> None:
    def make(flow: Dataflow, time: dict[str, Any]) -> Stream:
        left, right = read(flow).key_by("k"), read(flow, "other").key_by("k")
        joined = connect(left=left, right=right)
        stream: Stream = joined.process("both", Both, schema={"k": str, "n": int, "at": int}, **time)
        return stream

    times = sorted(int(row["at"]) for row in results(make, **given))
    assert times == sorted([at * 20_000 for at in range(30)] * 2)


def joined_pairs() -> KeyedStream:
    flow = Dataflow("pairs")
    left = read(flow).key_by("k")
    return left.join("j", read(flow, "b").key_by("k"), between=(0, 60)).key_by("k")


def test_a_step_after_a_join_has_to_choose_between_two_event_times() -> None:
    with pytest.raises(InvalidJob, match="window 'w': its rows have the event times 'at' and 'at_right': pass event_t"):
        joined_pairs().window("w", MINUTE)
    joined_pairs().window("w", MINUTE, event_time="at_right")


def test_a_function_without_use_for_event_time_needs_no_choice() -> None:
    stream: Any = joined_pairs().process("p", lambda key, row, ctx: None, schema={"k": str})
    assert stream.schema.names == ["k"]


def test_a_step_behind_changed_columns_needs_the_name_of_the_column() -> None:
    rows = read(Dataflow("gone")).map(copied, schema={"k": str, "moment": int}).key_by("k")
    with pytest.raises(InvalidJob, match="pass event_time=, the column that has the time of a row, because a step"):
        rows.window("w", MINUTE)
    with pytest.raises(InvalidJob, match=r"join 'j', left stream: pass event_time=, the column .*, or a pair"):
        rows.join("j", rows, between=(0, 1))


def test_a_step_behind_a_source_without_event_time_names_the_source() -> None:
    rows = read(Dataflow("none"), event_time=None).key_by("k")
    for add in (lambda: rows.window("w", MINUTE), lambda: rows.join("j", rows, between=(0, 1))):
        with pytest.raises(InvalidJob, match="'in' of its rows has none: pass event_time= where the source is read"):
            add()
