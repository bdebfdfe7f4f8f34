"""Windowed aggregates against a plain model: any order, any lateness, nulls, several keys, snapshots in between."""

import datetime
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, World, entries_left, held_in_memory
from window_operators import aggregating, slicing

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.aggregation.functions import count, max_, mean, min_, sum_
from barrier_runtime.operators.windows.assigners import Sliding, Tumbling, WindowAssigner
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

SIZE, OFFSET = 100, 30
WINDOW = Tumbling(datetime.timedelta(milliseconds=SIZE), datetime.timedelta(milliseconds=OFFSET))
SCHEMA = pa.schema(
    [("a", pa.string()), ("b", pa.int32()), ("t", pa.timestamp("us")), ("v", pa.int64()), ("x", pa.float32())]
)
AGGREGATES = {
    "n": count(),
    "nv": count("v"),
    "sv": sum_("v"),
    "mv": mean("v"),
    "lo": min_("v"),
    "hi": max_("v"),
    "sx": sum_("x"),
    "lox": min_("x"),
    "hix": max_("x"),
    "last": max_("t"),
}
UTC = datetime.timezone.utc
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)


def operator(window: WindowAssigner = WINDOW) -> WindowOperator:
    kind = slicing if isinstance(window, Sliding) else aggregating
    return kind("w", ["a", "b"], window, "t", AGGREGATES)


def at(ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=ms)


def row(a: str | None, b: int | None, t: int, v: int | None = None, x: float | None = None) -> dict[str, Any]:
    return {"a": a, "b": b, "t": at(t).replace(tzinfo=None), "v": v, "x": x}


class Model:
    def __init__(self, slide: int = SIZE) -> None:
        self.slide = slide
        self.windows: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        self.watermark = WATERMARK_MIN
        self.late = 0
        self.out: list[dict[str, Any]] = []

    def feed(self, rows: list[dict[str, Any]]) -> None:
        for each in rows:
            t = (each["t"].replace(tzinfo=UTC) - EPOCH) // datetime.timedelta(milliseconds=1)
            last = (t - OFFSET % self.slide) // self.slide * self.slide + OFFSET % self.slide
            starts = [start for start in range(last, t - SIZE, -self.slide) if start + SIZE - 1 > self.watermark]
            self.late += not starts
            for start in starts:
                self.windows[(start, each["a"], each["b"])].append(each)

    def advance(self, watermark: int) -> None:
        self.watermark = max(self.watermark, watermark)
        due = [key for key in self.windows if key[0] + SIZE - 1 <= self.watermark]
        for key in sorted(due, key=lambda key: (key[0], key[1] is None, key[1] or "", key[2] is None, key[2] or 0)):
            rows = self.windows.pop(key)
            v = [r["v"] for r in rows if r["v"] is not None]
            x = [r["x"] for r in rows if r["x"] is not None]
            self.out.append(
                {
                    "a": key[1],
                    "b": key[2],
                    "window_start": at(key[0]),
                    "window_end": at(key[0] + SIZE),
                    "n": len(rows),
                    "nv": len(v),
                    "sv": sum(v) if v else None,
                    "mv": sum(v) / len(v) if v else None,
                    "lo": min(v, default=None),
                    "hi": max(v, default=None),
                    "sx": sum(x) if x else None,
                    "lox": min(x, default=None),
                    "hix": max(x, default=None),
                    "last": max(r["t"] for r in rows),
                }
            )


ROW = st.builds(
    row,
    st.sampled_from(["x", "y", "é", None]),
    st.sampled_from([-1, 0, 7, None]),
    st.integers(-500, 500),
    st.one_of(st.none(), st.integers(-(2**40), 2**40)),
    st.one_of(st.none(), st.integers(-1000, 1000).map(float)),
)
ACTION = st.one_of(
    st.tuples(st.just("rows"), st.lists(ROW, min_size=1, max_size=30)),
    st.tuples(st.just("watermark"), st.integers(-600, 700)),
    st.tuples(st.just("restart"), st.none()),
)


