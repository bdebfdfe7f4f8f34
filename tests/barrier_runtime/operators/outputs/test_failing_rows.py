"""`on_error`: rows for which a function raises end the job, are skipped and counted, or are rows of a stream."""

import asyncio
import datetime
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from operator_harness import Driven, World, entries_left
from window_operators import applying

from barrier_runtime import (
    BatchKeys,
    CollectSink,
    Dataflow,
    Global,
    InvalidJob,
    IteratorSource,
    JobFailed,
    ProcessContext,
    Stream,
    Tumbling,
    UserCodeError,
    ValueState,
    count,
)
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.batch_functions import MapBatchesOperator
from barrier_runtime.operators.functions.row_functions import FilterOperator, FlatMapOperator, MapOperator
from barrier_runtime.operators.outputs.side_outputs import ERROR_SCHEMA, ERRORS
from barrier_runtime.operators.windows.whole.apply import TimeWindow
from barrier_runtime.testing import KeyedHarness

Row = dict[str, Any]
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
NUMBER = pa.schema([("n", pa.int64())])


def when(n: int) -> datetime.datetime:
    return datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(seconds=n)


def numbers(first: int, of: int) -> Iterator[Row]:
    for n in range(first, 200, of):
        yield {"k": f"k{n % 3}", "n": n, "at": when(n)}


def checked(row: Row) -> int:
    n: int = row["n"]
    row["n"] = -1  # an error shows the original row
    if n % 10 == 3:
        raise ValueError(f"{n} is bad")
    return n


def of_one(row: Row) -> Row:
    return {"n": checked(row)}


def of_several(row: Row) -> Iterator[Row]:
    yield {"n": row["n"]}
    yield {"n": checked(row)}


def by_key(key: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
    yield {"n": row["n"]}
    yield {"n": checked(row)}


STEPS: dict[str, Callable[..., Any]] = {
    "map": lambda s, **on: s.map(of_one, schema=NUMBER, name="step", **on),
    "filter": lambda s, **on: s.filter(lambda row: checked(row) >= 0, name="step", **on),
    "flat_map": lambda s, **on: s.flat_map(of_several, schema=NUMBER, name="step", **on),
    "process": lambda s, **on: s.key_by("k").process("step", by_key, schema=NUMBER, event_time="at", **on),
}
EACH_STEP = pytest.mark.parametrize("step", list(STEPS))
GOOD = [n for n in range(200) if n % 10 != 3]
BAD = [n for n in range(200) if n % 10 == 3]


def source(flow: Dataflow) -> Stream:
    return flow.source("numbers", IteratorSource(numbers, schema=SCHEMA, splits=2))


def times(step: str) -> int:
    return 2 if step in ("flat_map", "process") else 1


@EACH_STEP
def test_without_a_word_the_job_fails(step: str) -> None:
    for options in ({}, {"on_error": "fail"}):
        flow = Dataflow("failing")
        STEPS[step](source(flow), **options).sink("good", CollectSink())
        with pytest.raises(JobFailed, match=r"raised ValueError: 1?3 is bad"):
            flow.run_local(parallelism=1)


def ended(row: Row) -> Any:
    return next(iter([row] * (row["n"] != 1)))


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    "made",
    [
        lambda on_error: MapOperator("m", ended, on_error=on_error),
        lambda on_error: FilterOperator("f", lambda row: bool(ended(row)), on_error=on_error),
        lambda on_error: FlatMapOperator("f", lambda row: [ended(row)], on_error=on_error),
    ],
)
@pytest.mark.filterwarnings("ignore:.*raised StopIteration")
def test_a_next_without_more_ends_no_batch(made: Callable[[Any], Any], on_error: str) -> None:
    """Python's `map` takes a StopIteration of the function for the end of the rows."""
    driven, rows = Driven(made(on_error)), [{"n": n} for n in range(3)]
    if on_error == "skip":
        driven.feed(rows)
        assert driven.rows == [{"n": 0}, {"n": 2}]
        return
    with pytest.raises(UserCodeError, match=r"raised StopIteration: (.|\n)*record: \{'n': 1\}"):
        driven.feed(rows)
    assert driven.rows == []


