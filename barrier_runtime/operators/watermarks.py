"""`with_watermarks` in the middle of a stream: the watermark follows a column of the rows that pass.

It keeps no state: after a recovery it rises anew from the rows that come, and operators that drop late rows remember
how far event time was by themselves.
"""

from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.data.event_time import Detail, EventClock, check_event_time_type
from barrier_runtime.data.schemas import no_column
from barrier_runtime.operators.base import Emit, Operator


class WatermarkOperator(Operator):
    """Replaces the watermarks of its input."""

    forwards_watermarks = False

    def __init__(self, name: str, column: str, max_out_of_orderness_ms: int, detail: Detail = "every") -> None:
        self._where = f"with_watermarks {name!r}"
        self._column = column
        self._clock = EventClock(max_out_of_orderness_ms, detail)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        schema = batch.rows.schema
        if self._column not in schema.names:
            raise no_column(self._column, schema.names, self._where)
        times = batch.rows.column(self._column)
        check_event_time_type(times.type, self._column, self._where)
        emit(Batch(batch.rows, batch.emit_ns, self._clock.see(times)))

    def own_watermark(self) -> int | None:
        return None if self._clock.greatest_ms == WATERMARK_MIN else self._clock.watermark_ms
