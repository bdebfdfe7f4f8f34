"""Rows → bytes of one file, per format. Run off the loop, so they give the interpreter back often.

Arrow's Parquet and CSV writers release the GIL. JSON lines are made of Python objects: in small chunks, with the GIL
offered to the loop after each, because holding it is a latency spike for every record that comes meanwhile.
"""

from collections.abc import Sequence
from time import sleep

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.sink_bases.json_values import json_rows

_JSON_ROWS = 256


def parquet(batches: Sequence[pa.RecordBatch]) -> bytes:
    import pyarrow.parquet as pq  # 20 ms; only users of Parquet pay

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(batches).combine_chunks(), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def csv(batches: Sequence[pa.RecordBatch]) -> bytes:
    """With a header line."""
    import pyarrow.csv

    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.Table.from_batches(batches).combine_chunks(), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def jsonl(batches: Sequence[pa.RecordBatch]) -> bytes:
    """One object per line. Times are ISO 8601, binary is base64, a map is an object, NaN and infinities are null (JSON
    has none)."""
    encoder = msgspec.json.Encoder()
    lines = bytearray()
    together = pa.Table.from_batches(batches).combine_chunks()  # many small batches cost four times as much
    for batch in together.to_batches():
        for start in range(0, batch.num_rows, _JSON_ROWS):
            lines += encoder.encode_lines(json_rows(batch.slice(start, _JSON_ROWS)))
            sleep(0)  # another thread gets the GIL now, not after the interpreter's 5 ms
    return bytes(lines)
