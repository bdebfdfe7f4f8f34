"""Pending checkpoints, as interleavings of triggers, acks, declines and time."""

import pytest
from coordinator_world import options

from barrier_runtime.coordinator.checkpoints.checkpoint import (
    MOVES,
    AckEffect,
    Checkpoint,
    CheckpointPhase,
    PendingCheckpoints,
    Triggering,
)
from barrier_runtime.coordinator.wire.messages import Ack, SubtaskId
from barrier_runtime.state.errors import ProtocolViolation

A, B = SubtaskId(0, 0), SubtaskId(0, 1)


def pending(now=0, first=1, **changes):
    return PendingCheckpoints(options(**changes), frozenset((A, B)), token=5, first_id=first, now_ms=now)


def ack(checkpoint, subtask, ended=False):
    return Ack(5, checkpoint, subtask, (), ended=ended)


def persist_and_decide(checkpoint, now=0):
    checkpoint.move(CheckpointPhase.PERSISTING, now)
    checkpoint.move(CheckpointPhase.DECIDING, now)


# ---------------------------------------------------------------- the table


def test_every_move_that_is_not_in_the_table_is_a_violation_with_history():
    for start in CheckpointPhase:
        for end in set(CheckpointPhase) - MOVES[start]:
            checkpoint = Checkpoint(7, 5, 0, frozenset((A,)), phase=start, history=[(3, start)])
            with pytest.raises(ProtocolViolation, match=f"checkpoint 7 of generation 5 .*{start.value} at 3"):
                checkpoint.move(end, 4)


def test_from_deciding_only_the_log_says():
    assert MOVES[CheckpointPhase.DECIDING] == {CheckpointPhase.COMPLETE}
    assert CheckpointPhase.DECIDING not in MOVES[CheckpointPhase.TRIGGERED]


# ---------------------------------------------------------------- acks and declines


def test_all_acks_make_a_checkpoint_ready_exactly_once():
    """C4."""
    checkpoints = pending()
    one = checkpoints.trigger(0)
    assert checkpoints.ack(ack(1, A), 1_100).effect is AckEffect.NEW
    assert checkpoints.ready() is None
    assert checkpoints.ack(ack(1, B), 1_100).effect is AckEffect.LAST
    assert checkpoints.ready() is one
    persist_and_decide(one)
    assert checkpoints.complete(one, 0) == []
    assert checkpoints.ready() is None


def test_duplicate_late_and_unknown_acks_are_counted_and_without_effect():
    """C2, C8, C9, Z10: two attempts that acknowledge the same subtask count once."""
    checkpoints = pending()
    one = checkpoints.trigger(0)
    checkpoints.ack(ack(1, A), 1_100)
    assert checkpoints.ack(ack(1, A), 1_100).effect is AckEffect.DUPLICATE
    assert checkpoints.ack(ack(1, SubtaskId(9, 9)), 1_100).effect is AckEffect.UNKNOWN_SUBTASK
    assert checkpoints.ack(ack(77, A), 1_100).effect is AckEffect.LATE
    assert one.missing == (B,)
    checkpoints.ack(ack(1, B), 1_100)
    persist_and_decide(one)
    assert checkpoints.ack(ack(1, B), 1_100).effect is AckEffect.DUPLICATE
    checkpoints.complete(one, 0)
    assert checkpoints.ack(ack(1, A), 1_100).effect is AckEffect.LATE
    assert sum(checkpoints.ignored.values()) == 5


def test_a_decline_ends_the_checkpoint_once():
    """C2."""
    checkpoints = pending()
    one = checkpoints.trigger(0)
    checkpoints.ack(ack(1, A), 1_100)
    assert checkpoints.decline(1, B, 10) is one
    assert one.phase is CheckpointPhase.DECLINED
    assert checkpoints.decline(1, B, 11) is None
    assert checkpoints.decline(99, B, 11) is None
    assert checkpoints.ack(ack(1, B), 1_100).effect is AckEffect.LATE
    assert checkpoints.open == ()


def test_a_decline_of_an_unknown_subtask_ends_nothing():
    """C8."""
    checkpoints = pending()
    checkpoints.trigger(0)
    assert checkpoints.decline(1, SubtaskId(9, 9), 0) is None
    assert len(checkpoints.open) == 1


