"""Parts of windows for the combiner: rows of a key and part belong to the same windows.

If a batch carries no event time per row, all of these rows are late or none is. Other batches are not combined.
"""

from dataclasses import dataclass

import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.data.grouping import extremes
from barrier_runtime.operators.windows.assigners import WindowAssigner


@dataclass(frozen=True)
class WindowParts:
    """Parts of `window`, by the column of event times."""

    window: WindowAssigner
    column: str

    def __call__(self, batch: Batch) -> pa.Array | None:
        """Returns the part of each row; None: rows may not be combined."""
        if batch.reached is not None or self.column not in batch.rows.schema.names:
            return None
        times = batch.rows.column(self.column)
        if times.null_count:
            return None
        times_ms = event_times_ms(times)
        return pa.array(self.window.parts_of(times_ms)) if self.window.holds(*extremes(times_ms)) else None
