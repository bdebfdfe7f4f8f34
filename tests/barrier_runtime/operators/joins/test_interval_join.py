"""The interval join against brute force: random streams, cuts, watermarks, late rows, restores elsewhere."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.joins.base import Side
from barrier_runtime.operators.joins.interval import JOIN_KINDS, IntervalJoinOperator, JoinKind
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import FileRef
from tests.barrier_runtime.operator_harness import Driven, Kind, World
from tests.barrier_runtime.operators.joins.joined import MS, Event, Row, Subtasks, play, random_events, sides
from tests.drawn import examples

LEFT, RIGHT = sides()


def operator(how: JoinKind, lower: int, upper: int, late: bool = True) -> IntervalJoinOperator:
    return IntervalJoinOperator("j", LEFT, RIGHT, (lower * MS, upper * MS), how, late=late)


def brute_force(events: list[Event], lower: int, upper: int, how: str) -> list[tuple[Any, Any]]:
    """Returns pairs (left row, right row); None replaces a missing partner."""
    lefts = [row for port, row in events if port == 0]
    rights = [row for port, row in events if port == 1]
    pairs = [
        (left, right)
        for left in lefts
        for right in rights
        if left["k"] is not None and left["k"] == right["kk"] and lower <= right["t"] - left["t"] <= upper
    ]
    met = {id(row) for pair in pairs for row in pair}
    alone: list[tuple[Any, Any]] = [(left, None) for left in lefts if id(left) not in met]
    if how == "semi":
        return [(left, None) for left in lefts if id(left) in met]
    if how == "anti":
        return alone
    found: list[tuple[Any, Any]] = list(pairs)
    found += alone if how in ("left", "full") else []
    found += [(None, right) for right in rights if id(right) not in met] if how in ("right", "full") else []
    return found


def out(left: Row | None, right: Row | None, how: str) -> tuple[Any, ...]:
    key = left["k"] if left else right["kk"] if right else None
    one = (left["t"], left["a"]) if left else (None, None)
    if how in ("semi", "anti"):
        return (key, *one)
    return (key, *one, *((right["t"], right["b"]) if right else (None, None)))


def check(seed: int, how: JoinKind, lower: int, upper: int, keys: int, disorder: int, restarts: int) -> None:
    rng = random.Random(seed)
    events = random_events(rng, rng.choice([0, 20, 150]), keys, disorder, rng.choice([0, 1, 7]))
    subtasks = Subtasks(lambda: operator(how, lower, upper), (LEFT, RIGHT), rng.randint(1, 3))
    in_time: list[Event] = []
    late: list[tuple[int, int]] = []
    got: list[tuple[Any, ...]] = []
    told_late: list[tuple[int, int]] = []
    delay = max(0, upper, -lower)
    told = WATERMARK_MIN  # greatest watermark sent downstream
    for what, value in play(rng, subtasks, events, disorder, restarts):
        if what == "fed":
            port, row, on_time = value
            if on_time:
                in_time.append((port, row))
            else:
                late.append((port, row.get("a", row.get("b"))))
        elif what in ("rows", "fired"):
            rows, watermark = value
            got += [tuple(row.values()) for row in rows]
            for row in rows:
                for time in (row["t"], row.get("t_right")):
                    assert time is None or time > told, "a row is late for its successor"
            if WATERMARK_MIN < watermark < WATERMARK_MAX:
                told = max(told, watermark - delay)
        elif what == "late":
            told_late += [(0, row["a"]) for row in value[0]] + [(1, row["b"]) for row in value[1]]
        else:
            assert value == (0, 0)
    wanted = [out(*pair, how) for pair in brute_force(in_time, lower, upper, how)]
    assert Counter(got) == Counter(wanted)
    assert sorted(told_late) == sorted(late)


@pytest.mark.slow
@examples(150)
@given(
    seed=st.integers(0, 2**32),
    how=st.sampled_from(JOIN_KINDS),
    bounds=st.sampled_from([(0, 0), (-5, 5), (0, 30), (-40, -10), (10, 40), (-200, 3), (0, 10_000)]),
    keys=st.sampled_from([1, 3, 40]),
    disorder=st.sampled_from([0, 10, 100]),
    restarts=st.integers(0, 3),
)
def test_an_interval_join_equals_brute_force(
    seed: int, how: JoinKind, bounds: tuple[int, int], keys: int, disorder: int, restarts: int
) -> None:
    """Holds for any order, batch borders, watermarks, restarts and parallelism; all other rows are late rows;
    no row is late for the next step; no row is held at the end.
    """
    check(seed, how, *bounds, keys, disorder, restarts)


@pytest.mark.slow
@pytest.mark.parametrize("how", JOIN_KINDS)
def test_each_kind_of_join_equals_brute_force(how: JoinKind) -> None:
    for seed in range(12):
        check(seed, how, *((-5, 5), (0, 30), (-40, -10), (10, 40))[seed % 4], 3, 10, 2)


def left(key: str | None, time: int, number: int = 0) -> Row:
    return {"k": key, "t": time, "a": number}


def right(key: str | None, time: int, number: int = 0) -> Row:
    return {"kk": key, "t": time, "b": number}


def feed(it: Driven, port: int, *rows: Row) -> None:
    it.feed(list(rows), (LEFT, RIGHT)[port].schema, port=port)


@pytest.mark.parametrize("first", [0, 1])
def test_both_bounds_are_included(first: int) -> None:
    it = Driven(operator("inner", -10, 20))
    rows = [left("k", 100)], [right("k", time, time) for time in (89, 90, 120, 121)]
    feed(it, first, *rows[first])
    feed(it, 1 - first, *rows[1 - first])
    assert sorted(row["b"] for row in it.rows) == [90, 120]


@pytest.mark.parametrize(("lower", "upper", "last"), [(0, 20, 119), (-10, -5, 94), (5, 20, 119)])
def test_unmatched_row_is_emitted_when_the_watermark_passes_the_last_partner_time(
    lower: int, upper: int, last: int
) -> None:
    it = Driven(operator("left", lower, upper))
    feed(it, 0, left("k", 100))
    it.watermark(last)
    assert it.rows == []
    assert it.operator.held == (1, 0)  # type: ignore[attr-defined]
    it.watermark(last + 1)
    assert [row["a"] for row in it.rows] == [0]
    assert it.operator.held == (0, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("lower", "upper"), [(0, 20), (-10, 5), (5, 20), (-20, -5)])
def test_a_right_row_is_held_as_long_as_a_left_one_may_need_it(lower: int, upper: int) -> None:
    it, last = Driven(operator("full", lower, upper)), 100 - lower  # `last`: time of the row's last partner
    feed(it, 1, right("k", 100, 1), right("alone", 100, 2))
    it.watermark(last - 1)
    assert it.rows == []
    feed(it, 0, left("k", last))
    assert [(row["t"], row["t_right"]) for row in it.take()] == [(last, 100)]
    it.watermark(last)
    assert [(row["t"], row["b"]) for row in it.rows if row["k"] == "alone"] == [(None, 2)]
    assert held(it)[1] == 0


def held(it: Driven) -> tuple[int, int]:
    assert isinstance(it.operator, IntervalJoinOperator)
    return it.operator.held


def test_null_keys_match_nothing_and_are_emitted_at_once_on_an_outer_side() -> None:
    it = Driven(operator("full", 0, 10))
    feed(it, 0, left(None, 5, 1))
    feed(it, 1, right(None, 5, 2))
    assert [(row["k"], row["a"], row["b"]) for row in it.rows] == [(None, 1, None), (None, None, 2)]
    assert held(it) == (0, 0)


def test_several_key_columns_of_which_one_is_null() -> None:
    schema = pa.schema([("x", pa.int64()), ("y", pa.string()), ("t", pa.int64())])
    side = Side(("x", "y"), "t", schema)
    it = Driven(IntervalJoinOperator("j", side, side, (0 * MS, 0 * MS), "left"))
    rows = [{"x": 1, "y": "a", "t": 7}, {"x": 1, "y": None, "t": 7}, {"x": 2, "y": "a", "t": 7}]
    it.feed(rows[:2], schema, port=0)
    it.feed(rows[1:], schema, port=1)
    it.feed(rows[:1], schema, port=1)
    it.watermark(7)
    assert sorted((row["x"], str(row["y"]), row["t_right"]) for row in it.rows if row["y"] is None) == [
        (1, "None", None)
    ]
    assert [(row["x"], row["y"], row["t_right"]) for row in it.rows if row["y"] == "a"] == [(1, "a", 7)]


def keyed_by(kind: pa.DataType, lefts: list[Any], rights: list[Any]) -> list[tuple[Any, Any]]:
    of = sides(kind)
    it = Driven(IntervalJoinOperator("j", *of, (0 * MS, 0 * MS), "inner"))
    it.feed([{"k": key, "t": 1, "a": n} for n, key in enumerate(lefts)], of[0].schema, port=0)
    it.feed([{"kk": key, "t": 1, "b": n} for n, key in enumerate(rights)], of[1].schema, port=1)
    return sorted((row["a"], row["b"]) for row in it.rows)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [2**63 - 1, -(2**63), 0]),
        (pa.int8(), [1, -128, 127]),
        (pa.uint64(), [2**64 - 1, 2**53, 2**53 + 1]),
        (pa.string(), ["", "ä", "a" * 1_000]),
        (pa.large_string(), ["", "x", "y"]),
        (pa.binary(), [b"", b"\0", b"\0\0"]),
        (pa.bool_(), [True, False]),
        (pa.float64(), [0.5, float("inf"), 2.0**53]),
        (pa.date32(), [1, 2, 3]),
        (pa.timestamp("us", "UTC"), [1, 2, 3]),
    ],
)
def test_keys_of_every_type(kind: pa.DataType, values: list[Any]) -> None:
    assert keyed_by(kind, values, values[::-1]) == [(n, len(values) - 1 - n) for n in range(len(values))]


def test_both_zeros_are_one_key_and_nan_is_refused() -> None:
    assert keyed_by(pa.float64(), [0.0, -0.0], [-0.0]) == [(0, 0), (1, 0)]
    with pytest.raises(InvalidJob, match="key column 'k' holds NaN, which equals nothing: replace or filter it"):
        keyed_by(pa.float64(), [float("nan")], [])


def test_times_finer_than_milliseconds_are_compared_exactly() -> None:
    of = sides(time=pa.timestamp("us", "UTC"))
    it = Driven(IntervalJoinOperator("j", *of, (timedelta(0), timedelta(microseconds=1_500)), "left"))
    it.feed([{"k": "k", "t": 10_400, "a": 1}], of[0].schema, port=0)
    it.feed([{"kk": "k", "t": time, "b": time} for time in (10_399, 10_400, 11_900, 11_901)], of[1].schema, port=1)
    assert sorted(row["b"] for row in it.take()) == [10_400, 11_900]
    it.watermark(10)
    assert held(it)[0] == 1  # 11.900 ms is in the millisecond after
    it.watermark(11)
    assert held(it)[0] == 0


def test_sides_of_different_units_of_time() -> None:
    left_side, right_side = sides(time=pa.timestamp("ns"))[0], sides(time=pa.timestamp("s"))[1]
    it = Driven(IntervalJoinOperator("j", left_side, right_side, (timedelta(0), timedelta(seconds=1)), "inner"))
    it.feed([{"k": "k", "t": n, "a": n} for n in (0, 1, 10**9, 10**9 + 1)], left_side.schema, port=0)
    it.feed([{"kk": "k", "t": 1, "b": 1}], right_side.schema, port=1)
    assert sorted(row["a"] for row in it.rows) == [0, 1, 10**9]


def test_event_time_row_by_row_tells_late_rows_wherever_batches_end(caplog: pytest.LogCaptureFixture) -> None:
    it = Driven(operator("inner", -100, 100, late=False))
    rows = [left("k", 50), left("k", 200), left("k", 150)]
    it.feed(rows, LEFT.schema, reached=np.array([10, 180, 180]), port=0)
    feed(it, 1, right("k", 60), right("k", 180))
    assert sorted(row["t"] for row in it.rows) == [50, 200]
    assert it.world.metrics.counts["late_left_rows"] == 1
    it.watermark(180)
    feed(it, 1, right("k", 180), right("k", 181))
    assert it.world.metrics.counts["late_right_rows"] == 1
    feed(it, 1, right("k", 5))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "join 'j' dropped a late row: its event time is 1970-01-01 00:00:00.150 UTC" in told[0]
    assert "the watermark was 1970-01-01 00:00:00.180 UTC already" in told[1]


@pytest.mark.slow
def test_a_hot_key_goes_out_in_batches_of_a_bounded_size() -> None:
    it = Driven(operator("inner", -10, 10))
    feed(it, 0, *[left("k", 0, n) for n in range(400)])
    feed(it, 1, *[right("k", 0, n) for n in range(400)])
    assert Counter((row["a"], row["b"]) for row in it.rows) == Counter((a, b) for a in range(400) for b in range(400))
    assert max(map(len, it.batches)) <= 65_536


@pytest.mark.slow
def test_rows_of_megabytes_go_out_few_at_once() -> None:
    big = Side(("k",), "t", pa.schema([("k", pa.string()), ("t", pa.int64()), ("text", pa.string())]))
    it = Driven(IntervalJoinOperator("j", big, RIGHT, (0 * MS, 10 * MS), "inner"))
    it.feed([{"k": "k", "t": n, "text": str(n) * 8_000_000} for n in range(5)], big.schema, port=0)
    feed(it, 1, right("k", 5, 1))
    assert [row["text"][0] for row in it.rows] == ["0", "1", "2", "3", "4"]
    assert max(batch.rows.nbytes for batch in it.batches) < 20_000_000


def test_columns_of_a_join_are_the_keys_then_the_left_and_the_right_ones() -> None:
    it = Driven(operator("inner", 0, 0))
    feed(it, 0, left("k", 1, 2))
    feed(it, 1, right("k", 1, 3))
    assert it.rows == [{"k": "k", "t": 1, "a": 2, "t_right": 1, "b": 3}]
    with pytest.raises(InvalidJob, match=r"column 't_2' would be there twice: give suffix=\(\"\", \"_right\"\)"):
        IntervalJoinOperator(
            "j",
            Side(("k",), "t", pa.schema([("k", pa.string()), ("t", pa.int64()), ("t_2", pa.int64())])),
            RIGHT,
            (0 * MS, 0 * MS),
            suffix=("", "_2"),
        )


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_what_has_matched_is_known_after_a_restore(kind: Kind) -> None:
    world = World(kind)
    it = Driven(operator("full", 0, 10), world)
    feed(it, 0, left("k", 5, 1), left("other", 5, 2))
    feed(it, 1, right("k", 6, 3))
    snapshot = it.snapshot(1)
    it.operator.close()
    it = Driven(operator("full", 0, 10), world, (snapshot,))
    assert held(it) == (2, 1)
    it.watermark(WATERMARK_MAX)
    assert [(row["k"], row["a"], row["b"]) for row in it.rows] == [("other", 2, None)]
    it.operator.close()


def test_a_run_that_is_an_object_already_is_named_again_and_not_written_again() -> None:
    it = Driven(operator("inner", 0, 1_000_000))
    feed(it, 0, *[left(f"k{n}", n, n) for n in range(1_000)])
    first = it.operator.snapshot(1)
    assert first.blocking is not None
    assert first.on_stored is not None
    (name,) = first.blocking()
    ref = FileRef(name, 1, "00", "data/1")
    first.on_stored({name: ref})
    feed(it, 1, right("k1", 7))
    second = it.operator.snapshot(2)
    assert second.blocking is not None
    assert second.stored == {name: ref}
    assert name not in second.blocking()
    it.watermark(WATERMARK_MAX)
    third = it.operator.snapshot(3)
    assert third.stored == {}
    assert third.blocking is None


def test_state_of_other_columns_is_refused() -> None:
    world = World()
    it = Driven(operator("inner", 0, 10), world)
    feed(it, 0, left("k", 5))
    snapshot = it.snapshot(1)
    more = Side(("k",), "t", LEFT.schema.append(pa.field("more", pa.int64())))
    with pytest.raises(
        InvalidJob, match=r"join 'op': its state was made of \(k: string, t: int64, a: int64\), but now"
    ):
        Driven(IntervalJoinOperator("op", more, RIGHT, (0 * MS, 10 * MS)), world, (snapshot,))


def test_rows_after_the_end_of_time_say_what_to_do() -> None:
    world = World()
    it = Driven(operator("inner", 0, 10), world)
    it.watermark(WATERMARK_MAX)
    it = Driven(operator("inner", 0, 10), world, (it.snapshot(1),))
    with pytest.raises(
        InvalidJob, match=r"had read all of its input and joined every row.*Run them under another name"
    ):
        feed(it, 0, left("k", 5))


def test_a_row_without_event_time_is_refused() -> None:
    it = Driven(operator("inner", 0, 10))
    with pytest.raises(InvalidJob, match="1 row of the right stream without event time in column 't': filter them"):
        it.feed([{"kk": "k", "t": None, "b": 1}], RIGHT.schema, port=1)
