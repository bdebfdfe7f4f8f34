"""The rows of one open transaction as the bytes of a text format, encoded while they arrive.

| rows are      | event                                        | next                                               |
|---------------|----------------------------------------------|----------------------------------------------------|
| batches       | enough of them, no encoding is under way     | a chunk: nothing more is written to it             |
| a chunk       | its encoding ends                            | encoded: the batches are dropped                   |
|               | its encoding fails                           | still a chunk, which staging encodes               |
| any of these  | the part is full, or the barrier is here     | chunks and the batches behind them are encoded;    |
|               |                                              | the part is staged                                 |

Nothing here is durable: a crash loses an open transaction as ever. Chunks keep the order of their rows. Early encoding
and staging exclude each other, and a chunk that is encoded is not encoded again.
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
_ROWS_AT_ONCE = 512  # from so many rows on, or …
_BYTES_AT_ONCE = 256 << 10  # … so many bytes in Arrow, encoding is worth the way to another thread
_TEXT_PER_BYTE = 4  # text counts as a quarter of its size towards the bytes that a part may have


@dataclass(frozen=True)
class EncodedRows:
    """The bytes of some consecutive rows, and the columns of these rows."""

    data: bytes
    rows: int
    schema: pa.Schema


class _Chunk:
    __slots__ = ("batches", "encoded")

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.batches = batches
        self.encoded: EncodedRows | None = None


class _EncodedPart(BufferPart[_Staged]):
    """A part whose first rows are chunks; the others are batches."""

    __slots__ = ("_encode", "bytes_in_chunks", "chunks", "rows_in_chunks", "text_bytes")

    def __init__(self, encode: Encode) -> None:
        super().__init__()
        self._encode = encode
        self.chunks: list[_Chunk] = []  # the loop appends, other threads read
        self.rows_in_chunks = self.bytes_in_chunks = 0
        self.text_bytes = 0  # that chunks have so far

    def cut(self) -> _Chunk:
        """The batches become a chunk. On the loop, or when nobody writes to the part any more."""
        chunk = _Chunk(self.batches)
        self.batches, self.merged, self.unmerged_bytes = [], 0, 0
        self.rows_in_chunks, self.bytes_in_chunks = self.rows, self.bytes
        self.chunks.append(chunk)
        return chunk

    def encoded(self, chunk: _Chunk) -> EncodedRows:
        """Not by two threads at once."""
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
    """A buffer whose `stage` hands `EncodedRows` to `make`. `encode` runs off the loop, once at a time."""

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
        """Work to be done off the loop when there are enough rows since the last chunk. On the loop."""
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
