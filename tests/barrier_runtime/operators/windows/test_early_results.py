"""Early results of windows against a model that takes row by row: by event time, by rows and by the wall clock, of all
rows or of those since the last result; over restarts at other parallelism, wherever batches end."""

import datetime
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Slots, World, entries_left, held_in_memory
from window_models import Rows, actions_of, driven_beside, plain
from window_operators import aggregating

from barrier_runtime import (
    CollectSink,
    Count,
    Dataflow,
    Every,
    Global,
    Sliding,
    Tumbling,
    UpsertSink,
    count,
    first,
    mean,
    sum_,
)
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.operator import LATE, WindowOperator
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
SIZE, SLIDE, LATENESS, INTERVAL = 20, 10, 15, 7
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64()), ("x", pa.float64())])
AGGREGATES = {"n": count(), "total": sum_("v"), "sum_x": sum_("x"), "mean_v": mean("v"), "first_v": first("v")}


def window(slide: int) -> WindowAssigner:
    return Tumbling(SIZE * MS) if slide == SIZE else Sliding(SIZE * MS, slide * MS)


def operator(early: Every, slide: int = SIZE, lateness_ms: int = 0) -> WindowOperator:
    return aggregating(
        "w", ["k"], window(slide), "t", AGGREGATES, SCHEMA, late=True, lateness_ms=lateness_ms, early=early
    )


def row(k: str | None, t: int, v: int | None = 1, x: float = 0.5) -> dict[str, Any]:
    return {"k": k, "t": t, "v": v, "x": x}


def result(rows: Rows, **others: Any) -> dict[str, Any]:
    values = [each["v"] for each in rows if each["v"] is not None]
    return {
        **others,
        "n": len(rows),
        "total": sum(values) if values else None,
        "sum_x": sum(each["x"] for each in rows) if rows else None,
        "mean_v": sum(values) / len(values) if values else None,
        "first_v": rows[0]["v"] if rows else None,
    }


