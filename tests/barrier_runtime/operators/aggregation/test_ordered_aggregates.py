"""First, last, any, all, variances, arg_min, arg_max and aggregates of decimals, text and bytes against plain Python,
row by row: however rows are cut into batches, as lists and in Arrow, running and in windows, over restarts, bit for
bit."""

import datetime
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, World
from window_operators import aggregating

from barrier_runtime import Dataflow
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.functions import (
    Aggregate,
    all_,
    any_,
    arg_max,
    arg_min,
    count,
    first,
    last,
    max_,
    mean,
    min_,
    stddev,
    stddev_pop,
    sum_,
    var_pop,
    variance,
)
from barrier_runtime.operators.aggregation.kinds.picks import Pick
from barrier_runtime.operators.aggregation.plan import plan_aggregates
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.aggregation.state_columns import Columns
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.assigners import Sliding, Tumbling
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.operators.aggregation.oracle import Row, expected, same
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
SIZE = 100
FIELDS = {
    "k": pa.int64(),
    "t": pa.int64(),
    "b": pa.bool_(),
    "i": pa.int64(),
    "x": pa.float64(),
    "f": pa.float32(),
    "day": pa.date32(),
    "d": pa.decimal128(9, 2),
    "wide": pa.decimal128(38, 3),
    "s": pa.string(),
    "raw": pa.binary(),
}
LISTS = pa.schema([(name, kind) for name, kind in FIELDS.items() if not pa.types.is_decimal(kind)])
SCHEMA = pa.schema(list(FIELDS.items()))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.none() | st.integers(0, 2),
    "t": st.integers(0, 300),
    "b": st.none() | st.booleans(),
    "i": st.none() | st.sampled_from([2**63 - 1, -(2**63), 0, 1, 7]) | st.integers(-3, 3),
    "x": st.none() | st.sampled_from([float("nan"), 0.0, -0.0, float("inf"), 1e9, 1e9 + 1]) | st.floats(-5, 5),
    "f": st.none() | st.sampled_from([float("nan"), -0.0, 0.5, 0.0]),
    "day": st.none() | st.dates(datetime.date(1960, 1, 1), datetime.date(2030, 1, 1)),
    "d": st.none() | st.integers(-(10**9) + 1, 10**9 - 1).map(lambda cents: Decimal(cents).scaleb(-2)),
    "wide": st.none() | st.integers(-(10**36), 10**36).map(lambda value: Decimal(value).scaleb(-3)),
    "s": st.none() | st.sampled_from(["", "a", "a\0", "ab", "\uffff", "\U0001f600"]) | st.text(max_size=4),
    "raw": st.none() | st.sampled_from([b"", b"\0", b"\0\0", b"\xff"]) | st.binary(max_size=4),
}
OF_NUMBERS: dict[str, Aggregate] = {
    "n": count(),
    "first": first("i"),
    "first_x": first("x"),
    "first_known": first("f", ignore_nulls=True),
    "last": last("x"),
    "last_known": last("day", ignore_nulls=True),
    "last_bool": last("b"),
    "any": any_("b"),
    "all": all_("b"),
    "variance": variance("x"),
    "stddev_pop": stddev_pop("i"),
    "lowest": arg_min("day", by="x"),
    "highest": arg_max("x", by="x"),
    "of_greatest": arg_max("f", by="i"),
    "of_smallest": arg_min("i", by="b"),
}
OF_DECIMALS: dict[str, Aggregate] = {
    "min": min_("d"),
    "max": max_("wide"),
    "sum": sum_("d"),
    "mean": mean("d"),
    "total": sum_("wide"),
    "first": first("wide"),
    "of_greatest": arg_max("d", by="wide"),
    "of_smallest": arg_min("wide", by="d"),
    "spread": var_pop("d"),
    "text_of_smallest": arg_min("s", by="wide"),
}
OF_TEXT: dict[str, Aggregate] = {
    "n": count("s"),
    "min": min_("s"),
    "max": max_("s"),
    "least": min_("raw"),
    "most": max_("raw"),
    "first": first("s"),
    "first_raw": first("raw", ignore_nulls=True),
    "last": last("raw"),
    "last_known": last("s", ignore_nulls=True),
    "of_greatest": arg_max("s", by="x"),
    "of_smallest": arg_min("i", by="s"),
    "raw_of_greatest": arg_max("raw", by="s"),
}
GROUPS = [OF_NUMBERS, OF_DECIMALS, OF_TEXT]
NAMES = ["numbers", "decimals", "text"]
ALL = {f"{name}_{each}": group[each] for name, group in zip(NAMES, GROUPS, strict=True) for each in group}
ROWS = st.lists(st.fixed_dictionaries(VALUES), min_size=0, max_size=12)


