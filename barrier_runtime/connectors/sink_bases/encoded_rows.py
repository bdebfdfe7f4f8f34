"""Rows of an open transaction as bytes of a text format, encoded while rows arrive.

| rows are      | event                                        | next                                               |
|---------------|----------------------------------------------|----------------------------------------------------|
| batches       | there are enough, and no encoding runs       | a chunk: no more rows are added to it              |
| a chunk       | its encoding ends                            | encoded: the batches are dropped                   |
|               | its encoding fails                           | still a chunk, which staging encodes               |
| any of these  | the part is full, or the barrier arrives     | chunks and the batches after them are encoded;     |
|               |                                              | the part is staged                                 |

Encoded rows are not durable: a crash loses an open transaction as in any sink. Chunks keep the order of their rows.
Early encoding and staging exclude each other, and a chunk is encoded once.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.sink_bases.row_buffer import BufferPart, RowBuffer

_Staged = TypeVar("_Staged")
Encode: TypeAlias = Callable[[Sequence[pa.RecordBatch]], bytes]
_ROWS_AT_ONCE = 512  # from this many rows on, or …
_BYTES_AT_ONCE = 256 << 10  # … this many Arrow bytes, encoding is worth the change of thread
_TEXT_PER_BYTE = 4  # text counts as a quarter of its size towards the size limit of a part


@dataclass(frozen=True)
class EncodedRows:
    """Bytes of consecutive rows."""

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
        self.text_bytes = 0  # of the encoded chunks

    def cut(self) -> _Chunk:
        """Turns the batches into a chunk. Runs on the event loop, or after the last write to the part."""
        chunk = _Chunk(self.batches)
        self.batches, self.merged, self.unmerged_bytes = [], 0, 0
        self.rows_in_chunks, self.bytes_in_chunks = self.rows, self.bytes
        self.chunks.append(chunk)
        return chunk

    def encoded(self, chunk: _Chunk) -> EncodedRows:
        """Bytes of the chunk, encoded at most once. Two threads must not call at the same time."""
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

    `encode` runs off the event loop, one call at a time.
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
        """Returns work for another thread if enough rows came since the last chunk, otherwise None.

        Runs on the event loop.
        """
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
