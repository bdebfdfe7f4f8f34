"""Frames of a data connection, sans-io.

    header (29 bytes, big endian): payload length u32 · kind u8 · sequence u64 · emit_ns i64 · crc32 u32 of all the rest
                                   · version u8 · reserved, 3 bytes
    payload: Arrow IPC bytes for SCHEMA and BATCH, fixed structs for control elements; REACHED, before rows, has the
             event time at each of them (int64, little endian); FEW_ROWS is a small batch as `data/few_rows` has it:
             MessagePack, a list of values per column; ALIVE is an empty sign of life, no element. A further SCHEMA
             adds or removes columns of partial aggregates (`aggregation/partial_schema`)

The checksum begins with the version, and catches accidents only. Checkpoints store in-flight rows as frames: every
change of the format needs a new `FRAME_VERSION`, and readers keep reading older versions. The version stays at byte 25.
"""

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import (
    Barrier,
    Batch,
    CancelBarrier,
    Element,
    EndOfInput,
    Idle,
    Watermark,
)
from barrier_runtime.data.few_rows import FewRows, RowsOfPart
from barrier_runtime.data.schemas import described
from barrier_runtime.operators.aggregation.partial_schema import whole_schema
from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, InvalidJob
from barrier_runtime.state.versioned import Format

FRAME_VERSION = 2  # of a further SCHEMA; FEW_ROWS has version 1, all other frames version 0
_FEW_ROWS_VERSION = 1
_FIRST_VERSION = 0
_HEADER = struct.Struct(">IBQqIB3x")
_CRC_PART = struct.Struct(">IBQq")
_CRC_PART_SIZE = _CRC_PART.size
_VERSION_AT = 25
_WATERMARK = struct.Struct(">q")
_BARRIER = struct.Struct(">QQqq")  # the last field is -1 for None
_CANCEL = struct.Struct(">QQ")

SCHEMA, BATCH, WATERMARK, IDLE, BARRIER, CANCEL, END, REACHED, FEW_ROWS, ALIVE = range(1, 11)
HEADER_SIZE = _HEADER.size
MAX_PAYLOAD = 64 * 1024 * 1024  # bytes
_BYTES_PER_FRAME_TARGET = 16 * 1024 * 1024
_ALIGNED = 8  # bytes: length of a column's values in Arrow's format, rounded up
_HEADS = 4_096  # remembered
_SMALL = 4 * 1024  # payload bytes below which copying costs less than a second write


class FrameError(BarrierRuntimeError):
    """Bytes of a data connection are wrong. Close the connection."""


class UnknownFrames(FrameError):
    """Frames of another release's format."""


class RowTooLarge(InvalidJob):
    """The row exceeds a frame."""


_FORMAT = Format(
    "a frame",
    FRAME_VERSION,
    damaged="run the same release of barrier-runtime in all slots",
    oldest=0,
    refusal=UnknownFrames,
)