def batch_of(rows: list[Row], schema: pa.Schema, as_list: bool) -> Batch:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[field.name] for row in rows], field.type) for field in schema], schema=schema
    )
    few = FewRows.of(batch) if as_list else None
    return Batch(batch if few is None else few, 0)


def given_by(aggregates: dict[str, Aggregate], rows: list[Row]) -> Row:
    kinds = {field.name: field.type for field in plan_aggregates(aggregates, SCHEMA, "oracle").fields()}
    return {name: same(expected(aggregate, rows, kinds[name])) for name, aggregate in aggregates.items()}


def results(driven: Driven, names: Any) -> list[Row]:
    return [{name: same(row[name]) for name in names} for row in driven.take()]


@pytest.mark.slow
@pytest.mark.parametrize("aggregates", GROUPS, ids=NAMES)
@examples(60)
@given(st.lists(st.tuples(ROWS, st.booleans(), st.booleans()), max_size=5))
def test_running_values_equal_those_row_by_row_in_any_batches_over_restarts(
    aggregates: dict[str, Aggregate], fed: list[tuple[list[Row], bool, bool]]
) -> None:
    schema = SCHEMA if aggregates is OF_DECIMALS else LISTS
    world, seen = World(), defaultdict(list)
    driven = Driven(RunningAggregateOperator("r", ["k"], aggregates), world, name="r")
    for checkpoint, (rows, as_list, restart) in enumerate(fed, 1):
        driven.operator.process(batch_of(rows, schema, as_list), Emit(driven.batches.append))
        model = []
        for row in rows:
            seen[row["k"]].append(row)
            model.append(given_by(aggregates, seen[row["k"]]))
        assert results(driven, aggregates) == model
        if restart:
            snapshot = driven.snapshot(checkpoint)
            driven.operator.close()
            driven = Driven(RunningAggregateOperator("r", ["k"], aggregates), world, (snapshot,), name="r")


