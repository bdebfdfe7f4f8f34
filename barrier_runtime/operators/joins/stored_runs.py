"""Runs of join buffers: rows in the order of lookups, in snapshots and files.
Design: docs/design/joins-and-lookups.md.

After rescaling each subtask takes its key groups' rows from all runs.

When the runs of an operator outgrow the share of the slot's memory, the oldest are written to files without names and
mapped; only the bits stay in memory. A merged or half-dead run becomes a new run in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.operators.base import Capture
from barrier_runtime.operators.stored_streams import mapped_file, stream_of
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot, value_format
from barrier_runtime.state.versioned import VersionedDecoder

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

TIME_LIMIT = 2**62  # bound of times, either sign: sums fit in 64 bits
_MOST = 2**63
_FEW = 256
_LOOKS = 4
_SAMPLED = 64
_FLAG_BYTES, _ORDER_BYTES = 2, 32  # per row


class RowRun:
    """Rows of a join side as columns, ordered by key and time. Never grows.

    The rows stay in order of arrival. A *position* is a place in the order of key and time. `keys`, `times`: by
    position. `at`: position -> row of `rows`. `alive`, `matched`: by row of `rows`.
    """

    def __init__(self, rows: pa.RecordBatch, keys: Ints, times: Ints, alive: Bools, matched: Bools) -> None:
        self._set(rows, keys, times, np.arange(len(keys)), alive, matched)

    def _set(self, rows: pa.RecordBatch, keys: Ints, times: Ints, at: Ints, alive: Bools, matched: Bools) -> None:
        self.rows, self.alive, self.matched = rows, alive, matched
        self.on_disk = False
        self.bytes = rows.nbytes
        self.row_bytes = self.bytes / len(keys)
        self.first, self.last = int(times.min()), int(times.max())
        self._highest_key = int(keys.max())
        self._ranks: Ints | None = None  # distinct times, if key and time do not fit in 64 bits
        self._width = self.last - self.first + 2
        if (self._highest_key + 2) * self._width >= _MOST:
            self._ranks = distinct_ints(times)
            self._width = len(self._ranks) + 2
        ordinals = times - self.first if self._ranks is None else np.searchsorted(self._ranks, times)
        places = keys * self._width + ordinals
        order = np.argsort(places, kind="stable")  # rows of the same key and time keep their order
        self._places = places[order]
        self.keys, self.times, self.at = keys[order], times[order], at[order]
        self.dead = len(alive) - int(np.count_nonzero(alive))
        self._by_time: Ints | None = None
        self._passed = [0, 0]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def held_bytes(self) -> int:
        return len(self) * _FLAG_BYTES + (0 if self.on_disk else self.bytes + len(self) * _ORDER_BYTES)

    @property
    def ordered(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self._places, self.keys, self.times, self.at

    def is_on_disk(self, rows: pa.RecordBatch, places: Ints, keys: Ints, times: Ints, at: Ints) -> None:
        self.rows, self._places, self.keys, self.times, self.at = rows, places, keys, times, at
        self.on_disk = True

    @staticmethod
    def of(rows: pa.RecordBatch, keys: Ints, times: Ints) -> "RowRun":
        return RowRun(rows, keys, times, np.ones(len(keys), np.bool_), np.zeros(len(keys), np.bool_))

    @staticmethod
    def merged(runs: Sequence["RowRun"]) -> "RowRun":
        """Returns a run of the living rows of `runs`, at least one; equal key and time: earlier runs first."""
        lasting = [run._lasting() for run in runs if run.dead < len(run)]
        rows = pa.concat_batches([rows for rows, *_ in lasting])
        firsts = np.cumsum([0, *(part.num_rows for part, *_ in lasting)])
        at = np.concatenate([at + first for (_, _, _, at, _), first in zip(lasting, firsts[:-1], strict=True)])
        keys, times = np.concatenate([part[1] for part in lasting]), np.concatenate([part[2] for part in lasting])
        run = RowRun.__new__(RowRun)
        run._set(rows, keys, times, at, np.ones(len(keys), np.bool_), np.concatenate([part[4] for part in lasting]))
        return run

    def _lasting(self) -> tuple[pa.RecordBatch, Ints, Ints, Ints, Bools]:
        if not self.dead:
            return self.rows, self.keys, self.times, self.at, self.matched
        position = self.alive[self.at]
        now_at = np.cumsum(self.alive) - 1
        rows = self.rows.filter(pa.array(self.alive))
        at = now_at[self.at[position]]
        return rows, self.keys[position], self.times[position], at, self.matched[self.alive]

    def ranges(self, keys: Ints, lowest: Ints, highest: Ints) -> tuple[Ints, Ints]:
        """Returns for each key the positions [start, end) of its rows with times `lowest` to `highest`.
        Includes both times, and dead rows."""
        first = np.minimum(keys, self._highest_key + 1) * self._width
        if self._ranks is None:
            low = np.minimum(np.maximum(lowest, self.first), self.last + 1) - self.first
            high = np.minimum(np.maximum(highest, self.first - 1), self.last) - self.first
        else:
            low = np.searchsorted(self._ranks, lowest)
            high = np.searchsorted(self._ranks, highest, "right") - 1
        starts = np.searchsorted(self._places, first + low)
        return starts, self._ends(starts, first + high)

    def _ends(self, starts: Ints, last: Ints) -> Ints:
        """If most keys have no row, looking ahead saves searches."""
        some = slice(None, None, len(starts) // _SAMPLED or 1)
        if len(starts) < _FEW or 2 * np.count_nonzero(self._reach(starts[some], last[some])) > len(starts[some]):
            return np.maximum(starts, np.searchsorted(self._places, last, "right"))
        ends: Ints = starts.copy()
        going = np.arange(len(starts))
        for _ in range(_LOOKS):
            going = going[self._reach(ends[going], last[going])]
            ends[going] += 1
        ends[going] = np.searchsorted(self._places, last[going], "right")
        return ends

    def _reach(self, positions: Ints, last: Ints) -> Bools:
        there: Bools = (positions < len(self)) & (self._places.take(positions, mode="clip") <= last)
        return there

    def passed(self, before: int, pointer: int = 0) -> Ints:
        """Returns positions, in time order, of rows before time `before` that were not yet returned.
        The pointers 0 and 1 are independent.
        """
        if self.first >= before or self._passed[pointer] == len(self):
            return self.at[:0]
        if self._by_time is None:
            self._by_time = np.argsort(self.times, kind="stable")
        end = len(self)
        if self.last >= before:
            end = int(np.searchsorted(self.times, before, sorter=self._by_time))
        start, self._passed[pointer] = self._passed[pointer], end
        return self._by_time[start:end]

    def skip(self, before: int, pointer: int) -> None:
        self.passed(before, pointer)

    def living(self, positions: Ints) -> Ints:
        return positions[self.alive[self.at[positions]]]

    def kill(self, positions: Ints) -> None:
        self.alive[self.at[positions]] = False
        self.dead += len(positions)

    def take(self, positions: Ints) -> pa.RecordBatch:
        return self.rows.take(pa.array(self.at[positions]))


def pairs(starts: Ints, ends: Ints, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Yields (row, position) for every position in [start, end) of each row, at most `most` at once."""
    counts = ends - starts
    total = int(counts.sum())
    if not total:
        return
    until = np.cumsum(counts)
    if total <= most:
        shift = starts - (until - counts)
        yield np.repeat(np.arange(len(counts)), counts), np.arange(total) + np.repeat(shift, counts)
        return
    for first in range(0, total, most):
        number = np.arange(first, min(first + most, total))
        row = np.searchsorted(until, number, "right")
        yield row, starts[row] + number - (until - counts)[row]