def test_declining_the_first_of_two_leaves_the_second_alone():
    """C3."""
    checkpoints = pending(max_concurrent=2)
    checkpoints.trigger(0)
    two = checkpoints.trigger(0)
    checkpoints.decline(1, A, 1)
    assert checkpoints.open == (two,)
    checkpoints.ack(ack(2, A), 1_100)
    assert checkpoints.ack(ack(2, B), 1_100).effect is AckEffect.LAST


def test_a_decline_after_the_last_ack_is_too_late():
    checkpoints = pending()
    one = checkpoints.trigger(0)
    checkpoints.ack(ack(1, A), 1_100)
    checkpoints.ack(ack(1, B), 1_100)
    one.move(CheckpointPhase.PERSISTING, 0)
    assert checkpoints.decline(1, A, 0) is None


# ---------------------------------------------------------------- several at once


def test_concurrent_checkpoints_complete_each_on_its_own_last_ack():
    """C5: interleaved acks for 1 and 2."""
    checkpoints = pending(max_concurrent=2)
    one, two = checkpoints.trigger(0), checkpoints.trigger(0)
    checkpoints.ack(ack(1, A), 1_100)
    checkpoints.ack(ack(2, A), 1_100)
    checkpoints.ack(ack(1, B), 1_100)
    assert checkpoints.ready() is one
    persist_and_decide(one)
    checkpoints.ack(ack(2, B), 1_100)
    assert checkpoints.ready() is None, "one decision at a time"
    assert checkpoints.complete(one, 0) == []
    assert checkpoints.ready() is two


def test_a_newer_completed_checkpoint_subsumes_the_older():
    """C6: 2 completes first; 1 is dropped and the last ack of 1 is ignored."""
    checkpoints = pending(max_concurrent=2)
    one, two = checkpoints.trigger(0), checkpoints.trigger(0)
    checkpoints.ack(ack(1, A), 1_100)
    checkpoints.ack(ack(2, A), 1_100)
    checkpoints.ack(ack(2, B), 1_100)
    persist_and_decide(two)
    assert checkpoints.complete(two, 0) == [one]
    assert one.phase is CheckpointPhase.SUBSUMED
    assert checkpoints.ack(ack(1, B), 1_100).effect is AckEffect.LATE


def test_older_ready_checkpoint_is_never_decided_after_a_newer_in_decision():
    checkpoints = pending(max_concurrent=2)
    one, two = checkpoints.trigger(0), checkpoints.trigger(0)
    for subtask in (A, B):
        checkpoints.ack(ack(2, subtask), 1_100)
    persist_and_decide(two)
    for subtask in (A, B):
        checkpoints.ack(ack(1, subtask), 1_100)
    assert checkpoints.ready() is None
    assert checkpoints.complete(two, 0) == [one]
    assert checkpoints.ready() is None


def test_of_two_ready_ones_the_newer_goes_first():
    checkpoints = pending(max_concurrent=2)
    _, two = checkpoints.trigger(0), checkpoints.trigger(0)
    for number in (1, 2):
        for subtask in (A, B):
            checkpoints.ack(ack(number, subtask), 1_100)
    assert checkpoints.ready() is two


# ---------------------------------------------------------------- time


def test_a_checkpoint_without_its_acks_expires_and_nothing_completes():
    """C7."""
    checkpoints = pending(timeout_ms=500)
    one = checkpoints.trigger(100)
    checkpoints.ack(ack(1, A), 1_100)
    assert checkpoints.expire(599) == []
    assert checkpoints.expire(600) == [one]
    assert one.phase is CheckpointPhase.EXPIRED
    assert checkpoints.ack(ack(1, B), 1_100).effect is AckEffect.LATE


def test_a_checkpoint_in_the_hands_of_the_log_never_expires():
    checkpoints = pending(timeout_ms=500)
    one = checkpoints.trigger(0)
    for subtask in (A, B):
        checkpoints.ack(ack(1, subtask), 1_100)
    one.move(CheckpointPhase.PERSISTING, 0)
    one.move(CheckpointPhase.DECIDING, 0)
    assert checkpoints.expire(10_000) == []
    assert checkpoints.abort_all(10_000) == []
    assert checkpoints.open == (one,)


