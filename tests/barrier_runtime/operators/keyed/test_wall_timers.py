"""Wall-clock timers of a keyed function: firing and snapshots under a clock of the test, the subtask's turns, and a
whole job with a silent source.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from operator_harness import Driven, Kind, World
from silent_source import SilentSource
from subtask_bench import Bench

from barrier_runtime import TTL, CollectSink, Dataflow, ListState, RedisUpsertSink, ValueState
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Barrier, Batch, EndOfInput, Idle, Watermark
from barrier_runtime.data.rows import Row
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.keyed import wall_timers
from barrier_runtime.operators.keyed.wall_timers import WALL_TABLE, WallClock, WallTimers
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from barrier_runtime.testing import KeyedHarness
from tests.drawn import examples

ROWS = pa.schema([("k", pa.string()), ("due", pa.int64())])
FIRED = pa.schema([("k", pa.string()), ("due", pa.int64()), ("n", pa.int64())])


class Timed:
    """Function whose rows set a timer, or delete a timer if `due` is negative; a timer emits the number of rows."""

    n = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: Any) -> None:
        self.n.value += 1
        if row["due"] >= 0:
            ctx.wall_timers.register(row["due"])
        else:
            ctx.wall_timers.delete(-row["due"])

    def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Iterator[Row]:
        yield {"k": key, "due": due_ms, "n": self.n.value}


def operator(function: Any = Timed, **options: Any) -> ProcessOperator:
    return ProcessOperator("op", ["k"], function, output=FIRED, schema=ROWS, **options)


def due(*pairs: tuple[str, int]) -> list[Row]:
    return [{"k": key, "due": at} for key, at in pairs]


def turns(driven: Driven) -> list[tuple[str, int]]:
    """Fires all due timers slice by slice; returns (key, due)."""
    while driven.operator.on_wall_clock(driven.batches.append):
        pass
    return [(row["k"], row["due"]) for row in driven.take()]


# ---- the clock


def test_the_clock_never_goes_back_and_is_right_again_after_twice_the_jump() -> None:
    wall_ms, steady_s = 10_000, 0.0
    clock = WallClock(lambda: wall_ms, lambda: steady_s)
    wall_ms += 3_600_000
    assert clock.now_ms() == 3_610_000, "a jump forward is followed"
    wall_ms, seen = 3_600_000, []
    for _ in range(30):
        steady_s, wall_ms = steady_s + 1.0, wall_ms + 1_000
        seen.append(clock.now_ms())
    assert seen[:3] == [3_610_500, 3_611_000, 3_611_500]
    assert seen == sorted(seen)
    assert seen[-5:] == [3_626_000, 3_627_000, 3_628_000, 3_629_000, 3_630_000], "it is the wall clock's again"


# ---- order, deletions, restarts

ACTION = st.tuples(st.sampled_from(["register", "delete", "wall", "restart"]), st.integers(0, 3), st.integers(0, 30))


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@examples(40)
@given(st.lists(ACTION, max_size=60))
def test_timers_fire_once_each_in_order_of_time_and_key_as_a_plain_set_of_them_would(
    kind: Kind, actions: list[tuple[str, int, int]]
) -> None:
    world, checkpoint = World(kind), 0
    driven = Driven(operator(), world)
    model: set[tuple[int, str]] = set()
    for action, number, distance in actions:
        key, at = f"key {number}", world.wall_ms + 1 + distance
        if action == "register":
            driven.feed(due((key, at)), ROWS)
            model.add((at, key))
        elif action == "delete":
            driven.feed(due((key, -at)), ROWS)
            model.discard((at, key))
        elif action == "wall":
            world.wall_ms += distance
            over = sorted(each for each in model if each[0] <= world.wall_ms)
            model -= set(over)
            assert turns(driven) == [(key, at) for at, key in over]
        else:
            checkpoint += 1
            snapshot = driven.snapshot(checkpoint)
            driven.operator.close()
            driven = Driven(operator(), world, (snapshot,))
    world.wall_ms += 100
    assert turns(driven) == [(key, at) for at, key in sorted(model)]
    driven.operator.close()


def test_what_was_due_during_downtime_fires_before_the_next_row_of_its_key_and_once() -> None:
    """R7"""
    world = World()
    driven = Driven(operator(), world)
    driven.feed(due(("a", 20), ("b", 10), ("a", 10), ("c", 10), ("c", -10), ("b", 900)), ROWS)
    snapshot = driven.snapshot(1)
    driven.operator.close()
    world.wall_ms = 100
    restored = Driven(operator(), world, (snapshot,))
    restored.feed(due(("a", 500), ("c", 500), ("a", 500)), ROWS)
    assert restored.take() == [{"k": "a", "due": 10, "n": 2}, {"k": "a", "due": 20, "n": 2}], "two rows of a until then"
    assert turns(restored) == [("b", 10)]
    restored.feed(due(("b", 600)), ROWS)
    world.wall_ms = 1_000
    assert turns(restored) == [("a", 500), ("c", 500), ("b", 600), ("b", 900)]


@pytest.mark.slow
def test_where_very_many_were_due_during_downtime_rows_wait_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall_timers, "_MOST_OVERDUE", 10)
    world = World()
    driven = Driven(operator(), world)
    names = [f"key {number:04}" for number in range(2_500)]
    driven.feed(due(*((key, 10) for key in names), ("z", 900)), ROWS)
    snapshot, world.wall_ms = driven.snapshot(1), 100
    restored = Driven(operator(), world, (snapshot,))
    assert restored.operator.going_to_ms is not None
    restored.operator.on_wall_clock(restored.batches.append)
    first = restored.take()
    assert 1 <= len(first) <= 1_000
    restored.feed(due(("key 2499", 50)), ROWS)
    assert [row["k"] for row in first + restored.take()] == names, "none twice, all before the row"
    assert restored.operator.going_to_ms is None
    assert turns(restored) == [("key 2499", 50)]


def test_a_timer_that_was_due_and_is_set_again_when_it_fires_fires_again() -> None:
    class Again(Timed):
        def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Iterator[Row]:
            yield from super().on_wall_timer(key, due_ms, ctx)
            if ctx.wall_timers.now_ms < 150:
                ctx.wall_timers.register(due_ms + 100)

    world = World()
    driven = Driven(operator(Again), world)
    driven.feed(due(("a", 10)), ROWS)
    snapshot, world.wall_ms = driven.snapshot(1), 100
    restored = Driven(operator(Again), world, (snapshot,))
    restored.feed(due(("a", 300)), ROWS)
    assert [row["due"] for row in restored.take()] == [10]
    assert restored.operator.wall_timers.of_key() == [110, 300]
    world.wall_ms = 120
    assert turns(restored) == [("a", 110)], "and not 210, which is not due yet"


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_at_another_parallelism_each_timer_is_with_its_key(before: int, after: int) -> None:
    """R7"""
    keys = [f"key {number}" for number in range(20)]
    with KeyedHarness(Timed, key="k", rows=ROWS, parallelism=before, wall_ms=5) as harness:
        assert harness.push(*due(*((key, 10 + number) for number, key in enumerate(keys)))) == []
        assert sorted(row["due"] for row in harness.wall(14)) == list(range(10, 15))
        snapshot = harness.snapshot()
    with KeyedHarness(Timed, key="k", restore=snapshot, parallelism=after) as harness:
        assert [harness.wall_timers(key) for key in keys] == [[]] * 5 + [[10 + number] for number in range(5, 20)]
        assert sorted(row["due"] for row in harness.wall(100)) == list(range(15, 30))
        assert harness.wall(200) == []


def test_snapshot_without_wall_timers_is_read_and_a_lost_handler_keeps_its_timers() -> None:
    class Deaf:
        def process(self, key: str, row: Row, ctx: Any) -> None: ...

    world = World()
    driven = Driven(operator(), world)
    driven.feed(due(("a", 10)), ROWS)
    deaf = Driven(operator(Deaf), world, (driven.snapshot(1),))
    world.wall_ms = 50
    deaf.feed(due(("a", 10)), ROWS)
    assert turns(deaf) == []
    assert turns(Driven(operator(), world, (deaf.snapshot(2),))) == [("a", 10)]

    older = Driven(operator(Deaf), world)
    older.feed(due(("a", 10)), ROWS)
    taken = older.snapshot(3)
    assert taken.keyed is not None
    states = {name: id for name, id in taken.keyed.states.items() if name != WALL_TABLE}
    taken = replace(taken, keyed=replace(taken.keyed, states=states))
    restored = Driven(operator(), world, (taken,))
    restored.feed(due(("a", 60)), ROWS)
    world.wall_ms = 60
    assert turns(restored) == [("a", 60)]


# ---- wake-ups


class LoopTimers:
    """The loop's timers, and a clock that the test moves."""

    def __init__(self, opened_ms: int = 1_000) -> None:
        self.ms = opened_ms
        self.set: list[tuple[int, Callable[[], None]]] = []
        self.wakes = 0
        world = World()
        context = dataclasses.replace(
            world.context("op"),
            call_later=lambda delay_s, ring: self.set.append((self.ms + round(delay_s * 1_000), ring)),
            wake=self._woken,
            wall_ms=lambda: self.ms,
            now_s=lambda: self.ms / 1_000,
        )
        self.current = CurrentKey()
        self.current.key = ("a",)
        table = context.open_keyed().timer_table(WALL_TABLE, 1)
        self.timers = WallTimers(table, self.current, context)

    def _woken(self) -> None:
        self.wakes += 1

    def fired(self) -> list[int]:
        return [at for _, at in self.timers.due_now()] if self.timers.any_due() else []

    def ring(self) -> int:
        self.set.sort(key=lambda each: each[0])
        self.ms, ring = self.set.pop(0)
        ring()
        return self.ms


