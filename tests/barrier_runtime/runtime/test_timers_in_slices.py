"""Event time that makes many timers due: timers fire in slices; between slices barriers are taken, and rows are not.
The clock stands still, so a slice has a thousand timers.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import World
from subtask_bench import Bench, barrier

from barrier_runtime.data.elements import WATERMARK_MAX, Batch, EndOfInput, Watermark
from barrier_runtime.data.rows import Row
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.runtime.in_flight import read_in_flight, write_in_flight
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.values.timer_table import TimerTable

ROWS = pa.schema([("k", pa.string()), ("at", pa.int64())])
FIRED = pa.schema([("k", pa.string()), ("at", pa.int64())])
DUE = 10


class Timed:
    """Each row sets a timer and is emitted as "row"; each timer emits the key."""

    def process(self, key: str, row: Row, ctx: Any) -> Row:
        ctx.timers.register(row["at"])
        return {"k": "row", "at": row["at"]}

    def on_timer(self, key: str, timestamp_ms: int, ctx: Any) -> Iterator[Row]:
        yield {"k": key, "at": timestamp_ms}


def made(world: World, restored: tuple[OperatorSnapshot, ...] = ()) -> ProcessOperator:
    operator = ProcessOperator("op", ["k"], Timed, output=FIRED, schema=ROWS)
    operator.open(dataclasses.replace(world.context("op", restored), now_s=lambda: 0.0))
    return operator


def batch(*pairs: tuple[str, int], reached: list[int] | None = None) -> Batch:
    rows = pa.RecordBatch.from_pylist([{"k": key, "at": at} for key, at in pairs], ROWS)
    return Batch(rows, 0, None if reached is None else np.array(reached))


def due(number: int) -> list[str]:
    return [f"key {each:04}" for each in range(number)]


def opened(number: int, inputs: int = 1, **options: Any) -> tuple[World, Bench]:
    """Returns a subtask with `number` timers due at once."""
    world = World()
    operator = made(world)
    bench = Bench(operator=operator, inputs=inputs, **options)
    bench.feed((0, batch(*((key, DUE) for key in due(number)))))
    bench.emitted()
    return world, bench


def keys(emitted: list[Any]) -> list[str]:
    return [key for each in emitted if isinstance(each, list) for key in each]


@pytest.mark.slow
def test_barrier_after_the_watermark_is_taken_between_slices_and_rest_fires_later() -> None:
    world, bench = opened(3_500)
    bench.queue((0, Watermark(DUE)), (0, barrier(1)), (0, batch(("later", 900))))
    bench.subtask.step()
    assert bench.captured.calls == []
    bench.subtask.step()
    assert len(bench.captured.calls) == 1, "before all has fired"
    before = bench.emitted()
    assert Watermark(DUE) not in before
    snapshot = world.finish("op", 1, bench.captured.calls[0][1]["sum"])
    bench.work()
    after = bench.emitted()
    assert after.index(Watermark(DUE)) == len(after) - 2, "when all has fired"
    assert after[-1] == ["row"], "and rows come then"
    fired = keys(before[: before.index(barrier(1))])
    assert 1_000 <= len(fired) < 3_500
    assert keys(before) + keys(after)[:-1] == due(3_500)

    restored = Bench(operator=made(world, (snapshot,)), inputs=1)
    restored.queue((0, batch(("later", 5))))
    restored.work()
    again = restored.emitted()
    assert fired + keys(again)[:-2] == due(3_500), "none twice, none lost, although no watermark comes"
    assert keys(again)[-2:] == ["row", "later"], "event time is where it was to be: a timer for the past fires at once"
    assert not any(isinstance(each, Watermark) for each in again), "who told it tells it again"


def test_watermark_of_a_chain_advances_after_all_fired_and_rows_with_each_slice() -> None:
    world = World()
    bench = Bench(operator=made(world), inputs=1)
    behind = made(world)
    bench.subtask.chain.operators.append(("behind", behind))
    bench.subtask.chain._emits = [bench.subtask.chain._emit_from(position) for position in range(3)]
    bench.feed((0, batch(*((key, DUE) for key in due(2_500)))))
    bench.queue((0, Watermark(DUE)))
    seen = []
    while bench.subtask.step():
        seen.append((len(behind.timers), bench.subtask.chain.watermark == DUE))
    fed = [count for count, _ in seen]
    assert fed[:2] == [1_001, 2_001], "a thousand at a time, and the one of the first rows"
    assert seen[-1] == (0, True)


def test_rows_of_another_channel_wait_and_its_barrier_does_not() -> None:
    _, bench = opened(2_500, inputs=2)
    bench.feed((1, Watermark(DUE)))
    bench.queue((0, Watermark(DUE)), (1, barrier(1)), (0, barrier(1)), (1, batch(("x", 900))))
    bench.subtask.step()
    bench.subtask.step()
    assert len(bench.captured.calls) == 1
    assert "row" not in keys(bench.emitted())
    bench.work()
    assert keys(bench.emitted())[-1] == "row"


@pytest.mark.parametrize("aligned", [True, False])
def test_rows_after_an_event_time_jump_in_a_batch_wait_and_join_unaligned_snapshots(aligned: bool) -> None:
    world, bench = opened(2_500)
    bench.queue((0, batch(("a", 900), ("b", 901), ("c", 902), reached=[1, DUE, DUE])))
    bench.subtask.step()
    bench.queue((0, barrier(1, None if aligned else 0)))
    early = keys(bench.emitted())
    assert early == ["row", *due(1_000)]
    if aligned:
        bench.subtask.step()
        early += keys(bench.emitted())
        assert bench.captured.calls == [], "the barrier stands behind rows that have to wait"
    else:
        assert bench.in_flight[1] == {0: ["b", "c"]}
        snapshot = world.finish("op", 1, bench.captured.calls[0][1]["sum"])
        restored = Bench(operator=made(world, (snapshot,)), inputs=1, replay=[(0, batch(("b", 901), ("c", 902)))])
        restored.work()
        again = keys(restored.emitted())
        assert again[-2:] == ["row", "row"]
        assert early[1:] + again[:-2] == due(2_500)
    bench.work()
    rest = keys(bench.emitted())
    assert early + rest == ["row", *due(2_500), "row", "row"]
    assert len(bench.captured.calls) == 1
    assert bench.subtask.rows_in == 2_503


def held_up(bench: Bench, *, overtakes_timers: bool = True) -> list[str]:
    """Rows "b" and "c" wait for timers, and row "d" and a barrier are queued. Returns the keys emitted so far."""
    bench.queue((0, batch(("a", 900), ("b", 901), ("c", 902), reached=[1, DUE, DUE])))
    bench.subtask.step()
    bench.queue((0, batch(("d", 903))), (0, barrier(1)))
    bench.subtask.on_trigger(barrier(1), overtakes_timers=overtakes_timers)
    return keys(bench.emitted())


@pytest.mark.slow
def test_aligned_barrier_waits_a_little_for_timers_and_then_overtakes_waiting_rows() -> None:
    world, bench = opened(5_500)
    early = held_up(bench)
    bench.subtask.step()
    assert bench.captured.calls == [], "what is over soon is waited for"
    bench.pass_time(10)
    bench.subtask.step()
    assert bench.in_flight == {1: {0: ["b", "c", "d"]}}
    sent = bench.emitted()
    assert sent[-1] == barrier(1), "behind what has fired, and aligned for who gets it"
    early += keys(sent)
    snapshot = world.finish("op", 1, bench.captured.calls[0][1]["sum"])
    bench.work()
    assert early + keys(bench.emitted()) == ["row", *due(5_500), "row", "row", "row"]
    assert len(bench.captured.calls) == 1
    bench.feed((0, barrier(2)))
    assert [called[0].id for called in bench.captured.calls] == [1, 2], "the next one is aligned"
    assert list(bench.in_flight) == [1]

    stored = [(0, batch(("b", 901), ("c", 902))), (0, batch(("d", 903)))]
    restored = Bench(operator=made(world, (snapshot,)), inputs=1, replay=stored)
    restored.work()
    assert early + keys(restored.emitted()) == ["row", *due(5_500), "row", "row", "row"]


@pytest.mark.slow
def test_rows_that_were_overtaken_meet_the_timers_between_them_after_a_restore_too() -> None:
    """Timers that the rows set for 20 are due before the row at which event time is 25."""
    world, bench = opened(5_500)
    bench.queue((0, batch(("a", 900), ("b", 20), ("c", 902), reached=[1, DUE, 15])))
    bench.subtask.step()
    bench.queue((0, batch(("d", 903), ("e", 30), ("f", 905), reached=[25, 25, 35])), (0, barrier(1)))
    bench.subtask.on_trigger(barrier(1), overtakes_timers=True)
    bench.subtask.step()
    bench.pass_time(10)
    bench.subtask.step()
    assert bench.in_flight == {1: {0: ["b", "c", "d", "e", "f"]}}
    early = keys(bench.emitted())
    snapshot = world.finish("op", 1, bench.captured.calls[0][1]["sum"])
    bench.work()
    rest = keys(bench.emitted())
    assert rest[-7:] == ["row", "row", "b", "row", "row", "e", "row"]
    store, stored = world.store, iter(["job/data/rows"])
    files = write_in_flight({0: [each for _, each in bench.recorded_batches]}, store, stored.__next__, 0, lambda: None)
    in_flight = OperatorSnapshot("op", 0, 1, in_flight=files)
    replay = read_in_flight([in_flight], "op", {0: Edge(0, 0, 1, "hash", ("k",))}, 0, 1, 128, store)
    restored = Bench(operator=made(world, (snapshot,)), inputs=1, replay=replay)
    restored.work()
    assert early + keys(restored.emitted()) == early + rest


def test_event_time_of_rows_in_flight_is_no_further_than_the_other_channels_had_come() -> None:
    _, bench = opened(10, inputs=2)
    bench.feed((1, Watermark(4)))
    bench.queue((0, barrier(1, 0)), (1, batch(("x", 900), ("y", 900), reached=[7, 9])))
    bench.queue((1, barrier(1, 0)))
    assert [each.reached.tolist() for _, each in bench.recorded_batches if each.reached is not None] == []
    bench.feed((0, Watermark(8)))
    bench.queue((0, barrier(2, 0)), (1, batch(("x", 900), ("y", 900), ("z", 900), reached=[5, 8, 9])))
    bench.queue((1, barrier(2, 0)))
    assert [each.reached.tolist() for _, each in bench.recorded_batches] == [[5, 8, 8]]


@pytest.mark.parametrize("wanted", [None, "another checkpoint", "one that has no rows in flight"])
def test_a_barrier_overtakes_timers_only_if_its_own_checkpoint_may(wanted: str | None) -> None:
    """Final checkpoints of a stop and savepoints have no rows in flight."""
    _, bench = opened(3_500)
    held_up(bench, overtakes_timers=wanted is None)
    if wanted == "another checkpoint":
        bench.subtask.on_trigger(barrier(2), overtakes_timers=True)
    for _ in range(2):
        bench.pass_time(30)
        bench.subtask.step()
    assert [called[0].id for called in bench.captured.calls] == ([1] if wanted is None else [])
    bench.work()
    assert len(bench.captured.calls) == 1


def test_barrier_overtakes_timers_once_all_of_several_channels_have_the_barrier() -> None:
    _, bench = opened(6_500, inputs=3)
    bench.feed((1, Watermark(DUE)), (2, Watermark(DUE)))
    bench.queue((0, Watermark(DUE)), (0, batch(("x", 900))))
    bench.subtask.on_trigger(barrier(1), overtakes_timers=True)
    bench.subtask.step()
    bench.queue((1, barrier(1)), (0, barrier(1)), (2, batch(("y", 901))))
    for _ in range(2):
        bench.pass_time(30)
        bench.subtask.step()
    assert bench.captured.calls == [], "the rows before the barrier of channel 2 are not all here"
    bench.queue((2, batch(("z", 902))), (2, EndOfInput()))
    bench.subtask.step()
    assert bench.captured.calls == []
    bench.pass_time(10)
    bench.subtask.step()
    assert bench.in_flight == {1: {0: ["x", "y", "z"]}}
    bench.work()
    assert sorted(keys(bench.emitted()))[-3:] == ["row"] * 3
    assert len(bench.captured.calls) == 1


def test_rows_that_could_not_be_spread_anew_are_not_overtaken() -> None:
    """Covers rows of a broadcast input."""
    _, bench = opened(3_500, aligned_only=[0])
    held_up(bench)
    for _ in range(2):
        bench.pass_time(30)
        bench.subtask.step()
    assert bench.captured.calls == []
    bench.work()
    assert (len(bench.captured.calls), bench.in_flight) == (1, {})


def test_a_checkpoint_that_was_given_up_overtakes_nothing() -> None:
    _, bench = opened(3_500)
    held_up(bench)
    bench.subtask.on_abort(1)
    for _ in range(2):
        bench.pass_time(30)
        bench.subtask.step()
    bench.work()
    assert (bench.captured.calls, bench.in_flight) == ([], {})


def test_timers_fire_in_slices_at_the_end_of_input_with_triggers_between_slices() -> None:
    world, bench = opened(2_500)
    bench.inputs[0].push(EndOfInput(), 10)
    bench.subtask.step()
    bench.subtask.on_trigger(barrier(1))
    assert len(bench.captured.calls) == 1
    first = bench.emitted()
    assert first[-1] == barrier(1), "the end has not been told yet"
    bench.work()
    rest = bench.emitted()
    assert rest[-2:] == [Watermark(WATERMARK_MAX), EndOfInput()]
    assert keys(first) + keys(rest) == due(2_500)
    assert len(bench.ended_subtasks) == 1
    snapshot = world.finish("op", 1, bench.captured.calls[0][1]["sum"])
    restored = Bench(operator=made(world, (snapshot,)), inputs=1)
    restored.inputs[0].push(EndOfInput(), 10)
    restored.work()
    assert keys(first) + keys(restored.emitted()) == due(2_500)


def test_trigger_before_the_end_is_answered_when_the_last_timers_begin_to_fire() -> None:
    _, bench = opened(2_500)
    bench.subtask.on_trigger(barrier(1))
    bench.inputs[0].push(EndOfInput(), 10)
    bench.subtask.step()
    assert len(bench.captured.calls) == 1
    bench.work()
    assert len(bench.captured.calls) == 1


def test_after_rescaling_event_time_goes_on_to_where_all_were_going() -> None:
    """One subtask was advancing to 10, the other to 7."""
    worlds = World(subtask=0, parallelism=2), World(subtask=1, parallelism=2)
    worlds[1].store = worlds[0].store
    taken, fired, early, late = [], [], [], []
    for world, goal in zip(worlds, (DUE, 7), strict=True):
        mine = [key for key in due(3_000) if owner(key) == world.subtask]
        operator = made(world)
        bench = Bench(operator=operator, inputs=1)
        bench.feed((0, batch(*((key, 6) for key in mine[:1_200]), *((key, DUE) for key in mine[1_200:]))))
        bench.emitted()
        bench.queue((0, Watermark(goal)))
        bench.subtask.step()
        fired += keys(bench.emitted())
        early += mine[1_000:1_200]
        late += mine[1_200:]
        taken.append(world.finish("op", 1, operator.snapshot(1)))
    assert len(fired) == 2_000
    merged = World()
    merged.store = worlds[0].store
    restored = Bench(operator=made(merged, tuple(taken)), inputs=1)
    restored.work()
    assert keys(restored.emitted()) == sorted(early), "those up to 7, and no others"
    restored.feed((0, Watermark(DUE)))
    assert keys(restored.emitted()) == sorted(late)


def owner(key: str) -> int:
    """Of two subtasks."""
    return key_group((key,), 128) * 2 // 128


def test_a_restored_subtask_reads_timers_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world, bench = opened(1_000)
    snapshot = world.finish("op", 1, bench.operator.snapshot(1))
    reads = []
    original = TimerTable.behind

    def counted(self: TimerTable, *arguments: Any) -> Any:
        found = original(self, *arguments)
        reads.append(len(found[0]))
        return found

    monkeypatch.setattr(TimerTable, "behind", counted)
    restored = Bench(operator=made(world, (snapshot,)), inputs=1)
    restored.feed((0, batch(("x", 900))), (0, Watermark(DUE - 1)))
    assert sum(reads) == 0, "a snapshot says that none is due before"
    restored.feed((0, Watermark(DUE)))
    assert sum(reads) == 1_000
