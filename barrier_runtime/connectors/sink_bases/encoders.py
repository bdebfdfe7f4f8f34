"""Rows → bytes of one file, per format. Run off the loop, so they give the interpreter back often.

Arrow's Parquet and CSV writers release the GIL. JSON lines are made of Python objects: in small chunks, with the GIL
offered to the loop after each, because holding it is a latency spike for every record that comes meanwhile.
"""

from collections.abc import Sequence
from time import sleep

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.sink_bases.json_values import json_rows, refuse_far_times

_JSON_ROWS = 256


def parquet(batches: Sequence[pa.RecordBatch]) -> bytes:
    import pyarrow.parquet as pq  # 20 ms; only users of Parquet pay

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(batches).combine_chunks(), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def is_in_parquet(kind: pa.DataType) -> bool:
    """Whether a file can hold values of `kind`."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.schema([("value", kind)]).empty_table(), pa.BufferOutputStream())
    except (pa.ArrowException, OSError):
        return False
    return True


def csv(batches: Sequence[pa.RecordBatch]) -> bytes:
    """With a header line. A null is an empty field, an empty text is `""`, times with a zone are in UTC."""
    import pyarrow.csv

    table = pa.Table.from_batches(batches).combine_chunks()
    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks:
            refuse_far_times(chunk, name)
    fields = [field.with_type(_csv_type(field.type)) for field in table.schema]
    written = table if fields == list(table.schema) else table.cast(pa.schema(fields))
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(written, sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow writes without a loss: of local time it leaves out the seconds of an old zone's offset."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return pa.string() if pa.types.is_string_view(kind) else kind


def jsonl(batches: Sequence[pa.RecordBatch]) -> bytes:
    """One object per line, with the values of `json_values`."""
    encoder = msgspec.json.Encoder()
    lines = bytearray()
    together = pa.Table.from_batches(batches).combine_chunks()  # many small batches cost four times as much
    for batch in together.to_batches():
        for start in range(0, batch.num_rows, _JSON_ROWS):
            lines += encoder.encode_lines(json_rows(batch.slice(start, _JSON_ROWS)))
            sleep(0)  # another thread gets the GIL now, not after the interpreter's 5 ms
    return bytes(lines)