VALUE = "runs"


class StoredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """`value`: name of the snapshot value with the rows (Arrow IPC stream).
    `alive`, `matched`: a bit per row.
    """

    side: int
    value: str
    alive: bytes
    matched: bytes


class StoredRuns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    runs: tuple[StoredRun, ...]
    version: int = 1


_RUNS = VersionedDecoder(value_format("{}: the list of its rows in its snapshot"), msgspec.msgpack.Decoder(StoredRuns))


class RunStore:
    def __init__(self) -> None:
        # by id of the run, kept alive so that the id stays unique
        self._names: dict[int, tuple[RowRun, str]] = {}
        self._made = 0
        self._objects: Mapping[str, FileRef] = {}

    def capture(self, sides: Sequence[Sequence[RowRun]], values: dict[str, bytes], **more: Any) -> Capture:
        known, self._names = self._names, {}
        listed, rows, stored = [], {}, {}
        for side, runs in enumerate(sides):
            for run in runs:
                name = known[id(run)][1] if id(run) in known else self._new_name()
                self._names[id(run)] = run, name
                listed.append(StoredRun(side, name, _bits(run.alive), _bits(run.matched)))
                if name in self._objects:
                    stored[name] = self._objects[name]
                else:
                    rows[name] = run.rows
        if listed:
            values = {**values, VALUE: msgspec.msgpack.encode(StoredRuns(tuple(listed)))}
        return Capture(
            values, blocking=partial(_encoded, rows) if rows else None, stored=stored, on_stored=self._on_stored, **more
        )

    def _new_name(self) -> str:
        self._made += 1
        return f"run-{self._made}"

    def _on_stored(self, objects: Mapping[str, FileRef]) -> None:
        self._objects = objects


