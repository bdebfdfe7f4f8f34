"""Interleavings of unaligned checkpoints: the rows that a subtask captures, records and forwards when barriers
overtake rows.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from subtask_bench import TOKEN, Bench, barrier, rows, values

from barrier_runtime.data.elements import Barrier, Batch, CancelBarrier, EndOfInput, Watermark
from barrier_runtime.runtime.aligner import (
    Aborted,
    Aligner,
    Block,
    InFlightComplete,
    StartTimer,
    TakeSnapshot,
)
from tests.drawn import examples


def at_once(id):
    return barrier(id, 0)


def timed(id, ms=100):
    return barrier(id, ms)


def play(aligner, *events):
    """Each barrier or cancel (channel, element) arrives and is delivered at once; the effects in order."""
    effects = []
    for channel, element in events:
        effects += aligner.on_arrival(channel, element, 0)
        if isinstance(element, Barrier):
            effects += aligner.on_barrier(channel, element, 0)
        elif isinstance(element, CancelBarrier):
            effects += aligner.on_cancel(channel, element)
        else:
            effects += aligner.on_end(channel, 0)
    return effects


def snapshots(effects):
    return [effect.barrier.id for effect in effects if isinstance(effect, TakeSnapshot)]


# ---------------------------------------------------------------- recorded rows


def test_in_flight_rows_are_exactly_those_before_their_own_channels_barrier():
    """U1: rows 1 to 3 precede the first barrier, rows 4, 5, 6 and 10 are in flight, and all other rows follow."""
    bench = Bench(inputs=3)
    bench.feed((0, rows(1)), (1, rows(2)), (2, rows(3)))
    bench.queue((2, rows(4)), (0, rows(5)), (1, rows(6)), (0, at_once(1)), (0, rows(7)), (1, at_once(1)))
    bench.queue((0, rows(8)), (1, rows(9)))
    assert bench.in_flight == {}, "channel 2 has not delivered it"
    bench.work()
    bench.queue((2, rows(10)), (2, at_once(1)), (2, rows(11)))
    assert bench.captured_totals() == [(1, 1 + 2 + 3)]
    assert sorted(bench.in_flight[1][0]) == [4, 5, 6, 10]
    bench.work()
    assert bench.operator.total == sum(range(1, 12)), "recording keeps nothing from being processed"


def test_the_barrier_is_forwarded_and_state_captured_while_nothing_can_be_sent():
    """U1: the rows that wait stay in the queue of the subtask that could not take them."""
    bench = Bench(inputs=1, room=1)
    bench.feed((0, rows(1)))
    assert not bench.subtask.writable
    bench.queue((0, rows(2)), (0, rows(3)), (0, at_once(1)))
    assert not bench.subtask.step()
    assert bench.captured_totals() == [(1, 1)]
    assert bench.in_flight == {1: {0: [2, 3]}}
    assert bench.emitted() == [[1], at_once(1)]
    bench.work()
    bench.emitted()
    bench.work()
    assert bench.captured_totals() == [(1, 1)], "the overtaken barrier is delivered and does nothing"


def test_barriers_that_come_together_and_empty_queues_record_nothing():
    """U2"""
    bench = Bench()
    bench.feed((0, rows(1)), (1, rows(2)))
    bench.queue((0, at_once(1)), (1, at_once(1)))
    assert bench.captured_totals() == [(1, 3)]
    assert bench.in_flight == {1: {}}


def test_control_elements_are_not_recorded():
    bench = Bench(inputs=1)
    bench.queue((0, Watermark(5)), (0, rows(1)), (0, at_once(1)))
    assert bench.in_flight == {1: {0: [1]}}


def test_rows_of_two_inputs_are_kept_apart_and_take_turns():
    """U11"""
    bench = Bench(inputs=4, ports=[0, 0, 1, 1])
    bench.queue((0, rows(1)), (0, rows(2)), (1, rows(3)), (2, rows(4)), (3, rows(5)), (3, rows(6)))
    bench.queue(*[(channel, at_once(1)) for channel in (3, 0, 1, 2)])
    assert bench.in_flight == {1: {0: [1, 3, 2], 1: [4, 5, 6]}}


def test_an_end_closes_what_is_recorded_on_its_channel():
    """U11: upstream had ended and acknowledged by itself; no barrier follows the upstream's rows."""
    bench = Bench()
    bench.queue((1, rows(2)), (1, EndOfInput()), (0, rows(1)), (0, at_once(1)))
    assert bench.in_flight == {1: {0: [1, 2]}}
    bench.work()
    assert bench.captured_totals() == [(1, 0)]


