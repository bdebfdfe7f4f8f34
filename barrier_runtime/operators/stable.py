"""`stable`: stores rows with the checkpoint, and releases them after its decision.
Design: docs/design/stable-rows.md.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import IO, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.coordinator.metric_table import STABLE_ROWS
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.operators.base import Capture, Emit, Operator, OperatorContext
from barrier_runtime.operators.stored_streams import batches_of, mapped_file, stream_of
from barrier_runtime.state.snapshots.snapshot import OWN, OperatorSnapshot, value_format
from barrier_runtime.state.versioned import VersionedDecoder

VALUE = f"{OWN}stable-rows-"  # prefix of snapshot values, which one subtask restores
_EARLIER = "stable-rows-"  # prefix in earlier builds: each subtask restored all
MOST_ROWS = 65_536  # of a gathered batch
MOST_BYTES = 16 << 20  # of a gathered batch; a part ends at the batch that reaches this size
_DIGITS = 8

Item: TypeAlias = Batch | int


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`streams`: rows as an Arrow IPC stream, their earliest emission time (ns), and event times reached.
    Event times (ms, little-endian int64) are per row; empty: that of the last watermark. `watermarks`: (rows before,
    ms).
    """

    streams: tuple[tuple[int, bytes, bytes], ...] = ()
    watermarks: tuple[tuple[int, int], ...] = ()
    version: int = 1


_STORED = VersionedDecoder(value_format("{}: its rows in its snapshot"), msgspec.msgpack.Decoder(_Stored))


def gathered(batches: Sequence[Batch]) -> Batch:
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
    """Returns the same batches, mapped from files."""
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
    for number, part in enumerate(_parts(items)):
        yield f"{VALUE}{number:0{_DIGITS}}", _encoded(part)


def decoded(values: Mapping[str, bytes], where: str) -> Iterator[Item]:
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
    before = 0
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


_IN_MEMORY_BYTES = 16 << 20  # of rows; more go to a file
_BATCH_BYTES = 2_048  # memory of a batch besides its rows


class _Held:
    __slots__ = ("batch",)

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


def _memory(batch: Batch) -> int:
    return int(batch.rows.nbytes) + _BATCH_BYTES


class StableOperator(Operator):
    """First of its chain, with aligned inputs."""

    holds_watermarks = True

    def __init__(self, name: str) -> None:
        self._where = f"stable {name!r}"
        self._items: deque[_Held | int] = deque()
        self._first = 0  # number of the first of `_items`
        self._decided = 0  # items before this number may go out
        self._decided_before = 0  # the same before the last decision
        self._snapshots: deque[tuple[int, int]] = deque()  # checkpoint, number of the next item
        self._captured = 0  # items before this number are in the last snapshot
        self._in_memory: deque[_Held] = deque()
        self._bytes = 0
        self._rows = 0
        self._watermark_ms = WATERMARK_MIN  # before all items

    def open(self, context: OperatorContext) -> None:
        self._context = context
        for snapshot in sorted(context.restored, key=lambda each: each.subtask):
            if snapshot.subtask % context.parallelism == context.subtask:
                self._restore(snapshot)
        self._decided = self._decided_before = self._captured = self._next

    def _restore(self, snapshot: OperatorSnapshot) -> None:
        in_time = snapshot.parallelism == self._context.parallelism
        for item in decoded(snapshot.values, f"{self._where}, state of subtask {snapshot.subtask}"):
            if not isinstance(item, int):
                self._hold(item if in_time else item.reaching(None))
            elif in_time:
                self._hold_watermark(item)

    @property
    def has_room(self) -> bool:
        """Returns whether at most the rows of two checkpoints wait."""
        return self._first >= self._decided_before

    @property
    def unfinished(self) -> bool:
        return bool(self._items)

    def own_watermark(self) -> int | None:
        return None if self._watermark_ms == WATERMARK_MIN else self._watermark_ms

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self._hold(batch)

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        if watermark_ms == WATERMARK_MAX:  # the end: every item is released
            self._watermark_ms = watermark_ms
        else:
            self._hold_watermark(watermark_ms)

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        batches = self._take_decided()
        if batches:
            emit(gathered(batches))
            self._count()
        return self._pass_watermarks() or bool(batches)

    def _take_decided(self) -> list[Batch]:
        taken: list[Batch] = []
        rows = size = 0
        for item in islice(self._items, self._decided - self._first):
            if isinstance(item, int):
                break
            batch = item.batch
            rows, size = rows + batch.count, size + batch.rows.nbytes
            if taken and (rows > MOST_ROWS or size > MOST_BYTES or batch.schema != taken[0].schema):
                break
            taken.append(batch)
        self._drop(len(taken))
        for batch in taken:
            self._forget(batch)
        self._rows -= sum(batch.count for batch in taken)
        return taken

    def _pass_watermarks(self) -> bool:
        passed = 0
        for item in islice(self._items, self._decided - self._first):
            if not isinstance(item, int):
                break
            self._watermark_ms = max(self._watermark_ms, item)
            passed += 1
        self._drop(passed)
        return passed > 0

    def _drop(self, items: int) -> None:
        for _ in range(items):
            self._items.popleft()
        self._first += items

    def snapshot(self, checkpoint: int) -> Capture:
        self._captured = self._next
        self._snapshots.append((checkpoint, self._next))
        if not self._items:
            return Capture()
        items = tuple(self._items)

        def parts() -> Iterator[tuple[str, bytes]]:
            return encoded(item if isinstance(item, int) else item.batch for item in items)

        return Capture(parts=parts)

    def on_complete(self, checkpoint: int) -> None:
        decided = self._decided
        while self._snapshots and self._snapshots[0][0] <= checkpoint:
            decided = self._snapshots.popleft()[1]
        if decided > self._decided:
            self._decided_before, self._decided = self._decided, decided
            self._context.wake()

    def on_abort(self, checkpoint: int) -> None:
        self._snapshots = deque(each for each in self._snapshots if each[0] != checkpoint)

    @property
    def _next(self) -> int:
        return self._first + len(self._items)

    def _hold(self, batch: Batch) -> None:
        held = _Held(batch)
        self._items.append(held)
        self._rows += batch.count
        self._in_memory.append(held)
        self._bytes += _memory(batch)
        if self._bytes > _IN_MEMORY_BYTES:
            self._move_to_disk()
        self._count()

    def _hold_watermark(self, watermark_ms: int) -> None:
        """Adds a watermark, or raises the last watermark if no row or barrier came since."""
        if self._items and self._next > self._captured and isinstance(self._items[-1], int):
            self._items[-1] = max(self._items[-1], watermark_ms)
        else:
            self._items.append(watermark_ms)

    def _move_to_disk(self) -> None:
        moved = on_disk([held.batch for held in self._in_memory], self._context.local_dir, self._where)
        for held, batch in zip(self._in_memory, moved, strict=True):
            held.batch = batch
        self._in_memory.clear()
        self._bytes = 0

    def _forget(self, batch: Batch) -> None:
        if self._in_memory and self._in_memory[0].batch is batch:
            self._in_memory.popleft()
            self._bytes -= _memory(batch)

    def _count(self) -> None:
        self._context.metrics.gauge(STABLE_ROWS, self._rows)
