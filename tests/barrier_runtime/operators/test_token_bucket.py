"""Token bucket: never more than the rate, and no less than the rate while tokens are wanted."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.operators.token_bucket import TokenBucket, check_rate
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

SECOND_NS = 1_000_000_000
BEGAN_NS = 1_800_000_000 * SECOND_NS  # beyond the whole numbers of a float
RATES = st.one_of(st.floats(0.01, 10.0), st.floats(10.0, 1e6), st.integers(1, 10_000_000).map(float))


@given(RATES, st.integers(1, 7), st.lists(st.tuples(st.integers(0, 2 * SECOND_NS), st.integers(1, 1_000_000))))
@examples(200)
def test_no_time_has_more_tokens_than_the_rate_and_a_short_burst(
    rate: float, users: int, turns: list[tuple[int, int]]
) -> None:
    bucket, now_ns = TokenBucket(rate, users), BEGAN_NS
    taken: list[tuple[int, int]] = []
    for pause_ns, wanted in turns:
        now_ns += pause_ns
        tokens = min(wanted, bucket.tokens(now_ns))
        bucket.take(tokens)
        taken.append((now_ns, tokens))
    share = Fraction(rate) / users
    burst = share / 10 + 2
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            seconds = Fraction(taken[last][0] - taken[first][0], SECOND_NS)
            assert sum(tokens for _, tokens in taken[first : last + 1]) <= seconds * share + burst


@given(RATES, st.integers(1, 7), st.integers(1, 200))
@examples(100)
def test_a_user_who_comes_when_tokens_are_due_gets_the_whole_rate(rate: float, users: int, turns: int) -> None:
    bucket, now_ns, taken = TokenBucket(rate, users), BEGAN_NS, 0
    for _ in range(turns):
        tokens = bucket.tokens(now_ns)
        assert tokens > 0
        bucket.take(tokens)
        taken += tokens
        due_ns = bucket.due_ns()
        assert due_ns is not None
        assert due_ns > now_ns
        assert bucket.tokens(due_ns - 1) == 0
        now_ns = due_ns
    seconds, share = Fraction(now_ns - BEGAN_NS, SECOND_NS), Fraction(rate) / users
    portion = max(1, int(share / 100))
    assert seconds * share - portion - 1 <= taken <= seconds * share + 1


def test_the_first_token_is_there_at_once_and_the_next_after_a_period() -> None:
    bucket = TokenBucket(0.5)
    assert bucket.due_ns() is None
    assert bucket.tokens(BEGAN_NS) == 1
    bucket.take(1)
    assert bucket.due_ns() == BEGAN_NS + 2 * SECOND_NS


def test_further_users_take_their_share_from_then_on() -> None:
    bucket = TokenBucket(1_000)
    bucket.take(bucket.tokens(BEGAN_NS))
    bucket.share_with(4, BEGAN_NS)
    assert bucket.tokens(BEGAN_NS + SECOND_NS // 10) == 25
    bucket.share_with(4, BEGAN_NS + SECOND_NS // 10)
    assert bucket.tokens(BEGAN_NS + SECOND_NS // 10) == 25, "no change, and nothing lost"


COSTS = st.lists(st.tuples(st.integers(0, 2 * SECOND_NS), st.integers(0, 1_000)), min_size=1, max_size=30)


@given(RATES, st.integers(1, 7), st.sampled_from([0, Fraction(1, 10), 60]), COSTS)
@examples(200)
def test_calls_spend_no_more_than_rate_burst_and_one_call(
    rate: float, users: int, burst_s: Fraction, calls: list[tuple[int, int]]
) -> None:
    bucket, now_ns = TokenBucket(rate, users, Fraction(burst_s)), BEGAN_NS
    begun: list[tuple[int, int]] = []
    for pause_ns, cost in calls:
        now_ns += pause_ns
        if not bucket.ready(now_ns, cost):
            due_ns = bucket.due_ns(cost)
            assert due_ns is not None
            assert not bucket.ready(due_ns - 1, cost)
            now_ns = due_ns
        assert bucket.ready(now_ns, cost)
        bucket.take(cost)
        begun.append((now_ns, cost))
    share = Fraction(rate) / users
    most = share * Fraction(burst_s) + 2 + max(cost for _, cost in calls)
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            seconds = Fraction(begun[last][0] - begun[first][0], SECOND_NS)
            assert sum(cost for _, cost in begun[first : last + 1]) <= seconds * share + most


@given(RATES, st.lists(st.integers(1, 1_000), min_size=1, max_size=50))
@examples(100)
def test_calls_that_begin_when_they_are_due_get_the_whole_rate(rate: float, costs: list[int]) -> None:
    bucket, now_ns = TokenBucket(rate), BEGAN_NS
    for cost in costs:
        if not bucket.ready(now_ns, cost):
            now_ns = bucket.due_ns(cost) or 0
        bucket.take(cost)
    earned = Fraction(now_ns - BEGAN_NS, SECOND_NS) * Fraction(rate)
    assert earned - max(1, Fraction(rate) / 10) - 2 <= sum(costs[:-1]) + min(costs[-1], Fraction(rate) / 10 + 1)


def test_a_clock_that_jumps_gives_a_burst_at_most_and_stops_nothing() -> None:
    bucket, day_ns = TokenBucket(10), 86_400 * SECOND_NS
    bucket.take(bucket.tokens(BEGAN_NS))
    assert bucket.tokens(BEGAN_NS + day_ns) == 1
    bucket.take(1)
    assert bucket.tokens(BEGAN_NS) == 0
    assert bucket.due_ns() == BEGAN_NS + SECOND_NS // 10
    assert bucket.tokens(BEGAN_NS + SECOND_NS // 10) == 1


@pytest.mark.parametrize("rate", [0, -1, True, "5", float("inf"), float("nan")])
def test_a_rate_is_a_finite_number_above_zero(rate: object) -> None:
    with pytest.raises(InvalidJob, match=r"max_rows_per_second=.*: give a number above 0, or None for no limit"):
        check_rate(rate, "max_rows_per_second")
