"""Event times of the two sides of a join in one unit, fine enough for both, so that they are compared exactly."""

import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.joins.row_run import TIME_LIMIT
from barrier_runtime.state.errors import InvalidJob

_PER_MS = {"us": 1_000, "ns": 1_000_000}


class JoinClock:
    """`per_ms`: units in a millisecond."""

    def __init__(self, *kinds: pa.DataType) -> None:
        """`kinds`: types of the event-time columns."""
        units = (_PER_MS.get(kind.unit, 1) if pa.types.is_timestamp(kind) else 1 for kind in kinds)
        self.per_ms = max(units, default=1)

    def times(self, column: pa.Array, times_ms: npt.NDArray[np.int64], where: str) -> npt.NDArray[np.int64]:
        """Of `column`, without nulls, of which `times_ms` are the milliseconds (one or more)."""
        kind = column.type
        per_ms = _PER_MS.get(kind.unit, 1) if pa.types.is_timestamp(kind) else 1
        limit = TIME_LIMIT // self.per_ms
        for time in (int(times_ms.min()), int(times_ms.max())):
            if abs(time) >= limit:
                raise InvalidJob(
                    f"{where}: a row has the event time {time} ms, and a join counts in 1/{self.per_ms} ms within 63 "
                    "bits: filter or correct such rows before"
                )
        if per_ms == 1:
            return times_ms * self.per_ms if self.per_ms > 1 else times_ms
        values: npt.NDArray[np.int64] = column.view(pa.int64()).to_numpy(zero_copy_only=False)
        return values * (self.per_ms // per_ms)

    def first_after(self, watermark_ms: int) -> int:
        """The first time that is not behind the watermark; greater than all times at the end of time."""
        if watermark_ms == WATERMARK_MAX:
            return WATERMARK_MAX
        return max(WATERMARK_MIN, min(WATERMARK_MAX, (watermark_ms + 1) * self.per_ms))

    def floor(self, span: datetime.timedelta) -> int:
        """The greatest number of units that is not more than `span`."""
        return (span // datetime.timedelta(microseconds=1)) * self.per_ms // 1_000

    def ceil(self, span: datetime.timedelta) -> int:
        return -self.floor(-span)