def test_slot_wakes_when_a_timer_is_due_and_checks_the_clock_every_second_before() -> None:
    loop = LoopTimers()
    loop.timers.register(3_400)
    assert loop.set == [], "it is opened on a worker's thread: no wake-up before the first turn"
    rung = []
    while not (fired := loop.fired()):
        rung.append(loop.ring())
    assert (rung, fired) == ([2_000, 3_000, 3_400], [3_400])
    assert loop.wakes == 3
    assert (loop.fired(), loop.set) == ([], []), "nothing waits, nothing rings"


def test_an_earlier_timer_sets_an_earlier_wake_up_and_a_later_one_none() -> None:
    loop = LoopTimers()
    loop.fired()
    for at in (1_500, 1_700, 1_600, 1_200):
        loop.timers.register(at)
    assert [at for at, _ in loop.set] == [1_500, 1_200]
    fired = []
    while loop.set:
        loop.ring()
        fired += [(loop.ms, at) for at in loop.fired()]
    assert fired == [(1_200, 1_200), (1_500, 1_500), (1_600, 1_600), (1_700, 1_700)]


def test_a_clock_that_is_set_forward_is_noticed_within_a_second() -> None:
    loop = LoopTimers()
    loop.fired()
    loop.timers.register(3_600_000)
    loop.ring()
    assert loop.fired() == []
    loop.ms += 3_600_000
    assert loop.fired() == [3_600_000]


