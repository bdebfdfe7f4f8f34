"""Encoders of rows into the bytes of a file, one per format, for use off the event loop.

Arrow's writers of Parquet and CSV release the GIL. JSON lines are made from Python objects, in small chunks: after each
chunk another thread may take the GIL, because a held GIL delays every record that arrives meanwhile.
"""

from collections.abc import Sequence
from time import sleep

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.json_values import (
    json_rows,
    moment_texts,
    refuse_far_times,
    with_moments_as_text,
)

_JSON_ROWS = 256


def parquet(batches: Sequence[pa.RecordBatch]) -> bytes:
    import pyarrow.parquet as pq  # the import takes 20 ms; only users of Parquet pay

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(batches).combine_chunks(), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def is_in_parquet(kind: pa.DataType) -> bool:
    """Returns whether a Parquet file can hold values of type `kind`."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.schema([("value", kind)]).empty_table(), pa.BufferOutputStream())
    except (pa.ArrowException, OSError):
        return False
    return True


def csv(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Returns CSV with a header line.

    A null is an empty field, empty text is `""`, times with a zone are in UTC.
    """
    return csv_head(batches[0].schema) + csv_rows(batches)


def csv_head(schema: pa.Schema) -> bytes:
    """Header line with the names of the columns."""
    return _written_by_arrow(_as_written(schema).empty_table(), header=True)


def csv_rows(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Lines after the header."""
    table = pa.Table.from_batches(batches).combine_chunks()
    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks:
            refuse_far_times(chunk, name)
    if any(pa.types.is_timestamp(field.type) and field.type.tz is not None for field in table.schema):
        return b"".join(map(_csv_lines, table.to_batches()))
    schema = _as_written(table.schema)
    return _written_by_arrow(table if schema is table.schema else table.cast(schema), header=False)


def _written_by_arrow(table: pa.Table, *, header: bool) -> bytes:
    import pyarrow.csv

    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(include_header=header))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _as_written(schema: pa.Schema) -> pa.Schema:
    """Schema with columns that Arrow's writer accepts."""
    if not any(pa.types.is_string_view(field.type) for field in schema):
        return schema
    return pa.schema([f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in schema])


def _csv_lines(batch: pa.RecordBatch) -> bytes:
    """Lines that Arrow's writer makes, 26 times as fast for times with a zone."""
    lines = pc.binary_join_element_wise(
        *map(_csv_fields, batch.columns), _text(","), null_handling="replace", null_replacement=""
    )
    with_ends = pc.binary_join_element_wise(lines, _text(""), _text("\n"))
    text = with_ends.buffers()[2]
    return b"" if text is None else text.to_pybytes()


def _csv_fields(column: pa.Array) -> pa.Array:
    """Text of each field, null for null values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _csv_fields(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        return moment_texts(column, " ").cast(pa.large_string())
    texts = column.cast(pa.large_string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        texts = pc.replace_substring(texts, '"', '""')
        return pc.binary_join_element_wise(_text('"'), texts, _text('"'), _text(""))
    return texts


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, pa.large_string())


def jsonl(batches: Sequence[pa.RecordBatch]) -> bytes:
    """JSON object per line, with the values of `json_values`."""
    encoder = msgspec.json.Encoder()
    lines = bytearray()
    together = pa.Table.from_batches(batches).combine_chunks()  # many small batches cost four times as much
    for batch in map(with_moments_as_text, together.to_batches()):
        for start in range(0, batch.num_rows, _JSON_ROWS):
            lines += encoder.encode_lines(json_rows(batch.slice(start, _JSON_ROWS)))
            sleep(0)  # another thread gets the GIL now, not after the interpreter's 5 ms
    return bytes(lines)
