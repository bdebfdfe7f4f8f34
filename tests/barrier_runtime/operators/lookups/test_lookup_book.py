"""Interleavings of a lookup's pending requests: replies in any order, late, twice, never and with errors; snapshots at
any point, restored at another parallelism. Each row has exactly one result; no watermark overtakes a row.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import Cache, InvalidJob, RateLimit, Retry, UserCodeError
from barrier_runtime.data.elements import WATERMARK_MIN
from barrier_runtime.operators.lookups.book import AT_ONCE, Book, BookSettings, Failed, NoReply, Request
from barrier_runtime.operators.lookups.replies import KeptReplies
from tests.drawn import examples

PLAIN = BookSettings(capacity=4, most_keys=2, most_requests=3, linger_s=0.001, timeout_s=2.0)


def rows_of(effects: Any) -> list[tuple[int, Any]]:
    return [row for _, rows in effects.finished for row in rows]


def answered(request: Request) -> list[Any]:
    return [{"of": key} for key in request.keys]


class Driven:
    """Table of pending requests, and a model: rows, the watermarks between them, and finished rows."""

    def __init__(self, settings: BookSettings, keys: Sequence[Any] = ()) -> None:
        self.settings = settings
        self.book = Book(settings)
        self.keys: list[Any] = []
        self.marks: list[tuple[int, int]] = []  # (number of earlier rows, watermark)
        self.results: dict[int, Any] = {}
        self.order: list[int] = []
        self.open: dict[int, Request] = {}
        self.ended: list[Request] = []
        self.now_s = 0.0
        self.add(keys)

    def add(self, keys: Sequence[Any]) -> None:
        self.keys += keys
        self.book.add(list(keys))
        self.advance()

    def watermark(self) -> None:
        watermark_ms = len(self.marks)
        self.marks.append((len(self.keys), watermark_ms))
        self.book.watermark(watermark_ms)
        self.advance()

    def advance(self, by_s: float = 0.0) -> None:
        self.now_s += by_s
        effects = self.book.advance(self.now_s)
        for request in effects.give_up:
            self.ended.append(self.open.pop(request))
        for request in effects.send:
            assert len(set(request.keys)) == len(request.keys) <= self.settings.most_keys
            asked = {key for each in self.open.values() for key in each.keys}
            assert not asked & set(request.keys), "a key is asked for by one request at a time"
            self.open[request.id] = request
        assert len(self.open) <= self.settings.most_requests
        for reached_ms, rows in effects.finished:
            for number, result in rows:
                assert number not in self.results, f"row {number} was finished twice"
                assert reached_ms == self.mark_before(number), "rows stay between their watermarks"
                self.results[number] = result
                self.order.append(number)
        for before, watermark_ms in self.marks:
            if self.book.reached >= watermark_ms:
                assert set(range(before)) <= self.results.keys(), "a watermark overtook a row"
        if self.settings.ordered:
            assert self.order == sorted(self.order)
        assert self.book.held == len(self.keys) - len(self.results)
        assert self.book.has_room or self.book.held >= min(self.settings.capacity, 1)

    def mark_before(self, number: int) -> int:
        return max((ms for before, ms in self.marks if before <= number), default=WATERMARK_MIN)

    def reply(self, at: int) -> None:
        if self.open:
            request = self.open.pop(sorted(self.open)[at % len(self.open)])
            self.ended.append(request)
            self.book.replied(request.id, answered(request), self.now_s)
            self.advance()

    def raise_(self, at: int, error: Exception, for_one: bool) -> None:
        """Fails all keys of the request, or only the first key."""
        if self.open:
            request = self.open.pop(sorted(self.open)[at % len(self.open)])
            self.ended.append(request)
            if for_one:
                self.book.replied(request.id, [error, *answered(request)[1:]], self.now_s)
            else:
                self.book.failed(request.id, error, self.now_s)
            self.advance()

    def late(self, at: int) -> None:
        """Delivers a reply or an error for a request that has already ended."""
        if self.ended:
            request = self.ended[at % len(self.ended)]
            before = self.book.counts.late
            if at % 2:
                self.book.replied(request.id, [{"of": "a late reply"}] * len(request.keys), self.now_s)
            else:
                self.book.failed(request.id, OSError("late"), self.now_s)
            assert self.book.counts.late == before + 1
            self.advance()

    def settle(self) -> None:
        """Answers all open requests before their timeouts."""
        while self.book.held:
            if self.open:
                self.reply(0)
            else:
                due_s = self.book.next_due_s()
                assert due_s is not None, "rows are held that nothing will finish"
                self.advance(max(0.0, due_s - self.now_s))


ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.sampled_from(["a", "b", "c", "d", "e", None]), min_size=1, max_size=6)),
    st.tuples(st.just("watermark")),
    st.tuples(st.just("reply"), st.integers(0, 5)),
    st.tuples(st.just("raise"), st.integers(0, 5), st.booleans(), st.booleans()),
    st.tuples(st.just("late"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.sampled_from([0.0005, 0.001, 0.1, 2.0])),
)
SETTINGS = st.builds(
    BookSettings,
    capacity=st.integers(1, 5),
    most_keys=st.integers(1, 3),
    most_requests=st.integers(1, 4),
    linger_s=st.sampled_from([0.0, 0.001]),
    timeout_s=st.just(2.0),
    ordered=st.booleans(),
    retry=st.sampled_from([None, Retry(2, timedelta(seconds=0.1), (OSError, TimeoutError))]),
    cache=st.sampled_from([None, Cache(2), Cache(9, timedelta(seconds=1))]),
)


def play(driven: Driven, actions: Sequence[tuple[Any, ...]]) -> None:
    for what, *values in actions:
        if what == "add":
            driven.add(values[0])
        elif what == "watermark":
            driven.watermark()
        elif what == "reply":
            driven.reply(values[0])
        elif what == "raise":
            driven.raise_(values[0], OSError("away") if values[1] else KeyError("broken"), values[2])
        elif what == "late":
            driven.late(values[0])
        else:
            driven.advance(values[0])


def check_results(driven: Driven) -> None:
    assert sorted(driven.results) == list(range(len(driven.keys)))
    for number, result in driven.results.items():
        key = driven.keys[number]
        if key is None:
            assert result is None
        else:
            assert isinstance(result, Failed) or result == {"of": key}


@pytest.mark.slow
@examples(300)
@given(SETTINGS, st.lists(ACTIONS, max_size=60))
def test_each_row_has_one_result_whatever_becomes_of_the_requests(
    settings: BookSettings, actions: list[tuple[Any, ...]]
) -> None:
    driven = Driven(settings)
    play(driven, actions)
    driven.settle()
    check_results(driven)
    if driven.marks:
        assert driven.book.reached == driven.marks[-1][1]


@pytest.mark.slow
@examples(200)
@given(SETTINGS, st.lists(ACTIONS, max_size=40), st.integers(1, 3), st.lists(ACTIONS, max_size=20))
def test_what_is_held_is_asked_for_anew_after_a_restore(
    settings: BookSettings, before: list[tuple[Any, ...]], parallelism: int, after: list[tuple[Any, ...]]
) -> None:
    """A restore needs exactly the unfinished rows; they are looked up first, and at most `capacity` are open."""
    driven = Driven(settings)
    play(driven, before)
    left = [number for number in range(len(driven.keys)) if number not in driven.results]
    for subtask in range(parallelism):
        mine = left[subtask::parallelism]
        restored = Driven(settings, [driven.keys[number] for number in mine])
        play(restored, after)
        restored.settle()
        check_results(restored)


def test_keys_gather_for_a_moment_and_rows_of_one_key_share_a_request():
    driven = Driven(PLAIN, ["a", "a"])
    assert driven.open == {}
    assert driven.book.next_due_s() == 0.001
    driven.add(["b"])  # a request is full
    (request,) = driven.open.values()
    assert request.keys == ("a", "b")
    driven.add(["a"])
    assert len(driven.open) == 1
    driven.reply(0)
    assert driven.results == {number: {"of": key} for number, key in enumerate("aaba")}


def test_lookups_at_full_capacity_have_no_room_and_further_rows_wait():
    driven = Driven(PLAIN, list("abcdef"))
    assert not driven.book.has_room
    assert sorted(key for request in driven.open.values() for key in request.keys) == list("abcd")
    driven.reply(0)
    assert sorted(key for request in driven.open.values() for key in request.keys) == list("cdef")
    assert not driven.book.has_room
    driven.reply(0)
    assert driven.book.has_room


def test_timed_out_attempt_is_repeated_and_its_late_reply_is_ignored():
    settings = replace(PLAIN, retry=Retry(1, timedelta(seconds=0.5)))
    driven = Driven(settings, ["a", "b"])
    driven.advance(2.0)
    assert driven.open == {}
    assert driven.ended[0].keys == ("a", "b")
    assert driven.book.next_due_s() == 2.5
    driven.advance(0.5)
    driven.late(1)
    assert driven.results == {}
    driven.reply(0)
    check_results(driven)
    counts = driven.book.counts
    assert (counts.requests, counts.timeouts, counts.retries, counts.late) == (2, 1, 1, 1)


def test_pauses_between_attempts_double_and_the_last_error_is_the_result():
    retry = Retry(2, timedelta(seconds=1), (OSError,))
    driven = Driven(replace(PLAIN, retry=retry), ["a", "b"])
    for pause_s in (1.0, 2.0):
        driven.raise_(0, OSError("away"), for_one=False)
        assert driven.book.next_due_s() == driven.now_s + pause_s
        driven.advance(pause_s)
    driven.raise_(0, OSError("still away"), for_one=False)
    failed = driven.results[0]
    assert isinstance(failed, Failed)
    assert (str(failed.error), failed.attempts, failed.is_transient) == ("still away", 3, True)


def test_an_error_that_is_not_declared_transient_is_not_repeated():
    driven = Driven(replace(PLAIN, retry=Retry(5, on=(OSError,))), ["a", "b"])
    driven.raise_(0, KeyError("no such column"), for_one=True)
    assert isinstance(driven.results[0], Failed)
    assert not driven.results[0].is_transient
    assert driven.results[1] == {"of": "b"}


def test_without_retry_a_timeout_is_the_result():
    driven = Driven(PLAIN, ["a", "b"])
    driven.advance(2.0)
    assert isinstance(driven.results[0].error, NoReply)
    assert driven.results[0].is_transient


def test_a_watermark_waits_for_the_rows_before_it_and_rows_behind_it_wait_for_it():
    driven = Driven(replace(PLAIN, most_keys=1), ["a"])
    driven.watermark()
    driven.add(["b"])
    driven.watermark()
    assert driven.book.reached == WATERMARK_MIN
    driven.reply(1)  # of b
    assert driven.results == {}
    driven.reply(0)
    assert driven.order == [0, 1]
    assert driven.book.reached == 1


def test_a_null_key_is_not_asked_for():
    driven = Driven(PLAIN, [None, None])
    assert driven.results == {0: None, 1: None}
    assert (driven.book.counts.requests, driven.book.counts.misses) == (0, 2)


def test_what_is_cached_is_not_asked_for_until_its_time_is_over():
    driven = Driven(replace(PLAIN, most_keys=1, cache=Cache(10, timedelta(seconds=1))), ["a"])
    driven.reply(0)
    driven.add(["a"])
    assert driven.results[1] == {"of": "a"}
    driven.advance(1.0)
    driven.add(["a"])
    assert len(driven.open) == 1
    assert (driven.book.counts.requests, driven.book.counts.cache_hits) == (2, 1)


def test_requests_repetitions_included_begin_at_the_given_rate():
    settings = BookSettings(100, 1, 100, 0.0, 1_000.0, retry=Retry(1, timedelta()), limits=(RateLimit(2.0),))
    driven = Driven(settings, list("abc"))
    assert [request.keys for request in driven.open.values()] == [("a",)]
    driven.raise_(0, OSError("reset"), for_one=False)
    begun = []
    for _ in range(3):
        due_s = driven.book.next_due_s()
        assert due_s is not None
        driven.advance(due_s - driven.now_s)
        begun.append((driven.now_s, driven.book.counts.requests))
    assert begun == [(0.5, 2), (1.0, 3), (1.5, 4)]
    assert sorted(request.keys for request in driven.open.values()) == [("a",), ("b",), ("c",)]


def test_subtasks_divide_the_requests_of_a_second():
    driven = Driven(BookSettings(100, 1, 100, 0.0, 1_000.0, limits=(RateLimit(2.0),)))
    driven.book.share_limits(subtasks=4)
    driven.add(["a", "b"])
    assert driven.book.counts.requests == 1
    assert driven.book.next_due_s() == 2.0


PRICED = BookSettings(100, 2, 100, 0.0, 1_000.0)
BY_LENGTH = RateLimit(60, per=60, cost=lambda keys: sum(map(len, keys)))  # a token per second and letter


def begun(driven: Driven, calls: int) -> list[tuple[float, tuple[Any, ...]]]:
    """Times and keys of the next calls, each at the time that the book names."""
    found = []
    for _ in range(calls):
        before = set(driven.open)
        due_s = driven.book.next_due_s()
        assert due_s is not None
        driven.advance(due_s - driven.now_s)
        found += [(driven.now_s, request.keys) for id, request in driven.open.items() if id not in before]
    return found


def test_a_call_waits_until_its_tokens_have_come() -> None:
    driven = Driven(replace(PRICED, limits=(replace(BY_LENGTH, burst=10),)), ["aaa", "bb", "c", "dddd", "e"])
    assert [request.keys for request in driven.open.values()] == [("aaa", "bb")], "the first call does not wait"
    assert begun(driven, 2) == [(9.0, ("c", "dddd")), (10.0, ("e",))]


def test_a_call_that_costs_more_than_the_bucket_holds_is_sent_and_later_calls_pay() -> None:
    driven = Driven(replace(PRICED, most_keys=1, limits=(BY_LENGTH,)), ["a", "b" * 500, "c", "d"])
    assert begun(driven, 3) == [(1.0, ("b" * 500,)), (501.0, ("c",)), (502.0, ("d",))]


def test_subtasks_divide_the_tokens_and_a_rescale_keeps_the_total() -> None:
    for subtasks in (1, 2, 5):
        driven = Driven(replace(PRICED, most_keys=1, limits=(BY_LENGTH,)))
        driven.book.share_limits(subtasks=subtasks)
        driven.add([f"{n:03}" for n in range(20)])
        assert [time_s for time_s, _ in begun(driven, 3)] == [3.0 * subtasks * n for n in (1, 2, 3)]


def test_the_reply_tells_what_a_call_has_cost() -> None:
    limit = RateLimit(1, cost=10, reply_cost=len)
    driven = Driven(replace(PRICED, most_keys=1, limits=(limit,)), list("abcd"))
    (first,) = driven.open
    driven.book.replied(first, answered(driven.open.pop(first)), 0.0, [4])
    assert [time_s for time_s, _ in begun(driven, 1)] == [4.0], "6 tokens were given back"
    second = max(driven.open)
    driven.book.replied(second, answered(driven.open.pop(second)), driven.now_s, [25])
    assert [time_s for time_s, _ in begun(driven, 1)] == [29.0], "15 more were taken"
    driven.book.failed(max(driven.open), OSError("reset"), driven.now_s)
    assert [time_s for time_s, _ in begun(driven, 1)] == [39.0], "a failed call has cost what was expected"


def test_every_limit_holds_and_a_waiting_call_is_not_overtaken_by_a_cheaper_one() -> None:
    limits = (RateLimit(1, per=2), replace(BY_LENGTH, burst=60))
    settings = replace(PRICED, most_keys=1, limits=limits, retry=Retry(1, timedelta()))
    driven = Driven(settings, ["a" * 30, "b", "c"])
    driven.raise_(0, OSError("reset"), for_one=False)
    assert begun(driven, 3) == [(59.0, ("a" * 30,)), (60.0, ("b",)), (62.0, ("c",))]


def test_a_waiting_request_takes_further_keys_and_is_priced_again() -> None:
    asked: list[int] = []

    def cost(keys: list[str]) -> int:
        asked.append(len(keys))
        return 10 * len(keys)

    driven = Driven(replace(PRICED, most_keys=3, limits=(RateLimit(1, cost=cost, burst=100),)), ["a"])
    driven.add(["b"])
    driven.add(["c"])
    driven.advance(1.0)
    driven.advance(1.0)
    assert asked == [1, 1, 2]
    assert begun(driven, 1) == [(29.0, ("b", "c"))]


@pytest.mark.parametrize("wrong", [-1, 1.5, "5", None, True])
def test_a_cost_that_is_no_whole_number_names_function_and_step(wrong: Any) -> None:
    driven = Driven(replace(PRICED, limits=(RateLimit(1, cost=lambda keys: wrong),)))
    driven.book.share_limits("names")
    with pytest.raises(InvalidJob, match=r"cost=.* of a RateLimit returned .*: use a whole number(.|\n)*'names'"):
        driven.add(["a"])


def test_what_a_cost_raises_names_function_and_step() -> None:
    driven = Driven(replace(PRICED, limits=(RateLimit(1, cost=lambda keys: keys[5]),)))
    driven.book.share_limits("names")
    with pytest.raises(UserCodeError, match=r"cost=.* of a RateLimit of operator 'names'.*IndexError"):
        driven.add(["a"])


@pytest.mark.slow
def test_a_large_reply_is_freed_by_parts() -> None:
    """Freeing a million keys at once would hold the loop longer than all parts."""
    count = 2 * AT_ONCE + 3
    book = Book(replace(PLAIN, capacity=count, most_keys=count))
    book.add(range(count))
    (request,) = book.advance(0.0).send
    results = deque(answered(request))
    book.replied(request.id, results, 0.0)
    left, finished = [len(results)], rows_of(book.advance(0.0))
    while book.more:
        finished += rows_of(book.advance(0.0))
        left.append(len(results))
    assert left == [count - AT_ONCE, 3, 0]
    assert [result["of"] for _, result in finished] == list(range(count))


def test_the_cache_drops_what_was_used_longest_ago_and_knows_misses():
    kept = KeptReplies(Cache(2))
    kept.put("a", None, 0.0)
    kept.put("b", 2, 0.0)
    assert kept.get("a", 1.0, "unknown") is None
    kept.put("c", 3, 0.0)
    assert [kept.get(key, 1.0, "unknown") for key in "abc"] == [None, "unknown", 3]
    assert len(kept) == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Retry(0), "repetitions"),
        (lambda: Retry(True), "repetitions"),
        (lambda: Retry(1, timedelta(seconds=-1)), "not negative"),
        (lambda: Retry(1, on=(KeyboardInterrupt,)), "exception types"),  # type: ignore[arg-type]
        (lambda: Retry(1, on=()), "exception types"),
        (lambda: Cache(0), "1 or more"),
        (lambda: Cache(5, timedelta()), "positive"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(make: Any, says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        make()
