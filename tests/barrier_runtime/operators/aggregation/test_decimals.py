"""Sums, means and extremes of decimals up to 38 digits: types as in Spark, exact results, errors on overflow."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from operator_harness import Driven, World
from window_operators import aggregating

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.aggregation.functions import Aggregate, max_, mean, min_, sum_
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.windows.assigners import Tumbling
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.state.errors import InvalidJob

WINDOW = Tumbling(datetime.timedelta(milliseconds=100))
MOST = 10**38 - 1


def windowed(**aggregates: Aggregate) -> WindowOperator:
    return aggregating("w", ["k"], WINDOW, "t", aggregates)


def running(**aggregates: Aggregate) -> RunningAggregateOperator:
    return RunningAggregateOperator("r", ["k"], aggregates)


MAKERS = [windowed, running]


def units(values: list[int | None], precision: int, scale: int) -> pa.Array:
    """Decimals of so many units of the last digit."""
    return pa.array(
        [None if value is None else Decimal(f"{value}E{-scale}") for value in values], pa.decimal128(precision, scale)
    )


def feed(driven: Driven, values: pa.Array, key: str = "a", rows_per_batch: int = 1_000) -> None:
    for start in range(0, len(values), rows_per_batch):
        part = values.slice(start, rows_per_batch)
        driven.feed(pa.record_batch({"k": [key] * len(part), "t": [0] * len(part), "d": part}))


def last(driven: Driven) -> dict[str, Any]:
    driven.watermark(WATERMARK_MAX)
    return driven.rows[-1]


@pytest.mark.parametrize(
    ("precision", "scale", "of_sum", "of_mean"),
    [
        (5, 2, (15, 2), (9, 6)),
        (28, 0, (38, 0), (32, 4)),
        (38, 10, (38, 10), (38, 14)),
        (38, 36, (38, 36), (38, 38)),
    ],
)
def test_types_are_those_of_spark(
    precision: int, scale: int, of_sum: tuple[int, int], of_mean: tuple[int, int]
) -> None:
    kind = pa.decimal128(precision, scale)
    flow, out = Dataflow("decimals"), CollectSink()
    schema = pa.schema([("k", pa.int64()), ("d", kind)])
    rows = [{"k": 1, "d": Decimal(1).scaleb(-scale)}]
    stream = flow.from_iterator("s", lambda i, n: iter(rows) if i == 0 else iter(()), schema=schema)
    counted = stream.key_by("k").aggregate("r", s=sum_("d"), m=mean("d"), low=min_("d"), high=max_("d"))
    expected = [pa.decimal128(*of_sum), pa.decimal128(*of_mean), kind, kind]
    assert counted.schema is not None
    assert counted.schema.types[2:] == expected
    counted.sink("out", out)
    flow.run_local(parallelism=1)
    assert out.batches()[0].schema.types[2:] == expected
    assert [out.rows()[0][name] for name in ("s", "m", "low", "high")] == [rows[0]["d"]] * 4


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "values",
    [[MOST, 1], [-MOST, -1], [MOST, MOST], [-MOST, -MOST], [MOST, 1, -1], [10**37] * 10, [*[1] * 600, MOST]],
    ids=["one above", "one below", "beyond 128 bits", "below 128 bits", "for one row", "by steps", "in a long batch"],
)
@pytest.mark.parametrize("rows_per_batch", [2, 1_000])
def test_sum_beyond_its_digits_is_refused_at_its_row_with_key_column_and_remedy(
    make: Any, values: list[int], rows_per_batch: int
) -> None:
    driven = Driven(make(total=sum_("d"), low=min_("d")))
    feed(driven, units([3] * 700, 38, 4), "b")
    expected = r"sum_\('d'\) of key 'k7' leaves decimal128\(38, 4\): cast the column to float64 in a select\(\) before"
    with pytest.raises(InvalidJob, match=expected):
        feed(driven, units(values, 38, 4), "k7", rows_per_batch)


@pytest.mark.parametrize("make", MAKERS)
def test_sums_up_to_the_very_limits_are_given(make: Any) -> None:
    driven = Driven(make(total=sum_("d")))
    for key, values in {"a": [MOST - 1, 1], "b": [1 - MOST, -1], "c": [MOST, -MOST], "d": [2**63 - 1, 1, None]}.items():
        feed(driven, units(values, 38, 0), key)
        feed(driven, units([0, None], 38, 0), key)
    driven.watermark(WATERMARK_MAX)
    found = {row["k"]: row["total"] for row in driven.rows}
    assert found == {"a": Decimal(MOST), "b": Decimal(-MOST), "c": Decimal(0), "d": Decimal(2**63)}


def test_a_sum_of_fewer_digits_has_room_for_ten_more_and_no_more() -> None:
    world = World()
    driven = Driven(running(total=sum_("d")), world, name="op")
    feed(driven, units([9], 1, 0))
    snapshot = driven.snapshot(1)
    backend = driven.operator
    table = backend._table
    table.columns["sum.low:d"][table.row_ids([("a",)])] = 10**11 - 5
    table.mark_dirty(table.row_ids([("a",)]))
    feed(driven, units([4], 1, 0))
    assert driven.rows[-1]["total"] == Decimal(10**11 - 1)
    with pytest.raises(InvalidJob, match=r"leaves decimal128\(11, 0\): cast the column to a decimal of more digits"):
        feed(driven, units([1], 1, 0))
    driven.operator.close()
    again = Driven(running(total=sum_("d")), world, (snapshot,), name="op")
    feed(again, units([1], 1, 0))
    assert again.rows[-1]["total"] == 10


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], "0.0150"),
        ([1, 1, 0], "0.006667"),
        ([-1, -1, 0], "-0.006667"),
        ([1, *[0] * 19_999], "0.000001"),
        ([-1, *[0] * 19_999], "-0.000001"),
        ([1, *[0] * 20_000], "0"),
        ([10**18 - 1] * 3, "9999999999999999.99"),
        ([None], None),
        ([None, 5], "0.05"),
    ],
)
def test_a_mean_has_four_digits_more_and_is_rounded_half_up(
    make: Any, values: list[int | None], expected: str | None
) -> None:
    driven = Driven(make(m=mean("d")))
    feed(driven, units(values, 18, 2))
    assert last(driven)["m"] == (None if expected is None else Decimal(expected))


@pytest.mark.parametrize("make", MAKERS)
def test_a_mean_that_does_not_fit_its_type_is_refused_with_key_column_and_remedy(make: Any) -> None:
    driven = Driven(make(m=mean("d")))
    feed(driven, units([10**34 - 1], 38, 0))
    feed(driven, units([7], 38, 0), "b")

    def too_large() -> None:
        feed(driven, units([10**34], 38, 0), "k9")
        last(driven)

    with pytest.raises(InvalidJob, match=r"mean\('d'\) of key 'k9' leaves decimal128\(38, 4\): cast the column"):
        too_large()


def test_widening_a_sum_of_decimals_is_refused_as_it_is_wide_already() -> None:
    flow = Dataflow("wide")
    stream = flow.from_iterator(
        "s", lambda i, n: iter(()), schema=pa.schema([("k", pa.int64()), ("d", pa.decimal128(9, 2))])
    )
    with pytest.raises(InvalidJob, match=r"is for integers, but 'd' is decimal128\(9, 2\): leave widen out"):
        stream.key_by("k").aggregate("r", total=sum_("d", widen=True))