@pytest.mark.slow
@examples(120)
@given(st.lists(ACTION, max_size=12), st.sampled_from([SIZE, SIZE // 4]), st.sampled_from([None, 4]))
def test_windows_equal_a_row_by_row_model_whatever_the_order_lateness_and_restarts(
    actions: list[tuple[str, Any]], slide: int, held: int | None
) -> None:
    with held_in_memory(held):
        run_beside_model(actions, slide, held is None)


def run_beside_model(actions: list[tuple[str, Any]], slide: int, ordered: bool) -> None:
    """`ordered`: the results of a window are in key order."""
    ms = datetime.timedelta(milliseconds=1)
    window = WINDOW if slide == SIZE else Sliding(SIZE * ms, slide * ms, OFFSET % slide * ms)
    world, model = World(), Model(slide)
    driven, collected = Driven(operator(window), world, name="w"), []
    for checkpoint, (action, argument) in enumerate([*actions, ("watermark", WATERMARK_MAX)], 1):
        if action == "rows":
            driven.feed(argument, SCHEMA)
            model.feed(argument)
        elif action == "watermark":
            driven.watermark(argument)
            model.advance(argument)
        else:
            snapshot = driven.snapshot(checkpoint)
            collected += driven.take()
            driven.operator.close()
            driven = Driven(operator(window), world, (snapshot,), name="w")
    results = collected + driven.rows
    if not ordered:
        results.sort(key=repr)
        model.out.sort(key=repr)
    assert results == model.out
    assert world.metrics.counts.get("late_rows", 0) == model.late
    driven.snapshot(len(actions) + 2)
    assert entries_left(driven.operator) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_batch_of_many_keys_equals_the_model_before_and_after_a_restore(kind: Kind) -> None:
    random = np.random.default_rng(7)
    world, model = World(kind), Model()
    driven = Driven(operator(), world, name="w")
    for _ in range(3):
        rows = [
            row(
                f"k{random.integers(0, 400)}",
                int(random.integers(0, 3)),
                int(random.integers(0, 1_000)),
                int(v),
                float(v),
            )
            for v in random.integers(-100, 100, 3_000)
        ]
        driven.feed(rows, SCHEMA)
        model.feed(rows)
    driven.watermark(400)
    model.advance(400)
    snapshot = driven.snapshot(1)
    before = driven.take()
    driven.operator.close()
    driven = Driven(operator(), world, (snapshot,), name="w")
    driven.watermark(WATERMARK_MAX)
    model.advance(WATERMARK_MAX)
    assert before + driven.rows == model.out
    driven.operator.close()


def test_a_window_fires_exactly_when_the_watermark_reaches_its_last_millisecond() -> None:
    driven = Driven(operator())
    driven.feed([row("x", 1, OFFSET)], SCHEMA)
    driven.watermark(OFFSET + SIZE - 2)
    assert driven.take() == []
    driven.watermark(OFFSET + SIZE - 1)
    assert [r["window_start"] for r in driven.take()] == [at(OFFSET)]
    driven.watermark(OFFSET + SIZE)
    assert driven.take() == []


def test_a_row_of_a_window_that_fired_is_late_also_after_a_recovery() -> None:
    """Without the watermark in the snapshot the window would fire a second time."""
    world = World()
    driven = Driven(operator(), world, name="w")
    driven.feed([row("x", 1, 40)], SCHEMA)
    driven.watermark(200)
    snapshot = driven.snapshot(1)
    driven = Driven(operator(), world, (snapshot,), name="w")
    driven.feed([row("x", 1, 41), row("x", 1, 300)], SCHEMA)
    driven.watermark(WATERMARK_MAX)
    assert [r["window_start"] for r in driven.rows] == [at(230)]
    assert world.metrics.counts["late_rows"] == 1


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("key", [int, str])
def test_few_windows_of_many_that_fired_before_a_barrier_do_not_come_back_at_restore(kind: Kind, key: Any) -> None:
    """R3: the snapshot is then a delta that names the removed windows."""
    world = World(kind)
    made = aggregating("w", ["k"], WINDOW, "t", {"n": count()})
    driven = Driven(made, world, name="w")
    driven.feed([{"k": key(k), "t": OFFSET + (0 if k < 20 else 500)} for k in range(1_000)])
    driven.snapshot(1)
    made.on_complete(1)
    driven.watermark(OFFSET + SIZE - 1)
    assert len(driven.take()) == 20
    snapshot = driven.snapshot(2)
    made.close()
    restored = Driven(aggregating("w", ["k"], WINDOW, "t", {"n": count()}), world, (snapshot,), name="w")
    restored.watermark(WATERMARK_MAX)
    assert {row["k"] for row in restored.rows} == {key(k) for k in range(20, 1_000)}
    assert len(restored.rows) == 980


def test_what_comes_after_the_barrier_is_not_in_the_snapshot() -> None:
    world = World()
    driven = Driven(operator(), world, name="w")
    driven.feed([row("x", 1, 40)], SCHEMA)
    capture = driven.operator.snapshot(1)
    driven.feed([row("x", 1, 41), row("y", 1, 41)], SCHEMA)
    snapshot = world.finish("w", 1, capture)
    driven = Driven(operator(), world, (snapshot,), name="w")
    driven.watermark(WATERMARK_MAX)
    assert [(r["a"], r["n"]) for r in driven.rows] == [("x", 1)]


def test_nan_is_the_greatest_number_as_in_spark() -> None:
    nan = math.nan
    driven = Driven(operator())
    driven.feed([row("x", 1, 40, 1, nan), row("x", 1, 40, 1, 2.0), row("y", 1, 40, 1, nan)], SCHEMA)
    driven.watermark(WATERMARK_MAX)
    first, second = driven.rows
    assert first["lox"] == 2.0
    assert all(math.isnan(value) for value in (first["hix"], first["sx"], second["lox"], second["hix"]))


def test_the_smallest_and_greatest_integers_are_themselves() -> None:
    driven = Driven(operator())
    driven.feed([row("x", 1, 40, 2**63 - 1), row("y", 1, 40, -(2**63))], SCHEMA)
    driven.watermark(WATERMARK_MAX)
    assert [(r["lo"], r["hi"]) for r in driven.rows] == [(2**63 - 1,) * 2, (-(2**63),) * 2]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [3, -1]),
        (pa.uint16(), [3, 1]),
        (pa.bool_(), [True, False]),
        (pa.date32(), [datetime.date(2020, 1, 2), datetime.date(1969, 1, 1)]),
        (pa.timestamp("ns", "UTC"), [at(5), at(-5)]),
        (pa.duration("ms"), [datetime.timedelta(seconds=2), datetime.timedelta(seconds=-1)]),
        (pa.time32("s"), [datetime.time(1, 2), datetime.time(0, 1)]),
        (pa.float64(), [0.5, -0.5]),
    ],
)
def test_keys_and_extremes_keep_their_type(kind: pa.DataType, values: list[Any]) -> None:
    key = "g" if pa.types.is_duration(kind) or pa.types.is_time(kind) else "k"
    columns = {"k": pa.array(values, kind), "g": pa.array([1, 0]), "t": pa.array([0, 1])}
    driven = Driven(aggregating("w", [key], WINDOW, "t", {"lo": min_("k"), "hi": max_("k")}))
    driven.feed(pa.RecordBatch.from_pydict(columns))
    driven.watermark(WATERMARK_MAX)
    result = driven.batches[0].rows
    assert (result.schema.field(0).type == kind) is (key == "k")
    assert result.schema.types[3] == result.schema.types[4] == kind
    assert [(r["lo"], r["hi"]) for r in driven.rows] == [(v, v) for v in sorted(values)]