def test_trigger_is_answered_when_all_inputs_arrived_to_their_ends_before_the_work():
    """U11, C18"""
    bench = Bench(room=1)
    bench.feed((0, rows(1)))
    bench.queue((0, rows(2)), (0, EndOfInput()), (1, rows(3)))
    bench.subtask.on_trigger(at_once(1))
    assert bench.captured_totals() == []
    bench.queue((1, EndOfInput()))
    assert bench.captured_totals() == [(1, 1)]
    assert bench.in_flight == {1: {0: [2, 3]}}


# ---------------------------------------------------------------- given up


@pytest.mark.parametrize(
    "given_up",
    [
        lambda bench: bench.subtask.on_abort(1),
        lambda bench: bench.queue((1, CancelBarrier(1, TOKEN))),
        lambda bench: bench.queue((1, at_once(2))),
        lambda bench: bench.queue((0, at_once(2))),
        lambda bench: bench.queue((1, barrier(2))),
    ],
    ids=["by order", "cancelled upstream", "a newer one there", "a newer one elsewhere", "a newer aligned one"],
)
def test_a_recording_that_is_given_up_is_void_and_the_next_one_works(given_up):
    """U3, U11"""
    bench = Bench()
    bench.queue((1, rows(1)), (0, at_once(1)), (1, rows(2)))
    given_up(bench)
    bench.queue((1, rows(4)), (0, at_once(3)), (1, at_once(3)))
    assert 1 not in bench.in_flight
    assert bench.in_flight[3] == {0: [1, 2, 4]}
    bench.work()
    assert bench.operator.total == 7


def test_a_checkpoint_that_was_given_up_begins_nothing_when_its_barrier_comes():
    """U3: no write may begin for the aborted checkpoint."""
    bench = Bench()
    bench.subtask.on_abort(1)
    bench.queue((0, rows(1)), (0, at_once(1)), (1, at_once(1)))
    bench.work()
    assert (bench.captured_totals(), bench.in_flight) == ([], {})


def test_an_abort_as_the_last_barrier_is_told_once():
    """U3"""
    aligner = Aligner(2, TOKEN)
    aligner.on_arrival(0, at_once(1), 0)
    assert aligner.recording == 1
    cancel = CancelBarrier(1, TOKEN)
    assert aligner.on_arrival(1, cancel, 0) == [Aborted(1, "cancelled upstream by 1")]
    assert aligner.recording is None
    assert aligner.on_cancel(1, cancel) == []
    assert aligner.on_order_to_abort(1) == []


def test_a_cancel_that_comes_first_makes_the_later_barriers_harmless():
    """U3"""
    bench = Bench()
    bench.queue((0, CancelBarrier(1, TOKEN)), (1, rows(1)), (1, at_once(1)))
    bench.work()
    assert (bench.captured_totals(), bench.in_flight) == ([], {})
    assert bench.declined == [1]


@pytest.mark.parametrize("stale", [Barrier(1, TOKEN - 1, 0, 0), at_once(3), CancelBarrier(3, TOKEN)])
def test_an_obsolete_barrier_that_nobody_cancelled_yet_changes_nothing(stale):
    """U11: a barrier of an older generation, or of a completed checkpoint."""
    aligner = Aligner(2, TOKEN)
    play(aligner, (0, at_once(3)))
    assert aligner.on_arrival(0, stale, 0) == []
    assert aligner.recording == 3
    assert aligner.on_arrival(1, at_once(3), 0) == [InFlightComplete(3)]


def test_barriers_of_several_checkpoints_in_an_unusual_order_take_each_at_most_once():
    """U11: an older barrier that arrives after a newer barrier is ignored."""
    aligner = Aligner(3, TOKEN)
    effects = play(aligner, (0, at_once(1)), (1, at_once(2)), (0, at_once(2)), (2, at_once(1)), (2, at_once(2)))
    assert snapshots(effects) == [1, 2]
    assert [effect.id for effect in effects if isinstance(effect, InFlightComplete)] == [2]
    assert [effect.id for effect in effects if isinstance(effect, Aborted)] == [1]


# ---------------------------------------------------------------- timeouts and kinds


