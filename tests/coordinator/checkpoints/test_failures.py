"""Countable failures, and the delay before the next generation."""

import re

import pytest

from barrier_runtime.coordinator.checkpoints.failures import Cause, FailureCounter, FailureVerdict, RestartPolicy
from barrier_runtime.coordinator.wire.messages import RestartOptions

COUNTED = (Cause.DECLINED, Cause.EXPIRED, Cause.NOT_STORED)


@pytest.mark.parametrize("cause", COUNTED)
def test_the_third_consecutive_failure_is_one_too_many_for_a_tolerance_of_two(cause):
    """C11: testContinuousFailure."""
    counter = FailureCounter(tolerable=2)
    assert [counter.failed(n, cause) for n in (1, 2, 3)] == [FailureVerdict.TOLERATED] * 2 + [FailureVerdict.EXCEEDED]


def test_a_success_resets_the_count():
    """C11: testBreakContinuousFailure."""
    counter = FailureCounter(tolerable=2)
    counter.failed(1, Cause.DECLINED)
    counter.failed(2, Cause.DECLINED)
    counter.completed(3)
    assert [counter.failed(n, Cause.EXPIRED) for n in (4, 5, 6)] == [FailureVerdict.TOLERATED] * 2 + [
        FailureVerdict.EXCEEDED
    ]


def test_one_id_counts_once():
    """C11: testIgnoreOneCheckpointRepeatedlyCountMultiTimes."""
    counter = FailureCounter(tolerable=2)
    assert {counter.failed(1, Cause.DECLINED) for _ in range(10)} == {FailureVerdict.TOLERATED}
    assert [counter.failed(n, Cause.DECLINED) for n in (2, 3)] == [FailureVerdict.TOLERATED, FailureVerdict.EXCEEDED]


def test_failures_of_checkpoints_older_than_the_last_success_do_not_count():
    """C11: testIgnoresPastCheckpoints."""
    counter = FailureCounter(tolerable=0)
    counter.completed(5)
    assert counter.failed(4, Cause.DECLINED) is FailureVerdict.TOLERATED
    assert counter.failed(6, Cause.DECLINED) is FailureVerdict.EXCEEDED


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in COUNTED])
def test_what_a_checkpoint_is_not_to_blame_for_does_not_count(cause):
    """C11: failover reasons."""
    counter = FailureCounter(tolerable=0)
    assert {counter.failed(n, cause) for n in range(1, 50)} == {FailureVerdict.TOLERATED}


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


def test_attempts_are_counted_anew_after_lasting_progress():
    restarts = policy(max_attempts=2)
    assert [restarts.delay_ms(0), restarts.delay_ms(0)] == [0, 100]
    restarts.running(1_000)
    restarts.checkpoint_completed()
    assert [restarts.delay_ms(1_500) for _ in range(3)] == [0, 100, None]


# ---------------------------------------------------------------- the other strategies


def test_without_restarts_the_first_failure_ends_the_job():
    assert policy(strategy="none").delay_ms(0) is None


def test_a_fixed_delay_pauses_the_same_time_and_never_forgets():
    """As in Flink: the attempts are those of the whole run, whatever was completed in between."""
    restarts = policy(strategy="fixed_delay", initial_ms=700, max_attempts=3)
    said = []
    for moment in range(4):
        said.append(restarts.delay_ms(moment * 1_000_000))
        restarts.running(moment * 1_000_000)
        restarts.checkpoint_completed()
    assert said == [700, 700, 700, None]
    assert {policy(strategy="fixed_delay").delay_ms(0) for _ in range(100)} == {100}, "None: without end"


@pytest.mark.parametrize(
    ("failures_at", "said"),
    [
        ((0, 10, 20), [50, 50, None]),
        ((0, 10, 1_000), [50, 50, 50]),  # the checkpoint at 0 is a whole interval ago
        ((0, 10, 999), [50, 50, None]),
        ((0, 500, 1_000, 1_500, 2_000), [50] * 5),
        ((0, 500, 1_000, 1_400), [50, 50, 50, None]),
    ],
)
def test_more_failures_than_the_rate_allows_end_the_job(failures_at, said):
    restarts = policy(strategy="failure_rate", initial_ms=50, max_failures=2, interval_ms=1_000)
    assert [restarts.delay_ms(moment) for moment in failures_at] == said