def restored_runs(snapshots: Iterable[OperatorSnapshot]) -> Iterator[tuple[int, pa.RecordBatch, Bools, Bools]]:
    for snapshot in snapshots:
        if VALUE not in snapshot.values:
            continue
        for stored in _RUNS.decode(snapshot.values[VALUE], f"operator {snapshot.operator!r}").runs:
            rows = _decoded(snapshot.values[stored.value], snapshot.operator)
            yield stored.side, rows, _flags(stored.alive, len(rows)), _flags(stored.matched, len(rows))


def _bits(flags: Bools) -> bytes:
    return np.packbits(flags).tobytes()


def _flags(bits: bytes, rows: int) -> Bools:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows).astype(np.bool_)


def _encoded(batches: Mapping[str, pa.RecordBatch]) -> dict[str, bytes]:
    """Runs on a worker thread."""
    return {name: stream_of(rows, "lz4") for name, rows in batches.items()}


def _decoded(data: bytes, operator: str) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise Corrupt(
            f"operator {operator!r}: rows of a join in its snapshot cannot be read ({error}): restore from another "
            "checkpoint"
        ) from error


_PARTS = 8  # of the share: larger runs are not merged


class RunsOnDisk:
    def __init__(self, directory: Path, held_bytes: Callable[[], int], where: str) -> None:
        self._directory = directory
        self._held_bytes = held_bytes
        self._where = where

    @property
    def most_bytes(self) -> int:
        return self._held_bytes()

    @property
    def most_merged_bytes(self) -> int:
        return self.most_bytes // _PARTS

    def relieve(self, sides: Sequence[Sequence[RowRun]]) -> None:
        """Moves runs to disk, each side's oldest first, until the others fit the share."""
        most = self.most_bytes
        held = sum(run.held_bytes for runs in sides for run in runs)
        if held <= most:
            return
        for pair in zip_longest(*sides):
            for run in pair:
                if run is not None and not run.on_disk:
                    before = run.held_bytes
                    self._move(run)
                    held += run.held_bytes - before
                    if held <= most:
                        return

    def _move(self, run: RowRun) -> None:
        columns = run.ordered
        first = _aligned(sum(column.nbytes for column in columns))

        def write(file: IO[bytes]) -> None:
            for column in columns:
                file.write(column.data)
            file.write(bytes(first - file.tell()))
            with pa.ipc.new_stream(file, run.rows.schema) as writer:
                writer.write_batch(run.rows)

        mapped = mapped_file(self._directory, write, self._where)
        with pa.ipc.open_stream(pa.py_buffer(mapped).slice(first)) as reader:
            rows = reader.read_next_batch()
        size = len(run)
        of_file = [np.frombuffer(mapped, np.int64, size, 8 * size * number) for number in range(len(columns))]
        run.is_on_disk(rows, *of_file)


def _aligned(size: int) -> int:
    return -(-size // 64) * 64
