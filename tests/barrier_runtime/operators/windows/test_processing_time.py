"""Processing-time windows against a plain grouping of rows by arrival.

The test holds the clocks. Covers restarts at other parallelisms while windows fire, the subtask's turns and wake-ups,
and a whole job.
"""

import dataclasses
import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World, entries_left, held_in_memory
from silent_source import TIMED_OUT, SilentSource
from subtask_bench import Bench
from window_operators import aggregating, applying, topping

from barrier_runtime import (
    CollectSink,
    Count,
    Dataflow,
    Every,
    Global,
    RedisUpsertSink,
    Session,
    Sliding,
    Tumbling,
    sum_,
)
from barrier_runtime.data.elements import WATERMARK_MAX, Barrier, Batch, EndOfInput, Idle, Watermark
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.operators.windows import firing
from barrier_runtime.operators.windows import operator as operator_module
from barrier_runtime.operators.windows.firing import SPAN
from barrier_runtime.operators.windows.whole.apply import TimeWindow
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.drawn import examples

MS, YEAR = datetime.timedelta(milliseconds=1), datetime.timedelta(days=365)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
SIZE, SLIDE, GAP = 20, 10, 15
TUMBLING, SLIDING, SESSION = Tumbling(SIZE * MS), Sliding(SIZE * MS, SLIDE * MS), Session(GAP * MS)
Window = Tumbling | Sliding | Session
Result = tuple[str, int, int, int]  # key, start, end, sum


Form = Literal["aggregate", "by rows", "by time", "apply", "top"]
EARLY = {"by rows": Every(rows=2), "by time": Every(7 * MS, clock="processing")}
APPLIED = pa.schema([("k", pa.string()), *SPAN, ("total", pa.int64())])


def operator(window: Window, form: Form = "aggregate") -> Any:
    if form == "apply":
        return applying("w", ["k"], window, None, total_of, SCHEMA, APPLIED, wall=True)
    if form == "top":
        return topping("w", ["k"], window, None, 1_000, "v", True, SCHEMA, wall=True)
    return aggregating("w", ["k"], window, None, {"total": sum_("v")}, SCHEMA, early=EARLY.get(form), wall=True)


def total_of(key: str, window: TimeWindow, table: pa.Table) -> dict[str, Any]:
    assert set(table.column("k").to_pylist()) == {key}
    values = table.column("v").to_pylist()
    assert values == sorted(values), "as they came"
    return {"k": key, "window_start": window.start, "window_end": window.end, "total": sum(values)}


class Clocks(World):
    """World with the wall clock `wall_ms`, the steady clock `steady_ms`, and a list of wake-ups."""

    steady_ms = 0

    def context(self, operator: str, restored: tuple[OperatorSnapshot, ...] = ()) -> OperatorContext:
        self.wake_ups: list[tuple[int, Callable[[], None]]] = []  # by the steady clock
        self.wakes = 0
        return dataclasses.replace(
            super().context(operator, restored),
            now_s=lambda: self.steady_ms / 1_000,
            call_later=lambda delay_s, ring: self.wake_ups.append((self.steady_ms + round(delay_s * 1_000), ring)),
            wake=self._woken,
        )

    def _woken(self) -> None:
        self.wakes += 1

    def ring(self) -> int:
        """Advances time to the next wake-up; returns the wall clock at the wake-up."""
        self.wake_ups.sort(key=lambda each: each[0])
        at_ms, ring = self.wake_ups.pop(0)
        self.wall_ms, self.steady_ms = self.wall_ms + at_ms - self.steady_ms, at_ms
        ring()
        return self.wall_ms


def turns(driven: Driven, most: int = 1_000_000) -> None:
    """Runs at most `most` slices of due work, as a woken subtask does."""
    for _ in range(most):
        going_to_ms = driven.operator.going_to_ms
        if going_to_ms is not None:
            driven.operator.toward(going_to_ms, driven._emit)
        elif not driven.operator.on_wall_clock(driven._emit):
            return


def results(driven: Driven) -> list[Result]:
    """Returns the results of windows that are over; `top` emits a row per input row, so these are summed."""
    told = [row for row in driven.take() if not row.get("early")]
    assert not any(row.get("retracted") for row in told), "no two sessions become one"
    found = [
        (
            row["k"],
            (row["window_start"] - EPOCH) // MS,
            (row["window_end"] - EPOCH) // MS,
            row.get("total", row.get("v")),
        )
        for row in told
    ]
    if not told or "rank" not in told[0]:
        return found
    sums: Counter[tuple[str, int, int]] = Counter()
    for *window, value in found:
        sums[tuple(window)] += value
    return [(*window, total) for window, total in sums.items()]