def test_a_key_of_fewer_than_whole_microseconds_is_refused_with_the_remedy() -> None:
    driven = Driven(aggregating("w", ["k"], WINDOW, "t", {"n": count()}))
    keys = pa.array([1_000_000_001], pa.timestamp("ns"))
    with pytest.raises(InvalidJob, match="round it to microseconds before key_by"):
        driven.feed(pa.RecordBatch.from_pydict({"k": keys, "t": pa.array([0])}))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_event_times_of_every_unit_fall_into_the_same_window(unit: str) -> None:
    times = pa.array([at(-1000), at(2000)]).cast(pa.timestamp(unit, "UTC"))
    driven = Driven(aggregating("w", ["k"], Tumbling(datetime.timedelta(seconds=1)), "t", {"n": count()}))
    driven.feed(pa.RecordBatch.from_pydict({"k": pa.array([1, 1]), "t": times}))
    driven.watermark(WATERMARK_MAX)
    assert [r["window_start"] for r in driven.rows] == [at(-1000), at(2000)]


def test_a_row_without_event_time_is_an_error_with_the_remedy() -> None:
    with pytest.raises(InvalidJob, match=r"1 row without event time in column 't'.*is_valid"):
        Driven(operator()).feed([{**row("x", 1, 40), "t": None}], SCHEMA)


def test_a_key_that_is_nan_is_an_error_with_the_remedy() -> None:
    driven = Driven(aggregating("w", ["k"], WINDOW, "t", {"n": count()}))
    with pytest.raises(InvalidJob, match="key column 'k' holds NaN"):
        driven.feed([{"k": math.nan, "t": 1}])


