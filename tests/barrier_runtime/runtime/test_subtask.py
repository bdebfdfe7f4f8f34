"""A subtask as interleavings: elements on its channels, orders of the coordinator, what it emits and captures."""

import numpy as np
from subtask_bench import TOKEN, Bench, barrier, rows

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import WATERMARK_MAX, Barrier, Batch, CancelBarrier, EndOfInput, Idle, Watermark
from barrier_runtime.operators.base import Operator
from barrier_runtime.runtime.alignment.tracker import BarrierTracker


def test_rows_after_the_barrier_wait_until_every_channel_delivered_it():
    bench = Bench()
    bench.feed((0, rows(1)), (0, barrier(1)), (0, rows(100)), (1, rows(2)))
    assert bench.emitted() == [[1], [2]]
    bench.feed((1, barrier(1)))
    assert bench.captured_totals() == [(1, 3)]
    assert bench.emitted() == [barrier(1), [100]]


def test_at_least_once_does_not_wait_and_captures_at_the_last_barrier():
    bench = Bench(aligner=BarrierTracker)
    bench.feed((0, rows(1)), (0, barrier(1)), (0, rows(100)), (1, rows(2)), (1, barrier(1)))
    assert bench.captured_totals() == [(1, 103)]
    assert bench.emitted() == [[1], [100], [2], barrier(1)]


def test_the_barrier_goes_downstream_once_and_behind_the_rows_before_it():
    bench = Bench()
    bench.feed((0, rows(1)), (0, barrier(1)), (1, barrier(1)), (1, barrier(1)), (0, rows(2)))
    assert bench.emitted() == [[1], barrier(1), [2]]


def test_an_overtaken_checkpoint_is_cancelled_downstream_and_declined():
    """A4"""
    bench = Bench()
    bench.feed((0, barrier(1)), (1, barrier(2)), (0, barrier(2)))
    assert bench.declined == [1]
    assert bench.captured_totals() == [(2, 0)]
    assert bench.emitted() == [CancelBarrier(1, TOKEN), barrier(2)]


def test_an_order_to_abort_unblocks_and_tells_downstream_but_declines_nothing():
    bench = Bench()
    bench.feed((0, barrier(1)), (0, rows(7)))
    bench.subtask.on_abort(1)
    bench.feed()
    while bench.subtask.step():
        pass
    assert bench.emitted() == [CancelBarrier(1, TOKEN), [7]]
    assert bench.declined == []
    assert bench.operator.aborted == [1]
    bench.feed((1, barrier(1)))
    assert bench.captured_totals() == []


def test_watermarks_are_merged_and_an_idle_channel_does_not_hold_them():
    bench = Bench()
    bench.feed((0, Watermark(10)), (1, Watermark(5)), (1, Idle()), (0, Watermark(20)))
    assert bench.emitted() == [Watermark(5), Watermark(10), Watermark(20)]


def test_the_end_of_all_inputs_flushes_time_and_operators_then_ends_downstream():
    bench = Bench()
    bench.feed((0, rows(1)), (0, EndOfInput()), (1, rows(2)), (1, EndOfInput()))
    assert bench.emitted() == [[1], [2], Watermark(WATERMARK_MAX), [3], EndOfInput()]
    assert bench.ended_subtasks == [SubtaskId(0, 0)]
    assert bench.subtask.ended


def test_an_ended_subtask_answers_a_trigger_at_once_and_sends_no_barrier():
    """C18"""
    bench = Bench(inputs=1)
    bench.feed((0, rows(5)), (0, EndOfInput()))
    bench.emitted()
    bench.subtask.on_trigger(barrier(3))
    bench.subtask.on_trigger(barrier(3))
    assert bench.captured_totals() == [(3, 5)]
    assert bench.emitted() == []


def test_a_trigger_heard_before_the_end_is_answered_when_the_input_ends_without_its_barrier():
    """C18: upstream had ended before the trigger came and so never sent the barrier."""
    bench = Bench(inputs=1)
    bench.subtask.on_trigger(barrier(3))
    assert bench.captured_totals() == []
    bench.feed((0, rows(5)), (0, EndOfInput()))
    assert bench.captured_totals() == [(3, 5)]


def test_a_trigger_whose_barrier_came_in_band_is_not_answered_twice():
    bench = Bench(inputs=1)
    bench.subtask.on_trigger(barrier(3))
    bench.feed((0, barrier(3)), (0, EndOfInput()))
    assert bench.captured_totals() == [(3, 0)]


def test_one_channel_ended_and_the_other_brings_the_barrier():
    """A8, C18"""
    bench = Bench()
    bench.subtask.on_trigger(barrier(3))
    bench.feed((1, rows(2)), (1, barrier(3)), (0, rows(1)), (0, EndOfInput()), (1, EndOfInput()))
    assert bench.captured_totals() == [(3, 3)]


def test_orders_of_an_older_generation_change_nothing():
    """A10, Z8"""
    bench = Bench(inputs=1)
    bench.feed((0, EndOfInput()))
    bench.subtask.on_trigger(Barrier(9, TOKEN - 1))
    assert bench.captured_totals() == []


def test_a_full_output_stops_reading_and_room_lets_it_go_on():
    bench = Bench(inputs=1, room=100)
    for value in range(50):
        bench.inputs[0].push(rows(value), 10)
    while bench.subtask.step():
        pass
    assert bench.inputs[0].readable
    taken = []
    while bench.out.readable:
        taken += [bench.out.pop()]
        while bench.subtask.step():
            pass
    values = [b.rows.column(0)[0].as_py() for b in taken]
    assert values == list(range(50))


def test_inputs_are_read_in_turn():
    bench = Bench()
    for value in range(3):
        bench.inputs[0].push(rows(value), 10)
        bench.inputs[1].push(rows(10 + value), 10)
    while bench.subtask.step():
        pass
    assert bench.emitted() == [[0], [10], [1], [11], [2], [12]]


class Slow(Operator):
    """Takes 1.5 ms of the bench's clock per batch."""

    bench = None

    def process(self, batch, emit, port=0):
        self.bench.clock_ms += 1.5
        emit(batch)


def test_a_step_ends_after_some_time_though_more_elements_wait():
    """Others, and the sockets, are to get their turn: of a slow function a few large batches are a long time."""
    slow = Slow()
    slow.bench = bench = Bench(inputs=1, operator=slow)
    for value in range(4):
        bench.inputs[0].push(rows(value), 10)
    assert bench.subtask.step()
    assert bench.emitted() == [[0], [1]]
    assert bench.subtask.step()
    assert bench.emitted() == [[2], [3]]


def test_event_time_inside_a_batch_goes_as_far_as_the_other_channels_let_it():
    """R3: what one channel tells row by row is no more than a watermark of all would say."""
    bench = Bench()
    batch = Batch(rows(1, 2, 3).rows, 0, np.array([11, 20, 30]))

    def reached():
        told = bench.subtask._as_far_as_all(batch, 0).reached
        return None if told is None else told.tolist()

    assert reached() is None  # nothing is known of the other one
    bench.feed((0, Watermark(10)), (1, Watermark(5)))
    assert reached() is None
    bench.feed((1, Watermark(25)))
    assert reached() == [11, 20, 25]
    bench.feed((1, Idle()))
    assert reached() == [11, 20, 30]
    bench.feed((0, Watermark(30)))
    assert reached() is None  # the watermark has said it