@pytest.mark.slow
def test_aligned_and_unaligned_checkpoints_alternate():
    """U5: 123 channels, 123 checkpoints."""
    channels = 123
    aligner = Aligner(channels, TOKEN)
    taken = []
    for number in range(1, 124):
        kind = at_once(number) if number % 2 else barrier(number)
        order = [(channel * 7 + number) % channels for channel in range(channels)]
        taken += snapshots(play(aligner, *[(channel, kind) for channel in order]))
        assert (aligner.blocked, aligner.recording, aligner.aligning) == (frozenset(), None, None)
    assert taken == list(range(1, 124))


def test_a_checkpoint_that_is_aligned_for_too_long_is_taken_with_what_is_in_flight():
    """U6: a single snapshot is taken, and the overtaken rows are recorded."""
    bench = Bench(room=1)
    bench.subtask.on_trigger(timed(1))
    bench.feed((0, timed(1)))
    bench.queue((0, rows(5)), (1, rows(1)))
    bench.work()
    bench.queue((1, rows(2)), (1, timed(1)), (1, rows(3)))
    bench.pass_time(99)
    assert bench.captured_totals() == []
    bench.pass_time(1)
    assert bench.captured_totals() == [(1, 1)]
    assert bench.in_flight == {1: {0: [2]}}
    assert bench.emitted() == [[1], at_once(1)], "downstream does not wait for its own time to be over"


def test_the_first_barrier_after_the_time_is_over_is_taken_at_once():
    """U6"""
    bench = Bench()
    bench.subtask.on_trigger(timed(1))
    bench.pass_time(100)
    bench.queue((1, rows(1)))
    assert bench.captured_totals() == []
    bench.queue((0, timed(1)), (1, rows(2)), (1, timed(1)))
    assert bench.captured_totals() == [(1, 0)]
    assert bench.in_flight == {1: {0: [1, 2]}}


def test_without_a_trigger_the_time_begins_with_the_first_arrival():
    """U6"""
    bench = Bench()
    bench.queue((1, rows(1)), (1, timed(1)))
    bench.pass_time(100)
    assert bench.in_flight == {}
    assert bench.captured_totals() == [(1, 0)]
    bench.queue((0, timed(1)))
    assert bench.in_flight == {1: {0: [1]}}


def test_a_timer_that_fires_after_the_snapshot_does_nothing():
    """U6"""
    bench = Bench()
    bench.feed((0, rows(1)), (0, timed(1)), (1, timed(1)))
    assert bench.captured_totals() == [(1, 1)]
    assert bench.in_flight == {}, "it was aligned in time"
    bench.pass_time(200)
    bench.feed((0, rows(2)))
    assert bench.captured_totals() == [(1, 1)]
    assert bench.emitted() == [[1], timed(1), [2]]


def test_a_barrier_that_was_overtaken_upstream_is_not_aligned_here():
    """U7"""
    bench = Bench(inputs=3)
    bench.queue((2, rows(1)), (0, rows(2)), (0, timed(1)))
    assert bench.captured_totals() == []
    bench.queue((1, at_once(1)))
    assert bench.captured_totals() == [(1, 0)]
    bench.queue((2, timed(1)))
    assert bench.in_flight == {1: {0: [2, 1]}}


def test_the_checkpoint_after_a_late_one_is_aligned_again():
    """U8"""
    bench = Bench()
    bench.queue((0, timed(1)), (1, rows(1)))
    bench.pass_time(100)
    bench.queue((1, timed(1)))
    bench.work()
    bench.feed((0, timed(2)), (0, rows(10)), (1, rows(2)), (1, timed(2)))
    assert bench.captured_totals() == [(1, 0), (2, 3)]
    assert bench.in_flight == {1: {0: [1]}}


def test_a_checkpoint_without_a_timeout_is_aligned_however_long_it_takes():
    """U9"""
    bench = Bench()
    bench.subtask.on_trigger(barrier(1))
    bench.queue((0, barrier(1)), (1, rows(1)))
    bench.pass_time(1e12)
    assert bench.timers == []
    assert bench.captured_totals() == []
    bench.feed((1, barrier(1)))
    assert bench.captured_totals() == [(1, 1)]


def test_one_timer_is_started_for_a_checkpoint():
    aligner = Aligner(2, TOKEN)
    assert aligner.on_trigger(timed(1), 0) == [StartTimer(1, 100)]
    assert aligner.on_trigger(timed(1), 0) == []
    assert aligner.on_arrival(0, timed(1), 0) == []
    assert aligner.on_barrier(0, timed(1), 0) == [Block(0)]