@pytest.mark.slow
def test_superseded_wake_ups_never_outnumber_milliseconds_until_the_next_look() -> None:
    loop = LoopTimers()
    loop.fired()
    for at in range(60_000, 1_000, -1):
        loop.timers.register(at)
    assert len(loop.set) <= 1_000


def test_after_is_a_timedelta_from_now_and_tells_when_it_is_due() -> None:
    loop = LoopTimers()
    after = loop.timers.after
    assert [after(timedelta(seconds=5)), after(timedelta(microseconds=1_500)), after(timedelta(-1))] == [
        6_000,
        1_002,
        1_001,
    ]
    loop.timers.delete(1_002)
    assert loop.timers.of_key() == [1_001, 6_000]
    with pytest.raises(InvalidJob, match=r"delay of a wall-clock timer is '5': pass a datetime.timedelta, or a number"):
        after("5")  # type: ignore[arg-type]
    assert after(5) == 6_000
    with pytest.raises(InvalidJob, match="use whole milliseconds"):
        loop.timers.register(1.5)  # type: ignore[arg-type]


# ---- slices


@pytest.mark.slow
def test_many_that_are_due_fire_in_slices_and_a_snapshot_between_two_has_the_rest() -> None:
    world = World()
    driven = Driven(operator(), world)
    driven.feed(due(*((f"key {number:04}", 10) for number in range(3_000))), ROWS)
    world.wall_ms = 10
    driven.operator.on_wall_clock(driven.batches.append)
    first = [(row["k"], row["due"]) for row in driven.take()]
    assert 1 <= len(first) <= 1_000
    snapshot = driven.snapshot(1)
    rest = turns(driven)
    expected = [(f"key {number:04}", 10) for number in range(3_000)]
    assert first + rest == expected
    restored = Driven(operator(), world, (snapshot,))
    assert turns(restored) == expected[len(first) :]


