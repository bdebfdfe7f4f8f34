"""Event time is named at the source; windows, joins and functions inherit the column."""

import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import (
    TTL,
    CollectSink,
    Dataflow,
    InvalidJob,
    JobFailed,
    Stream,
    Tumbling,
    ValueState,
    connect,
    count,
    sum_,
)
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


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step_inherits_the_event_time_of_the_source(step: str) -> None:
    inherited = results(STEPS[step])
    assert inherited
    assert inherited == results(STEPS[step], event_time="at")


@pytest.mark.slow
def test_the_column_is_followed_through_a_new_name() -> None:
    def renamed(flow: Dataflow, time: dict[str, Any]) -> Stream:
        rows = read(flow).rename(at="moment").select({"k": "k", "when": "moment"})
        return rows.key_by("k").window("w", MINUTE, **time).aggregate(n=count())

    assert results(renamed) == results(renamed, event_time="when")


@pytest.mark.slow
def test_windows_of_results_of_windows_count_them_by_start() -> None:
    def nested(size: Tumbling) -> Callable[[Dataflow, dict[str, Any]], Stream]:
        def make(flow: Dataflow, time: dict[str, Any]) -> Stream:
            by_key = read(flow).key_by("k").window("w", MINUTE).aggregate(n=count())
            return by_key.window_all("all", size, **time).aggregate(n=sum_("n"), rows=count())

        return make

    for size in (MINUTE, Tumbling(timedelta(minutes=5))):
        assert results(nested(size)) == results(nested(size), event_time="window_start")
    uneven = Tumbling(timedelta(seconds=90))
    by_end = results(nested(uneven), event_time="window_end")
    with pytest.warns(UserWarning, match="each result counts wholly in the window of the end"):
        assert results(nested(uneven)) == by_end


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


def test_a_function_behind_a_join_has_no_time_until_one_is_chosen_and_is_told() -> None:
    with pytest.warns(UserWarning, match="process 'p': its rows have the event times 'at' and 'at_right', so ctx.time"):
        stream: Any = joined_pairs().process("p", Times, schema={"at": int})
    assert stream.schema.names == ["at"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joined_pairs().process("p", Times, schema={"at": int}, event_time="at")
        joined_pairs().process("p", lambda key, row, ctx: None, schema={"k": str})


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


def mapped(flow: Dataflow) -> Stream:
    return read(flow).map(copied, schema=SCHEMA)


def named_anew(row: Any) -> dict[str, Any]:
    return {"k": row["k"], "at": row["v"] * 20_000, "v": row["v"]}


def with_another(row: Any) -> dict[str, Any]:
    return {**row, "at": row["v"]}


BOTH = {**SCHEMA, "due": int}
RENAMED: dict[str, tuple[Callable[[Dataflow], Stream], str]] = {
    "a copy": (lambda flow: mapped(flow).with_columns(due="at"), "at"),
    "a copy of a source's column": (lambda flow: read(flow).with_columns(due="at"), "at"),
    "a copy and its original before a function": (
        lambda flow: read(flow).with_columns(due="at").map(copied, schema=BOTH),
        "at",
    ),
    "a copy without its original": (lambda flow: mapped(flow).with_columns(due="at").drop("at"), "due"),
    "a copy beside a computed time": (lambda flow: mapped(flow).with_columns(due="at", at="at + 60000"), "at"),
    "the name of a renamed column": (lambda flow: mapped(flow).rename(at="orig", v="at"), "orig"),
    "the name of a copied column": (lambda flow: mapped(flow).with_columns(orig="at", at="v"), "orig"),
    "the name of a copied column, computed": (lambda flow: mapped(flow).with_columns(orig="at", at="v + 1"), "orig"),
    "a renamed column behind another function": (
        lambda flow: mapped(flow).rename(at="due").map(with_another, schema=BOTH),
        "due",
    ),
    "the old name behind another function": (
        lambda flow: mapped(flow).rename(at="due").map(named_anew, schema=SCHEMA),
        "at",
    ),
    "a dropped column behind another function": (
        lambda flow: mapped(flow).select("k", "v").map(named_anew, schema=SCHEMA),
        "at",
    ),
    "late rows": (
        lambda flow: mapped(flow).rename(at="due").key_by("k").window("l", MINUTE).aggregate(late=True, n=count()).late,
        "due",
    ),
}
MOVED = [case for case, (_, column) in RENAMED.items() if column == "orig" or case.startswith("a renamed")]


@pytest.mark.slow
@pytest.mark.parametrize("case", RENAMED)
def test_a_window_counts_by_the_column_that_is_the_event_time(case: str) -> None:
    rows, column = RENAMED[case]

    def make(flow: Dataflow, time: dict[str, Any]) -> Stream:
        return rows(flow).key_by("k").window("w", MINUTE, **time).aggregate(n=count())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert results(make) == results(make, event_time=column)


class Times:
    def process(self, key: str, row: Any, ctx: Any) -> Any:
        yield {"at": ctx.timestamp}

    on_left = on_right = process


def times_of(rows: Callable[[Dataflow], Stream], step: str, **given: Any) -> list[Any]:
    def make(flow: Dataflow, time: dict[str, Any]) -> Stream:
        keyed = rows(flow).key_by("k")
        if step == "process":
            stream: Stream = keyed.process("p", Times, schema={"at": int}, **time)
            return stream
        return connect(left=keyed, right=read(flow, "other").key_by("k")).process(
            "p", Times, schema={"at": int}, **time
        )

    return results(make, **given)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["process", "connect"])