def rows(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"k": key, "v": value} for key, value in pairs]


def batch(*pairs: tuple[str, int]) -> Batch:
    return Batch(pa.RecordBatch.from_pylist(rows(*pairs), SCHEMA), 0)


def started(window: Window, wall_ms: int, world: Clocks | None = None, restored: Any = ()) -> Driven:
    world = world or Clocks()
    world.wall_ms = wall_ms
    return Driven(operator(window), world, restored)


# ------------------------------------------------------------ random actions


class Job:
    """Subtasks with equal clocks."""

    def __init__(
        self,
        window: Window,
        parallelism: int,
        wall_ms: int,
        taken: Any = (),
        before: Any = None,
        form: Form = "aggregate",
    ) -> None:
        self.window, self.parallelism, self.wall_ms, self.form = window, parallelism, wall_ms, form
        self.driven: list[Driven] = []
        for subtask in range(parallelism):
            world = Clocks("memory", subtask, parallelism)
            world.wall_ms = wall_ms
            shared = before or (self.driven[0].world if self.driven else world)
            world.store, world._numbers = shared.store, shared._numbers
            self.driven.append(Driven(operator(window, form), world, taken))

    def feed(self, pairs: list[tuple[str, int]]) -> None:
        for subtask, part in hash_partition(batch(*pairs), ("k",), self.parallelism, 128):
            self.driven[subtask].feed(part.rows)

    def clock(self, ms: int, steady_ms: int) -> None:
        self.wall_ms += ms
        for driven in self.driven:
            driven.world.wall_ms = self.wall_ms
            driven.world.steady_ms += steady_ms  # type: ignore[attr-defined]

    def turns(self, most: int = 1_000_000) -> None:
        for driven in self.driven:
            turns(driven, most)

    def watermark(self, ms: int) -> None:
        for driven in self.driven:
            driven.watermark(ms)

    def take(self) -> list[Result]:
        return [result for driven in self.driven for result in results(driven)]

    def restarted(self, checkpoint: int, parallelism: int, ms: int) -> "Job":
        taken = tuple(driven.snapshot(checkpoint) for driven in self.driven)
        for driven in self.driven:
            driven.operator.close()
        return Job(self.window, parallelism, self.wall_ms + ms, taken, self.driven[0].world, self.form)


def grouped(window: Window, came: list[tuple[str, int, int]]) -> list[Result]:
    """Groups rows (key, value, arrival time) into windows."""
    sums: dict[tuple[str, int, int], int] = defaultdict(int)
    if isinstance(window, Session):
        open_: dict[str, list[int]] = {}  # first, last, sum
        for key, value, at in came:
            session = open_.get(key)
            if session is not None and session[1] + GAP >= at:
                session[1], session[2] = at, session[2] + value
                continue
            if session is not None:
                sums[key, session[0], session[1] + GAP] = session[2]
            open_[key] = [at, at, value]
        for key, (first, last, total) in open_.items():
            sums[key, first, last + GAP] = total
    else:
        for key, value, at in came:
            for start in range(at - at % window.step_ms - SIZE + window.step_ms, at + 1, window.step_ms):
                sums[key, start, start + SIZE] += value
    return sorted((*each, total) for each, total in sums.items())


def actions(clock: Any) -> Any:
    return st.lists(
        st.one_of(
            st.tuples(st.just("rows"), st.lists(st.sampled_from("abcde"), min_size=1, max_size=5)),
            st.tuples(st.just("clock"), clock),
            st.tuples(st.just("turns"), st.sampled_from([1, 2, 1_000_000])),
            st.tuples(st.just("watermark"), st.integers(0, 2_000)),
            st.tuples(st.just("restart"), st.tuples(st.integers(1, 3), clock)),
        ),
        max_size=25,
    )