def test_a_slice_ends_with_its_time() -> None:
    loop = LoopTimers()
    for at in range(10):
        loop.timers.register(at)
    slices = []
    while loop.timers.any_due():
        fired = []
        for _, at in loop.timers.due_now():
            fired.append(at)
            loop.ms += 1  # each takes a millisecond
        slices.append(fired)
    assert slices == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


# ---- inputs and results of a function


def test_timer_sees_the_watermark_and_no_event_time_and_emits_at_the_time_reached() -> None:
    seen = []

    class Seeing(Timed):
        def on_timer(self, key: str, timestamp_ms: int, ctx: Any) -> None: ...

        def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Iterator[Row]:
            seen.append((key, ctx.key, ctx.timestamp, ctx.watermark))
            ctx.emit("side", {"k": key})
            yield from super().on_wall_timer(key, due_ms, ctx)

    world, sides = World(), []
    made = operator(Seeing, event_time="due", side={"side": pa.schema([("k", pa.string())])})
    driven = Driven(made, world)
    emit = Emit(driven.batches.append, {"side": [sides.append]})
    made.process(Batch(pa.RecordBatch.from_pylist(due(("a", 70)), ROWS), 0, np.array([40])), emit)
    made.on_watermark(55, emit)
    world.wall_ms = 100
    made.on_wall_clock(emit)
    (batch,), (side,) = driven.batches, sides
    assert seen == [("a", "a", None, 55)]
    assert (batch.reached.tolist(), side.reached.tolist()) == ([55], [55])
    assert batch.emit_ns == 100_000_000, "its latency counts from when it fired"


def test_state_with_a_ttl_in_event_time_is_judged_at_the_watermark_in_a_timer() -> None:
    class Recent:
        rows = ListState(int, ttl=TTL(timedelta(milliseconds=100)))

        def process(self, key: str, row: Row, ctx: Any) -> None:
            self.rows.append(row["due"])
            ctx.wall_timers.after(timedelta(milliseconds=1))

        def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Iterator[Row]:
            for at in self.rows:
                yield {"k": key, "due": at, "n": due_ms}
            self.rows.append(-due_ms)

    with KeyedHarness(Recent, key="k", rows=ROWS, schema=FIRED, event_time="due") as harness:

        def live(wall_ms: int) -> list[int]:
            return [row["due"] for row in harness.wall(wall_ms)]

        harness.push(*due(("a", 1_000), ("a", 1_050)))
        assert live(1) == [1_000, 1_050], "there is no watermark yet: at the latest row"
        harness.watermark(1_120)
        harness.push(*due(("a", 1_300)))
        assert live(2) == [1_050, -1, 1_300], "at 1,120, not at the row"
        assert harness.state("a") == {"rows": [1_300]}, "to a row of 1,300 what was written at the watermark is too old"