@pytest.mark.slow
@pytest.mark.parametrize("aggregates", GROUPS, ids=NAMES)
@examples(40)
@given(st.lists(st.tuples(ROWS, st.booleans(), st.integers(0, 350)), max_size=5), st.sampled_from([SIZE, SIZE // 4]))
def test_windows_equal_the_model_with_late_rows_windows_that_fired_and_restarts(
    aggregates: dict[str, Aggregate], fed: list[tuple[list[Row], bool, int]], slide: int
) -> None:
    def made() -> WindowOperator:
        window = Tumbling(SIZE * MS) if slide == SIZE else Sliding(SIZE * MS, slide * MS)
        return aggregating("w", ["k"], window, "t", aggregates)

    world, windows = World(), defaultdict(list)
    watermark, model, found = WATERMARK_MIN, [], []
    driven = Driven(made(), world, name="w")
    for checkpoint, (rows, restart, reached) in enumerate([*fed, ([], False, WATERMARK_MAX)], 1):
        driven.operator.process(batch_of(rows, SCHEMA, as_list=False), Emit(driven.batches.append))
        for row in rows:
            for start in range(row["t"] // slide * slide, row["t"] - SIZE, -slide):
                if start + SIZE - 1 > watermark:
                    windows[(start, row["k"])].append(row)
        watermark = max(watermark, reached)
        driven.watermark(watermark)
        due = [window for window in windows if window[0] + SIZE - 1 <= watermark]
        for window in sorted(due, key=lambda each: (each[0], each[1] is None, each[1] or 0)):
            model.append(given_by(aggregates, windows.pop(window)))
        if restart:
            snapshot = driven.snapshot(checkpoint)
            found += results(driven, aggregates)
            driven.operator.close()
            driven = Driven(made(), world, (snapshot,), name="w")
    assert found + results(driven, aggregates) == model


def many_rows(keys: int) -> pa.RecordBatch:
    random = np.random.default_rng(5)
    rows = 1_500

    def some(values: Any) -> Any:
        return [None if random.random() < 0.1 else value for value in values]

    cents = random.integers(-(10**8), 10**8, rows).tolist()
    columns = {
        "k": random.integers(0, keys, rows).tolist(),
        "t": [0] * rows,
        "b": some((random.random(rows) < 0.5).tolist()),
        "i": some(random.integers(-20, 20, rows).tolist()),
        "x": some((1e9 + random.integers(0, 300, rows) / 8).tolist()),
        "f": some(random.integers(-9, 9, rows).astype(float).tolist()),
        "day": some([datetime.date(2020, 1, 1) + datetime.timedelta(days=n % 700) for n in range(rows)]),
        "d": some([Decimal(each).scaleb(-2) for each in cents]),
        "wide": some([Decimal(each * 10**26).scaleb(-3) for each in cents]),
        "s": some(["x" * (each % 5) + str(each % 50) for each in cents]),
        "raw": some([each.to_bytes(5, "big", signed=True) for each in cents]),
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[name], kind) for name, kind in FIELDS.items()], schema=SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["segments", "entries"])
@pytest.mark.parametrize("keys", [1, 70, 1_000])
def test_large_batches_of_any_number_of_keys_continue_from_segments_and_entries(stored: str, keys: int) -> None:
    aggregates = ALL
    rows = many_rows(keys)
    world, seen = World("rocksdb"), defaultdict(list)
    driven = Driven(RunningAggregateOperator("r", ["k"], aggregates), world, name="r")
    for checkpoint, (start, length) in enumerate([(0, 900), (900, 1), (901, 599)], 1):
        driven.feed(rows.slice(start, length))
        found = results(driven, aggregates)
        for at, row in enumerate(rows.slice(start, length).to_pylist()):
            seen[row["k"]].append(row)
            if len(seen[row["k"]]) % 97 < 3:  # asking the model takes as long as the key has rows
                assert found[at] == given_by(aggregates, seen[row["k"]])
        if stored == "entries" and checkpoint == 1:
            driven.operator._table._leave_segments()  # type: ignore[attr-defined]
        snapshot = driven.snapshot(checkpoint)
        driven.operator.close()
        driven = Driven(RunningAggregateOperator("r", ["k"], aggregates), world, (snapshot,), name="r")
    driven.operator.close()


@pytest.mark.parametrize("kind", ["memory", pytest.param("rocksdb", marks=pytest.mark.slow)])
def test_state_goes_on_at_another_parallelism(kind: Kind) -> None:
    aggregates = ALL
    rows, seen = many_rows(50), defaultdict(list)
    shared, snapshots = World(kind), ()
    for checkpoint, (parallelism, start) in enumerate([(1, 0), (3, 500), (2, 1_000)], 1):
        whole, taken = Batch(rows.slice(start, 500), 0), []
        parts = dict(hash_partition(whole, ("k",), parallelism, 128)) if parallelism > 1 else {0: whole}
        for subtask in range(parallelism):
            world = World(kind, subtask, parallelism)
            world.store, world._numbers = shared.store, shared._numbers
            world.directory = Path(shared.directory) / f"{checkpoint}-{subtask}"
            driven = Driven(RunningAggregateOperator("r", ["k"], aggregates), world, snapshots, name="r")
            part = parts[subtask].rows
            driven.feed(part)
            for row, found in zip(part.to_pylist(), results(driven, aggregates), strict=True):
                seen[row["k"]].append(row)
                if len(seen[row["k"]]) % 6 == 0:
                    assert found == given_by(aggregates, seen[row["k"]])
            taken.append(driven.snapshot(checkpoint))
            driven.operator.close()
        snapshots = tuple(taken)


@pytest.mark.parametrize("stored", ["segments", "entries"])
def test_state_is_restored_by_a_program_that_names_its_aggregates_in_another_order(stored: str) -> None:
    aggregates = {"first": first("v"), "last": last("v"), "top": arg_max("v", by="v"), "spread": variance("v")}
    world = World()
    driven = Driven(RunningAggregateOperator("r", ["k"], aggregates), world, name="r")
    driven.feed([{"k": 1, "v": value} for value in (5, 9, 7)])
    if stored == "entries":
        driven.operator._table._leave_segments()  # type: ignore[attr-defined]
    snapshot = driven.snapshot(1)
    driven.operator.close()
    backwards = dict(reversed(aggregates.items()))
    driven = Driven(RunningAggregateOperator("r", ["k"], backwards), world, (snapshot,), name="r")
    driven.feed([{"k": 1, "v": 8}])
    assert driven.rows == [{"k": 1, "v": 8, "spread": pytest.approx(35 / 12), "top": 9, "last": 8, "first": 5}]


@pytest.mark.slow
def test_keys_that_are_evicted_and_come_back_go_on() -> None:
    world, seen = World("rocksdb"), defaultdict(list)
    aggregates = {"first": first("v"), "sum": sum_("d"), "top": arg_max("v", by="v"), "spread": var_pop("v")}
    operator = RunningAggregateOperator("r", ["k"], aggregates)
    driven = Driven(operator, world, name="r")
    random = np.random.default_rng(9)
    for checkpoint in range(1, 9):
        keys, values = random.integers(0, 3_000, 600), random.integers(0, 99, 600)
        d = pa.array([Decimal(int(value)) for value in values], pa.decimal128(38, 0))
        driven.feed(pa.record_batch({"k": keys, "v": values, "d": d}))
        operator._table.limit_cache(1)
        for row in driven.take():
            seen[row["k"]].append(row)
            assert [row[name] for name in ("first", "sum", "top")] == [
                seen[row["k"]][0]["v"],
                sum(each["v"] for each in seen[row["k"]]),
                max(each["v"] for each in seen[row["k"]]),
            ]
            assert row["spread"] == pytest.approx(np.var([each["v"] for each in seen[row["k"]]]), abs=1e-9)
        driven.snapshot(checkpoint)
    assert operator._table.entries < 2_000 < len(seen)
    operator.close()


NUMBERS = [variance("x"), var_pop("x"), stddev("x"), stddev_pop("x")]


@pytest.mark.parametrize("keys", [1, 400])
@pytest.mark.parametrize("middle", [1e9, -1e12, 0.0])
def test_variances_of_values_far_from_zero_are_those_of_numpy(keys: int, middle: float) -> None:
    random = np.random.default_rng(1)
    values = middle + random.standard_normal(4_000)
    of_key = np.arange(4_000) % keys
    window = aggregating("w", ["k"], Tumbling(SIZE * MS), "t", {str(each): each for each in NUMBERS})
    driven = Driven(window)
    for start in range(0, 4_000, 1_300):
        part = slice(start, start + 1_300)
        times = pa.array(np.zeros(len(values[part]), np.int64))
        driven.feed(pa.record_batch({"k": pa.array(of_key[part]), "t": times, "x": pa.array(values[part])}))
    driven.watermark(WATERMARK_MAX)
    rows = driven.rows
    assert len(rows) == keys
    for row in rows:
        exact = (values[of_key == row["k"]] - middle).astype(np.longdouble)
        for each, found in zip(
            NUMBERS, [np.var(exact, ddof=1), np.var(exact), np.std(exact, ddof=1), np.std(exact)], strict=True
        ):
            assert row[str(each)] == pytest.approx(float(found), rel=1e-12)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
@pytest.mark.parametrize("first", [-(1 << 63), -1, 0, (1 << 53) - 1, (1 << 62) + 1, (1 << 63) - 40, (1 << 64) - 40])
def test_variances_of_whole_numbers_far_from_zero_lose_no_digit(kind: pa.DataType, first: int) -> None:
    values = [first + step for step in (0, 1, 3, 7, 20, 39)]
    if not all((0 <= value < 1 << 64) if kind == pa.uint64() else (-(1 << 63) <= value < 1 << 63) for value in values):
        pytest.skip("the type has no such numbers")
    driven = Driven(RunningAggregateOperator("r", ["k"], {"v": variance("x")}))
    for part in (values[:1], values[1:4], values[4:]):
        driven.feed(pa.record_batch({"k": pa.array([1] * len(part)), "x": pa.array(part, kind)}))
    near = [value - first for value in values]
    assert driven.rows[-1]["v"] == pytest.approx(float(np.var(near, ddof=1)), rel=1e-9)


def test_a_first_outlier_costs_no_digits_of_the_variance() -> None:
    driven = Driven(RunningAggregateOperator("r", ["k"], {"v": variance("x")}))
    values = [1e6, *([1.0, 2.0, 3.0] * 1_000)]
    driven.feed(pa.record_batch({"k": pa.array([1] * len(values)), "x": pa.array(values)}))
    assert driven.rows[-1]["v"] == pytest.approx(float(np.var(np.array(values, np.longdouble), ddof=1)), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [3, -1]),
        (pa.uint16(), [3, 1]),
        (pa.uint64(), [2**63 - 1, 0]),
        (pa.bool_(), [True, False]),
        (pa.float32(), [0.5, -0.0]),
        (pa.date64(), [datetime.date(2020, 1, 2), datetime.date(1969, 1, 1)]),
        (pa.timestamp("ns", "UTC"), [datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)] * 2),
        (pa.timestamp("s"), [datetime.datetime(1960, 1, 1), datetime.datetime(2020, 1, 1)]),
        (pa.duration("us"), [datetime.timedelta(seconds=2), datetime.timedelta(seconds=-1)]),
        (pa.time64("us"), [datetime.time(1, 2), datetime.time(0, 1)]),
        (pa.decimal32(7, 2), [Decimal("-99999.99"), Decimal("0.01")]),
        (pa.decimal64(18, 0), [Decimal(10**18 - 1), Decimal(1 - 10**18)]),
        (pa.string(), ["b", "a\0"]),
        (pa.large_string(), ["b", "\u00e9"]),
        (pa.string_view(), ["", "\U0001f600"]),
        (pa.binary(), [b"b", b"a\0"]),
        (pa.large_binary(), [b"", b"\xff"]),
        (pa.binary_view(), [b"b", b"a\0"]),
        (pa.binary(3), [b"\0\0\0", b"abc"]),
        (pa.decimal128(38, 38), [Decimal("-0." + 38 * "9"), Decimal("0." + 37 * "0" + "1")]),
    ],
    ids=str,
)
def test_values_of_every_type_keep_their_type(kind: pa.DataType, values: list[Any]) -> None:
    aggregates = {
        "first": first("v"),
        "last": last("v"),
        "known": last("v", ignore_nulls=True),
        "low": min_("v"),
        "high": max_("v"),
        "at_low": arg_min("v", by="v"),
        "other": arg_min("n", by="v"),
    }
    column = pa.array([*values, None], kind)
    driven = Driven(RunningAggregateOperator("r", ["k"], aggregates))
    driven.feed(pa.record_batch({"k": [1, 1, 1], "v": column, "n": [0, 1, 2]}))
    result = driven.batches[0].rows
    assert [result.schema.field(name).type for name in aggregates] == [*[kind] * 6, pa.int64()]
    row, known = result.slice(2).to_pylist()[0], column.to_pylist()[:2]
    assert [row[name] for name in aggregates] == [
        known[0],
        None,
        known[1],
        min(known),
        max(known),
        min(known),
        known.index(min(known)),
    ]