def run(
    window: Window, todo: list[tuple[str, Any]], held: int | None, form: Form
) -> tuple[list[tuple[str, int, int]], list[Result]]:
    """Returns the rows with their arrival times by the wall clock, and the results; each value is a different power of
    two.
    """
    with (
        held_in_memory(held),
        patch.object(operator_module, "SLICE_STEPS", 1),
        patch.object(firing, "FEW_TUPLES", 2),
        patch.object(firing, "PART", 1),
    ):
        return run_in_small_slices(window, todo, form)


def run_in_small_slices(
    window: Window, todo: list[tuple[str, Any]], form: Form
) -> tuple[list[tuple[str, int, int]], list[Result]]:
    job, furthest_ms = Job(window, 1, 1_000, form=form), 1_000
    came: list[tuple[str, int, int]] = []
    out: list[Result] = []
    for number, (action, argument) in enumerate(todo, 1):
        if action == "rows":
            new = [(key, 1 << at, job.wall_ms) for at, key in enumerate(argument[: 60 - len(came)], len(came))]
            came += new
            job.feed([(key, value) for key, value, _ in new])
        elif action == "clock":
            job.clock(argument, abs(argument))
            furthest_ms += abs(argument) if job.wall_ms < furthest_ms else 0  # time advances, however slowly
        elif action == "turns":
            job.turns(argument)
            assert argument < 10 or not any(is_over(driven, job.wall_ms) for driven in job.driven)
        elif action == "watermark":
            job.watermark(argument)
        new_results = job.take()
        furthest_ms = max(furthest_ms, job.wall_ms)
        assert all(end <= furthest_ms for _, _, end, _ in new_results), "told before its end"
        out += new_results
        if action == "restart":
            job = job.restarted(number, *argument)
            furthest_ms = max(furthest_ms, job.wall_ms)
    job.watermark(WATERMARK_MAX)
    out += job.take()
    for driven in job.driven:
        assert driven.world.metrics.counts.get("late_rows", 0.0) == 0
        driven.snapshot(len(todo) + 1)
        assert entries_left(driven.operator) == 0
    return came, out


def is_over(driven: Driven, wall_ms: int) -> bool:
    table = getattr(driven.operator, "_table", None)
    if table is None or not table.is_whole:
        return False
    row_ids = table.load_all()
    last = table.columns.get("last")
    starts = np.array([key[-1] for key in table.keys_of(row_ids)], np.int64)
    return bool((starts + SIZE <= wall_ms if last is None else last[row_ids] + GAP < wall_ms).any())


FORMS = st.sampled_from(get_args(Form))


def of_window(form: Form, window: Window) -> Form:
    return "aggregate" if isinstance(window, Session) and form not in EARLY else form


WINDOWS = pytest.mark.parametrize("window", [TUMBLING, SLIDING, SESSION], ids=["tumbling", "sliding", "session"])


@pytest.mark.slow
@WINDOWS
@examples(40)
@given(actions(st.integers(0, 45)), st.sampled_from([None, 3]), FORMS)
def test_row_is_in_the_windows_of_its_arrival_over_restarts_at_any_parallelism(
    window: Window, todo: list[tuple[str, Any]], held: int | None, form: Form
) -> None:
    """Also in the last result of windows with early results, and in results that list all rows."""
    came, out = run(window, todo, held, of_window(form, window))
    assert sorted(out) == grouped(window, came)


@pytest.mark.slow
@WINDOWS
@examples(40)
@given(actions(st.integers(-60, 45)), st.sampled_from([None, 3]), FORMS)
def test_each_row_counts_and_no_window_is_emitted_twice_if_the_clock_is_set_back(
    window: Window, todo: list[tuple[str, Any]], held: int | None, form: Form
) -> None:
    came, out = run(window, todo, held, of_window(form, window))
    assert len({(key, start) for key, start, _, _ in out}) == len(out)
    times = 2 if window is SLIDING else 1
    assert sum(total for *_, total in out) == times * sum(value for _, value, _ in came)
    for key, value, at in came:
        of_row = [result for result in out if result[0] == key and result[3] & value]
        assert len(of_row) == times
        assert all(end > at for _, _, end, _ in of_row), "its time is not before that of the machine"


# ------------------------------------------------------------ single cases


