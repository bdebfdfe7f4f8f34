"""Rounds of fetching before a job moves: the last one leaves little, and there is a last one however slots fetch."""

from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.coordinator.job.fetching_ahead import FetchingAhead, Next


def test_a_slot_that_has_the_newest_and_fresh_checkpoint_needs_no_other_round():
    ahead = FetchingAhead()
    assert ahead.next(0, 7, 200) is Next.WAIT
    assert ahead.next(7, 7, 300) is Next.STOP


def test_an_old_checkpoint_is_followed_by_one_that_is_taken_for_the_move():
    ahead = FetchingAhead()
    assert ahead.next(7, 7, 301) is Next.CHECKPOINT
    ahead.taken(8)
    assert ahead.next(7, 7, 400) is Next.WAIT, "it is not asked for twice"
    assert ahead.next(7, 8, 10) is Next.WAIT
    assert ahead.next(8, 8, 4_000) is Next.STOP, "on a busy machine the next one would be as old"


def test_a_checkpoint_under_way_is_fetched_too_and_no_other_is_taken_behind_it():
    ahead = FetchingAhead()
    assert ahead.next(7, 7, 10, under_way=True) is Next.CHECKPOINT
    ahead.taken(8)
    assert not ahead.holds_others(7)
    assert ahead.next(7, 8, 0) is Next.WAIT
    assert ahead.holds_others(8)
    assert ahead.next(8, 8, 0) is Next.STOP


def test_what_was_decided_while_slots_fetched_is_fetched_before_the_sources_stop():
    ahead = FetchingAhead()
    ahead.next(0, 7, 10)
    assert ahead.next(7, 12, 10) is Next.WAIT
    assert ahead.next(11, 13, 10) is Next.WAIT
    assert ahead.next(13, 13, 10) is Next.STOP


def test_time_that_is_over_ends_any_round_but_the_first():
    ahead = FetchingAhead()
    assert ahead.next(6, 7, 10, late=True) is Next.WAIT, "a move would stop the job for as long as the fetch takes"
    assert ahead.next(7, 9, 10) is Next.WAIT
    assert ahead.next(7, 9, 10, late=True) is Next.STOP


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2_000), st.booleans()), min_size=30, max_size=30))
def test_checkpoints_that_come_quicker_than_they_can_be_fetched_do_not_hold_the_move_for_ever(steps):
    """Each step: so many checkpoints are decided, the last one so long ago, another may be under way, and slots have
    what was newest before."""
    ahead, newest = FetchingAhead(), 1
    for more, age_ms, under_way in steps:
        fetched, newest = newest, newest + more
        match ahead.next(fetched, newest, age_ms, under_way):
            case Next.STOP:
                return
            case Next.CHECKPOINT:
                ahead.taken(newest + 1)
    raise AssertionError(f"{ahead} after {len(steps)} rounds")