@pytest.mark.parametrize("case", [case for case in RENAMED if case not in MOVED])
def test_functions_have_the_time_of_the_column_that_is_the_event_time(case: str, step: str) -> None:
    rows, column = RENAMED[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = times_of(rows, step)
    assert found == times_of(rows, step, event_time=column if step == "process" else {"left": column})
    assert None not in [row["at"] for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["process", "connect"])
@pytest.mark.parametrize("case", MOVED)
def test_a_function_whose_times_differ_from_those_of_older_builds_is_told(case: str, step: str) -> None:
    rows, column = RENAMED[case]
    with pytest.warns(UserWarning, match=rf"{step} 'p'.*: its event time is column '{column}'. Older .* column 'at'"):
        found = times_of(rows, step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found == times_of(rows, step, event_time=column if step == "process" else {"left": column})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (lambda flow: mapped(flow).select({"k": "k", "x": "at", "y": "at"}), "the event times 'x' and 'y', so ctx"),
        (lambda flow: mapped(flow).select({"k": "k", "at": "v"}), "event time is unknown, so ctx.timestamp is None"),
    ],
)
@pytest.mark.parametrize("step", ["process", "connect"])
def test_a_function_without_one_event_time_is_told(rows: Any, told: str, step: str) -> None:
    with pytest.warns(UserWarning, match=told) as found:
        times_of(rows, step)
    assert [each.filename for each in found] == [__file__], "the line that the user wrote"


class Passes:
    """Whether another function reads the time is unknown."""

    def process(self, key: str, row: Any, ctx: Any) -> Any:
        yield {"at": time_of(ctx)}

    on_left = on_right = process


class Counts:
    seen = ValueState(int, default=0)

    def process(self, key: str, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        ctx.timers.register(10)
        ctx.metrics.counter("seen").inc()
        yield {"at": self.seen.value}

    on_left = on_right = process

    def on_timer(self, key: str, timestamp_ms: int, ctx: Any) -> None:
        return None


def time_of(ctx: Any) -> Any:
    return ctx.timestamp


@pytest.mark.parametrize("step", ["process", "connect"])
@pytest.mark.parametrize(("function", "told"), [(Times, 1), (Passes, 1), (Counts, 0)])
def test_only_functions_that_may_read_the_time_are_told(step: str, function: Any, told: int) -> None:
    keyed = mapped(Dataflow("f")).select({"k": "k", "x": "at", "y": "at"}).key_by("k")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if step == "process":
            keyed.process("p", function, schema={"at": int})
        else:
            connect(left=keyed, right=keyed).process("p", function, schema={"at": int})
    assert len({str(each.message) for each in found if "ctx.timestamp" in str(each.message)}) == told * (
        1 if step == "process" else 2
    )


def run_until_checkpoints(folder: Path, **time: Any) -> None:
    """Runs an endless job, which fails after four more records of the log."""
    log = folder / "moved" / "log"
    before = set(log.iterdir()) if log.exists() else set()

    def row(given: dict[str, int]) -> dict[str, Any]:
        if given["value"] % 50 == 49 and len(set(log.iterdir()) - before) > 3:
            raise ValueError("enough")
        return {"k": "a", "at": given["value"], "v": 0}

    flow = Dataflow("moved")
    numbers = flow.rate("numbers", 1_000, splits=1, event_time="intended_at").rename(intended_at="at")
    rows = numbers.map(row, schema=SCHEMA).rename(at="orig", v="at")
    rows.key_by("k").window("w", MINUTE, **time).aggregate(n=count()).sink("out", CollectSink())
    flow.run_local(checkpoints=str(folder), checkpoint_interval=0.05, restart="none")


@pytest.mark.slow
def test_state_counted_by_another_column_is_refused_by_name(tmp_path: Path) -> None:
    """Definitions with a named column are those of older builds, which counted by the name of the event time."""
    with pytest.raises(JobFailed, match="enough"), pytest.warns(UserWarning, match="pass event_time='orig'"):
        run_until_checkpoints(tmp_path, event_time="at")
    with pytest.raises(JobFailed, match=r"'w' as tumbling 0:01:00, but .* as tumbling 0:01:00, by orig"):
        run_until_checkpoints(tmp_path)
    with pytest.raises(JobFailed, match="enough"), pytest.warns(UserWarning, match="pass event_time='orig'"):
        run_until_checkpoints(tmp_path, event_time="at")