@WINDOWS
def test_windows_are_told_when_the_clock_reaches_their_end_without_any_input(window: Window) -> None:
    driven = started(window, 1_003)
    turns(driven)
    assert driven.world.wake_ups == [], "nothing waits, nothing rings"  # type: ignore[attr-defined]
    driven.feed(rows(("a", 1)), SCHEMA)
    told = []
    for _ in range(10):
        if not driven.world.wake_ups:  # type: ignore[attr-defined]
            break
        wall_ms = driven.world.ring()  # type: ignore[attr-defined]
        turns(driven)
        told += [(wall_ms, *result) for result in results(driven)]
    expected = {
        TUMBLING: [(1_020, "a", 1_000, 1_020, 1)],
        SLIDING: [(1_010, "a", 990, 1_010, 1), (1_020, "a", 1_000, 1_020, 1)],
        SESSION: [(1_019, "a", 1_003, 1_018, 1)],  # a row at the session's end would still belong to the session
    }
    assert told == expected[window]


def test_each_session_is_told_right_after_its_end_though_several_are_due_at_once() -> None:
    gap_ms = 20_480  # sessions are due in steps of 20 ms
    driven = started(Session(gap_ms * MS), 1_000)
    world, last_ms = driven.world, {"a": 1_001, "b": 1_009, "c": 1_012, "d": 1_019}
    for key, wall_ms in last_ms.items():
        world.wall_ms = world.steady_ms = wall_ms  # type: ignore[attr-defined]
        driven.feed(rows((key, 1)), SCHEMA)
        turns(driven)
    told = {}
    while world.wake_ups:  # type: ignore[attr-defined]
        wall_ms = world.ring()  # type: ignore[attr-defined]
        turns(driven)
        told.update({key: wall_ms for key, *_ in results(driven)})
    assert told == {key: at + gap_ms + 1 for key, at in last_ms.items()}


def test_the_slot_looks_at_the_clock_once_a_second_as_it_may_be_set_forward() -> None:
    driven = started(Tumbling(datetime.timedelta(hours=1)), 1_000)
    driven.feed(rows(("a", 1)), SCHEMA)
    turns(driven)
    assert [at for at, _ in driven.world.wake_ups] == [1_000]  # type: ignore[attr-defined]
    driven.world.ring()  # type: ignore[attr-defined]
    turns(driven)
    assert driven.take() == []
    driven.world.wall_ms += 3_600_000
    driven.world.ring()  # type: ignore[attr-defined]
    turns(driven)
    assert results(driven) == [("a", 0, 3_600_000, 1)]


def test_what_is_over_goes_out_before_the_next_rows() -> None:
    driven = started(TUMBLING, 1_000)
    driven.feed(rows(("a", 1)), SCHEMA)
    driven.world.wall_ms = 1_019
    driven.feed(rows(("a", 2)), SCHEMA)
    assert results(driven) == []
    driven.world.wall_ms = 1_020
    driven.feed(rows(("b", 4)), SCHEMA)
    assert results(driven) == [("a", 1_000, 1_020, 3)]


def test_a_session_goes_on_with_a_row_at_its_end_and_not_a_millisecond_later() -> None:
    driven = started(SESSION, 1_000)
    for at, value in ((1_000, 1), (1_015, 2), (1_031, 4)):
        driven.world.wall_ms = at
        driven.feed(rows(("a", value)), SCHEMA)
    assert results(driven) == [("a", 1_000, 1_030, 3)]


@WINDOWS
def test_event_time_from_upstream_is_nothing_but_its_end(window: Window) -> None:
    """Also if event time arrives row by row."""
    driven = started(window, 1_003)
    driven.watermark(10**15)
    driven.feed(rows(("a", 1), ("b", 2)), SCHEMA, reached=np.array([10**15, 10**16]))
    driven.watermark(10**17)
    assert driven.take() == []
    driven.watermark(WATERMARK_MAX)
    assert all(each.reached is None for each in driven.batches)
    assert sum(total for *_, total in results(driven)) == (6 if window is SLIDING else 3)
    with pytest.raises(InvalidJob, match="had read all of its input"):
        driven.feed(rows(("a", 1)), SCHEMA)


