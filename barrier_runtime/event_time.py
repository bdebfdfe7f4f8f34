"""Event times as int64 milliseconds since the epoch, from every column type that can carry them."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.errors import InvalidJob

_DAY_MS = 86_400_000
_SCALE = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}  # multiply, then divide


def check_event_time_type(kind: pa.DataType, column: str, where: str) -> None:
    """Timestamps, dates, and int64 (taken as milliseconds) are event times; anything else is refused."""
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_int64(kind)):
        raise InvalidJob(
            f"{where}: event-time column {column!r} has type {kind}: use a timestamp, a date or int64 milliseconds"
        )


def event_times_ms(times: pa.Array) -> npt.NDArray[np.int64]:
    """`times` without nulls (see `check_event_time_type`) as milliseconds; finer units are rounded down."""
    kind = times.type
    if pa.types.is_timestamp(kind):
        multiply, divide = _SCALE[kind.unit]
        values = _numbers(times.view(pa.int64()))
        if divide != 1:
            return values // divide
        return values * multiply if multiply != 1 else values
    if pa.types.is_date32(kind):
        return _numbers(times.view(pa.int32())).astype(np.int64) * _DAY_MS
    if pa.types.is_date64(kind):
        return _numbers(times.view(pa.int64()))
    return _numbers(times)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return values
