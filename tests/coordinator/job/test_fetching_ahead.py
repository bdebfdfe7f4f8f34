"""Rounds of fetching before a job moves: the last round leaves little to fetch, and the rounds always end."""

from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.coordinator.job.rescaling import FetchingAhead, Next


def test_when_all_slots_have_fetched_and_rest_a_checkpoint_is_taken_for_the_move():
    """The newest checkpoint lacks files that were compacted while the checkpoint was taken, however fresh it is."""
    ahead = FetchingAhead()
    assert ahead.next(0, 7) is Next.WAIT
    assert ahead.next(7, 7) is Next.CHECKPOINT
    ahead.taken(8)
    assert ahead.next(7, 7) is Next.WAIT, "it is not asked for twice"
    assert ahead.next(7, 8) is Next.WAIT
    assert ahead.next(8, 8) is Next.STOP


def test_one_that_was_under_way_when_slots_came_to_rest_is_not_the_last():
    ahead = FetchingAhead()
    assert ahead.next(7, 7) is Next.CHECKPOINT
    ahead.taken(9)
    assert ahead.next(8, 8) is Next.WAIT
    assert not ahead.holds_others(8)
    assert ahead.next(8, 9) is Next.WAIT
    assert ahead.holds_others(9)
    assert ahead.next(9, 9) is Next.STOP


def test_what_was_decided_while_slots_fetched_is_fetched_before_the_last_round():
    ahead = FetchingAhead()
    ahead.next(0, 7)
    assert ahead.next(7, 12) is Next.WAIT
    assert ahead.next(11, 13) is Next.WAIT
    assert ahead.next(13, 13) is Next.CHECKPOINT


def test_time_that_is_over_ends_any_round_but_the_first():
    ahead = FetchingAhead()
    assert ahead.next(6, 7, late=True) is Next.WAIT, "a move would stop the job for as long as the fetch takes"
    assert ahead.next(7, 9) is Next.WAIT
    assert ahead.next(7, 9, late=True) is Next.STOP


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=30, max_size=30))
def test_a_move_takes_its_last_checkpoint_once_all_rest_and_does_not_wait_for_ever(steps):
    """Each step: number of checkpoints decided in the step, and of checkpoints under way when the move requests another
    checkpoint, whose id follows theirs. Slots have fetched the checkpoint that was the newest before the step.
    """
    ahead, newest, asked, fetched = FetchingAhead(), 1, 0, 0
    for more, under_way in steps:
        if not ahead.holds_others(newest):
            fetched, newest = newest, newest + more
        else:
            fetched = newest
        match ahead.next(fetched, newest):
            case Next.STOP:
                assert 0 < asked <= fetched, "a checkpoint that began when all rested is fetched"
                return
            case Next.CHECKPOINT:
                assert not asked
                asked = newest + under_way + 1
                ahead.taken(asked)
    raise AssertionError(f"{ahead} after {len(steps)} rounds")
