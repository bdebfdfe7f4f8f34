"""Interleavings of a subtask: channel elements and coordinator orders against emitted elements and snapshots."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from subtask_bench import TOKEN, Bench, Summing, barrier, rows, values

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import WATERMARK_MAX, Barrier, Batch, CancelBarrier, EndOfInput, Idle, Watermark
from barrier_runtime.data.few_rows import MOST_ROWS
from barrier_runtime.operators.base import Operator
from barrier_runtime.runtime.barrier_tracker import BarrierTracker
from barrier_runtime.runtime.network.channels import SMALL_ROW_BYTES
from tests.drawn import examples


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


def test_trigger_before_the_end_is_answered_when_the_input_ends_without_a_barrier():
    """C18: upstream had ended before the trigger arrived, and so never sent the barrier."""
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
    """Other subtasks and the sockets need their turn: a slow function takes long for a few large batches."""
    slow = Slow()
    slow.bench = bench = Bench(inputs=1, operator=slow)
    for value in range(4):
        bench.inputs[0].push(rows(value), 10)
    assert bench.subtask.step()
    assert bench.emitted() == [[0], [1]]
    assert bench.subtask.step()
    assert bench.emitted() == [[2], [3]]


def test_event_time_inside_a_batch_goes_as_far_as_the_other_channels_let_it():
    """R3: event time per row on any channel never exceeds the watermark over all channels."""
    bench = Bench()
    batch = Batch(rows(1, 2, 3).rows, 0, np.array([11, 20, 30]))

    def reached():
        told = bench.subtask._as_far_as_all(batch, 0).reached
        return None if told is None else told.tolist()

    assert reached() is None  # the other channel has no watermark yet
    bench.feed((0, Watermark(10)), (1, Watermark(5)))
    assert reached() is None
    bench.feed((1, Watermark(25)))
    assert reached() == [11, 20, 25]
    bench.feed((1, Idle()))
    assert reached() == [11, 20, 30]
    bench.feed((0, Watermark(30)))
    assert reached() is None  # the watermark already covers the rows


# ---------------------------------------------------------------- small batches together


def few(*values):
    batch = rows(*values)
    assert batch.as_few is not None
    return batch


class Batches(Summing):
    """Also records the rows and the port of each call."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def process(self, batch, emit, port=0):
        self.calls.append((port, values([batch])))
        super().process(batch, emit, port)


def test_small_batches_of_all_channels_are_processed_together():
    bench = Bench(operator=Batches())
    bench.queue((0, few(1)), (0, few(2, 3)), (1, few(4)), (0, few(5)))
    bench.work()
    assert bench.operator.calls == [(0, [1, 2, 3, 5, 4])]
    assert bench.subtask.rows_in == 5


def test_together_are_no_more_rows_than_one_small_batch_has():
    bench = Bench(operator=Batches(), inputs=1)
    size = MOST_ROWS // 3
    bench.queue(*[(0, few(*range(size))) for _ in range(4)])
    bench.work()
    assert [len(taken) for _, taken in bench.operator.calls] == [3 * size, size]


def test_batches_not_small_or_of_another_port_or_columns_are_processed_alone():
    other = Batch(pa.record_batch({"v": pa.array([3], pa.int64()), "w": ["x"]}), 1)
    assert other.as_few is not None
    bench = Bench(operator=Batches(), inputs=3, ports=[0, 0, 1])
    bench.queue((0, few(1)), (0, other), (0, few(4)), (1, rows(2)), (2, few(5)))
    bench.work()
    assert sorted(bench.operator.calls) == [(0, [1]), (0, [2]), (0, [3]), (0, [4]), (1, [5])]
    timed = Batch(rows(2).rows, 1, np.array([5]))
    assert timed.as_few is not None
    bench = Bench(operator=Batches())
    bench.queue((0, few(1)), (1, timed))
    bench.work()
    assert bench.operator.calls == [(0, [1]), (0, [2])]


def test_a_slow_operator_gets_no_more_rows_at_once_than_its_chunk():
    """The chunk is the amount processed in 20 ms. A larger chunk would delay barriers longer."""
    slow = Slow()
    slow.bench = bench = Bench(inputs=1, operator=slow)
    bench.inputs[0].chunk.bytes = 3 * SMALL_ROW_BYTES + 10
    bench.queue(*[(0, few(value)) for value in range(7)])
    bench.work()
    assert [len(taken) for taken in bench.emitted()] == [4, 3]


def test_the_earliest_row_says_how_old_rows_that_are_processed_together_are():
    bench = Bench(inputs=1)
    early, late = few(1), few(2)
    early.emit_ns, late.emit_ns = 5, 9
    bench.queue((0, late), (0, early))
    bench.work()
    assert bench.out.pop().emit_ns == 5


_STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["few", "few", "few", "arrow", "barrier"])), max_size=40)


@examples(150)
@given(_STEPS)
def test_whatever_is_processed_together_barriers_cut_where_they_stand(steps):
    """Each barrier's snapshot contains all earlier rows and no later ones, and rows of a channel keep their order."""
    bench, came, barriers = Bench(), ([], []), [0, 0]
    before = {}  # (channel, checkpoint) -> sum of the rows before the barrier
    for number, (channel, kind) in enumerate(steps):
        if kind == "barrier":
            barriers[channel] += 1
            before[channel, barriers[channel]] = sum(came[channel])
            bench.inputs[channel].push(barrier(barriers[channel]), 10)
        else:
            value = 10 * number + channel
            came[channel].append(value)
            bench.inputs[channel].push(few(value) if kind == "few" else rows(value), 10)
        if number % 7 == 6:
            bench.work()
    bench.work()
    assert bench.captured_totals() == [(id, before[0, id] + before[1, id]) for id in range(1, min(barriers) + 1)]
    emitted = [value for taken in bench.emitted() if isinstance(taken, list) for value in taken]
    for channel in range(2):
        of_channel = [value for value in emitted if value % 10 == channel]
        assert of_channel == came[channel][: len(of_channel)]


def test_rows_without_event_time_leave_an_idle_input_idle_for_the_steps_behind():
    bench = Bench(ports=[0, 1], timeless=[1])
    bench.feed((0, Watermark(5)), (1, rows(1)), (0, Idle()), (1, rows(2)))
    assert bench.emitted() == [Watermark(5), [1], Idle(), [2], Idle()]
