"""`kept_cast`: a column of another type has the same values, or is refused."""

from decimal import Decimal

import pyarrow as pa
import pytest

from barrier_runtime.data.values.casts import kept_cast

NAN = float("nan")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1, None], pa.int8()), pa.int64()),
        (pa.array([1, 2**53]), pa.float64()),
        (pa.array([1.0, None]), pa.int32()),
        (pa.array([NAN, 1.5, float("inf")], pa.float32()), pa.float64()),
        (pa.array([0.1, float("-inf")]), pa.float32()),
        (pa.array(["1.50"]), pa.float64()),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("ms", "UTC")),
        (pa.array([Decimal("1.50")]), pa.decimal128(10, 1)),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.int8())])),
        (pa.nulls(2), pa.int64()),
    ],
)
def test_values_that_stay_are_cast(column: pa.Array, kind: pa.DataType) -> None:
    made = kept_cast(column, kind)
    assert made.type == kind
    assert made.null_count == column.null_count


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1.5]), pa.int64()),
        (pa.array([NAN]), pa.int64()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([1.5]), pa.decimal128(10, 0)),
        (pa.array([1], pa.timestamp("us")), pa.date32()),
        (pa.array([86_400_000_000], pa.timestamp("us")), pa.time64("us")),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("ms")),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
        (pa.array([2]), pa.bool_()),
        (pa.array([b"\xff"]), pa.string()),
    ],
)
def test_values_that_would_change_are_refused(column: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"."):
        kept_cast(pa.concat_arrays([pa.nulls(1, column.type), column]), kind)
