"""Encoders of rows into a file's bytes, and a buffer that encodes rows while they arrive.

Encoders run off the event loop. Arrow's writers release the GIL, and JSON lines are made in small chunks.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.json_values import (
    json_rows,
    moment_texts,
    refuse_far_times,
    with_moments_as_text,
)
from barrier_runtime.connectors.sink_bases.row_buffer import BufferPart, RowBuffer

_Staged = TypeVar("_Staged")
Encode: TypeAlias = Callable[[Sequence[pa.RecordBatch]], bytes]
_ROWS_AT_ONCE = 512  # rows, or …
_BYTES_AT_ONCE = 256 << 10  # … Arrow bytes from which encoding is worth the change of thread
_TEXT_PER_BYTE = 4  # text counts as a quarter of the bytes


@dataclass(frozen=True)
class EncodedRows:
    data: bytes
    rows: int
    schema: pa.Schema


class _Chunk:
    __slots__ = ("batches", "encoded")

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.batches = batches
        self.encoded: EncodedRows | None = None


class _EncodedPart(BufferPart[_Staged]):
    """Part whose first rows are chunks; the remaining rows are batches."""

    __slots__ = ("_encode", "bytes_in_chunks", "chunks", "rows_in_chunks", "text_bytes")

    def __init__(self, encode: Encode) -> None:
        super().__init__()
        self._encode = encode
        self.chunks: list[_Chunk] = []  # the event loop appends, other threads read
        self.rows_in_chunks = self.bytes_in_chunks = 0
        self.text_bytes = 0

    def cut(self) -> _Chunk:
        """Runs on the event loop, or after the last write to the part."""
        chunk = _Chunk(self.batches)
        self.batches, self.merged, self.unmerged_bytes = [], 0, 0
        self.rows_in_chunks, self.bytes_in_chunks = self.rows, self.bytes
        self.chunks.append(chunk)
        return chunk

    def encoded(self, chunk: _Chunk) -> EncodedRows:
        """Encodes the chunk once. For one thread at a time."""
        if chunk.encoded is None:
            batches = chunk.batches
            data, rows = self._encode(batches), sum(batch.num_rows for batch in batches)
            chunk.encoded, chunk.batches = EncodedRows(data, rows, batches[0].schema), ()
            self.text_bytes += len(data)
        return chunk.encoded

    def content(self) -> Sequence[EncodedRows]:
        if self.batches:
            self.cut()
        return [self.encoded(chunk) for chunk in self.chunks]

    def drop(self) -> None:
        super().drop()
        self.chunks = []


class EncodingBuffer(RowBuffer[_Staged]):
    """Buffer whose `stage` passes `EncodedRows` to `make`.

    `encode` runs off the loop, one call at a time. A chunk whose early encoding fails is encoded at the staging.
    """

    __slots__ = ("_encode",)
    _current: _EncodedPart[_Staged]

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        super().__init__()

    def _part(self) -> _EncodedPart[_Staged]:
        return _EncodedPart(self._encode)

    @property
    def bytes_in_current(self) -> int:
        return max(super().bytes_in_current, self._current.text_bytes // _TEXT_PER_BYTE)

    def encode_early(self) -> Callable[[], None] | None:
        """Returns work for another thread if enough rows came since the last chunk. Runs on the event loop."""
        part = self._current
        rows = part.rows - part.rows_in_chunks + self._few_rows
        if rows < _ROWS_AT_ONCE and part.bytes - part.bytes_in_chunks + self._few_bytes < _BYTES_AT_ONCE:
            return None
        self._write_gathered()
        return partial(_encode_early, self._staging, part, part.cut())


def _encode_early(staging: threading.Lock, part: "_EncodedPart[_Staged]", chunk: _Chunk) -> None:
    with staging:
        if part.staged is None:
            part.encoded(chunk)


_JSON_ROWS = 256


def parquet(batches: Sequence[pa.RecordBatch]) -> bytes:
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(batches).combine_chunks(), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def is_in_parquet(kind: pa.DataType) -> bool:
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.schema([("value", kind)]).empty_table(), pa.BufferOutputStream())
    except (pa.ArrowException, OSError):
        return False
    return True


def csv(batches: Sequence[pa.RecordBatch]) -> bytes:
    return csv_head(batches[0].schema) + csv_rows(batches)


def csv_head(schema: pa.Schema) -> bytes:
    return _written_by_arrow(_as_written(schema).empty_table(), header=True)


def csv_rows(batches: Sequence[pa.RecordBatch]) -> bytes:
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
    if not any(pa.types.is_string_view(field.type) for field in schema):
        return schema
    return pa.schema([f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in schema])


def _csv_lines(batch: pa.RecordBatch) -> bytes:
    lines = pc.binary_join_element_wise(
        *map(_csv_fields, batch.columns), _text(","), null_handling="replace", null_replacement=""
    )
    with_ends = pc.binary_join_element_wise(lines, _text(""), _text("\n"))
    text = with_ends.buffers()[2]
    return b"" if text is None else text.to_pybytes()


def _csv_fields(column: pa.Array) -> pa.Array:
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
    encoder = msgspec.json.Encoder()
    lines = bytearray()
    together = pa.Table.from_batches(batches).combine_chunks()  # many small batches cost four times as much
    for batch in map(with_moments_as_text, together.to_batches()):
        for start in range(0, batch.num_rows, _JSON_ROWS):
            lines += encoder.encode_lines(json_rows(batch.slice(start, _JSON_ROWS)))
            sleep(0)  # another thread gets the GIL now, not after 5 ms
    return bytes(lines)