# ---------------------------------------------------------------- channels whose barriers never overtake


def test_what_must_be_aligned_is_waited_for_and_the_rest_is_recorded_then():
    """U7: nothing is recorded on a forward or broadcast edge."""
    bench = Bench(inputs=2, aligned_only=(1,))
    bench.queue((0, rows(1)), (0, at_once(1)), (1, rows(2)), (1, at_once(1)))
    assert bench.captured_totals() == []
    assert bench.in_flight == {}
    bench.inputs[0].blocked = True  # row 1 stays in the channel
    bench.work()
    assert bench.captured_totals() == [(1, 2)]
    assert bench.in_flight == {1: {0: [1]}}


def test_subtask_with_only_aligned_channels_takes_its_snapshot_after_their_rows():
    bench = Bench(inputs=1, aligned_only=(0,))
    bench.queue((0, rows(1)), (0, at_once(1)))
    assert bench.captured_totals() == []
    bench.work()
    assert bench.captured_totals() == [(1, 1)]
    assert bench.in_flight == {}
    assert bench.emitted() == [[1], at_once(1)]


# ---------------------------------------------------------------- restored


def test_rows_in_flight_are_worked_off_before_anything_that_comes_in():
    bench = Bench(replay=[(0, rows(1)), (0, rows(2))])
    bench.queue((0, rows(3)), (0, Watermark(7)), (1, Watermark(9)), (1, rows(4)))
    bench.work()
    assert bench.emitted() == [[1], [2], [3], Watermark(7), [4]]


def test_what_is_left_of_the_restored_rows_is_in_flight_again_before_the_others():
    bench = Bench(inputs=1, room=1, replay=[(0, rows(1)), (0, rows(2)), (0, rows(3))])
    bench.work()
    bench.queue((0, rows(4)), (0, at_once(1)))
    assert bench.captured_totals() == [(1, 1)]
    assert bench.in_flight == {1: {0: [2, 3, 4]}}


def test_an_aligned_checkpoint_comes_after_all_restored_rows():
    bench = Bench(inputs=1, replay=[(0, rows(1)), (0, rows(2))])
    bench.queue((0, barrier(1)))
    bench.work()
    assert bench.captured_totals() == [(1, 3)]


# ---------------------------------------------------------------- all interleavings


@pytest.mark.slow
@examples(200)
@given(st.data())
def test_state_and_in_flight_rows_are_together_what_came_before_the_barriers(data):
    """U1, U11: any interleaving of rows, barriers of all kinds, ends, work, sending, and time."""
    channels = data.draw(st.integers(1, 4))
    aligned_only = data.draw(st.sets(st.integers(0, channels - 1), max_size=channels - 1))
    bench = Bench(channels, aligned_only=tuple(aligned_only), room=data.draw(st.sampled_from([1, 25, 1 << 20])))
    numbers = iter(range(1_000_000))
    queues, before = [[] for _ in range(channels)], {}
    for number in range(1, data.draw(st.integers(1, 5)) + 1):
        kind = Barrier(number, TOKEN, 0, data.draw(st.sampled_from([None, 0, 50])))
        for queue in queues:
            queue += [rows(1 << next(numbers)) for _ in range(data.draw(st.integers(0, 3)))]
            queue.append(kind)
        before[number] = values(each for queue in queues for each in queue if isinstance(each, Batch))
    for queue in queues[: data.draw(st.integers(0, channels))]:
        queue.append(EndOfInput())
    while any(queues) or bench.subtask.step() or bench.emitted():
        taken = bench.captured.calls[-1][0].id if bench.captured.calls else 0
        next_one = taken + (bench.subtask._aligner.recording is None)  # the last checkpoint has ended
        ready = [at for at, queue in enumerate(queues) if queue and getattr(queue[0], "id", 0) <= next_one]
        action = data.draw(st.sampled_from(["come", "come", "work", "send", "time"]))
        if action == "come" and ready:
            channel = data.draw(st.sampled_from(ready))
            bench.queue((channel, queues[channel].pop(0)))
        elif action == "work":
            bench.subtask.step()
        elif action == "time":
            bench.pass_time(40)
        else:
            bench.emitted()
    assert [b.id for b, _ in bench.captured.calls] == list(before)
    for number, total in bench.captured_totals():
        in_flight = [value for batch in bench.in_flight.get(number, {}).values() for value in batch]
        assert total + sum(in_flight) == sum(before[number]), f"checkpoint {number}"