def test_batches_without_rows_and_columns_without_values_give_nulls() -> None:
    driven = Driven(RunningAggregateOperator("r", ["k"], OF_NUMBERS))
    driven.feed([], LISTS)
    driven.feed([{"k": 1}], LISTS)
    driven.feed([], LISTS)
    (row,) = driven.rows
    assert {name: row[name] for name in OF_NUMBERS} == {**dict.fromkeys(OF_NUMBERS), "n": 1}


def test_names_of_columns_that_look_alike_are_kept_apart() -> None:
    rows = [{"k": 1, "a": 1, "a by b": 2, "b": 3, "b' by 'b": 4, "a' by 'b": 5}]
    aggregates = {
        "p": arg_min("a", by="b"),
        "q": arg_min("a by b", by="b"),
        "r": arg_min("a", by="b' by 'b"),
        "s": arg_min("a' by 'b", by="b"),
    }
    driven = Driven(RunningAggregateOperator("r", ["k"], aggregates))
    driven.feed(rows)
    assert [driven.rows[0][name] for name in aggregates] == [1, 2, 1, 5]


NAN, HIGHEST, LOWEST = float("nan"), 2**63 - 1, -(2**63)


@pytest.mark.parametrize("rows_per_batch", [1, 2, 9])
@pytest.mark.parametrize(
    ("by", "smallest", "greatest"),
    [
        ([3, 1, 1, 3, 2], 1, 0),
        ([None, 5, 5, None], 1, 1),
        ([None, None], None, None),
        ([0.0, -0.0], 0, 0),
        ([-0.0, 0.0], 0, 0),
        ([1.0, NAN, float("inf"), NAN, 1.0], 0, 1),
        ([NAN, 5.0], 1, 0),
        ([NAN, NAN], 0, 0),
        ([float("-inf"), -1.0, NAN], 0, 2),
        ([0, LOWEST, HIGHEST, LOWEST, HIGHEST], 1, 2),
        ([HIGHEST, HIGHEST - 1, HIGHEST - 2], 2, 0),
        ([Decimal(2**64), Decimal(2**64 - 1), Decimal(-1), Decimal(-(2**64)), Decimal(-(2**64) - 1)], 4, 0),
    ],
    ids=str,
)
def test_the_first_of_equal_rows_is_taken_and_nan_is_the_greatest(
    by: list[Any], smallest: int | None, greatest: int | None, rows_per_batch: int
) -> None:
    """Of two keys side by side, the second of which has far smaller values."""
    kind = pa.decimal128(38, 0) if isinstance(by[0], Decimal) else pa.array(by).type
    kind = pa.int64() if pa.types.is_null(kind) else kind
    column = pa.array([value for each in by for value in (each, None)], kind)
    other = pa.array([None, -7] * len(by), pa.int64()).cast(kind)
    rows = pa.record_batch(
        {"k": [1, 0] * len(by), "n": [at // 2 for at in range(2 * len(by))], "by": pc.coalesce(column, other)}
    )
    aggregates = {"smallest": arg_min("n", by="by"), "greatest": arg_max("n", by="by")}
    driven = Driven(RunningAggregateOperator("r", ["k"], aggregates))
    for start in range(0, rows.num_rows, rows_per_batch):
        driven.feed(rows.slice(start, rows_per_batch))
    last_of = {row["k"]: (row["smallest"], row["greatest"]) for row in driven.rows}
    assert last_of == {1: (smallest, greatest), 0: (0, 0)}


@pytest.mark.parametrize("rows_per_batch", [1, 2, 9])
def test_first_and_last_take_nulls_for_values_unless_told_otherwise(rows_per_batch: int) -> None:
    aggregates = {
        "first": first("v"),
        "known": first("v", ignore_nulls=True),
        "last": last("v"),
        "last_known": last("v", ignore_nulls=True),
    }
    driven = Driven(RunningAggregateOperator("r", ["k"], aggregates))
    values = pa.array([None, 4, 5, None], pa.int64())
    for start in range(0, len(values), rows_per_batch):
        part = values.slice(start, rows_per_batch)
        driven.feed(pa.record_batch({"k": [1] * len(part), "v": part}))
    assert [[row[name] for row in driven.rows] for name in aggregates] == [
        [None, None, None, None],
        [None, 4, 4, 4],
        [None, 4, 5, None],
        [None, 4, 5, 5],
    ]


def test_any_and_all_ignore_nulls_and_are_null_without_a_value() -> None:
    driven = Driven(RunningAggregateOperator("r", ["k"], {"any": any_("b"), "all": all_("b")}))
    values = [("a", None), ("a", True), ("a", None), ("a", False), ("b", False), ("b", True)]
    driven.feed([{"k": key, "b": value} for key, value in values])
    assert [(row["any"], row["all"]) for row in driven.rows] == [
        (None, None),
        (True, True),
        (True, True),
        (True, False),
        (False, False),
        (True, False),
    ]
    assert driven.batches[0].rows.schema.types[2:] == [pa.bool_()] * 2


TYPES = pa.schema(
    [
        ("k", pa.int64()),
        ("name", pa.string()),
        ("n", pa.int64()),
        ("on", pa.bool_()),
        ("at", pa.timestamp("us")),
        ("huge", pa.decimal256(60, 2)),
        ("list", pa.list_(pa.int64())),
    ]
)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (
            first("list"),
            r"x=first\(list\) cannot be computed of type list<.*> \(column 'list'\): its state holds numbers",
        ),
        (last("list", ignore_nulls=True), r"x=last\(list, ignore_nulls=True\) .* type list<.*\(column 'list'\)"),
        (arg_min("list", by="n"), r"x=arg_min\(list, by=n\) .* type list<.*\(column 'list'\)"),
        (arg_max("n", by="list"), r"x=arg_max\(n, by=list\) .* type list<.*\(column 'list'\)"),
        (sum_("name"), r"x=sum\(name\) .* type string"),
        (arg_max("n", by="gone"), r"x=arg_max\(n, by=gone\) needs a column 'gone'.*: the rows have k, name"),
        (any_("n"), r"x=any\(n\) .* type int64 \(column 'n'\): compute a boolean column in a select\(\) before"),
        (all_("name"), r"x=all\(name\) .* type string \(column 'name'\): compute a boolean"),
        (variance("on"), r"x=variance\(on\) .* type bool \(column 'on'\): cast the column to a number"),
        (stddev_pop("at"), r"x=stddev_pop\(at\) .* type timestamp\[us\] \(column 'at'\): cast the column to a number"),
        (sum_("at"), r"x=sum\(at\) .* type timestamp\[us\]"),
        (max_("huge"), r"x=max\(huge\) .* type decimal256\(60, 2\)"),
        (sum_("huge"), r"x=sum\(huge\) .* type decimal256\(60, 2\)"),
    ],
    ids=lambda value: str(value) if isinstance(value, Aggregate) else "",
)
def test_columns_of_other_types_are_refused_with_aggregate_column_type_and_remedy(
    aggregate: Aggregate, message: str
) -> None:
    flow = Dataflow("types")
    keyed = flow.from_iterator("s", lambda i, n: iter(()), schema=TYPES).key_by("k")
    with pytest.raises(InvalidJob, match=message):
        keyed.aggregate("r", x=aggregate)