def test_periodic_triggers_come_at_the_interval_with_rising_ids():
    """C10."""
    checkpoints = pending(now=1_000, first=8, max_concurrent=10)
    seen = []
    for now in range(1_000, 5_001, 100):
        if checkpoints.due(now):
            seen.append((now, checkpoints.trigger(now).id))
    assert seen == [(2_000, 8), (3_000, 9), (4_000, 10), (5_000, 11)]


def test_no_more_than_max_concurrent_and_the_next_one_at_once_when_there_is_room():
    """C10."""
    checkpoints = pending(max_concurrent=1)
    checkpoints.trigger(1_000)
    assert not checkpoints.due(9_000)
    checkpoints.decline(1, A, 9_000)
    assert checkpoints.due(9_000)


def test_the_pause_counts_from_the_end_of_the_last_one():
    """C10."""
    checkpoints = pending(min_pause_ms=700)
    checkpoints.trigger(1_000)
    checkpoints.decline(1, A, 1_900)
    assert checkpoints.trigger_at() == 2_600
    assert not checkpoints.due(2_599)
    assert checkpoints.due(2_600)


def test_on_request_nothing_is_triggered_by_the_interval():
    """C10: after stop none."""
    checkpoints = pending()
    checkpoints.triggering = Triggering.ON_REQUEST
    assert not checkpoints.due(1_000_000)
    assert checkpoints.request() == 1
    assert checkpoints.due(0)
    checkpoints.trigger(0)
    assert not checkpoints.due(1_000_000)


def test_a_refused_trigger_uses_up_no_id():
    """C1: no room, 0 more pending, and the id is not skipped."""
    checkpoints = pending()
    checkpoints.trigger(0)
    checkpoints.request()
    assert not checkpoints.due(10_000)
    checkpoints.decline(1, A, 10_000)
    assert checkpoints.trigger(10_000).id == 2


def test_requests_after_failures_in_a_row_wait_longer_and_longer():
    checkpoints = pending(timeout_ms=500)
    checkpoints.triggering = Triggering.ON_REQUEST
    now, pauses = 0, []
    for _ in range(11):
        checkpoints.request()
        pauses.append(max(0, checkpoints.trigger_at() - now))
        now += pauses[-1]
        number = checkpoints.trigger(now).id
        now += 1
        checkpoints.decline(number, A, now)
    assert pauses == [0, 0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
    decided = checkpoints.trigger(now)
    persist_and_decide(decided)
    checkpoints.complete(decided, now)
    checkpoints.request()
    assert checkpoints.due(now), "a decision ends the series"


def test_a_delayed_request_does_not_postpone_the_next_periodic_checkpoint():
    checkpoints = pending(timeout_ms=500)
    for now in range(8):
        checkpoints.decline(checkpoints.trigger(now).id, A, now)
    checkpoints.request()
    assert checkpoints.trigger_at() == 7 + 1_000


def test_a_requested_checkpoint_is_due_though_periodic_ones_wait():
    """While sinks are too far behind, a stop or a savepoint still takes a checkpoint."""
    checkpoints = pending(max_concurrent=2)
    checkpoints.trigger(1_000)
    expiry = checkpoints.next_deadline(with_trigger=False)
    checkpoints.request()
    assert checkpoints.next_deadline(with_trigger=False) == 1_000 < expiry
    assert checkpoints.next_deadline(held=True) == expiry


def test_the_next_deadline_is_the_first_of_trigger_and_expiry():
    checkpoints = pending(timeout_ms=300, max_concurrent=2)
    assert checkpoints.next_deadline() == 1_000
    checkpoints.trigger(1_000)
    assert checkpoints.next_deadline() == 1_300
    checkpoints.expire(1_300)
    assert checkpoints.next_deadline() == 2_000


def test_a_checkpoint_of_ended_subtasks_only_is_the_final_one():
    checkpoints = pending()
    one = checkpoints.trigger(0)
    checkpoints.ack(ack(1, A, ended=True), 1_100)
    checkpoints.ack(ack(1, B), 1_100)
    assert not one.all_ended
    checkpoints.decline(1, A, 0)
    two = Checkpoint(2, 5, 0, frozenset((A, B)))
    for subtask in (A, B):
        two.ack(ack(2, subtask, ended=True), 1_100)
    assert two.all_ended
