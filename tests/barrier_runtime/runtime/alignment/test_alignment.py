"""Interleavings of alignment: arrivals on the channels, and the exact effects that the subtask must carry out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import Barrier, CancelBarrier
from barrier_runtime.runtime.aligner import Aborted, Aligner, Block, TakeSnapshot, Unblock
from barrier_runtime.runtime.barrier_tracker import BarrierTracker
from tests.drawn import examples

TOKEN = 7


def barrier(id, token=TOKEN, at=0):
    return Barrier(id, token, at)


def cancel(id, token=TOKEN):
    return CancelBarrier(id, token)


def snapshots(effects):
    return [e.barrier.id for e in effects if isinstance(e, TakeSnapshot)]


def aborts(effects):
    return [e.id for e in effects if isinstance(e, Aborted)]


def play(aligner, *events):
    """Feed (channel, event) pairs; an event is a Barrier, a CancelBarrier or "end". Returns all effects."""
    effects = []
    for channel, event in events:
        if isinstance(event, Barrier):
            effects += aligner.on_barrier(channel, event, 0)
        elif isinstance(event, CancelBarrier):
            effects += aligner.on_cancel(channel, event)
        else:
            effects += aligner.on_end(channel, 0)
    return effects


def test_without_barriers_nothing_is_blocked_and_nothing_is_taken():
    """A1"""
    aligner = Aligner(3, TOKEN)
    assert play(aligner, (0, "end"), (2, "end"), (1, "end")) == []
    assert aligner.blocked == frozenset()


def test_a_single_channel_takes_every_barrier_at_once_and_never_blocks():
    """A2"""
    aligner = Aligner(1, TOKEN)
    effects = play(aligner, *[(0, barrier(n)) for n in (1, 2, 3, 4, 5, 6)])
    assert snapshots(effects) == [1, 2, 3, 4, 5, 6]
    assert not [e for e in effects if isinstance(e, Block)]


def test_a_channel_is_blocked_from_its_barrier_until_the_last_one_arrives():
    """A3"""
    aligner = Aligner(3, TOKEN)
    assert aligner.on_barrier(1, barrier(1), 0) == [Block(1)]
    assert aligner.blocked == {1}
    assert aligner.on_barrier(2, barrier(1), 0) == [Block(2)]
    assert aligner.blocked == {1, 2}
    effects = aligner.on_barrier(0, barrier(1), 0)
    assert snapshots(effects) == [1]
    assert Unblock((0, 1, 2)) in effects
    assert aligner.blocked == frozenset()
    assert snapshots(play(aligner, (0, barrier(2)), (1, barrier(2)), (2, barrier(2)))) == [2]


def test_the_snapshot_comes_before_the_unblocking():
    """A3: rows held back may be read only after the state is captured."""
    aligner = Aligner(2, TOKEN)
    effects = play(aligner, (0, barrier(1)), (1, barrier(1)))
    kinds = [type(e) for e in effects]
    assert kinds.index(TakeSnapshot) < kinds.index(Unblock)


def test_higher_barrier_aborts_the_lower_alignment_once_and_late_barrier_is_ignored():
    """A4"""
    aligner = Aligner(3, TOKEN)
    play(aligner, (0, barrier(2)), (1, barrier(2)))
    effects = aligner.on_barrier(2, barrier(3), 0)
    assert aborts(effects) == [2]
    assert Unblock((0, 1)) in effects
    assert aligner.blocked == {2}
    assert aligner.on_barrier(2, barrier(2), 0) == []
    effects = play(aligner, (0, barrier(4)), (1, barrier(4)), (2, barrier(4)))
    assert aborts(effects) == [3]
    assert snapshots(effects) == [4]


def test_start_delay_and_alignment_time_are_what_was_injected():
    """A5"""
    aligner = Aligner(2, TOKEN)
    aligner.on_barrier(0, barrier(1, at=1_000), now_ms=1_250)
    effects = aligner.on_barrier(1, barrier(1, at=1_000), now_ms=1_400)
    taken = effects[0]
    assert isinstance(taken, TakeSnapshot)
    assert taken.start_delay_ms == 250
    assert taken.alignment_ms == 150


def test_cancels_without_their_barriers_leave_no_channel_blocked():
    """A6"""
    aligner = Aligner(2, TOKEN)
    effects = play(aligner, (0, barrier(1)), (1, cancel(3)), (0, cancel(2)), (0, cancel(3)))
    assert snapshots(effects) == []
    assert aborts(effects) == [1, 3]
    assert aligner.blocked == frozenset()
    assert snapshots(play(aligner, (0, barrier(4)), (1, barrier(4)))) == [4]


@pytest.mark.parametrize("closed", [(0, 1), (0, 1, 2)])
def test_channels_that_ended_before_do_not_count(closed):
    """A7"""
    aligner = Aligner(4, TOKEN)
    play(aligner, *[(channel, "end") for channel in closed])
    live = [channel for channel in range(4) if channel not in closed]
    effects = play(aligner, *[(channel, barrier(1)) for channel in live])
    assert snapshots(effects) == [1]
    assert aligner.blocked == frozenset()


def test_an_end_during_alignment_counts_as_the_barrier():
    """A8 (FLIP-147)"""
    aligner = Aligner(3, TOKEN)
    play(aligner, (0, barrier(1)), (1, barrier(1)))
    effects = aligner.on_end(2, 0)
    assert snapshots(effects) == [1]
    assert aligner.blocked == frozenset()


def test_an_end_on_the_channel_that_already_delivered_the_barrier_changes_nothing():
    """A8"""
    aligner = Aligner(2, TOKEN)
    play(aligner, (0, barrier(1)))
    assert aligner.on_end(0, 0) == []
    assert snapshots(aligner.on_barrier(1, barrier(1), 0)) == [1]


def test_a_cancel_as_last_barrier_aborts_once_and_the_next_one_works():
    """A9"""
    aligner = Aligner(3, TOKEN)
    effects = play(aligner, (0, barrier(1)), (1, barrier(1)), (2, cancel(1)), (0, cancel(1)))
    assert aborts(effects) == [1]
    assert aligner.blocked == frozenset()
    assert snapshots(play(aligner, *[(c, barrier(2)) for c in range(3)])) == [2]


def test_a_cancel_as_first_barrier_makes_the_later_barriers_harmless():
    """A9"""
    aligner = Aligner(2, TOKEN)
    effects = play(aligner, (0, cancel(1)), (1, barrier(1)), (0, barrier(2)), (1, barrier(2)))
    assert aborts(effects) == [1]
    assert snapshots(effects) == [2]


def test_several_cancels_and_a_late_barrier_give_three_snapshots_and_two_aborts():
    """A9"""
    aligner = Aligner(1, TOKEN)
    effects = play(
        aligner, (0, barrier(1)), (0, barrier(2)), (0, cancel(4)), (0, barrier(4)), (0, barrier(5)), (0, cancel(6))
    )
    assert snapshots(effects) == [1, 2, 5]
    assert aborts(effects) == [4, 6]


@pytest.mark.parametrize("event", [barrier(3, token=TOKEN - 1), barrier(1), cancel(3, token=TOKEN - 1), cancel(1)])
def test_old_tokens_and_finished_ids_are_counted_and_change_nothing(event):
    """A10"""
    aligner = Aligner(2, TOKEN)
    play(aligner, (0, barrier(1)), (1, barrier(1)), (0, barrier(2)))
    before = (aligner.blocked, aligner.aligning, aligner.done)
    assert play(aligner, (1, event)) == []
    assert (aligner.blocked, aligner.aligning, aligner.done) == before
    assert aligner.ignored == 1


def test_the_same_barrier_twice_on_one_channel_counts_once():
    """A10"""
    aligner = Aligner(2, TOKEN)
    assert play(aligner, (0, barrier(1)), (0, barrier(1))) == [Block(0)]
    assert aligner.blocked == {0}


def test_the_coordinator_can_give_up_an_alignment():
    aligner = Aligner(2, TOKEN)
    play(aligner, (0, barrier(1)))
    effects = aligner.on_order_to_abort(1)
    assert aborts(effects) == [1]
    assert Unblock((0,)) in effects
    assert play(aligner, (1, barrier(1))) == []


def test_giving_up_what_was_not_seen_yet_makes_its_barriers_harmless():
    aligner = Aligner(2, TOKEN)
    assert aligner.on_order_to_abort(5) == []
    assert play(aligner, (0, barrier(5)), (1, barrier(5))) == []


def test_at_least_once_never_blocks_and_takes_the_snapshot_at_the_last_barrier():
    tracker = BarrierTracker(3, TOKEN)
    effects = play(tracker, (0, barrier(1)), (0, barrier(2)), (1, barrier(1)), (2, barrier(1)))
    assert effects == [TakeSnapshot(barrier(1), 0, 0)]
    assert snapshots(play(tracker, (1, barrier(2)), (2, barrier(2)))) == [2]


def test_at_least_once_gives_up_older_ones_when_a_newer_is_complete_first():
    tracker = BarrierTracker(2, TOKEN)
    effects = play(tracker, (0, barrier(1)), (0, barrier(2)), (1, barrier(2)), (1, barrier(1)))
    assert aborts(effects) == [1]
    assert snapshots(effects) == [2]


def test_at_least_once_counts_an_end_as_barrier():
    tracker = BarrierTracker(2, TOKEN)
    assert snapshots(play(tracker, (0, barrier(1)), (1, "end"))) == [1]


@pytest.mark.slow
@examples(300)
@given(st.data())
def test_any_interleaving_of_barriers_takes_each_once_in_order_and_ends_unblocked(data):
    """A3, A8: every channel delivers barriers 1..n in a separate order of events; blocked channels are not read."""
    channels = data.draw(st.integers(1, 5))
    last = data.draw(st.integers(1, 5))
    ends_after = [data.draw(st.integers(0, last)) for _ in range(channels)]
    queues = [[barrier(n) for n in range(1, ends_after[c] + 1)] + ["end"] for c in range(channels)]
    aligner = Aligner(channels, TOKEN)
    taken = []
    while any(queues):
        ready = [c for c in range(channels) if queues[c] and c not in aligner.blocked]
        assert ready, "every channel is blocked: a deadlock"
        channel = data.draw(st.sampled_from(ready))
        taken += snapshots(play(aligner, (channel, queues[channel].pop(0))))
    assert taken == list(range(1, max(ends_after) + 1))
    assert aligner.blocked == frozenset()


@pytest.mark.parametrize("kind", [Aligner, BarrierTracker])
def test_an_order_to_abort_a_newer_checkpoint_leaves_an_older_one_alone(kind):
    """C3: two checkpoints run; the second is declined elsewhere before the first checkpoint's barriers arrive here."""
    aligner = kind(2, TOKEN)
    assert aligner.on_order_to_abort(2) == []
    effects = play(aligner, (0, barrier(1)), (1, barrier(1)), (0, barrier(2)), (1, barrier(2)))
    assert snapshots(effects) == [1]
    assert aborts(effects) == []
    assert aligner.blocked == frozenset()


@pytest.mark.parametrize("kind", [Aligner, BarrierTracker])
def test_aborted_checkpoint_is_not_begun_by_a_barrier_during_an_older_alignment(kind):
    """C3"""
    aligner = kind(2, TOKEN)
    play(aligner, (0, barrier(1)))
    assert aligner.on_order_to_abort(2) == []
    effects = play(aligner, (1, barrier(1)), (1, barrier(2)))
    assert snapshots(effects) == [1]
    assert aligner.aligning is None


def test_barrier_of_an_aborted_checkpoint_ends_an_older_alignment_that_lost_its_own():
    """A4: channels are first in, first out."""
    aligner = Aligner(2, TOKEN)
    play(aligner, (0, barrier(1)))
    aligner.on_order_to_abort(2)
    effects = play(aligner, (1, barrier(2)))
    assert aborts(effects) == [1]
    assert aligner.blocked == frozenset()
    assert aligner.aligning is None
