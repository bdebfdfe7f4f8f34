"""`with_watermarks` in the middle of a stream: the watermark follows a column of the rows that pass.

It keeps no state: after a recovery it rises anew from the rows that come, and operators that drop late rows remember
how far event time was by themselves.
"""

from barrier_runtime.elements import WATERMARK_MIN, Batch
from barrier_runtime.event_time import check_event_time_type, event_times_ms
from barrier_runtime.operators.base import Emit, Operator
from state.errors import InvalidJob


class WatermarkOperator(Operator):
    """Replaces the watermarks of its input."""

    forwards_watermarks = False

    def __init__(self, name: str, column: str, max_out_of_orderness_ms: int) -> None:
        self._where = f"with_watermarks {name!r}"
        self._column = column
        self._bound_ms = max_out_of_orderness_ms
        self._greatest_ms = WATERMARK_MIN

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        schema = batch.rows.schema
        if self._column not in schema.names:
            raise InvalidJob(
                f"{self._where}: there is no column {self._column!r}: use one of {', '.join(schema.names)}"
            )
        times = batch.rows.column(self._column)
        check_event_time_type(times.type, self._column, self._where)
        if times.null_count:
            times = times.drop_null()
        if len(times):
            self._greatest_ms = max(self._greatest_ms, int(event_times_ms(times).max()))
        emit(batch)

    def own_watermark(self) -> int | None:
        if self._greatest_ms == WATERMARK_MIN:
            return None
        return self._greatest_ms - self._bound_ms - 1
