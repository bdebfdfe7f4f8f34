"""A lookup's rows not yet emitted, by number; and their form in snapshots."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.operators.stored_streams import batches_of, stream_of
from barrier_runtime.state.snapshots.snapshot import value_format
from barrier_runtime.state.versioned import VersionedDecoder

HELD_VALUE = "lookup-rows"


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`streams`: Arrow IPC streams of rows, each with the earliest emission time (ns).
    `reached`: by stream the event time (ms) reached at each row, as little-endian int64; empty if unknown."""

    streams: tuple[tuple[int, bytes], ...] = ()
    version: int = 1
    reached: tuple[bytes, ...] = ()


_STORED = VersionedDecoder(value_format("{}: its rows in flight"), msgspec.msgpack.Decoder(_Stored))


class Held(NamedTuple):
    """Rows of a batch where `kept` is True (None: all).
    `reached_ms`: event time reached at all of them; None: that of the last watermark."""

    emit_ns: int
    rows: pa.RecordBatch
    kept: npt.NDArray[np.bool_] | None = None
    reached_ms: int | None = None


class _Block:
    __slots__ = ("emit_ns", "first", "gone", "left", "reached_ms", "rows")

    def __init__(self, first: int, rows: pa.RecordBatch, emit_ns: int, reached_ms: int | None) -> None:
        self.reached_ms = reached_ms
        self.first = first
        self.rows: pa.RecordBatch | None = rows
        self.emit_ns = emit_ns
        self.left: int = rows.num_rows
        self.gone: npt.NDArray[np.bool_] | None = None  # None: no row yet


class HeldRows:
    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._firsts: list[int] = []
        self._next = 0

    def add(self, rows: pa.RecordBatch, emit_ns: int, reached_ms: int | None = None) -> None:
        self._blocks.append(_Block(self._next, rows, emit_ns, reached_ms))
        self._firsts.append(self._next)
        self._next += rows.num_rows

    def take(self, numbers: Sequence[int]) -> tuple[pa.RecordBatch, int]:
        """Removes and returns the rows of these rising numbers, and their earliest emission time."""
        parts: list[pa.RecordBatch] = []
        emit_ns = 2**63 - 1
        at = 0
        while at < len(numbers):
            place = bisect_right(self._firsts, numbers[at]) - 1
            block = self._blocks[place]
            assert block.rows is not None, f"row {numbers[at]} has gone already"
            end = block.first + block.rows.num_rows
            until = bisect_right(numbers, end - 1, lo=at)
            parts.append(_taken(block, numbers[at:until]))
            emit_ns = min(emit_ns, block.emit_ns)
            at = until
        self._drop_empty()
        return _one(parts), emit_ns

    def remaining(self) -> list[Held]:
        return [
            Held(
                block.emit_ns, block.rows, reached_ms=block.reached_ms, kept=None if block.gone is None else ~block.gone
            )
            for block in self._blocks
            if block.rows is not None
        ]

    def _drop_empty(self) -> None:
        empty = 0
        for block in self._blocks:
            if block.left:
                break
            empty += 1
        if empty:
            del self._blocks[:empty]
            del self._firsts[:empty]


def encode_held(remaining: Iterable[tuple[Any, ...]]) -> bytes:
    """Encodes fields of `Held`. Consecutive batches of the same schema become one stream."""
    streams: list[tuple[int, bytes]] = []
    reached: list[bytes] = []
    together: list[Held] = []
    for each in (Held(*fields) for fields in remaining):
        part = each if each.kept is None else each._replace(rows=each.rows.filter(pa.array(each.kept)))
        if together and not together[0].rows.schema.equals(part.rows.schema):
            streams.append(_as_stream(together))
            reached.append(_reached(together))
            together = []
        together.append(part)
    if together:
        streams.append(_as_stream(together))
        reached.append(_reached(together))
    return msgspec.msgpack.encode(_Stored(tuple(streams), reached=tuple(reached) if any(reached) else ()))


def decode_held(data: bytes, where: str) -> list[tuple[int, pa.RecordBatch]]:
    return [(batch.emit_ns, batch.rows) for batch in decode_batches(data, where)]


def decode_batches(data: bytes, where: str) -> list[Batch]:
    stored = _STORED.decode(data, where)
    batches: list[Batch] = []
    for number, (emit_ns, stream) in enumerate(stored.streams):
        reached = np.frombuffer(stored.reached[number], "<i8") if stored.reached else np.zeros(0, np.int64)
        first = 0
        for rows in batches_of(stream, _STORED.format, where):
            if rows.num_rows:
                part = reached[first : first + rows.num_rows]
                batches.append(Batch(rows, emit_ns, part.astype(np.int64) if len(part) else None))
                first += rows.num_rows
    return batches


def _taken(block: _Block, numbers: Sequence[int]) -> pa.RecordBatch:
    rows = block.rows
    assert rows is not None
    if len(numbers) == rows.num_rows:
        block.left, block.rows = 0, None
        return rows
    positions = np.array(numbers, np.int64) - block.first
    if block.gone is None:
        block.gone = np.zeros(rows.num_rows, np.bool_)
    assert not block.gone[positions].any(), "a row goes once"
    block.gone[positions] = True
    block.left -= len(numbers)
    if not block.left:
        block.rows = None
    if positions[-1] - positions[0] == len(positions) - 1:
        return rows.slice(int(positions[0]), len(positions))
    return rows.take(pa.array(positions))


def _one(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    if not all(part.schema.equals(parts[0].schema) for part in parts):
        parts = [part.replace_schema_metadata(None) for part in parts]
    return pa.concat_batches(parts)


def _as_stream(together: Sequence[Held]) -> tuple[int, bytes]:
    return min(each.emit_ns for each in together), stream_of(_one([each.rows for each in together]))


def _reached(together: Sequence[Held]) -> bytes:
    if all(each.reached_ms is None for each in together):
        return b""
    times = [WATERMARK_MIN if each.reached_ms is None else each.reached_ms for each in together]
    return np.repeat(times, [each.rows.num_rows for each in together]).astype("<i8").tobytes()