@EACH_STEP
def test_what_is_raised_and_is_no_exception_ends_the_job_as_well(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio only logs such an error of a callback: the job would finish without the rows of that batch."""

    def cancelled(row: Row) -> int:
        raise asyncio.CancelledError("of a client")

    monkeypatch.setitem(globals(), "checked", cancelled)
    flow = Dataflow("failing")
    STEPS[step](source(flow)).sink("good", CollectSink())
    with pytest.raises(
        JobFailed, match=r"in cancelled\n(.|\n)*raised CancelledError: of a client, which is no Exception"
    ):
        flow.run_local(parallelism=1)


@pytest.mark.slow
@EACH_STEP
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.usefixtures("both_ways")
def test_failing_rows_form_a_stream_of_their_own_and_leave_no_trace_in_the_other(step: str, parallelism: int) -> None:
    flow = Dataflow("sides")
    good, errors = STEPS[step](source(flow), on_error="side")
    assert errors.schema == ERROR_SCHEMA
    goods, bads = CollectSink(), CollectSink()
    good.sink("good", goods)
    errors.key_by("error_type").process("one", lambda key, row, ctx: row, schema=ERROR_SCHEMA).sink("bad", bads)
    result = flow.run_local(parallelism=parallelism)
    assert sorted(row["n"] for row in goods.rows()) == sorted(GOOD * times(step))
    assert (result.error_rows, result.skipped_rows, result.late_rows) == ({"step": len(BAD)}, {}, {})
    assert f"200 records read, {len(BAD)} error rows, " in str(result)
    rows = {json.loads(row["row"])["n"]: row for row in bads.rows()}
    assert sorted(rows) == BAD
    assert len(bads.rows()) == len(BAD)
    row = rows[33]
    keyed = step == "process"
    assert json.loads(row["row"]) == {"k": "k0", "n": 33, "at": "2020-01-01T00:00:33Z"}
    assert (row["operator"], row["error_type"], row["message"]) == ("step", "ValueError", "33 is bad")
    assert (row["key"], row["event_time"]) == (('"k0"', when(33)) if keyed else (None, None))
    if keyed:
        assert row["position"] is None, "it is behind an exchange"
    else:
        assert re.fullmatch(r"source 'numbers', split '1-of-2', rows \d+ to \d+ \(.*\)", row["position"])
        first, last = map(int, re.findall(r"rows (\d+) to (\d+)", row["position"])[0])
        assert first <= 33 // 2 <= last
    assert "in checked" in row["traceback"]
    assert row["traceback"].endswith("ValueError: 33 is bad\n")
    ours = [
        file for file in ("row_functions.py", "failures.py", "process.py") if f"operators/{file}" in row["traceback"]
    ]
    assert ours == [], "frames of this package are left out"


@EACH_STEP
def test_skipped_rows_are_counted_and_the_first_one_is_told(step: str) -> None:
    flow = Dataflow("skips")
    goods = CollectSink()
    STEPS[step](source(flow), on_error="skip").sink("good", goods)
    assert "skips rows for which it raises" in flow.explain()
    with pytest.warns(UserWarning, match=r"of operator 'step' raised ValueError: 1?3 is bad; the row is skipped"):
        result = flow.run_local(parallelism=2)
    assert sorted(row["n"] for row in goods.rows()) == sorted(GOOD * times(step))
    assert (result.skipped_rows, result.error_rows, result.late_rows) == ({"step": len(BAD)}, {}, {})
    assert f"200 records read, {len(BAD)} rows skipped, " in str(result)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(
    ("make", "results"),
    [
        (lambda: MapOperator("m", of_one, NUMBER, "side"), [(1, 10), (5, 30)]),
        (lambda: FilterOperator("m", lambda row: checked(row) > 1, on_error="side"), [(5, 30)]),
        (lambda: FlatMapOperator("m", of_several, NUMBER, "side"), [(1, 10), (1, 10), (5, 30), (5, 30)]),
    ],
)
def test_both_outputs_have_the_event_time_that_was_reached(
    make: Callable[[], Any], results: list[tuple[int, int]], as_list: bool
) -> None:
    rows = pa.RecordBatch.from_pylist([{"n": n} for n in (1, 3, 5, 13)], NUMBER)
    few = FewRows.of(rows)
    assert few is not None
    good: list[Batch] = []
    bad: list[Batch] = []
    operator = make()
    operator.open(World().context("m"))
    for _ in range(2):
        operator.process(
            Batch(few if as_list else rows, 7, np.array([10, 20, 30, 40])), Emit(good.append, {ERRORS: [bad.append]})
        )
    for each in good:
        assert list(zip(each.rows["n"].to_pylist(), each.reached, strict=True)) == results
    for each in bad:
        assert list(zip(each.rows["message"].to_pylist(), each.reached, strict=True)) == [
            ("3 is bad", 20),
            ("13 is bad", 40),
        ]
    assert (len(good), len(bad), bad[0].emit_ns) == (2, 2, 7)


class Careless:
    """Changes state, registers a timer, emits and yields before raising; the timer does the same."""

    n = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        self.n.value += 1
        ctx.timers.register(row["n"] + 5)
        ctx.emit("seen", {"n": row["n"]})
        yield {"n": self.n.value}
        if row["n"] == 2:
            raise KeyError("two")
        ctx.emit("seen", {"n": -row["n"]})

    def on_timer(self, key: str, at_ms: int, ctx: ProcessContext) -> Iterator[Row]:
        ctx.emit("seen", {"n": at_ms})
        yield {"n": at_ms}
        if at_ms == 8:
            raise LookupError("eight")


def test_of_a_failing_call_nothing_goes_out_and_what_it_wrote_to_state_stays() -> None:
    with KeyedHarness(Careless, key="k", rows=SCHEMA, schema=NUMBER, side={"seen": NUMBER}, on_error="side") as harness:
        rows = [{"k": "a", "n": n, "at": when(n)} for n in (1, 2, 3)]
        assert harness.push(*rows) == [{"n": 1}, {"n": 3}], "of the second row nothing, but it was counted"
        assert [row["n"] for row in harness.side("seen")] == [1, -1, 3, -3]
        assert harness.state("a") == {"n": 3}
        assert harness.timers("a") == [6, 7, 8]
        (error,) = harness.side("errors")
        assert (error["message"], error["key"], error["event_time"]) == ("'two'", '"a"', None)
        assert harness.watermark(10) == [{"n": 6}, {"n": 7}]
        assert [row["n"] for row in harness.side("seen")] == [6, 7]
        (error,) = harness.side("errors")
        assert (error["error_type"], error["row"], error["key"]) == ("LookupError", None, '"a"')
        assert error["event_time"] == datetime.datetime(1970, 1, 1, 0, 0, 0, 8_000, datetime.timezone.utc)
        assert harness.timers("a") == [], "a timer that raised has fired"


def test_a_timer_between_two_rows_of_a_batch_is_told_without_a_row() -> None:

    class Fires(Careless):
        def process(self, key: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
            ctx.timers.register(8)
            yield {"n": row["n"]}

    flow = Dataflow("timers")
    rows = flow.from_iterator(
        "in", lambda index, of: iter([{"k": "a", "n": n} for n in (1, 20, 30)]), schema={"k": str, "n": int}, splits=1
    ).with_watermarks("n")
    good, _, errors = rows.key_by("k").process("p", Fires, schema=NUMBER, side={"seen": NUMBER}, on_error="side")
    goods, bads = CollectSink(), CollectSink()
    good.sink("good", goods)
    errors.sink("bad", bads)
    flow.run_local(parallelism=1)
    assert [row["n"] for row in goods.rows()] == [1, 20, 30]
    assert {(row["error_type"], row["row"]) for row in bads.rows()} == {("LookupError", None)}


class ChangesInPlace:
    seen = ValueState(list[int], default_factory=list)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
        seen = self.seen.value
        seen.append(row["n"])
        if row["n"] == 2:
            raise ValueError("before it is stored")
        self.seen.update(seen)


def test_a_change_in_place_that_a_failing_call_did_not_store_is_told_at_the_snapshot() -> None:
    with KeyedHarness(ChangesInPlace, key="k", rows=SCHEMA, on_error="side") as harness:
        harness.push({"k": "a", "n": 1, "at": when(1)})
        harness.snapshot()
        harness.push({"k": "a", "n": 2, "at": when(2)})
        assert [error["message"] for error in harness.side("errors")] == ["before it is stored"]
        with pytest.raises(InvalidJob, match=r"state 'seen'.*was changed in place but not stored"):
            harness.snapshot()


class Misuses:
    n = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        ctx.emit("nowhere", row)
        return row


def test_wrong_use_is_not_data() -> None:
    row = {"k": "a", "n": 1, "at": when(1)}
    said = "'nowhere', ….*the step has no side outputs"
    with (
        KeyedHarness(Misuses, key="k", rows=SCHEMA, on_error="skip") as harness,
        pytest.raises(UserCodeError, match=said),
    ):
        harness.push(row)

    def misfit(key: str, row: Row, ctx: ProcessContext) -> Row:
        return {"n": "text"}

    with (
        KeyedHarness(misfit, key="k", rows=SCHEMA, schema=NUMBER, on_error="skip") as harness,
        pytest.raises(InvalidJob, match="column 'n' is int64, but a row has 'text'"),
    ):
        harness.push(row)


def test_a_lack_of_memory_is_not_data() -> None:
    def hungry(row: Row) -> Row:
        raise MemoryError

    flow = Dataflow("hungry")
    source(flow).map(hungry, schema=NUMBER, on_error="skip").sink("good", CollectSink())
    with pytest.raises(JobFailed, match="raised MemoryError"):
        flow.run_local(parallelism=1)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_say_its_message_is_told_all_the_same() -> None:
    def fails(row: Row) -> Row:
        raise Mute

    for on_error in ("side", "fail"):
        flow = Dataflow("mute")
        rows = flow.from_iterator("in", lambda index, of: iter([{"n": 1}]), schema=NUMBER, splits=1)
        if on_error == "side":
            _, errors = rows.map(fails, schema=NUMBER, on_error="side")
            errors.sink("bad", bads := CollectSink())
            flow.run_local(parallelism=1)
            (error,) = bads.rows()
            assert (error["error_type"], error["message"]) == ("Mute", "(its message cannot be told: RuntimeError)")
        else:
            rows.map(fails, schema=NUMBER).sink("out", CollectSink())
            with pytest.raises(JobFailed, match=r"raised Mute: \(its message cannot be told"):
                flow.run_local(parallelism=1)


def test_any_row_and_any_message_can_be_told() -> None:
    kinds = pa.schema(
        [
            ("raw", pa.binary()),
            ("x", pa.float64()),
            ("all", pa.list_(pa.int64())),
            ("price", pa.decimal128(10, 2)),
            ("at", pa.timestamp("ns")),
            ("took", pa.duration("us")),
        ]
    )
    row = {
        "raw": b"\xff",
        "x": float("nan"),
        "all": [1],
        "price": None,
        "at": when(1).replace(tzinfo=None),
        "took": None,
    }

    def fails(row: Row) -> Row:
        raise ValueError("\udcff is no text")

    flow = Dataflow("kinds")
    _, errors = flow.from_iterator("in", lambda index, of: iter([row]), schema=kinds, splits=1).map(
        fails, schema=NUMBER, on_error="side"
    )
    bads = CollectSink()
    errors.sink("bad", bads)
    flow.run_local(parallelism=1)
    (error,) = bads.rows()
    assert error["message"] == "\\udcff is no text"
    told = {"raw": "/w==", "x": None, "all": [1], "price": None, "at": "2020-01-01T00:00:01", "took": None}
    assert json.loads(error["row"]) == told


# ---- functions of batches, and split


def without_threes(batch: pa.RecordBatch) -> pa.RecordBatch:
    for n in batch.column("n").to_pylist():
        if n % 10 == 3:
            raise ValueError(f"{n} is bad")
    return batch.select(["n"])


class Running:
    """Counts the rows of a key; state changes before an error are discarded."""

    state: ClassVar = {"rows": "int64"}

    def process_groups(self, keys: BatchKeys, batch: pa.RecordBatch, state: dict[str, Any]) -> pa.RecordBatch:
        seen = []
        for number in keys.of_row.tolist():
            state["rows"][number] += 1
            seen.append(int(state["rows"][number]))
        return pa.RecordBatch.from_arrays([without_threes(batch).column("n"), pa.array(seen)], ["n", "seen"])


@pytest.mark.parametrize("on_error", ["skip", "side"])
@pytest.mark.filterwarnings("ignore:.*the row is skipped")
@pytest.mark.parametrize("step", ["map_batches", "process_groups", "split"])
def test_rows_that_fail_a_batch_function_are_found_and_the_others_keep_their_order(step: str, on_error: Any) -> None:
    flow = Dataflow("batches")
    rows = flow.from_iterator("in", numbers, schema=SCHEMA, splits=1)
    if step == "map_batches":
        streams: Any = rows.map_batches(without_threes, schema=NUMBER, name="it", on_error=on_error)
    elif step == "process_groups":
        output = pa.schema([("n", pa.int64()), ("seen", pa.int64())])
        streams = rows.key_by("k").process_groups("it", Running, schema=output, on_error=on_error)
    else:
        streams = rows.split(
            "it", lambda row: "all" if checked(row) >= 0 else "", into=("all", "none"), on_error=on_error
        )
    good = streams[0] if isinstance(streams, tuple) else streams
    good.sink("good", goods := CollectSink())
    bads = CollectSink()
    if on_error == "side":
        streams[-1].sink("bad", bads)
    status = flow.run_local(parallelism=1).status
    assert [row["n"] for row in goods.rows()] == [n for n in range(200) if n % 10 != 3]
    counted = {name: value for slot in status.slots for name, value in slot.metrics.items() if name.startswith("it.")}
    if on_error == "side":
        assert [json.loads(row["row"])["n"] for row in bads.rows()] == list(range(3, 200, 10))
        assert {row["error_type"] for row in bads.rows()} == {"ValueError"}
        assert counted["it.error_rows"] == 20
    else:
        assert counted["it.skipped_rows"] == 20
    if step == "process_groups":
        seen: dict[int, int] = {}
        for row in goods.rows():
            seen[row["n"] % 3] = seen.get(row["n"] % 3, 0) + 1
            assert row["seen"] == seen[row["n"] % 3], "a call that raised has left nothing in its state"


def test_a_function_of_batches_that_always_raises_is_called_twice_a_row_at_most() -> None:
    calls = []

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        raise ValueError

    operator = MapBatchesOperator("it", fails, NUMBER, "side")
    world = World()
    operator.open(world.context("it"))
    rows = pa.RecordBatch.from_pylist([{"n": n} for n in range(100)], NUMBER)
    sent: list[Batch] = []
    operator.process(Batch(rows, 0), Emit(sent.append, {ERRORS: [sent.append]}))
    assert len(calls) == 2 * 100 - 1
    assert [len(each) for each in sent] == [100]


def test_wrong_use_in_a_function_of_batches_ends_the_job_whatever_on_error_says() -> None:
    def misuses(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise InvalidJob("not of the data")

    flow = Dataflow("misuse")
    good, _ = source(flow).map_batches(misuses, schema=NUMBER, name="it", on_error="side")
    good.sink("good", CollectSink())
    with pytest.raises(JobFailed, match="not of the data"):
        flow.run_local(parallelism=1)


def of_window(key: str | None, window: TimeWindow, table: pa.Table) -> Row:
    n = table["n"].to_pylist()
    if 33 in n:
        raise ValueError("33 is bad")
    return {"n": len(n)}


def of_total(key: str | None, window: TimeWindow, values: dict[str, int]) -> Row:
    if window.start == when(30):
        raise ValueError("30 is bad")
    return {"n": values["rows"]}


@pytest.mark.slow
@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.filterwarnings("ignore:.*nothing reads the output of 'select")  # the late rows
def test_a_window_for_which_a_function_raises_is_one_row_of_errors(by_key: bool, late: bool, parallelism: int) -> None:
    flow = Dataflow("windows")
    rows = flow.source("numbers", IteratorSource(numbers, schema=SCHEMA, splits=2), event_time="at")
    minute = Tumbling(datetime.timedelta(seconds=30))
    windowed = (rows.key_by("k") if by_key else rows).__getattribute__("window" if by_key else "window_all")
    good, *others, errors = windowed("w", minute, event_time="at").apply(
        of_window, schema=NUMBER, late=late, on_error="side"
    )
    totals, *_, total_errors = windowed("t", minute, event_time="at").apply(
        of_total, schema=NUMBER, late=late, on_error="side", rows=count()
    )
    assert [other.schema for other in others] == ([SCHEMA] if late else [])
    assert errors.schema == total_errors.schema == ERROR_SCHEMA
    sinks = {name: CollectSink() for name in ("good", "errors", "totals", "total-errors")}
    for stream, (name, sink) in zip((good, errors, totals, total_errors), sinks.items(), strict=True):
        stream.sink(name, sink)
    status = flow.run_local(parallelism=parallelism).status
    windows = (3 if by_key else 1) * 7
    assert len(sinks["good"].rows()) == windows - 1
    assert sum(slot.metrics.get("w.error_rows", 0) for slot in status.slots) == 1
    (error,) = sinks["errors"].rows()
    assert json.loads(error["row"]) == {
        "window_start": "2020-01-01T00:00:30Z",
        "window_end": "2020-01-01T00:01:00Z",
        "rows": 10 if by_key else 30,
    }
    assert (error["operator"], error["key"]) == ("w", '"k0"' if by_key else None)
    assert error["event_time"] == when(60) - datetime.timedelta(milliseconds=1)
    assert "in of_window" in error["traceback"]
    assert len(sinks["totals"].rows()) == windows - (3 if by_key else 1)
    assert {json.loads(row["row"])["rows"] for row in sinks["total-errors"].rows()} == {10 if by_key else 30}


@pytest.mark.parametrize("form", [Tumbling(datetime.timedelta(seconds=30)), Global()])
def test_a_window_that_failed_is_gone_and_what_it_gave_before_is_not_given(form: Any) -> None:
    def several(key: str, window: TimeWindow, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
        yield {"n": 1}
        for batch in batches:
            checked(batch.slice(0, 1).to_pylist()[0])

    time = "at" if form.bounded else None
    operator = applying("w", ["k"], form, time, several, SCHEMA, NUMBER, batches=True, on_error="side")
    driven = Driven(operator, tags=[ERRORS], name="w")
    driven.feed([{"k": "good", "n": 1, "at": when(1)}, {"k": "bad", "n": 3, "at": when(2)}], SCHEMA)
    driven.watermark(WATERMARK_MAX)
    assert driven.rows == [{"n": 1}]
    (error,) = (row for batch in driven.side[ERRORS] for row in batch.rows.to_pylist())
    assert (error["key"], error["message"]) == ('"bad"', "3 is bad")
    assert (error["event_time"] is None) == (not form.bounded)
    assert driven.snapshot(1).keyed is None or entries_left(operator) == 0


def test_windows_that_are_skipped_are_counted() -> None:
    flow = Dataflow("windows")
    rows = flow.source("numbers", IteratorSource(numbers, schema=SCHEMA, splits=1), event_time="at")
    windows = rows.key_by("k").window("w", Tumbling(datetime.timedelta(seconds=30)), event_time="at")
    windows.apply(of_window, schema=NUMBER, on_error="skip").sink("good", good := CollectSink())
    assert "skips windows for which it raises" in flow.explain()
    with pytest.warns(UserWarning, match="of operator 'w' raised ValueError: 33 is bad"):
        status = flow.run_local(parallelism=1).status
    assert len(good.rows()) == 20
    assert status.slots[0].metrics["w.skipped_rows"] == 1


def test_where_no_row_can_be_left_out_on_error_is_refused_with_the_reason() -> None:
    keyed = source(Dataflow("wrong")).key_by("k")
    with pytest.raises(InvalidJob, match="on_error='skip' is not for aggregates: a row that one of them leaves out"):
        keyed.aggregate("sums", rows=count(), on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="window 'w': on_error='side' is not for aggregates"):
        keyed.window("w", Global()).aggregate(rows=count(), on_error="side")  # type: ignore[call-overload]
    with pytest.raises(InvalidJob, match=r"for_each_batch 'out': on_error='skip': .* attempts="):
        source(Dataflow("wrong")).for_each_batch(print, name="out", on_error="skip")  # type: ignore[arg-type]


def test_wrong_declarations_are_refused_when_the_flow_is_written() -> None:
    rows = source(Dataflow("wrong"))
    with pytest.raises(InvalidJob, match='map m: on_error=\'ignore\': use "fail", "skip", "side" or a Retry'):
        rows.map(of_one, name="m", on_error="ignore")  # type: ignore[call-overload]
    with pytest.raises(InvalidJob, match=r"filter: on_error='skip' is for functions, and \(n > 3\) is an expression"):
        rows.filter(pc.field("n") > 3, on_error="skip")
    with pytest.raises(InvalidJob, match="split 's': on_error='skip' is for functions, and n is an expression"):
        rows.split("s", "n", into=("a", "b"), on_error="skip")
    with pytest.raises(InvalidJob, match="split 's': a branch is named 'errors', as the rows that fail are"):
        rows.split("s", of_one, into=("errors", "b"), on_error="side")  # type: ignore[arg-type]
