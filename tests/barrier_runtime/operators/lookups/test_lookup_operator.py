"""The lookup operator under manual control: the test begins and ends calls and advances time."""

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import World

from barrier_runtime import Cache, InvalidJob, Retry, Unavailable, UserCodeError
from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.lookups.book import AT_ONCE, BookSettings
from barrier_runtime.operators.lookups.held_rows import HELD_VALUE, decode_held, encode_held
from barrier_runtime.operators.lookups.operator import MISSES, LookupOperator, LookupSettings
from barrier_runtime.operators.outputs.side_outputs import ERRORS
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.drawn import examples

ROWS = pa.schema([("user", pa.int64()), ("v", pa.int64())])
PROFILE = pa.schema([("name", pa.string()), ("age", pa.int64())])
BOOK = BookSettings(capacity=4, most_keys=2, most_requests=3, linger_s=0.0, timeout_s=2.0)


def profile(user: int) -> dict[str, Any] | None:
    """Returns the profile of a user; every third user has no profile."""
    return {"name": f"user {user}", "age": user * 10} if user % 3 else None


def by_list(keys: list[int]) -> Any:
    return [profile(key) for key in keys]


class Lines:
    """Executors that run their work when the test calls for a run."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self.waiting.append(run)

    def run(self, at: int = 0) -> None:
        self.waiting.pop(at % len(self.waiting))()


class Driven:
    def __init__(
        self,
        function: Any = by_list,
        book: BookSettings = BOOK,
        *,
        on: tuple[str, ...] = ("user",),
        how: Any = "left",
        on_error: Any = "fail",
        restored: tuple[OperatorSnapshot, ...] = (),
        subtask: int = 0,
        parallelism: int = 1,
    ) -> None:
        self.world = World(subtask=subtask, parallelism=parallelism)
        self.lines = Lines()
        self.now_s = 0.0
        self.woken = 0
        self.again = 0  # calls of the operator for a further turn
        self.batches: list[Batch] = []
        self.side: dict[str, list[Batch]] = {MISSES: [], ERRORS: []}
        self.emit = Emit(self.batches.append, {tag: [batches.append] for tag, batches in self.side.items()})
        self.operator = LookupOperator("profile", function, LookupSettings(on, PROFILE, book, how, on_error))
        context = replace(
            self.world.context("profile", restored),
            new_executor=lambda: self.lines,
            now_s=lambda: self.now_s,
            wake_from_thread=self._wake,
            wake=self._wake_again,
            call_later=lambda seconds, callback: None,
        )
        self.operator.open(context)

    def _wake(self) -> None:
        self.woken += 1

    def _wake_again(self) -> None:
        self.again += 1

    def feed(self, *users: int | None, first: int = 0) -> None:
        rows = [{"user": user, "v": first + at} for at, user in enumerate(users)]
        self.operator.process(Batch(pa.RecordBatch.from_pylist(rows, ROWS), 5), self.emit)

    def turn(self, by_s: float = 0.0) -> bool:
        self.now_s += by_s
        return self.operator.on_wall_clock(self.emit)

    def settle(self) -> None:
        while self.operator.unfinished:
            if self.lines.waiting:
                self.lines.run()
            self.turn(0.001)

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for batch in self.batches for row in batch.rows.to_pylist()]

    def side_rows(self, tag: str) -> list[dict[str, Any]]:
        return [row for batch in self.side[tag] for row in batch.rows.to_pylist()]

    def held(self) -> int:
        """Number of rows in a snapshot."""
        stored = self.snapshot().values.get(HELD_VALUE)
        return 0 if stored is None else sum(rows.num_rows for _, rows in decode_held(stored, "here"))

    def snapshot(self) -> OperatorSnapshot:
        return self.world.finish("profile", 1, self.operator.snapshot(1))


def completed(*pairs: tuple[int | None, int]) -> list[tuple[Any, ...]]:
    found = [(user, v, profile(user) if user is not None else None) for user, v in pairs]
    return [(user, v, each and each["name"], each and each["age"]) for user, v, each in found]


def test_columns_are_added_as_replies_come_and_the_slot_is_woken_for_them() -> None:
    driven = Driven()
    driven.feed(1, 2, 4)
    assert (driven.rows(), driven.woken) == ([], 0)
    driven.lines.run(1)
    assert (driven.rows(), driven.woken) == ([], 1)
    assert driven.turn()
    assert driven.rows() == completed((4, 2))
    driven.lines.run()
    driven.turn()
    assert driven.rows() == completed((4, 2), (1, 0), (2, 1))
    assert not driven.turn()
    assert driven.batches[0].schema == pa.schema([*ROWS, *PROFILE])


@pytest.mark.slow
def test_a_large_reply_is_handled_in_parts_with_room_for_a_barrier_between_them() -> None:
    users = range(1, 2 * AT_ONCE + 4)
    driven = Driven(book=replace(BOOK, capacity=len(users), most_keys=len(users)))
    driven.feed(*users)
    driven.lines.run()
    parts = []
    while driven.operator.unfinished:
        before, again = len(driven.rows()), driven.again
        assert driven.turn()
        parts.append(len(driven.rows()) - before)
        assert driven.again == again + (len(parts) < 3)
        assert driven.held() == len(users) - len(driven.rows())
    assert parts == [AT_ONCE, AT_ONCE, 3]
    assert driven.rows() == completed(*((user, at) for at, user in enumerate(users)))


def test_many_replies_of_one_turn_are_handled_in_parts() -> None:
    users = range(1, AT_ONCE + 5)
    driven = Driven(book=replace(BOOK, capacity=len(users), most_keys=1_024, most_requests=5))
    driven.feed(*users)
    while driven.lines.waiting:
        driven.lines.run()
    assert driven.turn()
    assert (len(driven.rows()), driven.again) == (AT_ONCE, 1)
    assert driven.turn()
    assert (len(driven.rows()), driven.again) == (len(users), 1)


def test_unmatched_rows_get_null_columns_or_are_dropped_or_go_to_their_own_output() -> None:
    for how, main, misses in (
        ("left", completed((1, 0), (3, 1), (None, 2)), []),
        ("inner", completed((1, 0)), []),
        ("side", completed((1, 0)), [{"user": 3, "v": 1}, {"user": None, "v": 2}]),
    ):
        driven = Driven(how=how)
        driven.feed(1, 3, None)
        driven.settle()
        assert sorted(driven.rows(), key=lambda row: row[1]) == main
        assert sorted(driven.side_rows(MISSES), key=lambda row: row["v"]) == misses
        assert driven.world.metrics.counts["lookup_misses"] == 2


@pytest.mark.parametrize(
    "reply",
    [
        by_list,
        lambda keys: tuple(by_list(keys)),
        lambda keys: {key: found for key in keys if (found := profile(key))} | {99: {"name": "not asked for"}},
        lambda keys: [found and {"user": key, **found} for key in keys for found in [profile(key)]],
        lambda keys: pa.Table.from_pylist(
            [{"user": key, **found} for key in reversed(keys) if (found := profile(key))],
            pa.schema([("user", pa.int64()), *PROFILE]),
        ),
    ],
)
def test_replies_are_lists_dicts_or_tables(reply: Any) -> None:
    driven = Driven(reply)
    driven.feed(1, 3, 2, 5)
    driven.settle()
    assert sorted(driven.rows()) == sorted(completed((1, 0), (3, 1), (2, 2), (5, 3)))


def test_several_columns_are_one_key() -> None:
    asked: list[Any] = []

    def fetch(keys: list[Any]) -> Any:
        asked.extend(keys)
        return pa.table({"v": [0], "user": [1], "name": ["found"], "age": [7]})

    driven = Driven(fetch, on=("user", "v"))
    driven.feed(1, 1, None)
    driven.settle()
    assert asked == [(1, 0), (1, 1)]
    assert sorted(driven.rows(), key=lambda row: row[1]) == [
        (1, 0, "found", 7),
        (1, 1, None, None),
        (None, 2, None, None),
    ]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ([], "a list of 0 for 2 keys"),
        (None, "gave NoneType"),
        ([1, 2], "gave 1 for the key 1"),
        ({"1": {"name": "x"}}, "a dict by others, such as '1'"),
        (pa.table({"name": ["x"]}), "without the key's column 'user'"),
        (pa.table({"user": [1, 1], "name": ["x", "y"]}), "two rows of the key 1"),
        ([{"nme": "x"}, None], "has the column 'nme'"),
        ([{"age": "old"}, None], "column 'age' is int64, but a row has 'old'"),
    ],
)
def test_a_reply_of_another_shape_ends_the_job_and_says_how(reply: Any, says: str) -> None:
    driven = Driven(lambda keys: reply, on_error="skip", book=replace(BOOK, retry=Retry(3)))
    driven.feed(1, 2)
    with pytest.raises(InvalidJob, match=says):
        driven.settle()


def test_a_failure_that_is_not_transient_shows_function_key_and_record() -> None:
    driven = Driven(lambda keys: {}[keys[0]])
    driven.feed(7)
    with pytest.raises(UserCodeError, match=r"raised KeyError: 7\n  key: 7\n  record: .*'v': 0"):
        driven.settle()


def test_what_fails_for_good_though_it_is_transient_restarts_the_job() -> None:
    calls: list[Any] = []

    def fetch(keys: list[int]) -> Any:
        calls.append(keys)
        raise ConnectionError("refused")

    driven = Driven(fetch, replace(BOOK, retry=Retry(2, timedelta(), (OSError,))))
    driven.feed(7)
    with pytest.raises(Unavailable, match=r"failed 3 times, the last time with ConnectionError: refused"):
        driven.settle()
    assert calls == [[7], [7], [7]]
    assert driven.world.metrics.counts["lookup_retries"] == 2


def test_a_call_that_hangs_restarts_the_job_when_its_time_is_over() -> None:
    driven = Driven()
    driven.feed(7)
    assert not driven.turn(1.9)
    with pytest.raises(Unavailable, match=r"failed once, the last time with NoReply: no reply within 2 s"):
        driven.turn(0.1)


def fails_for_even(keys: list[int]) -> list[Any]:
    return [profile(key) if key % 2 else ValueError(f"no {key}") for key in keys]


def test_rows_that_fail_are_skipped_or_go_as_data_to_their_own_stream() -> None:
    driven = Driven(fails_for_even, on_error="side")
    driven.feed(1, 2, 5, 8)
    driven.settle()
    assert sorted(driven.rows()) == completed((1, 0), (5, 2))
    errors = sorted(driven.side_rows(ERRORS), key=lambda row: row["key"])
    assert [(row["key"], row["message"], row["row"]) for row in errors] == [
        ("2", "no 2", '{"user":2,"v":1}'),
        ("8", "no 8", '{"user":8,"v":3}'),
    ]
    assert driven.world.metrics.counts["error_rows"] == 2

    driven = Driven(fails_for_even, on_error="skip")
    driven.feed(1, 2, 5, 8)
    with pytest.warns(UserWarning, match="ValueError: no 2"):
        driven.settle()
    assert sorted(driven.rows()) == completed((1, 0), (5, 2))


def test_a_late_reply_gives_no_second_row() -> None:
    driven = Driven(book=replace(BOOK, retry=Retry(1, timedelta())))
    driven.feed(1, 2)
    late = driven.lines.waiting.pop()
    driven.turn(2.0)
    driven.lines.run()
    driven.turn()
    late()
    driven.turn()
    assert driven.rows() == completed((1, 0), (2, 1))
    counts = driven.world.metrics.counts
    assert (counts["lookup_timeouts"], counts["lookup_late_replies"], counts["lookup_rows"]) == (1, 1, 0)


def test_event_time_stands_between_rows_of_one_turn_as_it_came() -> None:
    driven = Driven()
    driven.feed(1)
    driven.operator.on_watermark(10, driven.emit)
    driven.feed(2, first=1)
    assert driven.operator.own_watermark() is None
    driven.lines.run(1)
    driven.turn()
    assert driven.rows() == []
    driven.lines.run()
    driven.turn()
    assert driven.rows() == completed((1, 0), (2, 1))
    first, second = driven.batches
    assert first.reached is None
    assert np.array_equal(second.reached, [10])  # type: ignore[arg-type]
    assert driven.operator.own_watermark() == 10


def test_event_time_of_each_row_stands_between_its_rows_also_after_a_restore() -> None:
    def fed() -> Driven:
        driven = Driven(book=replace(BOOK, most_keys=1))
        rows = pa.RecordBatch.from_pylist([{"user": user, "v": user} for user in (1, 2, 3)], ROWS)
        driven.operator.process(Batch(rows, 5, np.array([4, 9, 9])), driven.emit)
        return driven

    def reached(driven: Driven) -> list[int]:
        return [ms for batch in driven.batches for ms in np.asarray(batch.reached).tolist()]

    driven = fed()
    driven.settle()
    assert (reached(driven), driven.operator.own_watermark()) == ([4, 9, 9], 9)
    restored = Driven(book=replace(BOOK, most_keys=1), restored=(fed().snapshot(),))
    assert restored.operator.own_watermark() == 4
    restored.settle()
    assert (sorted(restored.rows()), reached(restored)) == (sorted(driven.rows()), [4, 9, 9])


def test_the_cache_is_asked_before_the_function() -> None:
    driven = Driven(book=replace(BOOK, cache=Cache(10)))
    driven.feed(1, 3)
    driven.settle()
    driven.feed(3, 1, first=2)
    assert sorted(driven.rows()) == sorted(completed((1, 0), (3, 1), (3, 2), (1, 3)))
    assert not driven.lines.waiting
    assert driven.world.metrics.counts["lookup_cache_hits"] == 2


def test_a_hanging_thread_does_not_keep_a_request_that_waited_for_it() -> None:
    """A request that timed out before the call began is never called."""
    called: list[Any] = []

    def fetch(keys: list[int]) -> Any:
        called.append(keys)
        return by_list(keys)

    driven = Driven(fetch, replace(BOOK, most_requests=1, most_keys=1), on_error="skip")
    driven.feed(1, 2)
    with pytest.warns(UserWarning, match="no reply within 2 s"):
        driven.turn(2.0)  # the first hangs; the second is sent, and no thread is free
    driven.turn(2.0)
    assert len(driven.lines.waiting) == 1
    driven.lines.run()
    driven.turn()
    assert (called, driven.rows()) == ([[1]], [])


@examples(60)
@given(
    st.lists(st.integers(0, 8), max_size=12),
    st.lists(st.integers(0, 3), max_size=6),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_rows_in_flight_are_restored_once_at_any_parallelism(
    users: Sequence[int], replies: Sequence[int], ordered: bool, before: int, after: int
) -> None:
    book = replace(BOOK, ordered=ordered)
    rows = list(enumerate(users))
    parts = [rows[subtask::before] for subtask in range(before)]
    emitted: list[tuple[Any, ...]] = []
    snapshots: list[OperatorSnapshot] = []
    for subtask, part in enumerate(parts):
        driven = Driven(book=book, subtask=subtask, parallelism=before)
        for number, user in part:
            driven.feed(user, first=number)
        for at in replies:
            if driven.lines.waiting:
                driven.lines.run(at)
                driven.turn()
        emitted += driven.rows()
        snapshots.append(driven.snapshot())
        while driven.lines.waiting:  # these replies arrive after the snapshot and are not part of the snapshot
            driven.lines.run()
            driven.turn(0.001)
    for subtask in range(after):
        restored = Driven(book=book, restored=tuple(snapshots), subtask=subtask, parallelism=after)
        assert (restored.rows(), restored.lines.waiting) == ([], [])
        restored.turn(0.001)
        assert len(restored.lines.waiting) <= 2, "no more than the capacity is asked for"
        restored.settle()
        if ordered and before == 1:
            assert restored.rows() == sorted(restored.rows(), key=lambda row: row[1])
        emitted += restored.rows()
    assert sorted(emitted, key=lambda row: row[1]) == completed(*((user, number) for number, user in rows))


def test_rows_of_a_batch_that_went_out_are_not_in_the_snapshot() -> None:
    driven = Driven()
    driven.feed(1, 2, 4, 5)  # two requests
    driven.lines.run(1)
    driven.turn()
    restored = Driven(restored=(driven.snapshot(),))
    restored.settle()
    assert driven.rows() == completed((4, 2), (5, 3))
    assert restored.rows() == completed((1, 0), (2, 1))


def test_a_snapshot_without_rows_in_flight_has_nothing() -> None:
    driven = Driven()
    driven.feed(1)
    assert driven.snapshot().values
    driven.settle()
    assert not driven.snapshot().values


def test_batches_of_several_schemas_are_stored_in_their_order() -> None:
    one, other = pa.record_batch({"a": [1, 2, 3]}), pa.record_batch({"b": ["x"]})
    data = encode_held([(7, one, np.array([True, False, True])), (5, one, None), (9, other, None)])
    assert [(emit_ns, rows.to_pydict()) for emit_ns, rows in decode_held(data, "here")] == [
        (5, {"a": [1, 3, 1, 2, 3]}),
        (9, {"b": ["x"]}),
    ]
    with pytest.raises((InvalidJob, Corrupt), match="here"):
        decode_held(data[:20], "here")


def test_rows_in_flight_that_are_damaged_are_told_with_the_place() -> None:
    data = encode_held([(7, pa.record_batch({"a": list(range(50)), "b": ["x"] * 50}), None)])
    draw = random.Random(1)
    for _ in range(500):
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        with contextlib.suppress(Corrupt, InvalidJob):  # InvalidJob: another version
            decode_held(bytes(damaged), "here")
    with pytest.raises(Corrupt, match=r"op, here: its rows in flight is not readable .*: restore an intact copy"):
        decode_held(data[:100] + bytes(len(data) - 100), "op, here")


class Connected:
    """Client that records the method calls in order."""

    told: list[str] = []  # shared by all objects

    def open(self) -> None:
        self.told.append("open")

    def fetch_many(self, keys: list[int]) -> Any:
        return by_list(keys)

    def close(self) -> None:
        self.told.append("close")


def test_a_class_is_opened_and_closed() -> None:
    Connected.told.clear()
    driven = Driven(Connected)
    assert Connected.told == ["open"]
    driven.feed(1)
    driven.settle()
    assert driven.rows() == completed((1, 0))
    driven.operator.close()
    driven.operator.close()
    assert Connected.told == ["open", "close"]


class Away(Connected):
    def open(self) -> None:
        raise ConnectionRefusedError("nobody listens")


class Broken(Connected):
    def open(self) -> None:
        raise KeyError("password")


def test_what_cannot_be_opened_is_tried_again_only_if_its_server_is_away() -> None:
    with pytest.raises(Unavailable, match=r"open\(\) of Away raised ConnectionRefusedError: nobody listens"):
        Driven(Away)
    with pytest.raises(UserCodeError, match="KeyError: 'password'"):
        Driven(Broken)
    with pytest.raises(Unavailable, match="KeyError"):
        Driven(Broken, replace(BOOK, retry=Retry(1)))