@pytest.mark.parametrize("aggregate", [first("v"), arg_min("k", by="v")], ids=str)
def test_an_unsigned_number_beyond_the_signed_ones_is_refused_with_the_remedy(aggregate: Aggregate) -> None:
    driven = Driven(RunningAggregateOperator("r", ["k"], {"x": aggregate}))
    with pytest.raises(InvalidJob, match=r"running aggregate 'r': column 'v' \(uint64\).*cast it to float64"):
        driven.feed(pa.record_batch({"k": [1], "v": pa.array([2**63], pa.uint64())}))


def test_values_of_one_row_are_found_together_and_one_that_came_later_by_itself() -> None:
    """Picks by one column share a search while their state is equal."""
    picks = [Pick("max", column, pa.int64(), "x", pa.int64()) for column in ("a", "b", "c")]
    picks.append(Pick("min", "a", pa.int64(), "x", pa.int64()))
    random = np.random.default_rng(8)

    def batch() -> pa.RecordBatch:
        return pa.record_batch({name: random.integers(0, 50, 40) for name in ("a", "b", "c", "x")})

    def after(pick: Pick, before: Columns, rows: RunningOrder, values: BatchValues) -> dict[str, list[Any]]:
        return {name: column.tolist() for name, column in pick.running(before, rows, values, _left)[1].items()}

    held = [{name: np.full(4, initial, dtype) for name, (dtype, initial) in pick.storage().items()} for pick in picks]
    for number in range(3):
        added, rows = batch(), RunningOrder.of(random.permutation(np.arange(40) % 4))
        together = BatchValues(added, "a step")
        for pick, before in zip(picks, held, strict=True):
            alone = after(pick, before, rows, BatchValues(added, "a step"))
            assert after(pick, before, rows, together) == alone
            if number or pick.column != "b":  # b is there from the second batch on
                before.update(pick.running(before, rows, together, _left)[0])


def _left(column: str, row_id: int, aggregate: str = "sum_") -> Exception:
    return AssertionError(column)