@WINDOWS
def test_what_was_over_while_the_job_was_down_is_told_at_once_and_once(window: Window) -> None:
    driven = started(window, 1_003)
    driven.feed(rows(("a", 1), ("b", 2)), SCHEMA)
    taken = driven.snapshot(1)
    restored = started(window, 5_000, driven.world, (taken,))  # type: ignore[arg-type]
    restored.world.wall_ms = 5_000
    turns(restored)
    told = results(restored)
    assert sum(total for *_, total in told) == (6 if window is SLIDING else 3)
    again = started(window, 9_000, restored.world, (restored.snapshot(2),))  # type: ignore[arg-type]
    again.feed(rows(("c", 4)), SCHEMA)
    turns(again)
    assert results(again) == []


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_clock_that_was_set_back_while_the_job_was_down_makes_no_row_late(parallelism: int) -> None:
    """No window that has fired begins anew. At parallelism 2 the subtasks' clocks differ; the restored subtask has the
    state of both.
    """
    job = Job(TUMBLING, parallelism, 1_000)
    keys = "abcdefgh"
    job.feed([(key, 1) for key in keys])
    job.driven[-1].world.wall_ms = 1_050
    turns(job.driven[-1])
    told = job.take()
    assert told
    job.wall_ms = 1_001
    job = job.restarted(1, 1, 0)
    job.feed([(key, 1) for key in keys])
    job.turns()
    told += job.take()
    job.watermark(WATERMARK_MAX)
    told += job.take()
    assert sorted(told) == sorted((key, start, start + 20, 1) for key in keys for start in (1_000, 1_040))
    assert job.driven[0].world.metrics.counts.get("late_rows", 0.0) == 0


def test_a_clock_that_is_set_back_goes_on_at_half_the_pace() -> None:
    driven = started(TUMBLING, 10_000)
    driven.feed(rows(("a", 1)), SCHEMA)
    driven.world.wall_ms = 1_000
    rung: list[int] = []
    while not (told := results(driven)) and len(rung) < 100:
        rung.append(driven.world.ring())  # type: ignore[attr-defined]
        turns(driven)
    assert told == [("a", 10_000, 10_020, 1)]
    assert rung[-1] == 1_040


def test_other_windows_of_the_same_size_are_told_apart_by_their_definition() -> None:
    assert operator(TUMBLING).definition == "tumbling 0:00:00.020000, by the wall clock"
    assert operator(SESSION).definition == "session 0:00:00.015000, by the wall clock"


def test_latencies_count_from_when_a_window_was_told() -> None:
    driven = started(TUMBLING, 1_000)
    driven.feed(rows(("a", 1)), SCHEMA, emit_ns=5)
    driven.world.wall_ms = 1_030
    turns(driven)
    assert [each.emit_ns for each in driven.batches] == [1_030_000_000]


# ------------------------------------------------------------ turns of a subtask


def bench(world: Clocks, inputs: int = 1) -> Bench:
    made = operator(TUMBLING)
    made.open(world.context("op"))
    return Bench(operator=made, inputs=inputs)


def test_windows_of_an_idle_subtask_are_told_and_leave_it_idle_also_in_slices() -> None:
    world = Clocks()
    world.wall_ms = 1_000
    subtask = bench(world, inputs=2)
    keys = [f"key {number:03}" for number in range(9)]
    with (
        patch.object(operator_module, "SLICE_STEPS", 1),
        patch.object(firing, "FEW_TUPLES", 2),
        patch.object(firing, "PART", 1),
    ):
        subtask.feed((0, batch(*((key, 1) for key in keys))), (0, Watermark(5)), (0, Idle()), (1, Idle()))
        assert subtask.emitted() == [Idle()]
        world.wall_ms = 1_020
        subtask.work()
    emitted = subtask.emitted()
    assert [key for each in emitted if isinstance(each, list) for key in each] == keys
    assert sum(isinstance(each, list) for each in emitted) > 1
    assert emitted[-1] == Idle(), "or its rows would hold back event time behind it"
    subtask.feed((0, Watermark(7)))
    assert subtask.emitted() == [Watermark(7)]


@pytest.mark.slow
def test_barrier_is_taken_between_two_slices_and_the_restore_emits_the_rest_once() -> None:
    world = Clocks()
    world.wall_ms = 1_000
    subtask = bench(world)
    keys = [f"key {number:05}" for number in range(30_000)]
    subtask.feed((0, batch(*((key, 1) for key in keys))))
    world.wall_ms = 1_020
    subtask.queue((0, Barrier(1, 4, 0)))
    while not subtask.captured.calls:
        assert subtask.subtask.step()
    before = [key for each in subtask.emitted() if isinstance(each, list) for key in each]
    assert len(before) < len(keys)
    ((_, captures),) = subtask.captured.calls
    taken = world.finish("op", 1, captures["sum"])
    rest = []
    while subtask.subtask.step():
        rest += [key for each in subtask.emitted() if isinstance(each, list) for key in each]
    assert before + rest == keys
    restored = Driven(operator(TUMBLING), world, (taken,))
    turns(restored)
    assert [key for key, *_ in results(restored)] == rest


