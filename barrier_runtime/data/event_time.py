"""Event times as int64 milliseconds since the epoch, and the time reached at each row."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.state.errors import InvalidJob

Detail = Literal["none", "late", "rows", "every"]

_DAY_MS = 86_400_000
_LIKE_SECONDS = range(1_000_000_000, 5_000_000_000)  # 2001 to 2128
_SCALE = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}  # multiply, then divide


def is_event_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_int64(kind))


def check_event_time_type(kind: pa.DataType, column: str, where: str) -> None:
    """Raises `InvalidJob` unless `kind` is a timestamp, a date, or int64 (taken as milliseconds)."""
    if not is_event_time(kind):
        raise InvalidJob(
            f"{where}: event-time column {column!r} has type {kind}: use a timestamp, a date or int64 milliseconds, as "
            f"in types={{{column!r}: datetime}} of CSV and JSON files, schema={{{column!r}: datetime, …}} of any "
            f"source, or .with_columns({column}=…) before with_watermarks"
        )


def event_times_ms(times: pa.Array) -> npt.NDArray[np.int64]:
    """Converts `times` without nulls to milliseconds; finer units are rounded down."""
    kind = times.type
    if pa.types.is_timestamp(kind):
        multiply, divide = _SCALE[kind.unit]
        values = _numbers(times.view(pa.int64()))
        if divide != 1:
            return values // divide
        if multiply == 1:
            return values
        # beyond 64 bits values are clipped, then refused or late; they must not wrap
        return np.clip(values, -(WATERMARK_MAX // multiply), WATERMARK_MAX // multiply) * multiply
    if pa.types.is_date32(kind):
        return _numbers(times.view(pa.int32())).astype(np.int64) * _DAY_MS
    if pa.types.is_date64(kind):
        return _numbers(times.view(pa.int64()))
    return _numbers(times)


def doubt_of_unit(times: pa.Array, column: str, where: str) -> str:
    """Warning if the first whole number of `times` looks like seconds, else empty."""
    first = next((time.as_py() for time in times if time.is_valid), 0) if pa.types.is_int64(times.type) else 0
    if first not in _LIKE_SECONDS:
        return ""
    return (
        f"{where}: the event time {first} in column {column!r} is taken as milliseconds, so early in 1970. If the "
        f'column has seconds, convert them, as in .with_columns({column}="timestamp_seconds({column})")'
        f".with_watermarks({column!r}), without event_time= at the source"
    )


def greatest_event_time_ms(rows: FewRows, column: str) -> int:
    """Greatest of the rows' times (ms); WATERMARK_MIN if all are null."""
    position = rows.layout.positions[column]
    values = rows.columns[position]
    if None in values:
        values = [value for value in values if value is not None]
    greatest: int | None = max(values, default=None)
    if greatest is None:
        return WATERMARK_MIN
    if not rows.layout.times[position]:
        return greatest
    kind = rows.layout.types[position]
    if pa.types.is_timestamp(kind):
        multiply, divide = _SCALE[kind.unit]
        return greatest * multiply // divide
    return greatest * _DAY_MS if pa.types.is_date32(kind) else greatest


@dataclass
class EventClock:
    """Event time of one stream (a split): the greatest time seen, less the allowed out-of-orderness.

    `detail` selects the batches that get `reached`. "late": batches with late rows. "rows" and "every": batches that
    advance event time, for windows of other times and for timers.
    """

    max_out_of_orderness_ms: int
    detail: Detail = "none"
    greatest_ms: int = WATERMARK_MIN

    @property
    def watermark_ms(self) -> int:
        return max(WATERMARK_MIN, self.greatest_ms - self.max_out_of_orderness_ms - 1)

    def see(self, times: pa.Array, others_ms: int = WATERMARK_MAX) -> npt.NDArray[np.int64] | None:
        """Advances by the event times of the next rows.

        `others_ms`: limit set by other streams. Returns the event time reached at each row, inclusive; None if `detail`
        does not require these times.
        """
        known = times.drop_null() if times.null_count else times
        if not len(known):
            return None
        values = event_times_ms(known)
        before_ms, self.greatest_ms = self.greatest_ms, max(self.greatest_ms, int(values.max()))
        if self.detail == "none" or self.greatest_ms == before_ms:
            return None
        if self.detail == "late" and (int(values.min()) > self.watermark_ms or self._in_order(values, before_ms)):
            return None
        if times.null_count:
            filled = np.full(len(times), WATERMARK_MIN, np.int64)
            filled[times.is_valid().to_numpy(zero_copy_only=False)] = values
            values = filled
        least_ms = WATERMARK_MIN + self.max_out_of_orderness_ms + 1
        greatest = np.maximum(np.maximum.accumulate(values), max(before_ms, least_ms))
        reached = greatest - (self.max_out_of_orderness_ms + 1)
        if self.detail == "late" and not (values <= reached).any():
            return None
        told: npt.NDArray[np.int64] = np.minimum(reached, others_ms)
        return told

    def _in_order(self, values: npt.NDArray[np.int64], before_ms: int) -> bool:
        """Returns whether the times never decrease and the first is in time: then no row is late."""
        first_ms = int(values[0])
        if first_ms <= max(WATERMARK_MIN, before_ms - self.max_out_of_orderness_ms - 1):
            return False
        return bool((values[1:] >= values[:-1]).all())


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return values
