"""Which failures count, and how long to wait before the next generation."""

import pytest

from coordinator.failures import Cause, FailureCounter, RestartPolicy, Verdict
from coordinator.messages import RestartOptions

COUNTED = (Cause.DECLINED, Cause.EXPIRED, Cause.NOT_STORED)


@pytest.mark.parametrize("cause", COUNTED)
def test_the_third_consecutive_failure_is_one_too_many_for_a_tolerance_of_two(cause):
    """C11: testContinuousFailure."""
    counter = FailureCounter(tolerable=2)
    assert [counter.failed(n, cause) for n in (1, 2, 3)] == [Verdict.TOLERATED] * 2 + [Verdict.EXCEEDED]


def test_a_success_resets_the_count():
    """C11: testBreakContinuousFailure."""
    counter = FailureCounter(tolerable=2)
    counter.failed(1, Cause.DECLINED)
    counter.failed(2, Cause.DECLINED)
    counter.completed(3)
    assert [counter.failed(n, Cause.EXPIRED) for n in (4, 5, 6)] == [Verdict.TOLERATED] * 2 + [Verdict.EXCEEDED]


def test_one_id_counts_once():
    """C11: testIgnoreOneCheckpointRepeatedlyCountMultiTimes."""
    counter = FailureCounter(tolerable=2)
    assert {counter.failed(1, Cause.DECLINED) for _ in range(10)} == {Verdict.TOLERATED}
    assert counter.consecutive == 1


def test_failures_of_checkpoints_older_than_the_last_success_do_not_count():
    """C11: testIgnoresPastCheckpoints."""
    counter = FailureCounter(tolerable=0)
    counter.completed(5)
    assert counter.failed(4, Cause.DECLINED) is Verdict.TOLERATED
    assert counter.failed(6, Cause.DECLINED) is Verdict.EXCEEDED


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in COUNTED])
def test_what_a_checkpoint_is_not_to_blame_for_does_not_count(cause):
    """C11: failover reasons."""
    counter = FailureCounter(tolerable=0)
    assert {counter.failed(n, cause) for n in range(1, 50)} == {Verdict.TOLERATED}


def policy(**changes):
    return RestartPolicy(RestartOptions(**{"initial_ms": 100, "max_ms": 1_000, "reset_after_ms": 500, **changes}))


def test_the_first_restart_is_immediate_and_later_ones_back_off_to_a_cap():
    restarts = policy()
    assert [restarts.delay_ms(0) for _ in range(7)] == [0, 100, 200, 400, 800, 1_000, 1_000]


def test_progress_and_a_quiet_time_forget_the_past():
    restarts = policy()
    restarts.delay_ms(0)
    restarts.delay_ms(0)
    restarts.running(1_000)
    restarts.checkpoint_completed()
    assert restarts.delay_ms(1_500) == 0


def test_neither_time_alone_nor_progress_alone_forgets():
    restarts = policy()
    restarts.delay_ms(0)
    restarts.running(1_000)
    assert restarts.delay_ms(99_000) == 100, "no checkpoint completed"
    restarts.running(100_000)
    restarts.checkpoint_completed()
    assert restarts.delay_ms(100_499) == 200, "not long enough"


def test_a_limit_on_attempts_ends_the_job():
    restarts = policy(max_attempts=2)
    assert [restarts.delay_ms(0) for _ in range(3)] == [0, 100, None]


def test_a_thousand_restarts_stay_at_the_cap():
    restarts = policy()
    assert [restarts.delay_ms(0) for _ in range(1_000)][-1] == 1_000