def test_minus_zero_and_zero_are_one_key() -> None:
    driven = Driven(aggregating("w", ["k"], WINDOW, "t", {"n": count()}))
    driven.feed([{"k": -0.0, "t": 1}, {"k": 0.0, "t": 1}])
    driven.watermark(WATERMARK_MAX)
    assert [r["n"] for r in driven.rows] == [2]


def test_state_of_other_types_is_refused_at_restore_with_both() -> None:
    world = World()
    driven = Driven(operator(), world, name="w")
    driven.feed([row("x", 1, 40)], SCHEMA)
    snapshot = driven.snapshot(1)
    other = SCHEMA.set(1, pa.field("b", pa.string()))
    with pytest.raises(InvalidJob, match=r"made of .*b: int32.* now its rows have .*b: string"):
        Driven(aggregating("w", ["a", "b"], WINDOW, "t", AGGREGATES, other), world, (snapshot,), name="w")


def test_results_carry_the_latest_emission_time_seen() -> None:
    driven = Driven(operator())
    driven.feed([row("x", 1, 40)], SCHEMA, emit_ns=5)
    driven.feed([row("x", 1, 40)], SCHEMA, emit_ns=9)
    driven.watermark(WATERMARK_MAX)
    assert driven.batches[0].emit_ns == 9


@pytest.mark.slow
def test_many_results_come_in_batches_of_bounded_size() -> None:
    driven = Driven(aggregating("w", ["k"], WINDOW, "t", {"n": count()}))
    driven.feed(pa.RecordBatch.from_pydict({"k": pa.array(range(70_000)), "t": pa.array([0] * 70_000)}))
    driven.watermark(WATERMARK_MAX)
    assert max(batch.rows.num_rows for batch in driven.batches) <= 16_384
    assert [each["k"] for each in driven.rows] == list(range(70_000))


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (-1, 0), (10, 10), (10, -10)])
def test_impossible_windows_are_refused(size: int, offset: int) -> None:
    with pytest.raises(InvalidJob, match=r"Tumbling window"):
        Tumbling(datetime.timedelta(milliseconds=size), datetime.timedelta(milliseconds=offset))


@examples(100)
@given(st.integers(-(2**40), 2**40), st.integers(1, 10**9), st.data())
def test_every_time_lies_in_its_window_and_windows_touch(time: int, size: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(1 - size, size - 1))
    window = Tumbling(datetime.timedelta(milliseconds=size), datetime.timedelta(milliseconds=offset))
    start = int(window.starts(np.array([time]))[0])
    assert start <= time <= window.last_ms(start)
    assert (start - offset) % size == 0
    assert window.first_open_start(window.last_ms(start)) == start + 1


def test_a_negative_offset_gives_the_windows_of_the_positive_one() -> None:
    day, hours = datetime.timedelta(days=1), datetime.timedelta(hours=1)
    assert Tumbling(day, -8 * hours) == Tumbling(day, 16 * hours)
    assert Sliding(2 * day, day, -8 * hours).definition == Sliding(2 * day, day, 16 * hours).definition
    with pytest.raises(InvalidJob, match=r"Sliding window is -7200 s: use less than its slide 1:00:00"):
        Sliding(day, hours, -2 * hours)
    with pytest.raises(InvalidJob, match=r"Tumbling window is 0.0001 s: use a duration of whole milli"):
        Tumbling(day, -0.0001)


@pytest.mark.parametrize("time", [WATERMARK_MAX, WATERMARK_MAX - SIZE + 1, WATERMARK_MIN, WATERMARK_MIN + SIZE - 1])
def test_a_row_whose_window_reaches_beyond_64_bits_is_refused_and_does_not_vanish(time: int) -> None:
    driven = Driven(aggregating("w", ["k"], WINDOW, "t", {"n": count()}))
    driven.feed([{"k": 1, "t": 0}])
    with pytest.raises(InvalidJob, match=f"window 'w'.* {time} ms in column 't'.*never be over: filter or correct"):
        driven.feed([{"k": 1, "t": 5}, {"k": 1, "t": time}])


def test_windows_up_to_the_limits_of_64_bits_are_given() -> None:
    driven = Driven(aggregating("w", ["k"], WINDOW, "t", {"first": min_("t")}))
    times = [WATERMARK_MIN + SIZE, WATERMARK_MAX - SIZE]
    driven.feed([{"k": 1, "t": time} for time in times])
    driven.watermark(WATERMARK_MAX)
    assert [batch.rows.column("first").to_pylist() for batch in driven.batches] == [times]