def test_a_timer_nobody_handles_is_refused_with_the_remedy() -> None:
    def lonely(key: str, row: Row, ctx: Any) -> None:
        ctx.wall_timers.after(timedelta(seconds=1))

    with pytest.raises(
        UserCodeError, match=r"lonely\(\) registers a wall-clock timer but nothing handles it: .*on_wall"
    ):
        Driven(operator(lonely)).feed(due(("a", 1)), ROWS)


def test_an_error_of_the_handler_names_it_and_its_key() -> None:
    class Failing(Timed):
        def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Any:
            raise ValueError("no")

    driven = Driven(operator(Failing))
    driven.feed(due(("a", 0)), ROWS)
    with pytest.raises(UserCodeError, match=r"Failing\.on_wall_timer\(\).*raised ValueError: no\n  key: 'a'"):
        turns(driven)


def test_errors_of_the_handler_may_be_data() -> None:
    class Failing(Timed):
        def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Iterator[Row]:
            yield from super().on_wall_timer(key, due_ms, ctx)
            if key == "b":
                raise ValueError("no")

    with KeyedHarness(Failing, key="k", rows=ROWS, schema=FIRED, on_error="side") as harness:
        harness.push(*due(("a", 1), ("b", 1), ("c", 1)))
        assert [row["k"] for row in harness.wall(1)] == ["a", "c"], "nothing of the call that failed"
        (error,) = harness.side("errors")
        assert (error["key"], error["row"], error["event_time"]) == ('"b"', None, None)


def test_a_sink_that_counts_on_the_same_rows_from_a_replay_is_refused_behind_them() -> None:
    def flow(function: Any, deterministic: bool) -> None:
        rows = Dataflow("f").from_iterator("in", lambda index, of: iter(()), schema=ROWS, splits=1)
        fired = rows.key_by("k").process("timed", function, schema=FIRED)
        sink = RedisUpsertSink("redis://localhost", key="k", deterministic=deterministic)
        fired.filter(lambda row: True).sink("out", sink)

    class Untimed:
        def process(self, key: str, row: Row, ctx: Any) -> Row:
            return row

    flow(Timed, False)
    flow(Untimed, True)
    with pytest.raises(
        InvalidJob, match=r"deterministic=True, but in step 'timed' before it Timed has timers by the wall"
    ):
        flow(Timed, True)


# ---- the subtask


def bench(world: World) -> Bench:
    made = operator()
    made.open(world.context("op"))
    return Bench(operator=made, inputs=2)


def batch(*pairs: tuple[str, int]) -> Batch:
    return Batch(pa.RecordBatch.from_pylist(due(*pairs), ROWS), 0)


def test_timers_of_an_idle_subtask_fire_and_leave_it_idle() -> None:
    world = World()
    subtask = bench(world)
    subtask.feed((0, batch(("a", 10))), (0, Watermark(5)), (0, Idle()), (1, Idle()))
    assert subtask.emitted() == [Idle()]
    world.wall_ms = 10
    subtask.work()
    assert subtask.emitted() == [["a"], Idle()], "or its row would hold back event time behind it"
    subtask.feed((0, Watermark(7)))
    assert subtask.emitted() == [Watermark(7)]


