"""Subtask whose first operator holds rows back: watermarks, idleness and the end wait; barriers and triggers do not."""

import pytest
from subtask_bench import Bench, barrier, rows

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch, EndOfInput, Idle, Watermark
from barrier_runtime.operators.base import Capture, Emit, Operator
from barrier_runtime.runtime.aligner import Aligner
from barrier_runtime.runtime.barrier_tracker import BarrierTracker
from barrier_runtime.runtime.network.input_queues import WatermarkMerger


class Holding(Operator):
    """Holds `room` batches, emits the oldest `allowed` ones, and includes held batches in the snapshot."""

    holds_watermarks = True
    takes_rows_before_barriers = True

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: list[Batch | int] = []  # batches, and the watermarks between them
        self.allowed = 0
        self.reached = WATERMARK_MIN

    @property
    def has_room(self) -> bool:
        return sum(isinstance(each, Batch) for each in self.held) < self.room

    @property
    def unfinished(self) -> bool:
        return any(isinstance(each, Batch) for each in self.held)

    def own_watermark(self) -> int | None:
        return self.reached

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self.held.append(batch)

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        self.held.append(watermark_ms)
        self._pass_watermarks()

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        if not self.allowed or not self.unfinished:
            return False
        self.allowed -= 1
        batch = self.held.pop(0)
        assert isinstance(batch, Batch)
        emit(batch)
        self._pass_watermarks()
        return True

    def snapshot(self, checkpoint: int) -> Capture:
        values = [value for each in self.held if isinstance(each, Batch) for value in each.rows.column(0).to_pylist()]
        return Capture(values={"total": str(sum(values)).encode()})

    def _pass_watermarks(self) -> None:
        while self.held and isinstance(self.held[0], int):
            self.reached = self.held.pop(0)  # type: ignore[assignment]


class HoldingBench(Bench):
    operator: Holding

    def __init__(self, room: int = 1, **arguments: object) -> None:
        super().__init__(operator=Holding(room), **arguments)  # type: ignore[no-untyped-call]

    def allow(self, batches: int = 1) -> None:
        self.operator.allowed += batches
        self.work()  # type: ignore[no-untyped-call]


@pytest.fixture
def bench() -> HoldingBench:
    return HoldingBench(inputs=1)


def test_a_watermark_is_told_when_the_rows_before_it_are_out(bench: HoldingBench) -> None:
    bench.feed((0, Watermark(5)), (0, rows(1)))
    assert bench.emitted() == [Watermark(5)]
    bench.feed((0, Watermark(10)))
    assert bench.emitted() == []
    bench.allow()
    assert bench.emitted() == [[1], Watermark(10)]


def test_idleness_is_told_when_the_rows_before_it_are_out(bench: HoldingBench) -> None:
    bench.operator.room = 2
    bench.feed((0, rows(1)), (0, rows(2)), (0, Idle()))
    bench.allow()
    assert bench.emitted() == [[1]]
    bench.allow()
    assert bench.emitted() == [[2], Idle()]


def test_rows_that_came_after_idleness_end_it(bench: HoldingBench) -> None:
    bench.operator.room = 2
    bench.feed((0, rows(1)), (0, Idle()))
    bench.allow()
    assert bench.emitted() == [[1], Idle()]
    bench.feed((0, rows(2)))
    bench.allow()
    assert bench.emitted() == [Watermark(WATERMARK_MIN), [2]]


def test_held_rows_after_idleness_hold_event_time_back_at_once(bench: HoldingBench) -> None:
    """Otherwise event time of the other subtasks would pass these rows before they are out, and they would be late."""
    bench.operator.room = 2
    bench.feed((0, rows(1)), (0, Watermark(5)), (0, Idle()))
    bench.allow()
    assert bench.emitted() == [[1], Watermark(5), Idle()]
    merger = WatermarkMerger(2)
    merger.on_watermark(0, 5)
    merger.on_idle(0)
    assert merger.on_watermark(1, 7) == Watermark(7)
    bench.feed((0, rows(2)))
    (again,) = bench.emitted()
    merger.on_watermark(0, again.ms)
    assert merger.on_watermark(1, 9) is None, "the held row may have the time 8"
    bench.allow()
    assert bench.emitted() == [[2]]


