"""The rows that a reader returned, in Arrow."""

import pyarrow as pa

from barrier_runtime.connectors.source import Polled
from barrier_runtime.data.elements import Batch


def polled_rows(polled: Polled | None) -> pa.RecordBatch:
    assert polled is not None
    return Batch(polled.rows, polled.emit_ns).rows
