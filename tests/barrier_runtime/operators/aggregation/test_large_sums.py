"""Sums and means of integers near and beyond 64 bits, in windows and running, against Python's integers."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, World
from window_operators import aggregating

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.aggregation.functions import Aggregate, max_, mean, min_, sum_
from barrier_runtime.operators.aggregation.plan import plan_aggregates
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.keyed.progress import VALUE, Progress, schema_bytes
from barrier_runtime.operators.windows.assigners import Tumbling
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.drawn import examples

HIGHEST, LOWEST = 2**63 - 1, -(2**63)
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
WINDOW = Tumbling(datetime.timedelta(milliseconds=100))


def windowed(**aggregates: Aggregate) -> WindowOperator:
    return aggregating("w", ["k"], WINDOW, "t", aggregates)


def running(**aggregates: Aggregate) -> RunningAggregateOperator:
    return RunningAggregateOperator("r", ["k"], aggregates)


MAKERS = [windowed, running]


def rows(values: list[int | None], key: str = "a") -> list[dict[str, Any]]:
    return [{"k": key, "t": 0, "v": value} for value in values]


def feed_in_batches(driven: Driven, given: list[dict[str, Any]], rows_per_batch: int) -> None:
    for start in range(0, len(given), rows_per_batch):
        driven.feed(given[start : start + rows_per_batch], SCHEMA)


def last(driven: Driven) -> dict[str, Any]:
    driven.watermark(WATERMARK_MAX)
    return driven.rows[-1]


VALUES = st.one_of(
    st.none(), st.sampled_from([HIGHEST, LOWEST, HIGHEST - 1, 2**62, -(2**62), 1, 0, -1]), st.integers(LOWEST, HIGHEST)
)


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
@examples(100)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), VALUES), min_size=1, max_size=12), min_size=1, max_size=4
    ),
    restart=st.booleans(),
)
def test_means_and_wide_sums_equal_pythons_integers_however_large(
    make: Any, batches: list[list[tuple[str, int | None]]], restart: bool
) -> None:
    def made() -> Any:
        return make(wide=sum_("v", widen=True), mean=mean("v"))

    world, seen = World(), {}
    driven = Driven(made(), world, name="op")
    results: dict[str, dict[str, Any]] = {}
    for checkpoint, batch in enumerate(batches, 1):
        driven.feed([{"k": key, "t": 0, "v": value} for key, value in batch], SCHEMA)
        for key, value in batch:
            seen.setdefault(key, []).append(value)
        if restart:
            snapshot = driven.snapshot(checkpoint)
            results |= {row["k"]: row for row in driven.take()}
            driven.operator.close()
            driven = Driven(made(), world, (snapshot,), name="op")
    driven.watermark(WATERMARK_MAX)
    results |= {row["k"]: row for row in driven.take()}
    for key, values in seen.items():
        known = [value for value in values if value is not None]
        assert results[key]["wide"] == (Decimal(sum(known)) if known else None)
        assert results[key]["mean"] == (sum(known) / len(known) if known else None), "rounded once"


@pytest.mark.parametrize("make", MAKERS)
def test_the_mean_of_nanoseconds_since_the_epoch_lies_between_them(make: Any) -> None:
    now = 1_760_000_000 * 10**9
    driven = Driven(make(mean=mean("v")))
    driven.feed(rows([now + second * 10**9 for second in range(6)]), SCHEMA)
    assert last(driven)["mean"] == now + 2.5 * 10**9


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "values",
    [
        [-691751626118174893, 213937942524425405, -277394149310126774],
        [-5706908326751317, -7837738693102783, -6468844922000639, 7313801095796310, 1123979006714500],
        [-7400194434867663959] * 2 + [HIGHEST // 3, -1, 0],  # beyond 64 bits, and back
        [LOWEST, 0, 0],
    ],
)
def test_the_mean_of_a_sum_that_no_double_is_has_one_rounding(make: Any, values: list[int]) -> None:
    driven = Driven(make(mean=mean("v")))
    driven.feed(rows(list(values)), SCHEMA)
    assert last(driven)["mean"] == sum(values) / len(values)


@pytest.mark.parametrize("counted", [(1, 9), (1, 2**20), (2**26, 2**32)])
@pytest.mark.parametrize("bits", [52, 54, 56, 60, 63])
def test_means_are_those_of_pythons_integers_bit_for_bit(bits: int, counted: tuple[int, int]) -> None:
    rng = np.random.default_rng(bits)
    counts = rng.integers(*counted, 500)
    sums = np.concatenate(  # half of the sums are next to or on the middle of two doubles
        [
            rng.integers(-(2**bits), 2**bits - 1, 250, endpoint=True),
            ((rng.integers(2**51, 2**52, 250) * 2 + 1 << max(0, bits - 54)) // counts[250:] * counts[250:])
            + rng.integers(-1, 2, 250),
        ]
    )
    kept: dict[str, Any] = {"rows": counts, "values:v": counts, "sum:v": sums}
    (output,) = plan_aggregates({"mean": mean("v")}, SCHEMA, "a step").outputs
    found = output.column(kept, lambda *_: AssertionError("none leaves its type")).to_pylist()
    assert found == [total / count for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "values", [[HIGHEST, 5], [LOWEST, -1], [2**62, 2**62], [HIGHEST, 1, -1], [1] * 600 + [HIGHEST]]
)
@pytest.mark.parametrize("rows_per_batch", [pytest.param(1, marks=pytest.mark.slow), 2, 1_000])
def test_a_sum_that_leaves_64_bits_is_refused_at_that_row_with_key_and_remedy(
    make: Any, values: list[int], rows_per_batch: int
) -> None:
    driven = Driven(make(total=sum_("v"), mean=mean("v")))
    given = rows([3] * 700, "b") + rows(values, "k7")
    with pytest.raises(InvalidJob, match=r"sum_\('v'\) of key 'k7' leaves 64 bits.*widen=True.*decimal128\(38, 0\)"):
        feed_in_batches(driven, given, rows_per_batch)


@pytest.mark.parametrize("make", MAKERS)
def test_sums_up_to_the_very_limits_are_given(make: Any) -> None:
    driven = Driven(make(total=sum_("v")))
    for key, values in {"a": [HIGHEST - 1, 1], "b": [LOWEST + 1, -1], "c": [HIGHEST, LOWEST]}.items():
        driven.feed(rows(values, key), SCHEMA)
        driven.feed(rows([0, 0], key), SCHEMA)
    driven.watermark(WATERMARK_MAX)
    assert {row["k"]: row["total"] for row in driven.rows} == {"a": HIGHEST, "b": LOWEST, "c": -1}


def test_many_batches_that_add_up_beyond_64_bits_are_noticed_though_each_is_harmless() -> None:
    driven = Driven(windowed(total=sum_("v")))
    with pytest.raises(InvalidJob, match="leaves 64 bits"):
        feed_in_batches(driven, rows([2**50] * 9_000), 1_024)


def test_a_wide_sum_in_a_flow_has_its_type_and_values() -> None:
    flow, out = Dataflow("wide"), CollectSink()
    stream = flow.from_iterator("s", lambda i, n: iter(rows([HIGHEST, 5])) if i == 0 else iter(()), schema=SCHEMA)
    stream.key_by("k").aggregate("r", total=sum_("v", widen=True)).sink("out", out)
    flow.run_local(parallelism=1)
    assert [row["total"] for row in out.rows()] == [Decimal(HIGHEST), Decimal(HIGHEST + 5)]
    assert out.batches()[0].schema.field("total").type == pa.decimal128(38, 0)


def test_widening_a_sum_of_floats_is_refused() -> None:
    flow = Dataflow("floats")
    stream = flow.from_iterator("s", lambda i, n: iter(()), schema={"k": str, "x": float})
    with pytest.raises(InvalidJob, match="is for integers, but 'x' is double: leave widen out"):
        stream.key_by("k").aggregate("r", total=sum_("x", widen=True))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("aggregate", [sum_, mean, min_, max_])
def test_unsigned_value_beyond_signed_range_is_refused_with_operator_and_column(make: Any, aggregate: Any) -> None:
    schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.uint64())])
    driven = Driven(make(x=aggregate("v")))
    driven.feed(rows([7]), schema)
    with pytest.raises(
        InvalidJob, match=r"(window 'w'|running aggregate 'r'): column 'v' \(uint64\).*cast it to float64"
    ):
        driven.feed(rows([2**63]), schema)


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_state_of_means_written_before_there_were_carries_is_read_and_goes_on(
    kind: Kind, entries: bool, make: Any
) -> None:
    """`entries`: not as segments, as evicted tables are written."""
    world = World(kind)
    columns = {"rows": ("int64", 0), "values:v": ("int64", 0), "sum:v": ("int64", 0)}
    backend = world.context("op").open_keyed()
    table = backend.column_table("windows" if make is windowed else "running", columns, 1, evictable=True)
    if entries:
        table._leave_segments()
    row_ids = table.row_ids([("a", 0), ("b", 0)] if make is windowed else [("a",), ("b",)])
    for name, values in {"rows": [2, 1], "values:v": [2, 1], "sum:v": [HIGHEST, 4]}.items():
        table.columns[name][row_ids] = values
    table.mark_dirty(row_ids)
    backend.snapshots.freeze(1)
    while not backend.snapshots.drain():
        pass
    bound = pa.schema([field for field in SCHEMA if make is windowed or field.name != "t"])
    progress = Progress(schema=schema_bytes(bound)).encode()
    snapshot = OperatorSnapshot("op", 0, 1, {VALUE: progress}, backend.snapshots.write(1))
    backend.close()
    for checkpoint in (2, 3, 4):  # the old columns next to the new ones, in several checkpoints
        driven = Driven(make(mean=mean("v")), world, (snapshot,), name="op")
        driven.feed(rows([HIGHEST]), SCHEMA)
        snapshot = driven.snapshot(checkpoint)
        driven.operator.close()
    driven = Driven(make(mean=mean("v")), world, (snapshot,), name="op")
    driven.feed([*rows([0], "b"), *rows([HIGHEST])], SCHEMA)
    driven.watermark(WATERMARK_MAX)
    assert {row["k"]: row["mean"] for row in driven.rows} == {"a": pytest.approx(5 * HIGHEST / 6), "b": 2.0}