def test_the_end_waits_for_what_is_held_and_triggers_are_answered_meanwhile() -> None:
    bench = HoldingBench(room=2, inputs=1)
    bench.feed((0, rows(3)), (0, Watermark(5)), (0, EndOfInput()))
    assert (bench.subtask.ended, bench.emitted()) == (False, [])
    bench.subtask.on_trigger(barrier(1))
    bench.subtask.on_trigger(barrier(1))
    assert bench.captured_totals() == [(1, 3)]
    assert bench.emitted() == [barrier(1)]
    bench.allow()
    assert bench.emitted() == [[3], Watermark(5), Watermark(WATERMARK_MAX), EndOfInput()]
    bench.subtask.on_trigger(barrier(2))
    assert bench.captured_totals() == [(1, 3), (2, 0)]
    assert bench.emitted() == []


def test_a_trigger_heard_before_the_end_is_answered_though_rows_are_held() -> None:
    """Upstream had ended before the trigger, so no barrier arrives."""
    bench = HoldingBench(room=2, inputs=1)
    bench.subtask.on_trigger(barrier(1))
    bench.feed((0, rows(4)), (0, EndOfInput()))
    assert bench.captured_totals() == [(1, 4)]
    assert not bench.subtask.ended


@pytest.mark.parametrize("aligner", [Aligner, BarrierTracker])
def test_a_barrier_does_not_wait_for_room(aligner: type) -> None:
    bench = HoldingBench(inputs=1, aligner=aligner)
    bench.queue((0, rows(1)), (0, rows(2)), (0, rows(3)))
    bench.work()
    assert len(bench.operator.held) == 1
    bench.queue((0, barrier(1)), (0, rows(4)))
    bench.work()
    assert bench.captured_totals() == [(1, 6)]
    assert bench.emitted() == [barrier(1)]
    assert len(bench.operator.held) == 3, "what is behind the barrier waits again"


def test_checkpoint_does_not_wait_for_room_once_upstream_ended_without_a_barrier() -> None:
    bench = HoldingBench(inputs=1)
    bench.queue((0, rows(1)), (0, rows(2)), (0, EndOfInput()))
    bench.work()
    assert len(bench.operator.held) == 1
    bench.subtask.on_trigger(barrier(1))
    bench.work()
    assert bench.captured_totals() == [(1, 3)]
    bench.allow(2)
    assert bench.emitted() == [barrier(1), [1], [2], Watermark(WATERMARK_MAX), EndOfInput()]


def test_only_rows_before_a_barrier_that_is_there_are_taken_without_room() -> None:
    bench = HoldingBench(inputs=2)
    bench.queue((0, rows(1)), (1, rows(10)), (0, rows(2)), (1, rows(20)), (1, barrier(1)))
    bench.work()
    assert bench.captured_totals() == []
    assert [len(channel._elements) for channel in bench.inputs] == [1, 0]
    bench.queue((0, barrier(1)))
    bench.work()
    assert bench.captured_totals() == [(1, 33)]


def test_what_was_taken_without_room_gives_no_credit_until_there_is_room() -> None:
    """However many barriers arrive, at most the channel's window is held."""
    bench = HoldingBench(inputs=1)
    channel = bench.inputs[0]
    for checkpoint in range(1, 6):
        while channel.credit:
            channel.push(rows(1), channel.window.bytes // 4)
        bench.queue((0, barrier(checkpoint)))
        bench.work()
        assert bench.captured.calls[-1][0] == barrier(checkpoint)
        assert len(bench.operator.held) <= 5  # four fill the window; one more had room
    assert not channel.credit
    bench.allow(len(bench.operator.held))
    assert not bench.operator.held
    assert channel.bytes == 0


def test_a_barrier_that_was_overtaken_lets_no_rows_in() -> None:
    """The in-flight rows of an unaligned checkpoint are those of the queue; the barrier in the queue has no effect."""
    bench = HoldingBench(inputs=1)
    bench.queue((0, rows(1)), (0, rows(2)), (0, barrier(1, 0)))
    assert bench.in_flight == {1: {0: [1, 2]}}
    bench.work()
    assert len(bench.operator.held) == 1


def test_rows_of_a_restore_go_to_an_operator_without_room_before_a_barrier() -> None:
    bench = HoldingBench(inputs=1, replay=[(0, rows(1)), (0, rows(2))])
    bench.queue((0, barrier(1)))
    bench.work()
    assert bench.captured_totals() == [(1, 3)]