class FrameWriter:
    def __init__(self) -> None:
        self._sequence = 0
        self._schema: pa.Schema | None = None

    def encode(self, element: Element) -> list[bytes | pa.Buffer]:
        if isinstance(element, Batch):
            return self._batch(element)
        if isinstance(element, Watermark):
            return self._frame(WATERMARK, _WATERMARK.pack(element.ms))
        if isinstance(element, Barrier):
            timeout_ms = -1 if element.aligned_timeout_ms is None else element.aligned_timeout_ms
            return self._frame(BARRIER, _BARRIER.pack(element.id, element.token, element.triggered_at_ms, timeout_ms))
        if isinstance(element, CancelBarrier):
            return self._frame(CANCEL, _CANCEL.pack(element.id, element.token))
        if isinstance(element, Idle):
            return self._frame(IDLE, b"")
        return self._frame(END, b"")

    def alive(self) -> bytes:
        return b"".join(self._frame(ALIVE, b""))

    def _batch(self, batch: Batch) -> list[bytes | pa.Buffer]:
        few = batch.few
        payload = b"" if few is None else few.payload()
        if few is not None and len(payload) <= _BYTES_PER_FRAME_TARGET:
            chunks = self._schema_frame(few.schema)
            if batch.reached is not None:
                chunks += self._frame(REACHED, batch.reached.astype("<i8").tobytes())
            chunks += self._frame(FEW_ROWS, payload, batch.emit_ns, _FEW_ROWS_VERSION)
            return chunks
        chunks = self._schema_frame(batch.schema)
        at = 0
        plain = b"" if batch.part is None else _plain_payload(batch.part)
        for count, part in ((batch.count, plain),) if plain else _serialized(batch.rows):
            if batch.reached is not None:
                chunks += self._frame(REACHED, batch.reached[at : at + count].astype("<i8").tobytes())
                at += count
            chunks += self._frame(BATCH, part, batch.emit_ns)
        return chunks

    def _schema_frame(self, schema: pa.Schema) -> list[bytes | pa.Buffer]:
        known, self._schema = self._schema, schema
        if known is schema or (known is not None and known.equals(schema)):
            return []
        if known is None:
            return self._frame(SCHEMA, schema.serialize().to_pybytes())
        if not whole_schema(known).equals(whole_schema(schema)):
            raise FrameError(
                f"the schema of an edge changed from ({described(known)}) to ({described(schema)}): "
                "pass schema= to the step that produces these rows"
            )
        return self._frame(SCHEMA, schema.serialize().to_pybytes(), version=FRAME_VERSION)

    def _frame(
        self, kind: int, payload: bytes | pa.Buffer, emit_ns: int = 0, version: int | None = None
    ) -> list[bytes | pa.Buffer]:
        version = _FIRST_VERSION if version is None else version
        length = len(payload) if isinstance(payload, bytes) else payload.size
        if length > MAX_PAYLOAD:
            raise FrameError(
                f"a frame of {length:,} bytes is over the cap of {MAX_PAYLOAD:,}: this is a bug, report it"
            )
        crc = zlib.crc32(payload, zlib.crc32(_CRC_PART.pack(length, kind, self._sequence, emit_ns), version))
        header = _HEADER.pack(length, kind, self._sequence, emit_ns, crc, version)
        self._sequence += 1
        if length > _SMALL:
            return [header, payload]
        return [header + payload if isinstance(payload, bytes) else header + payload.to_pybytes()]


