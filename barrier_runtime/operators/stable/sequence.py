"""Rows and watermarks in their order of arrival, in memory, in local files, and in a snapshot.

An element is a batch, or a watermark (ms). In a snapshot the elements are cut into parts, each a value: the rows as
Arrow IPC streams, and the places of the watermarks between the rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import IO, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.operators.mapped_file import mapped_file
from barrier_runtime.operators.stored_streams import batches_of, stream_of
from barrier_runtime.state.snapshots.snapshot import OWN, value_format
from barrier_runtime.state.versioned import VersionedDecoder

VALUE = f"{OWN}stable-rows-"  # prefix of the names of snapshot values: a restart reads the rows in one subtask
_EARLIER = "stable-rows-"  # prefix of earlier builds: a restart read the rows of all subtasks in each subtask
MOST_ROWS = 65_536  # of a gathered batch
MOST_BYTES = 16 << 20  # of a gathered batch; a part ends at the batch that reaches this size
_DIGITS = 8

Item: TypeAlias = Batch | int


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`streams`: rows as an Arrow IPC stream, their earliest emission time (ns), and per row the event time (ms)
    reached, as little-endian int64; empty: that of the last watermark. `watermarks`: (rows before it, ms)."""

    streams: tuple[tuple[int, bytes, bytes], ...] = ()
    watermarks: tuple[tuple[int, int], ...] = ()
    version: int = 1


_STORED = VersionedDecoder(value_format("{}: its rows in its snapshot"), msgspec.msgpack.Decoder(_Stored))


def gathered(batches: Sequence[Batch]) -> Batch:
    """Returns the rows of batches with one schema as a batch."""
    if len(batches) == 1:
        return batches[0]
    rows = pa.concat_batches([batch.rows for batch in batches])
    reached = None
    if any(batch.reached is not None for batch in batches):
        reached = np.maximum.accumulate(np.concatenate([_reached(batch) for batch in batches]))
    return Batch(rows, min(batch.emit_ns for batch in batches), reached)


def _reached(batch: Batch) -> npt.NDArray[np.int64]:
    return np.full(batch.count, WATERMARK_MIN, np.int64) if batch.reached is None else batch.reached


def on_disk(batches: Sequence[Batch], directory: Path, where: str) -> list[Batch]:
    """Returns equal batches whose rows are in files."""
    found: list[Batch] = []
    for _, same in groupby(batches, _schema):
        found += _mapped(list(same), directory, where)
    return found


def _mapped(batches: Sequence[Batch], directory: Path, where: str) -> list[Batch]:
    mapped = mapped_file(directory, partial(_write, gathered(batches).rows), where)
    with pa.ipc.open_stream(pa.py_buffer(mapped)) as reader:
        rows = reader.read_next_batch()
    ends = list(accumulate(batch.count for batch in batches))
    return [batch.having(rows.slice(end - batch.count, batch.count)) for batch, end in zip(batches, ends, strict=True)]


def _write(rows: pa.RecordBatch, file: IO[bytes]) -> None:
    with pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_batch(rows)


def encoded(items: Iterable[Item]) -> Iterator[tuple[str, bytes]]:
    """Yields the values of a snapshot, part by part."""
    for number, part in enumerate(_parts(items)):
        yield f"{VALUE}{number:0{_DIGITS}}", _encoded(part)


def decoded(values: Mapping[str, bytes], where: str) -> Iterator[Item]:
    """Yields the items of a snapshot in order."""
    for name in sorted(name for name in values if name.startswith((VALUE, _EARLIER))):
        yield from _decoded(values[name], where)


def _parts(items: Iterable[Item]) -> Iterator[list[Item]]:
    part: list[Item] = []
    size = 0
    for item in items:
        part.append(item)
        size += 0 if isinstance(item, int) else item.rows.nbytes
        if size >= MOST_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _encoded(part: Sequence[Item]) -> bytes:
    watermarks: list[tuple[int, int]] = []
    rows = 0
    for item in part:
        if isinstance(item, int):
            watermarks.append((rows, item))
        else:
            rows += item.count
    batches = (item for item in part if not isinstance(item, int))
    streams = tuple(_stream(gathered(list(same))) for _, same in groupby(batches, _schema))
    return msgspec.msgpack.encode(_Stored(streams, tuple(watermarks)))


def _schema(batch: Batch) -> pa.Schema:
    return batch.schema


def _stream(batch: Batch) -> tuple[int, bytes, bytes]:
    reached = b"" if batch.reached is None else batch.reached.astype("<i8").tobytes()
    return batch.emit_ns, stream_of(batch.rows, "lz4"), reached


def _decoded(data: bytes, where: str) -> Iterator[Item]:
    stored = _STORED.decode(data, where)
    watermarks = list(stored.watermarks)
    before = 0  # rows
    for emit_ns, stream, times in stored.streams:
        reached = np.frombuffer(times, "<i8").astype(np.int64) if times else None
        batch = gathered([Batch(rows, emit_ns) for rows in batches_of(stream, _STORED.format, where)])
        rest = batch.reaching(reached)
        while watermarks and watermarks[0][0] <= before + rest.count:
            place, watermark_ms = watermarks.pop(0)
            if place > before:
                yield rest.slice(0, place - before)
                rest = rest.slice(place - before)
                before = place
            yield watermark_ms
        if rest.count:
            yield rest
            before += rest.count
    yield from (watermark_ms for _, watermark_ms in watermarks)