class Model:
    def __init__(self, early: Every, slide: int, lateness: int) -> None:
        self.every, self.slide, self.lateness = early, slide, lateness
        self.windows: dict[tuple[int, Any], Rows] = defaultdict(list)
        self.since: dict[tuple[int, Any], int] = defaultdict(int)
        self.updates: dict[tuple[int, Any], int] = defaultdict(int)
        self.watermark = WATERMARK_MIN
        self.late: Rows = []
        self.out: Rows = []

    def feed(self, each: dict[str, Any], reached: int = WATERMARK_MIN) -> None:
        self.advance(reached)
        last = each["t"] // self.slide * self.slide
        starts = range(last - SIZE + self.slide, last + 1, self.slide)
        kept = [start for start in starts if start + SIZE - 1 + self.lateness > self.watermark]
        if not kept:
            self.late.append(each)
        for key in [(start, each["k"]) for start in kept]:
            self.windows[key].append(each)
            self.since[key] += 1
            if key[0] + SIZE - 1 <= self.watermark:
                self.fire(key)
            elif self.since[key] == self.every.rows:
                self.fire(key, early=True)

    def advance(self, watermark: int) -> None:
        if watermark <= self.watermark:
            return
        interval = self.every.interval_ms
        if interval:
            first_due = (self.watermark // interval + 1) * interval
            if first_due <= watermark:
                self.end(first_due)
                for key in self.ordered(
                    key for key in self.windows if self.over_ms(key) > first_due and self.since[key]
                ):
                    self.fire(key, early=True)
        self.end(watermark)

    def end(self, watermark: int) -> None:
        for key in self.ordered(key for key in self.windows if self.watermark < self.over_ms(key) <= watermark):
            self.fire(key)
        for key in list(self.windows):
            if self.over_ms(key) + self.lateness <= watermark:
                del self.windows[key]
        self.watermark = watermark

    def over_ms(self, key: tuple[int, Any]) -> int:
        return key[0] + SIZE - 1

    def ordered(self, keys: Any) -> Any:
        return sorted(keys, key=lambda key: (key[0], key[1] is None, key[1] or ""))

    def fire(self, key: tuple[int, Any], early: bool = False) -> None:
        rows = (
            self.windows[key]
            if self.every.accumulate
            else self.windows[key][len(self.windows[key]) - self.since[key] :]
        )
        span = {"window_start": key[0], "window_end": key[0] + SIZE}
        self.out.append(result(rows, k=key[1], **span, update=self.updates[key], early=early))
        self.updates[key] += 1
        self.since[key] = 0


def of_window(each: dict[str, Any]) -> tuple[str, int]:
    return str(each["k"]), each["window_start"]


ROW = st.builds(
    row,
    st.sampled_from(["a", "b", None]),
    st.integers(-50, 60),
    st.one_of(st.none(), st.integers(-9, 9)),
    st.sampled_from([0.1, 0.7, 1e17, -1e17]),
)
ACTION = actions_of(ROW)
WHEN = st.one_of(
    st.sampled_from([1, 3, INTERVAL, SIZE, 50]).map(lambda interval: {"interval": interval * MS}),
    st.sampled_from([1, 2, 3, 7]).map(lambda rows: {"rows": rows}),
)
EARLY = st.tuples(WHEN, st.booleans()).map(lambda drawn: Every(**drawn[0], accumulate=drawn[1]))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("lateness", [0, LATENESS])
@pytest.mark.parametrize("slide", [SIZE, SLIDE])
@examples(60)
@given(EARLY, st.lists(ACTION, max_size=10), st.sampled_from([None, 3]))
def test_early_results_equal_a_row_by_row_model_over_restarts_at_any_parallelism(
    slide: int, lateness: int, early: Every, actions: list[tuple[str, Any]], held: int | None
) -> None:
    with held_in_memory(held):
        run_beside_model(slide, lateness, early, actions, held is None)


def run_beside_model(slide: int, lateness: int, early: Every, actions: list[tuple[str, Any]], ordered: bool) -> None:
    model = Model(early, slide, lateness)
    slots = Slots(lambda: operator(early, slide, lateness), 1, tags=[LATE])
    slots, got, late, alone = driven_beside(model, slots, actions, SCHEMA)
    ordered = ordered and alone
    if not ordered:
        got, late, model.late = (sorted(rows, key=repr) for rows in (got, late, model.late))
    if not ordered or (early.rows and lateness):  # the order of the results of a window
        got, model.out = (sorted(rows, key=of_window) for rows in (got, model.out))
        got.sort(key=lambda each: each["update"])
        model.out.sort(key=lambda each: each["update"])
    assert got == model.out
    assert late == model.late
    for driven in slots.driven:
        driven.snapshot(len(actions) + 2)
        assert entries_left(driven.operator) == 0


def of_last_results(rows: Rows, accumulate: bool) -> dict[Any, tuple[int, int]]:
    """(rows, sum) by key and window: of the last result, or of all parts together."""
    found: dict[Any, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for each in rows:
        n, total = (0, 0) if accumulate else found[each["k"], each["window_start"]]
        found[each["k"], each["window_start"]] = n + each["n"], total + (each["total"] or 0)
    return dict(found)


@pytest.mark.slow
@examples(60)
@given(EARLY, st.lists(st.tuples(ROW, st.integers(0, 12)), max_size=40))
def test_the_last_result_or_all_parts_together_are_what_comes_without_early_results(
    early: Every, rows: list[tuple[dict[str, Any], int]]
) -> None:
    reached = np.cumsum([step for _, step in rows]).astype(np.int64) - 60
    fed = [each for each, _ in rows]
    plainly = Flow(None, fed, reached)
    told = Flow(early, fed, reached)
    assert of_last_results(told.rows, early.accumulate) == of_last_results(plainly.rows, True)
    last = {(each["k"], each["window_start"]): each["update"] for each in told.rows}
    finals = [each for each in told.rows if not each["early"]]
    assert {(each["k"], each["window_start"]): each["update"] for each in finals} == last
    assert len(finals) == len(last)


class Flow:
    """Results of a tumbling window for these rows."""

    def __init__(self, early: Every | None, rows: Rows, reached: Any) -> None:
        made = operator(early) if early else aggregating("w", ["k"], window(SIZE), "t", AGGREGATES, SCHEMA)
        it = Driven(made, name="w")
        if rows:
            it.feed(rows, SCHEMA, reached=reached)
        it.watermark(WATERMARK_MAX)
        self.rows = plain(it.rows)


def test_a_window_that_got_nothing_since_its_last_result_is_not_told_again() -> None:
    it = Driven(operator(Every(INTERVAL * MS), slide=SIZE))
    it.watermark(0)
    it.feed([row("a", 1)], SCHEMA)
    for watermark in (6, 7, 13, 14, 15):
        it.watermark(watermark)
    assert [(each["update"], each["early"], each["n"]) for each in it.take()] == [(0, True, 1)]
    it.watermark(SIZE)
    assert [(each["update"], each["early"], each["n"]) for each in it.take()] == [(1, False, 1)]


def test_the_last_part_may_be_of_no_rows() -> None:
    it = Driven(operator(Every(rows=2, accumulate=False)))
    it.feed([row("a", 1), row("a", 2)], SCHEMA)
    it.watermark(SIZE)
    span = {"k": "a", "window_start": 0, "window_end": SIZE}
    assert plain(it.take()) == [
        result([row("a", 1), row("a", 2)], **span, update=0, early=True),
        result([], **span, update=1, early=False),
    ]


def test_results_carry_event_time_that_never_goes_back() -> None:
    """With row-by-row event time, a result at a window's end precedes later early results of other windows."""
    it = Driven(operator(Every(rows=2)))
    rows = [row("a", 5), row("b", 25), row("b", 26), row("b", 27)]
    it.feed(rows, SCHEMA, reached=np.array([0, 3, 24, 25]))
    it.watermark(WATERMARK_MAX)
    reached = [int(at) for batch in it.batches for at in batch.reached]
    assert reached == sorted(reached)
    assert [(each["k"], each["early"]) for each in it.rows] == [("a", False), ("b", True), ("b", False)]


def test_early_results_and_updates_by_late_rows_come_in_the_order_of_event_time() -> None:
    it = Driven(operator(Every(rows=1), lateness_ms=LATENESS), tags=[LATE])
    it.feed([row("a", 0), row("b", -25), row("a", 1)], SCHEMA, reached=np.array([-9, -7, -3]))
    assert [(each["k"], each["update"], each["early"]) for each in it.rows] == [
        ("a", 0, True),
        ("b", 0, False),
        ("a", 1, True),
    ]
    assert [int(at) for batch in it.batches for at in batch.reached] == [-9, -7, -3]


def test_another_interval_or_number_of_rows_goes_on_with_the_state() -> None:
    world = World()
    it = Driven(operator(Every(rows=5)), world)
    it.feed([row("a", 1)] * 4, SCHEMA)
    snapshot = it.snapshot(1)
    fewer = Driven(operator(Every(rows=2)), world, (snapshot,))
    fewer.feed([row("a", 1)] * 2, SCHEMA)
    assert [each["n"] for each in fewer.take()] == [5]
    fewer.feed([row("a", 1)], SCHEMA)
    assert [each["n"] for each in fewer.take()] == [7]


# ------------------------------------------------------------ wall clock


class Clocked:
    """An operator with a steady clock that the test moves, and a list of wake-ups."""

    def __init__(self, early: Every, world: World | None = None, restored: Any = ()) -> None:
        self.now_s, self.wakes_s = 0.0, []
        self.world = world or World()
        make = self.world.context

        def context(operator: str, restored: Any = ()) -> Any:
            made = make(operator, restored)
            object.__setattr__(made, "now_s", lambda: self.now_s)
            object.__setattr__(made, "call_later", lambda seconds, wake: self.wakes_s.append(self.now_s + seconds))
            return made

        self.world.context = context  # type: ignore[method-assign]
        self.it = Driven(operator(early), self.world, restored)
        self.world.context = make  # type: ignore[method-assign]

    def turn(self) -> Rows:
        while self.it.operator.on_wall_clock(self.it._emit):
            pass
        return [{name: each[name] for name in ("k", "update", "early", "n")} for each in self.it.take()]


def test_changed_windows_are_emitted_a_while_after_the_first_change_by_wall_clock() -> None:
    clocked = Clocked(Every(datetime.timedelta(seconds=2), clock="processing"))
    assert clocked.turn() == []
    clocked.it.feed([row("a", 1), row("b", 1)], SCHEMA)
    assert clocked.wakes_s == [2.0]
    clocked.now_s = 1.9
    assert clocked.turn() == []
    clocked.it.feed([row("b", 30)], SCHEMA)
    clocked.now_s = 2.0
    told = [("a", 0, True, 1), ("b", 0, True, 1), ("b", 0, True, 1)]
    assert [tuple(each.values()) for each in clocked.turn()] == told
    clocked.now_s = 10.0
    assert clocked.turn() == []
    clocked.it.feed([row("a", 2)], SCHEMA)
    assert clocked.wakes_s == [2.0, 12.0]
    clocked.it.watermark(SIZE)
    clocked.turn()
    clocked.now_s = 12.0
    assert clocked.turn() == []


def test_by_the_wall_clock_what_changed_before_a_restore_is_told_after_it() -> None:
    every = Every(datetime.timedelta(seconds=2), clock="processing", accumulate=False)
    clocked = Clocked(every)
    clocked.it.feed([row("a", 1), row("b", 1)], SCHEMA)
    clocked.now_s = 2.0
    clocked.turn()
    clocked.it.feed([row("b", 2)], SCHEMA)
    restored = Clocked(every, clocked.world, (clocked.it.snapshot(1),))
    assert restored.turn() == []
    assert restored.wakes_s == [2.0]
    restored.now_s = 2.0
    assert [tuple(each.values()) for each in restored.turn()] == [("b", 1, True, 1)]


@pytest.mark.slow
def test_many_windows_are_told_in_slices_each_once() -> None:
    clocked = Clocked(Every(datetime.timedelta(seconds=1), clock="processing"))
    clocked.it.feed([row(str(k), 1) for k in range(40_000)], SCHEMA)
    clocked.now_s = 1.0
    turns = 0
    while clocked.it.operator.on_wall_clock(clocked.it._emit):
        turns += 1
    assert turns == 3
    assert sorted(int(each["k"]) for each in clocked.it.take()) == list(range(40_000))


# ------------------------------------------------------------ whole jobs


def stream(rows: Rows, flow: Dataflow) -> Any:
    schema = {"k": str, "t": int, "v": int}
    return flow.from_iterator("rows", lambda part, of: rows, schema=schema, event_time="t", splits=1)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_tells_early_and_once_more_at_the_end(parallelism: int) -> None:
    """The end of the input passes all times, so early results are emitted, too."""
    rows = [{"k": "a", "t": t, "v": 1} for t in (1, 2, 8, 9, 16, 23)]
    flow, results = Dataflow("early"), CollectSink()
    minutes = (
        stream(rows, flow).key_by("k").window("w", Tumbling(SIZE * MS), event_time="t", early=Every(INTERVAL * MS))
    )
    told = minutes.aggregate(n=count())
    assert told.schema.names == ["k", "window_start", "window_end", "update", "early", "n"]
    told.sink("results", results)
    flow.run_local(parallelism=parallelism)
    assert [(each["update"], each["early"], each["n"]) for each in results.rows()] == [
        (0, True, 2),
        (1, True, 4),
        (2, False, 5),
        (0, True, 1),
        (1, False, 1),
    ]


@pytest.mark.parametrize("accumulate", [True, False])
def test_a_global_window_tells_every_few_rows_and_all_at_the_end_of_the_input(accumulate: bool) -> None:
    rows = [{"k": "ab"[n % 2], "t": 0, "v": n} for n in range(11)]
    flow, results = Dataflow("global"), CollectSink()
    read = flow.from_iterator("rows", lambda part, of: rows, schema={"k": str, "t": int, "v": int}, splits=1)
    told = read.key_by("k").window("g", Global(), early=Every(rows=2, accumulate=accumulate)).aggregate(total=sum_("v"))
    assert told.schema.names == ["k", "update", "early", "total"]
    told.sink("results", results)
    flow.run_local(parallelism=1)
    a = [each["total"] for each in results.rows() if each["k"] == "a"]
    assert a == ([2, 12, 30] if accumulate else [2, 10, 18]) + ([30] if accumulate else [None])
    assert [each["total"] for each in results.rows() if not each["early"]] == ([30, 25] if accumulate else [None, 9])


@pytest.mark.slow
def test_wall_clock_early_results_are_emitted_live_and_refused_by_a_replaying_sink() -> None:
    out = CollectSink()

    def early_ones() -> list[int]:
        return [each["n"] for each in out.rows() if each["early"] and each["k"] == 0]

    def numbers(index: int, of: int) -> Iterator[dict[str, int]]:
        """Waits for an early result in the middle, and for another before the last row."""
        for n in range(1_000):
            while n in (500, 998) and len(early_ones()) < (1 if n == 500 else 2):
                time.sleep(0.01)
            yield {"k": n % 2, "t": n}

    def flow_with(sink: Any, clock: Any) -> Dataflow:
        flow = Dataflow("wall")
        rows = flow.from_iterator("numbers", numbers, schema={"k": int, "t": int}, splits=1)
        windows = rows.with_watermarks("t").key_by("k")
        early = Every(datetime.timedelta(milliseconds=20), clock=clock)
        windows.window("w", Tumbling(datetime.timedelta(days=1)), event_time="t", early=early).aggregate(
            n=count()
        ).sink("out", sink)
        return flow

    flow_with(out, "processing").run_local(parallelism=1, checkpoint_interval=0.05)
    final = [(each["k"], each["n"]) for each in out.rows() if not each["early"]]
    assert final == [(0, 500), (1, 500)]
    early = early_ones()
    assert len(early) > 1
    assert early == sorted(set(early))

    class Table(UpsertSink):
        deterministic = True

        def __init__(self) -> None: ...

        def upsert(self, rows: pa.RecordBatch) -> None: ...

    flow_with(Table(), "event")
    with pytest.raises(InvalidJob, match="in step 'w' before it early results are due by the wall clock, so a replay"):
        flow_with(Table(), "processing")


def test_what_early_results_cannot_be_is_refused_with_the_remedy() -> None:
    keyed = stream([], Dataflow("early")).key_by("k")
    every = Every(rows=3)
    with pytest.raises(
        InvalidJob, match=r"pass an interval, as in Every\(timedelta\(seconds=1\)\), or rows=, not both"
    ):
        Every(MS, rows=3)
    with pytest.raises(InvalidJob, match="pass a whole number of rows, at least 1"):
        Every(rows=0)
    with pytest.raises(InvalidJob, match="use at least one millisecond"):
        Every(datetime.timedelta(0))
    with pytest.raises(InvalidJob, match="rows need no clock: leave it out"):
        Every(rows=3, clock="processing")
    with pytest.raises(InvalidJob, match="pass 'event' or 'processing'"):
        Every(MS, clock="wall")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=r"early=5: pass Every\(timedelta"):
        keyed.window("w", Tumbling(5 * MS), event_time="t", early=5)
    with pytest.raises(InvalidJob, match="output column 'early' exists already"):
        keyed.window("w", Tumbling(5 * MS), event_time="t", early=every).aggregate(early=count())
    with pytest.raises(InvalidJob, match="a Global window is over when the input ends: leave event_time out"):
        keyed.window("w", Global(), event_time="t")
    with pytest.raises(InvalidJob, match="no row is late for a Global window: leave late= out"):
        keyed.window("w", Global()).aggregate(late=True, n=count())
    with pytest.raises(InvalidJob, match="no row is late for a Count window: leave late= out"):
        keyed.window("w", Count(2)).aggregate(late=True, n=count())


def test_early_results_belong_to_the_definition_and_how_often_does_not() -> None:
    assert (
        operator(Every(rows=3)).definition
        == operator(Every(MS)).definition
        == ("tumbling 0:00:00.020000, early results of all rows")
    )
    assert operator(Every(MS, accumulate=False), lateness_ms=5).definition == (
        "tumbling 0:00:00.020000, allowed lateness 0:00:00.005000, early results of the rows since the last one"
    )