def test_timers_wait_while_their_rows_have_no_room() -> None:
    world = World()
    made = operator()
    made.open(world.context("op"))
    subtask = Bench(operator=made, inputs=1, room=1)
    subtask.feed((0, batch(("a", 10), ("b", 20))))
    world.wall_ms = 10
    subtask.work()
    world.wall_ms = 20
    subtask.work()
    assert subtask.emitted() == [["a"]]
    subtask.work()
    assert subtask.emitted() == [["b"]]


def test_a_barrier_is_taken_between_two_slices() -> None:
    world = World()
    made = operator()
    made.open(world.context("op"))
    subtask = Bench(operator=made, inputs=1)
    subtask.feed((0, batch(*((f"key {number}", 10) for number in range(2_500)))))
    world.wall_ms = 10
    subtask.queue((0, Barrier(1, 4, 0)))
    subtask.work()
    emitted = subtask.emitted()
    before = emitted[: emitted.index(Barrier(1, 4, 0))]
    assert sum(map(len, before)) <= 1_000, "behind the first slice, which has so many timers at most"
    while subtask.subtask.step():
        emitted += subtask.emitted()
    assert sum(len(each) for each in emitted if isinstance(each, list)) == 2_500


def test_unaligned_checkpoints_that_follow_each_other_leave_timers_their_turns() -> None:
    world = World()
    made = operator()
    made.open(world.context("op"))
    subtask = Bench(operator=made, inputs=2)
    subtask.feed((0, batch(("a", 10), ("b", 10), ("c", 20), ("c", 30))))
    fired = []
    for number in range(1, 4):
        world.wall_ms = 10 * number
        subtask.queue((0, Barrier(number, 4, 0, 0)), (1, batch(("later", 9_000))), (1, Barrier(number, 4, 0, 0)))
        subtask.subtask.step()
        fired.append([each for each in subtask.emitted() if isinstance(each, list)])
    assert fired == [[["a", "b"]], [["c"]], [["c"]]]
    assert len(subtask.captured.calls) == 3


def test_due_timers_fire_before_event_time_ends_with_the_input_and_others_are_kept() -> None:
    class Again(Timed):
        def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Iterator[Row]:
            yield from super().on_wall_timer(key, due_ms, ctx)
            ctx.wall_timers.register(due_ms)  # would fire forever

    world = World()
    made = operator(Again)
    made.open(world.context("op"))
    subtask = Bench(operator=made, inputs=1)
    subtask.inputs[0].push(batch(("a", 10), ("b", 500)), 10)
    subtask.inputs[0].push(EndOfInput(), 10)
    world.wall_ms = 10
    subtask.work()
    assert subtask.emitted() == [["a"], Watermark(WATERMARK_MAX), EndOfInput()]
    snapshot = world.finish("op", 1, made.snapshot(1))
    restored = Driven(operator(), world, (snapshot,))
    world.wall_ms = 500
    assert turns(restored) == [("a", 10), ("b", 500)]


# ---- a job


@pytest.mark.parametrize("parallelism", [1, 2])
def test_timers_of_a_job_fire_while_its_source_says_nothing(parallelism: int) -> None:
    fired: list[tuple[int, float]] = []

    class Waiting:
        def process(self, key: str, row: Row, ctx: Any) -> None:
            ctx.wall_timers.after(timedelta(milliseconds=30))

        def on_wall_timer(self, key: str, due_ms: int, ctx: Any) -> Iterator[Row]:
            fired.append((due_ms, time.time() * 1_000))
            yield {"k": key, "due": due_ms, "n": ctx.watermark}

    flow, out = Dataflow("silent"), CollectSink()
    flow.source("in", SilentSource(due(("a", 0)), ROWS, fired)).key_by("k").process("wait", Waiting, schema=FIRED).sink(
        "out", out
    )
    flow.run_local(parallelism=parallelism)
    ((due_ms, at_ms),) = fired
    assert at_ms >= due_ms
    assert out.rows() == [{"k": "a", "due": due_ms, "n": WATERMARK_MIN}]