def test_at_the_end_of_the_input_all_windows_are_told() -> None:
    world = Clocks()
    world.wall_ms = 1_000
    subtask = bench(world)
    subtask.inputs[0].push(batch(("a", 1), ("b", 1)), 10)
    subtask.inputs[0].push(EndOfInput(), 10)
    subtask.work()
    assert subtask.emitted() == [["a", "b"], Watermark(WATERMARK_MAX), EndOfInput()]


# ------------------------------------------------------------ flows


def keyed(flow: Dataflow, given: Sequence[dict[str, Any]] = ()) -> Any:
    return flow.from_iterator("rows", lambda part, of: given, schema={"k": str, "v": int}, splits=1).key_by("k")


@WINDOWS
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_tells_each_row_once_per_window(window: Window, parallelism: int) -> None:
    flow, out = Dataflow("clock"), CollectSink()
    given = rows(*((f"key {number % 7}", 1) for number in range(1_000)))
    totals = keyed(flow, given).window("w", window, clock="processing").aggregate(total=sum_("v"))
    assert totals.schema.names == ["k", "window_start", "window_end", "total"]
    totals.sink("out", out)
    flow.run_local(parallelism=parallelism)
    assert sum(row["total"] for row in out.rows()) == (2_000 if window is SLIDING else 1_000)


@WINDOWS
def test_windows_of_a_job_are_told_while_its_source_says_nothing(window: Window) -> None:
    seen: list[Any] = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row)
        return row

    flow, out = Dataflow("silent"), CollectSink()
    read = flow.source("in", SilentSource(rows(("a", 1), ("b", 2)), SCHEMA, seen))
    totals = read.key_by("k").window("w", window, clock="processing").aggregate(total=sum_("v"))
    totals.map(note, schema=totals.schema).sink("out", out)
    flow.run_local(parallelism=2)
    assert sum(row["total"] for row in out.rows()) == (6 if window is SLIDING else 3)
    assert TIMED_OUT not in seen


def test_windows_over_all_rows_and_functions_of_aggregates_follow_the_wall_clock() -> None:
    flow, out = Dataflow("all"), CollectSink()
    read = flow.from_iterator("rows", lambda part, of: rows(("a", 1), ("b", 2)), schema={"k": str, "v": int}, splits=1)
    windows = read.window_all("w", Tumbling(datetime.timedelta(days=365)), clock="processing")
    windows.apply(lambda key, window, values: {"sum": values["total"]}, schema={"sum": int}, total=sum_("v")).sink(
        "out", out
    )
    flow.run_local(parallelism=1)
    assert sum(row["sum"] for row in out.rows()) == 3


@pytest.mark.slow
def test_a_job_applies_functions_and_ranks_by_the_wall_clock() -> None:
    flow, out, top = Dataflow("whole"), CollectSink(), CollectSink()
    given = keyed(flow, rows(("a", 2), ("b", 1), ("a", 3), ("a", 4)))
    given.window("w", Tumbling(YEAR), clock="processing").apply(total_of, schema=APPLIED).sink("out", out)
    given.window("top", Tumbling(YEAR), clock="processing").top(2, by="v").sink("ranks", top)
    flow.run_local(parallelism=2)
    assert sorted((row["k"], row["total"]) for row in out.rows()) == [("a", 9), ("b", 1)]
    assert sorted((row["k"], row["rank"], row["v"]) for row in top.rows()) == [("a", 1, 4), ("a", 2, 3), ("b", 1, 1)]


@pytest.mark.parametrize("window", [Tumbling(YEAR), Session(YEAR)], ids=["tumbling", "session"])
def test_a_job_tells_its_windows_by_the_wall_clock_early_by_rows(window: Window) -> None:
    flow, out = Dataflow("early"), CollectSink()
    windows = keyed(flow, rows(*[("a", 1)] * 5)).window("w", window, clock="processing", early=Every(rows=2))
    windows.aggregate(total=sum_("v")).sink("out", out)
    flow.run_local(parallelism=1)
    told = [(row["update"], row["early"], row["total"]) for row in out.rows()]
    assert told == [(0, True, 2), (1, True, 4), (2, False, 5)]


