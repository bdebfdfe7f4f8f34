"""Source of the example `grow`: generated readings, whose rate doubles after a third of the rows.

Row i is of meter i % METERS. Every reader notes the number of read rows in memory that outlives the process, so that a
reader which begins before the noted row counts the rows that are read again.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.source import Polled, Split

Ints: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

METERS = 1_000
_SPLITS = 8
_SCHEMA = pa.schema([("number", pa.int64()), ("meter", pa.int64()), ("reading", pa.int64())])
_NOTE = struct.Struct("<QQ")  # read rows, and rows read again


# A reader stops at each of these shares of the rows until the folder of notes has a file of that name: the job cannot
# end before all changes are made, however slow the machine.
STOPS = {"replaced": 0.75, "saved": 0.9}
_STOPPED_NS = 50_000_000  # between two looks for the file


class _Position(msgspec.Struct, frozen=True):
    row: int
    start_ns: int | None


_POSITION = msgspec.json.Decoder(_Position)


def reading_of(number: int) -> int:
    return number * 7_919 % 10_007


@dataclass(frozen=True)
class Readings:
    """Generated readings: `rows` in all, `rate` per second for the first third, then twice as many.

    `notes`: folder of the readers' notes."""

    rate: float
    rows: int
    notes: str

    def named(self, name: str) -> "GeneratedReadings":
        return GeneratedReadings(self)


class GeneratedReadings:
    exactly_once = True
    schema = _SCHEMA

    def __init__(self, of: Readings) -> None:
        self._of = of

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(str(index), b"") for index in range(_SPLITS)]

    def reader(self, split: Split) -> "ReadingsReader":
        return ReadingsReader(self._of, int(split.id))


class ReadingsReader:
    """Reader of the rows index, index + splits, …"""

    def __init__(self, of: Readings, index: int) -> None:
        self._of = of
        self._index = index
        self._row = 0
        self._rows = len(range(index, of.rows, _SPLITS))
        self._start_ns: int | None = None
        self._stopped_ns = 0
        self._notes: mmap.mmap | None = None

    @property
    def finished(self) -> bool:
        return self._row >= self._rows

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if self._start_ns is None:
            self._start_ns = now_ns
        end = min(self._end(), self._row + max_rows)
        due = int(np.searchsorted(self._due_ns(np.arange(self._row, end)), now_ns))
        if due == 0:
            self._stopped_ns = now_ns
            return None
        numbers = np.arange(self._row, self._row + due) * _SPLITS + self._index
        emit_ns = int(self._due_ns(np.array([self._row]))[0])
        self._note(self._row + due)
        self._row += due
        columns = [pa.array(numbers), pa.array(numbers % METERS), pa.array(reading_of(numbers))]
        return Polled(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA), emit_ns)

    def next_due_ns(self) -> int | None:
        if self.finished or self._start_ns is None:
            return None
        due_ns = int(self._due_ns(np.array([self._row]))[0])
        return due_ns if self._row < self._end() else max(due_ns, self._stopped_ns + _STOPPED_NS)

    def _end(self) -> int:
        """End of the rows that may be read now."""
        stops = (int(self._rows * share) for name, share in STOPS.items() if not (Path(self._of.notes) / name).exists())
        return next(stops, self._rows)

    def position(self) -> bytes:
        return msgspec.json.encode(_Position(self._row, self._start_ns))

    def seek(self, position: bytes) -> None:
        found = _POSITION.decode(position)
        self._row, self._start_ns = found.row, found.start_ns

    def close(self) -> None:
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    def _due_ns(
        self, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    ) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """Due time of each row of this split."""
        period_ns = 1e9 * _SPLITS / self._of.rate
        slow = self._rows // 3
        after = (np.minimum(rows, slow) + np.maximum(rows - slow, 0) / 2) * period_ns
        return np.asarray((self._start_ns or 0) + after.astype(np.int64), np.int64)

    def _note(self, reached: int) -> None:
        if self._notes is None:
            self._notes = _opened(Path(self._of.notes) / str(self._index))
        known, again = _NOTE.unpack_from(self._notes)
        self._notes[: _NOTE.size] = _NOTE.pack(max(known, reached), again + max(0, min(known, reached) - self._row))


def _opened(path: Path) -> mmap.mmap:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(file, _NOTE.size)
        return mmap.mmap(file, _NOTE.size)
    finally:
        os.close(file)


def read_again(notes: str) -> int:
    """Number of rows that the source emitted twice."""
    return sum(_NOTE.unpack(path.read_bytes())[1] for path in Path(notes).iterdir() if path.name not in STOPS)