class FrameReader:
    """Raises `FrameError` at the first wrong byte."""

    def __init__(self) -> None:
        self._sequence = 0
        self._schema: pa.Schema | None = None
        self._reached: npt.NDArray[np.int64] | None = None
        self._ahead = 0
        self._head = b""  # of a frame; with the whole header while `_missing`
        self._chunks: list[bytes] = []  # of that frame's payload, copied once
        self._missing = 0  # bytes of that payload

    def feed(self, data: bytes) -> list[tuple[Element, int]]:
        """Complete elements; sizes are on the wire, with preceding schemas and event times."""
        elements: list[tuple[Element, int]] = []
        start = 0
        if self._missing:
            if len(data) < self._missing:
                self._missing -= len(data)
                self._chunks.append(data)
                return elements
            start, self._missing = self._missing, 0
            self._chunks.append(data[:start])
            chunks, self._chunks = self._chunks, []
            self._take(self._head, b"".join(chunks), elements)
        elif self._head:
            data = self._head + data
        available = len(data)
        while available - start >= HEADER_SIZE:
            begin = start + HEADER_SIZE
            head = data[start:begin]
            end = begin + self._length(head)
            if end > available:
                self._head, self._chunks, self._missing = head, [data[begin:]], end - available
                return elements
            self._take(head, data[begin:end], elements)
            start = end
        self._head = data[start:]
        return elements

    def _length(self, head: bytes) -> int:
        if head[_VERSION_AT] > FRAME_VERSION:
            _FORMAT.check(head[_VERSION_AT])
        length = int.from_bytes(head[:4], "big")
        if length > MAX_PAYLOAD:
            raise FrameError(f"a frame announces {length:,} bytes; the cap is {MAX_PAYLOAD:,}")
        return length

    def _take(self, head: bytes, payload: bytes, elements: list[tuple[Element, int]]) -> None:
        length, kind, sequence, emit_ns, crc, version = _HEADER.unpack(head)
        if sequence != self._sequence:
            raise FrameError(f"frame {sequence} came where {self._sequence} was due")
        if crc != zlib.crc32(payload, zlib.crc32(head[:_CRC_PART_SIZE], version)):
            raise FrameError(f"frame {sequence} has a wrong checksum")
        self._sequence += 1
        element = self._decode(kind, payload, emit_ns, version)
        self._ahead += HEADER_SIZE + length
        if element is not None:
            elements.append((element, self._ahead))
            self._ahead = 0

    def _decode(self, kind: int, payload: bytes, emit_ns: int, version: int) -> Element | None:
        try:
            if kind == BATCH:
                if self._schema is None:
                    raise FrameError("rows came before their schema")
                rows = pa.ipc.read_record_batch(pa.py_buffer(payload), self._schema)
                return Batch(rows, emit_ns, self._take_reached(rows.num_rows))
            if kind == FEW_ROWS:
                if self._schema is None:
                    raise FrameError("rows came before their schema")
                few = FewRows.decoded(self._schema, payload)
                return Batch(few, emit_ns, self._take_reached(few.count))
            if kind == REACHED:
                self._reached = np.frombuffer(payload, "<i8")
                return None
            if kind == ALIVE:
                return None
            if kind == SCHEMA:
                if self._schema is not None and version != FRAME_VERSION:
                    raise FrameError("a second schema came on one connection")
                self._schema = pa.ipc.read_schema(pa.py_buffer(payload))
                return None
            if kind == WATERMARK:
                return Watermark(*_WATERMARK.unpack(payload))
            if kind == BARRIER:
                id, token, triggered_at_ms, timeout_ms = _BARRIER.unpack(payload)
                return Barrier(id, token, triggered_at_ms, None if timeout_ms < 0 else timeout_ms)
            if kind == CANCEL:
                return CancelBarrier(*_CANCEL.unpack(payload))
            if kind == IDLE:
                return Idle()
            if kind == END:
                return EndOfInput()
        except (struct.error, pa.ArrowException, OSError, EOFError, ValueError, MemoryError, *UNREADABLE) as error:
            raise FrameError(f"a frame of kind {kind} cannot be decoded: {error}") from error
        raise FrameError(f"a frame has the unknown kind {kind}")

    def _take_reached(self, rows: int) -> npt.NDArray[np.int64] | None:
        reached, self._reached = self._reached, None
        if reached is not None and len(reached) != rows:
            raise FrameError(f"{len(reached)} event times came with {rows} rows")
        return reached


def _plain_payload(part: RowsOfPart) -> bytes:
    """Arrow's bytes of the part, without a call of Arrow. Returns b"" for rows that only Arrow can write."""
    parted, start, count = part.parted, part.start, part.count
    if not parted.values or parted.row_bytes * count > _BYTES_PER_FRAME_TARGET:
        return b""
    chunks: list[bytes | memoryview] = [_head(parted.sizes, count)]
    for values, size in parted.values:
        first = start * size
        chunks.append(values[first : first + count * size])
        if count * size % _ALIGNED:
            chunks.append(bytes(-count * size % _ALIGNED))
    return b"".join(chunks)


@lru_cache(_HEADS)
def _head(sizes: tuple[int, ...], count: int) -> bytes:
    """Bytes before the values: the same for all rows without nulls whose values have these `sizes`."""
    zeros = [pa.array(np.zeros(count, f"i{size}")) for size in sizes]
    payload: bytes = pa.RecordBatch.from_arrays(zeros, [""] * len(sizes)).serialize().to_pybytes()
    return payload[: -sum(-(-size * count // _ALIGNED) * _ALIGNED for size in sizes)]


def _serialized(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.Buffer]]:
    if rows.num_rows <= 1 or pa.ipc.get_record_batch_size(rows) <= _BYTES_PER_FRAME_TARGET:
        payload = rows.serialize()
        if payload.size <= MAX_PAYLOAD:
            yield rows.num_rows, payload
            return
        if rows.num_rows <= 1:
            raise RowTooLarge(
                f"a row of {payload.size:,} bytes is over the {MAX_PAYLOAD:,} bytes that one may have on its way to "
                "another subtask: split it into several rows, or keep what is large in a file or an object store and "
                "pass its name"
            )
    half = rows.num_rows // 2
    yield from _serialized(rows.slice(0, half))
    yield from _serialized(rows.slice(half))