@pytest.mark.parametrize("window", [Tumbling(YEAR), Session(YEAR)], ids=["tumbling", "session"])
def test_windows_are_emitted_early_by_the_wall_clock_while_the_source_is_silent(window: Window) -> None:
    seen: list[Any] = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row)
        return row

    flow, out = Dataflow("silent"), CollectSink()
    read = flow.source("in", SilentSource(rows(("a", 1), ("b", 2)), SCHEMA, seen)).key_by("k")
    windows = read.window("w", window, clock="processing", early=Every(MS, clock="processing"))
    totals = windows.aggregate(total=sum_("v"))
    totals.map(note, schema=totals.schema).sink("out", out)
    flow.run_local(parallelism=2)
    assert TIMED_OUT not in seen
    assert sum(row["total"] for row in out.rows() if not row["early"]) == 3
    assert any(row["early"] for row in out.rows())


@pytest.mark.parametrize("form", ["by rows", "by time"])
@pytest.mark.parametrize("window", [TUMBLING, SESSION], ids=["tumbling", "session"])
def test_what_was_told_early_before_a_restore_is_told_again_only_with_more_rows(window: Window, form: Form) -> None:
    driven = Driven(operator(window, form), world := Clocks())
    world.wall_ms = 1_000

    def told(driven: Driven) -> list[tuple[int, bool, int]]:
        turns(driven)
        return [(row["update"], row["early"], row["total"]) for row in driven.take()]

    def later(driven: Driven, ms: int) -> None:
        driven.world.wall_ms += ms
        driven.world.steady_ms += ms  # type: ignore[attr-defined]

    driven.feed(rows(("a", 1), ("a", 2)), SCHEMA)
    later(driven, 8)
    assert told(driven) == [(0, True, 3)]
    driven = Driven(operator(window, form), world, (driven.snapshot(1),))
    assert told(driven) == []
    later(driven, 2)
    driven.feed(rows(("a", 4)), SCHEMA)
    later(driven, 8)
    assert told(driven) == ([(1, True, 7)] if form == "by time" else [])
    later(driven, 20)
    assert told(driven) == [(2 if form == "by time" else 1, False, 7)]
    driven.snapshot(2)
    assert entries_left(driven.operator) == 0


@pytest.mark.parametrize(
    ("window", "options", "error"),
    [
        (TUMBLING, {"event_time": "v"}, "leave event_time= out"),
        (TUMBLING, {"allowed_lateness": MS}, "leave allowed_lateness= out"),
        (SESSION, {"early": Every(MS)}, r"pass Every\(timedelta\(…\), clock='processing'\)"),
        (Global(), {}, "a Global window needs no clock: leave clock= out"),
        (Count(2), {}, "a Count window needs no clock: leave clock= out"),
    ],
)
def test_what_means_nothing_by_the_wall_clock_is_refused_with_the_remedy(
    window: Any, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(InvalidJob, match=error):
        keyed(Dataflow("refused")).window("w", window, clock="processing", **options)


def test_late_rows_and_other_clocks_are_refused() -> None:
    windows = keyed(Dataflow("refused")).window("w", TUMBLING, clock="processing")
    with pytest.raises(InvalidJob, match="no row is late by the wall clock: leave late= out"):
        windows.aggregate(late=True, total=sum_("v"))
    with pytest.raises(InvalidJob, match="no row is late by the wall clock: leave late= out"):
        windows.top(1, by="v", late=True)
    with pytest.raises(InvalidJob, match=r"clock='wall': pass 'event' or 'processing'"):
        keyed(Dataflow("refused")).window("w", TUMBLING, clock="wall")
    with pytest.raises(InvalidJob, match=r"pass event_time=.* or clock='processing'"):
        keyed(Dataflow("refused")).window("w", TUMBLING)


def test_a_sink_that_relies_on_equal_replays_is_refused_behind_them() -> None:
    totals = keyed(Dataflow("refused")).window("w", TUMBLING, clock="processing").aggregate(total=sum_("v"))
    sink = RedisUpsertSink("redis://localhost", key="k", deterministic=True)
    with pytest.raises(InvalidJob, match=r"deterministic=True, but in step 'w' before it .*wall clock"):
        totals.sink("out", sink)
