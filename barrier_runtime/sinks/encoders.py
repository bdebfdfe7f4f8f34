"""Rows → bytes of one file, per format. Pure functions; run off the loop, so they give the interpreter back often.

Arrow's Parquet and CSV writers release the GIL. JSON lines are made of Python objects: in small pieces, because one
long call that holds the GIL is a latency spike for every record that the loop processes meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

Encode: TypeAlias = Callable[[Sequence[pa.RecordBatch]], bytes]

_JSON_ROWS = 256


def parquet(batches: Sequence[pa.RecordBatch]) -> bytes:
    import pyarrow.parquet as pq  # 20 ms; only who writes Parquet pays

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
    """One object per line. Times are ISO 8601, binary is base64, NaN and infinities are null (JSON has none)."""
    encoder = msgspec.json.Encoder()
    lines = bytearray()
    for batch in batches:
        for start in range(0, batch.num_rows, _JSON_ROWS):
            lines += encoder.encode_lines(batch.slice(start, _JSON_ROWS).to_pylist())
    return bytes(lines)