# ---------------------------------------------------------------- jitter


def jittered(seed, jitter=0.5):
    options = RestartOptions(initial_ms=100, max_ms=10_000, multiplier=3.0, jitter=jitter)
    restarts = RestartPolicy(options, seed)
    return [restarts.delay_ms(0) for _ in range(7)]


def test_jitter_is_the_same_for_the_same_job_and_run_and_differs_between_them():
    assert jittered("flights/run-1") == jittered("flights/run-1")
    assert len({tuple(jittered(f"flights/run-{number}")) for number in range(20)}) == 20


def test_jitter_stays_within_its_part_of_the_pause_and_within_first_and_longest():
    plain = jittered("", jitter=0.0)
    assert plain == [0, 100, 300, 900, 2_700, 8_100, 10_000]
    spread: set[float] = set()
    for number in range(200):
        for base, pause in zip(plain[1:], jittered(f"job-{number}")[1:], strict=True):
            assert max(100, base // 2) <= pause <= min(10_000, base * 3 // 2)
            spread.add(round(pause / base, 1))
    assert {0.5, 0.7, 1.0, 1.2, 1.5} <= spread, "both ends and the middle occur"


# ---------------------------------------------------------------- reports at the end


@pytest.mark.parametrize(
    ("options", "failures", "said"),
    [
        ({"strategy": "none"}, 1, "restart strategy none: the first failure ends the job: remove the cause"),
        (
            {"strategy": "fixed_delay", "max_attempts": 2},
            3,
            r"fixed_delay: failed 3 times in this run, of 2 allowed restarts: .* raise restart_attempts",
        ),
        (
            {"strategy": "exponential_delay", "max_attempts": 1},
            2,
            r"exponential_delay: failed 2 times in a row, of 1 allowed restart: .* raise restart_attempts",
        ),
        (
            {"strategy": "failure_rate", "max_failures": 2, "interval_ms": 5_000},
            3,
            r"failure_rate: 3 failures within 5 s, 2 are allowed: .* raise restart_failures",
        ),
    ],
)
def test_the_strategy_that_ended_the_job_is_named_with_the_remedy(options, failures, said):
    restarts = policy(**options)
    assert [restarts.delay_ms(moment) for moment in range(failures)][-1] is None
    assert re.search(said, restarts.exhausted())


# ---------------------------------------------------------------- servers that do not answer


def test_a_server_that_does_not_answer_uses_up_no_attempts_of_the_exponential_delay():
    restarts = policy(max_attempts=2)
    assert [restarts.delay_ms(0, unavailable=True) for _ in range(100)][-1] == 1_000
    assert restarts.wait_limit_ms is None
    assert [restarts.delay_ms(0), restarts.delay_ms(0), restarts.delay_ms(0)] == [1_000, 1_000, None]


def test_no_restart_at_all_waits_for_no_server_either():
    restarts = policy(max_attempts=0)
    assert restarts.delay_ms(0, unavailable=True) is None
    assert restarts.wait_limit_ms == 0


@pytest.mark.parametrize(
    ("options", "wait_limit_ms"),
    [
        ({"strategy": "none"}, 0),
        ({"strategy": "fixed_delay", "initial_ms": 2_000, "max_attempts": 30}, 60_000),
        ({"strategy": "fixed_delay", "max_attempts": None}, None),
        ({"strategy": "failure_rate", "interval_ms": 5_000}, 5_000),
    ],
)
def test_other_strategies_say_how_long_a_server_is_waited_for(options, wait_limit_ms):
    restarts = policy(**options)
    assert restarts.wait_limit_ms == wait_limit_ms
    assert f"strategy {options['strategy']} waits" in restarts.impatient()


def test_the_other_strategies_count_a_server_that_does_not_answer_as_any_failure():
    restarts = policy(strategy="fixed_delay", max_attempts=2)
    assert [restarts.delay_ms(0, unavailable=True) for _ in range(3)] == [100, 100, None]
    assert policy(strategy="none").delay_ms(0, unavailable=True) is None
