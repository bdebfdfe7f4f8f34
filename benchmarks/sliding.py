"""Sliding windows in our DSL, made of two tumbling windows.

The first windows are panes as long as the slide; then each pane counts in each window that contains it. So a row is
processed once per pane and not once per window.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import Tumbling, count, sum_
from barrier_runtime.api.dataflow import Stream


def sliding(
    stream: Stream,
    name: str,
    keys: Sequence[str],
    size: timedelta,
    slide: timedelta,
    *,
    event_time: str,
    sums: Sequence[str] = (),
) -> Stream:
    """Columns: `keys`, `end_ms` (exclusive end of the window, int64), `n` (rows), the sums by name.

    `size` is a multiple of `slide`."""
    panes_per_window = size // slide
    slide_ms = slide // timedelta(milliseconds=1)
    panes = (
        stream.key_by(*keys)
        .window(f"{name}-panes", Tumbling(slide), event_time=event_time)
        .aggregate(n=count(), **{f"sum_{column}": sum_(column) for column in sums})
    )
    schema = panes.schema
    assert schema is not None
    output = pa.schema(
        [
            *(schema.field(key) for key in keys),
            pa.field("end_ms", pa.int64()),
            pa.field("last_ms", pa.int64()),
            pa.field("n", pa.int64()),
            *(pa.field(f"sum_{column}", schema.field(f"sum_{column}").type) for column in sums),
        ]
    )
    function = partial(_into_windows, output=output, panes=panes_per_window, slide_ms=slide_ms)
    parts = panes.map_batches(function, schema=output, name=f"{name}-spread")
    windows = (
        parts.key_by(*keys)
        .window(name, Tumbling(slide), event_time="last_ms")
        .aggregate(rows=sum_("n"), **{column: sum_(f"sum_{column}") for column in sums})
    )
    end_ms = pc.field("window_end").cast(pa.int64())
    return windows.select(
        {**{key: key for key in keys}, "end_ms": end_ms, "n": "rows", **{column: column for column in sums}}
    )


def _into_windows(rows: pa.RecordBatch, output: pa.Schema, panes: int, slide_ms: int) -> pa.RecordBatch:
    """A row per window that contains the pane.

    `last_ms`, the window's last millisecond, is in the pane at the window's end; there the second tumbling window
    collects the parts."""
    repeated = rows.take(pa.array(np.repeat(np.arange(rows.num_rows), panes)))
    pane_ends = repeated.column("window_end").view(pa.int64()).to_numpy()
    ends = pane_ends + np.tile(np.arange(panes), rows.num_rows) * slide_ms
    made = {"end_ms": pa.array(ends), "last_ms": pa.array(ends - 1)}
    columns = [made[field.name] if field.name in made else repeated.column(field.name) for field in output]
    return pa.RecordBatch.from_arrays(columns, schema=output)
